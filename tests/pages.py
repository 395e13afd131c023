"""What people read, README and docs: their blocks of code, the command lines in them, and which page goes first."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = "README.md"
_FILES = [ROOT / README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in _FILES}
"""Text of each page that is written by hand, by its path."""


def code_blocks(page: str, language: str) -> list[str]:
    """Blocks of a page in a language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found]


def command_lines(page: str) -> list[list[str]]:
    """Words of the lines in bash blocks of a page; comments and continued lines understood."""
    lines = [line for block in code_blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def page_before(page: str) -> str | None:
    """The page that a page goes on from, by its line ``**Before this page:** [title](path)``; None: from nothing."""
    named = re.search(r"^\*\*Before this page:\*\* \[[^]]*\]\(([^)#]+)", PAGES[page], flags=re.MULTILINE)
    return (ROOT / page).parent.joinpath(named[1]).resolve().relative_to(ROOT).as_posix() if named else None
