"""Pictures that are odd, damaged or meant to hurt."""

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from tests.app.imaging import files
from tests.corpus.making import Made, Maker

SMALL = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
_JPEG = files.save(Image.fromarray(SMALL).resize((32, 24)), "JPEG", exif=files.exif(6))
_PNG = files.save(SMALL, "PNG")
_WEBP = files.save(SMALL, "WEBP", lossless=True)
_LOSSY = files.save(SMALL, "WEBP")
_GIF = files.gif_frame((2, 2), (0, 0, 2, 2), [(0, 0, 0), (9, 9, 9), (80, 80, 80), (255, 255, 255)], 2)
_BMP = files.save(SMALL, "BMP")
_BOMB = zlib.compress(bytes(10_000_000), 9)
_SIDE = 60_000

picture = Maker("picture")
taken, pixels, side = (
    picture.taken,
    picture.refusing(413, "image_too_many_pixels"),
    picture.refusing(413, "image_side_too_long"),
)
corrupt, unsupported = picture.refusing(422, "corrupt_image"), picture.refusing(422, "unsupported_image_pixels")
foreign = picture.refusing(415, "unsupported_image_format")


def pictures() -> Iterator[Made]:
    """Yield all of them."""
    for part in (
        _claims,
        _bombs,
        _truncated,
        _damaged,
        _modes,
        _animated,
        _metadata,
        _polyglots,
        _sizes,
        _arrays,
        _others,
    ):
        yield from part()


def tiff_of(
    width: int,
    height: int,
    data: bytes = bytes(4),
    *,
    packed: int = 1,
    more: dict[int, tuple[int, list[int]]] | None = None,
) -> bytes:
    """A gray TIFF of one strip."""
    tags = {256: (4, [width]), 257: (4, [height]), 258: (3, [8]), 259: (3, [packed]), 262: (3, [1]), 277: (3, [1])}
    return files.tiff(tags | {278: (4, [height]), 279: (4, [len(data)])} | (more or {}), data)


def _claims() -> Iterator[Made]:
    why = f"{_SIDE} x {_SIDE} px in the header and nothing behind it"
    yield pixels("claim.png", files.png(_SIDE, _SIDE, bytes(100)), why)
    jpeg = bytearray(_JPEG)
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", _SIDE, _SIDE)
    yield pixels("claim.jpg", bytes(jpeg), why)
    yield pixels("claim.gif", files.gif_frame((_SIDE, _SIDE), (0, 0, 1, 1), [(0, 0, 0)] * 4, 0), why)
    yield pixels("claim.bmp", _BMP[:18] + struct.pack("<ii", _SIDE, _SIDE) + _BMP[26:], why)
    yield pixels("claim.tif", tiff_of(_SIDE, _SIDE), why)
    canvas = b"\x10\0\0\0" + (_SIDE - 1).to_bytes(3, "little") * 2
    yield pixels("claim.webp", _riff(_chunk(b"VP8X", canvas) + _WEBP[12:]), why)
    canvas = b"\x10\0\0\0" + b"\xff\xff\xff" * 2
    yield side(
        "claim-sides.webp", _riff(_chunk(b"VP8X", canvas) + _WEBP[12:]), "2^24 x 2^24 px, the most that WebP can say"
    )
    yield side(
        "claim-sides.png",
        files.png(2**31 - 1, 2**31 - 1, bytes(9)),
        "2^31 - 1 px on each side, the most that PNG can say",
    )
    descriptor = _GIF.index(b",")
    frame = b"," + struct.pack("<HHHH", 0, 0, 65535, 65535)
    yield pixels(
        "claim-frame.gif",
        _GIF[:descriptor] + frame + _GIF[descriptor + 9 :],
        "a frame of 65535 x 65535 px on a screen of 2 x 2",
    )
    tile = {322: (4, [16_384]), 323: (4, [16_384]), 325: (4, [100])}
    tags = {256: (4, [1]), 257: (4, [1]), 258: (3, [8, 8, 8]), 259: (3, [8]), 262: (3, [2]), 277: (3, [3])}
    data = zlib.compress(bytes(1000)).ljust(100, b"\0")
    yield pixels(
        "claim-tile.tif",
        files.tiff(tags | tile, data, data_tag=324),
        "1 x 1 px in a tile of 16384 x 16384, which is decoded whole",
    )
    rle = files.bmp_rle8(9000, 9000, bytes((0, 1)), [(0, 0, 0), (255, 255, 255)])
    yield unsupported("claim-rle.bmp", rle, "81 million px run-length encoded, half a minute of Python for the decoder")


