"""Where the operator lets jobs read pictures (HEATLENS_JOB_SOURCES), and whether a URL is there.

A URL is taken literally, as fsspec does: nothing in it is percent-encoded.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn
from urllib.parse import unquote

from app.errors import SourceNotAllowed
from app.jobs.names import shown

MAX_CHARACTERS = 2000
"""Length of a source's URL."""
LOCAL = "file"
_SYNONYMS = {"local": LOCAL}


@dataclass(frozen=True)
class Place:
    """What a URL names, in the one way of writing it."""

    scheme: str
    host: str
    parts: tuple[str, ...]

    @property
    def path(self) -> str:
        """The path, from its slash on."""
        return "/" + "/".join(self.parts)

    @property
    def url(self) -> str:
        """The place as a URL."""
        return f"{self.scheme}://{self.host}{self.path}"

    def at(self, *parts: str) -> "Place":
        """Return another place on the same host."""
        return Place(self.scheme, self.host, parts)

    def contains(self, other: "Place") -> bool:
        """Whether a place is this one, or below it."""
        same = (self.scheme, self.host) == (other.scheme, other.host)
        return same and other.parts[: len(self.parts)] == self.parts


class Allowed:
    """The prefixes below which jobs may read."""

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self._prefixes = prefixes
        self.places = tuple(_split(prefix) for prefix in prefixes)

    def parse(self, url: str) -> Place:
        """Return what a URL names. Raises `SourceNotAllowed`, also for what could mean two things."""
        if "://" not in url or not is_plain(url):
            self.refuse(f"A source is a URL of at most {MAX_CHARACTERS} characters, as in file:///data/pictures/*.jpg.")
        place = _split(url)
        if "::" in url.partition("/")[0] or "::" in place.host:
            self.refuse("A source is one URL, and no chain of them.")
        if place.scheme == LOCAL and place.host:
            self.refuse("A source on this machine has three slashes, as in file:///data/pictures.")
        if ".." in unquote(place.path).split("/"):
            self.refuse("A source has no part `..`.")
        if "@" in place.host and all(place.host != prefix.host for prefix in self.places):
            self.refuse("A source has neither user name nor password.")
        self.prefix_of(place)
        return place

    def prefix_of(self, place: Place) -> Place:
        """Return the prefix that a place is below. Raises `SourceNotAllowed`."""
        found = next((prefix for prefix in self.places if prefix.contains(place)), None)
        if found is None:
            self.refuse(f"The source {shown(place.url)[:200]!r} is none that may be read.")
        return found

    def refuse(self, why: str) -> NoReturn:
        """Raise `SourceNotAllowed`, with what is allowed."""
        hint = f"Allowed is what is below {', '.join(self._prefixes)}" if self._prefixes else "Nothing is allowed"
        raise SourceNotAllowed(f"{why} {hint} (HEATLENS_JOB_SOURCES).", choices=list(self._prefixes))


def is_plain(url: str) -> bool:
    """Whether a URL can be stored and shown, and means the same to everybody."""
    return len(url) <= MAX_CHARACTERS and shown(url) == url and "\\" not in url


@lru_cache(maxsize=16)
def allowed(prefixes: tuple[str, ...]) -> Allowed:
    """Return the prefixes of the setting."""
    return Allowed(prefixes)


def _split(url: str) -> Place:
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    parts = (part for part in path.split("/") if part not in ("", "."))
    return Place(_SYNONYMS.get(scheme.lower(), scheme.lower()), host, tuple(parts))
