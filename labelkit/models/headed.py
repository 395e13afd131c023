"""A network that embeds images, and on its embeddings a head that was trained on rows of a store."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from labelkit.models.inference import InferenceNetwork, InputSpec


class HeadedNetwork(InferenceNetwork):
    """Images through the network that made the rows of a store, then through what was trained on these rows.

    Args:
        base: what made the rows.
        head: takes them where other networks take images.

    Raises:
        ValueError: the head takes rows of another width.
    """

    def __init__(self, base: InferenceNetwork, head: InferenceNetwork) -> None:
        super().__init__()
        if base.embed_dim != head.input_spec.channels:
            raise ValueError(f"rows of {base.embed_dim} numbers for a head that takes {head.input_spec.channels}")
        self.base, self.head = base, head

    @property
    def input_spec(self) -> InputSpec:
        """As of the network that made the rows."""
        return self.base.input_spec

    @property
    def embed_dim(self) -> int:
        """Width of the head's embedding."""
        return self.head.embed_dim

    @property
    def identity(self) -> dict[str, str]:
        """Both names; layer and pooling of the rows, and what the head takes."""
        return headed_identity(self.base.identity, self.head)

    def embed(self, images: Tensor) -> Tensor:
        """Images (b, c, h, w) to embeddings (b, d)."""
        return self.head.embed(self.base.embed(images).float())

    def classify(self, embeddings: Tensor) -> Tensor:
        """Embeddings (b, d) to the head's logits."""
        return self.head.classify(embeddings)

    @property
    def num_outputs(self) -> int:
        """Columns of ``classify``."""
        return self.head.num_outputs

    def class_vectors(self) -> Mapping[str, Tensor]:
        """Those of the head."""
        return self.head.class_vectors()


def headed_identity(base: Mapping[str, str], head: InferenceNetwork) -> dict[str, str]:
    """Return ``name``, ``layer`` and ``pooling`` of rows of a network that went through a head."""
    own = head.identity
    return {
        "name": f"{base['name']}+{own['name']}",
        "layer": f"{base['layer']}+{own['layer']}",
        "pooling": base["pooling"],
    }