def _bombs() -> Iterator[Made]:
    rows = (b"\0" + bytes(1000)) * 8000
    yield taken(
        "bomb.png", files.png(8000, 8000, rows, bits=1), "64 million px in 8 kB, and within the limits", heavy=True
    )
    yield taken("bomb-behind.png", _png_with(IDAT=_BOMB), "10 MB of zeros where 6 rows of pixels are announced")
    extra = files.png_chunk(b"iCCP", b"p\0\0" + _BOMB)
    yield taken("bomb-icc.png", files.png(1, 1, b"\0\7", extra=extra), "a colour profile of 10 MB of zeros")
    extra = files.png_chunk(b"zTXt", b"Comment\0\0" + _BOMB)
    yield taken("bomb-text.png", files.png(1, 1, b"\0\7", extra=extra), "a comment of 10 MB of zeros")
    yield taken(
        "bomb-strip.tif", tiff_of(8, 6, _BOMB, packed=8), "a strip of 10 MB of zeros where 48 bytes are announced"
    )
    scan = files.save(files.flat(9, 9, 9, (256, 256)), "JPEG", progressive=True)
    last = scan[scan.rindex(b"\xff\xda") : -2]
    yield corrupt("bomb-scans.jpg", scan[:-2] + last * 500 + scan[-2:], "500 more scans, each a pass over all pixels")


