"""How good a model's explanations are on many pictures: what was measured of each, and what that says of methods."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from app.schemas.answers import Answer, ClassScore, FaithfulnessInfo, ModelRef, StabilityInfo

Control = Literal["centre", "edge"]
CONTROLS: tuple[Control, ...] = ("centre", "edge")
"""The orders that a picture has once, whatever the method; those of "random" are made of each map."""
_Order = Literal["map", "random", "centre", "edge"]

RESAMPLES = 4000
"""How often the pictures are drawn again for an interval."""
_NORMAL_QUANTILE = 1.959964
"""Of 97.5 %."""
_AT_ONCE = 2**20
_BETTER = ("better_than_controls", "better_than_random")


class Outcome(Answer):
    """What was measured of one method on one picture."""

    picture: str
    method: str
    target: ClassScore
    faithfulness: FaithfulnessInfo
    stability: StabilityInfo | None = Field(description="null: not asked for.")
    seconds: float = Field(description="For the map alone; what was then measured of it is not counted.")


class Failure(Answer):
    """A picture, or one method on it, that gave no figures."""

    picture: str
    method: str | None = Field(description="null: the picture itself.")
    detail: str


class NotApplicable(Answer):
    """A method that the model does not allow."""

    method: str
    reason: str


class Estimate(Answer):
    """A mean over `n` pictures with its 95 % interval; no interval where there are fewer than two."""

    mean: float
    low: float | None
    high: float | None
    n: int


class Figures(Answer):
    """What an order of places reaches."""

    insertion: Estimate
    deletion: Estimate
    gain: Estimate = Field(description="Insertion minus deletion.")


class ControlSummary(Figures):
    """What an order reaches that knows nothing of the model."""

    name: Control
    pictures: int


class MethodSummary(Figures):
    """What was measured of a method; null: not measured, or of no picture."""

    name: str
    pictures: int
    elsewhere: Figures = Field(
        description="Of the same maps, laid at other places of the picture: what chance reaches."
    )
    margin: Estimate = Field(description="The lead: the gain, less that of the same shapes elsewhere.")
    better: Estimate = Field(
        description="Share of pictures on which it leads by more than chance would; its interval is Wilson's, as the "
        "bootstrap has none for a share of 0 or 1."
    )
    inconclusive: Estimate = Field(description="Share of pictures on which it leads by no more than chance may do.")
    noise: Estimate | None
    mirror: Estimate | None
    seconds: Estimate


class Evaluation(Answer):
    """All of it. The intervals of means are percentiles of the bootstrap over pictures."""

    model: ModelRef
    fingerprint: str
    version: str = Field(description="Of HeatLens.")
    measured_at: datetime
    seed: int
    pictures: list[str] = Field(description="Those that were looked at, failed ones among them.")
    methods: list[MethodSummary]
    controls: list[ControlSummary]
    not_applicable: list[NotApplicable]
    failures: list[Failure]
    outcomes: list[Outcome]


def summarise(outcomes: Sequence[Outcome], *, seed: int) -> tuple[list[MethodSummary], list[ControlSummary]]:
    """Return a row for each method, in the order in which they appear, and one for each control.

    Centre and edge of a picture do not depend on the method, so those of the first method with figures stand for it.
    """
    methods = list(dict.fromkeys(outcome.method for outcome in outcomes))
    rows = [_of_method([outcome for outcome in outcomes if outcome.method == name], seed) for name in methods]
    first = {outcome.picture: outcome.faithfulness for outcome in reversed(outcomes)}
    controls = [_of_control(name, list(first.values()), seed) for name in CONTROLS if first]
    return rows, controls


def estimate(values: Sequence[float], *, seed: int) -> Estimate:
    """Return the mean and the interval that 95 % of the means of `RESAMPLES` resamples lie in.

    The percentile bootstrap (Efron, 1979): as many values are drawn anew, with replacement. The same seed draws the
    same pictures, so that intervals of several figures of the same pictures belong together. Raises `ValueError` for
    no value.
    """
    if not values:
        raise ValueError("there is nothing to estimate from")
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean=mean, low=None, high=None, n=len(values))
    low, high = np.percentile(_resampled_means(np.asarray(values, np.float64), seed), [2.5, 97.5])
    return Estimate(mean=mean, low=float(low), high=float(high), n=len(values))


def share(hits: int, n: int) -> Estimate:
    """Return a share and its 95 % interval by Wilson (1927), which is right for few pictures, and for 0 and 1.

    (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n)
    """
    p, z2 = hits / n, _NORMAL_QUANTILE**2
    middle, reach = p + z2 / (2 * n), _NORMAL_QUANTILE * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    low, high = (min(max((middle + sign * reach) / (1 + z2 / n), 0.0), 1.0) for sign in (-1, 1))
    return Estimate(mean=p, low=low, high=high, n=n) if n > 1 else Estimate(mean=p, low=None, high=None, n=n)


def words(row: MethodSummary) -> str:
    """Say in one sentence how a method stands to chance."""
    hits, unclear = (round(share.mean * share.n) for share in (row.better, row.inconclusive))
    on = f"on {hits} of {row.better.n} pictures" + (f", inconclusive on {unclear}" if unclear else "")
    margin = row.margin
    if margin.low is None or margin.high is None:
        lead = f"its lead on the only picture is {margin.mean:+.2f}"
    else:
        lead = f"its mean lead is {margin.mean:+.2f} ({margin.low:+.2f} to {margin.high:+.2f})"
    if margin.low is not None and margin.low > 0:
        verdict = "finds what the model looks at better than chance"
    elif margin.high is not None and margin.high < 0:
        verdict = "is worse than chance"
    else:
        verdict = "cannot be told from chance here"
    return f"{row.name} {verdict}: clearly better than the same shape elsewhere {on}; {lead}."


def _of_method(outcomes: Sequence[Outcome], seed: int) -> MethodSummary:
    faithful = [outcome.faithfulness for outcome in outcomes]
    stable = [outcome.stability for outcome in outcomes if outcome.stability is not None]
    own = _figures("map", faithful, seed)
    return MethodSummary(
        name=outcomes[0].method,
        pictures=len(outcomes),
        insertion=own.insertion,
        deletion=own.deletion,
        gain=own.gain,
        elsewhere=_figures("random", faithful, seed),
        margin=estimate([each.margin for each in faithful], seed=seed),
        better=share(sum(each.verdict in _BETTER for each in faithful), len(faithful)),
        inconclusive=share(sum(each.verdict == "inconclusive" for each in faithful), len(faithful)),
        noise=_of_known([each.noise for each in stable], seed),
        mirror=_of_known([each.mirror for each in stable], seed),
        seconds=estimate([outcome.seconds for outcome in outcomes], seed=seed),
    )


def _of_control(order: Control, faithful: Sequence[FaithfulnessInfo], seed: int) -> ControlSummary:
    found = _figures(order, faithful, seed)
    return ControlSummary(
        name=order, pictures=len(faithful), insertion=found.insertion, deletion=found.deletion, gain=found.gain
    )


def _figures(order: _Order, faithful: Sequence[FaithfulnessInfo], seed: int) -> Figures:
    areas = [(float(getattr(each.insertion, order)), float(getattr(each.deletion, order))) for each in faithful]
    return Figures(
        insertion=estimate([insertion for insertion, _ in areas], seed=seed),
        deletion=estimate([deletion for _, deletion in areas], seed=seed),
        gain=estimate([insertion - deletion for insertion, deletion in areas], seed=seed),
    )


def _of_known(values: Sequence[float | None], seed: int) -> Estimate | None:
    """Leave out the pictures of which there is no figure: `n` says how many are left."""
    known = [value for value in values if value is not None]
    return estimate(known, seed=seed) if known else None


def _resampled_means(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    draws = np.random.default_rng(seed)
    at_once = max(1, _AT_ONCE // len(values))
    parts = [min(at_once, RESAMPLES - start) for start in range(0, RESAMPLES, at_once)]
    means = [values[draws.integers(0, len(values), (part, len(values)))].mean(axis=1) for part in parts]
    return np.concatenate(means)
