"""An explanation as picture, array or JSON."""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from app.errors import BadOption
from app.imaging import encode, render
from app.imaging.display import DisplayMap, display
from app.imaging.placement import Placed, place
from app.schemas.answers import (
    ClassScore,
    ExplainFacts,
    ExplanationAnswer,
    Facts,
    ImageInfo,
    MapFacts,
    MapInfo,
    MethodRef,
    ModelRef,
    PictureAnswer,
    PredictAnswer,
    Prediction,
)
from app.schemas.answers import Seen as SeenBox
from app.schemas.answers import Timings as TimingsAnswer
from app.schemas.options import ExplainOptions, Format, PredictOptions
from app.service import Explained, Seen
from explainers import Attribution

MEDIA_TYPES: dict[Format, str] = {
    "jpeg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "npy": "application/x-npy",
    "npz": "application/x-npz",
    "json": "application/json",
}
"""What can be made, the default first."""

_PREDICTIONS = 5


@dataclass(frozen=True)
class Map:
    """One attribution laid over the displayed picture."""

    attribution: Attribution
    placed: Placed
    display: DisplayMap


@dataclass(frozen=True, slots=True)
class Drawn:
    """A finished answer, the same for everybody who asks the same: bytes, what they are, and the facts as headers.

    JSON is `ExplainFacts`; what `ExplainAnswer` has beside them differs from request to request, see `body`.
    """

    content: bytes
    media_type: str
    headers: Mapping[str, str]

    def body(self, request_id: str, timings: TimingsAnswer) -> bytes:
        """Return what goes out to one request."""
        if self.media_type != MEDIA_TYPES["json"]:
            return self.content
        own = json.dumps(request_id).encode(), timings.model_dump_json().encode()
        return b'{"request_id":%b,%b,"timings_s":%b}' % (own[0], self.content[1:-1], own[1])


