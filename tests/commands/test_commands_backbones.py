"""`list backbones --counts`: which networks, what is printed, and that nothing is fetched."""

from __future__ import annotations

from typing import Any

import pytest
from labelkit.cli.list_backbones import count_backbone, count_backbones, used_backbones
from labelkit.errors import ConfigError
from labelkit.models.backbones import registry as backbones
from labelkit.models.backbones.convnets import CONVNETS
from labelkit.models.backbones.vit import SMALL_VITS
from tests.running import Labelkit


def test_names_are_ours_and_those_that_presets_tables_and_auto_take() -> None:
    names = used_backbones()
    own = [*SMALL_VITS, *CONVNETS]
    assert names[: len(own)] == own
    others = names[len(own) :]
    assert others == sorted(others)
    # a preset, a table, a comment that names a row's option, the first of auto
    wanted = {"swin_tiny_patch4_window7_224", "vit_base_patch8_224.dino", "resnet101", "tf_efficientnet_lite0.in1k"}
    assert wanted <= set(others)
    assert "resnet50" in others
    assert "resnet50.a1_in1k" not in others
    assert "pixels" not in names


def test_one_network_is_counted_at_the_size_that_is_embedded() -> None:
    found: Any = count_backbones(["vit_base_patch14_dinov2.lvd142m", "resnet32_cifar"]).to_json()
    first, second = found["backbones"]
    assert (first["image_size"], first["resize"], first["features"]) == (224, 224, 768)
    # 257 tokens: 12 blocks of 12 * 768^2 and two products of tokens, 256 patches of 3 * 14^2
    blocks = 12 * (257 * 12 * 768**2 + 2 * 257**2 * 768)
    assert first["multiply_adds"] == blocks + 256 * 3 * 14**2 * 768
    assert second["parameters"] == 463_504


@pytest.mark.slow
def test_dino_is_prepared_as_by_its_authors() -> None:
    found: Any = count_backbones(["vit_small_patch16_224.dino"]).to_json()
    (counted,) = found["backbones"]
    assert (counted["resize"], counted["image_size"], counted["interpolation"]) == (256, 224, "bicubic")


def test_a_network_without_features_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise NotImplementedError("an encoder of another kind")

    monkeypatch.setattr(backbones.Backbone, "forward", refuse)
    with pytest.raises(ConfigError, match=r"--pattern: wrn10_1 gives no features .*another kind.*Leave it out"):
        count_backbone("wrn10_1")


def test_the_command_shows_counts_names_or_json(labelkit: Labelkit) -> None:
    pattern = ("--pattern", "alexnet_*sela")
    shown = labelkit("list", "backbones", "--counts", *pattern)
    assert shown.code == 0
    row = next(line.split() for line in shown.out.splitlines() if line.startswith("alexnet_sela "))
    assert row[:5] == ["alexnet_sela", "58,284,096", "1,131.2", "224", "4,096"]
    quiet = labelkit("list", "backbones", "--counts", *pattern, "-q")
    assert quiet.out.split() == ["alexnet_sela", "alexnet_small_sela"]
    rows = labelkit("list", "backbones", "--counts", *pattern, "--json").json["backbones"]
    assert [entry["parameters"] for entry in rows] == [58_284_096, 57_006_144]
