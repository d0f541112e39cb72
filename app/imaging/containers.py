"""The outside of an image file: its format, the parts a decoder needs, and which way up it is held.

JPEG, PNG and GIF files are stripped to the parts that make pixels before any parser sees them: metadata is where
parsers are slow (a PNG may hold thousands of compressed colour profiles), warn, or take instructions from the upload.
The walks here read lengths and markers, nothing else; a damaged file is passed on for the decoder to refuse. Colour
profiles are dropped on purpose: models are trained on pixels decoded without them.
"""

import re
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.imaging.errors import CorruptImage

MAX_JPEG_SCANS = 64
"""A progressive JPEG has about ten scans. Each costs a pass over the whole picture, and 26 bytes can ask for one."""
MAX_JPEG_SEGMENTS = 10_000
MAX_PNG_CHUNKS = 100_000
MAX_GIF_EXTENSIONS, MAX_GIF_BLOCKS = 100, 10_000  # before the first frame, and in each

_MAGIC = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II\x2a\x00", "tiff"),
    (b"MM\x00\x2a", "tiff"),
    (b"II\x2b\x00", "tiff"),  # BigTIFF
    (b"MM\x00\x2b", "tiff"),
)
_BMP_HEADER_SIZES = (12, 40, 52, 56, 64, 108, 124)

_FILL = re.compile(rb"\xff{2,}")
_STANDALONE = {0x01, *range(0xD0, 0xD9)}  # TEM, RST0-7, SOI: no length follows
_EOI, _SOS, _APP1, _COM = 0xD9, 0xDA, 0xE1, 0xFE
# JFIF's APP0 and Adobe's APP14 say which colours the components are; every other APP segment is metadata.
_METADATA = {*range(0xE1, 0xEE), 0xEF, _COM}
_GRAPHIC_CONTROL = 0xF9
_PNG_PARTS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}


class Slim(NamedTuple):
    """A file without its metadata, and its EXIF block (empty if there is none)."""

    data: bytes
    exif: bytes


def sniff(data: bytes) -> str | None:
    """Name the format by content: jpeg, png, gif, tiff, webp, bmp, or None. File names are never looked at."""
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    # "BM" alone also starts many a text, so the size of the second header must be one that exists.
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BMP_HEADER_SIZES:
        return "bmp"
    return None


def slim_jpeg(data: bytes) -> Slim:
    """Keep the first picture's coding segments and scans; whatever follows its end is dropped.

    Raises `CorruptImage` for more scans or segments than any honest file has.
    """
    parts, exif, scans, pos = [b"\xff\xd8"], b"", 0, 2
    markers, scan_ends = _markers(data)
    for _ in range(MAX_JPEG_SEGMENTS):
        pos = _first(markers, pos, len(data)) + 2
        if pos > len(data):
            return Slim(b"".join(parts), exif)
        code = data[pos - 1]
        if code in _STANDALONE:
            continue
        if code == _EOI:
            return Slim(b"".join([*parts, b"\xff\xd9"]), exif)
        end = pos + int.from_bytes(data[pos : pos + 2], "big")
        if code == _SOS:
            scans += 1
            end = _first(scan_ends, end, len(data))
            _check_scans(scans)
        if code == _APP1 and not exif and data.startswith(b"Exif\x00\x00", pos + 2):
            exif = data[pos + 2 : end]
        if code not in _METADATA:
            parts += (b"\xff", _without_fill(data[pos - 1 : end]) if code == _SOS else data[pos - 1 : end])
        pos = max(end, pos)
    raise CorruptImage("The JPEG file has too many segments.", limit=MAX_JPEG_SEGMENTS)


