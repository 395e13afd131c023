"""What the README shows: its blocks of code and the command lines in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def code_blocks(language: str) -> list[str]:
    """Blocks of the README in a language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", README, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found]


def command_lines(text: str) -> list[list[str]]:
    """Words after ``labelkit`` of every line that starts with it; comments and continued lines understood."""
    lines = text.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines if line.strip().startswith("labelkit ")]
    return [line[1:] for line in words]
