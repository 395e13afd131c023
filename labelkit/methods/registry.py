"""Registry of training methods; each entry adds a subcommand with help, preset checks and tests.

User-defined methods are loaded from the files or modules listed in ``LABELKIT_METHODS``.
"""

import os

from labelkit.methods import OWN_METHODS_VARIABLE
from labelkit.methods.spec import MethodSource, MethodSpec

METHODS: dict[str, MethodSpec] = {
    "cotap": MethodSpec(
        "Dense self-supervised learning: group patches by object, preserving the order of their similarities.",
        "labelkit.methods.dense.options:CoTAPConfig",
        "labelkit.methods.dense.cotap:CoTAP",
    ),
    "dino": MethodSpec(
        "Self-supervised learning: match the outputs of the network's own moving average across crops.",
        "labelkit.methods.dense.options:DINOConfig",
        "labelkit.methods.dense.dino:DINO",
    ),
    "dl2pa": MethodSpec(
        "Classification: fixed prototypes on the hypersphere, reassigned to classes during training.",
        "labelkit.methods.prototypes.options:DL2PAConfig",
        "labelkit.methods.prototypes.dl2pa:DL2PA",
    ),
    "flipclass": MethodSpec(
        "Category discovery: self-distillation from a teacher whose attention is aligned with the student's.",
        "labelkit.methods.discovery.options:FlipClassConfig",
        "labelkit.methods.discovery.flipclass:FlipClass",
    ),
    "freematch": MethodSpec(
        "Few labels: confident pseudo-labels as targets for strongly augmented images (FixMatch as an option).",
        "labelkit.methods.few_labels.options:FreeMatchConfig",
        "labelkit.methods.few_labels.freematch:FreeMatch",
    ),
    "gcd": MethodSpec(
        "Category discovery baseline: contrastive learning, then semi-supervised k-means.",
        "labelkit.methods.discovery.options:GCDConfig",
        "labelkit.methods.discovery.gcd:GCD",
    ),
    "ibot": MethodSpec(
        "Self-supervised learning: DINO plus masked patch prediction.",
        "labelkit.methods.dense.options:IBOTConfig",
        "labelkit.methods.dense.ibot:IBOT",
    ),
    "lmcs": MethodSpec(
        "Few labels: a master composed of three student versions guides the student; critical samples are labeled.",
        "labelkit.methods.few_labels.options:LMCSConfig",
        "labelkit.methods.few_labels.lmcs:LMCS",
    ),
    "mean-teacher": MethodSpec(
        "Few labels: a student trained to agree with its own moving average on all images.",
        "labelkit.methods.few_labels.options:MeanTeacherConfig",
        "labelkit.methods.few_labels.mean_teacher:MeanTeacher",
    ),
    "mixmatch": MethodSpec(
        "Few labels: images with guessed labels, mixed with labeled images (MixUp).",
        "labelkit.methods.few_labels.options:MixMatchConfig",
        "labelkit.methods.few_labels.mixmatch:MixMatch",
    ),
    "san": MethodSpec(
        "Metric learning with labels or clusters: feature maps are spatially reassembled before the embedding.",
        "labelkit.methods.metric.options:SANConfig",
        "labelkit.methods.metric.san:SAN",
    ),
    "sela": MethodSpec(
        "Self-supervised learning: alternate between balanced self-labeling and training.",
        "labelkit.methods.sela.options:SeLaConfig",
        "labelkit.methods.sela.sela:SeLa",
    ),
    "siamese": MethodSpec(
        "Self-supervised learning: make two views agree, with the SimCLR, Barlow Twins, MoCo or SimSiam loss.",
        "labelkit.methods.siamese.options:SiameseConfig",
        "labelkit.methods.siamese.siamese:Siamese",
    ),
    "simgcd": MethodSpec(
        "Category discovery baseline: contrastive learning and self-distillation.",
        "labelkit.methods.discovery.options:SimGCDConfig",
        "labelkit.methods.discovery.simgcd:SimGCD",
    ),
    "snowball": MethodSpec(
        "Few labels: student, teacher and master networks discover additional labels during training.",
        "labelkit.methods.few_labels.options:SnowballConfig",
        "labelkit.methods.few_labels.snowball:Snowball",
    ),
    "softmax": MethodSpec(
        "Classification baseline: a learned linear classifier with cross-entropy.",
        "labelkit.methods.prototypes.options:SoftmaxConfig",
        "labelkit.methods.prototypes.softmax:Softmax",
    ),
    "supervised": MethodSpec(
        "Few-label baseline: cross-entropy on the labeled images only.",
        "labelkit.methods.few_labels.options:SupervisedConfig",
        "labelkit.methods.few_labels.supervised:Supervised",
    ),
    "tac-ccl": MethodSpec(
        "Metric learning without labels: clustering, a memory bank, and attention consistency across transforms.",
        "labelkit.methods.metric.options:TACCCLConfig",
        "labelkit.methods.metric.tac_ccl:TACCCL",
    ),
}

OWN_SOURCES: dict[str, MethodSource] = {}
"""Sources of user-defined methods, by method name."""


if os.environ.get(OWN_METHODS_VARIABLE):
    from labelkit.methods.own import import_user_methods  # its imports take time

    _found, _sources = import_user_methods(os.environ[OWN_METHODS_VARIABLE], METHODS)
    METHODS.update(_found)
    OWN_SOURCES.update(_sources)  # in place, since the user's file may already have imported this dictionary


def compute_method_digest(method: str) -> str | None:
    """Return the SHA-256 of the file that defines a user's method, or ``None`` for methods that labelkit ships."""
    return OWN_SOURCES[method].sha256 if method in OWN_SOURCES else None
