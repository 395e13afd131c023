"""Options of a short run of each method on a few digits, with every event of it.

Its kind of config decides; a method stands here only for what it alone has: generations, label passes, a master.
"""

import pytest
from labelkit.methods.discovery.options import ContrastiveTrainConfig
from labelkit.methods.few_labels.options import FewLabelTrainConfig, TwoStreamTrainConfig
from labelkit.methods.metric.options import MetricLearningConfig
from labelkit.methods.registry import METHODS
from labelkit.options.training import TrainConfig

# what holds for every method is asked of these among the quick tests, and of all among the slow ones
ONE_OF_EACH_KIND = ("softmax", "simgcd", "sela", "dino", "tac-ccl", "siamese", "freematch", "lmcs")
EACH_METHOD = [pytest.param(name, marks=[] if name in ONE_OF_EACH_KIND else pytest.mark.slow) for name in METHODS]
# the same without a second method of a family, which trains several generations
EACH_FAMILY = [
    pytest.param(name, marks=[] if name in ONE_OF_EACH_KIND and name != "lmcs" else pytest.mark.slow)
    for name in METHODS
]

# what takes many epochs
EACH_LIGHT = [
    pytest.param(name, marks=[] if name in ("softmax", "simgcd", "siamese", "freematch") else pytest.mark.slow)
    for name in METHODS
]

_OWN: dict[str, dict[str, object]] = {
    "cotap": {"lr-warmup-steps": 1},
    "dino": {"lr-warmup-steps": 1, "freeze-last-layer-steps": 1},
    "ibot": {"lr-warmup-steps": 1, "freeze-last-layer-steps": 1},
    "lmcs": {"steps": 12, "first-blocks": 1, "generation-blocks": 1, "master-steps": 2},
    "san": {"mode": "unsupervised"},
    "sela": {"num-heads": 2, "num-clusters": 4, "num-optimizations": 3, "lr": 0.05, "lr-drop-epochs": 1},
    "snowball": {
        "steps": 4, "later-steps": 2, "eval-every-steps": 2, "labeled-batch-size": 4, "generations": 2, "cap": 2,
    },
    "supervised": {"batch-size": 4},
    "tac-ccl": {"ccl-start-epoch": 1},
}  # fmt: skip


def short_run(method: str, labels: int = 12) -> str:
    """Return the options as a command line has them.

    Args:
        method: its name.
        labels: given ones, where a method takes few.
    """
    config = METHODS[method].config
    options: dict[str, object] = {"batch-size": 16}
    options |= {"epochs": 2} if issubclass(config, TrainConfig) else {"steps": 6, "eval-every-steps": 3}
    if issubclass(config, FewLabelTrainConfig):
        options |= {"num-labels": labels, "holdout": 0.25}
    if issubclass(config, ContrastiveTrainConfig):  # one's own folder keeps all labels unless halves are asked for
        options |= {"label-split": "gcd"}
    if issubclass(config, TwoStreamTrainConfig):
        options |= {"labeled-batch-size": 8}
    if issubclass(config, MetricLearningConfig):
        options |= {"epochs": 3, "batch-size": 8, "images-per-class": 2, "num-clusters": 6, "refresh-epochs": 1}
    options |= _OWN.get(method, {})
    return " ".join(f"--{name} {value}" for name, value in options.items())
