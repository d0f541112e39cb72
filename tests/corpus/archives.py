"""Archives that lead elsewhere, lie, or unpack to more than they should."""

import io
import lzma
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

from tests.app.imaging import files
from tests.corpus.making import Made, Maker

PICTURE = files.png(1, 1, b"\0\7")
_LARGE = 12_000_000

archive = Maker("archive", success=202)
bad, too_large = archive.refusing(422, "bad_archive"), archive.refusing(413, "archive_too_large")
nothing = archive.refusing(422, "no_pictures")


def archives() -> Iterator[Made]:
    """Yield all of them."""
    yield from _names()
    yield from _links()
    yield from _bombs()
    yield from _lies()


def a_zip(*entries: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    """A zip whose entries have no date of their own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, data in entries:
            info = zipfile.ZipInfo(name) if isinstance(name, str) else name
            info.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(info, data)
    return buffer.getvalue()


def a_tar(name: str = "a.png", data: bytes = PICTURE, **header: Any) -> bytes:
    """A tar of one member, with what its header says beside."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as file:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for key, value in header.items():
            setattr(info, key, value)
        file.addfile(info, io.BytesIO(data) if info.isreg() else None)
    whole = buffer.getvalue()
    return whole[: -(-len(whole.rstrip(b"\0")) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE]


def _names() -> Iterator[Made]:
    yield bad("climbs.zip", a_zip(("../../etc/cron.d/a.png", PICTURE)), "a name that leads out of the archive")
    yield bad("climbs.tar", a_tar("x/../../a.png"), "a name that leads out of the archive")
    yield bad("absolute.zip", a_zip(("/etc/passwd", PICTURE)), "an absolute name")
    yield bad("absolute.tar", a_tar("/etc/passwd"), "an absolute name")
    yield bad("drive.zip", a_zip(("C:/a.png", PICTURE)), "a name with a drive")
    yield bad("backslash.zip", a_zip(("..\\..\\a.png", PICTURE)), "a name that means a way out on some systems")
    yield bad("zero.zip", a_zip(("a_png", PICTURE)).replace(b"a_png", b"a\0png"), "a name with a zero in it")
    yield bad("long.zip", a_zip(("a" * 2000, PICTURE)), "a name of 2000 characters")
    yield archive.taken(
        "devices.zip",
        a_zip(("CON.png", PICTURE), ("aux", PICTURE), ("COM1.jpg", PICTURE)),
        "names that are devices on Windows; each gets an underscore in front",
    )
    yield archive.taken(
        "streams.zip",
        a_zip(("a.png:b.exe", PICTURE), ("a.png. .", PICTURE), ("nul .png", PICTURE)),
        "names of hidden streams, with ends that Windows leaves off, and of a device behind a blank",
    )
    yield archive.taken(
        "streams.tar", a_tar("COM1.d/a.png:b.exe"), "a folder that is a device on Windows, and a hidden stream"
    )
    yield archive.taken(
        "control.zip",
        a_zip(("\x1b[2Ja.png", PICTURE), ("\u202egnp.a", PICTURE)),
        "names that would clear a terminal, or turn the text around",
    )
    yield archive.taken(
        "isolates.zip",
        a_zip(("a\u2066\u2067gnp.exe\u2069\u2069.png", PICTURE), ("\u202bb\u202c.png", PICTURE)),
        "names that turn a part of the text around",
    )
    yield archive.refusing(422, "empty_image")(
        "empty.zip", a_zip(("a.png", PICTURE), ("void.png", b"")), "a picture without bytes, which would be a file"
    )
    yield archive.taken("twice.zip", _twice(), "two entries of one name")
    yield nothing(
        "litter.zip", a_zip((".DS_Store", b"x"), ("__MACOSX/._a.png", b"x")), "nothing but what systems leave"
    )


def _twice() -> bytes:
    return a_zip(("a.png", PICTURE), ("b.png", PICTURE)).replace(b"b.png", b"a.png")


def _links() -> Iterator[Made]:
    link = zipfile.ZipInfo("a.png")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    yield bad("link.zip", a_zip((link, b"/etc/passwd")), "a symbolic link")
    kinds = {"link": tarfile.SYMTYPE, "hard-link": tarfile.LNKTYPE, "device": tarfile.CHRTYPE, "pipe": tarfile.FIFOTYPE}
    for name, kind in kinds.items():
        yield bad(
            f"{name}.tar",
            a_tar(data=b"", type=kind, linkname="/etc/passwd"),
            f"a member that is a {name.replace('-', ' ')}",
        )
    yield bad("holes.tar", a_tar(data=b"", type=tarfile.GNUTYPE_SPARSE), "a file with holes")


def _bombs() -> Iterator[Made]:
    yield too_large(
        "bomb.zip", a_zip(*((f"{number}.bmp", bytes(3_000_000)) for number in range(4))), "12 MB of zeros in 12 kB"
    )
    yield too_large("bomb.tar.gz", _gzip(b"".join(_members())), "12 MB of zeros in 12 kB")
    yield too_large("bomb.tar.xz", lzma.compress(b"".join(_members())), "12 MB of zeros in 2 kB")
    inner = a_zip(("a.png", PICTURE))
    yield bad("nested.zip", a_zip(("a.png", inner)), "an archive in an archive")
    yield bad("overlapping.zip", _overlapping(inner), "two entries that share their bytes")
    yield bad("xz-memory.tar.xz", _greedy_xz(), "4 GiB of memory asked for")


def _members() -> Iterator[bytes]:
    for number in range(4):
        info = tarfile.TarInfo(f"{number}.bmp")
        info.size = 3_000_000
        yield info.tobuf(tarfile.USTAR_FORMAT) + bytes(-(-info.size // 512) * 512)
    yield bytes(1024)


def _gzip(data: bytes) -> bytes:
    import gzip

    return gzip.compress(data, 9, mtime=0)


def _overlapping(one: bytes) -> bytes:
    """The directory names the one file twice."""
    start = one.index(b"PK\x01\x02")
    end = one.index(b"PK\x05\x06")
    entry = one[start:end]
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 2, 2, 2 * len(entry), start, 0)
    return one[:start] + entry + entry.replace(b"a.png", b"b.png") + tail


def _greedy_xz() -> bytes:
    """The size of the dictionary is a byte in the header of the block, behind which a checksum follows."""
    import zlib

    data = bytearray(lzma.compress(a_tar()))
    header = data[12 : 12 + 4 * (data[12] + 1)]
    at = bytes(header).index(b"\x21\x01") + 2
    header[at] = 40
    header[-4:] = struct.pack("<I", zlib.crc32(bytes(header[:-4])))
    data[12 : 12 + len(header)] = header
    return bytes(data)


def _lies() -> Iterator[Made]:
    whole = a_zip(("a.png", PICTURE))
    encrypted = bytearray(whole)
    encrypted[6] |= 1
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    yield bad("encrypted.zip", bytes(encrypted), "an entry with a password")
    size = bytearray(whole)
    struct.pack_into("<I", size, size.index(b"PK\x01\x02") + 24, 2**32 - 2)
    yield bad("size.zip", bytes(size), "an entry that says that it has 4 GiB")
    yield bad("cut.zip", whole[: len(whole) // 2], "ends in the middle")
    count = bytearray(whole)
    struct.pack_into("<HH", count, count.index(b"PK\x05\x06") + 8, 65535, 65535)
    struct.pack_into("<I", count, count.index(b"PK\x05\x06") + 12, 2**31)
    yield bad("directory.zip", bytes(count), "a directory of 2 GiB is announced")
    header = bytearray(a_tar())
    header[124:136] = b"\x80" + bytes(3) + struct.pack(">Q", 2**62)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    yield bad("size.tar", bytes(header), "a member that says that it has 4 EiB")
    yield bad("cut.tar", a_tar()[:600], "ends behind a member")
    yield bad("kind.rar", b"Rar!\x1a\x07\x01\0" + bytes(60), "a kind that is not read")
    yield bad("none.zip", b"this is no archive at all", "no archive")
