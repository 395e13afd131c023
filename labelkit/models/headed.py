"""A network that embeds images, and on its embeddings a head that was trained on rows of a store."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from labelkit.models.inference import InferenceNetwork, InputSpec


class HeadedNetwork(InferenceNetwork):
    """A network that embeds images, followed by a head that was trained on stored embeddings.

    Args:
        base: what made the rows.
        head: takes them where other networks take images.
    """

    def __init__(self, base: InferenceNetwork, head: InferenceNetwork) -> None:
        super().__init__()
        self.base, self.head = base, head

    @property
    def input_spec(self) -> InputSpec:
        """Return the input specification of the network below the head."""
        return self.base.input_spec

    @property
    def embed_dim(self) -> int:
        """Return the width of the head's embedding."""
        return self.head.embed_dim

    @property
    def identity(self) -> dict[str, str]:
        """Return the joined names and layers of network and head, and the network's pooling."""
        return headed_identity(self.base.identity, self.head)

    def embed(self, images: Tensor) -> Tensor:
        """Return the embeddings (b, d) of images (b, c, h, w)."""
        return self.head.embed(self.base.embed(images).float())

    def classify(self, embeddings: Tensor) -> Tensor:
        """Return the head's logits for embeddings (b, d)."""
        return self.head.classify(embeddings)

    @property
    def num_outputs(self) -> int:
        """Return the number of columns of ``classify``."""
        return self.head.num_outputs

    def class_vectors(self) -> Mapping[str, Tensor]:
        """Return the class vectors of the head."""
        return self.head.class_vectors()


def headed_identity(base: Mapping[str, str], head: InferenceNetwork) -> dict[str, str]:
    """Return ``name``, ``layer`` and ``pooling`` of embeddings from a network followed by a head."""
    own = head.identity
    return {
        "name": f"{base['name']}+{own['name']}",
        "layer": f"{base['layer']}+{own['layer']}",
        "pooling": base["pooling"],
    }
