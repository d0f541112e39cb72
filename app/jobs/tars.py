"""Tar archives, as they are or packed by gzip, bzip2 or xz."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Iterator
from typing import IO, Any, BinaryIO, cast

from app.jobs.unpacking import CHUNK_BYTES, ArchiveLimits, Member, Purse, damage, data_of, quoted, refuse, too_many
from app.jobs.unpacking import wanted as wanted_name

_HEADER_BYTES = 2**14
"""Of one member, its long name and extended attributes included: tarfile reads all that at once."""
_XZ_MEMORY_BYTES = 2**27
"""What unpacking xz may take: its strongest preset needs half of it, and a hostile file says 4 GiB."""


def tar_members(file: BinaryIO, kind: str, limits: ArchiveLimits, purse: Purse) -> Iterator[Member]:
    """Return the files of a tar of a kind of `UNPACKERS`, in its order; for what is raised see `archives.members`."""
    stream = _Forward(UNPACKERS[kind](file), purse)
    with damage("at its start"):
        archive = tarfile.TarFile(fileobj=cast("IO[bytes]", stream), errors="surrogateescape")
    entries = items = 0
    while (info := _next(archive, stream)) is not None:
        name = wanted_name(info.name)
        if not (info.isdir() or (info.isreg() and not info.issparse())):
            refuse(f"a link, a device or a file with holes, {quoted(info.name)}")
        is_item = name is not None and not info.isdir()
        entries, items = entries + 1, items + is_item
        if items > limits.items or entries > limits.entries:
            raise too_many(limits.items)
        if is_item and name is not None:
            yield Member(name, data_of(name, _reader(stream, info.size, name), limits))


class _Forward:
    """A tar as it is unpacked: goes forward only, counts, and gives tarfile no more at once than it needs."""

    def __init__(self, file: IO[bytes], purse: Purse) -> None:
        self._file = file
        self._purse = purse
        self._position = 0
        self.allowed = _HEADER_BYTES
        """Bytes that may be read until this is set again."""
        self.last = b""

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.allowed:
            refuse("a header that is too long")
        self.allowed -= size
        self.last = self._file.read(size)
        self._position += len(self.last)
        self._purse.spend(len(self.last))
        return self.last

    def seek(self, position: int) -> None:
        if position < self._position:
            refuse("a member that leads back to an earlier one")
        while self._position < position:
            self.allowed = CHUNK_BYTES
            if not self.read(min(CHUNK_BYTES, position - self._position)):
                raise EOFError
        self.allowed = _HEADER_BYTES

    def tell(self) -> int:
        return self._position


def _next(archive: tarfile.TarFile, stream: _Forward) -> tarfile.TarInfo | None:
    """Return the next header, or None at the end; what tarfile keeps of earlier ones is forgotten."""
    stream.allowed = _HEADER_BYTES
    with damage("behind a member"):
        info = archive.next()
        archive.members.clear()  # type: ignore[attr-defined]
        archive.pax_headers = {}
        if info is None:
            _finish(stream)
    return info


def _finish(stream: _Forward) -> None:
    """Read what follows the end, so that checksums are compared.

    A block of zeros is the end; tarfile takes a damaged header, or no header at all, for it too.
    """
    if stream.last != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError
    stream.allowed = CHUNK_BYTES
    while stream.read(CHUNK_BYTES):
        stream.allowed = CHUNK_BYTES


def _reader(stream: _Forward, size: int, name: str) -> Callable[[int], bytes]:
    """Return what reads the member at which the stream is."""
    left = size

    def read(most: int) -> bytes:
        nonlocal left
        stream.allowed = wanted = min(most, left)
        with damage(f"at {quoted(name)}"):
            chunk = stream.read(wanted)
            if len(chunk) < wanted:
                raise EOFError
        left -= wanted
        return chunk

    return read


class _Xz(io.RawIOBase):
    """Unpacks xz. `lzma.LZMAFile` does too, but with as much memory as the file asks for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = self._begin()
        self._packed = b""

    @staticmethod
    def _begin() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._decoder.eof and not self._follow():
                return 0
            if self._decoder.needs_input and not self._packed:
                self._packed = self._file.read(CHUNK_BYTES)
                if not self._packed:
                    raise EOFError
            packed, self._packed = self._packed, b""
            data = self._decoder.decompress(packed, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)

    def _follow(self) -> bool:
        """Begin a further stream, if one follows; zeros may lie between."""
        rest = self._decoder.unused_data.lstrip(b"\x00")
        while not rest:
            more = self._file.read(CHUNK_BYTES)
            if not more:
                return False
            rest = more.lstrip(b"\x00")
        self._decoder, self._packed = self._begin(), rest
        return True


UNPACKERS: dict[str, Callable[[BinaryIO], Any]] = {
    "tar": lambda file: file,
    "gzip": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    "bzip2": bz2.BZ2File,
    "xz": lambda file: io.BufferedReader(_Xz(file), CHUNK_BYTES),
}
"""What gives the tar that is in a file, by the file's kind."""
