"""How far to trust a map: what is measured of it, beside it, when somebody asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.clock import Clock
from app.config import Settings
from app.engine import Job, Watch
from app.hosting import Host
from app.schemas.options import MapOptions
from app.tasks import Explain, MeasureFaithfulness, Payload, Raw
from explainers import Attribution, Explanation, Target, Work
from explainers.errors import ExplainError
from explainers.faithfulness import Faithfulness, evaluations
from explainers.stability import Stability, changed, stability


@dataclass(frozen=True)
class Trust:
    """What was measured of one map; None: not asked for."""

    faithfulness: Faithfulness | None = None
    stability: Stability | None = None


def check(options: MapOptions, targets: int, settings: Settings) -> None:
    """Raise `TooManySamples` where measuring takes more than the operator allows, before anything is explained."""
    if options.faithfulness:
        work = Work(limit=settings.max_samples, limit_name="HEATLENS_MAX_SAMPLES")
        work.allow(evaluations(targets), field="faithfulness", because="faithfulness")


def measure(
    host: Host,
    task: Explain,
    inputs: NDArray[np.float32],
    attributions: Sequence[Attribution],
    options: MapOptions,
    clock: Clock,
    watch: Watch | None,
) -> list[Trust]:
    """Measure what the options ask for of each map of a picture `(C, h, w)` that `task` has explained."""
    faithful: Sequence[Faithfulness | None] = [None] * len(attributions)
    stable: Sequence[Stability | None] = [None] * len(attributions)
    if options.faithfulness:
        scores, maps = [each.score for each in attributions], [each.raw for each in attributions]
        job = host.submit(
            MeasureFaithfulness(scores, maps), Payload(inputs), timeout_s=clock.remaining_s, limit=clock.limit
        )
        faithful = job.result(watch)
    if options.stability:
        stable = _stability(host, task, inputs, attributions, clock, watch)
    return [Trust(*both) for both in zip(faithful, stable, strict=True)]


def _stability(
    host: Host,
    task: Explain,
    inputs: NDArray[np.float32],
    attributions: Sequence[Attribution],
    clock: Clock,
    watch: Watch | None,
) -> list[Stability]:
    """Explain changed copies of the picture for the same classes, in whatever batches they come to lie."""
    targets = tuple(Target(each.score.index, each.score.versus) for each in attributions)
    jobs: list[Job[Payload, Any]] = []
    try:
        jobs.extend(
            host.submit(task, Payload(copy, targets), timeout_s=clock.remaining_s, limit=clock.limit)
            for copy in changed(inputs)
        )
        maps = [_maps(job, len(targets), watch) for job in jobs]
    except BaseException:
        for job in jobs:
            job.abandon()
        raise
    return stability([each.raw for each in attributions], maps)


def _maps(job: Job[Payload, Any], targets: int, watch: Watch | None) -> Sequence[Raw | None]:
    """Return a copy's maps; there are none where it has no explanation, which the picture itself has."""
    try:
        answer: Explanation = job.result(watch)
    except ExplainError:
        return [None] * targets
    return [each.raw for each in answer.attributions]
