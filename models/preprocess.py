"""From a picture to a network's input, and the exact way back. NumPy and Pillow only: it runs in request threads.

The numbers are those of torchvision's and timm's evaluation transforms on PIL pictures: the same 8-bit resampling,
the same truncation of the long side, the same rounding of the crop's corner.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

from models.errors import WrongChannels

_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_WIDEST_SUPPORT_PX = 3  # of Pillow's filters: Lanczos
# A larger intermediate picture than this, or than four inputs, is never made: 900:1 would need 59 megapixels at 256.
_MAX_RESIZED_PX = 4_000_000

Size = tuple[Annotated[int, Field(ge=1, le=4096)], Annotated[int, Field(ge=1, le=4096)]]


def _square(value: object) -> object:
    return (value, value) if isinstance(value, int) else value


class Box(NamedTuple):
    """A rectangle in pixel-edge coordinates; `right` and `bottom` are exclusive edges."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Geometry:
    """The affine map between the displayed picture (the frame) and the network's input.

    Coordinates are pixel edges: pixel i covers [i, i + 1). Sizes are (width, height) in pixels, and
    `x_input = scale_x * x_frame + offset_x`, likewise for y.
    """

    frame: tuple[int, int]
    input: tuple[int, int]
    scale: tuple[float, float]
    offset: tuple[float, float]

    @property
    def seen(self) -> Box:
        """The part of the frame that the network saw, in frame pixels."""
        left, top = self.to_frame(0, 0)
        right, bottom = self.to_frame(*self.input)
        width, height = self.frame
        return Box(max(0.0, left), max(0.0, top), min(float(width), right), min(float(height), bottom))

    def to_frame(self, x: float, y: float) -> tuple[float, float]:
        """Return the point of the frame that the input shows at (x, y); outside the frame in padding."""
        return (x - self.offset[0]) / self.scale[0], (y - self.offset[1]) / self.scale[1]


class _Placement(NamedTuple):
    """Where the resized picture lies in the input: its size and its left upper corner, negative where cut off."""

    width: int
    height: int
    left: int
    top: int


