"""CoTAP's network: a vision transformer, an object-aware filter and a projector.

Each patch queries learned prototypes for the object it may belong to. Source: "Semantic Concentration for
Self-Supervised Dense Representations Learning", Eq. 17 to 19.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.algorithms.regions import to_unit
from labelkit.data.batch import DataInfo
from labelkit.methods.dense.networks import TokenNetwork, Tokens
from labelkit.methods.dense.options import CoTAPConfig
from labelkit.models.backbones.vit import num_attention_heads
from labelkit.models.heads import Projector
from labelkit.models.seeding import seeded_init

#: Side of a prototype and of the neighborhood that it is compared with, odd.
KERNEL = 3


class ObjectAwareFilter(nn.Module):
    r"""Cross-attention from a feature map to learned object prototypes, which are small feature maps themselves.

    .. math:: \mu^a_{xm} = \sum_\delta \langle q^a_{x + \delta}, k^a_{m \delta} \rangle, \qquad
        o^a_x = \sum_m \text{softmax}_m(\mu^a_{xm} / \sqrt d)\, \bar v^a_m

    with :math:`\delta` over a square of 3 x 3 positions, heads a of width d, and zeros beyond the border of the map. A
    class token queries as if its neighborhood were constant.

    Args:
        dim: width of the features, f.
        num_prototypes: m.
        num_heads: a divisor of ``dim``.

    Shape:
        - patches: ``(b, h, w, f)`` float.
        - tokens: ``(b, f)`` float.
        - returns: both with the last dimension ``out_dim``.

    Attributes:
        prototypes: ``(m, 3, 3, f)`` parameter; only its directions matter, and only losses on it change it (not
            specified in the paper).
        out_dim: 2f, for features concatenated with attention outputs (Eq. 19).
    """

    def __init__(self, dim: int, num_prototypes: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.out_dim = 2 * dim
        self.prototypes = nn.Parameter(nn.init.normal_(torch.empty(num_prototypes, KERNEL, KERNEL, dim), std=0.02))
        self.queries, self.keys, self.values = (nn.Linear(dim, dim) for _ in range(3))
        for layer in (self.queries, self.keys, self.values):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, patches: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Filter the feature maps and class tokens of a batch."""
        keys, values = self.keys_and_values()
        of_tokens = self._fuse(tokens, self.mix_values(self.class_token_scores(tokens, keys), values))
        return self._fuse(patches, self.mix_values(self.scores(patches, keys), values)), of_tokens

    def filter_patches(self, patches: Tensor) -> Tensor:
        """Filter the feature maps only."""
        keys, values = self.keys_and_values()
        return self._fuse(patches, self.mix_values(self.scores(patches, keys), values))

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """Scale prototypes to unit mean square, and return keys (m, 3, 3, f) and spatially averaged values (m, f)."""
        prototypes = self.prototypes.detach()
        flat = prototypes.flatten(1)
        length = flat.norm(dim=1).clamp(min=1e-12)
        scaled = prototypes * (math.sqrt(flat.shape[1]) / length)[:, None, None, None]
        return self.keys(scaled), self.values(scaled).mean(dim=(1, 2))

    def scores(self, patches: Tensor, keys: Tensor) -> Tensor:
        """Compute the attention scores (b, h, w, a, m) of a feature map (b, h, w, f), before scaling and softmax."""
        queries = self.queries(patches).permute(0, 3, 1, 2)  # heads one after the other
        m, width = len(keys), keys.shape[-1] // self.num_heads
        kernels = keys.reshape(m, KERNEL, KERNEL, self.num_heads, width).permute(3, 0, 4, 1, 2)
        found = F.conv2d(queries, kernels.flatten(0, 1), padding=KERNEL // 2, groups=self.num_heads)
        b, _, rows, columns = found.shape
        return found.permute(0, 2, 3, 1).reshape(b, rows, columns, self.num_heads, m)

    def class_token_scores(self, tokens: Tensor, keys: Tensor) -> Tensor:
        """Compute the attention scores (b, a, m) of class tokens (b, f), treated as maps of identical features."""
        queries = self.queries(tokens).reshape(len(tokens), self.num_heads, -1)
        summed = keys.sum(dim=(1, 2)).reshape(len(keys), self.num_heads, -1)  # (m, a, d)
        return torch.einsum("bad,mad->bam", queries, summed)

    def _weights(self, scores: Tensor) -> Tensor:
        width = self.prototypes.shape[-1] // self.num_heads
        with without_autocast(scores):
            return torch.softmax(promote(scores) / math.sqrt(width), dim=-1)

    def mix_values(self, scores: Tensor, values: Tensor) -> Tensor:
        """Compute features (..., f), the averages of values (m, f) weighted by the softmax of scores (..., a, m)."""
        by_head = values.reshape(len(values), self.num_heads, -1)
        return torch.einsum("...am,mad->...ad", self._weights(scores).to(values.dtype), by_head).flatten(-2)

    def _fuse(self, features: Tensor, answers: Tensor) -> Tensor:
        return torch.cat((features, answers.to(features.dtype)), dim=-1)


class DenseNetwork(TokenNetwork):
    """CoTAP's network: a ViT with a projector and optionally an object-aware filter."""

    def __init__(self, config: CoTAPConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        width = self.backbone.info.feature_dim
        self.filter: ObjectAwareFilter | None = None
        with seeded_init(config.seed + 1):
            if config.filter:
                heads = num_attention_heads(self.backbone.net)
                self.filter = ObjectAwareFilter(width, config.filter_prototypes, heads)
                width = self.filter.out_dim
            self.projector = Projector(width, *config.projector_dims)

    def filter_tokens(self, tokens: Tokens) -> Tokens:
        """Apply the object-aware filter to the tokens, or return them unchanged if there is no filter."""
        if self.filter is None:
            return tokens
        patches, image = self.filter(tokens.patches, tokens.image)
        return Tokens(image, patches)

    def project(self, features: Tensor) -> Tensor:
        """Project filtered features (..., d) to float32 unit vectors."""
        return to_unit(self.projector(features))

    def patch_features(self, images: Tensor) -> Tensor:
        """Return the patch features (b, rows, columns, d) of images (b, c, h, w), filtered if there is a filter.

        Raises:
            ConfigError: the image size is not a multiple of the patch size.
        """
        patches = super().patch_features(images)
        return patches if self.filter is None else self.filter.filter_patches(patches)

    @property
    def patch_identity(self) -> dict[str, str]:
        """Return the name of the backbone and whether its patch features are filtered."""
        layer = "backbone" if self.filter is None else "filtered"
        return {"name": self.backbone.info.name, "layer": layer}

    def embed_with_patches(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the results of ``embed`` and ``patch_features`` in one pass."""
        tokens = self.tokens(images)
        return tokens.image, self.filter_tokens(tokens).patches
