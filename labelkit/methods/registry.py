"""The table of training methods; each row adds a subcommand with help, preset checks and tests.

Methods of your own, which labelkit does not ship, come from the files or modules that ``LABELKIT_METHODS`` names.
"""

import os

from labelkit.methods import OWN_METHODS_VARIABLE
from labelkit.methods.spec import MethodSpec, OwnSource

METHODS: dict[str, MethodSpec] = {
    "cotap": MethodSpec(
        "Dense self-supervision: make patches group by object, by preserving the order of their similarities.",
        "labelkit.methods.dense.options:CoTAPConfig",
        "labelkit.methods.dense.cotap:CoTAP",
    ),
    "dino": MethodSpec(
        "Representation without labels: predict from one crop what the network's own average outputs for another.",
        "labelkit.methods.dense.options:DINOConfig",
        "labelkit.methods.dense.dino:DINO",
    ),
    "dl2pa": MethodSpec(
        "Classification: fixed prototypes on the sphere, reassigned to classes during training.",
        "labelkit.methods.prototypes.options:DL2PAConfig",
        "labelkit.methods.prototypes.dl2pa:DL2PA",
    ),
    "flipclass": MethodSpec(
        "Category discovery: a teacher whose attention follows the student's.",
        "labelkit.methods.discovery.options:FlipClassConfig",
        "labelkit.methods.discovery.flipclass:FlipClass",
    ),
    "freematch": MethodSpec(
        "Few labels: confident pseudo-labels, learned on strongly augmented images (FixMatch as an option).",
        "labelkit.methods.few_labels.options:FreeMatchConfig",
        "labelkit.methods.few_labels.freematch:FreeMatch",
    ),
    "gcd": MethodSpec(
        "Category discovery baseline: contrastive learning, then k-means with labels.",
        "labelkit.methods.discovery.options:GCDConfig",
        "labelkit.methods.discovery.gcd:GCD",
    ),
    "ibot": MethodSpec(
        "Representation without labels: DINO, and predicting hidden patches from their surroundings.",
        "labelkit.methods.dense.options:IBOTConfig",
        "labelkit.methods.dense.ibot:IBOT",
    ),
    "lmcs": MethodSpec(
        "Few labels: a master composed of three student versions guides the student; critical samples get labels.",
        "labelkit.methods.few_labels.options:LMCSConfig",
        "labelkit.methods.few_labels.lmcs:LMCS",
    ),
    "mean-teacher": MethodSpec(
        "Few labels: a student that agrees with its own average on all images.",
        "labelkit.methods.few_labels.options:MeanTeacherConfig",
        "labelkit.methods.few_labels.mean_teacher:MeanTeacher",
    ),
    "mixmatch": MethodSpec(
        "Few labels: guessed labels, mixed with given labels (MixUp).",
        "labelkit.methods.few_labels.options:MixMatchConfig",
        "labelkit.methods.few_labels.mixmatch:MixMatch",
    ),
    "san": MethodSpec(
        "Metric learning, from labels or clusters: features are re-assembled in space before the embedding.",
        "labelkit.methods.metric.options:SANConfig",
        "labelkit.methods.metric.san:SAN",
    ),
    "sela": MethodSpec(
        "Representation without labels: balanced self-labelling and training, in alternation.",
        "labelkit.methods.sela.options:SeLaConfig",
        "labelkit.methods.sela.sela:SeLa",
    ),
    "siamese": MethodSpec(
        "Representation without labels: make two views alike, with the SimCLR, Barlow Twins, MoCo or SimSiam loss.",
        "labelkit.methods.siamese.options:SiameseConfig",
        "labelkit.methods.siamese.siamese:Siamese",
    ),
    "simgcd": MethodSpec(
        "Category discovery baseline: contrastive learning and self-distillation.",
        "labelkit.methods.discovery.options:SimGCDConfig",
        "labelkit.methods.discovery.simgcd:SimGCD",
    ),
    "snowball": MethodSpec(
        "Few labels: discovery adds labels during training, with a student, a teacher and a master.",
        "labelkit.methods.few_labels.options:SnowballConfig",
        "labelkit.methods.few_labels.snowball:Snowball",
    ),
    "softmax": MethodSpec(
        "Classification baseline: a learned linear classifier with cross-entropy.",
        "labelkit.methods.prototypes.options:SoftmaxConfig",
        "labelkit.methods.prototypes.softmax:Softmax",
    ),
    "supervised": MethodSpec(
        "Few labels, baseline: cross-entropy on the labeled images only.",
        "labelkit.methods.few_labels.options:SupervisedConfig",
        "labelkit.methods.few_labels.supervised:Supervised",
    ),
    "tac-ccl": MethodSpec(
        "Metric learning without labels: clusters, a memory, and attention that moves with the image.",
        "labelkit.methods.metric.options:TACCCLConfig",
        "labelkit.methods.metric.tac_ccl:TACCCL",
    ),
}

OWN_SOURCES: dict[str, OwnSource] = {}
"""Sources of the methods that labelkit does not ship, by name."""


if os.environ.get(OWN_METHODS_VARIABLE):
    from labelkit.methods.own import import_own_methods  # its imports take time

    _found, _sources = import_own_methods(os.environ[OWN_METHODS_VARIABLE], METHODS)
    METHODS.update(_found)
    OWN_SOURCES.update(_sources)  # the same dictionary: the user's file may have imported what holds it


def compute_method_digest(method: str) -> str | None:
    """Return the SHA-256 of the file that defines a user's own method, or ``None`` for methods that labelkit ships."""
    return OWN_SOURCES[method].sha256 if method in OWN_SOURCES else None
