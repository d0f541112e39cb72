"""How a hostile file is told of while it is made."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.corpus import Hostile, Kind


@dataclass(frozen=True)
class Made:
    """A file with its contents."""

    about: Hostile
    data: bytes


class Maker:
    """Tells of files of one kind."""

    def __init__(self, kind: Kind, success: int = 200) -> None:
        self._kind, self._success = kind, success

    def taken(self, name: str, data: bytes, why: str, *, heavy: bool = False) -> Made:
        """A file that is odd, and has to be taken all the same."""
        return Made(Hostile(name, self._kind, self._success, None, why, heavy), data)

    def refusing(self, status: int, code: str) -> Callable[[str, bytes, str], Made]:
        """Return what tells of files that get this error."""
        return lambda name, data, why: Made(Hostile(name, self._kind, status, code, why), data)
