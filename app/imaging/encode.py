"""Pixels and arrays to bytes. The one place where RGB becomes OpenCV's BGR."""

import zipfile
from collections.abc import Mapping
from io import BytesIO

import cv2
import numpy as np
from numpy.typing import NDArray

from app.imaging.errors import UnsupportedOutput

_MAX_SIDE_PX = {"jpeg": 65_500, "png": 1_000_000, "webp": 16_383}
"""The picture formats, and what their encoders take (libjpeg's and libpng's defaults, WebP's format)."""

_QUALITY = 90
"""Of JPEG and WebP, from 1 to 100."""


def encode(pixels: NDArray[np.uint8], format: str) -> bytes:  # noqa: A002
    """Encode uint8 (H, W, 3) RGB as jpeg, png or webp, or (H, W, 4) RGBA with straight alpha as png or webp.

    JPEG keeps full chroma resolution: the heat's edges are edges of colour.
    PNG takes OpenCV's default, its fastest setting.

    Raises `UnsupportedOutput` if the format is unknown or cannot hold the picture.
    """
    height, width, channels = pixels.shape
    _check(format, max(height, width), channels)
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR if channels == 3 else cv2.COLOR_RGBA2BGRA)
    done, buffer = cv2.imencode(f".{format}", bgr, _parameters(format))
    if not done:
        raise RuntimeError(f"OpenCV could not encode {width} x {height} px as {format}")
    return buffer.tobytes()


def _check(format: str, side_px: int, channels: int) -> None:  # noqa: A002
    able = [name for name, most in _MAX_SIDE_PX.items() if side_px <= most and (channels == 3 or name != "jpeg")]
    if format not in able:
        what = f"of {side_px} px per side" if channels == 3 else f"with transparency and {side_px} px per side"
        raise UnsupportedOutput(
            f"A picture {what} cannot be made as {format}; choose {' or '.join(able)}.", choices=able
        )


def _parameters(format: str) -> list[int]:  # noqa: A002
    if format == "png":
        return []
    if format == "webp":
        return [cv2.IMWRITE_WEBP_QUALITY, _QUALITY]
    return [
        *(cv2.IMWRITE_JPEG_QUALITY, _QUALITY),
        *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
    ]


def gray_png(values: NDArray[np.float32]) -> bytes:
    """Encode (H, W) in [0, 1] as 8-bit gray PNG: 0 is black, 1 is white."""
    done, buffer = cv2.imencode(".png", cv2.convertScaleAbs(values, alpha=255.0))
    if not done:
        raise RuntimeError(f"OpenCV could not encode {values.shape[1]} x {values.shape[0]} px as png")
    return buffer.tobytes()


def npy(array: NDArray[np.generic]) -> bytes:
    """Write one array as a .npy file. Object arrays are refused with `ValueError`: they would be pickled."""
    buffer = BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def npz(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Write named arrays as an uncompressed .npz file; equal arrays give equal bytes (no time stamps)."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), npy(array))  # ZipInfo's date is 1980-01-01
    return buffer.getvalue()


def fit(width: int, height: int, max_side: int) -> tuple[int, int]:
    """Return the largest (width, height) of the same shape whose sides are at most `max_side`; never enlarged, >= 1."""
    factor = min(1.0, max_side / max(width, height))
    return max(1, round(width * factor)), max(1, round(height * factor))


def resize(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Bring uint8 (H, W, 3) to `size` (width, height) px: bicubic when larger; when smaller, no pixel is left out.

    It is halved, by the mean of the two, as often as that leaves it large enough; linear interpolation does the rest,
    and between one half and one its two neighbours are all there is. OpenCV's area average, exact for any factor, takes
    six times as long.
    """
    while (halved := _halved(pixels, size)) != (pixels.shape[1], pixels.shape[0]):
        pixels = np.asarray(cv2.resize(pixels, halved, interpolation=cv2.INTER_AREA), np.uint8)
    if size == halved:
        return pixels
    shrinks = size[0] <= halved[0] and size[1] <= halved[1]
    method = cv2.INTER_LINEAR if shrinks else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, size, interpolation=method), np.uint8)


def _halved(pixels: NDArray[np.uint8], size: tuple[int, int]) -> tuple[int, int]:
    """Return (width, height), each halved if that is still large enough."""
    height, width = pixels.shape[:2]
    return (
        width // 2 if width >= 2 * size[0] else width,
        height // 2 if height >= 2 * size[1] else height,
    )
