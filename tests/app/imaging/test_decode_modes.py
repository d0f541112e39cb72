"""Every format and every mode, against values derived from what the format says its samples mean."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import Image, ImageCms

from app.imaging.colour import to_rgb
from app.imaging.decode import Limits, decode
from app.imaging.errors import UnsupportedPixels
from tests.app.imaging import files

LIMITS = Limits()
SIDES = st.integers(1, 24)
pytestmark = pytest.mark.filterwarnings("error")


def pixels(data: bytes) -> NDArray[np.uint8]:
    return decode(data, LIMITS).pixels


def samples(channels: int, dtype: Any = np.uint8) -> st.SearchStrategy[NDArray[Any]]:
    shape = st.tuples(SIDES, SIDES, *([st.just(channels)] if channels > 1 else []))
    return arrays(dtype, shape)


def gray(levels: NDArray[Any]) -> NDArray[Any]:
    return np.stack([levels] * 3, axis=-1)


def on_white(colour: NDArray[Any], alpha: NDArray[Any]) -> NDArray[Any]:
    """c a + white (1 - a), rounded."""
    share = alpha[..., None] / 255
    return np.floor(colour * share + 255 * (1 - share) + 0.5)


LOSSLESS = [
    ("PNG", {}),
    ("BMP", {}),
    ("WEBP", {"lossless": True}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ("TIFF", {"compression": "packbits"}),
    ("TIFF", {"compression": "zstd", "big_tiff": True}),
]


@pytest.mark.parametrize(("format_", "options"), LOSSLESS)
@given(picture=samples(3))
@settings(max_examples=20, deadline=None)
def test_rgb_arrives_unchanged(format_: str, options: dict[str, Any], picture: NDArray[np.uint8]) -> None:
    np.testing.assert_array_equal(pixels(files.save(picture, format_, **options)), picture)


@pytest.mark.parametrize("format_", ["PNG", "BMP", "TIFF", "GIF"])
@given(picture=samples(1))
@settings(max_examples=20, deadline=None)
def test_gray_is_three_equal_channels(format_: str, picture: NDArray[np.uint8]) -> None:
    np.testing.assert_array_equal(pixels(files.save(picture, format_)), gray(picture))


@pytest.mark.parametrize(
    ("format_", "options"), [("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True, "exact": True})]
)
@given(picture=samples(4))
@settings(max_examples=20, deadline=None)
def test_alpha_is_composited_on_white(format_: str, options: dict[str, Any], picture: NDArray[np.uint8]) -> None:
    expected = on_white(picture[..., :3], picture[..., 3])
    np.testing.assert_array_equal(pixels(files.save(picture, format_, **options)), expected)


@pytest.mark.parametrize("format_", ["PNG", "TIFF"])
@given(picture=samples(2))
@settings(max_examples=20, deadline=None)
def test_gray_with_alpha(format_: str, picture: NDArray[np.uint8]) -> None:
    expected = on_white(gray(picture[..., 0]), picture[..., 1])
    np.testing.assert_array_equal(pixels(files.save(picture, format_)), expected)


@pytest.mark.parametrize("format_", ["PNG", "BMP", "TIFF"])
@given(picture=samples(1))
@settings(max_examples=10, deadline=None)
def test_bilevel_is_black_and_white(format_: str, picture: NDArray[np.uint8]) -> None:
    bits = picture > 127
    np.testing.assert_array_equal(pixels(files.save(Image.fromarray(bits), format_)), gray(bits * 255))


PALETTE = np.array([(250, 10, 20), (0, 200, 100), (30, 40, 255), (255, 255, 0)], np.uint8)


def palette_image(indices: NDArray[np.uint8]) -> Image.Image:
    image = Image.fromarray(indices, "L")
    image.putpalette(PALETTE.tobytes())
    return image


INDICES = arrays(np.uint8, st.tuples(SIDES, SIDES), elements=st.integers(0, 3))


@pytest.mark.parametrize("format_", ["PNG", "BMP", "TIFF", "GIF"])
@given(indices=INDICES)
@settings(max_examples=10, deadline=None)
def test_palette_is_looked_up(format_: str, indices: NDArray[np.uint8]) -> None:
    np.testing.assert_array_equal(pixels(files.save(palette_image(indices), format_)), PALETTE[indices])


@pytest.mark.parametrize("format_", ["PNG", "GIF"])
@given(indices=INDICES)
@settings(max_examples=10, deadline=None)
def test_a_transparent_palette_entry_is_white(format_: str, indices: NDArray[np.uint8]) -> None:
    seen = np.vstack([PALETTE[:2], [(255, 255, 255)], PALETTE[3:]])
    data = files.save(palette_image(indices), format_, transparency=2, optimize=False)
    np.testing.assert_array_equal(pixels(data), seen[indices])


@given(indices=INDICES)
@settings(max_examples=10, deadline=None)
def test_palette_with_an_alpha_for_each_entry(indices: NDArray[np.uint8]) -> None:
    alphas = np.array([0, 64, 128, 255], np.uint8)
    data = files.save(palette_image(indices), "PNG", transparency=alphas.tobytes())
    np.testing.assert_array_equal(pixels(data), on_white(PALETTE, alphas)[indices])


@pytest.mark.parametrize(("bits", "key", "white"), [(1, 1, 1), (2, 1, 1), (4, 7, 7), (8, 200, 200)])
def test_png_gray_key_colour_counts_in_the_files_own_bits(bits: int, key: int, white: int) -> None:
    """The row holds every level once, left to right; level k of n bits is k x 255 / (2^n - 1)."""
    levels = np.arange(2**bits)
    row = np.packbits(np.unpackbits(levels.astype(np.uint8)[:, None], axis=1)[:, -bits:]).tobytes()
    key_chunk = files.png_chunk(b"tRNS", key.to_bytes(2, "big"))
    expected = levels * 255 // (2**bits - 1)
    expected[white] = 255
    decoded = pixels(files.png(len(levels), 1, b"\0" + row, bits=bits, extra=key_chunk))
    np.testing.assert_array_equal(decoded, gray(expected[None]))


def test_png_colour_key() -> None:
    key_chunk = files.png_chunk(b"tRNS", bytes((0, 10, 0, 20, 0, 30)))
    row = bytes((0, 10, 20, 30, 10, 20, 31))  # filter byte, the key, a neighbour of the key
    decoded = pixels(files.png(2, 1, row, colour=2, extra=key_chunk))
    assert decoded.tolist() == [[[255, 255, 255], [10, 20, 31]]]


def test_png_16_bit_colour_with_key() -> None:
    key_chunk = files.png_chunk(b"tRNS", bytes((10, 1, 20, 2, 30, 3)))
    row = bytes((0, 10, 1, 20, 2, 30, 3, 200, 0, 100, 0, 50, 0))
    decoded = pixels(files.png(2, 1, row, bits=16, colour=2, extra=key_chunk))
    assert decoded.tolist() == [[[255, 255, 255], [200, 100, 50]]]


@pytest.mark.parametrize("order", ["<", ">"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_16_bit_tiff_is_divided_by_257(order: str, data: st.DataObject) -> None:
    picture = data.draw(samples(1, f"{order}u2"))
    expected = np.floor(picture.astype(np.float64) / 257 + 0.5)  # 65535 / 257 = 255
    np.testing.assert_array_equal(pixels(files.gray_tiff(picture)), gray(expected))
    if order == "<":  # Pillow knows 16-bit files with white at zero in this byte order only
        np.testing.assert_array_equal(pixels(files.gray_tiff(picture, white_is_zero=True)), gray(255 - expected))


@given(picture=samples(1, np.uint16))
@settings(max_examples=20, deadline=None)
def test_16_bit_png_is_divided_by_257(picture: NDArray[np.uint16]) -> None:
    expected = np.floor(picture.astype(np.float64) / 257 + 0.5)
    np.testing.assert_array_equal(pixels(files.save(picture, "PNG")), gray(expected))


def test_16_bit_png_gray_key() -> None:
    key_chunk = files.png_chunk(b"tRNS", bytes((1, 2)))
    decoded = pixels(files.png(2, 1, bytes((0, 1, 2, 1, 3)), bits=16, extra=key_chunk))
    assert decoded[0, :, 0].tolist() == [255, 1]  # the key 0x0102; then 0x0103 = 259, and 259 / 257 = 1.008


def test_12_bit_tiff_uses_its_own_white() -> None:
    tags = {256: (3, [2]), 257: (3, [1]), 258: (3, [12]), 259: (3, [1]), 262: (3, [1]), 277: (3, [1]), 279: (3, [3])}
    decoded = pixels(
        files.tiff(tags, bytes((0xFF, 0xF8, 0x00)))
    )  # 0xFFF = white; 0x800 = 2048: 2048 x 255 / 4095 = 127.5
    assert decoded[0, :, 0].tolist() in ([255, 127], [255, 128])


@pytest.mark.parametrize(
    ("values", "dtype", "white"),
    [
        ([0, 100, 255], "<i4", 255),
        ([0, 100, 256], "<i4", 65535),
        ([0, 30000, 65535], ">i4", 65535),
        ([0, 7, 65535], "<u4", 65535),
        ([0, 300, 32767], "<i2", 65535),
        ([0.0, 0.25, 1.0], "<f4", 1),
        ([0.0, 1.5, 255.0], ">f4", 255),
        ([0.0, 255.5, 65535.0], "<f4", 65535),
    ],
)
def test_wide_samples_take_the_smallest_white_that_none_exceeds(values: list[float], dtype: str, white: int) -> None:
    expected = [round(value * 255 / white) for value in values]
    decoded = pixels(files.gray_tiff(np.array([values], dtype)))
    assert decoded[0, :, 0].tolist() == expected


def test_large_wide_pictures_are_converted_in_pieces() -> None:
    """They hold the samples twice while Pillow hands them over, 8 bytes a pixel, and then once, with 3 of the answer.

    In one piece there would be float64 copies besides: 20 bytes a pixel.
    """
    samples = np.random.default_rng(0).integers(0, 65536, (1000, 1000), np.int32)
    samples[0, :2] = 0, 65535
    image = Image.fromarray(samples)
    image.info["transparency"] = key = int(samples[700, 3])
    tracemalloc.start()
    try:
        found = to_rgb(image, white_is_zero=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    expected = np.where(samples == key, 255, 255 - np.round(samples / 257))
    np.testing.assert_array_equal(found, gray(expected))
    assert peak < 12 * samples.size


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([-1, 5], "<i4"),
        ([0, 65536], "<i4"),
        ([-5, 5], "<i2"),
        ([0.0, -0.001], "<f4"),
        ([0.0, 70000.0], "<f4"),
        ([0.5, float("nan")], "<f4"),
        ([0.5, float("inf")], "<f4"),
    ],
)
def test_wide_samples_without_an_agreed_white_are_refused(values: list[float], dtype: str) -> None:
    with pytest.raises(UnsupportedPixels, match=r"0 to 255.*0 to 65535") as caught:
        pixels(files.gray_tiff(np.array([values], dtype)))
    assert "0 to 255" in caught.value.extra["choices"]  # type: ignore[operator]


@given(picture=samples(4))
@settings(max_examples=20, deadline=None)
def test_cmyk_tiff(picture: NDArray[np.uint8]) -> None:
    """R = (255 - C)(255 - K) / 255, and so on: within the rounding of one product."""
    ink = picture.astype(np.float64)
    expected = (255 - ink[..., :3]) * (255 - ink[..., 3:]) / 255
    decoded = pixels(files.save(Image.fromarray(picture, "CMYK"), "TIFF"))
    assert np.abs(decoded - expected).max() <= 0.5 + 1e-9


@pytest.mark.parametrize("ink", [(0, 0, 0, 0), (0, 255, 255, 0), (200, 100, 50, 20), (0, 0, 0, 255)])
def test_cmyk_jpeg_is_stored_inverted_as_adobe_does(ink: tuple[int, ...]) -> None:
    """Pillow writes CMYK JPEGs as Adobe does: inverted, with an APP14 segment. No ink must come back as white."""
    data = files.save(Image.new("CMYK", (16, 16), ink), "JPEG", quality=100)
    assert b"Adobe" in data
    expected = [(255 - c) * (255 - ink[3]) / 255 for c in ink[:3]]
    assert np.abs(pixels(data) - np.array(expected)).max() <= 2.0  # JPEG's own rounding, twice


@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (12, 200, 99), (255, 255, 255)])
@pytest.mark.parametrize("format_", ["JPEG", "TIFF"])
def test_ycbcr(format_: str, colour: tuple[int, int, int]) -> None:
    data = files.save(files.flat(*colour).convert("YCbCr"), format_, **({"quality": 100} if format_ == "JPEG" else {}))
    assert np.abs(pixels(data).astype(int) - colour).max() <= 3  # three 8-bit roundings on the way through YCbCr


@pytest.mark.parametrize(("lightness", "level"), [(0, 0), (136, 128), (255, 255)])
def test_lab(lightness: int, level: int) -> None:
    """Neutral colours (a = b = 0, signed). L* = 136 / 255 x 100 = 53.3 has luminance ((53.3 + 16) / 116)^3 = 0.213,
    which sRGB encodes as 1.055 x 0.213^(1/2.4) - 0.055 = 0.499: level 127 to 128."""
    image = Image.fromarray(np.full((4, 4, 3), (lightness, 0, 0), np.uint8), "LAB")
    assert np.abs(to_rgb(image).astype(int) - level).max() <= 1


def test_lab_tiff_agrees_with_the_profiles_in_both_directions() -> None:
    image = files.flat(180, 90, 40)
    transform = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
    lab = ImageCms.applyTransform(image, transform)
    assert lab is not None
    assert np.abs(pixels(files.save(lab, "TIFF")).astype(int) - (180, 90, 40)).max() <= 2


def test_modes_that_files_rarely_hold() -> None:
    premultiplied = Image.new("RGBa", (1, 1), (100, 50, 0, 128))
    # Straight colour c = p x 255 / 128, then c x 128 / 255 + 127: p + 127, within one step of rounding.
    assert np.abs(to_rgb(premultiplied)[0, 0].astype(int) - (227, 177, 127)).max() <= 1
    assert np.abs(to_rgb(Image.new("La", (1, 1), (64, 128)))[0, 0].astype(int) - 191).max() <= 1
    indexed = Image.merge("PA", [palette_image(np.full((1, 1), 1, np.uint8)), Image.new("L", (1, 1), 0)])
    assert to_rgb(indexed).tolist() == [[[255, 255, 255]]]


@pytest.mark.parametrize("format_", ["PNG", "GIF", "WEBP", "TIFF", "MPO"])
def test_only_the_first_frame_counts(format_: str) -> None:
    options = {"lossless": True} if format_ == "WEBP" else {}
    data = files.save(files.flat(0, 200, 0), format_, save_all=True, append_images=[files.flat(200, 0, 0)], **options)
    picture = decode(data, LIMITS)
    assert np.abs(picture.pixels.astype(int) - (0, 200, 0)).max() <= 2  # MPO is JPEG, the rest is exact
    assert picture.media_type == f"image/{'jpeg' if format_ == 'MPO' else format_.lower()}"


GIF_COLOURS = [(9, 9, 9), (250, 0, 0), (0, 250, 0), (0, 0, 250)]


@pytest.mark.parametrize("transparent", [None, 3])
def test_what_a_gif_frame_leaves_free_is_white(transparent: int | None) -> None:
    data = files.gif_frame((6, 5), (1, 2, 3, 2), GIF_COLOURS, 1, transparent=transparent)
    expected = np.full((5, 6, 3), 255)
    expected[2:4, 1:4] = GIF_COLOURS[1]
    np.testing.assert_array_equal(pixels(data), expected)


def test_run_length_bmp() -> None:
    """Two rows, bottom first: three pixels of colour 1; then 2, 0 as literals (padded) and 1 once more."""
    codes = bytes((3, 1, 0, 0)) + bytes((1, 2, 1, 0, 1, 1, 0, 0, 0, 1))
    palette = [(10, 20, 30), (40, 50, 60), (70, 80, 90)]
    expected = [[palette[2], palette[0], palette[1]], [palette[1]] * 3]
    assert pixels(files.bmp_rle8(3, 2, codes, palette)).tolist() == [[list(c) for c in row] for row in expected]
