"""Image files for the tests: through Pillow's writers, or byte by byte where those cannot."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]


def save(picture: Image.Image | Array, format_: str, **options: Any) -> bytes:
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    buffer = BytesIO()
    image.save(buffer, format_, **options)
    return buffer.getvalue()


def exif(orientation: int, *, order: str = "<", kind: int = 3, tag: int = 0x0112) -> bytes:
    """An EXIF block with one entry: header, offset 8, count 1, the entry, no next directory."""
    value = struct.pack(f"{order}{'I' if kind == 4 else 'H2x'}", orientation)
    head = {"<": b"II*\0", ">": b"MM\0*"}[order]
    entry = struct.pack(f"{order}HHI", tag, kind, 1) + value
    return b"Exif\0\0" + head + struct.pack(f"{order}IH", 8, 1) + entry + bytes(4)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, rows: bytes, *, bits: int = 8, colour: int = 0, extra: bytes = b"") -> bytes:
    """A PNG from filtered rows; `extra` chunks come before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = png_chunk(b"IHDR", header) + extra + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def bmp_rle8(width: int, height: int, codes: bytes, palette: Sequence[tuple[int, int, int]]) -> bytes:
    """A run-length encoded BMP, bottom row first; palette entries are (red, green, blue)."""
    colours = b"".join(bytes((blue, green, red, 0)) for red, green, blue in palette)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(codes), 0, 0, len(palette), 0)
    offset = 14 + len(info) + len(colours)
    return b"BM" + struct.pack("<IHHI", offset + len(codes), 0, 0, offset) + info + colours + codes


def tiff(tags: Mapping[int, tuple[int, Sequence[int]]], data: bytes, *, order: str = "<", data_tag: int = 273) -> bytes:
    """A TIFF from {tag: (type 3 or 4, values)}; `data_tag` is made to point to `data`, behind the directory."""
    entries = {**tags, data_tag: (4, [0])}
    data_at = 8 + 2 + 12 * len(entries) + 4
    extra_at = data_at + len(data)
    directory, extra = struct.pack(f"{order}H", len(entries)), b""
    for tag, (kind, values) in sorted(entries.items()):
        numbers = [data_at] if tag == data_tag else values
        packed = struct.pack(f"{order}{len(numbers)}{'H' if kind == 3 else 'I'}", *numbers)
        if len(packed) > 4:
            packed, extra = struct.pack(f"{order}I", extra_at + len(extra)), extra + packed
        directory += struct.pack(f"{order}HHI", tag, kind, len(numbers)) + packed.ljust(4, b"\0")
    return {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8) + directory + bytes(4) + data + extra


def gray_tiff(samples: Array, *, white_is_zero: bool = False) -> bytes:
    """An uncompressed one-channel TIFF; byte order and sample format are those of the array."""
    order = ">" if samples.dtype.byteorder == ">" else "<"
    height, width = samples.shape
    tags = {
        256: (4, [width]),
        257: (4, [height]),
        258: (3, [8 * samples.itemsize]),
        259: (3, [1]),
        262: (3, [0 if white_is_zero else 1]),
        277: (3, [1]),
        278: (4, [height]),
        279: (4, [samples.nbytes]),
        339: (3, [{"u": 1, "i": 2, "f": 3}[samples.dtype.kind]]),
    }
    return tiff(tags, samples.tobytes(), order=order)


def gif_frame(
    screen: tuple[int, int],
    box: tuple[int, int, int, int],
    colours: Sequence[tuple[int, int, int]],
    index: int,
    *,
    transparent: int | None = None,
) -> bytes:
    """A GIF whose only frame fills `box` (left, top, width, height) of a `screen` (width, height) with one colour of 4.

    Its LZW data is the plainest there is: a clear code (4) before every pixel, so that all codes have 3 bits, least
    significant first, and an end code (5).
    """
    codes = [4, index] * (box[2] * box[3]) + [5]
    bits = sum(code << 3 * position for position, code in enumerate(codes))
    lzw = bits.to_bytes(-(-3 * len(codes) // 8), "little")
    assert len(lzw) < 256, "one block"
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80 | 1, 0, 0) + b"".join(bytes(colour) for colour in colours)
    control = b"" if transparent is None else b"!\xf9\x04\x01\0\0" + bytes((transparent,)) + b"\0"
    return head + control + b"," + struct.pack("<HHHHB", *box, 0) + bytes((2, len(lzw))) + lzw + b"\0;"


def flat(red: int, green: int, blue: int, size: tuple[int, int] = (16, 16)) -> Image.Image:
    return Image.fromarray(np.full((size[1], size[0], 3), (red, green, blue), np.uint8))
