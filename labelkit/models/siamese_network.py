"""A backbone under the projection, and perhaps the prediction, of self-supervised learning from two views."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Unpack

from torch import Tensor, nn

from labelkit.models.inference import BackboneNetwork, BackboneOptions
from labelkit.models.seeding import seeded_init


class SiameseNetwork(BackboneNetwork):
    """Features embed; projections, and predictions of those of another view, are trained on.

    Args:
        backbone: any name of ``build_backbone``.
        projector_dims: width of each layer of the projection, the last one its output.
        normalize_hidden: batch normalization in the hidden layers of the projection.
        normalize_output: batch normalization of its output, without scale and shift.
        predictor_dim: width of the hidden layer of the prediction; ``None``: there is none.
        seed: of all initial values.
        options: see `BackboneOptions`.
    """

    crops = False

    def __init__(
        self,
        backbone: str,
        projector_dims: Sequence[int],
        *,
        normalize_hidden: bool,
        normalize_output: bool,
        predictor_dim: int | None,
        seed: int,
        **options: Unpack[BackboneOptions],
    ) -> None:
        super().__init__(backbone, seed=seed, **options)
        width = projector_dims[-1]
        with seeded_init(seed + 1):
            layers = _layers((self.backbone.info.feature_dim, *projector_dims), normalize=normalize_hidden)
            if normalize_output:
                layers.append(nn.BatchNorm1d(width, affine=False))
            self.projector = nn.Sequential(*layers)
            self.predictor: nn.Module | None = None
            if predictor_dim is not None:
                self.predictor = nn.Sequential(*_layers((width, predictor_dim, width), normalize=True))

    def project(self, images: Tensor) -> Tensor:
        """One view (b, c, h, w) to projections (b, p)."""
        projections: Tensor = self.projector(self.embed(images))
        return projections

    def predict(self, projections: Tensor) -> Tensor:
        """Projections (b, p) of a view to those (b, p) expected of another one."""
        assert self.predictor is not None
        predictions: Tensor = self.predictor(projections)
        return predictions


def _layers(widths: Sequence[int], *, normalize: bool) -> list[nn.Module]:
    """Linear layers with ReLU between them, after a normalization if asked for, which makes a bias useless."""
    made: list[nn.Module] = []
    for number, (given, width) in enumerate(pairwise(widths)):
        if number:
            made += [nn.BatchNorm1d(given), nn.ReLU()] if normalize else [nn.ReLU()]
        is_last = number == len(widths) - 2
        made.append(nn.Linear(given, width, bias=is_last or not normalize))
    return made
