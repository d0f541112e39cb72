"""Zip archives."""

import stat
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, BinaryIO, cast

from app.jobs.unpacking import ArchiveLimits, Member, Purse, damage, data_of, quoted, refuse, too_many, wanted

_UNIX = 3
_ENTRY = b"PK\x01\x02"
_ENTRY_BYTES = 2**9
"""Of one entry in the directory, on average: zipfile reads the directory at once."""
_HEADER_BYTES = 30
"""What lies before an entry's data at least."""


def zip_members(file: BinaryIO, limits: ArchiveLimits, purse: Purse) -> Iterator[Member]:
    """Return the files of a zip, in the order of its directory; for what is raised see `archives.members`."""
    with damage("in its directory"):
        archive = zipfile.ZipFile(cast("IO[bytes]", _Guarded(file, limits)))
    for info, name in _checked(archive, limits):
        with damage(f"at {quoted(name)}"):
            opened = archive.open(info)
        with opened:
            yield Member(name, data_of(name, _reader(opened, info, name, purse), limits))


class _Guarded:
    """A zip whose directory is looked at before zipfile makes an object of each of its entries."""

    def __init__(self, file: BinaryIO, limits: ArchiveLimits) -> None:
        self._file = file
        self._limits = limits
        self._at_once = _ENTRY_BYTES * limits.entries
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > self._at_once:
            refuse("a directory that is too long for its entries")
        data = self._file.read(size if size >= 0 else self._at_once)
        if data.count(_ENTRY) > self._limits.entries:
            raise too_many(self._limits.items)
        return data


def _checked(archive: zipfile.ZipFile, limits: ArchiveLimits) -> list[tuple[zipfile.ZipInfo, str]]:
    """Return the entries that are to be items, with their names; all that the directory tells is checked."""
    chosen = []
    for info in archive.infolist():
        name = wanted(info.orig_filename)
        _check_entry(info)
        if name is not None and not info.is_dir():
            chosen.append((info, name))
    if len(chosen) > limits.items:
        raise too_many(limits.items)
    _check_places(archive)
    return chosen


def _check_entry(info: zipfile.ZipInfo) -> None:
    """Refuse what is encrypted, packed in an unusual way, or neither file nor folder."""
    name = quoted(info.filename)
    if info.flag_bits & 0x1:
        refuse(f"an encrypted entry, {name}; pack it without a password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        refuse(f"an entry packed in an unusual way, {name}; pack it with deflate")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.create_system == _UNIX and kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        refuse(f"a link or a device, {name}")


def _check_places(archive: zipfile.ZipFile) -> None:
    """Refuse entries that share bytes: a few kilobytes would unpack to terabytes."""
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.header_offset < end:
            refuse(f"entries that overlap, {quoted(info.filename)} and the one before")
        end = info.header_offset + _HEADER_BYTES + info.compress_size
    if end > archive.start_dir:
        refuse("an entry that overlaps its directory")


def _reader(opened: IO[bytes], info: zipfile.ZipInfo, name: str, purse: Purse) -> Callable[[int], bytes]:
    """Return what reads an entry, in exactly as many bytes as the directory says."""
    left = info.file_size

    def read(most: int) -> bytes:
        nonlocal left
        with damage(f"at {quoted(name)}"):
            chunk = opened.read(most)
            if not chunk and left:
                raise EOFError
        left -= len(chunk)
        purse.spend(len(chunk))
        return chunk

    return read
