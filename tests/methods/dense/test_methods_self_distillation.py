"""DINO and iBOT: their losses, centers, schedules and masks against plain recomputation; checkpoints; two streams."""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from labelkit.commands.common.initialize import initialize_weights
from labelkit.data.batch import Batch, DataInfo, ViewGeometry
from labelkit.errors import CheckpointDamaged, ConfigError
from labelkit.methods.dense import ibot
from labelkit.methods.dense.dino import DINO
from labelkit.methods.dense.ibot import IBOT
from labelkit.methods.dense.options import DINOConfig, IBOTConfig
from labelkit.options.presets import resolve_config
from labelkit.training.method import TrainState
from safetensors.torch import save_file
from tests.tiers import quick_every

Make = Callable[..., Any]
METHODS: dict[str, tuple[Any, Any]] = {"dino": (DINOConfig, DINO), "ibot": (IBOTConfig, IBOT)}
INFO = DataInfo(8, np.full(8, -1), (), (), 0, None, 3, 32, num_objects=4)
SMALL: dict[str, Any] = {
    "projector_dims": (16, 8), "num_outputs": 12, "steps": 10, "batch_size": 4, "lr_warmup_steps": 0,
    "precision": "float32", "freeze_last_layer_steps": 0,
}  # fmt: skip


def method(name: str, **options: Any) -> Any:
    kind, of = METHODS[name]
    data = {"dataset": "objects", "scene_dataset": "scenes"}
    return of(resolve_config(kind, preset="digits", overrides={**SMALL, **data, **options}).config, INFO)


def shown(seed: int = 0) -> Batch:
    """Return two images of one object and two scenes, in two large and two small views."""
    generator = torch.Generator().manual_seed(seed)
    views = tuple(torch.randn(4, 3, side, side, generator=generator) for side in (32, 32, 16, 16))
    whole = torch.tensor([[[1.0, 0, 0], [0, 1.0, 0]]]).expand(4, -1, -1)
    return Batch(views, torch.full((4,), -1), torch.tensor([0, 3, 5, 6]), (ViewGeometry(whole),) * 4)


def at(step: int, **options: Any) -> TrainState:
    return TrainState(
        0, step, 10, False, True, lambda *_: torch.zeros(0), lambda _: np.random.default_rng(0), **options
    )


def head(network: Any, tokens: torch.Tensor, layer: Any) -> torch.Tensor:
    """The published head in float64: three layers, unit length, a layer of directions and lengths."""
    p = {name: value.double() for name, value in network.projector.state_dict().items()}
    hidden = F.gelu(tokens.double() @ p["hidden1.weight"].T + p["hidden1.bias"])
    hidden = F.gelu(hidden @ p["hidden2.weight"].T + p["hidden2.bias"])
    out = hidden @ p["output.weight"].T + p["output.bias"]
    rows = layer.directions.double() / layer.directions.double().norm(dim=1, keepdim=True) * layer.lengths.double()
    return out / out.norm(dim=1, keepdim=True) @ rows.T


