"""Check labelkit on a GPU: one command that runs unattended, in steps, and continues where it stopped.

    python examples/gpu_check.py --out gpu_check.json
    python examples/gpu_check.py --out gpu_check.json --list

Each step runs in a separate process for at most ``--minutes`` (8). The JSON is written after each step, and repeating
the command runs the remaining steps. ``--pieces N`` stops after N steps, ``--seconds S`` after S seconds; ``--jobs N``
runs N steps in parallel, except those of **fast**, which are timed alone.

- **runs**: tests with the mark ``gpu``; 20 steps of every method in float32, bf16, fp16; bit-identical resume with
  ``--deterministic``; the memory estimate of ``--dry-run`` compared with the peak; embeddings, neighbors, balanced
  assignments and cotap's loss compared with the CPU.
- **fast**: the trainer compared with a bare PyTorch loop; ``embed`` with a bare forward pass; cotap's loss with the
  double sum; balanced assignments with the matrix form; exact search with ``torch.mm``.

``--stand-in`` tests the script on the CPU with tiny sizes; its numbers are meaningless. The script is one long file, so
that it can be copied to a machine with a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from labelkit import __version__
from labelkit.algorithms.neighbors import ExactSearch
from labelkit.algorithms.sinkhorn import LinearScores, solve_assignment
from labelkit.cli.main import main as labelkit
from labelkit.methods.dense.ranking_loss import cotap_loss
from labelkit.methods.registry import METHODS
from labelkit.models.backbones.registry import build_backbone
from labelkit.store.embeddings import open_store
from PIL import Image

STEPS = 20
GRACE = 5  # seconds to exit after SIGTERM


@dataclass(frozen=True)
class Asked:
    """The options."""

    device: str
    work: Path
    stand_in: bool

    def sized(self, full: int, tiny: int) -> int:
        """Return a size: that of the check, or that of the stand-in."""
        return tiny if self.stand_in else full


Result = dict[str, Any]


# ---------------------------------------------------------------------- helpers


def command(*words: object) -> Result:
    """Run a labelkit command in this process, and return its JSON output.

    Raises:
        RuntimeError: the command failed.
    """
    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        code = labelkit([*map(str, words), "--json"])
    if code != 0:
        raise RuntimeError(f"exit code {code}: {errors.getvalue()[-2000:]}")
    result: Result = json.loads(said.getvalue())
    return result


def timed(work: Callable[[], object], device: str, *, repeats: int = 3) -> float:
    """Return the minimum time of some repetitions in seconds, after one that loads the kernels and is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def wait(device: str) -> None:
    """Wait until the device has finished all work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def peak_mib(device: str) -> int | None:
    """Return the peak GPU memory so far, in MiB."""
    return round(torch.cuda.max_memory_allocated(device) / 2**20) if device.startswith("cuda") else None


def pictures(folder: Path, count: int, side: int) -> Path:
    """Write smooth images in ten classes, unless they exist; after the first 2,000, they are hard links."""
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        generator = np.random.default_rng(0)
        drawn: list[Path] = []
        for number in range(count):
            place = folder / "images" / f"class {number % 10}" / f"{number}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            if number < 2000:
                few = Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8))
                few.resize((side, side), Image.Resampling.BICUBIC).save(place)
                drawn.append(place)
            else:
                place.hardlink_to(drawn[number % 2000])
        (folder / "done").touch()
    return folder / "images"


def compared(name: str, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> Result:
    """Return the difference of two results relative to the largest value; raise if it exceeds the tolerance."""
    a, b = ours.detach().cpu().double(), theirs.detach().cpu().double()
    found = float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
    if not found <= tolerance:
        raise RuntimeError(f"{name}: differs by {found:.2g}, tolerance {tolerance:g}")
    return {"difference": found, "tolerance": tolerance}


# ---------------------------------------------------------------------- part 2: does it run


def gpu_tests(asked: Asked) -> Result:
    """Run the tests that need CUDA."""
    tests = Path(__file__).parents[1] / "tests"
    if not tests.is_dir():
        return {"skipped": "no tests beside this script"}
    chosen = [str(file) for file in sorted(tests.rglob("test_*.py")) if "@pytest.mark.gpu" in file.read_text()]
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "gpu", *chosen]
    done = subprocess.run(words, cwd=tests.parent, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 5):
        raise RuntimeError(done.stdout[-2000:])
    return {"said": done.stdout.strip().splitlines()[-1]}


def training(method: str, asked: Asked, out: Path, *words: object) -> Result:
    """Train for a few steps on the bundled digits; return the logged losses."""
    line = ["train", method, "--dataset", "digits", "--preset", "digits", "--device", asked.device, "--out", out]
    made = command(*line, "--log-every-steps", 1, *words)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    if not losses or not all(np.isfinite(losses)):
        raise RuntimeError(f"losses {losses[:3]} ... {losses[-3:]}")
    return {"fingerprint": made["weights_fingerprint"], "first_loss": losses[0], "last_loss": losses[-1]}


def some_steps(method: str, precision: str, *others: str) -> Callable[[Asked], Result]:
    """Return a step that trains a method in a given precision, optionally with other options."""

    def work(asked: Asked) -> Result:
        with fresh(asked) as folder:
            words = ["--precision", precision, "--stop-after-steps", asked.sized(STEPS, 3), *others]
            return {**training(method, asked, folder / "run", *words), "peak_mib": peak_mib(asked.device)}

    return work


def same_bits(method: str) -> Callable[[Asked], Result]:
    """Return a step that compares an interrupted and resumed run with an uninterrupted one."""

    def work(asked: Asked) -> Result:
        steps = asked.sized(STEPS, 4)
        with fresh(asked) as folder:
            told = ["--deterministic", "--stop-after-steps"]
            whole = training(method, asked, folder / "whole", *told, steps)
            training(method, asked, folder / "cut", *told, steps // 2)
            resumed = training(method, asked, folder / "cut", *told, steps, "--resume")
        if whole["fingerprint"] != resumed["fingerprint"]:
            raise RuntimeError("the resumed run has different weights from the uninterrupted run")
        return {"same": True, "steps": steps}

    return work


def told_memory(method: str, backbone: str, side: int, batch: int, precision: str) -> Callable[[Asked], Result]:
    """Return a step that compares the memory estimate of a run with its peak."""

    def work(asked: Asked) -> Result:
        size = asked.sized(batch, 8)
        images = pictures(asked.work / f"memory {side}", asked.sized(10 * batch, 40), side)
        line = ["train", method, "--dataset", images, "--backbone", backbone, "--image-size", side]
        line += ["--batch-size", size, "--epochs", 1, "--lr-warmup-epochs", 0, "--device", asked.device]
        line += ["--precision", precision]
        plan = command(*line, "--dry-run")
        if asked.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(asked.device)
        with fresh(asked) as folder:
            command(*line, "--out", folder / "run")
        return {"told_mib": plan["memory_mib"], "peak_mib": peak_mib(asked.device)}

    return work


def equal_embeddings(asked: Asked) -> Result:
    """Compare the embeddings of the device and the CPU."""
    images = pictures(asked.work / "small", asked.sized(10_000, 40), 32)
    rows = []
    with fresh(asked) as folder:
        for number, device in enumerate((asked.device, "cpu")):
            line = ["embed", "--dataset", images, "--backbone", "resnet32_cifar", "--random-weights"]
            line += ["--device", device, "--max-images", asked.sized(1000, 20), "--out", folder / f"{number}.h5"]
            command(*line)
            rows.append(torch.from_numpy(np.array(open_store(folder / f"{number}.h5").embeddings)))
    return compared("embeddings", rows[0], rows[1], 1e-4)


def equal_sums(asked: Asked) -> Result:
    """Compare balanced assignments, cotap's loss and its gradient on the device and the CPU."""
    generator = torch.Generator().manual_seed(0)
    n, k, d = asked.sized(100_000, 500), asked.sized(1000, 8), 64
    features, weight = torch.randn(n, d, generator=generator), torch.randn(k, d, generator=generator) / 8
    potentials = [
        solve_assignment(LinearScores(features.to(x), weight.to(x)), 5.0).potentials for x in (asked.device, "cpu")
    ]
    rows, items = 2, asked.sized(2401, 50)
    scores, targets = (torch.rand(rows, items, generator=generator) for _ in range(2))
    losses: list[torch.Tensor] = []
    gradients: list[torch.Tensor] = []
    for device in (asked.device, "cpu"):
        own = scores.to(device).requires_grad_()
        loss = cotap_loss(own, targets.to(device), implementation="fast")
        loss.sum().backward()
        assert own.grad is not None
        losses.append(loss)
        gradients.append(own.grad)
    return {
        "sinkhorn": compared("sinkhorn", potentials[0], potentials[1], 1e-3),
        "cotap": compared("cotap", losses[0], losses[1], 1e-5),
        "cotap_gradient": compared("cotap's gradient", gradients[0], gradients[1], 1e-4),
    }


