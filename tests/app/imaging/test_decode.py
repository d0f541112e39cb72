"""The way up, the size and the threads: what `decode` does whatever the picture's mode."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from app.imaging.decode import Limits, Picture, decode
from tests.app.imaging import files

LIMITS = Limits()
pytestmark = pytest.mark.filterwarnings("error")


def pixels(data: bytes) -> NDArray[np.uint8]:
    return decode(data, LIMITS).pixels


def gray(levels: NDArray[Any]) -> NDArray[Any]:
    return np.stack([levels] * 3, axis=-1)


STORED = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 10
"""H = 2, W = 3, no symmetry."""


def upright(orientation: int) -> NDArray[np.uint8]:
    """The EXIF standard, pixel by pixel: where does stored row r, column c go?"""
    height, width = STORED.shape[:2]
    target: dict[int, Callable[[int, int], tuple[int, int]]] = {
        1: lambda r, c: (r, c),  # row 0 is the top, column 0 the left
        2: lambda r, c: (r, width - 1 - c),  # top, right
        3: lambda r, c: (height - 1 - r, width - 1 - c),  # bottom, right
        4: lambda r, c: (height - 1 - r, c),  # bottom, left
        5: lambda r, c: (c, r),  # row 0 is the left side, column 0 the top
        6: lambda r, c: (c, height - 1 - r),  # right side, top
        7: lambda r, c: (width - 1 - c, height - 1 - r),  # right side, bottom
        8: lambda r, c: (width - 1 - c, r),  # left side, bottom
    }
    result = np.zeros((width, height, 3) if orientation >= 5 else STORED.shape, np.uint8)
    for r in range(height):
        for c in range(width):
            result[target[orientation](r, c)] = STORED[r, c]
    return result


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_", ["PNG", "WEBP", "TIFF", "TIFF lzw", "BigTIFF"])
def test_orientation_is_applied_once(format_: str, orientation: int) -> None:
    name, options = {
        "PNG": ("PNG", {"exif": files.exif(orientation)}),
        "WEBP": ("WEBP", {"exif": files.exif(orientation), "lossless": True}),
        "TIFF": ("TIFF", {"tiffinfo": {274: orientation}}),
        "TIFF lzw": ("TIFF", {"tiffinfo": {274: orientation}, "compression": "tiff_lzw"}),
        "BigTIFF": ("TIFF", {"tiffinfo": {274: orientation}, "big_tiff": True}),
    }[format_]
    picture = decode(files.save(STORED, name, **options), LIMITS)  # type: ignore[arg-type]
    np.testing.assert_array_equal(picture.pixels, upright(orientation))
    assert (picture.height, picture.width) == upright(orientation).shape[:2]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("reduced", [False, True])
def test_orientation_of_jpeg(orientation: int, order: str, reduced: bool) -> None:
    large = np.kron(STORED, np.ones((64, 64, 1), np.uint8))  # each pixel a block of 64 x 64: JPEG keeps its middle
    data = files.save(large, "JPEG", quality=100, subsampling=0, exif=files.exif(orientation, order=order))
    picture = decode(data, LIMITS, enough_px=32 if reduced else None)  # 128 / 32 = 4 times smaller
    block = 16 if reduced else 64
    assert picture.pixels.shape[0] == upright(orientation).shape[0] * block
    middles = picture.pixels[block // 2 :: block, block // 2 :: block].astype(int)
    assert np.abs(middles - upright(orientation)).max() <= 3
    assert (picture.height, picture.width) == tuple(64 * side for side in upright(orientation).shape[:2])


BROKEN_EXIF = {
    "empty": b"Exif\0\0",
    "no header": b"Exif\0\0garbage that is no TIFF",
    "cut off": files.exif(6)[:18],
    "offset outside": b"Exif\0\0II*\0\xff\xff\xff\x7f",
    "too many entries": files.exif(6, tag=0x0100).replace(b"\x01\0\0\x01", b"\xff\xff\0\x01", 1),
    "orientation 0": files.exif(0),
    "orientation 9": files.exif(9),
}


@pytest.mark.parametrize("block", BROKEN_EXIF.values(), ids=BROKEN_EXIF.keys())
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_broken_exif_does_not_fail_the_picture(format_: str, block: bytes) -> None:
    data = files.save(files.flat(90, 90, 90, (8, 4)), format_, exif=block)
    picture = decode(data, LIMITS)
    assert (picture.width, picture.height) == (8, 4)


def test_a_long_orientation_counts_too() -> None:
    data = files.save(files.flat(0, 0, 0, (8, 4)), "PNG", exif=files.exif(6, kind=4))
    assert (decode(data, LIMITS).width, decode(data, LIMITS).height) == (4, 8)


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
@pytest.mark.parametrize("size", [(1, 1), (900, 1), (1, 900), (7, 3)])
def test_thin_pictures(format_: str, size: tuple[int, int]) -> None:
    picture = decode(files.save(files.flat(40, 40, 40, size), format_), LIMITS, enough_px=224)
    assert (picture.width, picture.height) == size
    assert picture.pixels.shape == (size[1], size[0], 3)
    assert np.abs(picture.pixels.astype(int) - 40).max() <= 2


@pytest.mark.parametrize(
    ("size", "enough_px", "reduction"),
    [
        ((800, 600), None, 1),
        ((800, 600), 601, 1),
        ((800, 600), 600, 1),
        ((800, 600), 300, 2),
        ((800, 600), 299, 2),
        ((800, 600), 150, 4),
        ((600, 800), 75, 8),
        ((800, 600), 1, 8),  # libjpeg reduces by 8 at most
        ((801, 603), 75, 8),  # 101 x 76: rounded up
    ],
)
def test_jpeg_is_decoded_no_larger_than_needed(size: tuple[int, int], enough_px: int | None, reduction: int) -> None:
    ramp = np.linspace(0, 255, size[0] * size[1]).reshape(size[1], size[0]).astype(np.uint8)
    picture = decode(files.save(gray(ramp), "JPEG"), LIMITS, enough_px=enough_px)
    height, width = picture.pixels.shape[:2]
    assert (width, height) == (-(-size[0] // reduction), -(-size[1] // reduction))
    assert (picture.width, picture.height) == size
    assert abs(picture.pixels.mean() - ramp.mean()) < 1.5


@pytest.mark.parametrize(
    ("size", "longest_px", "reduction"),
    [
        ((800, 400), 0, 4),  # 200 x 100
        ((800, 400), 200, 4),
        ((400, 800), 200, 4),
        ((800, 400), 201, 2),
        ((400, 800), 201, 2),
        ((800, 400), 900, 1),
    ],
)
def test_the_longest_side_has_a_bound_of_its_own(size: tuple[int, int], longest_px: int, reduction: int) -> None:
    picture = decode(files.save(files.flat(1, 2, 3, size), "JPEG"), LIMITS, enough_px=100, longest_px=longest_px)
    assert picture.pixels.shape[:2] == (size[1] // reduction, size[0] // reduction)


def test_other_formats_are_never_reduced() -> None:
    assert decode(files.save(files.flat(1, 2, 3, (64, 64)), "PNG"), LIMITS, enough_px=8).pixels.shape == (64, 64, 3)


def test_pixels_are_read_only() -> None:
    for data in (
        files.save(STORED, "PNG"),
        files.save(STORED, "PNG", exif=files.exif(6)),
        files.gray_tiff(STORED[..., 0]),
    ):
        assert not pixels(data).flags.writeable


def test_many_threads_and_no_global_state() -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (61, 47, 3)).astype(np.uint8) for _ in range(8)]
    uploads = [files.save(picture, format_) for picture in pictures for format_ in ("PNG", "TIFF", "BMP")]
    before = (Image.MAX_IMAGE_PIXELS, list(Image.ID), dict(Image.OPEN))

    def digest(data: bytes) -> str:
        return hashlib.sha256(pixels(data).tobytes()).hexdigest()

    with ThreadPoolExecutor(8) as pool:
        digests = list(pool.map(digest, uploads * 4))
    assert digests == [hashlib.sha256(p.tobytes()).hexdigest() for p in pictures for _ in range(3)] * 4
    assert (Image.MAX_IMAGE_PIXELS, list(Image.ID), dict(Image.OPEN)) == before


def test_picture_is_frozen() -> None:
    picture = decode(files.save(STORED, "PNG"), LIMITS)
    assert isinstance(picture, Picture)
    with pytest.raises(AttributeError):
        picture.width = 1  # type: ignore[misc]