def _markers(data: bytes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where a 0xFF precedes a marker's code, and which of these end a scan: all but the restart markers."""
    codes = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(codes[:-1] == 0xFF)
    at = at[(codes[at + 1] != 0) & (codes[at + 1] != 0xFF)]
    return at, at[codes[at + 1] & 0xF8 != 0xD0]


def _first(positions: NDArray[np.intp], start: int, default: int) -> int:
    """Return the first of the sorted positions that is at least `start`."""
    index = int(np.searchsorted(positions, start))
    return int(positions[index]) if index < len(positions) else default


def _without_fill(scan: bytes) -> bytes:
    """Drop the padding before markers: megabytes of it make the decoder start over with every block that it reads."""
    return _FILL.sub(b"\xff", scan) if b"\xff\xff" in scan else scan


def _check_scans(scans: int) -> None:
    if scans > MAX_JPEG_SCANS:
        raise CorruptImage(
            f"The JPEG file has more than {MAX_JPEG_SCANS} scans; an honest one has about ten.", limit=MAX_JPEG_SCANS
        )


def slim_png(data: bytes) -> Slim:
    """Keep the five chunk types that make pixels: of an animation, this leaves its default picture.

    Raises `CorruptImage` for more chunks than any honest file has.
    """
    parts, exif, pos = [data[:8]], b"", 8
    for _ in range(MAX_PNG_CHUNKS):
        kind = data[pos + 4 : pos + 8]
        end = pos + 12 + int.from_bytes(data[pos : pos + 4], "big")
        if kind in _PNG_PARTS:
            parts.append(data[pos:end])
        elif kind == b"eXIf" and not exif:
            exif = data[pos + 8 : end - 4]
        if kind == b"IEND" or end >= len(data):
            return Slim(b"".join(parts), exif)
        pos = end
    raise CorruptImage("The PNG file has too many chunks.", limit=MAX_PNG_CHUNKS)


def slim_gif(data: bytes) -> bytes:
    """Keep the screen, the colours and, of what precedes the first frame, only the last graphic control.

    Raises `CorruptImage` for more extensions or blocks than any honest file has.
    """
    pos = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    head, control = data[:pos], b""
    for _ in range(MAX_GIF_EXTENSIONS):
        if data[pos : pos + 1] != b"!":
            return head + control + data[pos:]
        end = _end_of_blocks(data, pos + 2)
        if data[pos + 1] == _GRAPHIC_CONTROL:
            control = data[pos:end]
        pos = end
    raise CorruptImage("The GIF file has too many extensions.", limit=MAX_GIF_EXTENSIONS)


def _end_of_blocks(data: bytes, pos: int) -> int:
    for _ in range(MAX_GIF_BLOCKS):
        size = data[pos]
        pos += 1 + size
        if size == 0:
            return pos
    raise CorruptImage("The GIF file has an extension of too many blocks.", limit=MAX_GIF_BLOCKS)


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Read the canvas (width, height) in px from a WebP header; None if it is malformed.

    The decoder allocates the canvas as soon as it is created, so the limit has to be checked before.
    """
    kind, head = data[12:16], data[20:30].ljust(10, b"\0")
    if kind == b"VP8X":
        return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(head[6:8], "little") & 0x3FFF, int.from_bytes(head[8:10], "little") & 0x3FFF
    return None


def orientation(exif: bytes) -> int:
    """Return the EXIF orientation, 1 to 8; 1 (as stored) when the block is absent, broken or says something else.

    Only the EXIF tag counts, as in browsers, so that the picture lies as the client sees it; XMP is not asked.
    """
    tiff = exif.removeprefix(b"Exif\x00\x00")
    order = {b"II*\x00": "<", b"MM\x00*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        (ifd,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, ifd)
        for entry in range(ifd + 2, ifd + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(f"{order}HH", tiff, entry)
            if tag == 0x0112:
                (value,) = struct.unpack_from(f"{order}{'I' if kind == 4 else 'H'}", tiff, entry + 8)
                return value if 1 <= value <= 8 else 1
    except struct.error:  # an offset or a count that points outside the block
        return 1
    return 1
