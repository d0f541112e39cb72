"""An explanation as picture, array or JSON."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from app.errors import BadOption
from app.facts import class_scores, faithfulness_info, image_info, map_info, model_ref, spent, stability_info
from app.imaging import encode
from app.laying import Canvas, Laid, picture_answer, values_answer
from app.schemas.answers import (
    ExplainFacts,
    ExplanationAnswer,
    Facts,
    MapFacts,
    MethodRef,
    PredictAnswer,
    Prediction,
    ValuesAnswer,
)
from app.schemas.answers import Timings as TimingsAnswer
from app.schemas.options import ExplainOptions, Format, MapOptions, PredictOptions
from app.service import Explained, Seen
from app.trust import Trust

MEDIA_TYPES: dict[Format, str] = {
    "jpeg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "npy": "application/x-npy",
    "npz": "application/x-npz",
    "json": "application/json",
}
"""What can be made, the default first."""

NO_BETTER = "no better than a random map"
"""What is written on a map that finds no more than random places do, see `explainers.faithfulness`."""
_PREDICTIONS = 5
_VALUES_SIDE_PX = 256


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

    def __init__(self, explained: Explained, options: MapOptions) -> None:
        self._explained = explained
        self._options = options
        self._canvas = Canvas(explained.picture, explained.geometry, options.max_side)

    def drawn(self, format_: Format, *, values: bool = False) -> Drawn:
        """Make the answer in one of the formats; `values` says whether JSON holds the raw maps."""
        content = self._json(values=values) if format_ == "json" else self._binary(format_)
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
            "X-HeatLens-Weights": model_ref(explained.model).weights,
            **_trust_headers(explained.trust[0]),
        }

    def facts(self) -> Facts:
        """Say what there is to say of the picture as a whole."""
        explained = self._explained
        return Facts(
            model=model_ref(explained.model),
            method=_method(explained),
            layers=explained.layers,
            image=image_info(explained),
            predictions=[
                Prediction(index=row.index, label=row.label, probability=row.probability)
                for row in class_scores(explained, explained.most_probable(_PREDICTIONS))
            ],
        )

    def map_facts(self) -> list[MapFacts]:
        """Say what there is to say of each target's map."""
        return [self._map_facts(place) for place in range(len(self._maps))]

    def picture(self, place: int, format_: Format) -> bytes:
        """Draw the map of the target in that place; `format_` is one of a picture."""
        return encode.encode(self._painted(place), format_)

    def heat(self, place: int) -> NDArray[np.float32]:
        """Return the raw signed map of the target in that place, `(H, W)` in the displayed frame."""
        return self._maps[place].placed.values

    def levels(self, place: int) -> bytes:
        """Return the display map of the target in that place as gray PNG, at the size of the answer."""
        return encode.gray_png(self._maps[place].display.values)

    def arrays(self) -> bytes:
        """Return all maps and scores as `npz`."""
        return encode.npz(self._arrays())

    def _binary(self, format_: Format) -> bytes:
        if format_ == "npz":
            return self.arrays()
        count = len(self._maps)
        if count > 1:
            msg = f"{count} targets do not fit into one {format_}; ask for format json or npz."
            raise BadOption(msg, field="format", choices=["json", "npz"])
        return encode.npy(self._maps[0].placed.values) if format_ == "npy" else self.picture(0, format_)

    def _arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what `npz` holds; the first axis of `maps` and of what describes them is the target."""
        maps = self._maps
        targets = np.array([attribution.score.index for attribution in self._explained.attributions], np.int64)
        return {
            "maps": np.stack([map_.placed.values for map_ in maps]),
            "raw": np.stack([map_.raw for map_ in maps]),
            "seen": maps[0].placed.seen,
            "targets": targets,
            "scores": self._explained.scores[targets],
            "logits": self._explained.scores,
            **_trust_arrays(self._explained.trust),
        }

    def _painted(self, place: int) -> NDArray[np.uint8]:
        faithfulness = self._explained.trust[place].faithfulness
        note = NO_BETTER if faithfulness and faithfulness.verdict == "no_better_than_random" else None
        return self._canvas.paint(self._maps[place], self._options, note)

    @cached_property
    def _maps(self) -> list[Laid]:
        """The attributions laid over the picture, at the size of the answer."""
        percentile = self._explained.method.display_percentile
        return [self._canvas.lay(attribution.raw, percentile) for attribution in self._explained.attributions]

    def _json(self, *, values: bool) -> bytes:
        explanations = [
            ExplanationAnswer(
                **dict(facts),
                picture=picture_answer(self._painted(place)),
                values=self._values(place) if values else None,
            )
            for place, facts in enumerate(self.map_facts())
        ]
        return ExplainFacts(**dict(self.facts()), explanations=explanations).model_dump_json().encode()

    def _values(self, place: int) -> ValuesAnswer:
        canvas = Canvas(self._explained.picture, self._explained.geometry, min(self._options.max_side, _VALUES_SIDE_PX))
        raw = self._explained.attributions[place].raw
        return values_answer(canvas.lay(raw, self._explained.method.display_percentile))

    def _map_facts(self, place: int) -> MapFacts:
        attribution, trust = self._explained.attributions[place], self._explained.trust[place]
        index, versus = attribution.score.index, attribution.score.versus
        return MapFacts(
            target=class_scores(self._explained, [index])[0],
            versus=None if versus is None else class_scores(self._explained, [versus])[0],
            map=map_info(self._maps[place], attribution.completeness_gap),
            faithfulness=None if trust.faithfulness is None else faithfulness_info(trust.faithfulness),
            stability=None if trust.stability is None else stability_info(trust.stability),
        )


def draw(explained: Explained, options: ExplainOptions, format_: Format) -> tuple[Drawn, TimingsAnswer]:
    """Make the answer in one of the formats, and say where the time went."""
    started = time.perf_counter()
    drawn = Drawing(explained, options).drawn(format_, values=options.values)
    return drawn, spent(explained.timings, render=time.perf_counter() - started)


def prediction(seen: Seen, options: PredictOptions, request_id: str) -> PredictAnswer:
    """Return the answer of `POST /v1/predict`."""
    return PredictAnswer(
        request_id=request_id,
        model=model_ref(seen.model),
        image=image_info(seen),
        predictions=class_scores(seen, seen.most_probable(options.top)),
        timings_s=spent(seen.timings),
    )


def _method(explained: Explained) -> MethodRef:
    method = explained.method
    return MethodRef(
        name=method.name,
        parameters=dict(explained.parameters),
        class_specific=method.class_specific,
        fails_randomisation=explained.fails_randomisation,
    )


def _trust_headers(trust: Trust) -> dict[str, str]:
    """Return what was measured of a map; a figure that there is none of is left out."""
    headers: dict[str, str] = {}
    if trust.faithfulness:
        headers["X-HeatLens-Faithfulness"] = trust.faithfulness.verdict
    if trust.stability:
        figures = {"noise": trust.stability.noise, "mirror": trust.stability.mirror}
        told = [f"{name}={value:.3f}" for name, value in figures.items() if value is not None]
        headers["X-HeatLens-Stability"] = ", ".join(told) or "none"
    return headers


def _trust_arrays(trust: Sequence[Trust]) -> dict[str, NDArray[np.generic]]:
    """Return what was measured of the maps, NaN where there is no figure."""
    arrays: dict[str, NDArray[np.generic]] = {}
    if faithful := [each.faithfulness for each in trust if each.faithfulness]:
        arrays["faithfulness_margin"] = np.array([each.margin for each in faithful])
        arrays["faithfulness_threshold"] = np.array([each.threshold for each in faithful])
    if stable := [each.stability for each in trust if each.stability]:
        arrays["stability"] = np.array([[each.noise, each.mirror] for each in stable], np.float64)
    return arrays
