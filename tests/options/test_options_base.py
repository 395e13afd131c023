"""How config fields read texts and print themselves."""

from pathlib import Path
from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from labelkit.options.base import (
    BaseConfig,
    build_command_words,
    describe_bounds,
    field_factory,
    format_value,
    list_choices,
    metavar,
)
from labelkit.options.presets import read_yaml
from pydantic import Field, ValidationError

_WATER = field_factory("Water")


class Pond(BaseConfig):
    depth: float = _WATER(1.5, "Meters of water.", gt=0, lt=100, before=2.0)
    fish: int = Field(3, ge=0)
    kind: Literal["fresh", "salt"] = "fresh"
    level: Literal[1, 2] = 1
    blocks: tuple[int, ...] = (8, 9)
    corners: tuple[float, float] = (0.0, 1.0)
    names: tuple[str, ...] = ()
    maps: tuple[Path, ...] = ()
    limit: float | None = None
    beta: float | Literal["auto"] = 1.0
    mode: Literal["none", "all"] | None = None
    folder: Path = Path("data")
    weights: Path | None = None
    title: str | None = None
    deep: bool = False
    out: Path | None = Field(None, json_schema_extra={"panel": "Run", "preset": False})


def test_a_panel_makes_fields_with_its_heading_and_their_facts() -> None:
    field = Pond.model_fields["depth"]
    assert (field.default, field.description, describe_bounds(field)) == (1.5, "Meters of water.", "> 0, < 100")
    assert field.json_schema_extra == {"panel": "Water", "preset": True, "before": 2.0}


def test_a_path_with_a_comma_is_one_path_if_it_is_there(tmp_path: Path) -> None:
    there, absent = tmp_path / "Maps, 2024.csv", tmp_path / "a, b.csv"
    there.touch()
    assert Pond.model_validate({"maps": str(there)}).maps == (there,)
    assert Pond.model_validate({"maps": str(absent)}).maps == (tmp_path / "a", Path("b.csv"))


def test_words_of_a_config_are_what_a_shell_would_pass() -> None:
    pond = Pond(maps=(Path("a, b.csv"), Path("c ")), names=("x", "y"), title=" a\tb")
    assert build_command_words(pond)[len(Pond.command) :] == [
        *("--names", "x,y", "--maps", "a, b.csv", "--maps", "c ", "--title", " a\tb")
    ]


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("depth", "1e-3", 0.001),
        ("fish", "7", 7),
        ("kind", "salt", "salt"),
        ("level", "2", 2),
        ("blocks", "1,2, 3", (1, 2, 3)),
        ("blocks", "", ()),
        ("blocks", ["5", 6], (5, 6)),
        ("blocks", 7, (7,)),
        ("corners", "0.25,0.5", (0.25, 0.5)),
        ("names", "a,b", ("a", "b")),
        ("limit", "none", None),
        ("beta", "auto", "auto"),
        ("beta", "0.5", 0.5),
        ("mode", "none", "none"),
        ("folder", "a/b", Path("a/b")),
        ("weights", "none", None),
        ("title", "12", "12"),
        ("deep", "no", False),
    ],
)
def test_a_text_means_what_its_field_is_for(field: str, text: object, value: object) -> None:
    parsed = getattr(Pond.model_validate({field: text}), field)
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_path_starts_at_home_after_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert Pond.model_validate({"folder": "~/x"}).folder == Path("/somewhere/x")
    assert Pond(folder=Path("~/x")).folder == Path("/somewhere/x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("depth", "deep"),
        ("depth", "nan"),
        ("depth", "0"),
        ("depth", True),
        ("fish", True),
        ("fish", "1.5"),
        ("fish", "9" * 5000),
        ("kind", "brackish"),
        ("blocks", "1,x"),
        ("blocks", "1,,2"),
        ("corners", "1"),
        ("corners", 1.0),
        ("blocks", True),
        ("blocks", (1.5,)),
        ("folder", ""),
        ("folder", "a\0b"),
        ("folder", "a\ud800b"),
        ("folder", "~no-such-user-here/x"),
        ("folder", "none/../\0"),
        ("deep", "perhaps"),
        ("title", 12),
        ("temprature", 1),
    ],
)
def test_what_a_field_cannot_be_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        Pond.model_validate({field: value})
    assert field in str(caught.value)


def test_plain_form_keeps_field_order_and_holds_plain_values_only() -> None:
    plain = Pond(blocks=(1, 2), weights=Path("w.pth"), out=Path("runs/x")).to_yaml_dict()
    with pytest.raises(ValidationError):
        Pond().fish = 4
    assert list(plain) == list(Pond.model_fields)
    assert plain["blocks"] == [1, 2]
    assert plain["weights"] == "w.pth"
    assert plain["out"] == "runs/x"
    assert "out" not in Pond().to_yaml_dict(operational=False)


@given(
    depth=st.floats(min_value=0, max_value=100, exclude_min=True, exclude_max=True),
    fish=st.integers(min_value=0, max_value=2**62),
    blocks=st.lists(st.integers(-(2**40), 2**40)),
    title=st.none() | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
    limit=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_config_survives_a_yaml_file(
    tmp_path_factory: pytest.TempPathFactory,
    depth: float,
    fish: int,
    blocks: list[int],
    title: str | None,
    limit: float | None,
) -> None:
    config = Pond(depth=depth, fish=fish, blocks=tuple(blocks), title=title, limit=limit)
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(yaml.safe_dump(config.to_yaml_dict()), encoding="utf-8")
    assert Pond.model_validate(read_yaml(path)) == config


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("depth", "FLOAT"),
        ("fish", "INT"),
        ("kind", "[fresh|salt]"),
        ("blocks", "INT,..."),
        ("corners", "FLOAT,FLOAT"),
        ("limit", "FLOAT"),
        ("beta", "FLOAT|[auto]"),
        ("weights", "PATH"),
        ("title", "TEXT"),
    ],
)
def test_help_names_the_type(name: str, word: str) -> None:
    assert metavar(Pond.model_fields[name].annotation) == word


def test_choices_are_found_beside_none_and_numbers() -> None:
    assert list_choices(Pond.model_fields["mode"].annotation) == ("none", "all")
    assert list_choices(Pond.model_fields["level"].annotation) == ("1", "2")
    assert list_choices(Pond.model_fields["fish"].annotation) == ()
    assert [describe_bounds(Pond.model_fields[name]) for name in ("fish", "title")] == [">= 0", ""]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "none"), (True, "true"), ((1, 2), "1,2"), ("a b", "a b"), (" a", "' a'"), ("", "''"), ("a\nb", r"'a\nb'")],
)
def test_a_value_is_shown_as_it_would_be_typed(value: object, text: str) -> None:
    assert format_value(value) == text