def _png_with(**chunks: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", 8, 6, 8, 0, 0, 0, 0)
    parts = [files.png_chunk(name.encode(), data) for name, data in ({"IHDR": header} | chunks | {"IEND": b""}).items()]
    return _PNG[:8] + b"".join(parts)


def _truncated() -> Iterator[Made]:
    names = {0xE0: "app0", 0xE1: "app1", 0xDB: "dqt", 0xC0: "sof", 0xC4: "dht", 0xDA: "sos"}
    at = 2
    while (code := _JPEG[at + 1]) != 0xDA:
        yield corrupt(f"cut-at-{names[code]}-{at}.jpg", _JPEG[: at + 2], f"ends at the marker {names[code].upper()}")
        at += 2 + int.from_bytes(_JPEG[at + 2 : at + 4], "big")
    yield corrupt("cut-at-sos.jpg", _JPEG[: at + 2], "ends at the marker SOS")
    yield corrupt("cut-in-scan.jpg", _JPEG[: at + 30], "ends within the scan")
    at = 8
    while at < len(_PNG) - 12:
        kind = _PNG[at + 4 : at + 8].decode()
        yield corrupt(f"cut-at-{kind.lower()}.png", _PNG[: at + 8], f"ends at the chunk {kind}")
        at += 12 + int.from_bytes(_PNG[at : at + 4], "big")
    yield corrupt("cut-at-screen.gif", _GIF[:10], "ends in the screen's description")
    yield corrupt("cut-at-frame.gif", _GIF[: _GIF.index(b",") + 4], "ends in the frame's description")
    yield corrupt("cut-in-frame.gif", _GIF[: _GIF.index(b",") + 12], "ends at the frame's pixels")
    yield corrupt("cut-at-vp8l.webp", _WEBP[:20], "ends at the pixels")
    yield corrupt("cut-in-vp8l.webp", _WEBP[:-20], "ends within lossless pixels")
    yield corrupt("cut-in-vp8.webp", _LOSSY[:-20], "ends within lossy pixels")
    yield corrupt("cut-in-header.bmp", _BMP[:40], "ends in the header")
    yield corrupt("cut-in-rows.bmp", _BMP[:-20], "ends within the pixels")
    tiff = files.save(SMALL, "TIFF")
    yield corrupt("cut-at-directory.tif", tiff[:8], "ends where the directory is announced")
    yield corrupt("cut-in-strip.tif", tiff_of(8, 6, bytes(48))[:-20], "ends within the pixels")


def _damaged() -> Iterator[Made]:
    bad_sum = bytearray(_PNG)
    bad_sum[29] ^= 0xFF
    yield corrupt("crc.png", bytes(bad_sum), "the header's checksum is wrong")
    yield corrupt("length.png", _PNG[:8] + b"\xff\xff\xff\xff" + _PNG[12:], "a chunk of 4 GiB is announced")
    yield corrupt("deflate.png", _png_with(IDAT=b"\x78\x9c" + b"\xff" * 40), "the pixels are no deflate stream")
    yield corrupt(
        "chunks.png",
        _PNG[:33] + files.png_chunk(b"teSt", b"") * 2 + _PNG[33:41],
        "ends behind chunks that nobody knows",
    )
    yield corrupt("zero.png", files.png(0, 0, b""), "0 x 0 px")
    tables = _JPEG.replace(b"\xff\xc4", b"\xff\xc8")
    yield corrupt("no-tables.jpg", tables, "its Huffman tables are called something else")
    components = bytearray(_JPEG)
    components[components.index(b"\xff\xc0") + 9] = 200
    yield corrupt("components.jpg", bytes(components), "200 components are announced")
    zero = bytearray(_JPEG)
    start = zero.index(b"\xff\xc0")
    zero[start + 5 : start + 9] = bytes(4)
    yield corrupt("zero.jpg", bytes(zero), "0 x 0 px")
    yield corrupt("loop.tif", b"II*\0\x08\0\0\0\0\0\x08\0\0\0", "a directory without entries that follows itself")
    beyond = bytearray(files.save(SMALL, "TIFF", big_tiff=True))
    struct.pack_into("<HHQQ", beyond, beyond.index(struct.pack("<HHQ", 273, 4, 1)), 273, 16, 1, 2**64 - 1)
    yield corrupt("beyond.tif", bytes(beyond), "the pixels lie at byte 2^64 - 1")
    yield corrupt("zero.bmp", _BMP[:18] + bytes(8) + _BMP[26:], "0 x 0 px")
    codes = _GIF.index(b",") + 10
    yield corrupt("lzw.gif", _GIF[:codes] + b"\xff" + _GIF[codes + 1 :], "the frame's codes have 255 bits")


def _modes() -> Iterator[Made]:
    rgb = Image.fromarray(SMALL)
    wide = (np.arange(48).reshape(6, 8) * 1365).astype(np.uint16)
    yield taken("cmyk.jpg", files.save(rgb.convert("CMYK"), "JPEG"), "four inks in place of three colours")
    yield taken("cmyk.tif", files.save(rgb.convert("CMYK"), "TIFF"), "four inks in place of three colours")
    yield taken("gray-16.png", files.save(Image.fromarray(wide), "PNG"), "16 bits a sample")
    yield taken("gray-16.tif", files.gray_tiff(wide), "16 bits a sample")
    rows = b"".join(b"\0" + np.repeat(row, 3).astype(">u2").tobytes() for row in wide)
    yield taken("rgb-16.png", files.png(8, 6, rows, bits=16, colour=2), "16 bits a sample, three samples")
    palette = files.png_chunk(b"PLTE", bytes(range(12))) + files.png_chunk(b"tRNS", b"\0\x80\xff")
    yield taken(
        "palette-alpha.png",
        files.png(2, 1, b"\0\1\3", colour=3, extra=palette),
        "a palette with transparency, shorter than the palette",
    )
    yield taken("palette-none.png", files.png(2, 1, b"\0\0\x05", colour=3), "palette indices and no palette")
    yield taken("gray-alpha.png", files.save(rgb.convert("LA"), "PNG"), "gray with transparency")
    yield taken("bilevel.png", files.save(rgb.convert("1"), "PNG"), "one bit a pixel")
    yield unsupported(
        "float.tif", files.gray_tiff(np.full((6, 8), np.nan, np.float32)), "not one number among its samples"
    )
    yield taken(
        "top-down.bmp", _BMP[:22] + struct.pack("<i", -6) + _BMP[26:], "a negative height: the first row comes first"
    )


def _animated() -> Iterator[Made]:
    head, frame = _GIF[: _GIF.index(b",")], _GIF[_GIF.index(b",") : -1]
    yield taken("animated.gif", head + frame * 600 + b";", "600 frames, of which the first is the picture")
    others = [Image.fromarray(255 - SMALL)] * 3
    yield taken("animated.webp", files.save(SMALL, "WEBP", save_all=True, append_images=others), "four frames")
    yield taken("animated.png", files.save(SMALL, "PNG", save_all=True, append_images=others), "four frames")
    yield taken("pages.tif", files.save(SMALL, "TIFF", save_all=True, append_images=others), "four pages")
    yield taken(
        "mpo.jpg", files.save(SMALL, "MPO", save_all=True, append_images=others), "four pictures in one JPEG file"
    )


def _metadata() -> Iterator[Made]:
    segment = b"\xff\xe1\xff\xff" + b"Exif\0\0II*\0\x08\0\0\0" + b"\xff\xff" + bytes(range(256)) * 255
    segment = segment[: 2 + 65535].ljust(2 + 65535, b"\0")
    yield taken("exif-huge.jpg", _JPEG[:2] + segment + _JPEG[2:], "an EXIF block of 64 kB that announces 65535 entries")
    loop = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHII", 0x8769, 4, 1, 8) + struct.pack("<I", 8)
    yield taken(
        "exif-loop.jpg", files.save(SMALL, "JPEG", exif=loop), "EXIF directories that contain and follow themselves"
    )
    yield taken("exif-99.jpg", files.save(SMALL, "JPEG", exif=files.exif(99)), "an orientation that there is none of")
    yield taken(
        "exif-loop.png", files.save(SMALL, "PNG", exif=loop), "EXIF directories that contain and follow themselves"
    )
    icc = b"\0\0\xff\xff" + b"junk" * 40
    yield taken("icc.jpg", files.save(SMALL, "JPEG", icc_profile=icc), "a colour profile of nonsense")
    yield taken("icc.png", files.save(SMALL, "PNG", icc_profile=icc), "a colour profile of nonsense")
    yield taken("icc.webp", files.save(SMALL, "WEBP", icc_profile=icc), "a colour profile of nonsense")
    yield taken("icc.tif", files.save(SMALL, "TIFF", icc_profile=icc), "a colour profile of nonsense")
    text = files.png_chunk(b"tEXt", b"transparency\0not a number")
    yield taken("text.png", _PNG[:33] + text + _PNG[33:], "a comment called as one of the decoder's own notes")
    xmp = b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><a>&x;</a>"
    yield taken("xmp.webp", files.save(SMALL, "WEBP", xmp=xmp), "XMP with an entity that names a file of the server")


def _polyglots() -> Iterator[Made]:
    yield taken("script.gif", _GIF + b"*/=1;alert(1)//", "a GIF that is a script too")
    yield taken("archive.jpg", _JPEG + b"PK\x03\x04" + bytes(30), "a JPEG that is a zip too")
    yield taken(
        "php.jpg", _JPEG[:2] + b"\xff\xfe\0\x18<?php system($_GET); ?>" + _JPEG[2:], "a JPEG that is a program too"
    )
    yield taken("page.png", _PNG + b"<script>alert(1)</script>", "a PNG that is a page too")
    yield foreign("document.pdf", b"%PDF-1.7\n1 0 obj\nstream\n" + _JPEG, "a document with a JPEG in it")
    yield taken("bmp.png", files.png(1, 1, b"\0\7", extra=files.png_chunk(b"BMbm", _BMP)), "a PNG with a BMP in it")


def _sizes() -> Iterator[Made]:
    yield taken("1x1.png", files.png(1, 1, b"\0\7"), "1 x 1 px")
    yield taken("1x1.gif", files.gif_frame((1, 1), (0, 0, 1, 1), [(9, 9, 9)] * 4, 0), "1 x 1 px")
    yield taken("1x1.jpg", files.save(files.flat(9, 9, 9, (1, 1)), "JPEG"), "1 x 1 px")
    yield taken("65535x1.png", files.png(65535, 1, bytes(65536)), "65535 x 1 px, the longest side that is taken")
    yield taken("1x65535.png", files.png(1, 65535, bytes(2 * 65535)), "1 x 65535 px, the longest side that is taken")
    yield side("65536x1.png", files.png(65536, 1, bytes(65537)), "one pixel longer than the limit")


def _arrays() -> Iterator[Made]:
    def npy(text: str, data: bytes = b"") -> bytes:
        header = text.encode().ljust(117) + b"\n"
        return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + data

    entry = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"
    pickled = b"\x80\x04cos\nsystem\n(S'true'\ntR."
    yield unsupported("objects.npy", npy(entry.format("|O", "(1, 1)"), pickled), "an array of Python objects, pickled")
    code = "{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (1, 1), }"
    yield corrupt("code.npy", npy(code), "a header that is a program")
    yield pixels("claim.npy", npy(entry.format("|u1", "(60000, 60000)")), "60000 x 60000 samples in the header alone")
    yield unsupported("planes.npy", npy(entry.format("|u1", "(1, 1, 1000000000)")), "a thousand million planes")
    yield corrupt("short.npy", npy(entry.format("|u1", "(8, 6, 3)"), bytes(99)), "fewer samples than announced")


def _others() -> Iterator[Made]:
    svg = b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a "aaaa">]><svg xmlns="http://www.w3.org/2000/svg">&a;</svg>'
    yield foreign("drawing.svg", svg, "SVG, which is a program")
    yield foreign("page.html", b"<!DOCTYPE html><html><script>alert(1)</script></html>", "a page")
    yield foreign("pickle.png", pickle_of_nothing(), "a pickle that calls a function")
    yield foreign("postscript.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run", "a program")
    yield foreign(
        "magick.mvg", b"push graphic-context\nimage over 0,0 0,0 'ephemeral:/etc/passwd'", "ImageMagick's language"
    )
    yield foreign(
        "icon.ico",
        b"\0\0\1\0\1\0\1\1\0\0\1\0\x20\0\x30\0\0\0\x16\0\0\0" + bytes(60),
        "a format that is not on the list",
    )
    yield foreign("photo.avif", b"\0\0\0\x1cftypavif" + bytes(60), "a format that is not on the list")
    yield foreign("photo.psd", b"8BPS\0\1" + bytes(60), "a format that is not on the list")
    yield foreign("zeros.jpg", bytes(4096), "nothing but zeros")
    yield foreign("magic.png", _PNG[:7], "seven of the eight bytes that a PNG begins with")


def pickle_of_nothing() -> bytes:
    """A pickle that would call a harmless function, were it ever read."""
    return b"\x80\x02cos\ngetcwd\n)R."


def _chunk(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def _riff(chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks
