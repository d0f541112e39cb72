"""Uploads that are wrong, damaged or meant to hurt: each gets its own error, at once, and with a safe text."""

import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, WebPImagePlugin

from app.imaging import containers, errors
from app.imaging.decode import Limits, Picture, decode
from app.imaging.formats import MAX_RLE_PIXELS
from tests.app.imaging import files

LIMITS = Limits()
NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3)).astype(np.uint8)
pytestmark = pytest.mark.filterwarnings("error")

UPLOADS: dict[str, bytes] = {
    "jpeg": files.save(NOISE, "JPEG", exif=files.exif(6)),
    "progressive": files.save(NOISE, "JPEG", progressive=True),
    "cmyk": files.save(Image.fromarray(NOISE).convert("CMYK"), "JPEG"),
    "png": files.save(NOISE, "PNG", exif=files.exif(6)),
    "apng": files.save(NOISE, "PNG", save_all=True, append_images=[Image.fromarray(255 - NOISE)]),
    "webp": files.save(NOISE, "WEBP"),
    "lossless webp": files.save(NOISE, "WEBP", lossless=True),
    "animated webp": files.save(NOISE, "WEBP", save_all=True, append_images=[Image.fromarray(255 - NOISE)]),
    "bmp": files.save(NOISE, "BMP"),
    "rle bmp": files.bmp_rle8(3, 2, bytes((3, 1, 0, 0, 0, 3, 1, 1, 0, 0, 0, 0, 0, 1)), [(1, 2, 3), (4, 5, 6)]),
    "gif": files.save(NOISE, "GIF"),
    "tiff": files.save(NOISE, "TIFF"),
    "lzw tiff": files.save(NOISE, "TIFF", compression="tiff_lzw"),
    "deflate tiff": files.save(NOISE, "TIFF", compression="tiff_adobe_deflate"),
}


def refused(data: bytes, kind: type[errors.ImageError], limits: Limits = LIMITS) -> errors.ImageError:
    with pytest.raises(kind) as caught:
        decode(data, limits)
    assert type(caught.value) is kind
    return caught.value


def test_nothing() -> None:
    assert "no bytes" in str(refused(b"", errors.EmptyImage))


NOT_PICTURES = {
    "text": b"BMW builds cars, and this is a text.",
    "html": b"<!DOCTYPE html><html><script>alert(1)</script></html>",
    "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
    "pdf": b"%PDF-1.7\n1 0 obj",
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run",
    "zip": b"PK\x03\x04" + bytes(60),
    "ico": b"\0\0\1\0\1\0\1\1\0\0\1\0\x20\0\x30\0\0\0\x16\0\0\0" + bytes(60),
    "psd": b"8BPS\0\1" + bytes(60),
    "jpeg 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(60),
    "avif": b"\0\0\0\x1cftypavif" + bytes(60),
    "pickle": b"\x80\x04\x95\x0b\0\0\0\0\0\0\0\x8c\x07builtins",
    "one byte": b"\xff",
    "half a magic": b"\x89PN",
    "riff that is a sound": b"RIFF\x24\0\0\0WAVEfmt " + bytes(60),
    "zeros": bytes(4096),
}


@pytest.mark.parametrize("data", NOT_PICTURES.values(), ids=NOT_PICTURES.keys())
def test_what_is_no_picture_gets_the_list_of_formats(data: bytes) -> None:
    error = refused(data, errors.UnknownFormat)
    assert error.extra["choices"] == ["JPEG", "PNG", "WebP", "BMP", "TIFF", "GIF"]
    assert "JPEG, PNG, WebP, BMP, TIFF, GIF" in str(error)


def test_the_bytes_limit_comes_first() -> None:
    error = refused(b"x" * 11, errors.TooManyBytes, Limits(max_bytes=10))
    assert str(error) == "The picture has 11 bytes; at most 10 are allowed (HEATLENS_MAX_BODY_BYTES)."
    assert error.extra == {"limit": 10, "setting": "HEATLENS_MAX_BODY_BYTES"}
    refused(b"x" * 10, errors.UnknownFormat, Limits(max_bytes=10))


