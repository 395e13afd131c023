"""Options for DL2PA, which uses fixed prototypes, and its baseline, a learned softmax classifier (PSC in the paper)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.backbone import BackboneTrainConfig, FreezeOptions
from labelkit.options.base import field_factory, override_default
from labelkit.options.embeddings import StrongEmbeddingInputOptions
from labelkit.options.prototypes import SHARPEST_T

_DATA = field_factory("Data")
_MODEL = field_factory("Model")
_LOSS = field_factory("Loss")
_VIEWS = field_factory("Views")


class SupervisedTrainConfig(FreezeOptions, BackboneTrainConfig):
    """Options for the embedding, class weights and augmentation of a supervised classifier."""

    own_output: ClassVar[Literal["names", "groups", "nothing"]] = "names"
    learns_from_labels: ClassVar[bool] = True

    label_split: Literal["auto", "given", "gcd", "few-labels", "none"] = _DATA(
        "given",
        "Labels that training may use. given: all existing labels; unlabeled images are not used for training. For "
        "other values, see `labelkit train gcd --help`.",
    )
    num_classes: int | None = _DATA(
        None,
        "Number of classifier outputs. Default: number of classes in the dataset, including those without usable "
        "images.",
        ge=2,
    )

    embed_dim: int | None = _MODEL(
        None,
        "Dimension d of the embedding, computed by a linear layer on the backbone's features. Default: use the "
        "features themselves.",
        ge=2,
    )
    embedding_bn: bool = _MODEL(False, "Apply batch normalization to the embedding (as in the long-tail recipe).")

    class_weights: Literal["none", "batch", "global"] = _LOSS(
        "none",
        "Weighting of images that gives all classes the same weight. batch: within each batch, as in the published "
        "code; global: over the whole training set.",
    )
    mixup_alpha: float = _LOSS(
        0.0, "Mix pairs of images with a weight drawn from Beta(alpha, alpha) once per step (mixup); 0: off.", ge=0
    )

    augmentation: Literal["none", "digits", "crop-flip", "imagenet", "imagenet-jitter"] = _VIEWS(
        "imagenet",
        "Training augmentation. crop-flip: shift by up to 4 pixels, flip; imagenet: random crop, flip; "
        "imagenet-jitter: also color jitter of strength 0.4; digits: zoom, rotation, shift. No flips in datasets "
        "where a flip changes the class.",
    )


_PROTOTYPES = field_factory("Prototypes")
_ASSIGNMENT = field_factory("Assignment")


class DL2PAConfig(StrongEmbeddingInputOptions, SupervisedTrainConfig):
    """Options for ``labelkit train dl2pa``, with the defaults of the released code for CIFAR-100."""

    command: ClassVar[tuple[str, ...]] = ("train", "dl2pa")
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"updates_per_epoch": ("reassign",)}

    epochs: int = override_default(SupervisedTrainConfig, "epochs", 250)

    prototypes: Literal["uniform", "simplex", "hpn", "words"] = _PROTOTYPES(
        "uniform",
        "How to place the prototypes. uniform: spread over the sphere, for any number of classes; simplex: all pairs "
        "at the same angle (ETF), for d >= classes - 1. `labelkit prototypes` shows the result. The paper's "
        "baselines, used with --no-reassign, are hpn (each prototype is pushed away from its nearest neighbor) and "
        "words (the vectors from --class-vectors).",
    )
    class_vectors: Path | None = _PROTOTYPES(
        None,
        "Text file in word2vec or GloVe format (with --prototypes words); each line contains a class name (_ for a "
        "space) and its vector. Vectors with more than d dimensions are reduced to their principal components.",
        before=None,
    )
    prototypes_from: Path | None = _PROTOTYPES(
        None,
        "Use the prototypes in this file from `labelkit prototypes`, or the class weight vectors learned in this run "
        "of `train softmax`.",
    )

    sharpest_t: float | None = _PROTOTYPES(
        SHARPEST_T,
        "Final sharpness of the loss that spreads the prototypes. It rises to this value step by step, until only the "
        "largest cosine matters. none: minimize the loss of the paper (Eq. 5), even if its minimum has opposite pairs.",
        gt=0,
        le=1e9,
        before=SHARPEST_T,
    )

    reassign: bool = _ASSIGNMENT(
        True, "Reassign classes to prototypes during training. Otherwise, each class keeps its initial prototype."
    )
    updates_per_epoch: float = _ASSIGNMENT(
        1.0,
        "Number of assignments per epoch (tau' in the paper's Fig. 3b). 10: ten per epoch; 0.1: one every ten epochs.",
        gt=0,
    )

    loss: Literal["inner-product", "cross-entropy"] = _LOSS(
        "inner-product",
        "Loss on the embeddings. inner-product: (1 - cosine)^2 with the prototype of the class; "
        "cross-entropy: softmax over the inner products with all prototypes.",
    )
    reduction: Literal["sum", "half-mean"] = _LOSS(
        "half-mean",
        "Reduction of the inner-product loss over a batch. sum: as in the published code for balanced "
        "data; half-mean: as in the paper. The best learning rate depends on this choice.",
    )

    @model_validator(mode="after")
    def _check_loss(self) -> Self:
        if self.reduction == "sum" and self.loss != "inner-product":
            raise ValueError("--reduction sum requires --loss inner-product")
        if self.prototypes_from is not None and self.prototypes != "uniform":
            raise ValueError("--prototypes and --prototypes-from cannot be combined")
        if self.sharpest_t != SHARPEST_T and (self.prototypes != "uniform" or self.prototypes_from is not None):
            raise ValueError("--sharpest-t requires --prototypes uniform without --prototypes-from")
        if (self.class_vectors is not None) != (self.prototypes == "words"):
            raise ValueError("--prototypes words and --class-vectors must be passed together")
        return self


class SoftmaxConfig(StrongEmbeddingInputOptions, SupervisedTrainConfig):
    """Options for ``labelkit train softmax``."""

    command: ClassVar[tuple[str, ...]] = ("train", "softmax")

    epochs: int = override_default(SupervisedTrainConfig, "epochs", 250)
    uniformity_weight: float = _LOSS(
        0.0, "Weight of the uniformity loss on the class weight vectors (0.01 in Table 8 of the paper).", ge=0
    )
