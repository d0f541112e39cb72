"""What holds for every archive, of whatever kind: what its members may be called, and how much may come out of it."""

import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from app.errors import ArchiveTooLarge, BadArchive, TooManyItems
from app.imaging.errors import EmptyImage, TooManyBytes
from app.jobs.names import MAX_CHARACTERS, is_litter, portable, shown

CHUNK_BYTES = 2**16
_SMALL_BYTES = 8 * 2**20
"""What any archive may unpack to: the ratio says little of a few blank pictures."""
_DRIVE = re.compile(r"[A-Za-z]:/")
_FAULTS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,  # gzip and bz2 say so of damage
    ValueError,  # numbers and names that are none, in headers
    NotImplementedError,  # zip's rarer features
    RecursionError,  # tar headers that announce further headers
)
"""What the standard library says of damaged archives. `ServiceError` is none of these, and passes."""
_MAGICS: dict[str, bytes | tuple[bytes, ...]] = {
    "zip": (b"PK\x03\x04", b"PK\x05\x06"),
    "gzip": b"\x1f\x8b",
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\x00",
    "zstd": b"\x28\xb5\x2f\xfd",
    "7z": b"7z\xbc\xaf\x27\x1c",
    "rar": b"Rar!\x1a\x07",
}


@dataclass(frozen=True)
class ArchiveLimits:
    """The values come from the settings named beside them."""

    items: int  # HEATLENS_MAX_JOB_ITEMS
    bytes: int  # HEATLENS_MAX_ARCHIVE_BYTES
    ratio: float  # HEATLENS_MAX_ARCHIVE_RATIO
    picture_bytes: int  # HEATLENS_MAX_BODY_BYTES

    @property
    def entries(self) -> int:
        """Entries that are read at all: macOS doubles each, and there are folders."""
        return 2 * self.items + 1000


@dataclass(frozen=True)
class Member:
    """A file in an archive. `data` is to be read before the next member is asked for."""

    name: str
    data: Iterator[bytes]


class Purse:
    """What may still come out of an archive."""

    def __init__(self, packed_bytes: int, limits: ArchiveLimits) -> None:
        self._limits = limits
        self._by_ratio = max(_SMALL_BYTES, packed_bytes * limits.ratio)
        self._spent = 0

    def spend(self, size: int) -> None:
        """Count what came out; raises `ArchiveTooLarge`."""
        self._spent += size
        if self._spent > self._limits.bytes:
            limit = self._limits.bytes
            msg = f"The archive unpacks to more than {limit} bytes (HEATLENS_MAX_ARCHIVE_BYTES)."
            raise ArchiveTooLarge(msg, limit=limit, setting="HEATLENS_MAX_ARCHIVE_BYTES")
        if self._spent > self._by_ratio:
            ratio = self._limits.ratio
            msg = f"The archive unpacks to more than {ratio:g} times its size (HEATLENS_MAX_ARCHIVE_RATIO)."
            raise ArchiveTooLarge(msg, limit=ratio, setting="HEATLENS_MAX_ARCHIVE_RATIO")


def kind_of(head: bytes) -> str | None:
    """Name the kind of an archive by its first bytes; None: it is none."""
    for kind, magics in _MAGICS.items():
        if head.startswith(magics):
            return kind
    return "tar" if _is_tar(head) else None


def _is_tar(head: bytes) -> bool:
    """Whether this begins with a tar's header: it has a checksum."""
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return False
    return True


def wanted(name: str) -> str | None:
    """Return the name of an entry as an item's, `portable`; None where it is left out. Raises `BadArchive`.

    What leads elsewhere is refused, since nobody packs it by accident. `12:30.png` or `aux.jpg` are honest names where
    they were given, so they are changed, whatever they would mean where results are written.
    """
    if len(name) > MAX_CHARACTERS:
        refuse(f"a name of {len(name)} characters; at most {MAX_CHARACTERS} are taken")
    if "\x00" in name or "\\" in name:
        refuse(f"the name {quoted(name)}, with a character that means different things to different systems")
    if name.startswith("/") or _DRIVE.match(name):
        refuse(f"the absolute name {quoted(name)}")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        refuse(f"the name {quoted(name)}, which leads out of it")
    path = "/".join(map(portable, parts))
    return None if not path or is_litter(path) else path


def quoted(name: str) -> str:
    """Return a name for an error's text."""
    return repr(shown(name)[:200])


def refuse(what: str) -> NoReturn:
    """Raise `BadArchive`."""
    raise BadArchive(f"The archive has {what}; nothing of it was taken.")


def data_of(name: str, read: Callable[[int], bytes], limits: ArchiveLimits) -> Iterator[bytes]:
    """Return the bytes of a member, if it is no archive itself and not too large."""
    size = 0
    while chunk := read(CHUNK_BYTES):
        if size == 0 and kind_of(chunk):
            refuse(f"another archive in it, {quoted(name)}; unpack that one first")
        size += len(chunk)
        if size > limits.picture_bytes:
            raise too_large(name, limits.picture_bytes)
        yield chunk


@contextmanager
def damage(where: str) -> Iterator[None]:
    """Say of whatever the standard library stumbles over that the archive is damaged."""
    try:
        yield
    except _FAULTS as error:
        raise BadArchive(f"The archive cannot be read: it is damaged {where}; nothing of it was taken.") from error


def too_large(name: str, limit: int) -> TooManyBytes:
    """Return the error of one picture among many that has too many bytes."""
    msg = f"The picture {quoted(name)} has more than {limit} bytes (HEATLENS_MAX_BODY_BYTES)."
    return TooManyBytes(msg, limit=limit, setting="HEATLENS_MAX_BODY_BYTES", name=shown(name)[:200])


def empty(name: str) -> EmptyImage:
    """Return the error of one picture among many that has no bytes."""
    return EmptyImage(f"The picture {quoted(name)} is empty.", name=shown(name)[:200])


def too_many(limit: int) -> TooManyItems:
    """Return the error of a job with too many pictures."""
    msg = f"The job has more pictures than the limit of {limit} (HEATLENS_MAX_JOB_ITEMS)."
    return TooManyItems(msg, limit=limit, setting="HEATLENS_MAX_JOB_ITEMS")
