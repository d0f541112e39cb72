"""Names that came from outside: of uploaded pictures, of the members of archives, of files in a source."""

import re

MAX_CHARACTERS = 1024
"""Length of a name; longer ones are refused."""

PICTURE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".npy"}
)
"""Ends of the names of those files in a folder that are pictures."""

_LITTER = frozenset({"__macosx", "thumbs.db", "desktop.ini"})
"""What systems leave in folders, and beside them all that begins with a dot."""

_NUMBERS = re.compile(r"([0-9]+)")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|clock\$|(com|lpt)[0-9¹²³]) *(\.|$)", re.IGNORECASE)
"""Names that are no files on Windows, whatever follows their first dot."""


def shown(name: str) -> str:
    """Return a name that databases, terminals and JSON parsers take, and that reads as it is written.

    It has no control characters, and none that turn the text around, by which `gnp.exe` can look like `exe.png`.
    """
    return _UNSEEN.sub("\ufffd", name)


def portable(part: str) -> str:
    """Return a part of a path that Windows takes for no other file than it names elsewhere.

    Changed are the colon, which begins a hidden stream there, spaces and dots at the end, which are left off, and the
    names of devices. Two parts may become the same.
    """
    plain = shown(part).replace(":", "_").rstrip(" .") or "_"
    return f"_{plain}" if _DEVICES.match(plain) else plain


def is_litter(path: str) -> bool:
    """Whether a file is hidden, or one that a system left: nobody who packs a folder means it."""
    return any(part.startswith(".") or part.lower() in _LITTER for part in path.split("/"))


def is_picture(path: str) -> bool:
    """Whether a file's name ends like a picture's."""
    stem, dot, suffix = path.rpartition(".")
    return bool(stem) and dot + suffix.lower() in PICTURE_SUFFIXES


def natural(name: str) -> tuple[list[tuple[int, int | str]], str]:
    """Return what sorts names as people do: `2.jpg` before `10.jpg`, whatever the case."""
    parts = [part for part in _NUMBERS.split(name) if part]
    return [(0, int(part)) if _NUMBERS.fullmatch(part) else (1, part.casefold()) for part in parts], name
