"""The options that commands share, and those of an explanation as the commands take them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from app.cli.console import fail

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def options_of(given: Mapping[str, Any], pairs: Sequence[str]) -> dict[str, Any]:
    """Return what was given on the command line, unchecked; `pairs` are the NAME=VALUE of `--set`."""
    for pair in pairs:
        if "=" not in pair:
            fail(f"--set {pair!r} is not NAME=VALUE.", code=2)
    options = {name: _from_text(name, value) for name, value in given.items() if value is not None}
    return options | dict(pair.split("=", 1) for pair in pairs)


def _from_text(name: str, value: Any) -> Any:
    from app.schemas.checking import from_text

    if isinstance(value, list):
        return [_from_text(name, item) for item in value]
    return from_text(name, value) if isinstance(value, str) else value