@pytest.mark.parametrize("name", UPLOADS)
def test_pixel_and_side_limits_hold_in_every_format(name: str) -> None:
    """Each limit is met exactly and then missed by one."""
    picture = decode(UPLOADS[name], LIMITS)
    count, side = picture.width * picture.height, max(picture.width, picture.height)
    decode(UPLOADS[name], Limits(max_pixels=count, max_side_px=side))
    error = refused(UPLOADS[name], errors.TooManyPixels, Limits(max_pixels=count - 1))
    assert error.extra == {"limit": count - 1, "setting": "HEATLENS_MAX_IMAGE_PIXELS"}
    assert f"{count} px" in str(error)
    assert "HEATLENS_MAX_IMAGE_PIXELS" in str(error)
    error = refused(UPLOADS[name], errors.SideTooLong, Limits(max_side_px=side - 1))
    assert error.extra == {"limit": side - 1, "setting": "HEATLENS_MAX_IMAGE_SIDE_PX"}
    assert "HEATLENS_MAX_IMAGE_SIDE_PX" in str(error)


def bmp_claiming(width: int, height: int) -> bytes:
    return UPLOADS["bmp"][:18] + struct.pack("<ii", width, height) + UPLOADS["bmp"][26:]


def jpeg_claiming(width: int, height: int) -> bytes:
    data = bytearray(UPLOADS["jpeg"])
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def webp_claiming(width: int, height: int) -> bytes:
    """A canvas of 24-bit sides, with a small picture on it."""
    canvas = b"\x10\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunks = b"VP8X" + struct.pack("<I", len(canvas)) + canvas + UPLOADS["lossless webp"][12:]
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks


def tiff_claiming(width: int, height: int) -> bytes:
    tags = {256: (4, [width]), 257: (4, [height]), 258: (3, [8]), 259: (3, [1]), 262: (3, [1]), 279: (4, [4])}
    return files.tiff(tags, bytes(4))


CLAIMS: dict[str, Callable[[int, int], bytes]] = {
    "png": lambda width, height: files.png(width, height, bytes(100)),
    "gif": lambda width, height: files.gif_frame((width, height), (0, 0, 1, 1), [(0, 0, 0)] * 4, 0),
    "bmp": bmp_claiming,
    "jpeg": jpeg_claiming,
    "webp": webp_claiming,
    "tiff": tiff_claiming,
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS.keys())
def test_a_small_file_that_claims_a_huge_picture(claim: Callable[[int, int], bytes]) -> None:
    """60,000 x 60,000 px would take 10.8 GB as RGB. The header is enough to refuse it."""
    data = claim(60_000, 60_000)
    assert len(data) < 20_000
    error = refused(data, errors.TooManyPixels)
    assert "100000000 px are allowed" in str(error)


def test_a_gif_frame_far_larger_than_its_screen() -> None:
    screen = files.gif_frame((2, 2), (0, 0, 1, 1), [(0, 0, 0)] * 4, 0)
    descriptor = screen.index(b",")
    data = screen[:descriptor] + b"," + struct.pack("<HHHH", 0, 0, 65535, 65535) + screen[descriptor + 9 :]
    refused(data, errors.TooManyPixels)


@pytest.mark.parametrize("side", [16_384, 70_000])
def test_a_tiny_tiff_with_a_huge_tile(side: int) -> None:
    """The tile is what gets decoded: 16,384 x 16,384 px of deflated zeros are 0.8 MB as a file and 805 MB as RGB."""
    one_deflated_rgb_pixel = {
        256: (4, [1]),
        257: (4, [1]),
        258: (3, [8, 8, 8]),
        259: (3, [8]),
        262: (3, [2]),
        277: (3, [3]),
    }
    tags = one_deflated_rgb_pixel | {322: (4, [side]), 323: (4, [side]), 325: (4, [100])}
    data = files.tiff(tags, zlib.compress(bytes(1000)).ljust(100, b"\0"), data_tag=324)
    error = refused(data, errors.TooManyPixels if side == 16_384 else errors.SideTooLong)
    assert str(error).startswith(f"The TIFF tile is {side} x {side}")


