"""Two sides and their difference as JSON, arrays or pictures."""

import time

import numpy as np
from numpy.typing import NDArray

from app.comparing import ComparedFeatures, ComparedMaps
from app.facts import class_scores, image_info, map_info, model_ref, spent
from app.imaging import encode, render
from app.imaging.diverging import render_difference
from app.laying import Canvas, Laid, picture_answer
from app.schemas import diagnostics as schemas
from app.schemas.answers import Timings
from app.schemas.diagnostics import CompareOptions
from app.schemas.options import DrawingOptions
from explainers.diagnostics.comparison import Comparison


class MapsDrawing:
    """Two explanations and their difference."""

    def __init__(self, compared: ComparedMaps, options: CompareOptions) -> None:
        self._compared = compared
        self._options = options

    def answer(self) -> schemas.CompareAnswer:
        """Tell both sides, their agreement and their difference."""
        compared = self._compared
        difference = compared.difference[compared.seen]
        return schemas.CompareAnswer(
            of="maps",
            image=image_info(compared.first),
            first=self._side(0),
            second=self._side(1),
            scale=compared.scale,
            agreement=_agreement(compared.agreement),
            difference=schemas.DifferenceInfo(
                unit=compared.unit,
                scale=compared.difference_scale,
                min=float(difference.min()),
                max=float(difference.max()),
                mean=float(difference.mean(dtype=np.float64)),
                picture=picture_answer(self._difference()),
            ),
            timings_s=self.timings,
        )

    @property
    def timings(self) -> Timings:
        """Where the time went, but for what is drawn only now."""
        compared = self._compared
        return spent(compared.first.timings, compared.second.timings, render=compared.laying_s)

    @property
    def models(self) -> tuple[str, str]:
        """The names of who answered."""
        return self._compared.first.model.spec.name, self._compared.second.model.spec.name

    def binary(self, format_: str) -> bytes:
        """Return the three pictures side by side, the difference (npy), or all maps (npz)."""
        compared = self._compared
        if format_ == "npy":
            return encode.npy(compared.difference)
        if format_ == "npz":
            one, other = compared.sides
            return encode.npz(
                {
                    "first": one.placed.values,
                    "second": other.placed.values,
                    "difference": compared.difference,
                    "seen": compared.seen,
                    "raw_first": compared.first.attributions[0].raw,
                    "raw_second": compared.second.attributions[0].raw,
                }
            )
        pictures = [*(_painted(compared.canvas, side, self._options) for side in compared.sides), self._difference()]
        return encode.encode(render.beside(*pictures), format_)

    def _difference(self) -> NDArray[np.uint8]:
        compared, options = self._compared, self._options
        scale = np.float32(compared.difference_scale or 1)
        values = np.clip(compared.difference / scale, -1.0, 1.0)
        return render_difference(
            compared.canvas.pixels, values, compared.seen, view=options.view, alpha=options.alpha, legend=True
        )

    def _side(self, place: int) -> schemas.Side:
        compared, laid = self._compared, self._compared.sides[place]
        explained = (compared.first, compared.second)[place]
        attribution = explained.attributions[0]
        versus = attribution.score.versus
        return schemas.Side(
            model=model_ref(explained.model),
            method=explained.method.name,
            parameters=dict(explained.parameters),
            layers=explained.layers,
            target=class_scores(explained, [attribution.score.index])[0],
            versus=None if versus is None else class_scores(explained, [versus])[0],
            map=map_info(laid, attribution.completeness_gap),
            divisor=compared.divisors[place],
            picture=picture_answer(_painted(compared.canvas, laid, self._options)),
        )


class FeaturesDrawing:
    """How far two layers' answers to a picture are from each other."""

    def __init__(self, compared: ComparedFeatures, options: CompareOptions) -> None:
        self._compared = compared
        self._options = options
        started = time.perf_counter()
        self._canvas = Canvas(compared.view.picture, compared.view.geometry, options.max_side)
        self._laid = self._canvas.lay(compared.difference, 100.0)
        self._laying_s = time.perf_counter() - started

    def answer(self) -> schemas.CompareAnswer:
        """Tell both sides and their difference."""
        compared, info = self._compared, map_info(self._laid)
        return schemas.CompareAnswer(
            of="features",
            image=image_info(compared.view),
            first=self._side(0),
            second=self._side(1),
            scale=None,
            agreement=None,
            difference=schemas.DifferenceInfo(
                unit="features",
                scale=self._laid.display.scale,
                min=info.min,
                max=info.max,
                mean=info.mean,
                picture=picture_answer(_painted(self._canvas, self._laid, self._options)),
            ),
            timings_s=self.timings,
        )

    @property
    def timings(self) -> Timings:
        """Where the time went, but for what is drawn only now."""
        return spent(self._compared.timings, render=self._laying_s)

    @property
    def models(self) -> tuple[str, str]:
        """The names of who answered."""
        first, second = self._compared.models
        return first.spec.name, second.spec.name

    def binary(self, format_: str) -> bytes:
        """Return the difference as picture, or as numbers in the displayed frame (npy) and as it was (npz)."""
        placed = self._laid.placed
        if format_ == "npy":
            return encode.npy(placed.values)
        if format_ == "npz":
            return encode.npz({"difference": placed.values, "raw": self._laid.raw, "seen": placed.seen})
        return encode.encode(_painted(self._canvas, self._laid, self._options), format_)

    def _side(self, place: int) -> schemas.Side:
        compared = self._compared
        return schemas.Side(
            model=model_ref(compared.models[place]),
            method=None,
            parameters=None,
            layers=[compared.layers[place]],
            target=None,
            versus=None,
            map=None,
            divisor=None,
            picture=None,
        )


def _painted(canvas: Canvas, laid: Laid, options: CompareOptions) -> NDArray[np.uint8]:
    shown = DrawingOptions(view=options.view, colormap=options.colormap, alpha=options.alpha, legend=True)
    return canvas.paint(laid, shown)


def _agreement(found: Comparison) -> schemas.ComparisonInfo:
    return schemas.ComparisonInfo(
        correlation=found.correlation,
        rank_correlation=found.rank_correlation,
        overlap=found.overlap,
        top=found.top,
        words=_words(found),
    )


def _words(found: Comparison) -> str:
    share = f"The hottest {found.top:.0%} of the picture overlap by {found.overlap:.0%}"
    chance = found.top / (2 - found.top)
    if found.rank_correlation is None:
        return "A map is the same everywhere, so there is nothing to compare."
    if found.rank_correlation > 0.9:
        agree = "The maps say the same"
    elif found.rank_correlation > 0.5:
        agree = "The maps agree in the main"
    elif found.rank_correlation > 0.1:
        agree = "The maps agree little"
    else:
        agree = "The maps do not agree"
    return f"{agree} (rank correlation {found.rank_correlation:.2f}). {share}; unrelated maps by about {chance:.0%}."
