"""Bytes out: right colours, full chroma, the same arrays back."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from app.imaging.decode import Limits, decode
from app.imaging.encode import encode, fit, npy, npz, resize
from app.imaging.errors import UnsupportedOutput

COLOURS = np.array([[(255, 0, 0), (0, 255, 0)], [(0, 0, 255), (250, 240, 10)]], np.uint8)
BLOCKS = np.kron(COLOURS, np.ones((16, 16, 1), np.uint8))


@pytest.mark.parametrize(("format_", "tolerance"), [("png", 0), ("jpeg", 6), ("webp", 20)])
def test_colours_come_back_in_order(format_: str, tolerance: int) -> None:
    """In the middle of 16 x 16 blocks; WebP halves the colour resolution and limits the range of brightness."""
    assert Image.open(BytesIO(encode(BLOCKS, format_))).mode == "RGB"
    picture = decode(encode(BLOCKS, format_), Limits())
    assert picture.media_type == f"image/{format_}"
    assert np.abs(picture.pixels[8::16, 8::16].astype(int) - COLOURS).max() <= tolerance


def test_jpeg_keeps_the_colour_resolution() -> None:
    """4:4:4: every component is sampled once per pixel."""
    image = Image.open(BytesIO(encode(BLOCKS, "jpeg")))
    assert [(across, down) for _, across, down, _ in image.layer] == [(1, 1)] * 3  # type: ignore[attr-defined]
    edge = decode(encode(BLOCKS, "jpeg"), Limits()).pixels[8, 14:18].astype(int)
    assert np.abs(edge - BLOCKS[8, 14:18]).max() <= 12  # at 4:2:0, red against green would be off by more than 60


def test_rgba() -> None:
    layer = np.random.default_rng(0).integers(0, 256, (9, 7, 4)).astype(np.uint8)
    png = Image.open(BytesIO(encode(layer, "png")))
    assert png.mode == "RGBA"
    np.testing.assert_array_equal(np.asarray(png), layer)
    webp = np.asarray(Image.open(BytesIO(encode(layer, "webp"))))
    np.testing.assert_array_equal(webp[..., 3], layer[..., 3])  # WebP keeps alpha without loss


def test_jpeg_has_no_alpha() -> None:
    with pytest.raises(UnsupportedOutput, match="choose png or webp") as caught:
        encode(np.zeros((2, 2, 4), np.uint8), "jpeg")
    assert caught.value.extra == {"choices": ["png", "webp"]}
    assert caught.value.field == "format"


def test_unknown_format() -> None:
    with pytest.raises(UnsupportedOutput, match="choose jpeg or png or webp"):
        encode(BLOCKS, "gif")


@pytest.mark.parametrize(("format_", "side", "choices"), [("webp", 16_384, ["jpeg", "png"]), ("jpeg", 65_501, ["png"])])
def test_sides_that_a_format_cannot_hold(format_: str, side: int, choices: list[str]) -> None:
    with pytest.raises(UnsupportedOutput) as caught:
        encode(np.zeros((1, side, 3), np.uint8), format_)
    assert caught.value.extra["choices"] == choices
    assert encode(np.zeros((1, side - 1, 3), np.uint8), format_)


@pytest.mark.parametrize("format_", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1)])
def test_thin_pictures(format_: str, size: tuple[int, int]) -> None:
    picture = decode(encode(np.full((*size, 3), 77, np.uint8), format_), Limits())
    assert (picture.height, picture.width) == size


def test_read_only_pixels_are_fine() -> None:
    pixels = BLOCKS.copy()
    pixels.setflags(write=False)
    assert encode(pixels, "png")
    assert resize(pixels, (5, 5)).shape == (5, 5, 3)


def test_npy() -> None:
    values = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    back = np.load(BytesIO(npy(values)), allow_pickle=False)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, values)


def test_npz() -> None:
    arrays: dict[str, NDArray[Any]] = {
        "maps": np.ones((2, 3, 4), np.float32),
        "file": np.arange(3),
        "seen": np.zeros((3, 4), np.bool_),
    }
    with np.load(BytesIO(npz(arrays)), allow_pickle=False) as back:
        assert set(back) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(back[name], array)
            assert back[name].dtype == array.dtype


def test_npz_does_not_depend_on_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"map": np.ones((2, 2), np.float32)}
    monkeypatch.setattr("time.time", lambda: 1e9)
    first = npz(arrays)
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert npz(arrays) == first


@pytest.mark.parametrize("write", [npy, lambda array: npz({"a": array})])
def test_objects_are_not_pickled(write) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        write(np.array([{"a": 1}], dtype=object))


@pytest.mark.parametrize(
    ("size", "max_side", "expected"),
    [
        ((451, 300), 1024, (451, 300)),  # never enlarged
        ((4000, 3000), 1024, (1024, 768)),
        ((3000, 4000), 1024, (768, 1024)),
        ((900, 1), 100, (100, 1)),  # 1/9 of a pixel is still one
        ((1, 1), 1, (1, 1)),
        ((1000, 667), 500, (500, 334)),  # 333.5, to even
    ],
)
def test_fit(size: tuple[int, int], max_side: int, expected: tuple[int, int]) -> None:
    assert fit(*size, max_side) == expected


@given(width=st.integers(1, 70_000), height=st.integers(1, 70_000), max_side=st.integers(1, 5000))
def test_fit_keeps_shape_and_limit(width: int, height: int, max_side: int) -> None:
    new = fit(width, height, max_side)
    assert 1 <= min(new) <= max(new) <= max(max_side, 1)
    assert max(new) == min(max(width, height), max_side)
    scale = min(1.0, max_side / max(width, height))
    assert abs(new[0] - width * scale) <= 1
    assert abs(new[1] - height * scale) <= 1


def test_resize() -> None:
    """Smaller: the mean of what each pixel covers. Larger: the same size for a flat colour, no new colours."""
    halves: NDArray[np.uint8] = np.array([[[0] * 3, [100] * 3, [200] * 3, [250] * 3]], np.uint8)
    assert resize(halves, (2, 1))[0, :, 0].tolist() == [50, 225]
    assert (resize(np.full((2, 3, 3), 9, np.uint8), (30, 20)) == 9).all()
    assert resize(halves, (4, 1)) is halves


@pytest.mark.parametrize("width", [2, 3, 4, 5, 6, 7])
def test_a_smaller_picture_leaves_no_pixel_out(width: int) -> None:
    """Whichever column is bright can be seen, and brightens what it covers: the means differ by little."""
    for bright in range(8):
        pixels = np.zeros((8, 8, 3), np.uint8)
        pixels[:, bright] = 240
        resized = resize(pixels, (width, width))
        assert resized.shape == (width, width, 3)
        assert 15 <= resized.mean() <= 60  # 240 / 8 is 30


def test_each_axis_is_averaged_by_its_own_factor() -> None:
    """16 columns become one, 2 rows stay. Each halving rounds, which loses a level at most."""
    pixels = np.repeat(np.arange(64, dtype=np.uint8), 4)[None, :, None].repeat(2, 0).repeat(3, 2)  # 256 x 2
    means = 4 * np.arange(16) + 1.5  # of 4 i, 4 i + 1, 4 i + 2, 4 i + 3
    assert np.abs(resize(pixels, (16, 2))[:, :, 0] - means).max() <= 1
