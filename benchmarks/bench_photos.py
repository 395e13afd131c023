"""Time ``embed`` on the demo photographs against a plain loop, a cold start of ``predict``, and the allocator settings.

Decoding, network and store are timed in every repetition; imports only in a cold start. The bf16 rows exist only if the
processor multiplies in bf16.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from labelkit.commands.common.networks import build_embedding_network
from labelkit.models.inference import BackboneNetwork
from labelkit.options.embed import EmbedConfig
from PIL import Image

from benchmarks.measure import Row, Side, Wanted, compare, compare_several, own_cache, seconds, with_check

SEEDS = {"weights": 0, "noise": 0}
PHOTOS = Path(__file__).parents[1] / "examples" / "photos"
REPETITIONS, COLD_REPETITIONS = 3, 3
TRAINED, TRAINING_STEPS = "resnet18", 1
VIT = "vit_small_patch16_224"
LITE0_PHOTOS, VIT_PHOTOS = 120, 32
LARGE_PHOTOS, LARGE_SIDE, NOISE = 6, 3024, 12.0
COLD_TIMM = """
import sys, timm, torch
from PIL import Image
model = timm.create_model(sys.argv[1], num_classes=0).eval()
model.load_state_dict(torch.load(sys.argv[2], weights_only=True))
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
with torch.inference_mode():
    model(transform(Image.open(sys.argv[3]).convert("RGB"))[None])
"""


@contextmanager
def side(name: str, **options: Any) -> Iterator[Callable[[], float]]:
    """Start a process that does its work whenever the returned function is called, which returns the seconds."""
    text = json.dumps({**options, "torch_threads": torch.get_num_threads()})
    command = [sys.executable, "-m", "benchmarks.photo_sides", name, text]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def turn() -> float:
            asked.write("\n")
            asked.flush()
            return float(answers.readline())

        yield turn
        asked.close()


def has_bf16() -> bool:
    """Return whether the processor multiplies in bf16."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def rows() -> Iterator[Row]:
    """Compare the times of complete passes."""
    with own_cache() as folder:
        yield from _embed_rows(folder)
        yield from _cold_rows(folder)


def shown_rows() -> Iterator[Row]:
    """Show the gains from decoding large photos at reduced size and from keeping memory."""
    with own_cache() as folder:
        yield _large_row(folder)
    yield _training_row()


def _embed_rows(folder: Path) -> Iterator[Row]:
    lite0 = {"backbone": "tf_efficientnet_lite0.in1k", "pretrained": True, "max_images": LITE0_PHOTOS}
    vit = {"backbone": VIT, "random_weights": True, "max_images": VIT_PHOTOS}
    yield from _embed_row(folder, "Lite0", lite0, Wanted(">=", 2.3), Wanted(">=", 4))
    yield from _embed_row(folder, "ViT-S/16", vit, Wanted(""), Wanted(">=", 1.8))


def _embed_row(folder: Path, what: str, options: dict[str, Any], single: Wanted, half: Wanted) -> Iterator[Row]:
    """Compare both precisions with the same repetitions of the peer."""
    config = EmbedConfig.model_validate({**options, "seed": SEEDS["weights"], "out": folder / "x.h5"})
    weights, name = _saved(config, folder)
    place = Path(tempfile.mkdtemp(dir=folder))
    other = place / "other.npy"
    common = {"dataset": str(PHOTOS), "max_images": options["max_images"]}
    threads = {"threads": torch.get_num_threads(), "device": "cpu"}
    wanted = {"float32": (single, 0.99999), **({"bf16": (half, 0.99)} if has_bf16() else {})}
    with ExitStack() as sides:
        peer = sides.enter_context(side("loop", **common, backbone=name, weights=str(weights), rows=str(other)))
        turns = []
        for precision, (least, _) in wanted.items():
            own = {**common, **options, "seed": SEEDS["weights"], **threads, "rows": str(place / f"{precision}.npy")}
            turn = sides.enter_context(side("embed", **own, precision=precision))
            called = f"embed {common['max_images']} photos, {what} {precision}: images/s"
            turns.append(Side(f"{called} / DataLoader loop with timm in float32", turn, least))
        rows = compare_several(turns, peer, repetitions=REPETITIONS)
    for row, (precision, (_, cosine)) in zip(rows, wanted.items(), strict=True):
        least_cosine = float(_cosines(np.load(place / f"{precision}.npy"), np.load(other)).min())
        yield with_check(row, f"rows (cosine {least_cosine:.6f})", least_cosine >= cosine)


