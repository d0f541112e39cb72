"""Pictures that jobs read by themselves: patterns of URLs, below the prefixes that the operator allows.

What a URL names is compared with HEATLENS_JOB_SOURCES when it is listed, and again whenever one picture is read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from app.config import Settings
from app.errors import SourceUnreadable
from app.jobs.files import Entry, Files, files_of
from app.jobs.names import is_litter, is_picture, natural, shown
from app.jobs.places import LOCAL, Place, allowed, is_plain
from app.jobs.unpacking import too_large

_Part = Callable[[str], bool]


def _deep(_name: str) -> bool:
    """Stand for `**`: any folder, any number of times."""
    return True


@dataclass(frozen=True)
class Found:
    """A picture of a source: its path below the source's fixed part, and where it is."""

    name: str
    url: str


def find(pattern: str, settings: Settings) -> Iterator[Found]:
    """Return the pictures that a pattern names, in natural order, as they are found.

    In a pattern `*` and `[...]` stand for parts of a name, and `**` for any folders between. Without these it is one
    file, or a folder, which means all pictures in it, at any depth. Hidden files are left out. Raises
    `SourceNotAllowed` at once, and later for links that lead to where nothing is allowed; `SourceUnreadable`.
    """
    within = allowed(settings.job_sources)
    place = within.parse(pattern)
    if place.scheme != LOCAL and ("?" in pattern or "#" in pattern):
        within.refuse("A source has neither query nor fragment.")
    below = len(within.prefix_of(place).parts)
    fixed = next((i for i, part in enumerate(place.parts) if i >= below and _is_magic(part)), len(place.parts))
    return _listed(place, fixed, files_of(place, within))


def read(url: str, settings: Settings) -> bytes:
    """Return one picture that `find` named.

    Raises `SourceNotAllowed` where it is allowed no more, `SourceUnreadable`, and `TooManyBytes` beyond
    HEATLENS_MAX_BODY_BYTES.
    """
    within = allowed(settings.job_sources)
    place = within.parse(url)
    limit = settings.max_body_bytes
    data = files_of(place, within).read(place, limit + 1)
    if len(data) > limit:
        raise too_large(place.parts[-1], limit)
    return data


def _is_magic(part: str) -> bool:
    return "*" in part or "[" in part


def _listed(place: Place, fixed: int, files: Files) -> Iterator[Found]:
    base, parts = place.at(*place.parts[:fixed]), [_matching(part) for part in place.parts[fixed:]]
    if not parts and files.is_file(base):
        yield _found(base, len(base.parts) - 1)
        return
    if not parts or parts[-1] is _deep:
        parts += [_deep, is_picture]
    for found in _walk(files, base, parts):
        yield _found(found, fixed)


def _found(place: Place, fixed: int) -> Found:
    """Return a picture. Raises `SourceUnreadable` for what could not be read again by its URL."""
    if not is_plain(place.url):
        name = shown(place.url)[:200]
        msg = f"{name!r} has a name that is too long, no UTF-8, or with control characters; give it another one."
        raise SourceUnreadable(msg)
    return Found("/".join(place.parts[fixed:]), place.url)


def _matching(part: str) -> _Part:
    if part == "**":
        return _deep
    pattern = part.replace("?", "[?]")  # which is no sign for any letter here: in a URL it would begin a query
    return lambda name: fnmatchcase(name, pattern)


def _walk(files: Files, base: Place, parts: list[_Part]) -> Iterator[Place]:
    """Return the files below `base` whose paths fit the parts, what is in one folder in natural order.

    Beside each folder stands which of the parts its entries may fit: with several `**` that are many at once. A
    folder that is reached again, through a link within it, is passed over.
    """
    stack = [(base, iter(_sorted(files, base)), _closed({0}, parts), files.identity(base))]
    while stack:
        folder, entries, states, _ = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        fitting = _closed(_after(entry.name, states, parts), parts)
        place = folder.at(*folder.parts, entry.name)
        if not entry.is_folder:
            if len(parts) in fitting:
                if entry.is_link:
                    files.identity(place)
                yield place
        elif fitting - {len(parts)}:
            identity = files.identity(place)
            if all(identity != above for *_, above in stack):
                stack.append((place, iter(_sorted(files, place)), fitting, identity))


def _sorted(files: Files, folder: Place) -> list[Entry]:
    entries = [entry for entry in files.entries(folder) if not is_litter(entry.name)]
    return sorted(entries, key=lambda entry: natural(entry.name))


def _closed(states: set[int], parts: list[_Part]) -> set[int]:
    """Add the states that are reached where `**` stands for nothing."""
    reached = set(states)
    for state in states:
        following = state
        while following < len(parts) and parts[following] is _deep:
            following += 1
            reached.add(following)
    return reached


def _after(name: str, states: set[int], parts: list[_Part]) -> set[int]:
    """Return the states behind a name, which may be a folder's or a file's."""
    fitting = (state for state in states if state < len(parts) and parts[state](name))
    return {state if parts[state] is _deep else state + 1 for state in fitting}