class Drawing:
    """One explanation with the options that say how to show it."""

    def __init__(self, explained: Explained, options: ExplainOptions) -> None:
        self._explained = explained
        self._options = options

    def drawn(self, format_: Format) -> Drawn:
        """Make the answer in one of the formats."""
        content = self._json() if format_ == "json" else self._binary(format_)
        return Drawn(content, MEDIA_TYPES[format_], self._headers())

    def _headers(self) -> dict[str, str]:
        """The facts of the (first) explanation, as HTTP headers."""
        explained, index = self._explained, self._explained.attributions[0].score.index
        return {
            "X-HeatLens-Model": explained.model.spec.name,
            "X-HeatLens-Method": explained.method.name,
            "X-HeatLens-Layer": ",".join(map(quote, explained.layers)),
            "X-HeatLens-Target": str(index),
            "X-HeatLens-Label": quote(explained.model.labels[index]),
            "X-HeatLens-Score": repr(float(explained.scores[index])),
            "X-HeatLens-Weights": _model(explained).weights,
        }

    def facts(self) -> Facts:
        """Say what there is to say of the picture as a whole."""
        explained = self._explained
        return Facts(
            model=_model(explained),
            method=_method(explained),
            layers=explained.layers,
            image=_image(explained),
            predictions=[
                Prediction(index=row.index, label=row.label, probability=row.probability)
                for row in _classes(explained, explained.most_probable(_PREDICTIONS))
            ],
        )

    def map_facts(self) -> list[MapFacts]:
        """Say what there is to say of each target's map."""
        return [self._map_facts(map_) for map_ in self._maps]

    def picture(self, place: int, format_: Format) -> bytes:
        """Draw the map of the target in that place; `format_` is one of a picture."""
        return self._picture(self._maps[place], format_)[0]

    def levels(self, place: int) -> bytes:
        """Return the display map of the target in that place as gray PNG, at the size of the answer."""
        return encode.gray_png(self._maps[place].display.values)

    def arrays(self) -> bytes:
        """Return all maps and scores as `npz`."""
        return encode.npz(self._arrays())

    def _binary(self, format_: Format) -> bytes:
        if format_ == "npz":
            return self.arrays()
        count = len(self._explained.attributions)
        if count > 1:
            msg = f"{count} targets do not fit into one {format_}; ask for format json or npz."
            raise BadOption(msg, field="format", choices=["json", "npz"])
        (map_,) = self._maps
        if format_ == "npy":
            return encode.npy(map_.placed.values)
        return self._picture(map_, format_)[0]

    def _arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what `npz` holds; the first axis of `maps` and of what describes them is the target."""
        maps = self._maps
        targets = np.array([map_.attribution.score.index for map_ in maps], np.int64)
        return {
            "maps": np.stack([map_.placed.values for map_ in maps]),
            "raw": np.stack([map_.attribution.raw for map_ in maps]),
            "seen": maps[0].placed.seen,
            "targets": targets,
            "scores": self._explained.scores[targets],
            "logits": self._explained.scores,
        }

    def _picture(self, map_: Map, format_: str) -> tuple[bytes, tuple[int, int]]:
        options = self._options
        pixels = render.render(
            self._pixels,
            map_.display,
            map_.placed.seen,
            view=options.view,
            colormap=options.colormap,
            alpha=options.alpha,
            legend=options.legend,
        )
        return encode.encode(pixels, format_), (pixels.shape[1], pixels.shape[0])

    @cached_property
    def _size(self) -> tuple[int, int]:
        """Width and height of the answer, in pixels."""
        picture = self._explained.picture
        return encode.fit(picture.width, picture.height, self._options.max_side)

    @cached_property
    def _pixels(self) -> NDArray[np.uint8]:
        """The displayed picture at the size of the answer."""
        return encode.resize(self._explained.picture.pixels, self._size)

    @cached_property
    def _maps(self) -> list[Map]:
        """The attributions laid over the picture, at the size of the answer."""
        return [self._lay(attribution) for attribution in self._explained.attributions]

    def _lay(self, attribution: Attribution) -> Map:
        placed = place(attribution.raw, self._explained.geometry, self._size)
        return Map(attribution, placed, display(placed, attribution.raw, self._explained.method.display_percentile))

    def _json(self) -> bytes:
        explanations = [self._explanation(map_) for map_ in self._maps]
        return ExplainFacts(**dict(self.facts()), explanations=explanations).model_dump_json().encode()

    def _explanation(self, map_: Map) -> ExplanationAnswer:
        format_ = "png" if self._options.view == "layer" else "jpeg"
        content, (width, height) = self._picture(map_, format_)
        picture = PictureAnswer(
            media_type=f"image/{format_}", width=width, height=height, base64=base64.b64encode(content).decode()
        )
        return ExplanationAnswer(**dict(self._map_facts(map_)), picture=picture)

    def _map_facts(self, map_: Map) -> MapFacts:
        score = map_.attribution.score
        (target,) = _classes(self._explained, [score.index])
        versus = None if score.versus is None else _classes(self._explained, [score.versus])[0]
        return MapFacts(target=target, versus=versus, map=_map(map_))


def draw(explained: Explained, options: ExplainOptions, format_: Format) -> tuple[Drawn, TimingsAnswer]:
    """Make the answer in one of the formats, and say where the time went."""
    started = time.perf_counter()
    drawn = Drawing(explained, options).drawn(format_)
    return drawn, _timings(explained, render=time.perf_counter() - started)


def prediction(seen: Seen, options: PredictOptions, request_id: str) -> PredictAnswer:
    """Return the answer of `POST /v1/predict`."""
    return PredictAnswer(
        request_id=request_id,
        model=_model(seen),
        image=_image(seen),
        predictions=_classes(seen, seen.most_probable(options.top)),
        timings_s=_timings(seen, render=0.0),
    )


def _classes(seen: Seen, indices: list[int]) -> list[ClassScore]:
    probabilities = seen.probabilities
    return [
        ClassScore(
            index=index,
            label=seen.model.labels[index],
            score=float(seen.scores[index]),
            probability=float(probabilities[index]),
        )
        for index in indices
    ]


def _model(seen: Seen) -> ModelRef:
    sha256 = seen.model.weights_sha256
    return ModelRef(name=seen.model.spec.name, weights_sha256=sha256, weights="loaded" if sha256 else "random")


def _method(explained: Explained) -> MethodRef:
    method = explained.method
    return MethodRef(name=method.name, parameters=dict(explained.parameters), class_specific=method.class_specific)


def _image(seen: Seen) -> ImageInfo:
    box = seen.geometry.seen
    return ImageInfo(
        width=seen.picture.width,
        height=seen.picture.height,
        seen=SeenBox(left=box.left, top=box.top, right=box.right, bottom=box.bottom),
    )


def _map(map_: Map) -> MapInfo:
    raw = map_.attribution.raw
    return MapInfo(
        min=float(raw.min()),
        max=float(raw.max()),
        mean=float(raw.mean(dtype=np.float64)),
        width=raw.shape[1],
        height=raw.shape[0],
        no_positive_evidence=map_.display.no_positive_evidence,
        normalisation=map_.display.normalisation,
        completeness_gap=map_.attribution.completeness_gap,
    )


def _timings(seen: Seen, *, render: float) -> TimingsAnswer:
    timings = seen.timings
    return TimingsAnswer(decode=timings.decode, queue=timings.queue, model=timings.model, render=render)
