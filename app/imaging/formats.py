"""One opener per format: bytes to a parsed header, with nothing decoded yet.

Formats are opened through their Pillow classes, never through `Image.open`: neither its registry nor its bomb guard
(a warning at 89 million pixels, an error at twice that) takes part, and no global state is touched.
"""

from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple

from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, TILELENGTH, TILEWIDTH, TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from app.imaging import containers
from app.imaging.errors import UnknownFormat, UnsupportedPixels
from app.imaging.limits import Limits, check_size

FORMATS = ("JPEG", "PNG", "WebP", "BMP", "TIFF", "GIF")

MAX_RLE_PIXELS = 2**21
"""Pillow decodes run-length BMP in Python: 7 KB that claim 97 million pixels took it 27 s. A full-HD screen fits."""

_TIFF_ORIENTATION = 274


class Opened(NamedTuple):
    """A parsed header and what else decides how the samples become pixels."""

    image: ImageFile
    media_type: str
    orientation: int = 1  # EXIF, 1 to 8
    full_scale: float = 65535.0  # white, for samples of 9 to 16 bits
    white_is_zero: bool = False
    painted: tuple[int, int, int, int] | None = None  # left, top, right, bottom of a frame smaller than its canvas


def open_image(data: bytes, limits: Limits) -> Opened:
    """Parse the header of a JPEG, PNG, WebP, BMP, TIFF or GIF file.

    Raises `UnknownFormat`, `UnsupportedPixels`, `CorruptImage`, the limit errors, and whatever Pillow's parser raises.
    """
    name = containers.sniff(data)
    if name is None:
        raise UnknownFormat(
            f"The content is not a picture in a supported format. Supported: {', '.join(FORMATS)}.",
            choices=list(FORMATS),
        )
    opened = _OPENERS[name](data, limits)
    check_size(*opened.image.size, limits)
    return opened


class _Jpeg(JpegImageFile):
    def _read_dpi_from_exif(self) -> None:
        """Skip: Pillow would parse the EXIF block of every JPEG for it."""


class _Tiff(TiffImageFile):
    """TIFF whose limits and orientation are handled like those of the other formats."""

    def _setup(self) -> None:
        super()._setup()
        self._size = self._tile_size  # as stored; Pillow swaps the sides when the orientation says so

    def load_prepare(self) -> None:
        """Allocate without Pillow's bomb guard."""
        if self._im is None:
            self.im = Image.new(self.mode, self._tile_size).im
        super().load_prepare()

    def load_end(self) -> None:
        """Skip: Pillow would parse every metadata directory, and turn the picture."""


def _open_jpeg(data: bytes, _: Limits) -> Opened:
    slim = containers.slim_jpeg(data)
    return Opened(_Jpeg(BytesIO(slim.data)), "image/jpeg", containers.orientation(slim.exif))


def _open_png(data: bytes, _: Limits) -> Opened:
    slim = containers.slim_png(data)
    image = PngImageFile(BytesIO(slim.data))
    if (key := image.info.get("transparency")) is not None:
        image.info["transparency"] = _key_colour(key, image.mode, bits=slim.data[24])
    return Opened(image, "image/png", containers.orientation(slim.exif))


def _key_colour(key: object, mode: str, bits: int) -> object:
    """Scale a PNG's transparent colour to 8 bits, as Pillow scales the samples but not the key."""
    if mode == "L" and isinstance(key, int) and bits < 8:
        return (key & 2**bits - 1) * 255 // (2**bits - 1)
    if mode == "RGB" and isinstance(key, tuple) and bits == 16:
        return tuple(value >> 8 for value in key)
    return key


def _open_webp(data: bytes, limits: Limits) -> Opened:
    if size := containers.webp_size(data):
        check_size(*size, limits)
    image = WebPImageFile(BytesIO(data))
    return Opened(image, "image/webp", containers.orientation(image.info.get("exif", b"")))


def _open_gif(data: bytes, _: Limits) -> Opened:
    image = GifImageFile(BytesIO(containers.slim_gif(data)))
    return Opened(image, "image/gif", painted=image.tile[0].extents)


def _open_bmp(data: bytes, _: Limits) -> Opened:
    image = BmpImageFile(BytesIO(data))
    if image.tile[0].codec_name == "bmp_rle" and image.width * image.height > MAX_RLE_PIXELS:
        raise UnsupportedPixels(
            f"A run-length encoded BMP may have at most {MAX_RLE_PIXELS} px; send it as PNG.", limit=MAX_RLE_PIXELS
        )
    return Opened(image, "image/bmp")


def _open_tiff(data: bytes, limits: Limits) -> Opened:
    image = _Tiff(BytesIO(data))
    tags = image.tag_v2
    # A tile is decoded whole even if it is larger than the picture: a 1 x 1 px file can hold a tile of gigabytes.
    check_size(int(tags.get(TILEWIDTH, 1)), int(tags.get(TILELENGTH, 1)), limits, what="TIFF tile")
    bits = tags[BITSPERSAMPLE][0] if image.mode.startswith("I;16") else 16
    turned = tags.get(_TIFF_ORIENTATION, 1)
    return Opened(
        image,
        "image/tiff",
        orientation=turned if turned in range(1, 9) else 1,
        full_scale=2.0**bits - 1.0,  # 12-bit samples arrive in 16 bits, unscaled
        white_is_zero=tags.get(PHOTOMETRIC_INTERPRETATION) == 0,
    )


_OPENERS: dict[str, Callable[[bytes, Limits], Opened]] = {
    "jpeg": _open_jpeg,
    "png": _open_png,
    "webp": _open_webp,
    "gif": _open_gif,
    "bmp": _open_bmp,
    "tiff": _open_tiff,
}