class Preprocess(BaseModel):
    """How a picture becomes the input of one network. Sizes are (height, width) in pixels; one number is a square.

    fit="crop"    the shortest side becomes `resize`, then the centre is cut out (torchvision's presets)
    fit="squash"  both sides become `resize`, whatever the proportions, then the centre is cut out
    fit="pad"     the whole picture is fitted into `resize`, and `fill` surrounds it

    `resize` defaults to `input_size`. `mean` and `std` refer to values in [0, 1]. `fill` (0 to 255 per channel)
    defaults to the mean for "pad" and to black otherwise, where it is needed only if `resize` < `input_size`.
    One channel is luma (ITU-R 601-2), taken before resizing. Another number than 1 or 3 takes arrays of as many
    planes instead of pictures; each plane is treated as a gray picture.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_size: Annotated[Size, BeforeValidator(_square)]
    mean: tuple[FiniteFloat, ...]
    std: tuple[Annotated[FiniteFloat, Field(gt=0)], ...]
    resize: Annotated[Size | None, BeforeValidator(_square)] = None
    fit: Literal["crop", "squash", "pad"] = "crop"
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear"
    channels: Annotated[int, Field(ge=1, le=32)] = 3
    fill: tuple[Annotated[int, Field(ge=0, le=255)], ...] | None = None

    @model_validator(mode="after")
    def _check_channels(self) -> Self:
        lengths = {"mean": self.mean, "std": self.std, "fill": self.fill}
        for key, values in lengths.items():
            if values is not None and len(values) != self.channels:
                msg = f"{key} has {len(values)} numbers; with channels = {self.channels} it needs {self.channels}"
                raise ValueError(msg)
        return self

    @property
    def enough_px(self) -> int:
        """The length in pixels below which a reduced decode must not bring the picture's shortest side."""
        return max(self._resize)

    def __call__(
        self, pixels: NDArray[np.uint8], frame: tuple[int, int] | None = None
    ) -> tuple[NDArray[np.float32], Geometry]:
        """Return the network's input (C, h, w) float32 and its geometry.

        `pixels` is (H, W, 3) uint8 RGB, or (H, W, channels) uint8 planes. `frame` (width, height) is the picture that
        is displayed, if `pixels` is a reduced decode of it; the pixels then cover the frame evenly. Raises
        `WrongChannels` for another number of planes, `ValueError` for other arrays.
        """
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.size == 0:
            msg = f"pixels must be (H, W, 3) uint8 with H, W >= 1, not {pixels.shape} {pixels.dtype}."
            raise ValueError(msg)
        self._check_planes(pixels.shape[2])
        width, height = frame or (pixels.shape[1], pixels.shape[0])
        place = self._place(width, height)
        geometry = Geometry(
            frame=(width, height),
            input=(self.input_size[1], self.input_size[0]),
            scale=(place.width / width, place.height / height),
            offset=(float(place.left), float(place.top)),
        )
        reduced = (width, height) != (pixels.shape[1], pixels.shape[0])
        return self._normalise(self._canvas(pixels, place, reduced)), geometry

    def _check_planes(self, planes: int) -> None:
        takes_pictures = self.channels in (1, 3)
        if planes == self.channels or (planes == 3 and takes_pictures):
            return
        wanted = "a picture" if takes_pictures else f"an array (H, W, {self.channels}) uint8, as .npy"
        given = "a picture has 3 (RGB)" if planes == 3 else f"this array has {planes}"
        msg = f"The model has channels = {self.channels}, and {given}; send {wanted}."
        raise WrongChannels(msg, channels=self.channels, given=planes)

    @property
    def _resize(self) -> tuple[int, int]:
        return self.resize or self.input_size

    def _place(self, width: int, height: int) -> _Placement:
        resized_width, resized_height = self._resized(width, height)
        left = _centred(resized_width, self.input_size[1])
        return _Placement(resized_width, resized_height, left, _centred(resized_height, self.input_size[0]))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """Return (width, height) after resizing, rounded as the original transforms round."""
        target_height, target_width = self._resize
        if self.fit == "squash":
            return target_width, target_height
        if self.fit == "crop" and target_width == target_height:  # torchvision's Resize(int) truncates
            longest = int(target_width * max(width, height) / min(width, height))
            return (target_width, longest) if width <= height else (longest, target_width)
        ratios = width / target_width, height / target_height  # timm's ResizeKeepRatio rounds
        ratio = max(ratios) if self.fit == "pad" else min(ratios)
        return max(1, round(width / ratio)), max(1, round(height / ratio))

    def _canvas(self, pixels: NDArray[np.uint8], place: _Placement, reduced: bool) -> NDArray[np.uint8]:
        """Return the input as 8-bit levels (h, w, C)."""
        height, width = self.input_size
        left, top = max(0, -place.left), max(0, -place.top)
        right, bottom = min(place.width, width - place.left), min(place.height, height - place.top)
        visible = self._resample(pixels, place, (left, top, right, bottom), reduced)
        if visible.shape[:2] == self.input_size:
            return visible
        canvas = np.empty((height, width, self.channels), np.uint8)
        canvas[:] = self._fill
        x, y = left + place.left, top + place.top
        canvas[y : y + visible.shape[0], x : x + visible.shape[1]] = visible
        return canvas

    def _resample(
        self, pixels: NDArray[np.uint8], place: _Placement, visible: tuple[int, int, int, int], reduced: bool
    ) -> NDArray[np.uint8]:
        """Return the `visible` part (left, top, right, bottom) of the resized picture, (h, w, C) uint8.

        Resizing everything and cropping gives torchvision's very bits. Where a long, thin picture would make that
        intermediate huge, or where a `reduced` decode has other bits anyway, only the visible part is computed: the
        same but for rounding (Pillow holds the box in single precision and may swap its two 8-bit passes).
        """
        height, width = self.input_size
        box: Box | None = None
        if reduced or place.width * place.height > max(_MAX_RESIZED_PX, 4 * width * height):
            pixels, box = _cut(pixels, place, visible)
        return np.concatenate([self._resized_part(image, place, visible, box) for image in self._images(pixels)], -1)

    def _resized_part(
        self, image: Image.Image, place: _Placement, visible: tuple[int, int, int, int], box: Box | None
    ) -> NDArray[np.uint8]:
        """Return the `visible` part of one image as (h, w, its channels); `box` is where it lies if `image` was cut."""
        resampling = _RESAMPLING[self.interpolation]
        if box is None:
            part = image.resize((place.width, place.height), resampling).crop(visible)
        else:
            part = image.resize((visible[2] - visible[0], visible[3] - visible[1]), resampling, box)
        return np.asarray(part).reshape(part.height, part.width, -1)

    def _images(self, pixels: NDArray[np.uint8]) -> list[Image.Image]:
        """Return what is resampled: a picture in one piece, as RGB or luma, or each plane as a gray picture."""
        if pixels.shape[2] == 3 and self.channels in (1, 3):
            image = Image.fromarray(pixels)
            return [image.convert("L") if self.channels == 1 else image]
        return [Image.fromarray(np.ascontiguousarray(pixels[..., plane])) for plane in range(pixels.shape[2])]

    @property
    def _fill(self) -> tuple[int, ...]:
        if self.fill is not None:
            return self.fill
        return tuple(min(255, max(0, round(255 * mean))) if self.fit == "pad" else 0 for mean in self.mean)

    def _normalise(self, levels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return `(levels / 255 - mean) / std` as (C, h, w) float32, by a table of the 256 levels per channel."""
        mean, std = (np.array(values, np.float32)[:, None] for values in (self.mean, self.std))
        table = (np.arange(256, dtype=np.float32) / np.float32(255) - mean) / std
        return np.stack([cv2.LUT(plane, row) for plane, row in zip(cv2.split(levels), table, strict=True)])


def _centred(length: int, window: int) -> int:
    """Return where `length` begins in `window` when centred; torchvision rounds a cut and floors a margin."""
    return (window - length) // 2 if length < window else -round((length - window) / 2)


def _cut(
    pixels: NDArray[np.uint8], place: _Placement, visible: tuple[int, int, int, int]
) -> tuple[NDArray[np.uint8], Box]:
    """Return the pixels that the visible part depends on, and its box in them."""
    columns, left, right = _span(pixels.shape[1], place.width, visible[0], visible[2])
    rows, top, bottom = _span(pixels.shape[0], place.height, visible[1], visible[3])
    return np.ascontiguousarray(pixels[rows, columns]), Box(left, top, right, bottom)


def _span(length: int, resized: int, start: int, stop: int) -> tuple[slice, float, float]:
    """Return the pixels under [start, stop) of the resized axis with the filter's margin, and the span in them."""
    scale = length / resized
    margin = math.ceil(_WIDEST_SUPPORT_PX * max(scale, 1.0)) + 1
    first = max(0, math.floor(start * scale) - margin)
    return slice(first, math.ceil(stop * scale) + margin), start * scale - first, min(stop * scale, length) - first
