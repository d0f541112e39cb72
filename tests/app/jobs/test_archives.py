"""Archives, as people pack them and as attackers make them. All are made here, by the standard library or by hand."""

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any
from unicodedata import bidirectional, category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ArchiveTooLarge, BadArchive, ServiceError, TooManyItems
from app.imaging.errors import ImageError, TooManyBytes
from app.jobs.archives import ArchiveLimits, members
from app.jobs.names import is_litter

MIB = 2**20
LIMITS = ArchiveLimits(items=1000, bytes=64 * MIB, ratio=100, picture_bytes=MIB)
FILES = {"cat.jpg": b"\xff\xd8cat", "sub/dog.png": bytes(range(256)) * 300, "empty.gif": b""}


def unpacked(archive: bytes, limits: ArchiveLimits = LIMITS) -> dict[str, bytes]:
    return {member.name: b"".join(member.data) for member in members(io.BytesIO(archive), limits)}


def a_zip(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def a_tar(files: Mapping[str, bytes], format_: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format_) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def a_tar_of(**header: Any) -> bytes:
    """A tar of one entry that is no ordinary file."""
    info = tarfile.TarInfo("odd.jpg")
    for name, value in header.items():
        setattr(info, name, value)
    return info.tobuf() + bytes(1024)


def no_other_than(
    error: type[ServiceError] | type[ImageError], archive: bytes, match: str = ".", **limits: Any
) -> None:
    with pytest.raises(error, match=match):
        unpacked(archive, ArchiveLimits(**(vars(LIMITS) | limits)))


PACKERS: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "zip": a_zip,
    "zip, stored": lambda files: a_zip(files, zipfile.ZIP_STORED),
    "tar": a_tar,
    "tar, GNU": lambda files: a_tar(files, tarfile.GNU_FORMAT),
    "tar.gz": lambda files: gzip.compress(a_tar(files)),
    "tar.gz in two members": lambda files: gzip.compress(a_tar(files)[:700]) + gzip.compress(a_tar(files)[700:]),
    "tar.bz2": lambda files: bz2.compress(a_tar(files)),
    "tar.xz": lambda files: lzma.compress(a_tar(files)),
    "tar.xz in two streams": lambda files: (
        lzma.compress(a_tar(files)[:700]) + bytes(8) + lzma.compress(a_tar(files)[700:])
    ),
}


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_every_kind_is_recognised_by_its_content_and_read_in_order(pack: Callable[..., bytes]) -> None:
    found = unpacked(pack(FILES))
    assert found == FILES
    assert list(found) == list(FILES)


