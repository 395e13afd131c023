"""Base class of all option classes: frozen, and strict about unknown keys; all problems are reported in one error.

A value has the same meaning in Python (typed), in YAML and in the shell (both as text): ``"1,2,3"`` for a tuple,
``"none"`` if None is allowed, ``"~/data"`` for a path.
"""

import difflib
import os
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from labelkit.errors import ConfigError


def combine_errors(faults: Iterable[ConfigError]) -> ConfigError:
    """Combine errors into one that lists each distinct problem on its own line."""
    first, *rest = {str(fault): fault for fault in faults}.values()
    if not rest:
        return first
    lines = [str(first).removeprefix(f"{first.where}: "), *map(str, rest)]
    return ConfigError(first.where, "\n".join(lines))


_NONE_TEXTS = frozenset({"none", "null"})
_MAX_SHOWN = 60
_FIELD_PROPERTIES = ("preset", "short", "aliases", "makes", "before", "positional")
_LIMIT_SYMBOLS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "a multiple of"}


class BaseConfig(BaseModel):
    """Base class of all option classes; the fields define shell options, help, preset keys and saved configs.

    Fields are flat: numbers, strings, paths, choices (``Literal``), switches (``bool``), tuples of these, or a union
    of one of these and ``None``. In addition to a default, description and bounds, `field_factory` takes the following
    properties of a field, which are stored in its ``json_schema_extra``:

    - ``"preset": False``: not allowed in presets and config files (``out``, ``resume``, ...);
    - ``"panel": "Data"``: the heading of the option in ``--help``;
    - ``"short": "-k"``: a one-letter option in addition to the long one;
    - ``"before": 1.0``: value that reproduces runs from before the option existed, so that they can be resumed;
    - ``"positional": True``: a positional argument, passed without a flag;
    - ``"makes": "csv"``: the path of an output of this kind; see ``labelkit.commands.common.outputs``;
    - ``"aliases": ["--store"]``: equivalent shell options; in files, the key is always the field name.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        defer_build=True,  # --help needs only the fields
        protected_namespaces=(),
    )

    command: ClassVar[tuple[str, ...]] = ()
    """The words after ``labelkit``, e.g. ``("train", "flipclass")``."""

    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Options that require another option: by name, the other option and its values (none: any true value).
    Rules of base classes also apply; an empty tuple removes such a rule. See `explain_no_effect`."""

    @field_validator("*", mode="before")
    @classmethod
    def _parse_text(cls, value: object, info: ValidationInfo) -> object:
        if info.field_name is None:
            return value
        return parse_value(cls.model_fields[info.field_name].annotation, value)

    def to_yaml_dict(self, *, operational: bool = True) -> dict[str, object]:
        """Return the config as a dictionary of plain YAML values, in field order.

        Values are None, bool, int, float, str or lists. The config can be restored from the dictionary with
        ``model_validate``, even after a YAML round trip.

        Args:
            operational: whether to include fields that presets and config files may not set.
        """
        excluded = {
            name for name, field in type(self).model_fields.items() if not (operational or is_allowed_in_presets(field))
        }
        return self.model_dump(mode="json", exclude=excluded)


def explain_no_effect(config: BaseConfig, name: str) -> str:
    """Explain why an option has no effect, such as ``without --loss moco``; return an empty string if it has one."""
    rules = (vars(base).get("acts_with", {}) for base in type(config).__mro__)
    other, *values = next((table[name] for table in rules if name in table), ()) or ("",)
    value = getattr(config, other, None)
    is_met = value in values if values else value
    if not other or is_met or getattr(config, name) == type(config).model_fields[name].default:
        return ""
    if values == [None]:
        return f"with {to_flag(other)}"
    if isinstance(value, bool) and value != type(config).model_fields[other].default:
        return f"with {to_flag(other if value else f'no_{other}')}"
    if isinstance(value, bool):
        return f"without {to_flag(f'no_{other}' if value else other)}"
    if not values:
        return f"with {to_flag(other)} {format_value(value)}"
    return f"without {to_flag(other)} {' or '.join(map(format_value, values))}"


@cache
def list_retired_options(config_class: type[BaseConfig]) -> dict[str, object]:
    """List options that a class or its bases had in earlier versions, with their now constant values (``*``: any)."""
    import yaml  # not needed for --help

    table = yaml.safe_load(Path(__file__).with_name("retired.yaml").read_text(encoding="utf-8"))
    found: dict[str, object] = {}
    for base in reversed(config_class.__mro__):
        found |= table.get(base.__name__, {})
    return {name: value for name, value in found.items() if name not in config_class.model_fields}


