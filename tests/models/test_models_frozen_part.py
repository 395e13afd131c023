"""What the frozen part of a ViT is, and that training on what it made is training on the images."""

from functools import partial
from typing import Any

import pytest
import torch
from labelkit.errors import ConfigError
from labelkit.models.backbones.vit import last_class_token, pools_class_token
from labelkit.models.frozen_part import FrozenPart, find_frozen_part
from labelkit.models.paired_attention import KeyUpdateParams, UnsupportedBackboneError, freeze_backbone, paired_forward
from tests.models import tiny_vits
from tests.models.tiny_vits import VARIANTS
from tests.tiers import quick_every
from torch import Tensor, nn

tiny_vit = partial(tiny_vits.tiny_vit, depth=4)


def images() -> tuple[Tensor, Tensor]:
    weak, strong = torch.randn(2, 5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return weak, strong


def gradients(vit: nn.Module, features: Tensor) -> list[Tensor]:
    trained = [parameter for parameter in vit.parameters() if parameter.requires_grad]
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(1))
    return list(torch.autograd.grad((features * weights).sum(), trained))


@pytest.mark.parametrize("space", quick_every(3, ["key", "token", "literal"]))
@pytest.mark.parametrize(
    ("grad_from", "moved"), quick_every(4, [(3, (0, 2)), (3, ()), (3, (1,)), (3, (3,)), (2, (1, 3)), (1, (2,))])
)
def test_kept_views_give_features_and_gradients_of_images(grad_from: int, moved: tuple[int, ...], space: Any) -> None:
    vit = tiny_vit()
    freeze_backbone(vit, grad_from)
    weak, strong = images()
    update = KeyUpdateParams(gamma_update=0.7, space=space)
    options: dict[str, Any] = {"update": update, "align_blocks": moved, "grad_from_block": grad_from}
    vit.train()
    seen: dict[int, dict[str, Tensor]] = {}
    expected = paired_forward(vit, weak, strong, record=seen, **options)

    part = find_frozen_part(vit, grad_from, moved)
    kept = [part.compute_cached(vit, view, number) for number, view in enumerate((weak, strong))]
    logged: dict[int, dict[str, Tensor]] = {}
    found = paired_forward(vit, kept[0], kept[1], frozen_part=part, record=logged, **options)

    assert torch.allclose(found, expected, atol=2e-5)
    for one, other in zip(gradients(vit, found), gradients(vit, expected), strict=True):
        assert torch.allclose(one, other, atol=2e-4)
    assert logged.keys() == seen.keys() == set(moved)
    for block in moved:
        for name, value in seen[block].items():
            assert torch.allclose(logged[block][name], value, rtol=1e-3, atol=1e-5), name


def test_an_update_changes_what_the_teacher_gives() -> None:
    vit = tiny_vit()
    part = find_frozen_part(vit, 3, (1,))
    weak, strong = (part.compute_cached(vit, view, number) for number, view in enumerate(images()))
    vit.train()
    still = paired_forward(vit, weak, strong, frozen_part=part, grad_from_block=3)
    moved = paired_forward(
        vit, weak, strong, frozen_part=part, grad_from_block=3, update=KeyUpdateParams(), align_blocks=(1,)
    )
    assert not torch.allclose(still[:5], moved[:5], atol=1e-3)
    assert torch.allclose(still[5:], moved[5:], atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_class_token_alone_leaves_the_last_block_as_with_all_others(variant: str) -> None:
    vit = tiny_vit(**VARIANTS[variant]).eval()
    if not pools_class_token(vit):
        assert variant == "average_pooling"
        return
    tokens = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(last_class_token(vit, tokens), vit.blocks[-1](tokens)[:, :1], atol=1e-5)


def test_what_is_not_frozen_or_changes_from_pass_to_pass_is_refused() -> None:
    with pytest.raises(ConfigError, match="every block is trained"):
        find_frozen_part(tiny_vit(), 0)
    with pytest.raises(ConfigError, match="every block is trained"):
        find_frozen_part(tiny_vit(), 2, train_stem=True)
    with pytest.raises(ConfigError, match=r"blocks\.0.* is a Dropout"):
        find_frozen_part(tiny_vit(proj_drop_rate=0.1), 2)
    with pytest.raises(ConfigError, match=r"blocks\.1.* is a DropPath"):
        find_frozen_part(tiny_vit(drop_path_rate=0.1), 2)
    with pytest.raises(UnsupportedBackboneError):
        find_frozen_part(nn.Conv2d(3, 3, 1), 2)


def test_the_fingerprint_is_of_the_frozen_weights_alone() -> None:
    vit = tiny_vit()
    part = find_frozen_part(vit, 3)
    before = part.fingerprint(vit)
    with torch.no_grad():
        vit.blocks[3].mlp.fc1.weight += 1
        vit.norm.weight += 1
    assert part.fingerprint(vit) == before
    with torch.no_grad():
        vit.blocks[2].mlp.fc1.weight += 1
    assert part.fingerprint(vit) != before
    pooled = FrozenPart(((4,), (4,)), pooled=True)
    before = pooled.fingerprint(vit)
    with torch.no_grad():
        vit.norm.weight += 1
    assert pooled.fingerprint(vit) != before
