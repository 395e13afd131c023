"""Ask the index which of the locked versions have known weaknesses: ``python -m tests.audit``, in ``make check``.

pip-audit says "No known vulnerabilities found" also where the index answers nothing, as one without network or a local
mirror does; here that is told apart. The exit code is 1 when a version has a known weakness.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[1] / "requirements.lock"
COMMAND = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
SECONDS = 300


def told(answer: dict[str, Any]) -> tuple[str, int]:
    """Return what to say of pip-audit's answer, and the exit code."""
    found = answer["dependencies"]
    asked = [package for package in found if "skip_reason" not in package]
    weak = [package for package in asked if package["vulns"]]
    if not asked:
        return f"audit: the index answered for none of {len(found)} packages; nothing was audited", 0
    lines = [f"audit: {len(asked)} of {len(found)} packages audited, {len(weak)} with known weaknesses"]
    for package in weak:
        for fault in package["vulns"]:
            fixed = ", ".join(fault.get("fix_versions", [])) or "no version yet"
            lines.append(f"  {package['name']} {package['version']}: {fault['id']}, mended in {fixed}")
    return "\n".join(lines), 1 if weak else 0


def main() -> int:
    """Run pip-audit over the lock file, and say what it found."""
    try:
        done = subprocess.run(
            [*COMMAND, "--format", "json", "--requirement", str(LOCK)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        # without an answer there is no JSON; its last line says why
        said = "no answer in time" if isinstance(error, subprocess.TimeoutExpired) else _last_line(done.stderr)
        sys.stdout.write(f"audit: the index does not answer ({said}); nothing was audited\n")
        return 0
    text, code = told(answer)
    sys.stdout.write(text + "\n")
    return code


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["pip-audit said nothing"])[-1][:200]


if __name__ == "__main__":
    raise SystemExit(main())
