"""Which source wins, where each value came from, and what is said about faults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal
from unittest.mock import Mock

import pytest
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.errors import ConfigError
from labelkit.methods.registry import METHODS
from labelkit.methods.siamese.options import SiameseConfig
from labelkit.options.base import BaseConfig, explain_no_effect, list_choices
from labelkit.options.presets import list_presets, preset_folder_name, read_preset_command, read_yaml, resolve_config
from labelkit.progress import Progress, use_progress
from pydantic import Field, model_validator


class TidepoolConfig(BaseConfig):
    command: ClassVar[tuple[str, ...]] = ("train", "tidepool")

    dataset: str = "digits"
    temperature: float = Field(0.1, gt=0)
    lr: float = Field(0.1, gt=0)
    epochs: int = Field(10, ge=1)
    warmup_epochs: int = Field(0, ge=0)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    limit: float | None = None
    out: Path | None = Field(None, json_schema_extra={"preset": False})

    @model_validator(mode="after")
    def _warmup_is_shorter(self) -> TidepoolConfig:
        if self.warmup_epochs > self.epochs:
            raise ValueError(f"warmup_epochs ({self.warmup_epochs}) exceeds epochs ({self.epochs})")
        return self


class SievesConfig(BaseConfig):
    command: ClassVar[tuple[str, ...]] = ("sieve", "sand")

    index: Path = Field(...)
    num_clusters: int = Field(..., ge=1)
    seed: int = 0


@pytest.fixture
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "presets"
    (folder / "tidepool").mkdir(parents=True)
    monkeypatch.setattr("labelkit.options.presets.find_bundled_presets", lambda: folder)
    return folder


def write_preset(presets: Path, name: str, text: str) -> Path:
    path = presets / "tidepool" / f"{name}.yaml"
    path.write_text(f"# labelkit train tidepool --dataset {name}\n{text}")
    return path


def error_lines(config_class: type[BaseConfig], **sources: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve_config(config_class, **sources)
    return str(caught.value).splitlines()


def test_each_source_beats_the_one_before_and_is_named(presets: Path, tmp_path: Path) -> None:
    write_preset(presets, "digits", "temperature: 0.2\nlr: 0.2\nepochs: 20\n")
    config_file = tmp_path / "mine.yaml"
    config_file.write_text("lr: 0.3\nepochs: 30\n")
    resolved = resolve_config(
        TidepoolConfig,
        config_file=config_file,
        overrides={"epochs": "40"},
    )
    assert resolved.config == TidepoolConfig(temperature=0.2, lr=0.3, epochs=40)
    assert resolved.origins["optimizer"] == "default"
    assert resolved.origins["temperature"] == "presets/tidepool/digits.yaml"
    assert resolved.origins["lr"] == str(config_file)
    assert resolved.origins["epochs"] == "--epochs"
    assert resolved.preset_path == presets / "tidepool" / "digits.yaml"


def test_the_data_set_chooses_the_preset(presets: Path, tmp_path: Path) -> None:
    for name, epochs in (("digits", 20), ("cub", 30), ("folder", 50)):
        write_preset(presets, name, f"epochs: {epochs}\n")
    config_file = tmp_path / "mine.yaml"
    config_file.write_text("dataset: cub\n")

    assert resolve_config(TidepoolConfig).config.epochs == 20
    assert resolve_config(TidepoolConfig, overrides={"dataset": "cub"}).config.epochs == 30
    assert resolve_config(TidepoolConfig, config_file=config_file).config.epochs == 30
    for dataset in ("my/images", "photos/", "/abs/images", "images.csv", "."):
        assert resolve_config(TidepoolConfig, overrides={"dataset": dataset}).config.epochs == 50
    unknown = resolve_config(TidepoolConfig, overrides={"dataset": "unheard-of"})
    assert (unknown.config.epochs, unknown.preset_path) == (10, None)
    assert list(list_presets(TidepoolConfig)) == ["cub", "digits", "folder"]
    assert list_presets(SievesConfig) == {}
    assert preset_folder_name(("embed",)) == "embed"
    assert preset_folder_name(("sieve", "sand")) == "sieve-sand"


@pytest.mark.parametrize(
    ("overrides", "epochs"),
    [({}, 50), ({"pretrained": "true"}, 5), ({"pretrained": False}, 50), ({"weights": "net.pth"}, 5)],
)
def test_a_network_with_weights_takes_a_preset_of_its_own(
    presets: Path, overrides: dict[str, object], epochs: int
) -> None:
    class Pretrained(TidepoolConfig):
        pretrained: bool = False
        weights: Path | None = None

    write_preset(presets, "folder", "epochs: 50\n")
    assert resolve_config(Pretrained, overrides={"dataset": "photos/", **overrides}).config.epochs == 50
    write_preset(presets, "folder_pretrained", "epochs: 5\n")
    found = resolve_config(Pretrained, overrides={"dataset": "photos/", **overrides})
    assert found.config.epochs == epochs
    named = resolve_config(Pretrained, preset="folder", overrides={"dataset": "photos/", **overrides})
    assert named.config.epochs == 50


@pytest.mark.parametrize("name", ["~no-such-user-here", "~no-such-user-here/x", "a\0b", "x" * 5000, "", "\udcff"])
def test_odd_names_of_data_sets_and_files_are_no_bug(name: str, presets: Path) -> None:
    assert resolve_config(TidepoolConfig, overrides={"dataset": name}).preset_path is None
    assert error_lines(TidepoolConfig, preset=f"{name}.yaml")
    assert error_lines(TidepoolConfig, config_file=Path(f"{name}.yaml"))


def test_a_preset_is_chosen_by_name_by_file_or_not_at_all(presets: Path, tmp_path: Path) -> None:
    write_preset(presets, "digits", "epochs: 20\n")
    write_preset(presets, "cub", "epochs: 30\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text("epochs: 60\n")
    assert resolve_config(TidepoolConfig, preset="cub").config.epochs == 30
    assert resolve_config(TidepoolConfig, preset=str(mine)).config.epochs == 60
    assert resolve_config(TidepoolConfig, preset="none").config.epochs == 10


def test_an_unknown_preset_is_met_with_the_names_that_exist(presets: Path) -> None:
    write_preset(presets, "cifar10", "")
    write_preset(presets, "digits", "")
    assert error_lines(TidepoolConfig, preset="cifar-10") == [
        "--preset: unknown preset (value cifar-10). Did you mean `cifar10`? Choose from: cifar10, digits."
    ]


def test_all_faults_of_all_sources_come_at_once(presets: Path, tmp_path: Path) -> None:
    write_preset(presets, "digits", "temprature: 0.1\nlr: fast\nout: runs/x\n")
    config_file = tmp_path / "mine.yaml"
    config_file.write_text("epochs: 0\noptimizer: adam\n")
    lines = error_lines(
        TidepoolConfig,
        config_file=config_file,
        overrides={"temperature": "-1", "lr": "0.1", "bogus": "1"},
        origins={"bogus": "--set bogus"},
    )
    assert lines == [
        "presets/tidepool/digits.yaml: temprature: unknown key (value 0.1). Did you mean `temperature`?",
        "presets/tidepool/digits.yaml: out: cannot be set in a preset or config file (value runs/x). "
        "Pass --out instead.",
        "presets/tidepool/digits.yaml: lr: input should be a valid number (value fast)",
        f"{config_file}: epochs: input should be greater than or equal to 1 (value 0)",
        f"{config_file}: optimizer: input should be 'sgd' or 'adamw' (value adam). Did you mean `adamw`?",
        "--set bogus: unknown key (value 1). See `labelkit config` for all keys.",
        "--temperature: input should be greater than 0 (value -1)",
    ]
    assert error_lines(SievesConfig, overrides={"seed": "x"}) == [
        "--seed: input should be a valid integer (value x)",
        "--index: is missing. Pass a value for --index.",
        "--num-clusters: is missing. Pass a value for --num-clusters.",
    ]


def test_a_fault_between_fields_says_where_both_came_from(presets: Path) -> None:
    write_preset(presets, "digits", "warmup_epochs: 8\n")
    (line,) = error_lines(TidepoolConfig, overrides={"epochs": "5"})
    assert line == (
        "labelkit train tidepool: warmup_epochs (8) exceeds epochs (5). "
        "epochs = 5 comes from --epochs; warmup_epochs = 8 comes from presets/tidepool/digits.yaml"
    )
    # longer than the default's epochs, but not than the option's
    both = {"warmup_epochs": 15, "epochs": 20}
    assert resolve_config(TidepoolConfig, preset="none", overrides=both).config.warmup_epochs == 15


def test_scalars_of_a_file_mean_what_they_mean_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("lr: 1e-3\nlimit: null\noptimizer: adamw\nepochs: 010\ndataset: no\n")
    config = resolve_config(TidepoolConfig, config_file=path, preset="none").config
    assert config == TidepoolConfig(lr=0.001, optimizer="adamw", epochs=10, dataset="no")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("lr: 1\nlr: 2\n", ":2", "lr is set twice"),
        ("- 1\n- 2\n", "", "not a mapping"),
        ("lr: [1\nepochs: 2\n", ":2", "not valid YAML"),
        ("\tlr: 1\n", ":1", "not valid YAML"),
        ("lr: {a: 1}\n", ":1", "neither a plain value"),
        ("[1, 2]: 3\n", ":1", "neither a plain value"),
        ("lr: !!python/object/apply:os.system [['true']]\n", ":1", "neither a plain value"),
        ("[" * 2000, "", "not valid YAML"),
        ('lr: "\\UFFFFFFFF"\n', "", "not valid YAML"),
        ("lr: \x01\n", "", "not valid YAML"),
        (b"lr: \xff\xfe\n", "", "not UTF-8"),
        (b"# " + b"x" * 70000, "", "larger than 65,536 bytes"),
    ],
)
def test_a_file_that_is_no_flat_mapping_is_refused_with_its_line(
    tmp_path: Path, text: str | bytes, place: str, words: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}{place}: ")
    assert words in str(caught.value)


def test_a_preset_tells_the_command_that_runs_it(presets: Path) -> None:
    path = write_preset(presets, "cub", "epochs: 1\n")
    assert read_preset_command(path) == "labelkit train tidepool --dataset cub"
    path.write_text("epochs: 1\n")
    with pytest.raises(ConfigError, match="first line"):
        read_preset_command(path)


@pytest.mark.parametrize(
    ("method", "options", "why"),
    [
        ("siamese", {"queue_size": 64}, "--queue-size has no effect without --loss moco"),
        ("tac-ccl", {"ccl": False, "ccl_weight": 1.0}, "--ccl-weight has no effect with --no-ccl"),
        ("mixmatch", {"unlabeled_weight": 0, "unlabeled_ramp": 0.5}, "--unlabeled-ramp has no effect with --unl"),
        (
            "tac-ccl",
            {"memory_refill": True, "memory_warmup_steps": 3},
            "--memory-warmup-steps has no effect without --no-memory-refill",
        ),
        ("sela", {"labels_from": "runs/a", "lam": 3.0}, "--lam has no effect with --labels-from"),
        ("siamese", {"loss": "moco", "queue_size": 64}, ""),
        ("siamese", {"queue_size": 4096}, ""),  # the default
        ("tac-ccl", {"lr_schedule": "constant"}, ""),  # the preset has --lr-drop-epochs
    ],
)
def test_a_warning_names_an_option_that_does_nothing_with_the_others(
    method: str, options: dict[str, object], why: str
) -> None:
    progress = Mock(spec=Progress)
    with use_progress(progress):
        resolve_config(METHODS[method].config, preset="digits", overrides=options)

    assert [call.args[0].startswith(why) for call in progress.warning.call_args_list] == [True] * bool(why)


def test_a_subclass_can_remove_the_rule_of_its_base() -> None:
    class OwnConfig(SiameseConfig):
        acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"queue_size": ()}

    own = resolve_config(
        OwnConfig, preset="none", overrides={"queue_size": 64, "temperature": 0.2, "loss": "simsiam"}
    ).config

    assert (explain_no_effect(own, "queue_size"), explain_no_effect(own, "temperature")) == (
        "",
        "without --loss simclr or moco",
    )


def test_what_options_act_with_are_options_and_their_values() -> None:
    for config_class in CONFIG_CLASSES:
        fields = config_class.model_fields
        for table in (vars(base).get("acts_with", {}) for base in config_class.__mro__):
            for name, (other, *values) in table.items():
                assert {name, other} <= fields.keys(), (config_class, name)
                known = list_choices(fields[other].annotation)
                assert not known or {*map(str, values)} <= {*known}, (config_class, name)
