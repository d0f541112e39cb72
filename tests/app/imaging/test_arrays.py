"""`.npy` files as pictures with any number of planes."""

import struct
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.imaging.decode import Limits, decode
from app.imaging.errors import CorruptImage, ImageError, SideTooLong, TooManyBytes, TooManyPixels, UnsupportedPixels

LIMITS = Limits()


def npy(array: NDArray[np.generic], version: tuple[int, int] = (1, 0)) -> bytes:
    stream = BytesIO()
    np.lib.format.write_array(stream, array, version=version, allow_pickle=True)
    return stream.getvalue()


def with_header(text: str, samples: bytes = b"") -> bytes:
    header = text.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + samples


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(len(shape)).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("count", [2, 4, 32])
def test_all_planes_are_kept_and_the_first_three_are_shown(version: tuple[int, int], order: str, count: int) -> None:
    array = np.asarray(noise(5, 7, count), order=order)  # type: ignore[call-overload]
    picture = decode(npy(array, version), LIMITS)
    assert (picture.width, picture.height) == (7, 5)
    assert picture.planes is not None
    np.testing.assert_array_equal(picture.planes, array)
    np.testing.assert_array_equal(picture.samples, array)
    shown = array[..., :3] if count >= 3 else np.stack([array[..., 0]] * 3, -1)
    np.testing.assert_array_equal(picture.pixels, shown)
    assert picture.pixels.flags.c_contiguous
    assert not picture.pixels.flags.writeable


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1)])
def test_one_plane_is_a_gray_picture(shape: tuple[int, ...]) -> None:
    array = noise(*shape)
    picture = decode(npy(array), LIMITS)
    assert picture.planes is None
    np.testing.assert_array_equal(picture.samples, np.stack([array.reshape(5, 7)] * 3, -1))


def test_three_planes_are_an_rgb_picture() -> None:
    array = noise(5, 7, 3)
    picture = decode(npy(array), LIMITS)
    assert picture.planes is None
    np.testing.assert_array_equal(picture.pixels, array)


@pytest.mark.parametrize(
    ("data", "error", "complaint"),
    [
        (npy(noise(2, 2).astype(np.float32)), UnsupportedPixels, "has to be uint8 of shape"),
        (npy(noise(2, 2).astype(np.uint16)), UnsupportedPixels, "has to be uint8"),
        (npy(noise(2, 2).astype(np.int8)), UnsupportedPixels, "has to be uint8"),
        (npy(noise(4)), UnsupportedPixels, "has to be uint8 of shape"),
        (npy(noise(2, 2, 2, 2)), UnsupportedPixels, "has to be uint8 of shape"),
        (npy(noise(2, 2, 33)), UnsupportedPixels, "1 to 32 planes, this one has 33"),
        (npy(noise(2, 2, 0)), UnsupportedPixels, "1 to 32 planes, this one has 0"),
        (npy(noise(0, 2)), CorruptImage, "holds 0 samples"),
        (npy(noise(4, 4))[:-1], CorruptImage, "holds 15 samples, its header says 16"),
        (npy(noise(4, 4)) + b"\0", CorruptImage, "holds 17 samples"),
        (b"\x93NUMPY", CorruptImage, "header cannot be read"),
        (b"\x93NUMPY\x01\x00\xff\xff{", CorruptImage, "header cannot be read"),
        (with_header("{'descr': '|O', 'fortran_order': False, 'shape': (2, 2), }"), UnsupportedPixels, "uint8"),
        (with_header("{'descr': __import__('os'), 'shape': (2, 2), }"), CorruptImage, "header cannot be read"),
        (with_header("(" * 5000), CorruptImage, "header cannot be read"),
        (with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (-2, 2), }"), CorruptImage, "header cannot"),
        (with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (65536, 1), }"), SideTooLong, "IMAGE_SIDE"),
        (with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (20000, 20000), }"), TooManyPixels, "PIXELS"),
    ],
)
def test_what_cannot_be_is_refused(data: bytes, error: type[ImageError], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        decode(data, LIMITS)


def test_a_file_of_objects_is_never_unpickled() -> None:
    with pytest.raises(UnsupportedPixels):
        decode(npy(np.array([[1, "a"]], dtype=object)), LIMITS)


def test_the_limit_on_bytes_holds() -> None:
    with pytest.raises(TooManyBytes):
        decode(npy(noise(40, 40)), Limits(max_bytes=1000))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 120))
def test_damage_raises_nothing_else(garbage: bytes, at: int) -> None:
    data = npy(noise(3, 4, 5))
    for damaged in (b"\x93NUMPY" + garbage, data[:at] + garbage + data[at + len(garbage) :]):
        with suppress(ImageError):
            decode(damaged, LIMITS)