@given(
    st.dictionaries(st.text(min_size=1, max_size=300), st.binary(max_size=2000), max_size=8),
    st.sampled_from(list(PACKERS)),
)
def test_whatever_is_in_an_archive_comes_out_or_is_refused_as_a_whole(files: dict[str, bytes], kind: str) -> None:
    files = {name: data for name, data in files.items() if not _is_surrogate(name)}
    try:
        found = unpacked(PACKERS[kind](files))
    except (ServiceError, ImageError):
        return
    assert set(found.values()) <= set(files.values())
    for name in found:
        parts = name.split("/")
        assert not {"", ".", ".."} & set(parts)
        assert not is_litter(name)
        assert not {"Cc", "Cs"} & set(map(category, name))
        assert "\\" not in name
        assert "\x00" not in name
        assert not {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"} & set(map(bidirectional, name))
        assert not any(":" in part or part.endswith((".", " ")) for part in parts)


def _is_surrogate(name: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in name)


@given(st.data())
def test_a_damaged_archive_is_an_error_of_ours_and_no_other(data: st.DataObject) -> None:
    """One byte is changed anywhere. A zip has checksums, so what comes out of it is as it went in."""
    kind = data.draw(st.sampled_from(list(PACKERS)))
    archive = bytearray(PACKERS[kind](FILES))
    place = data.draw(st.integers(0, len(archive) - 1))
    archive[place] ^= data.draw(st.integers(1, 255))
    try:
        found = unpacked(bytes(archive))
    except (ServiceError, ImageError):
        return
    # A name may have become a hidden one or a folder's; without a checksum, as in a tar, the data another.
    if kind.startswith("zip"):
        assert set(found.values()) <= set(FILES.values())


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_an_archive_that_ends_too_early_is_refused(kind: str, share: float) -> None:
    files = {f"{number}.jpg": number.to_bytes(2, "big") * 3000 for number in range(40)}
    archive = PACKERS[kind](files)
    with pytest.raises(BadArchive, match="damaged"):
        unpacked(archive[: int(len(archive) * share)])


@pytest.mark.parametrize("members_left", [1, 2])
def test_a_tar_that_ends_behind_a_member_is_refused_too(members_left: int) -> None:
    """A member is a header of 512 bytes and one block here; then come blocks of zeros, which say that this is all."""
    archive = a_tar({"a.jpg": b"a", "b.jpg": b"b"})
    no_other_than(BadArchive, archive[: members_left * 1024], "damaged behind a member")
    assert len(unpacked(archive[: 2 * 1024 + 512])) == 2


def test_a_tar_whose_header_is_damaged_in_the_middle_does_not_end_there() -> None:
    """The standard library takes it for the end."""
    archive = bytearray(a_tar({"a.jpg": b"a", "b.jpg": b"b"}))
    archive[1024 + 100] ^= 1
    no_other_than(BadArchive, bytes(archive), "damaged behind a member")


def test_what_systems_leave_in_folders_is_left_out_in_silence() -> None:
    wanted = {"a.jpg": b"a", "x/b.jpg": b"b", "notes.txt": b"an item, whose error will say that it is none"}
    litter = [".hidden.jpg", "x/.git/c.jpg", "__MACOSX/x/._b.jpg", ".DS_Store", "x/Thumbs.db", "desktop.ini"]
    files = {**dict.fromkeys(litter, b"?"), **wanted}
    assert unpacked(a_zip({"x/": b"", **files})) == wanted
    assert unpacked(a_tar({f"./{name}": data for name, data in files.items()})) == wanted
    folder = a_tar_of(name="x", type=tarfile.DIRTYPE)[:512]
    assert unpacked(folder + a_tar(wanted)) == wanted


@pytest.mark.parametrize(
    "archive", [a_zip({}), a_tar({}), gzip.compress(a_tar({}), mtime=0), a_zip({"x/": b"", ".a": b""})]
)
def test_an_archive_of_nothing_has_no_members(archive: bytes) -> None:
    assert unpacked(archive) == {}


@pytest.mark.parametrize(
    "archive",
    [b"", b"PK", b"\xff\xd8\xff\xe0" * 400, b"not an archive" * 100, bytes(511),
     gzip.compress(b"no tar in it", mtime=0), b"\x28\xb5\x2f\xfd" * 9,
     b"7z\xbc\xaf\x27\x1c\x00\x04", b"Rar!\x1a\x07\x00", b"PK\x03\x04", b"BZh", b"\xfd7zXZ\x00"],
)  # fmt: skip
def test_what_is_no_archive_is_refused(archive: bytes) -> None:
    no_other_than(BadArchive, archive)


NAMES = ["../a.jpg", "x/../../a.jpg", "x/..", "/etc/passwd", "//a.jpg", "C:/a.jpg", "x\\a.jpg", "..\\a.jpg", "a" * 1025]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pack", [a_zip, a_tar])
def test_names_that_lead_elsewhere_refuse_the_whole_archive(pack: Callable[..., bytes], name: str) -> None:
    no_other_than(BadArchive, pack({"good.jpg": b"good", name: b"bad"}), "nothing of it was taken")


def test_a_zero_in_a_name_refuses_the_archive() -> None:
    """zipfile cuts the name there, so that what it shows is not what is in the file."""
    no_other_than(
        BadArchive, a_zip({"a.jpg_.exe": b""}).replace(b"a.jpg_.exe", b"a.jpg\0.exe"), "means different things"
    )


def test_control_characters_and_what_is_no_unicode_are_replaced_in_names() -> None:
    assert list(unpacked(a_zip({"a\x1b[2J\n.jpg": b"a"}))) == ["a\ufffd[2J\ufffd.jpg"]
    archive = a_tar({"caf\xe9.jpg": b"a"}, tarfile.GNU_FORMAT).replace("caf\xe9".encode(), b"caf\xe9_")
    fixed = tarfile.TarInfo.frombuf  # the checksum is of the old name
    assert fixed is not None
    header = bytearray(archive)
    header[148:156] = b"%06o\0 " % (256 + sum(header[:148]) + sum(header[156:512]))
    assert list(unpacked(bytes(header))) == ["caf\ufffd_.jpg"]


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.GNUTYPE_SPARSE,
        b"V",
    ],
)
def test_links_devices_and_files_with_holes_in_a_tar_refuse_it(kind: bytes) -> None:
    no_other_than(BadArchive, a_tar_of(type=kind, linkname="/etc/passwd"), "link")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip_refuse_it(kind: int) -> None:
    file = io.BytesIO()
    info = zipfile.ZipInfo("a.jpg")
    info.create_system, info.external_attr = 3, (kind | 0o777) << 16
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    no_other_than(BadArchive, file.getvalue(), "link")


