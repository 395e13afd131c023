"""Time training steps on cached outputs of the frozen part against steps that run the whole network.

The networks are a ViT-S with 12 blocks, the last of which is trained, and EfficientNet-Lite0 with 7 stages, the last
two of which are trained, at 112 pixels with random weights. A step goes from cached rows to updated weights, without
decoding. The last row covers the pass before training: the number of epochs after which it pays off, at most V + 2.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from labelkit.commands.common.training_data import prepare_data
from labelkit.commands.train.reuse import plan_frozen_cache
from labelkit.data.image_bank import CachedViewBank, ImageBank
from labelkit.data.loaders import TrainLoader
from labelkit.data.views.spec import Normalize
from labelkit.methods.registry import METHODS
from labelkit.options.presets import resolve_config
from labelkit.training.devices import Runtime

from benchmarks.measure import Row, Wanted, compare

SEEDS = {"seed": 0}
VIEWS, BATCH = 8, 32
VIT = {"backbone": "vit_small_patch14_reg4_dinov2", "label_split": "gcd", "num_classes": 10, "augmentation": "digits"}
LITE = {"backbone": "tf_efficientnet_lite0", "freeze_stages": 5, "augmentation": "crop-flip"}
CASES = {
    "ViT-S, simgcd": ("simgcd", VIT, Wanted(">=", 8)),
    "ViT-S, flipclass": ("flipclass", {**VIT, "log_energy": "none"}, Wanted(">=", 2.5)),
    "ViT-S, simgcd, heads only": ("simgcd", {**VIT, "linear_probe": True}, Wanted(">=", 20)),
    "Lite0, softmax": ("softmax", LITE, Wanted("")),
}


def rows() -> list[Row]:
    """Return a row for each case, and one for the pass before training."""
    found = []
    for name, (method, options, wanted) in CASES.items():
        plain, reused, views = _steps(method, options)
        found.append(
            compare(
                f"--reuse-frozen {VIEWS}, {name}: step / step of the whole network (112 px)",
                reused,
                plain,
                wanted=wanted,
                repetitions=3,
            )
        )
        # both per image: the time saved in an epoch of two views, and the time to fill the cache
        saved = (found[-1]["peer_s"] - found[-1]["ours_s"]) / BATCH
        found.append(_break_even(name, views, saved))
    return found


def _break_even(name: str, seconds: float, saved: float) -> Row:
    epochs = seconds / saved
    return {
        "name": f"--reuse-frozen {VIEWS}, {name}: epochs until the pass before has paid for itself",
        "ours_s": seconds,
        "peer_s": saved,
        "ratio": epochs,
        "wanted": f"<= {VIEWS + 2}",
        "ok": 0 < epochs <= VIEWS + 2,
    }


def _steps(method_name: str, options: dict[str, object]) -> tuple[Callable[[], float], Callable[[], float], float]:
    spec = METHODS[method_name]
    overrides = {
        "dataset": "digits", "pretrained": False, "image_size": 112, "max_per_class": 12, "batch_size": BATCH,
        "reuse_frozen": VIEWS, **options,
    }  # fmt: skip
    config = resolve_config(spec.config, preset="none", overrides=overrides).config
    prepared = prepare_data(config)
    runtime = Runtime(device="cpu", precision="float32")
    bank = ImageBank(prepared.dataset, base_size=112)

    def step_of(reuse: bool) -> tuple[Callable[[], float], float]:
        method = spec.load()(config, prepared.build_data_info(0))
        (phase,) = method.phases(bank.rows)
        source, seconds = bank, 0.0
        if reuse:
            plan = plan_frozen_cache(method, bank, config, runtime, phase)
            assert plan is not None
            seconds = plan.estimate_seconds() / len(bank.rows)
            source = plan.build_timing_bank()
        assert isinstance(source, CachedViewBank) == reuse
        norm = Normalize(method.network.input_spec.mean, method.network.input_spec.std)
        loader = TrainLoader(
            source, phase.views, phase.sampler, prepared.labels, batch_size=BATCH, seed=0, normalize=norm
        )
        optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=1e-4)
        epoch = iter(range(10_000))
        method.train()

        def step() -> float:
            begin = time.perf_counter()
            batch = next(loader.epoch_batches(next(epoch)))
            loss = method.training_step(batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds = time.perf_counter() - begin
            assert np.isfinite(loss.item())
            return seconds

        return step, seconds

    plain, _ = step_of(False)
    reused, seconds = step_of(True)
    return plain, reused, seconds
