"""The one table of training methods; a row makes subcommand, help, preset checks and tests appear."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from labelkit.config.methods.cotap import CoTAPConfig
from labelkit.config.methods.dl2pa import DL2PAConfig
from labelkit.config.methods.flipclass import FlipClassConfig
from labelkit.config.methods.freematch import FreeMatchConfig
from labelkit.config.methods.gcd import GCDConfig
from labelkit.config.methods.lmcs import LMCSConfig
from labelkit.config.methods.mean_teacher import MeanTeacherConfig
from labelkit.config.methods.mixmatch import MixMatchConfig
from labelkit.config.methods.san import SANConfig
from labelkit.config.methods.sela import SeLaConfig
from labelkit.config.methods.simgcd import SimGCDConfig
from labelkit.config.methods.snowball import SnowballConfig
from labelkit.config.methods.softmax import SoftmaxConfig
from labelkit.config.methods.supervised import SupervisedConfig
from labelkit.config.methods.tac_ccl import TACCCLConfig
from labelkit.config.train import RunConfig

if TYPE_CHECKING:
    from labelkit.engine.method import Method


@dataclass(frozen=True)
class MethodSpec:
    """One training method: what it is for, its options, and where its class lives."""

    summary: str
    config: type[RunConfig]
    target: str

    def load(self) -> type[Method[Any]]:
        """Import the method's class; this loads torch."""
        module, _, name = self.target.partition(":")
        loaded: type[Method[Any]] = getattr(import_module(module), name)
        return loaded


METHODS: dict[str, MethodSpec] = {
    "cotap": MethodSpec(
        "Dense self-supervision: patches that group by object, from an order of similarities that is kept.",
        CoTAPConfig,
        "labelkit.methods.dense.cotap:CoTAP",
    ),
    "dl2pa": MethodSpec(
        "Classification: fixed prototypes on the sphere, assigned to classes anew during training.",
        DL2PAConfig,
        "labelkit.methods.prototypes.dl2pa:DL2PA",
    ),
    "flipclass": MethodSpec(
        "Category discovery: a teacher whose attention follows the student's.",
        FlipClassConfig,
        "labelkit.methods.discovery.flipclass:FlipClass",
    ),
    "freematch": MethodSpec(
        "Few labels: pseudo-labels of sure images, learned on strongly changed ones (FixMatch as an option).",
        FreeMatchConfig,
        "labelkit.methods.few_labels.freematch:FreeMatch",
    ),
    "gcd": MethodSpec(
        "Category discovery baseline: contrastive learning, then k-means with labels.",
        GCDConfig,
        "labelkit.methods.discovery.gcd:GCD",
    ),
    "lmcs": MethodSpec(
        "Few labels: a master composed of three versions of the student guides it, critical samples get labels.",
        LMCSConfig,
        "labelkit.methods.few_labels.lmcs:LMCS",
    ),
    "mean-teacher": MethodSpec(
        "Few labels: a student that agrees with its own average on all images.",
        MeanTeacherConfig,
        "labelkit.methods.few_labels.mean_teacher:MeanTeacher",
    ),
    "mixmatch": MethodSpec(
        "Few labels: guessed labels, blended with given ones.",
        MixMatchConfig,
        "labelkit.methods.few_labels.mixmatch:MixMatch",
    ),
    "san": MethodSpec(
        "Metric learning: features are re-assembled in space before the embedding; labels or clusters.",
        SANConfig,
        "labelkit.methods.metric.san:SAN",
    ),
    "sela": MethodSpec(
        "Representation without labels: balanced self-labelling and training in turn.",
        SeLaConfig,
        "labelkit.methods.sela.sela:SeLa",
    ),
    "simgcd": MethodSpec(
        "Category discovery baseline: contrastive learning and self-distillation.",
        SimGCDConfig,
        "labelkit.methods.discovery.simgcd:SimGCD",
    ),
    "snowball": MethodSpec(
        "Few labels: labels that grow by discovery, with a student, a teacher and a master.",
        SnowballConfig,
        "labelkit.methods.few_labels.snowball:Snowball",
    ),
    "softmax": MethodSpec(
        "Classification baseline: a learned linear classifier, cross-entropy.",
        SoftmaxConfig,
        "labelkit.methods.prototypes.softmax:Softmax",
    ),
    "supervised": MethodSpec(
        "Few labels, baseline: cross-entropy of the labeled images alone.",
        SupervisedConfig,
        "labelkit.methods.few_labels.supervised:Supervised",
    ),
    "tac-ccl": MethodSpec(
        "Metric learning without labels: clusters, a memory, and attention that moves with the image.",
        TACCCLConfig,
        "labelkit.methods.metric.tac_ccl:TACCCL",
    ),
}