def test_an_encrypted_entry_refuses_a_zip() -> None:
    archive = bytearray(a_zip({"a.jpg": b"a"}))
    archive[6] |= 1  # in the entry's own header
    archive[archive.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    no_other_than(BadArchive, bytes(archive), "encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_that_can_take_any_memory_refuse_a_zip(method: int) -> None:
    no_other_than(BadArchive, a_zip({"a.jpg": b"a"}, method), "deflate")


@pytest.mark.parametrize("inner", [pack({"a.jpg": b"a"}) for pack in PACKERS.values()], ids=PACKERS)
@pytest.mark.parametrize("pack", [a_zip, a_tar])
def test_an_archive_in_an_archive_refuses_it_whatever_its_name(pack: Callable[..., bytes], inner: bytes) -> None:
    no_other_than(BadArchive, pack({"good.jpg": b"", "innocent.jpg": inner}), "another archive in it, 'innocent.jpg'")


@pytest.mark.parametrize("pack", [a_zip, a_tar])
def test_more_files_than_the_limit_are_refused_and_as_many_are_not(pack: Callable[..., bytes]) -> None:
    files = {f"{number}.jpg": b"" for number in range(11)}
    assert len(unpacked(pack(files), ArchiveLimits(11, MIB, 100, MIB))) == 11
    no_other_than(TooManyItems, pack(files), r"limit of 10 \(HEATLENS_MAX_JOB_ITEMS\)", items=10)


@pytest.mark.parametrize("pack", [a_zip, a_tar])
def test_entries_that_are_left_out_have_a_limit_too(pack: Callable[..., bytes]) -> None:
    files = {f".{number}": b"" for number in range(1003)}  # 2 items + 1000 is the limit
    no_other_than(TooManyItems, pack(files), items=1)


def test_a_zip_whose_directory_is_huge_is_refused_before_it_is_read_into_memory() -> None:
    """The limit of 1 item allows 1002 entries of 512 bytes on average."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(9):
            info = zipfile.ZipInfo(f"{number}.jpg")
            info.comment = bytes(60_000)
            archive.writestr(info, b"")
    no_other_than(BadArchive, file.getvalue(), "directory", items=1)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_picture_beyond_the_limit_is_refused_by_name_and_one_at_it_is_not(kind: str) -> None:
    limits = ArchiveLimits(**(vars(LIMITS) | {"picture_bytes": 70_000}))
    assert unpacked(PACKERS[kind]({"a.jpg": bytes(70_000)}), limits) == {"a.jpg": bytes(70_000)}
    with pytest.raises(TooManyBytes, match=r"'x/big\.jpg' has more than 70000 bytes \(HEATLENS_MAX_BODY_BYTES\)"):
        unpacked(PACKERS[kind]({"x/big.jpg": bytes(70_001)}), limits)


@pytest.mark.parametrize("kind", PACKERS)
def test_what_unpacks_to_more_than_the_limit_is_refused(kind: str) -> None:
    archive = PACKERS[kind]({f"{number}.jpg": bytes(60_000) for number in range(20)})  # 1.2 MB, at least
    assert len(unpacked(archive)) == 20
    no_other_than(ArchiveTooLarge, archive, r"1100000 bytes \(HEATLENS_MAX_ARCHIVE_BYTES\)", bytes=1_100_000)


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.bz2", "tar.xz"])
def test_a_bomb_is_refused_by_its_ratio(kind: str) -> None:
    """10 MB of zeros in 40 kB at most: beyond both 100 times its size, and what any archive may have."""
    archive = PACKERS[kind]({f"{number}.jpg": bytes(10**6) for number in range(10)})
    assert len(archive) < 40_000
    no_other_than(ArchiveTooLarge, archive, r"100 times its size \(HEATLENS_MAX_ARCHIVE_RATIO\)")
    assert len(unpacked(archive, ArchiveLimits(**(vars(LIMITS) | {"ratio": 10**6})))) == 10


def test_a_zip_whose_entries_share_their_bytes_is_refused() -> None:
    """Fifield's better bomb: many entries of the directory, one kernel."""
    single = a_zip({"0.jpg": bytes(50_000)})
    start, end = single.index(b"PK\x01\x02"), single.index(b"PK\x05\x06")
    entry = single[start:end]
    directory = entry * 100
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 100, 100, len(directory), start, 0)
    no_other_than(BadArchive, single[:start] + directory + tail, "overlap")


def test_an_entry_that_reaches_into_the_directory_is_refused() -> None:
    archive = bytearray(a_zip({"a.jpg": b"a" * 100}, zipfile.ZIP_STORED))
    entry = archive.index(b"PK\x01\x02")
    struct.pack_into("<LL", archive, entry + 20, 200, 200)
    no_other_than(BadArchive, bytes(archive), "overlaps its directory")


@pytest.mark.parametrize("said", [0, 1, 10, 2**31])
def test_a_zip_that_lies_about_a_size_is_refused(said: int) -> None:
    archive = bytearray(a_zip({"a.jpg": bytes(range(256)) * 200}))
    entry = archive.index(b"PK\x01\x02")
    struct.pack_into("<L", archive, entry + 24, said)
    with pytest.raises(BadArchive, match=r"damaged at 'a\.jpg'"):
        unpacked(bytes(archive))


def test_a_tar_header_that_announces_gigabytes_is_refused_without_reading_them() -> None:
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
        no_other_than(BadArchive, a_tar_of(type=kind, size=4 * 2**30), "header that is too long")


def test_a_tar_header_behind_endless_others_is_refused() -> None:
    header = a_tar_of(type=tarfile.XGLTYPE, size=14)[:512] + b"14 comment=ab\n".ljust(512, b"\0")
    no_other_than(BadArchive, header * 5000, "header that is too long")


def test_a_tar_that_leads_back_is_refused() -> None:
    """A negative size makes the standard library read the same header for ever."""
    header = bytearray(a_tar_of()[:512])
    header[124:136] = b"\xff" * 4 + struct.pack(">q", -512)
    header[148:156] = b"%06o\0 " % (256 + sum(header[:148]) + sum(header[156:512]))
    no_other_than(BadArchive, bytes(header) * 3 + bytes(1024))


def test_an_xz_that_asks_for_gigabytes_of_memory_is_refused() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**28}]
    no_other_than(BadArchive, lzma.compress(a_tar(FILES), filters=filters), "damaged at its start")