def _large_row(folder: Path) -> Row:
    """Use photos of the size that a phone takes: demo photos (160 pixels wide), enlarged and with noise."""
    generator = np.random.default_rng(SEEDS["noise"])
    (folder / "large").mkdir()
    noise = generator.normal(0, NOISE, (LARGE_SIDE, LARGE_SIDE * 4 // 3, 3))
    listed = sorted(PHOTOS.glob("*.jpg"))
    for path in listed[:: len(listed) // LARGE_PHOTOS]:
        image = Image.open(path).convert("RGB").resize((LARGE_SIDE * 4 // 3, LARGE_SIDE), Image.Resampling.LANCZOS)
        noisy = np.asarray(image, dtype=np.float32) + noise
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / "large" / path.name, quality=90)
    own, other = folder / "fast.npy", folder / "whole.npy"
    options = {
        "dataset": str(folder / "large"),
        "label_split": "none",
        "runtime": "onnx",
        "device": "cpu",
        "threads": torch.get_num_threads(),
    }
    ours = side("embed", **options, fast_decode=True, rows=str(own))
    with ours as our_turn, side("embed", **options, rows=str(other)) as peer_turn:
        row = compare(
            f"embed {LARGE_PHOTOS} photos of 12 megapixels, Lite0: --fast-decode, times as fast / decoded whole",
            our_turn,
            peer_turn,
            wanted=Wanted(""),
            repetitions=REPETITIONS,
        )
    least_cosine = float(_cosines(np.load(own), np.load(other)).min())
    return with_check(row, f"rows (cosine {least_cosine:.6f})", least_cosine >= 0.999)


def _saved(config: EmbedConfig, folder: Path) -> tuple[Path, str]:
    """Save weights in timm's format; return the file and the name of the network."""
    network = build_embedding_network(config, 3).network
    assert isinstance(network, BackboneNetwork)
    path = folder / "weights.pt"
    torch.save(network.backbone.net.state_dict(), path)
    return path, str(network.identity["name"]).partition(".")[0]


def _cosines(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    a, b = left.astype(np.float64), right.astype(np.float64)
    return np.asarray((a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))


def _cold_rows(folder: Path) -> Iterator[Row]:
    """Time whole processes."""
    script = str(Path(sys.executable).with_name("labelkit"))
    made, photo = folder / "made", sorted(PHOTOS.glob("*.jpg"))[0]
    new = folder / "new.jpg"
    new.write_bytes(photo.read_bytes() + b"\0")  # not the file that has a prediction
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}

    def run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, env=environment)

    run(script, "start", str(PHOTOS), "--labels", str(PHOTOS / "labels.csv"), "--out", str(made))
    predict = (script, "predict", str(new), "--from", str(made), "--device", "cpu")
    weights, name = _saved(EmbedConfig.model_validate({"out": folder / "x.h5"}), folder)
    peers = {
        "python -c 'import torch'": (sys.executable, "-c", "import torch"),
        "a script with timm": (sys.executable, "-c", COLD_TIMM, name, str(weights), str(new)),
    }
    for what, peer in peers.items():
        yield compare(
            f"predict one photo from nothing, Lite0 / {what}",
            seconds(lambda: run(*predict)),
            seconds(lambda peer=peer: run(*peer)),  # type: ignore[misc] # mypy wants no default here
            wanted=Wanted("<=", 1),
            repetitions=COLD_REPETITIONS,
            warmups=1,
        )


def _training_row() -> Row:
    options = {"backbone": TRAINED, "batch": 32, "steps": TRAINING_STEPS}
    with side("train", **options, keep=True) as our_turn, side("train", **options, keep=False) as peer_turn:
        return compare(
            f"training step, {TRAINED} 224 px, b 32: freed memory kept, times as fast / glibc's own way",
            our_turn,
            peer_turn,
            wanted=Wanted(""),
            repetitions=REPETITIONS,
        )
