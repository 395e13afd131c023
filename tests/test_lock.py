"""The lock file has a version and hashes of everything that labelkit depends on."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
        if requirement.name != "labelkit":
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), line
    assert len(re.findall(r"^\S+==.* \\\n    --hash=sha256:", text, re.MULTILINE)) == len(locked)
