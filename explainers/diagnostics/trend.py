"""Whether gradients shrink or grow steadily from layer to layer.

Two series are looked at, over the calls of layers with weights (a parameter of two axes or more), in the order of
execution: the logarithms of

    g = |gradient at the output|        and        e = |gradient at the output| * |output|

e, the influence, bounds to first order what the objective would change by if all of the output were scaled. Unlike g
it does not depend on the units of the layer: a layer ten times as large, before one ten times as small, makes g ten
times smaller there and leaves e alone. In a network of ReLUs without biases the gradient times the output is the
score itself at every layer (Euler's theorem), however g rises or falls: e is never below the score.

So a trend of g alone may only say that the layers have unequal units, as in a network whose batch normalisations have
not seen any data yet: in eval mode, with the weights that torchvision starts with, g falls by up to 13 decades in all
through mobilenet, efficientnet and googlenet, and rises by 11 through inception_v3. But it does so in jumps, and e does
not. Through sigmoids both fall, by 0.5 to 0.9 decades at every layer: there the influence is lost.

An illness is therefore a steady trend of e, or a longer one of g. Steady: in a window of eight layers, the steps go the
same way on average even without the two largest of them, so that a head, a pooling or a change of units does not make
a trend; nor do these count in the length of a stretch of such windows. No classifier of torchvision shows, as it
starts, any such stretch in e, nor one in g that is longer than 1.7 decades down (alexnet) or that rises at all. Side
branches are left out by following the envelope: what shrinks has to stay small in all layers before it, what grows has
to be larger than in all layers behind it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import mean
from typing import Literal

from explainers.diagnostics.answer import Finding

_WINDOW = 8
_FEWEST = 5
"""With fewer layers there is no trend to see."""
_JUMPS = 2
"""So many steps do not make a trend."""


@dataclass(frozen=True)
class Point:
    """One call of a layer with weights, both norms above zero and finite."""

    name: str
    gradient: float
    output: float


@dataclass(frozen=True)
class _Rule:
    """What counts: so many decades per layer in each window, and so many in all over the windows that hang together."""

    kind: Literal["vanishing", "exploding"]
    of: Literal["gradient", "influence"]
    slope: float
    decades: float


_RULES = (
    _Rule("vanishing", "influence", slope=0.15, decades=1.0),
    _Rule("vanishing", "gradient", slope=0.2, decades=2.5),
    _Rule("exploding", "influence", slope=0.15, decades=1.0),
    _Rule("exploding", "gradient", slope=0.2, decades=2.0),
)


@dataclass(frozen=True)
class _Stretch:
    first: int
    last: int
    steady: float
    """The decades without the largest steps."""


def trends(points: Sequence[Point]) -> list[Finding]:
    """Return at most one finding of each kind, with the layers of the stretch in which the trend is largest."""
    found: dict[str, Finding] = {}
    for rule in _RULES:
        series = _series(rule, points)
        stretch = _largest(rule, series)
        if stretch is not None and rule.kind not in found:
            found[rule.kind] = _finding(rule, stretch, series, points)
    return list(found.values())


def _series(rule: _Rule, points: Sequence[Point]) -> list[float]:
    """Return the decades by which the envelope has risen in the direction in which the rule expects it to."""
    logs = [math.log10(p.gradient) + (math.log10(p.output) if rule.of == "influence" else 0) for p in points]
    if rule.kind == "vanishing":
        return list(accumulate(logs, max))
    return [-level for level in reversed(list(accumulate(reversed(logs), max)))]


def _largest(rule: _Rule, series: Sequence[float]) -> _Stretch | None:
    """Return the longest way in decades over windows that are all steep enough, if it is long enough."""
    width = min(_WINDOW, len(series))
    if width < _FEWEST:
        return None
    best: _Stretch | None = None
    first: int | None = None
    for start in range(len(series) - width + 1):
        if _slope(series[start : start + width]) < rule.slope:
            first = None
            continue
        first = start if first is None else first
        last = start + width - 1
        stretch = _Stretch(first, last, sum(_steady_steps(series[first : last + 1], _JUMPS)))
        if best is None or stretch.steady > best.steady:
            best = stretch
    return best if best is not None and best.steady >= rule.decades else None


def _slope(levels: Sequence[float]) -> float:
    """Return the decades per layer of a window; of a short one, one jump is left out."""
    return mean(_steady_steps(levels, _JUMPS if len(levels) > _FEWEST + 1 else 1))


def _steady_steps(levels: Sequence[float], jumps: int) -> list[float]:
    """Return the steps from level to level without the largest ones."""
    return sorted(after - before for before, after in pairwise(levels))[: len(levels) - 1 - jumps]


def _finding(rule: _Rule, stretch: _Stretch, series: Sequence[float], points: Sequence[Point]) -> Finding:
    names = [point.name for point in points[stretch.first : stretch.last + 1]]
    decades = series[stretch.last] - series[stretch.first]
    verb, sign = ("shrinks", -1) if rule.kind == "vanishing" else ("grows", 1)
    what = "gradient" if rule.of == "gradient" else "gradient, taken times the layer's output,"
    each, total = 10 ** (sign * decades / (len(names) - 1)), 10 ** (sign * decades)
    reason = (
        f"On its way back from {names[-1]!r} to {names[0]!r}, over {len(names)} layers with weights, the {what} {verb} "
        f"steadily: from layer to layer to {each:.2g} times what it was, in all to {total:.2g} times. "
    )
    return Finding(rule.kind, tuple(dict.fromkeys(names)), reason + _MEANING[rule.kind])


_MEANING = {
    "vanishing": "The layers nearest to the picture hardly learn (saturated activations, or weights too small).",
    "exploding": "The layers nearest to the picture get steps that are far too large (weights too large).",
}