def apart(of: Any) -> Any:
    """Give the target other weights than the student, other lengths than 1, and centers other than 0."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for value in of.target.parameters():
            value.add_(0.05 * torch.randn(value.shape, generator=generator))
        for network in (of.network, of.target):
            network.last_layer.lengths.add_(0.3)
        for center in of.centers.values():
            center.value.copy_(0.1 * torch.randn(center.value.shape, generator=generator))
    return of.eval()


@torch.no_grad()
def test_the_loss_of_dino_is_the_published_one() -> None:
    of, batch = apart(method("dino", teacher_temperature=0.05)), shown()

    found = float(of.training_step(batch).loss)

    targets = []
    for view in batch.views[:2]:
        outputs = head(of.target, of.target.tokens(view).image, of.target.last_layer)
        targets.append(((outputs - of.center("image").value) / 0.05).softmax(1))
    terms = []
    for a, target in enumerate(targets):
        for v, view in enumerate(batch.views):
            if v != a:
                named = (head(of.network, of.network.tokens(view).image, of.network.last_layer) / 0.1).log_softmax(1)
                terms.append(-(target * named).sum(1).mean())
    assert len(terms) == 6
    assert found == pytest.approx(float(torch.stack(terms).mean()), rel=1e-5)


@torch.no_grad()
def test_the_loss_of_ibot_is_the_published_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ibot, "MASK_RATIOS", ((0.5, 0.1),))
    of = apart(method("ibot", patch_temperature=0.06))
    of.network.mask_token.add_(0.5)
    batch = shown()
    of.state = at(5)

    output = of.training_step(batch)

    hidden = torch.from_numpy(of.draw_patch_masks(batch)).chunk(2)
    own = [network.last_layer for network in (of.network, of.target)]
    images, patches = [], []
    for v in (0, 1):
        seen = of.target.tokens(batch.views[v])
        students = of.network.masked_tokens(batch.views[v], hidden[v])
        for i in range(4):
            places = hidden[v][i]
            if not places.any():
                patches.append(torch.zeros(()))
                continue
            target = ((head(of.target, seen.patches[i][places], own[1]) - of.center("patch").value) / 0.06).softmax(1)
            named = (head(of.network, students.patches[i][places], own[0]) / 0.1).log_softmax(1)
            patches.append(-(target * named).sum(1).mean())
        outputs = head(of.target, seen.image, of.target.last_layer)
        target = ((outputs - of.center("image").value) / 0.04).softmax(1)
        for w, view in enumerate(batch.views):
            if w != v:
                tokens = of.network.masked_tokens(view, hidden[w]) if w < 2 else of.network.tokens(view)
                named = (head(of.network, tokens.image, of.network.last_layer) / 0.1).log_softmax(1)
                images.append(-(target * named).sum(1).mean())
    assert hidden[0].any()
    assert float(output.logs["image"]) == pytest.approx(float(torch.stack(images).mean()), rel=1e-5)
    assert float(output.logs["patches"]) == pytest.approx(float(torch.stack(patches).mean()), rel=1e-5)
    assert float(output.loss) == pytest.approx(float(output.logs["image"] + output.logs["patches"]), rel=1e-6)


@torch.no_grad()
def test_centers_move_to_the_mean_outputs_of_the_target() -> None:
    of, batch = apart(method("ibot", center_decay=0.6)), shown()
    before = {name: of.center(name).value.clone() for name in ("image", "patch")}
    tokens = [of.target.tokens(view) for view in batch.views[:2]]
    means = {
        "image": torch.cat([of.target.outputs(t.image) for t in tokens]).mean(0),
        "patch": torch.cat([of.target.outputs(t.patches.flatten(0, 2)) for t in tokens]).mean(0),
    }
    of.state = at(0)
    of.training_step(batch)
    # another process saw three times as many, whose sums are twice these
    of.on_step_end(at(0, combine=lambda value, operation: torch.cat((3 * value[:-1], 4 * value[-1:]))))
    for name, decay in (("image", 0.6), ("patch", 0.9)):
        expected = decay * before[name] + (1 - decay) * 0.75 * means[name]
        torch.testing.assert_close(of.center(name).value, expected, rtol=1e-5, atol=1e-6)


def test_what_is_hidden_cannot_be_seen_and_the_rest_can() -> None:
    of = method("ibot").eval()
    hidden = torch.zeros(1, 4, 4, dtype=torch.bool)
    hidden[0, 1, 2] = True
    image = torch.randn(1, 3, 32, 32)
    other = image.clone()
    other[:, :, 8:16, 16:24] += 5  # patch of row 1, column 2
    with torch.no_grad():
        first, second = (of.network.masked_tokens(view, hidden) for view in (image, other))
        assert torch.equal(first.patches, second.patches)
        nothing = torch.zeros_like(hidden)
        torch.testing.assert_close(of.network.masked_tokens(image, nothing).image, of.network.tokens(image).image)
        of.network.mask_token.add_(1)
        assert not torch.equal(of.network.masked_tokens(image, hidden).patches, first.patches)
        elsewhere = image.clone()
        elsewhere[:, :, :8] += 5
        assert not torch.equal(of.network.masked_tokens(elsewhere, hidden).image, first.image)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_last_layer_and_its_moments_stay_in_the_first_steps(make: Make, name: str) -> None:
    setup = make(name, freeze_last_layer_steps=3, epochs=2)
    layer, moved = setup.method.network.last_layer, []
    before = layer.directions.detach().clone()
    end = setup.method.on_step_end

    def watch(state: TrainState) -> None:
        steps = setup.trainer.optimizer.state[layer.directions]
        moved.append((bool((layer.directions != before).any()), len(steps) > 0))
        end(state)

    setup.method.on_step_end = watch
    setup.trainer.fit()
    assert moved == [(False, False)] * 3 + [(True, True)] * 5


@pytest.mark.parametrize("name", quick_every(2, METHODS))
def test_schedules_are_used_as_published(make: Make, name: str) -> None:
    setup = make(
        name, teacher_warmup_steps=4, teacher_temperature=0.08, teacher_temperature_start=0.04, ema_start=0.9, epochs=2
    )
    used: list[tuple[float, float]] = []
    targets, update = setup.method._temperature, setup.method.teacher.update
    temperatures: list[float] = []
    setup.method._temperature = lambda step: temperatures.append(targets(step)) or temperatures[-1]
    setup.method.teacher.update = lambda net: used.append((temperatures[-1], setup.method.teacher.decay)) or update(net)
    setup.trainer.fit()
    assert [t for t, _ in used] == pytest.approx([0.04, 0.05, 0.06, 0.07, 0.08, 0.08, 0.08, 0.08])
    cosine = [1 - 0.1 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    assert [decay for _, decay in used] == pytest.approx(cosine)


def released(path: Path, of: Any, *, patches: bool, **changes: Any) -> dict[str, Any]:
    """Write a file as the released code does: both networks, a center, the optimizer, and a command line.

    Its tensors alone, by dotted names, in a file of safetensors.
    """
    generator = torch.Generator().manual_seed(4)

    def network(prefix: str) -> dict[str, torch.Tensor]:
        made = {f"{prefix}backbone.{name}": value for name, value in of.network.backbone.net.state_dict().items()}
        places = {"hidden1": 0, "hidden2": 2, "output": 4}
        for name, value in of.network.projector.state_dict().items():
            layer, _, kind = name.partition(".")
            made[f"{prefix}head.mlp.{places[layer]}.{kind}"] = value
        for layer in ("last_layer", "last_layer2") if patches else ("last_layer",):
            made[f"{prefix}head.{layer}.weight_g"] = torch.ones(12, 1)
            made[f"{prefix}head.{layer}.weight_v"] = of.network.last_layer.directions.detach()
        if patches and prefix:  # the teacher sees all
            made[f"{prefix}backbone.masked_embed"] = torch.zeros(1, of.network.embed_dim)
        return {name: torch.randn(value.shape, generator=generator) for name, value in made.items()}

    file: dict[str, Any] = {
        "student": network("module."),
        "teacher": network(""),
        "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "epoch": 800,
        "args": argparse.Namespace(arch="vit_small", lr=0.0005, global_crops_scale=(0.25, 1.0)),
    }
    center = torch.randn(1, 12, generator=generator)
    if patches:
        file["ibot_loss"] = {"center": center, "center2": torch.randn(1, 1, 12, generator=generator)}
    else:
        file["dino_loss"] = {"center": center}
    file |= changes
    write(path, file)
    return file


def write(path: Path, file: dict[str, Any]) -> None:
    if path.suffix == ".pth":
        torch.save(file, path)
        return
    parts = {part: tensors for part, tensors in file.items() if part not in ("optimizer", "epoch", "args")}
    flat = {f"{part}.{name}": value for part, tensors in parts.items() for name, value in tensors.items()}
    save_file({name: value.clone() for name, value in flat.items()}, path)


def is_network_of(network: Any, tensors: dict[str, torch.Tensor], prefix: str) -> bool:
    net = network.backbone.net.state_dict()
    same = [torch.equal(value, tensors[f"{prefix}backbone.{name}"]) for name, value in net.items()]
    mlp = {"hidden1": 0, "hidden2": 2, "output": 4}
    for name, value in network.projector.state_dict().items():
        layer, _, kind = name.partition(".")
        same.append(torch.equal(value, tensors[f"{prefix}head.mlp.{mlp[layer]}.{kind}"]))
    same.append(torch.equal(network.last_layer.directions, tensors[f"{prefix}head.last_layer.weight_v"]))
    same.append(torch.equal(network.last_layer.lengths, tensors[f"{prefix}head.last_layer.weight_g"]))
    return all(same)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("how", ["weights", "init_from"])
def test_a_full_checkpoint_gives_both_networks_heads_and_centers(tmp_path: Path, name: str, how: str) -> None:
    path = tmp_path / ("full.pth" if how == "weights" else "full.safetensors")
    file = released(path, method(name), patches=name == "ibot")

    of = method(name, **{how: path})
    if how == "init_from":
        initialize_weights(of, path)

    assert is_network_of(of.network, file["student"], "module.")
    assert is_network_of(of.target, file["teacher"], "")
    loss = file["ibot_loss" if name == "ibot" else "dino_loss"]
    assert torch.equal(of.center("image").value, loss["center"][0])
    if name == "ibot":
        assert torch.equal(of.center("patch").value, loss["center2"][0, 0])
        assert torch.equal(of.network.mask_token, file["student"]["module.backbone.masked_embed"])
    assert of._notes == []
    assert of.main_network() is of.target


def test_heads_of_other_sizes_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "full.safetensors"
    file = released(path, method("dino"), patches=False)
    with pytest.raises(
        ConfigError,
        match=r"--num-outputs: does not match the last layer of .*, which has shape \[12, 8\] instead of \[13, 8\]",
    ):
        method("dino", weights=path, num_outputs=13)
    with pytest.raises(ConfigError, match="--projector-dims"):
        method("dino", weights=path, projector_dims=(17, 8))
    with pytest.raises(ConfigError, match=r"--norm-last-layer.*: the weight vectors .* do not have unit norm"):
        method("dino", weights=path, norm_last_layer=True)
    released(path, method("dino"), patches=False, dino_loss={"center": torch.zeros(1, 5)})
    with pytest.raises(ConfigError, match=r"the image center of .* has shape \[5\] instead of \[12\]"):
        method("dino", weights=path)
    broken = {**file["teacher"], "head.last_layer.weight_v": torch.full((12, 8), math.nan)}
    released(path, method("dino"), patches=False, teacher=broken)
    with pytest.raises(CheckpointDamaged, match=r"last_layer\.weight_v: values are not finite"):
        method("dino", weights=path)


def test_both_kinds_of_images_come_in_their_shares_and_count_alike() -> None:
    of, rows = method("dino"), np.arange(8)
    drawn = of.phases(rows)[0].sampler.indices(0).reshape(-1, 4)
    assert [((row < 4).sum(), (row >= 4).sum()) for row in drawn] == [(2, 2)] * len(drawn)
    batch = shown()
    changed = tuple(torch.cat((view[:2], torch.randn_like(view[2:]))) for view in batch.views)
    assert of.training_step(batch).loss != of.training_step(replace(batch, views=changed)).loss
    alone = METHODS["dino"][1](
        resolve_config(
            DINOConfig, preset="digits", overrides={**SMALL, "dataset": "none", "scene_dataset": "s"}
        ).config,
        replace(INFO, num_objects=0),
    )
    assert set(alone.phases(rows)[0].sampler.indices(0)) == set(range(8))
