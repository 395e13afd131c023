"""A griffe extension: what our docstrings write as reStructuredText becomes Markdown and MathML."""

import re
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([^`]+)`")
_INLINE = re.compile(r":math:`([^`]+)`")
# the formula begins in this line or in the next; its other lines stand deeper
_DISPLAYED = re.compile(r"^( *)\.\. math::(.*(?:\n\1 +.+)*)$", re.MULTILINE)


class Roles(Extension):
    """Turn roles into code and formulas into MathML, which browsers draw by themselves."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """Return a docstring without reStructuredText."""
    words = _ROLE.sub(r"`\1`", docstring).replace(r"\ :sup:`+`", "⁺")
    words = _INLINE.sub(lambda found: convert(found[1]), words)
    return _DISPLAYED.sub(_displayed, words)


def _displayed(found: re.Match[str]) -> str:
    """Return one block per line of a formula; ``&`` only says where lines are aligned."""
    lines = " ".join(found[2].split()).split(r"\\")
    return "\n\n".join(found[1] + convert(line.replace("&", "").strip(), display="block") for line in lines)