# ---------------------------------------------------------------------- part 3: is it fast


def trainer_speed(backbone: str, side: int, *, half: bool = False, compiled: bool = False) -> Callable[[Asked], Result]:
    """Return a step that compares the throughput of the trainer with that of a bare loop on images in device memory."""

    def work(asked: Asked) -> Result:
        count, size = asked.sized(20_000, 40), asked.sized(128, 8)
        images = pictures(asked.work / f"side {side}", count, side)
        line = ["train", "softmax", "--dataset", images, "--backbone", backbone, "--image-size", 32, "--epochs", 3]
        line += ["--batch-size", size, "--augmentation", "crop-flip", "--eval-split", "none", "--guard", "none"]
        line += ["--lr", 0.1, "--lr-warmup-epochs", 0, "--device", asked.device]
        line += ["--num-workers", asked.sized(12, 0) if side > 64 else 0, "--precision", "bf16" if half else "float32"]
        line += ["--compile"] if compiled else []
        with fresh(asked) as folder:
            command(*line, "--out", folder / "run")
            lines = [json.loads(text) for text in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        epochs = [line["seconds"] for line in lines if "seconds" in line]
        ours = (count // size) * size / min(epochs[1:])
        bare = bare_speed(backbone, size, asked, half=half, compiled=compiled)
        return {"images_per_second": round(ours), "bare": round(bare), "ratio": round(ours / bare, 3)}

    return work


def bare_speed(backbone: str, batch: int, asked: Asked, *, half: bool, compiled: bool) -> float:
    """Return the images per second of forward, backward and SGD, with one crop and flip per batch."""
    device, steps = asked.device, asked.sized(100, 2)
    network = build_backbone(backbone, pretrained=False, weights=None, in_channels=3, image_size=32, seed=0).to(device)
    head = torch.nn.Linear(network.info.feature_dim, 10).to(device)
    if half:
        network = network.to(memory_format=torch.channels_last)
    if compiled:
        network.compile()
    weights = [*network.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9, weight_decay=5e-4)
    images, labels = torch.rand(batch, 3, 32, 32, device=device), torch.arange(batch, device=device) % 10

    def run() -> None:
        for step in range(steps):
            view = F.pad(images, (4, 4, 4, 4))[:, :, step % 8 : step % 8 + 32, :32].flip(-1)
            with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=half):
                scores = head(network(view))
            F.cross_entropy(scores.float(), labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return batch * steps / timed(run, device, repeats=1)


def embed_speed(asked: Asked) -> Result:
    """Compare the images per second of ``embed`` with those of a bare forward pass: ViT-B/16 at 224 pixels in bf16."""
    name, side = ("vit_mini_p4_32", 32) if asked.stand_in else ("vit_base_patch16_224", 224)
    count, batch = asked.sized(8192, 40), asked.sized(256, 8)
    images = pictures(asked.work / f"embed {side}", count, side)
    with fresh(asked) as folder:
        line = ["embed", "--dataset", images, "--backbone", name, "--random-weights", "--precision", "bf16"]
        line += ["--batch-size", batch, "--num-workers", asked.sized(14, 0), "--device", asked.device]
        made = command(*line, "--out", folder / "x.h5")
    network = build_backbone(name, pretrained=False, weights=None, in_channels=3, image_size=side, seed=0)
    network = network.eval().to(asked.device)
    pixels = torch.rand(batch, 3, side, side, device=asked.device)

    def forward() -> None:
        with torch.inference_mode(), torch.autocast(asked.device.partition(":")[0], torch.bfloat16):
            network(pixels)

    bare = batch / timed(forward, asked.device)
    ours = made["images_per_second"]
    return {"images_per_second": ours, "bare": round(bare, 1), "ratio": round(ours / bare, 3)}


def cotap_speed(items: int) -> Callable[[Asked], Result]:
    """Return a step that compares the time of cotap's loss and gradient with that of the double sum."""

    def work(asked: Asked) -> Result:
        n = asked.sized(items, 60)
        generator = torch.Generator().manual_seed(0)
        scores, targets = (torch.rand(1, n, generator=generator).to(asked.device) for _ in range(2))
        seconds = {}
        for kind in ("fast", "pairs"):

            def run(kind: Any = kind) -> None:
                own = scores.clone().requires_grad_()
                cotap_loss(own, targets, implementation=kind).sum().backward()

            seconds[kind] = timed(run, asked.device)
        return {"items": n, **seconds}

    return work


def sinkhorn_speed(asked: Asked) -> Result:
    """Compare the time of 1.28 M x 3,000 balanced assignments with SeLa's matrix form, for equal numbers of passes."""
    n, k, lam = asked.sized(1_281_167, 400), asked.sized(3000, 8), 5.0
    scores = torch.randn(n, k, device=asked.device)
    wait(asked.device)
    started = time.perf_counter()
    found = solve_assignment(scores, lam, memory_bytes=scores.nbytes)
    ours = time.perf_counter() - started
    plan = torch.softmax(scores, dim=1).pow_(lam)
    del scores
    r, c = torch.full((k,), 1 / k, device=asked.device), torch.full((n,), 1 / n, device=asked.device)
    beta = c

    def matrix_form() -> None:
        b = beta
        for _ in range(found.num_iterations):
            b = c / (plan @ (r / (b @ plan)))

    theirs = timed(matrix_form, asked.device, repeats=1)
    return {"seconds": ours, "matrix_form": theirs, "passes": found.num_iterations}


def search_speed(asked: Asked) -> Result:
    """Compare the time of exact search on the CPU and the device with ``torch.mm`` and ``topk`` on the device."""
    q, g, d = asked.sized(10_000, 50), asked.sized(1_000_000, 200), asked.sized(128, 8)
    generator = torch.Generator().manual_seed(0)
    queries, gallery = (F.normalize(torch.randn(n, d, generator=generator), dim=1) for n in (q, g))
    seconds: dict[str, float] = {}
    found = {}
    for name, device in (("cpu", None), ("device", asked.device)):
        search = ExactSearch(gallery.numpy(), device=device)
        started = time.perf_counter()
        found[name] = search.search(queries.numpy(), 10)
        seconds[name] = time.perf_counter() - started
    asking, asked_of = queries.to(asked.device), gallery.to(asked.device)
    near = torch.cat([torch.mm(part, asked_of.T).topk(10).indices for part in asking.split(1000)]).cpu().numpy()
    seconds["mm"] = timed(lambda: [torch.mm(part, asked_of.T).topk(10) for part in asking.split(1000)], asked.device)
    return {
        "seconds": seconds,
        "same": all(np.array_equal(found["cpu"][place], found["device"][place]) for place in (0, 1)),
        "same_places_as_mm": float((near == found["cpu"][1]).mean()),
    }


def same_commands(asked: Asked) -> Result:
    """Compare the output of ``retrieve`` on the device and on the CPU."""
    same: dict[str, bool] = {}
    with fresh(asked) as folder:
        store = folder / "rows.h5"
        command("embed", "--dataset", "digits", "--backbone", "pixels", "--image-size", 8, "--out", store)
        words = ["retrieve", "--index", store, "--query-rows", "0,7,100"]
        hits = [command(*words, "--device", device)["queries"] for device in ("cpu", asked.device)]
        same["retrieve"] = hits[0] == hits[1]
    return {"same": same}


# ---------------------------------------------------------------------- the list, and its runs


@contextlib.contextmanager
def fresh(asked: Asked) -> Iterator[Path]:
    """Provide a temporary folder."""
    asked.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.work) as folder:
        yield Path(folder)


def pieces(asked: Asked) -> dict[str, Callable[[Asked], Result]]:
    """Return all steps by name: PART/WHAT."""
    methods = ["softmax"] if asked.stand_in else list(METHODS)
    precisions = ("float32", "bf16") if asked.device == "cpu" else ("float32", "bf16", "fp16")
    found: dict[str, Callable[[Asked], Result]] = {"runs/tests": gpu_tests}
    if not asked.stand_in:  # on a CPU, compilation takes minutes
        whole = [method for method in methods if METHODS[method].load().runs_whole_backbone]
        found |= {f"runs/{method} compiled": some_steps(method, "bf16", "--compile") for method in whole}
    for method in methods:
        found |= {f"runs/{method} {precision}": some_steps(method, precision) for precision in precisions}
    found |= {f"runs/{method} resumed": same_bits(method) for method in methods}
    found["runs/memory, resnet32"] = told_memory("softmax", "resnet32_cifar", 32, 512, "float32")
    if not asked.stand_in:
        found["runs/memory, vit"] = told_memory("softmax", "vit_small_patch16_224", 224, 128, "bf16")
    found |= {"runs/embed": equal_embeddings, "runs/sums": equal_sums}
    found["runs/cluster and retrieve"] = same_commands
    small, wide = ("resnet20_cifar", "wrn10_1") if asked.stand_in else ("resnet32_cifar", "wrn28_2")
    found |= {
        f"fast/train {small}, memory": trainer_speed(small, 32),
        f"fast/train {small}, bf16": trainer_speed(small, 32, half=True),
        **(
            {}
            if asked.stand_in
            else {f"fast/train {small}, compiled": trainer_speed(small, 32, half=True, compiled=True)}
        ),
        f"fast/train {wide}, memory": trainer_speed(wide, 32),
        f"fast/train {small}, files": trainer_speed(small, 72),
        "fast/embed": embed_speed,
        "fast/cotap 2401": cotap_speed(2401),
        "fast/cotap 38416": cotap_speed(38_416),
        "fast/sinkhorn": sinkhorn_speed,
        "fast/search": search_speed,
    }
    return found


def carry_out(name: str, asked: Asked, out: Path) -> int:
    """Run one step in this process, and write its result."""
    started = time.monotonic()
    try:
        found: Result = {"state": "done", "result": pieces(asked)[name](asked)}
    except Exception as error:  # any error may occur on a GPU
        found = {"state": "failed", "error": "".join(traceback.format_exception(error))[-4000:]}
    found["seconds"] = round(time.monotonic() - started, 1)
    out.write_text(json.dumps(found))
    return 0


class Piece:
    """A step in a separate process."""

    def __init__(self, name: str, options: argparse.Namespace, *, threads: int) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory()
        self._out = Path(self._folder.name) / "piece.json"
        words = [sys.executable, str(Path(__file__).resolve()), "--piece", name, "--out", str(self._out)]
        words += ["--device", options.device, "--work", str(options.work)]
        words += ["--stand-in"] if options.stand_in else []
        names = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self._child = subprocess.Popen(words, start_new_session=True, env=names)
        self._asked_at: float | None = None
        self._latest = time.monotonic() + 60 * options.minutes

    def has_ended(self) -> bool:
        """Return whether the step is over; past its time limit, ask it to stop, and give up after GRACE seconds."""
        if self._child.poll() is not None:
            return True
        now = time.monotonic()
        if self._asked_at is None and now > self._latest:
            self.ask_to_stop()
        return self._asked_at is not None and now > self._asked_at + GRACE

    def ask_to_stop(self) -> None:
        """Send SIGTERM once, so that training can write a checkpoint."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._child.send_signal(signal.SIGTERM)

    def result(self) -> Result:
        """Return the result of the step."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)  # including its child processes
        self._child.wait()
        found: Result = {"state": "failed", "error": f"no result (exit code {self._child.returncode})"}
        if self._out.exists():
            found = json.loads(self._out.read_text())
        self._folder.cleanup()
        return found


class Pieces:
    """The steps and their results, in one JSON file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        out = options.out
        self.kept: Result = json.loads(out.read_text())["pieces"] if out.exists() else {}
        asked = Asked(options.device, options.work, options.stand_in)
        self.wanted = [
            name
            for name in pieces(asked)
            if name.partition("/")[0] in options.parts and (options.only is None or re.search(options.only, name))
        ]

    def state(self, name: str) -> str:
        """Return the state of a step: done, failed or -."""
        return str(self.kept.get(name, {}).get("state", "-"))

    def left(self) -> list[str]:
        """Return the remaining steps."""
        ended = ("done",) if self._options.again else ("done", "failed")
        return [name for name in self.wanted if self.state(name) not in ended]

    def keep(self, name: str, found: Result) -> None:
        """Write a result."""
        found["attempts"] = self.kept.get(name, {}).get("attempts", 0) + 1
        self.kept[name] = found
        out = self._options.out
        written = out.with_name(out.name + ".new")
        written.write_text(json.dumps({**about(self._options), "pieces": self.kept}, indent=1))
        written.replace(out)
        print(f"{found['state']:10} {found.get('seconds', '-'):>7} s  {name}", flush=True)

    def carry_out(self) -> None:
        """Run the remaining steps: several in parallel, but timed steps alone."""
        waiting, running = self.left(), list[Piece]()
        most, begun = self._options.pieces, 0
        ends = time.monotonic() + self._options.seconds
        while waiting or running:
            late = time.monotonic() > ends
            for piece in running:
                if late:
                    piece.ask_to_stop()
            alone = bool(running) and running[0].name.startswith("fast/")
            if late or begun == most:
                waiting = []
            while waiting and begun != most and not alone and len(running) < self._options.jobs:
                alone = waiting[0].startswith("fast/")
                if alone and running:
                    break
                threads = (os.cpu_count() or 1) // (1 if alone else self._options.jobs)
                running.append(Piece(waiting.pop(0), self._options, threads=max(1, threads)))
                begun += 1
            for piece in [piece for piece in running if piece.has_ended()]:
                running.remove(piece)
                found = piece.result()
                if not (late and found["state"] == "failed"):  # an interrupted step remains to be done
                    self.keep(piece.name, found)
            time.sleep(0.05)


def about(options: argparse.Namespace) -> Result:
    """Return the versions and the machine that the numbers belong to."""
    gpu = options.device.startswith("cuda")
    versions = {"labelkit": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {
        "command": shlex.join(["python", *sys.argv]),
        "versions": {**versions, **({"CUDA": torch.version.cuda} if gpu else {})},
        "machine": {"GPU": torch.cuda.get_device_name(options.device) if gpu else "none", "cores": os.cpu_count()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the remaining steps; return 1 if a step failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of all steps, which is continued")
    parser.add_argument("--parts", nargs="+", default=["runs", "fast"], choices=["runs", "fast"])
    parser.add_argument("--only", help="regular expression for names of steps")
    parser.add_argument("--device", default=None, help="default: cuda")
    parser.add_argument("--minutes", type=float, default=8, help="time limit per step")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="total time limit")
    parser.add_argument("--pieces", type=int, default=None, help="stop after this number of steps")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel steps; timed steps run alone")
    parser.add_argument("--again", action="store_true", help="repeat failed steps")
    parser.add_argument("--work", type=Path, default=Path("gpu_check"), help="folder for runs and images")
    parser.add_argument("--stand-in", action="store_true", help="test everything on the CPU, with tiny sizes")
    parser.add_argument("--list", action="store_true", help="list the steps and their state")
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.device = options.device or ("cpu" if options.stand_in else "cuda")
    options.work = options.work.resolve()
    if options.piece:
        asked = Asked(options.device, options.work, options.stand_in)
        return carry_out(options.piece, asked, options.out)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch detects no GPU; to test the script on the CPU, pass --stand-in")
    todo = Pieces(options)
    if options.list:
        for name in todo.wanted:
            print(f"{todo.state(name):10} {name}")
    else:
        todo.carry_out()
    return 1 if "failed" in map(todo.state, todo.wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
