"""One side of a comparison in ``bench_photos``, in its own process: glibc's allocator settings are permanent.

    python -m benchmarks.photo_sides SIDE JSON

For each line of standard input, it does its work once, and prints the time in seconds.
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
    """Run ``labelkit embed``, including network and store."""
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
    """Run a typical timm program: its network, its transform, a DataLoader."""
    import timm
    from PIL import Image
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform
    from torch.utils.data import DataLoader, Dataset

    listed, count = sorted(Path(options["dataset"]).glob("*.jpg")), options["max_images"]
    paths = [listed[i * len(listed) // count] for i in range(count)]  # the same images as with --max-images

    class Photos(Dataset[torch.Tensor]):
        def __init__(self, transform: Callable[[Image.Image], torch.Tensor]) -> None:
            self._transform = transform

        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, row: int) -> torch.Tensor:
            return self._transform(Image.open(paths[row]).convert("RGB"))

    def work() -> None:
        model = timm.create_model(options["backbone"], num_classes=0).eval()
        model.load_state_dict(torch.load(options["weights"], weights_only=True))
        transform = create_transform(**resolve_model_data_config(model))
        with torch.inference_mode():
            found = torch.cat([model(batch) for batch in DataLoader(Photos(transform), batch_size=32)])
        np.save(options["rows"], found.numpy())

    return work


def train(options: dict[str, Any]) -> Callable[[], None]:
    """Train a classifier for a few steps, with or without the allocator settings of ``labelkit``."""
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
    """Set up the side, and do its work once per input line."""
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
