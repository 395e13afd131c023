"""Networks with heads: a classifier, several clustering heads, or a head trained on stored embeddings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar, Unpack

import torch
from torch import Tensor, nn

from labelkit.models.inference import BackboneNetwork, BackboneOptions, InferenceNetwork
from labelkit.models.seeding import seeded_init

NUM_ROTATIONS = 4

HeadT = TypeVar("HeadT", bound=nn.Module)


class ClassifierNetwork(BackboneNetwork, Generic[HeadT]):
    """A backbone with an embedding layer and a classification head.

    Args:
        backbone: any name of ``build_backbone``.
        head: function that builds a module from embeddings to logits, given the embedding dimension.
        num_classes: number of logits, c.
        embed_dim: embedding dimension; ``None``: the backbone's features, without a linear layer.
        embedding_bn: whether to apply batch normalization to the embedding.
        seed: seed for all initial weights.
        options: see `BackboneOptions`.
    """

    def __init__(
        self,
        backbone: str,
        head: Callable[[int], HeadT],
        num_classes: int,
        *,
        embed_dim: int | None,
        embedding_bn: bool,
        seed: int,
        **options: Unpack[BackboneOptions],
    ) -> None:
        super().__init__(backbone, seed=seed, **options)
        width = self.backbone.info.feature_dim
        self.layer = "backbone" if embed_dim is None else "projection"
        self.embed_dim = width if embed_dim is None else embed_dim
        self.num_outputs = num_classes
        with seeded_init(seed + 1):
            self.projection = nn.Identity() if embed_dim is None else nn.Linear(width, embed_dim)
            self.normalization = nn.BatchNorm1d(self.embed_dim) if embedding_bn else nn.Identity()
            self.head = head(self.embed_dim)

    def embed(self, images: Tensor) -> Tensor:
        """Return the embeddings (b, d) of images (b, c, h, w)."""
        return self.normalization(self.projection(self.backbone(images)))

    def classify(self, embeddings: Tensor) -> Tensor:
        """Return the logits (b, c) of embeddings (b, d)."""
        return self.head(embeddings)


class MultiHeadNetwork(BackboneNetwork):
    """A backbone with several linear clustering heads, and optionally a head that predicts rotations.

    Args:
        backbone: any name of ``build_backbone``.
        clusters: number of outputs of each head.
        rotation: whether to add a head that predicts the rotation of an image.
        seed: seed for all initial weights.
        options: see `BackboneOptions`.
    """

    crops = False

    def __init__(
        self,
        backbone: str,
        clusters: Sequence[int],
        *,
        rotation: bool = False,
        seed: int,
        **options: Unpack[BackboneOptions],
    ) -> None:
        super().__init__(backbone, seed=seed, **options)
        width = self.backbone.info.feature_dim
        # only these initial values make the clusterings differ
        with seeded_init(seed + 1):
            self.heads = nn.ModuleList(nn.Linear(width, k) for k in clusters)
            self.rotation = nn.Linear(width, NUM_ROTATIONS) if rotation else None
            scale = getattr(self.backbone.net, "head_std", None)
            if scale is not None:
                for head in self.heads:
                    nn.init.normal_(head.weight, std=scale)  # type: ignore[arg-type] # a Linear
                    nn.init.zeros_(head.bias)  # type: ignore[arg-type] # likewise

    def head_logits(self, features: Tensor) -> list[Tensor]:
        """Return the logits (b, k) of every head for features (b, d)."""
        return [head(features) for head in self.heads]

    def rotation_logits(self, features: Tensor) -> Tensor:
        """Return the logits (b, 4) for rotations by 0, 90, 180 and 270 degrees, given features (b, d)."""
        assert self.rotation is not None
        return self.rotation(features)


def rotate_images(images: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate square images (b, c, h, h) by 0, 90, 180 and 270 degrees.

    Returns:
        (4b, c, h, h), the first b unchanged, and (4b,) int64 number of quarter turns.
    """
    turned = torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(NUM_ROTATIONS)])
    return turned, torch.arange(NUM_ROTATIONS, device=images.device).repeat_interleave(len(images))


class NetworkWithHead(InferenceNetwork):
    """A network that embeds images, followed by a head that was trained on stored embeddings.

    Args:
        base: the network that computed the stored embeddings.
        head: network that takes these embeddings in place of images.
    """

    def __init__(self, base: InferenceNetwork, head: InferenceNetwork) -> None:
        super().__init__()
        self.base, self.head = base, head
        self.input_spec, self.embed_dim, self.num_outputs = base.input_spec, head.embed_dim, head.num_outputs

    @property
    def identity(self) -> dict[str, str]:
        """Return the joined names and layers of the network and its head, and the network's pooling."""
        return identity_with_head(self.base.identity, self.head)

    def embed(self, images: Tensor) -> Tensor:
        """Return the embeddings (b, d) of images (b, c, h, w)."""
        return self.head.embed(self.base.embed(images).float())

    def classify(self, embeddings: Tensor) -> Tensor:
        """Return the head's logits for embeddings (b, d)."""
        return self.head.classify(embeddings)


def identity_with_head(base: Mapping[str, str], head: InferenceNetwork) -> dict[str, str]:
    """Return the ``name``, ``layer`` and ``pooling`` of embeddings that a head computes from a network's."""
    own = head.identity
    return {
        "name": f"{base['name']}+{own['name']}",
        "layer": f"{base['layer']}+{own['layer']}",
        "pooling": base["pooling"],
    }