def test_a_checksum_behind_the_last_member_is_compared() -> None:
    archive = bytearray(gzip.compress(a_tar(FILES)))
    struct.pack_into("<L", archive, len(archive) - 8, zlib.crc32(b"something else"))
    no_other_than(BadArchive, bytes(archive), "damaged")


SAME_EVERYWHERE = {
    "CON": "_CON",
    "a/con.jpg/b.png": "a/_con.jpg/b.png",
    "nul .tar.png": "_nul .tar.png",
    "COM\u00b9.jpg": "_COM\u00b9.jpg",
    "lpt9": "_lpt9",
    "CONIN$": "_CONIN$",
    "console.png": "console.png",
    "COM10.png": "COM10.png",
    "12:30.png": "12_30.png",
    "a.png:b.exe": "a.png_b.exe",
    "a.png. . ": "a.png",
    "a. /b.png": "a/b.png",
    "a/ /b.png": "a/_/b.png",
    "Thumbs.db. /a.png": None,
    "\u202egnp.exe": "\ufffdgnp.exe",
    "a\u2066b\u2069\u2029.png": "a\ufffdb\ufffd\ufffd.png",
    "\u05d0\u200f.png": "\u05d0\u200f.png",
}
"""Names that are something else on some systems, or read as something else, and what they become."""


@pytest.mark.parametrize("pack", [a_zip, a_tar])
@pytest.mark.parametrize("name", SAME_EVERYWHERE)
def test_a_name_is_that_of_the_same_file_on_every_system(pack: Callable[..., bytes], name: str) -> None:
    became = SAME_EVERYWHERE[name]
    assert list(unpacked(pack({name: b"x"}))) == ([became] if became else [])
