"""One side of a row of ``bench_photos``, in a process of its own: what glibc is told to keep is told for good.

    python -m benchmarks.photo_sides SIDE JSON

Does its work once for every line of standard input, and answers with the seconds that it took.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def embed(options: dict[str, Any]) -> Callable[[], None]:
    """``labelkit embed``, network and store included."""
    from labelkit.commands.embed.embed import embed_images
    from labelkit.options.embed import EmbedConfig
    from labelkit.store.embeddings import open_store

    rows, number = Path(options.pop("rows")), itertools.count()

    def work() -> None:
        out = rows.with_name(f"{rows.stem}-{next(number)}.h5")
        embed_images(EmbedConfig.model_validate({**options, "out": out}))
        np.save(rows, np.asarray(open_store(out).embeddings))

    return work


def loop(options: dict[str, Any]) -> Callable[[], None]:
    """What a user of timm writes: its network, its transform, a DataLoader."""
    import timm
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    listed, count = sorted(Path(options["dataset"]).glob("*.jpg")), options["max_images"]
    paths = [listed[i * len(listed) // count] for i in range(count)]  # as --max-images takes them

    class Photos(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, row: int) -> torch.Tensor:
            tensor: torch.Tensor = transform(Image.open(paths[row]).convert("RGB"))
            return tensor

    def work() -> None:
        nonlocal transform
        model = timm.create_model(options["backbone"], num_classes=0).eval()
        model.load_state_dict(torch.load(options["weights"], weights_only=True))
        transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
        with torch.inference_mode():
            found = torch.cat([model(batch) for batch in DataLoader(Photos(), batch_size=32)])
        np.save(options["rows"], found.numpy())

    transform: Any = None
    return work


def train(options: dict[str, Any]) -> Callable[[], None]:
    """Some steps of a classifier, with or without what ``labelkit`` tells the allocator."""
    import timm
    from labelkit.training.devices import keep_freed_memory

    if options["keep"]:
        keep_freed_memory()
    model = timm.create_model(options["backbone"], num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters())
    images = torch.rand(options["batch"], 3, 224, 224)
    labels = torch.arange(options["batch"]) % 10

    def work() -> None:
        for _ in range(options["steps"]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    return work


def main() -> None:
    """Build the side; work at each line."""
    options = json.loads(sys.argv[2])
    torch.set_num_threads(options.pop("torch_threads"))
    work = {"embed": embed, "loop": loop, "train": train}[sys.argv[1]](options)
    for _ in sys.stdin:
        begin = time.perf_counter()
        work()
        sys.stdout.write(f"{time.perf_counter() - begin}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
