"""The object-aware filter against worked numbers; starting a dense network from others' checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch
from labelkit.data.batch import DataInfo
from labelkit.methods.dense.cotap_network import DenseNetwork, ObjectAwareFilter
from labelkit.methods.dense.options import CoTAPConfig
from labelkit.models.weights.files import load_weights_file
from safetensors.torch import save_file
from torch import Tensor

WIDTH = 48


DATA = DataInfo(2, np.zeros(2, dtype=np.int64), (), (), 0, None, 3, 32)


def network(num_prototypes: int | None = None, seed: int = 0, weights: Path | None = None) -> DenseNetwork:
    kept = (
        {"filter": False, "prototype_entropy": 0} if num_prototypes is None else {"filter_prototypes": num_prototypes}
    )
    settings = {"projector_dims": (16, 8), "drop_path": 0, "weights": weights, "seed": seed, **kept}
    return DenseNetwork(CoTAPConfig(backbone="vit_nano_p8_32", image_size=32, **settings), DATA).eval()


def worked_filter() -> tuple[ObjectAwareFilter, Tensor, Tensor]:
    """Return a filter whose linear maps are the identity, its keys and its values, of the specification."""
    made = ObjectAwareFilter(2, 2, 1).double()
    with torch.no_grad():
        for layer in (made.queries, made.keys, made.values):
            layer.weight.copy_(torch.eye(2))
    keys = torch.zeros(2, 3, 3, 2, dtype=torch.float64)
    keys[0, 1, 1], keys[0, 1, 2], keys[0, 0, 0] = torch.tensor([[1.0, 0], [0, 0.5], [0.3, 0]])
    keys[1, 1, 1], keys[1, 0, 1], keys[1, 2, 0] = torch.tensor([[0.0, 1], [0.5, 0], [0, -0.9]])
    return made, keys, keys.mean(dim=(1, 2))


def test_filter_answers_as_in_the_specification() -> None:
    made, keys, values = worked_filter()
    patches = torch.tensor([[[[1.0, 0], [0, 1]], [[1, 1], [-1, 0]]]], dtype=torch.float64)
    scores = made.scores(patches, keys)
    assert torch.allclose(
        scores[0, :, :, 0].flatten(0, 1), torch.tensor([[1.5, 0], [0, 0.1], [1, 1.5], [-0.7, 0]]).double(), atol=1e-7
    )
    expected = [[0.121584, 0.044125], [0.098429, 0.032548], [0.092224, 0.029445], [0.089220, 0.027943]]
    assert torch.allclose(made.mix_values(scores, values)[0].flatten(0, 1), torch.tensor(expected).double(), atol=1e-6)


def test_filter_takes_a_class_token_for_a_constant_region() -> None:
    made, keys, values = worked_filter()
    token = torch.tensor([[1.0, 2]], dtype=torch.float64)
    scores = made.class_token_scores(token, keys)
    assert scores.flatten().tolist() == pytest.approx([2.3, 0.7])
    assert made.mix_values(scores, values).flatten().tolist() == pytest.approx([0.122764, 0.044715], abs=1e-6)
    inside = made.scores(token.expand(1, 3, 3, 2).contiguous(), keys)[0, 1, 1, 0]
    assert inside.tolist() == pytest.approx([2.3, 0.7])


def test_features_do_not_move_prototypes() -> None:
    made = ObjectAwareFilter(8, 4, 2)
    patches, _ = made(torch.randn(2, 3, 3, 8), torch.randn(2, 8))
    patches.sum().backward()
    assert made.prototypes.grad is None
    assert made.queries.weight.grad is not None


def test_length_of_a_prototype_means_nothing() -> None:
    made = ObjectAwareFilter(8, 4, 2)
    patches = torch.randn(1, 3, 3, 8)
    before = made.filter_patches(patches)
    with torch.no_grad():
        made.prototypes.mul_(7)
    assert torch.allclose(made.filter_patches(patches), before, atol=1e-5)


@pytest.mark.parametrize(("options", "width"), [(None, WIDTH), (4, 2 * WIDTH)])
def test_patches_keep_their_rows_and_columns(options: int | None, width: int) -> None:
    made = network(options)
    assert made.patch_features(torch.zeros(2, 3, 32, 16)).shape == (2, 4, 2, width)
    assert made.embed(torch.zeros(2, 3, 32, 32)).shape == (2, made.embed_dim)
    assert made.patch_identity["layer"] == ("backbone" if options is None else "filtered")


def test_a_projector_of_a_narrower_network_gives_the_same_projections_at_first() -> None:
    stage1, stage2 = network(seed=1), network(4)
    stage2.load_projector(stage1.projector.state_dict(), "stage 1")
    features = torch.randn(5, WIDTH)
    wide = torch.cat((features, torch.randn(5, WIDTH)), dim=1)
    assert torch.allclose(stage2.project(wide), stage1.project(features), atol=1e-6)


def checkpoint(made: DenseNetwork, layout: str) -> dict[str, Tensor]:
    """Return weights under the names of others."""
    places = {"hidden1": "0", "hidden2": "2", "output": "4"}
    head = {f"{places[n.split('.')[0]]}.{n.split('.')[1]}": v for n, v in made.projector.state_dict().items()}
    body = made.backbone.net.state_dict()
    start, between = {
        "dino": ("teacher.backbone.", "teacher.head.mlp."),
        "ibot": ("state_dict.", "state_dict.head.mlp."),
        "mugs": ("teacher.module.backbone.", "teacher.module.head.mlp."),
        "leopart": ("state_dict.model.", "state_dict.model.projection_head."),
    }[layout]
    named = {start + n: v for n, v in body.items()} | {between + n: v for n, v in head.items()}
    if layout == "dino":
        named |= {n.replace("teacher.", "student.module."): torch.zeros_like(v) for n, v in named.items()}
        named["teacher.head.last_layer.weight_v"] = torch.ones(4, 8)
    return {n: v.clone() for n, v in named.items()}


@pytest.mark.parametrize("layout", ["dino", "ibot", "mugs", "leopart"])
def test_backbone_and_projector_are_found_in_checkpoints_of_others(tmp_path: Path, layout: str) -> None:
    theirs, path = network(seed=3), tmp_path / "weights.safetensors"
    save_file(checkpoint(theirs, layout), path)
    ours = network(weights=path)
    assert ours.load_projector_from_state(load_weights_file(path), str(path))
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(ours.project(ours.embed(images)), theirs.project(theirs.embed(images)))