def equals_constant(constant: object, value: object) -> bool:
    """Return whether the value of a retired option, which may be text, equals the value that is now constant."""
    return constant == "*" or format_value(value) == format_value(constant)


def field_factory(name: str | None, *, preset: bool = True) -> Callable[..., Any]:
    """Return a factory for the fields in one panel of ``--help``, which is called with a default and a description.

    It accepts arguments of `Field` and the properties in `BaseConfig`: ``_LOSS(0.5, "Weight.", ge=0, before=1.0)``.

    Args:
        name: heading of the panel; None: the general one.
        preset: whether presets and config files may set the fields.
    """

    def field(default: Any, description: str, **properties: Any) -> Any:
        extra = {key: properties.pop(key) for key in _FIELD_PROPERTIES if key in properties}
        return Field(
            default, description=description, json_schema_extra={"panel": name, "preset": preset, **extra}, **properties
        )

    return field


DATA, IMAGES, MODEL, MONITOR, PATCHES, RUN = map(
    field_factory, ("Data", "Images", "Model", "Monitor", "Patches", "Run")
)
LABELS, OUTPUT, RUN_ONLY, STORE = (field_factory(name, preset=False) for name in ("Labels", "Output", "Run", "Store"))
OPTION = field_factory(None)
"""Field factories for the panels that several commands have, and for options without a panel of their own."""


def override_default(parent: type[BaseConfig], name: str, default: object) -> Any:
    """Return a copy of a parent's field with a different default but the same description, bounds and panel.

    Raises:
        ValueError: the field has constraints other than numeric bounds.
    """
    field = parent.model_fields[name]
    limits = _limits(field)
    if len(limits) != len(field.metadata):
        raise ValueError(f"{name} of {parent.__name__} has constraints that cannot be copied: {field.metadata}")
    return Field(default, description=field.description, json_schema_extra=field.json_schema_extra, **limits)


def read_field_extra(field: FieldInfo, key: str) -> object:
    """Return the value of a key in a field's ``json_schema_extra``, or None."""
    extra = field.json_schema_extra
    return extra.get(key) if isinstance(extra, dict) else None


def list_legacy_defaults(config_class: type[BaseConfig]) -> dict[str, object]:
    """List options added after version 0.1.0, with the values that reproduce that version."""
    found = {name: read_field_extra(field, "before") for name, field in config_class.model_fields.items()}
    return {name: value for name, value in found.items() if value is not None}


def list_aliases(field: FieldInfo) -> tuple[str, ...]:
    """Return the alternative shell options of a field, such as ``--store``."""
    found = read_field_extra(field, "aliases")
    return tuple(str(alias) for alias in found) if isinstance(found, list) else ()


def is_allowed_in_presets(field: FieldInfo) -> bool:
    """Return whether presets and config files may set the field."""
    return read_field_extra(field, "preset") is not False


def list_choices(annotation: object) -> tuple[str, ...]:
    """List the choices of a ``Literal`` as strings, even inside a tuple or a union; () for other types."""
    texts: list[str] = []
    for member in _members(annotation):
        if get_origin(member) is Literal:
            texts += [str(choice) for choice in get_args(member)]
        elif get_origin(member) is tuple:
            texts += list_choices(get_args(member)[0])
    return tuple(texts)


def metavar(annotation: object) -> str:
    """Return the placeholder for a value in the help, such as INT, TEXT, PATH, ``INT,INT,...`` or ``[a|b]``."""
    words = []
    for member in _members(annotation):
        if get_origin(member) is Literal:
            words.append("[" + "|".join(str(choice) for choice in get_args(member)) + "]")
        elif get_origin(member) is tuple:
            items = get_args(member)
            if items[-1] is Ellipsis:
                words.append(f"{metavar(items[0])},...")
            else:
                words.append(",".join(metavar(item) for item in items))
        elif member is not type(None):
            names: dict[object, str] = {int: "INT", float: "FLOAT", Path: "PATH", bool: "BOOL"}
            words.append(names.get(member, "TEXT"))
    return "|".join(dict.fromkeys(words))


def describe_bounds(field: FieldInfo) -> str:
    """Return the bounds of a numeric field as text, such as ``"> 0, <= 1"``, or an empty string if it has none."""
    return ", ".join(f"{_LIMIT_SYMBOLS[name]} {limit}" for name, limit in _limits(field).items())


def to_flag(name: str) -> str:
    """Return the shell option of a field, such as ``--num-clusters`` for ``num_clusters``."""
    # the trailing underscore of field names such as from_
    return "--" + name.rstrip("_").replace("_", "-")


