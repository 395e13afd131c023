"""Every script of benchmarks/ and examples/ can be imported, and parses the command lines that its docstring shows."""

import argparse
import ast
import re
import shlex
from importlib import import_module

import pytest
from tests.pages import ROOT

SCRIPTS = {
    f"benchmarks.{path.stem}" if path.parent.name == "benchmarks" else path.stem: path.read_text()
    for path in sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py")])
    if path.stem != "tour"  # runs when it is imported
}


class FoundError(Exception):
    """Stops a script where it would read its command line; its argument is the parser."""


@pytest.mark.parametrize(("name", "text"), SCRIPTS.items(), ids=SCRIPTS)
def test_the_command_lines_of_a_script_parse(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(parser: argparse.ArgumentParser, argv: object = None) -> None:
        raise FoundError(parser)

    monkeypatch.syspath_prepend(ROOT / "examples")
    if "ArgumentParser(" not in text:
        import_module(name)
        return
    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", stop)
        with pytest.raises(FoundError) as found:
            import_module(name).main()
    shown = (ast.get_docstring(ast.parse(text)) or "").replace("\\\n", "")
    for line in re.findall(r"python (?:-m benchmarks|examples/).*", shown):
        words = shlex.split(re.sub(r"[][]| \.\.\.|``.*", "", line))
        found.value.args[0].parse_args(words[3 if words[1] == "-m" else 2 :])
