"""A network that embeds images, and on its embeddings a head that was trained on rows of a store."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from labelkit.models.inference import InferenceNetwork


class HeadedNetwork(InferenceNetwork):
    """A network that embeds images, followed by a head that was trained on stored embeddings.

    Args:
        base: what made the rows.
        head: takes them where other networks take images.
    """

    def __init__(self, base: InferenceNetwork, head: InferenceNetwork) -> None:
        super().__init__()
        self.base, self.head = base, head
        self.input_spec, self.embed_dim, self.num_outputs = base.input_spec, head.embed_dim, head.num_outputs

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
