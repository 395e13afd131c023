"""Whatever a config file or a setting holds, the outcome is a config or an explanation."""

import string
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from labelkit.commands.cluster.options import SinkhornConfig
from labelkit.commands.evaluate.options import EvaluateRetrievalConfig
from labelkit.commands.retrieve.options import RetrieveConfig
from labelkit.errors import ConfigError
from labelkit.methods.discovery.options import FlipClassConfig
from labelkit.options.base import BaseConfig
from labelkit.options.presets import read_yaml, resolve_config
from tests.fuzzing import ends_well, fuzzed

CLASSES: list[type[BaseConfig]] = [FlipClassConfig, SinkhornConfig, RetrieveConfig, EvaluateRetrievalConfig]
KEYS = sorted({name for config in CLASSES for name in config.model_fields})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**300),
    st.floats(),
    st.text(max_size=30),
    st.dates(),
    st.binary(max_size=10),
    st.sampled_from(["1e400", "0x" + "f" * 400, "9" * 5000, "~nobody/x", "\0", "1_000", "none", "2026-13-45", "<<"]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SCALARS, inner, max_size=3), max_leaves=8
)
MAPPINGS = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=12), VALUES, max_size=6)
SIGNS = [
    *": - & * ! ? [ ] { } , # | > @ ` ' % ~ <<: --- ... &a *a !! !!binary !!set !!map !!python/object:os.system".split()
]
WORDS = st.lists(
    st.sampled_from(
        [*KEYS[:20], *SIGNS, '"', ": ", "- ", "\n", "\n  ", "\t", " ", "|\n", "%YAML 9\n", "---\n", "\u2028"]
    )
    | st.text(alphabet=string.printable, max_size=4),
    max_size=40,
).map("".join)
DEEP = st.tuples(st.sampled_from(["[", "{a: ", "- ", "a: ["]), st.integers(1, 300)).map(lambda pair: pair[0] * pair[1])
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [*{old},*{old},*{old}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def reads_or_explains(path: Path) -> None:
    with suppress(ConfigError):
        read_yaml(path)
    for config_class in CLASSES:
        with suppress(ConfigError):
            resolve_config(config_class, config_file=path, preset="none")


@pytest.mark.slow
@fuzzed(quick=40, slow=5000)
def test_a_file_of_any_text_is_read_or_explained(examples: settings, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"

    @examples
    @given(WORDS | DEEP | MAPPINGS.map(lambda values: yaml.safe_dump(values, allow_unicode=True)))
    @example(LAUGHS)
    @example("a: !!float " + "9" * 5000)
    @example("lr: !!int 0b" + "1" * 60_000)
    def check(text: str) -> None:
        path.write_text(text, encoding="utf-8", errors="replace", newline="")
        reads_or_explains(path)

    check()


@fuzzed(quick=15, slow=2000)
def test_a_file_of_any_bytes_is_read_or_explained(examples: settings, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"

    @examples
    @given(st.binary(max_size=200), st.sampled_from([b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\0\0\xfe\xff", b"lr: 1\n"]))
    def check(content: bytes, start: bytes) -> None:
        path.write_bytes(start + content)
        reads_or_explains(path)

    check()


@fuzzed(quick=12, slow=1000)
def test_any_setting_is_taken_or_explained(examples: settings) -> None:
    names = [*SinkhornConfig.model_fields, "", "=", "command", "model_config", "__class__", "max-memory"]
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(lambda text: "\0" not in text)

    @examples
    @given(st.sampled_from(names) | texts, texts | st.sampled_from(["9" * 5000, "1e999", "nan", "-0", "1,2", "none"]))
    def check(key: str, value: str) -> None:
        ends_well("config", "cluster", "sinkhorn", "--set", f"{key}={value}")

    check()
