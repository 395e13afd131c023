"""CoTAP: which term moves what, stages, neighbors, two streams, and input that cannot work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.data.batch import Batch, DataInfo, ViewGeometry
from labelkit.errors import ConfigError, Mismatch
from labelkit.methods.dense.cotap import CoTAP, NeighborPairing, load_or_compute_neighbors
from labelkit.methods.dense.options import CoTAPConfig
from labelkit.methods.dense.ranking_loss import cotap_loss
from labelkit.options.presets import resolve_config
from labelkit.store.array_files import read_neighbors
from labelkit.training.method import TrainState

TERMS = ("image_alignment", "patch_alignment", "image_concentration", "patch_ranking", "prototype_entropy")
INFO = DataInfo(8, np.full(8, -1), (), (), 0, None, 3, 32, num_objects=4)


def config(**options: Any) -> CoTAPConfig:
    settings: dict[str, Any] = {
        "dataset": "objects", "scene_dataset": "scenes", "batch_size": 4, "projector_dims": (16, 8), "num_neighbors": 2,
        "steps": 10, "lr_warmup_steps": 0, "precision": "float32", **options,
    }  # fmt: skip
    return resolve_config(CoTAPConfig, preset="digits", overrides=settings).config


def only(*names: str, **options: Any) -> CoTAPConfig:
    return config(**({name: float(name in names) for name in TERMS} | options))


def batch(seed: int = 0, size: int = 4) -> Batch:
    """Return two objects and two scenes, in two large, two small views and one of a neighbor; all boxes overlap."""
    generator = torch.Generator().manual_seed(seed)
    views = tuple(torch.randn(size, 3, side, side, generator=generator) for side in (32, 32, 16, 16, 32))
    boxes = [(1.0, 0.0), (0.8, 0.1), (0.5, 0.0), (0.5, 0.2), (1.0, 0.0)]
    geometry = tuple(
        ViewGeometry(torch.tensor([[[half, 0, shift], [0, half, 0]]]).expand(size, -1, -1)) for half, shift in boxes
    )
    index = torch.tensor([0, 1, 5, 6])[:size]
    return Batch(views, torch.full((size,), -1), index, geometry)


def with_gradient(method: CoTAP) -> set[str]:
    parts = ("backbone", "filter.prototypes", "filter.queries", "filter.values", "projector")
    named = {n.removeprefix("network."): p for n, p in method.named_parameters() if n.startswith("network.")}
    found = set()
    for part in parts:
        moved = [p.grad is not None and bool(p.grad.any()) for n, p in named.items() if n.startswith(part)]
        if any(moved):
            found.add(part)
    return found


NETWORK = {"backbone", "filter.queries", "filter.values", "projector"}


@pytest.mark.slow
@pytest.mark.parametrize("term", TERMS)
def test_each_term_alone_moves_only_what_it_is_about(term: str) -> None:
    method = CoTAP(only(term), INFO)
    output = method.train().training_step(batch())
    output.loss.backward()
    assert with_gradient(method) == ({"filter.prototypes"} if term == "prototype_entropy" else NETWORK)
    assert all(parameter.grad is None for parameter in method.teacher.parameters())
    assert set(output.logs) == {term}
    assert float(output.loss.detach()) == pytest.approx(float(output.logs[term]))


@pytest.mark.parametrize("term", ["image_alignment", "image_concentration", "prototype_entropy"])
def test_image_terms_see_no_scene(term: str) -> None:
    method, shown = CoTAP(only(term), INFO), batch()
    changed = tuple(torch.cat((view[:2], torch.randn_like(view[2:]))) for view in shown.views)
    other = replace(shown, views=changed)
    assert torch.equal(method.training_step(shown).loss, method.training_step(other).loss)


def test_ranking_of_whole_maps_is_the_loss_of_all_pairs_of_patches() -> None:
    method, shown = CoTAP(only("patch_ranking", ranking_views="same", filter=False), INFO), batch(size=2)
    method.target.load_state_dict(CoTAP(only("patch_ranking", filter=False, seed=5), INFO).network.state_dict())
    rows = []
    for view in shown.views[:2]:  # of two images, each is the other's partner
        z = [n.project(n.tokens(view).patches).flatten(1, 2).double() for n in (method.network, method.target)]
        p, q = (torch.stack([0.5 * m[i] @ m[1 - i].T + 0.5 for i in (0, 1)]).flatten(1) for m in z)
        rows.append(cotap_loss(p, q.float()))
    assert float(method.training_step(shown).loss.detach()) == pytest.approx(
        float(torch.cat(rows).detach().mean()), rel=1e-4
    )


def test_crops_without_overlap_leave_a_loss_of_zero_with_gradients() -> None:
    shown = batch()
    apart = torch.tensor([[[0.1, 0, -0.9], [0, 0.1, 0]]]).expand(4, -1, -1)
    geometry = (ViewGeometry(apart), *[ViewGeometry(-apart * torch.tensor([[[-1.0, 1, 1], [1, -1, 1]]]))] * 4)
    method = CoTAP(only("patch_alignment", "patch_ranking"), INFO)
    output = method.training_step(replace(shown, geometry=geometry))
    output.loss.backward()
    assert float(output.logs["patch_ranking"]) == 0
    assert bool(output.loss.detach().isfinite())
    assert all(p.grad.isfinite().all() for p in method.network.parameters() if p.grad is not None)


def test_a_second_stage_takes_both_networks_of_a_first_one() -> None:
    first = CoTAP(only("image_alignment", "patch_alignment", filter=False, seed=7), INFO)
    with torch.no_grad():
        first.target.projector.output.bias.fill_(0.5)
    second = CoTAP(config(), INFO)
    taken = second.load_matching_tensors(first.state_dict(), "run")
    assert taken is not None
    images = torch.randn(2, 3, 32, 32)
    for ours, theirs in ((second.network, first.network), (second.target, first.target)):
        z = ours.project(ours.filter_tokens(ours.tokens(images)).image)
        assert torch.allclose(z, theirs.project(theirs.tokens(images).image), atol=1e-5)
    assert torch.equal(second.target.filter.prototypes, second.network.filter.prototypes)  # type: ignore[union-attr] # on


def state(features: torch.Tensor, calls: list[int]) -> TrainState:
    def embed(network: Any, rows: np.ndarray) -> torch.Tensor:
        calls.append(len(rows))
        return features[torch.from_numpy(rows)]

    return TrainState(0, 0, 1, False, True, embed, lambda purpose: np.random.default_rng(0))


ROWS = np.array([0, 1, 3, 4])
FEATURES = torch.tensor([[1.0, 0], [0.9, 0.1], [9, 9], [0, 1], [0.1, 0.9]])


def find(
    path: Path | None, calls: list[int], k: int = 1, weights: str = "w", data: str = "digest", images: str = "i"
) -> torch.Tensor:
    found, of = state(FEATURES, calls), {"dataset_digest": data, "weights_fingerprint": weights}
    of |= {"images_sha256": images} if images else {}
    return load_or_compute_neighbors(found, torch.nn.Identity(), ROWS, 5, k, identity=of, path=path)


def test_neighbors_are_the_nearest_others_and_are_found_once(tmp_path: Path) -> None:
    calls: list[int] = []
    first, again = (find(tmp_path / "n.h5", calls) for _ in range(2))
    assert first[:, 0].tolist() == [1, 0, -1, 4, 3]
    assert torch.equal(first, again)
    assert calls == [4]
    assert read_neighbors(tmp_path / "n.h5").query_rows.tolist() == ROWS.tolist()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"data": "other"}, "dataset_digest"),
        ({"images": "j"}, "images_sha256"),
        ({"weights": "v"}, "weights"),
        ({"k": 2}, "1 n"),
    ],
)
def test_a_file_with_neighbors_of_something_else_is_refused(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    find(tmp_path / "n.h5", [])
    with pytest.raises(Mismatch, match=word):
        find(tmp_path / "n.h5", [], **change)


def test_a_file_of_an_earlier_version_without_a_digest_of_the_images_is_read(tmp_path: Path) -> None:
    calls: list[int] = []
    find(tmp_path / "n.h5", calls, images="")
    find(tmp_path / "n.h5", calls)
    assert calls == [4]


def test_an_image_is_shown_with_its_neighbors_in_equal_shares_and_a_scene_with_itself() -> None:
    pairing = NeighborPairing(lambda: np.array([[1, 2], [-1, -1]], dtype=np.int32))
    keys = np.arange(300) << 40
    shown = pairing.plan(np.zeros(300, dtype=np.int64), keys, seed=0, epoch=0).rows
    assert set(shown.tolist()) == {1, 2}
    assert 100 < int((shown == 1).sum()) < 200
    assert pairing.plan(np.array([1, 5]), np.array([1, 5]), seed=0, epoch=0).rows.tolist() == [1, 5]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"dataset": "none"}, "image_alignment"),
        ({"dataset": "none", "scene_dataset": None}, "scene-dataset"),
        ({"filter": False}, "prototype-entropy"),
        (dict.fromkeys(TERMS, 0.0), "must have a weight above 0"),
        ({"batch_size": 1}, "batch-size"),
        ({"global_scale": (0.9, 0.2)}, "global_scale"),
        ({"lr_warmup_steps": 10}, "lr_warmup_steps"),
        ({"local_size": 20}, "multiple"),
        ({"image_size": 36}, "multiple"),
        ({"num_neighbors": 4}, "4 neighbors per image require more than 4 images"),
        ({"backbone": "convnet_demo"}, "VisionTransformer|cannot"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_each_other_network_or_images_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        CoTAP(config(**options), INFO)
