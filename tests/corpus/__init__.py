"""Hostile files, made by `generate.py`, and what the service has to answer to each."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent / "files"
MANIFEST = Path(__file__).parent / "manifest.json"

Kind = Literal["picture", "archive", "json"]


@dataclass(frozen=True)
class Hostile:
    """A file, and the one answer that is right.

    A "picture" goes to `/v1/explain` as it is, a "json" too, an "archive" to `/v1/jobs`. `code` is None where the file
    is odd, and yet one that has to be taken. `heavy` files are allowed to take much memory for a moment.
    """

    name: str
    kind: Kind
    status: int
    code: str | None
    why: str
    heavy: bool = False

    @property
    def data(self) -> bytes:
        return (FOLDER / self.name).read_bytes()


def corpus(kind: Kind | None = None) -> list[Hostile]:
    """Return all files of a kind, or all there are."""
    files = [Hostile(**row) for row in json.loads(MANIFEST.read_text())]
    return [file for file in files if kind in (None, file.kind)]
