"""An option is declared once: classes that share it name a mixin, or give a field of a parent another default."""

from collections import defaultdict
from importlib import import_module
from inspect import get_annotations
from pkgutil import walk_packages

import labelkit.options
import pytest
from labelkit.options.base import BaseConfig, override_default, read_field_extra
from pydantic import Field
from pydantic.fields import FieldInfo


class _Parent(BaseConfig):
    lr: float = Field(0.1, gt=0, le=1, description="Learning rate.", json_schema_extra={"panel": "Optimization"})


def test_no_option_is_declared_twice_with_one_meaning() -> None:
    declared: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for config_class in _config_classes():
        for name in get_annotations(config_class):
            field = config_class.model_fields.get(name)
            if field is not None and not _is_inherited(config_class, name, field):
                meaning = (field.annotation, field.default, field.description, read_field_extra(field, "panel"))
                declared[name, *map(str, meaning)].append(config_class.__name__)

    repeated = {name: places for (name, *_), places in declared.items() if len(places) > 1}

    assert sum(map(len, declared.values())) > 400
    assert repeated == {}


def _config_classes() -> list[type[BaseConfig]]:
    for module in walk_packages(labelkit.__path__, "labelkit."):
        if module.name.endswith("options") or module.name.startswith("labelkit.options."):
            import_module(module.name)
    found = {BaseConfig}
    waiting = [BaseConfig]
    while waiting:
        new = [one for one in waiting.pop().__subclasses__() if one.__module__.startswith("labelkit.")]
        waiting += [one for one in new if one not in found]
        found.update(new)
    return sorted(found, key=lambda one: one.__name__)


def _is_inherited(config_class: type[BaseConfig], name: str, field: FieldInfo) -> bool:
    """Return whether a parent has the field with the same text, so that only the default is another."""
    parents = [one for one in config_class.__mro__[1:] if issubclass(one, BaseConfig)]
    return any(one.model_fields[name].description == field.description for one in parents if name in one.model_fields)


def test_another_default_keeps_text_bounds_and_panel() -> None:
    class Method(_Parent):
        lr: float = override_default(_Parent, "lr", 0.5)

    field = Method.model_fields["lr"]

    assert (Method().lr, _Parent().lr) == (0.5, 0.1)
    assert field.description == "Learning rate."
    assert field.json_schema_extra == {"panel": "Optimization"}
    with pytest.raises(ValueError, match="less than or equal to 1"):
        Method(lr=2.0)


def test_another_default_of_a_field_with_a_pattern_is_refused() -> None:
    class Named(BaseConfig):
        name: str = Field("a", pattern="^[a-z]$")

    with pytest.raises(ValueError, match="name of Named"):
        override_default(Named, "name", "b")
