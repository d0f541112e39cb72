"""What the JSON answers tell of pictures, models, classes and maps."""

import numpy as np

from app.laying import Laid
from app.schemas.answers import (
    Areas,
    ClassScore,
    Curves,
    FaithfulnessInfo,
    ImageInfo,
    MapInfo,
    ModelRef,
    StabilityInfo,
    Timings,
)
from app.schemas.answers import Seen as SeenBox
from app.service import Seen
from app.service import Timings as Spent
from app.viewing import View
from explainers.faithfulness import ORDERS, Faithfulness
from explainers.stability import Stability
from models.loading import LoadedModel


def model_ref(model: LoadedModel) -> ModelRef:
    """Say which model answered."""
    sha256 = model.weights_sha256
    return ModelRef(name=model.spec.name, weights_sha256=sha256, weights="loaded" if sha256 else "random")


def image_info(seen: Seen | View) -> ImageInfo:
    """Say how large the displayed picture is, and what of it the model saw."""
    box = seen.geometry.seen
    return ImageInfo(
        width=seen.picture.width,
        height=seen.picture.height,
        seen=SeenBox(left=box.left, top=box.top, right=box.right, bottom=box.bottom),
    )


def class_scores(seen: Seen, indices: list[int]) -> list[ClassScore]:
    """Name the classes with their scores."""
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


def map_info(laid: Laid, completeness_gap: float | None = None) -> MapInfo:
    """Describe a raw map in numbers, and how it became the display map."""
    raw = laid.raw
    return MapInfo(
        min=float(raw.min()),
        max=float(raw.max()),
        mean=float(raw.mean(dtype=np.float64)),
        width=raw.shape[1],
        height=raw.shape[0],
        no_positive_evidence=laid.display.no_positive_evidence,
        normalisation=laid.display.normalisation,
        completeness_gap=completeness_gap,
    )


def spent(*timings: Spent, render: float = 0.0) -> Timings:
    """Say where the time went, in seconds, in all that an answer took."""
    return Timings(
        decode=sum(each.decode for each in timings),
        queue=sum(each.queue for each in timings),
        model=sum(each.model for each in timings),
        render=render,
    )


def faithfulness_info(found: Faithfulness) -> FaithfulnessInfo:
    """Tell the figures of a map beside its controls."""
    return FaithfulnessInfo(
        verdict=found.verdict,
        words=found.words,
        insertion=Areas(**{order: found.insertion_area(order) for order in ORDERS}),
        deletion=Areas(**{order: found.deletion_area(order) for order in ORDERS}),
        margin=found.margin,
        threshold=found.threshold,
        fractions=list(found.fractions),
        insertion_curves=Curves(**{order: list(found.insertion[order]) for order in ORDERS}),
        deletion_curves=Curves(**{order: list(found.deletion[order]) for order in ORDERS}),
        substrates=list(found.substrates),
        runs=found.runs,
    )


def stability_info(found: Stability) -> StabilityInfo:
    """Tell how much of a map stays."""
    return StabilityInfo(noise=found.noise, mirror=found.mirror, words=found.words)
