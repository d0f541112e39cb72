"""A map of the model's input laid over the displayed picture, and drawn."""

import base64
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.imaging import encode, render
from app.imaging.decode import Picture
from app.imaging.display import DisplayMap, display
from app.imaging.placement import Placed, place
from app.schemas.answers import PictureAnswer, ValuesAnswer
from app.schemas.options import DrawingOptions
from models.preprocess import Geometry


@dataclass(frozen=True)
class Laid:
    """A raw map, itself at the size of the answer, and what of it gets colours."""

    raw: NDArray[np.float32]
    placed: Placed
    display: DisplayMap


class Canvas:
    """The displayed picture at the size of an answer, `max_side` px at most."""

    def __init__(self, picture: Picture, geometry: Geometry, max_side: int) -> None:
        self.size = encode.fit(picture.width, picture.height, max_side)
        """Width and height in px."""
        self._picture = picture
        self._geometry = geometry

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """The picture, `(H, W, 3)` RGB."""
        return encode.resize(self._picture.pixels, self.size)

    def lay(self, raw: NDArray[np.float32], percentile: float) -> Laid:
        """Lay a raw map `(h, w)` where the model looked; `percentile` of its positive part is drawn at full heat."""
        placed = place(raw, self._geometry, self.size)
        return Laid(raw, placed, display(placed, raw, percentile))

    def paint(self, laid: Laid, options: DrawingOptions, note: str | None = None) -> NDArray[np.uint8]:
        """Draw a map; `note` is written on it."""
        return render.render(
            self.pixels,
            laid.display,
            laid.placed.seen,
            view=options.view,
            colormap=options.colormap,
            alpha=options.alpha,
            legend=options.legend,
            note=note,
        )


def picture_answer(pixels: NDArray[np.uint8]) -> PictureAnswer:
    """Return a drawn picture as JSON tells it: JPEG, or PNG where it is transparent."""
    format_ = "png" if pixels.shape[2] == 4 else "jpeg"
    content = base64.b64encode(encode.encode(pixels, format_)).decode()
    return PictureAnswer(media_type=f"image/{format_}", width=pixels.shape[1], height=pixels.shape[0], base64=content)


def values_answer(laid: Laid) -> ValuesAnswer:
    """Return a raw map as JSON tells it."""
    values = laid.placed.values.astype("<f4")
    content = base64.b64encode(values.tobytes()).decode()
    return ValuesAnswer(width=values.shape[1], height=values.shape[0], scale=laid.display.scale, base64=content)
