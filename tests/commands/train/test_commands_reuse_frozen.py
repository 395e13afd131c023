"""Training on what the frozen part of a network made of views, made once."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.train import run as training
from labelkit.commands.train.reuse import FrozenFeatureCache, plan_frozen_cache
from labelkit.data.batch import ViewGeometry
from labelkit.data.image_bank import CachedViewBank, ImageBank, draw_views
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.spec import Normalize
from labelkit.data.workers import BatchPlan
from labelkit.models.backbones.registry import Backbone
from tests.running import run_labelkit

BASE = {"--backbone": "vit_nano_p8_32", "--image-size": 32, "--preset": "none", "--grad-from-block": 3}
DATA = {"--label-split": "gcd", "--batch-size": 16, "--device": "cpu", "--threads": 1, "--log-every-steps": 1}
HEADS = {"--projector-hidden-dim": 16, "--projection-dim": 8}
METHODS: dict[str, tuple[object, ...]] = {
    "simgcd": (),
    "gcd": ("--head-dim", 16),
    "flipclass": ("--align-blocks", "1,2"),
    "flipclass none": ("--align-mode", "none", "--align-blocks", "1"),
    "flipclass kld": ("--align-mode", "kld", "--align-blocks", "1"),
    "flipclass last block": ("--align-blocks", "1,3"),
    "simgcd heads": ("--linear-probe",),
}
NEVER: dict[str, tuple[object, ...]] = {"flipclass sda": ("--align-mode", "sda", "--align-blocks", "1")}
NO_HEADS = {"--backbone": "smallcnn", "--freeze-stages": 2}
METRIC = ("--embed-dim", 8, "--images-per-class", 4, "--augmentation", "crop-flip")
CLUSTERS = ("--num-clusters", 6, "--refresh-epochs", 2)
STAGES: dict[str, tuple[object, ...]] = {
    "softmax": ("--augmentation", "crop-flip"),
    "dl2pa": ("--embed-dim", 8, "--augmentation", "crop-flip"),
    "sela": ("--num-heads", 2, "--num-clusters", 4, "--num-optimizations", 3),
    "san": (*METRIC, "--san-before", "block4"),
    "san remembers": (*METRIC, "--san-before", "block4", "--memory", "momentum"),
    "san clusters": (*METRIC, *CLUSTERS, "--san-before", "block4", "--mode", "unsupervised"),
    "tac-ccl": (*METRIC, *CLUSTERS, "--ccl-start-epoch", 1),
    "tac-ccl alone": (*METRIC, *CLUSTERS, "--no-tac"),
}
NEVER |= {
    "san frozen": (*METRIC, "--san-before", "block2"),
    "sela rotation": ("--num-heads", 2, "--num-clusters", 4, "--rotation"),
}


def train(photos: Path, method: str, out: Path, *words: object) -> Any:
    command = line(photos, method.split()[0], *(METHODS | NEVER | STAGES)[method], *words)
    return run_labelkit(*command, "--out", out, "--json")


def line(photos: Path, method: str, *words: object) -> list[object]:
    """Return a command line; words may replace what all have in common."""
    common: dict[str, object] = BASE | DATA | HEADS
    if method.split()[0] in {name.split()[0] for name in STAGES}:
        common = {name: BASE[name] for name in ("--image-size", "--preset")} | DATA | NO_HEADS
        common["--label-split"] = "none" if method.startswith(("sela", "tac")) else "given"
    common = {name: value for name, value in common.items() if name not in words}
    options = [word for pair in common.items() for word in pair]
    return ["train", method, "--dataset", photos, "--no-pretrained", *options, *words]


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line.get("kind") == "step"]


def kept_folders(parent: Path) -> list[Path]:
    return sorted(parent.glob("kept-*"))


class DrawnImages(CachedViewBank):
    """The same kept views as images, which the whole network looks at."""

    def __init__(self, bank: ImageBank, reuse: FrozenFeatureCache, seed: int, normalize: Normalize) -> None:
        self._bank, self._reuse, self._seed, self._reuse_normalize = bank, reuse, seed, normalize
        for name in ("dataset", "device", "rows", "bad"):
            setattr(self, name, getattr(bank, name))
        self.images, self.in_memory = None, True
        self._views = reuse.plan.counts[0]

    def make_views(self, plan: BatchPlan, normalize: Any) -> Any:
        rows, draws = plan.rows, plan.draws
        kinds = self._reuse.kinds
        specs = [view for view, place in self._reuse.views if place is not None]
        own = KeyedRNG(self._seed, draws.epoch, draws.keys)
        drawn = draw_views(own, kinds, self._views, followers=self._reuse.followers)
        # as they lie one after the other: draw by draw, that outside of training in the first one
        numbers = [(0, kind) for kind in range(len(specs) + 1)]
        numbers += [(draw, kind) for draw in range(1, self._views) for kind in range(len(specs))]
        order = [self._reuse.views[kind][0] for _, kind in numbers]
        made, where = self._bank.make_views(BatchPlan(rows, KeyedRNG(self._seed, 0, rows), tuple(order)), normalize)
        found, places = [], []
        for place, kind in enumerate(kinds):
            at = [(numbers.index((int(draw), kind)), row) for row, draw in enumerate(drawn[:, place])]
            found.append(torch.stack([made[number][row] for number, row in at]))
            places.append(ViewGeometry(torch.stack([where[number].matrices[row] for number, row in at])))
        return tuple(found), tuple(places)

    def unaugmented(self, rows: Any) -> Any:
        view = self._reuse.views[-1][0]
        (made,), _ = self._bank.make_views(BatchPlan(rows, KeyedRNG(0, 0, rows), (view,)), self._reuse_normalize)
        return made


def plan_images(method: Any, bank: Any, config: Any, *others: Any) -> Any:
    """Train on the same views as with --reuse-frozen, by the whole network."""
    reuse = plan_frozen_cache(method, bank, config, *others)
    assert reuse is not None
    method.network._kept = None
    for module in method.modules():
        if isinstance(module, Backbone):
            module._reuses = False
    spec = method.network.input_spec
    if hasattr(method, "_record_blocks"):
        method._record_blocks = ()
    images = DrawnImages(bank, reuse, config.seed, Normalize(spec.mean, spec.std))
    return SimpleNamespace(build_cached_bank=lambda folder: images)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS | STAGES)
def test_a_run_with_reuse_has_the_losses_of_one_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, photos: Path, method: str
) -> None:
    options = ("--reuse-frozen", 3, "--reuse-dtype", "float32", "--epochs", 7, "--eval-every-epochs", 7, "--lr", 0.02)
    limits = ("--stop-after-steps", 20, "--guard", "none")
    assert train(photos, method, tmp_path / "reused", *options, *limits).code == 0
    monkeypatch.setattr(training, "plan_frozen_cache", plan_images)
    assert train(photos, method, tmp_path / "whole", *options, *limits).code == 0

    one, other = losses(tmp_path / "reused"), losses(tmp_path / "whole")
    assert len(one) == len(other) == 20
    assert np.allclose(one, other, rtol=1e-4, atol=1e-4)  # rounding grows over 20 steps
    assert len(set(one)) > 10


def test_other_images_of_the_same_names_have_a_cache_of_their_own(tmp_path: Path, photos: Path) -> None:
    other = shutil.copytree(photos, tmp_path / "photos")
    ant, bee = (other / name / "00.png" for name in ("ant", "bee"))
    shutil.copy(bee, ant)
    for name, data in (("one", photos), ("other", other)):
        assert train(data, "simgcd", tmp_path / name, "--epochs", 1, "--reuse-frozen", 2).code == 0
    assert len(kept_folders(tmp_path)) == 2


@pytest.mark.slow
def test_a_kill_while_views_are_kept_loses_no_part_and_changes_no_bit(tmp_path: Path, photos: Path) -> None:
    words = line(photos, "simgcd", "--epochs", 3, "--reuse-frozen", 400)
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = run_labelkit(*words, "--out", tmp_path / "whole" / "run", "--json")
    out = tmp_path / "cut" / "run"
    command = [sys.executable, "-m", "labelkit", *map(str, words), "--out", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    while child.poll() is None and len(list((tmp_path / "cut").glob("kept-*/parts/*.h5"))) < 3:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    (folder,) = kept_folders(tmp_path / "cut")
    done = {path.name: path.stat().st_mtime_ns for path in (folder / "parts").glob("*.h5")}
    assert 3 <= len(done) < 48
    resumed = run_labelkit(*words, "--out", out, "--resume", "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["weights_fingerprint"] == whole.json["weights_fingerprint"]
    for name, when in done.items():
        assert (folder / "parts" / name).stat().st_mtime_ns == when
    (other,) = kept_folders(tmp_path / "whole")
    assert other.name == folder.name
    for path in (folder / "parts").glob("*.h5"):
        assert path.read_bytes() == (other / "parts" / path.name).read_bytes()


def test_a_disk_that_fills_while_views_are_kept_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, photos: Path
) -> None:
    from labelkit.errors import convert_os_error
    from labelkit.store.kept_views import CachedViews

    def full(views: CachedViews, number: int, values: object) -> None:
        error = OSError(errno.ENOSPC, "no space left on device")
        raise convert_os_error(error, str(views.folder)) from error

    options = ("--epochs", 1, "--reuse-frozen", 2)
    with monkeypatch.context() as patched:
        patched.setattr(CachedViews, "write_part", full)
        answer = train(photos, "simgcd", tmp_path / "run", *options)
    assert answer.code == 5
    assert "the disk is full. Free some disk space, and run the same command with --resume" in answer.err
    assert train(photos, "simgcd", tmp_path / "run", *options, "--resume").code == 0


@pytest.mark.parametrize(
    ("method", "words", "code", "problem"),
    [
        ("simgcd", ("--backbone", "resnet18", "--linear-probe"), 2, "not timm's VisionTransformer"),
        ("flipclass", ("--log-energy", "all"), 2, "the cache of frozen blocks contains only some"),
        ("flipclass sda", (), 2, "change with the epoch"),
        ("flipclass kld", ("--linear-probe",), 2, "--linear-probe freezes"),
        ("softmax", ("--freeze-stages", 0), 2, "requires --freeze-stages"),
        ("softmax", ("--freeze-stages", 6), 2, "smallcnn has 5 stages: block1"),
        ("dl2pa", ("--mixup-alpha", 0.5), 2, "cannot be mixed as --mixup-alpha requires"),
        ("sela rotation", (), 2, "cannot be rotated as --rotation requires"),
        ("san frozen", (), 2, "this stage is frozen"),
        pytest.param("softmax", ("--compile",), 2, "a compiled backbone requires images", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_reused_is_refused_before_any_work(
    tmp_path: Path, photos: Path, method: str, words: tuple[object, ...], code: int, problem: str
) -> None:
    answer = train(photos, method, tmp_path / "run", "--epochs", 1, "--reuse-frozen", 2, *words)
    assert answer.code == code
    assert problem in " ".join(answer.err.split())
    assert not (tmp_path / "run").exists()
    assert not kept_folders(tmp_path)


def test_a_dry_run_says_how_much_would_be_kept_and_writes_nothing(tmp_path: Path, photos: Path) -> None:
    answer = train(photos, "flipclass", tmp_path / "run", "--epochs", 1, "--reuse-frozen", 2, "--dry-run")
    assert answer.code == 0, answer.err
    # 17 tokens of 48 half-precision numbers: one of the teacher, three of the student, two draws each; and one outside
    assert answer.json["kept_gib"] == pytest.approx(48 * 17 * 48 * 2 * (2 * 4 + 1) / 2**30, abs=6e-4)
    assert not list(tmp_path.iterdir())