def command_line_name(name: str, field: FieldInfo) -> str:
    """Return a field's name on the command line: its option, or if positional its name in capitals (``PHOTOS``)."""
    return name.upper() if read_field_extra(field, "positional") else to_flag(name)


def closest_name(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a word, or None if no name is similar enough."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def format_value(value: object, *, max_length: int | None = _MAX_SHOWN) -> str:
    """Format a value as a user would type it, such as ``1,2`` for a tuple and ``none`` for None.

    Args:
        value: None, a bool, number, string or path, or a list of these.
        max_length: maximum number of characters, beyond which the text is truncated; None: unlimited.
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        text = ",".join(format_value(item, max_length=max_length) for item in value)
    else:
        text = str(value)
    if max_length is not None and len(text) > max_length:
        text = text[: max_length - 3] + "..."
    return text if text and text.isprintable() and text == text.strip() else repr(text)


def build_command_words(config: BaseConfig) -> list[str]:
    """Build the words of the command line for a config, without ``labelkit`` and options at their defaults."""
    words = list(config.command)
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if not field.is_required() and value == field.get_default(call_default_factory=True):
            continue
        if isinstance(value, bool):
            words.append(to_flag(name) if value else f"--no-{to_flag(name)[2:]}")
            continue
        place = [] if read_field_extra(field, "positional") else [to_flag(name)]
        each = value if isinstance(value, tuple) and get_item_type(field.annotation) is Path else [value]
        for one in each:
            words += [*place, str(one) if isinstance(one, str | Path) else format_value(one, max_length=None)]
    return words


def validation_message(error: Mapping[str, Any]) -> str:
    """Return the message for an invalid value from pydantic or from a validator."""
    context = error.get("ctx", {})
    message = str(context["error"]) if "error" in context else str(error["msg"])
    message = message.partition(", unable to parse")[0]
    return message[:1].lower() + message[1:] if message.startswith("Input") else message


def _limits(field: FieldInfo) -> dict[str, Any]:
    found = ((name, getattr(limit, name, None)) for limit in field.metadata for name in _LIMIT_SYMBOLS)
    return {name: limit for name, limit in found if limit is not None}


def _members(annotation: object) -> tuple[object, ...]:
    """Return the members of a union, including nested ones, or only the type itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return (annotation,)


def parse_value(annotation: object, value: object) -> object:
    """Convert text from the shell or YAML to the annotated type; return typed values unchanged.

    Raises:
        ValueError: the text is not valid for the type.
    """
    members = _members(annotation)
    is_number = int in members or float in members
    kinds: tuple[object, ...] = next((get_args(member) for member in members if get_origin(member) is tuple), ())
    if isinstance(value, str):
        text = value.strip()
        if type(None) in members and text.lower() in _NONE_TEXTS and text not in list_choices(annotation):
            return None
        if not text and is_number:
            raise ValueError("must not be empty")
        if kinds:
            value = split_list(text, kinds[0])
    elif isinstance(value, bool) and bool not in members and is_number:
        raise ValueError("must be a number")  # True is 1 in Python, but not in a config
    elif isinstance(value, int | float | Path) and not isinstance(value, bool) and type(value) not in members:
        value = (value,) if kinds[-1:] == (Ellipsis,) else value  # as with text, a single value is a list
    if isinstance(value, list | tuple) and kinds:
        kinds = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        if len(kinds) != len(value):
            raise ValueError(f"must have {len(kinds)} values, got {len(value)}")
        return tuple(map(parse_value, kinds, value))
    if Path in members and isinstance(value, str | Path):
        return _parse_path(str(value))
    # Numeric choices, such as Literal[1, 2], arrive as text.
    literals = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    return next((choice for choice in literals if isinstance(value, str) and str(choice) == value), value)


def get_item_type(annotation: object) -> object | None:
    """Return the item type of a tuple of variable length, such as ``Path``; ``None`` for other types."""
    found = (get_args(member) for member in _members(annotation) if get_origin(member) is tuple)
    return next((kinds[0] for kinds in found if kinds[-1] is Ellipsis), None)


def split_list(text: str, item_type: object) -> list[str]:
    """Split text at commas, unless it is an existing path."""
    if not text:
        return []
    if item_type is Path and os.path.exists(text):  # noqa: PTH110  # Path.exists raises for a long text
        return [text]
    return [part.strip() for part in text.split(",")]


def _parse_path(text: str) -> Path:
    if not text.strip():
        raise ValueError("must not be empty")
    if "\0" in text:
        raise ValueError("must not contain a null character")
    os.fsencode(text)  # raises ValueError for characters that file names cannot contain
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError("home folder not found") from error