def test_pillows_own_guard_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Pillow's limit far below, a picture within ours is decoded, and no warning is heard."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # 3072 px: Pillow would warn; above 4000 it would refuse
    for data in UPLOADS.values():
        decode(data, LIMITS)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for name, data in UPLOADS.items():
        if "webp" not in name:  # there the guard cannot be avoided; it never bites below 179 million px
            decode(data, LIMITS)


def test_a_progressive_jpeg_with_thousands_of_scans() -> None:
    """Repeating the last scan, 26 bytes for a flat picture, costs a pass over all pixels each time."""
    data = files.save(files.flat(9, 9, 9, (256, 256)), "JPEG", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    honest = data.count(b"\xff\xda")
    decode(data[:-2] + scan * (containers.MAX_JPEG_SCANS - honest) + data[-2:], LIMITS)
    error = refused(data[:-2] + scan * (containers.MAX_JPEG_SCANS - honest + 1) + data[-2:], errors.CorruptImage)
    assert error.extra["limit"] == containers.MAX_JPEG_SCANS


def test_endless_segments_and_chunks() -> None:
    """Millions of empty parts, each of which costs a parser a step in Python."""
    jpeg, png = UPLOADS["jpeg"], UPLOADS["png"]
    refused(jpeg[:2] + b"\xff\xfe\x00\x02" * 1_000_000 + jpeg[2:], errors.CorruptImage)
    refused(png[:33] + files.png_chunk(b"teSt", b"") * 200_000 + png[33:], errors.CorruptImage)
    gif = files.gif_frame((2, 2), (0, 0, 2, 2), [(0, 0, 0)] * 4, 0)
    refused(gif[:25] + b"!\xfe" + b"\x01a" * 1_000_000 + b"\0" + gif[25:], errors.CorruptImage)
    refused(gif[:25] + b"!\xfe\0" * 1_000_000 + gif[25:], errors.CorruptImage)


def test_fill_bytes_without_end() -> None:
    """Padding before a marker is legal; millions of them in a scan make the decoder start over and over."""
    jpeg = UPLOADS["jpeg"]
    padded = jpeg[:2] + b"\xff" * 1000 + jpeg[2:-2] + b"\xff" * 5_000_000 + jpeg[-2:]
    np.testing.assert_array_equal(decode(padded, LIMITS).pixels, decode(jpeg, LIMITS).pixels)


def test_gif_comments_are_skipped_and_transparency_is_kept() -> None:
    gif = files.gif_frame((3, 1), (0, 0, 2, 1), [(9, 9, 9), (8, 8, 8), (7, 7, 7), (6, 6, 6)], 2, transparent=2)
    commented = gif[:25] + b"!\xfe\x02hi\0" + b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0" + gif[25:]
    for data in (gif, commented):
        assert (decode(data, LIMITS).pixels == 255).all()


def test_png_metadata_never_reaches_the_parser() -> None:
    """Decompression bombs in text and colour profiles, and texts named like Pillow's own notes, are left out."""
    bomb = zlib.compress(bytes(20_000_000), 9)
    extra = b"".join(
        files.png_chunk(kind, data)
        for kind, data in (
            (b"iCCP", b"p\0\0" + bomb),
            (b"zTXt", b"Comment\0\0" + bomb),
            (b"tEXt", b"transparency\0not a number"),
            (b"tEXt", b"interlace\x001"),
            (b"acTL", bytes(3)),
            (b"fcTL", bytes(3)),
        )
    )
    assert decode(files.png(1, 1, b"\0\x07", extra=extra), LIMITS).pixels.tolist() == [[[7, 7, 7]]]


def test_a_large_run_length_bmp_is_refused() -> None:
    """Pillow would spend half a minute in Python on seven kilobytes."""
    palette = [(0, 0, 0), (255, 255, 255)]
    side = 2**10
    assert 2 * side * side == MAX_RLE_PIXELS
    error = refused(files.bmp_rle8(side, 2 * side + 1, bytes((0, 1)), palette), errors.UnsupportedPixels)
    assert error.extra == {"limit": MAX_RLE_PIXELS}


POLYGLOTS = {
    "gif and script": UPLOADS["gif"] + b"*/=1;alert(1)//",
    "jpeg and zip": UPLOADS["jpeg"] + b"PK\x03\x04" + bytes(100),
    "jpeg with php": UPLOADS["jpeg"][:2] + b"\xff\xfe\x00\x18<?php system($_GET); ?>" + UPLOADS["jpeg"][2:],
    "png and html": UPLOADS["png"] + b"<script>alert(1)</script>",
    "png with html": UPLOADS["png"][:33] + files.png_chunk(b"tEXt", b"c\0<script>") + UPLOADS["png"][33:],
    "motion photo": UPLOADS["jpeg"] + b"\0\0\0\x18ftypmp42" + b"\xff\xda" * 1000,
}


@pytest.mark.parametrize("data", POLYGLOTS.values(), ids=POLYGLOTS.keys())
def test_polyglots_are_the_picture_that_they_are(data: bytes) -> None:
    assert isinstance(decode(data, LIMITS), Picture)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("name", UPLOADS)
def test_truncated(name: str, share: float) -> None:
    data = UPLOADS[name]
    first_frame = data.find(b"fcTL", data.find(b"IDAT")) if name == "apng" else len(data)
    cut = data[: int(first_frame * share)]
    with pytest.raises((errors.CorruptImage, errors.UnknownFormat)) as caught:
        decode(cut, LIMITS)
    assert len(cut) < 30 or isinstance(caught.value, errors.CorruptImage)


def test_offsets_beyond_what_c_can_hold() -> None:
    """The strip of a BigTIFF at byte 2^64 - 1: BytesIO raises OverflowError."""
    data = bytearray(files.save(NOISE, "TIFF", big_tiff=True))
    strips = data.index(struct.pack("<HHQ", 273, 4, 1))
    struct.pack_into("<HHQQ", data, strips, 273, 16, 1, 2**64 - 1)
    refused(bytes(data), errors.CorruptImage)


def test_a_palette_picture_without_a_palette() -> None:
    picture = decode(files.png(2, 1, b"\0\0\x05", colour=3), LIMITS)
    assert picture.pixels.shape == (1, 2, 3)


@pytest.mark.parametrize("name", UPLOADS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damage_anywhere_is_an_image_error_or_a_picture(name: str, data: st.DataObject) -> None:
    """Bytes overwritten, inserted and removed; the header is hit as often as the rest."""
    upload = bytearray(UPLOADS[name])
    for _ in range(data.draw(st.integers(1, 6))):
        reach = data.draw(st.sampled_from([64, len(upload)]))
        at = data.draw(st.integers(0, min(reach, len(upload)) - 1))
        upload[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
        if not upload:
            return
    survives(bytes(upload))


@given(data=st.binary(min_size=1, max_size=300), magic=st.sampled_from([UPLOADS[name][:30] for name in UPLOADS]))
@settings(max_examples=300, deadline=None)
def test_random_bytes_behind_an_honest_beginning(data: bytes, magic: bytes) -> None:
    survives(data)
    survives(magic + data)


def survives(data: bytes) -> None:
    try:
        picture = decode(data, Limits(max_pixels=1_000_000), enough_px=16)
    except errors.ImageError as error:
        text = str(error)
        assert text.endswith(".")
        assert not any(word in text for word in ("/", "0x", "Traceback", "PIL", "BytesIO", "cannot identify"))
    else:
        assert picture.pixels.dtype == np.uint8
        assert picture.pixels.ndim == 3
        assert picture.pixels.shape[2] == 3


def test_every_error_has_its_own_code() -> None:
    kinds = errors.ImageError.__subclasses__()
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes) == 8
    assert {kind.field for kind in kinds} == {"image", "format"}


@pytest.mark.parametrize("kind", ["gif", "tiff", "mpo", "webp", "png"])
def test_of_ten_thousand_frames_one_is_decoded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much is done as for one frame, counted at Pillow's decoders, and at WebP's own, called for each frame."""
    decoders, frames = 0, 0
    make, animation = Image._getdecoder, WebPImagePlugin._webp.WebPAnimDecoder

    def counted(*args: Any) -> Any:
        nonlocal decoders
        decoders += 1
        return make(*args)

    class Counted:
        def __init__(self, data: bytes) -> None:
            self._decoder = animation(data)

        def __getattr__(self, name: str) -> Any:
            nonlocal frames
            frames += name == "get_next"
            return getattr(self._decoder, name)

    monkeypatch.setattr(Image, "_getdecoder", counted)
    monkeypatch.setattr(WebPImagePlugin._webp, "WebPAnimDecoder", Counted)
    counts = []
    for count in (1, 10_000):
        decoders = frames = 0
        assert decode(many_frames(kind, count), LIMITS).pixels.shape[:2] == (8, 8)
        counts.append((decoders, frames))
    assert counts[0] == counts[1]
    assert counts[0][0] >= 1
    assert counts[0][1] == (kind == "webp")


def many_frames(kind: str, count: int) -> bytes:
    """A file of 8 x 8 px and as many frames."""
    if kind == "gif":
        gif = files.gif_frame((8, 8), (0, 0, 8, 8), [(0, 0, 0)] * 4, 2)
        at = gif.index(b",")
        return gif[:at] + gif[at:-1] * count + b";"
    if kind == "mpo":
        jpeg = files.save(files.flat(9, 9, 9, (8, 8)), "JPEG")
        return jpeg * count
    if kind == "png":
        frame = files.png_chunk(b"fcTL", bytes(26)) + files.png_chunk(b"fdAT", bytes(20))
        still = files.png(8, 8, bytes(72), extra=files.png_chunk(b"acTL", struct.pack(">II", count, 0)))
        return still[:-12] + frame * count + still[-12:]
    if kind == "tiff":
        return tiff_pages(count)
    still = files.save(files.flat(9, 9, 9, (8, 8)), "WEBP", lossless=True)[12:]
    frame = bytes(6) + (7).to_bytes(3, "little") * 2 + (40).to_bytes(3, "little") + b"\2" + still
    chunk = b"ANMF" + struct.pack("<I", len(frame)) + frame
    head = (
        b"VP8X"
        + struct.pack("<I", 10)
        + b"\x02\0\0\0"
        + (7).to_bytes(3, "little") * 2
        + b"ANIM"
        + struct.pack("<I", 6)
        + bytes(6)
    )
    return b"RIFF" + struct.pack("<I", 4 + len(head) + count * len(chunk)) + b"WEBP" + head + chunk * count


def tiff_pages(count: int) -> bytes:
    """Directories one behind the other, all of the same strip."""
    strip = 8
    entries = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: strip, 277: 1, 278: 8, 279: 64}
    size = 2 + 12 * len(entries) + 4
    first = strip + 64
    pages = []
    for number in range(count):
        following = first + (number + 1) * size if number + 1 < count else 0
        directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries.items())
        pages.append(struct.pack("<H", len(entries)) + directory + struct.pack("<I", following))
    return b"II*\0" + struct.pack("<I", first) + bytes(64) + b"".join(pages)
