"""Under which options others act, and values to try: what ``tests/option_effects.py`` cannot see from their types.

A name stands for the option of every method that has it, ``method.option`` for that of one. The first line that names
an option counts. ``{folder}`` is that of the test; ``prepare`` fills it.
"""

import hashlib
import shutil
from pathlib import Path

import labelkit
import numpy as np
from labelkit.store.array_files import MatchFile, build_match, join_matches, write_matches
from PIL import Image
from tests.resume_table import write_digits

Options = dict[str, object]


def _of(methods: str, names: str) -> str:
    return " ".join(f"{method}.{name}" for method in methods.split() for name in names.split())


_CLASSIFIERS = "softmax dl2pa"
_FEW = "freematch lmcs mean-teacher mixmatch snowball supervised"
_DISCOVERY = "flipclass gcd simgcd"
_LISTED: Options = {"dataset": "{folder}/listed.csv", "holdout": None}
_GCD: Options = {"label_split": "gcd"}
_DRAWN: Options = {"label_split": "few-labels", "num_labels": 12}
_SMALL: Options = {"batch_size": 4}
_ROWS: Options = {"index": "{folder}/rows.h5"}
_STAGES = "softmax dl2pa sela san tac-ccl"
_FROZEN: Options = {"backbone": "resnet20_cifar", "freeze_stages": 1}
_MIXMATCH = "unlabeled_weight unlabeled_ramp"

#: What makes short runs of some methods shorter.
LESS: dict[str, Options] = {
    "lmcs": {"max_per_class": 9}, "san": {"max_per_class": 6}, "tac-ccl": {"max_per_class": 6},
}  # fmt: skip

#: Why an option does nothing in a short run of the defaults; options under which it acts; the options that need them.
CONTEXTS: list[tuple[str, Options, str]] = [
    # data
    ("splits that a file names; few labeled images", _LISTED | _SMALL, _of(_CLASSIFIERS, "split eval_split")),
    ("splits that a file names", _LISTED, "split eval_split"),
    (
        "paths that are not beside their list",
        {"dataset": "{folder}/lists/rooted.csv", "data_root": "{folder}"},
        "data_root",
    ),
    (
        "labels of some classes; few labeled images",
        _GCD | _SMALL,
        _of(_CLASSIFIERS, "num_old_classes old_classes label_ratio"),
    ),
    ("a class without a label", _GCD | {"num_labels": None}, _of(_FEW, "num_old_classes old_classes")),
    ("labels of all classes", _GCD | {"num_labels": None, "num_old_classes": 6}, _of(_FEW, "label_ratio")),
    ("labels of some classes", _GCD, "num_old_classes old_classes label_ratio"),
    ("a draw of labels; few labeled images", _DRAWN | _SMALL, _of(_CLASSIFIERS, "num_labels label_seed split_seed")),
    ("a draw of labels", _DRAWN, "num_labels label_seed split_seed"),
    ("no other held-out images", {"holdout": None}, "holdout_classes"),
    ("an image that cannot be read", {"dataset": "{folder}/damaged", "max_bad": 0.5}, "max_bad"),
    # updates
    ("of sgd", {"optimizer": "sgd", "lr": 0.01}, "momentum nesterov"),
    ("rates that drop", {"lr_schedule": "step", "lr_drop_epochs": (1,)}, "lr_drop_epochs lr_drop_factor"),
    ("rates that fall", {"lr_schedule": "cosine"}, "lr_final_ratio lr_update lr_horizon"),
    ("rates that rise and fall", {"lr_schedule": "ramps"}, "lr_ramp_up lr_ramp_down"),
    (
        "rates that rise and fall, of adamw",
        {"lr_schedule": "ramps", "lr_ramp_up": 0.3, "lr_ramp_down": 0.5, "optimizer": "adamw"},
        "adam_beta1_end adam_beta2_start",
    ),
    # two views
    ("a queue", {"loss": "moco", "queue_size": 64}, _of("siamese", "queue_size ema_decay")),
    ("numbers that correlate", {"loss": "barlow-twins"}, _of("siamese", "redundancy_weight loss_scale")),
    ("predictions", {"loss": "simsiam"}, "siamese.predictor_dim"),
    ("crops", {"augmentation": "crops"}, _of("siamese", "crop crop_scale flip_prob jitter_prob gray_prob blur_prob")),
    # discovery
    ("blocks that are frozen", {"train_stem": False}, "grad_from_block"),
    # few labels
    ("a backbone with dropout", {"backbone": "convnet13"}, "dropout"),
    (
        "decays that a run of 40 steps reaches",
        {"steps": 40, "consistency_ramp": 0.5, "ema_decay": 0.6, "ema_decay_start": 0.1},
        _of("snowball", "ema_decay ema_decay_start"),
    ),
    (
        "decays that a run of 20 steps reaches",
        {"steps": 20, "consistency_ramp": 0.5, "ema_decay": 0.4},
        "ema_decay_start",
    ),
    ("decays that a run of 20 steps reaches", {"steps": 20}, _of(_FEW, "ema_decay")),
    ("another student", {"trainer": "mixmatch", "labeled_batch_size": 8}, _of("snowball", _MIXMATCH)),
    ("several networks", {"fusion": "distance", "cap": 8}, "fusion"),
    ("several discoveries", {"cap": 8}, "snowball.churn"),
    # metric learning
    ("views that may be mirrored", {"augmentation": "box"}, "mirror"),
    ("statistics of an earlier run", {"init_from": "{folder}/earlier"}, "freeze_bn"),
    ("classes by labels", {"mode": "supervised"}, "san.loss"),
    ("class vectors", {"mode": "supervised", "loss": "proxy-anchor"}, "proxy_lr_scale"),
    (
        "a memory",
        {"memory": "momentum"},
        _of("san", "memory_size memory_loss"),
    ),
    ("a memory that is not filled at once", {"memory_refill": False}, "memory_warmup_steps"),
    # prototypes
    ("more classes than dimensions", {"embed_dim": 3}, "dl2pa.prototypes sharpest_t"),
    ("a mean", {"reduction": "half-mean"}, "dl2pa.loss"),
    # dense
    (
        "held-out images",
        {"holdout": 0.5, "knn_neighbors": 30},
        _of("cotap dino ibot", "eval_split knn_neighbors knn_temperature branch"),
    ),
    ("a temperature that grows", {"teacher_warmup_steps": 4}, "teacher_temperature_start"),
    ("a temperature that is not that of the start", {"teacher_temperature": 0.07}, "teacher_warmup_steps"),
    ("a filter without a loss", {"prototype_entropy": 0}, "filter"),
    # heads on rows of a store
    ("rows of a store", _ROWS, "head_layers head_width row_noise row_dropout row_mix row_neighbors"),
    ("a store with views", {"index": "{folder}/views.h5"}, "row_views"),
    ("no draw of labels", {"num_labels": None}, _of(_FEW, "labels")),
    ("no draw of labels", {"label_split": "auto", "num_classes": 6}, _of("gcd simgcd", "labels")),
    (
        "a file of labels, and no draw",
        {"labels": "{folder}/known.csv", "label_split": "auto", "num_classes": 6},
        _of("gcd simgcd", "label_column"),
    ),
    ("a file of labels, and no draw", {"labels": "{folder}/known.csv", "num_labels": None}, _of(_FEW, "label_column")),
    ("a file of labels", {"labels": "{folder}/known.csv"}, "label_column"),
    # frozen stages
    (
        "stages that can be frozen, without the module",
        _FROZEN | {"san": False, "freeze_stages": 0},
        "san.freeze_stages",
    ),
    ("frozen stages, without the module", _FROZEN | {"san": False}, "san.reuse_frozen"),
    ("kept maps, without the module", _FROZEN | {"san": False, "reuse_frozen": 2}, "san.reuse_dtype"),
    ("stages that can be frozen", {"backbone": "resnet20_cifar"}, "freeze_stages"),
    ("frozen stages", _FROZEN, _of(_STAGES, "reuse_frozen")),
    ("kept maps", _FROZEN | {"reuse_frozen": 2}, _of(_STAGES, "reuse_dtype")),
    # self-labelling
    ("labels of an earlier run", {"labels_from": "{folder}/earlier"}, "rotation"),
]

#: Options that no short run in one process on a CPU can show, by the reason.
UNSEEN = {
    "how fast and with which memory, not what": "num_workers threads",
    "where, not what": "device deterministic out",
    "needs a compiler and minutes; test_methods_compile.py has it": "compile",
    "needs a network connection": "download",
    "what becomes of a run that is there": "overwrite",
}

#: Options of which every other value is refused here, which is their effect; those that are ignored would not be.
REFUSED = " ".join(
    [
        "max_bad",  # the damaged image
        "data_root weights prototypes_from class_vectors",  # nothing there
        "resume",  # no run there
        "pool_splits",  # a set without splits
        "pretrained",  # of networks that nobody has trained
        "dl2pa.prototypes",  # no simplex in so few dimensions
        _of("mixmatch lmcs", "batch_size labeled_batch_size"),  # one is half of the other
        _of(_FEW, "label_split holdout_classes num_classes"),  # a label of each class, and images without one
        _of(_DISCOVERY, "label_split"),  # images without a label
    ]
)

#: Values to try instead of those that follow from the type.
VALUES: dict[str, list[object]] = {
    "index": ["{folder}/rows.h5"],
    "row_mix": [0.2],
    "row_views": ["off"],
    "labels": ["{folder}/known.csv"],
    "label_column": ["kind"],
    "freeze_stages": [1],
    "reuse_frozen": [2],
    "dataset": ["{folder}/fewer"],
    "data_root": ["{folder}/other"],
    "split": ["all"],
    "eval_split": ["none"],
    "holdout": [0.4],
    "holdout_classes": [("5",)],
    "label_split": ["given", "none", "gcd"],
    "old_classes": [("0", "3"), ("0-5",)],
    "num_old_classes": [4, 6],
    "num_labels": [18],
    "max_per_class": [4, 5],
    "max_bad": [0.001],
    "exclude": [("000.png",)],
    "batch_size": [12, 14],
    "clip_grad_norm": [0.001],
    "lr_drop_epochs": [(2,)],
    "init_from": ["{folder}/earlier"],
    "stop_after_steps": [1],
    "backbone": ["smallcnn", "vit_tiny_patch16_224", "convnet_demo"],
    "lmcs.backbone": ["wrn16_2"],
    "unlabeled_ramp": [1.0],
    "weights": ["{folder}/nothing.pth"],
    "image_size": [24, 64],
    "pixel_mean": [(0.2,)],
    "pixel_std": [(0.2,)],
    "num_classes": [7],
    "prototypes_from": ["{folder}/nothing.h5"],
    "class_vectors": ["{folder}/nothing.txt"],
    "teacher_warmup_epochs": [1],
    "grad_from_block": [1],
    "align_blocks": [(1,)],
    "ema_decay": [0.3],
    "ema_decay_start": [0.2],
    "labeled_batch_size": [6, 3],
    "churn": [1.0, 0.0],
    "max_steps": [6],
    "recall_ks": [(1, 2)],
    "san_before": ["block3"],
    "memory_size": [20],
    "term_ramp": [(0.5, 0.9)],
    "matches": ["{folder}/matches.h5"],
    "sela.num_clusters": [(5,)],
    "knn_temperature": [0.001, 100.0],
    "solver_max_iterations": [1],
    "prior": ["zipf:1"],
    "labels_from": ["{folder}/earlier"],
    "scene_dataset": ["{folder}/listed.csv"],
    "neighbors": ["{folder}/run/found.h5"],
    "projector_dims": [(32, 16)],
    "global_scale": [(0.6, 0.9)],
    "local_scale": [(0.2, 0.3)],
}


def prepare(folder: Path) -> None:
    """Write images, and what contexts and values name."""
    images = write_digits(folder / "digits")
    listed, rooted = ["path,label,split"], ["path,label"]
    for label in sorted(images.iterdir()):
        for number, path in enumerate(sorted(label.iterdir())):
            row = f"digits/{label.name}/{path.name},{label.name}"
            listed.append(f"{row},{'train' if number < 8 else 'val' if number < 10 else 'test'}")
            rooted.append(row)
    (folder / "lists").mkdir()
    (folder / "other").mkdir()
    (folder / "listed.csv").write_text("\n".join(listed) + "\n")
    (folder / "lists" / "rooted.csv").write_text("\n".join(rooted) + "\n")
    shutil.copytree(images, folder / "damaged")
    (folder / "damaged" / "0" / "000.png").write_bytes(b"no image")
    shutil.copytree(images, folder / "fewer")
    for label in (folder / "fewer").iterdir():
        min(label.iterdir()).unlink()
    known = [f"digits/{row.name}/{path.name}" for row in images.iterdir() for path in row.iterdir()]
    # one in seven has another class than its folder says, one in five none
    lines = [
        f"{path},{int(path.split('/')[1]) if number % 7 else 0},{number % 2}" if number % 5 else f"{path},,"
        for number, path in enumerate(sorted(known))
    ]
    (folder / "known.csv").write_text("path,label,kind\n" + "\n".join(lines) + "\n")
    for name, views in (("rows", None), ("views", 2)):
        labelkit.embed(
            dataset=str(folder / "digits"), backbone="pixels", image_size=8, label_split="given", views=views,
            out=folder / f"{name}.h5",
        )  # fmt: skip
    _match(images, folder / "matches.h5")


def _match(images: Path, target: Path) -> None:
    """Let each image match some that come after it, in its class and in others."""
    paths = sorted(images.rglob("*.png"))
    corners = np.array([(-0.5, -0.5), (0.5, 0.5), (0.0, 0.2), (0.3, -0.2)])
    turned = np.array([[1, 0.1, 0.1], [-0.1, 1, 0], [0, 0, 1.0]])
    pairs = [(row, (row + step) % len(paths)) for row in range(len(paths)) for step in (1, 2, 3, 12, 24)]
    found = MatchFile(
        join_matches([build_match(*pair, turned, np.stack([corners, corners], axis=1)) for pair in pairs]),
        tuple(str(path.relative_to(images)) for path in paths),
        np.array([list(hashlib.sha256(path.read_bytes()).digest()) for path in paths], dtype=np.uint8),
        np.array([_size(path) for path in paths], dtype=np.uint32),
        np.full(len(paths), 50),
        {},
        "",
    )
    write_matches(target, found)


def _size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.height, image.width
