"""The lock file has a version and hashes of everything that labelkit depends on."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests import audit
from tests.audit import told

ROOT = Path(__file__).parents[1]


def test_the_lock_has_every_dependency_in_a_version_that_is_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "requirements.lock").read_text()
    locked = {
        canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    }
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for line in wanted:
        requirement = Requirement(line)
        if requirement.name != project["name"]:
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), line
    assert len(re.findall(r"^\S+==.* \\\n    --hash=sha256:", text, re.MULTILINE)) == len(locked)


def test_what_texts_say_to_install_is_in_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    required = {canonicalize_name(Requirement(line).name) for lines in extras.values() for line in lines}
    paths = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("labelkit/**/*.py")]
    said = [(path, line) for path in paths for line in re.findall(r"pip install ([^`\n]+)", path.read_text())]

    editable = [found for _, line in said for found in re.findall(r'^-e "\.\[([a-z,]+)\]"', line)]
    named = [(path, name) for path, line in said for name in re.findall(r"^[a-z][\w-]*(?: [a-z][\w-]+)*", line)]

    assert {extra for found in editable for extra in found.split(",")} <= set(extras)
    assert {canonicalize_name(name) for _, names in named for name in names.split()} - {"or"} <= required
    assert len(editable) > 5
    assert len(named) > 5


def _package(name: str, *faults: str) -> dict[str, object]:
    return {"name": name, "version": "1.0", "vulns": [{"id": fault, "fix_versions": ["1.1"]} for fault in faults]}


def test_the_audit_fails_for_a_known_weakness_alone() -> None:
    skipped: dict[str, object] = {"name": "b", "skip_reason": "not found on the index"}
    assert told({"dependencies": [_package("a"), skipped]}) == (
        "audit: 1 of 2 packages audited, 0 with known weaknesses",
        0,
    )
    assert told({"dependencies": [skipped]}) == (
        "audit: the index answered for none of 1 packages; nothing was audited",
        0,
    )
    text, code = told({"dependencies": [_package("a", "CVE-1", "CVE-2"), skipped]})
    assert text.splitlines()[1:] == ["  a 1.0: CVE-1, mended in 1.1", "  a 1.0: CVE-2, mended in 1.1"]
    assert code == 1


def test_an_index_that_does_not_answer_is_told_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('ConnectionError: no such host')"]
    monkeypatch.setattr(audit, "COMMAND", failing)
    assert audit.main() == 0
    assert "does not answer (ConnectionError: no such host); nothing was audited" in capsys.readouterr().out
