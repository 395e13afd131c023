"""The recipes of the benchmarks, number by number (specification 4.1 and 4.2)."""

import pytest
from labelkit.methods.discovery.options import FlipClassConfig, SimGCDConfig
from labelkit.options.presets import resolve_config

# name: eps, aligned blocks, strong view
RECIPES = {
    "cifar10": (1.0, (3, 4), "generic"),
    "cifar100": (4.0, (3, 4), "generic"),
    "imagenet_100": (1.0, (3, 4), "generic"),
    "imagenet_1k": (1.0, (3, 4), "generic"),
    "cub": (2.0, (8, 9), "fine"),
    "scars": (1.0, (8, 9), "fine"),
    "aircraft": (1.0, (8, 9), "fine"),
    "herbarium_19": (1.0, (8, 9), "fine"),
}
SHARED = {
    "backbone": "vit_base_patch16_224.dino",
    "pretrained": True,
    "grad_from_block": 11,
    "optimizer": "sgd",
    "momentum": 0.9,
    "lr": 0.1,
    "lr_schedule": "cosine",
    "lr_update": "epoch",
    "lr_final_ratio": 1e-3,
    "weight_decay": 5e-5,
    "epochs": 200,
    "batch_size": 128,
    "precision": "float32",
    "label_ratio": 0.5,
    "split_seed": 0,
    "supervised_weight": 0.35,
    "contrastive_temperature": 1.0,
    "supervised_temperature": 0.07,
    "student_temperature": 0.1,
    "teacher_temperature_start": 0.07,
    "teacher_temperature_final": 0.04,
    "teacher_warmup_epochs": 30,
}
ALIGNMENT = {"align_mode": "flip", "alpha": 0.0, "beta": 1.0, "gamma_update": 0.1, "gamma_reg": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_flipclass_presets_hold_the_published_recipe(name: str) -> None:
    eps, blocks, strong = RECIPES[name]
    values = resolve_config(FlipClassConfig, preset=name).config.model_dump()
    expected = SHARED | ALIGNMENT | {"entropy_weight": eps, "align_blocks": blocks, "augmentation": strong}
    assert {key: values[key] for key in expected} == expected


@pytest.mark.parametrize("name", RECIPES)
def test_simgcd_presets_hold_the_released_recipe(name: str) -> None:
    values = resolve_config(SimGCDConfig, preset=name).config.model_dump()
    expected = SHARED | {"entropy_weight": RECIPES[name][0], "views": "simgcd", "symmetric": True}
    assert {key: values[key] for key in expected} == expected
