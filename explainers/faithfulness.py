"""Whether a map finds what the model looks at: its hot places are taken away, and shown alone, beside controls."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from explainers.baselines import Baseline, baseline_of
from explainers.batch import at_least_float32
from explainers.errors import NonFiniteMap, NonFiniteScores
from explainers.orders import ELSEWHERE, FRACTIONS, Cells, Ranks, View, Walk, is_flat, ranks_of, views_of
from explainers.subject import Subject
from explainers.targets import Score
from explainers.work import Work

Order = Literal["map", "random", "centre", "edge"]
"""What is taken first: the map's hottest places, the same shapes at random places, the centre, the edge."""
ORDERS: tuple[Order, ...] = ("map", "random", "centre", "edge")
Verdict = Literal["better_than_controls", "better_than_random", "inconclusive", "no_better_than_random"]
Probabilities = Callable[[NDArray[np.float32]], NDArray[np.floating]]
"""From one picture's scores `(K,)` to its probabilities `(K,)`."""

SUBSTRATES: tuple[Baseline, ...] = ("blur", "mean")
"""What is seen where the picture is not: itself, but blurred, and its mean colour."""
QUANTILE = 2.077
"""The lead, in standard deviations of the other places, that one place has over their mean once in twenty times.

It is the 95th percentile of Student's t with 6 degrees of freedom, 1.943, times sqrt(1 + 1 / 7) for the mean's error.
"""
SMALLEST_LEAD = 0.01
"""A lead of less than one percentage point of probability is called none, however small the noise."""

_ALL = tuple(range(len(SUBSTRATES)))


@dataclass(frozen=True)
class Faithfulness:
    """How the probability of what was explained follows the map, beside orders that know nothing of the model.

    `insertion[order][i]` is the probability when the first `fractions[i]` of the picture in that order are shown and
    the rest is the substrate; `deletion[order][i]` when they are the substrate and the rest is shown: means over the
    substrates, and for "random" over the places. A map that is the same everywhere is in no order, and has the curves
    of "random".
    """

    fractions: tuple[float, ...]
    insertion: Mapping[Order, tuple[float, ...]]
    deletion: Mapping[Order, tuple[float, ...]]
    substrates: tuple[str, ...]
    runs: int
    """How many pictures went through the model, those included that the targets of the picture share."""
    noise: float
    """The standard deviation of the gains at the places of "random": how far chance alone carries a map."""
    highest: float
    """The highest gain at one of the places of "random"."""
    constant: bool
    """Whether the map ranks nothing: it is the same everywhere."""
    versus: bool = False
    """Whether the probability is that of one class against another one."""

    def insertion_area(self, order: Order) -> float:
        """Return the area under the insertion curve, in [0, 1]; large: the first of that order are enough."""
        return _area(self.insertion[order], self.fractions)

    def deletion_area(self, order: Order) -> float:
        """Return the area under the deletion curve, in [0, 1]; small: the first of that order are needed."""
        return _area(self.deletion[order], self.fractions)

    def gain(self, order: Order) -> float:
        """Return insertion area minus deletion area, in [-1, 1]; what the map has must be seen beside "random"."""
        return self.insertion_area(order) - self.deletion_area(order)

    @property
    def margin(self) -> float:
        """The gain of the map minus the mean gain of the same shapes at random places."""
        return self.gain("map") - self.gain("random")

    @property
    def threshold(self) -> float:
        """The lead above which an order is called better than another: see `faithfulness`."""
        return max(QUANTILE * self.noise, self.highest - self.gain("random"), SMALLEST_LEAD)

    @property
    def verdict(self) -> Verdict:
        """What the margins carry, and no more."""
        if self.constant or self.margin < SMALLEST_LEAD:
            return "no_better_than_random"
        if self.margin <= self.threshold:
            return "inconclusive"
        beaten = self.gain("map") - max(self.gain("centre"), self.gain("edge")) > self.threshold
        return "better_than_controls" if beaten else "better_than_random"

    @property
    def is_better(self) -> bool:
        """Whether the map is better than its shape elsewhere, by more than chance explains."""
        return self.verdict in ("better_than_random", "better_than_controls")

    @property
    def words(self) -> str:
        """The figures of the hottest tenth, and what follows from all figures, in plain sentences."""
        return f"{_tenth(self)} {_conclusion(self)}"


def evaluations(targets: int) -> int:
    """Return how many pictures `faithfulness` runs, at most, for so many maps of one picture: 91 for one."""
    steps = 2 * (len(FRACTIONS) - 2)
    return 1 + len(SUBSTRATES) + steps * (len(SUBSTRATES) * (1 + targets) + ELSEWHERE * targets)


def faithfulness(
    subject: Subject,
    picture: Tensor,
    scores: Sequence[Score],
    maps: Sequence[NDArray[np.float32]],
    *,
    probabilities: Probabilities,
    seed: int = 0,
    work: Work | None = None,
) -> list[Faithfulness]:
    """Measure how the probability of each target follows its map; one answer per map.

    Insertion and deletion: Petsiuk, Das, Saenko, "RISE", BMVC 2018, arXiv:1806.07421, section 4.1; regions in place of
    pixels, and random orders beside them: Samek et al., "Evaluating the Visualization of What a Deep Neural Network
    Has Learned", 2017, arXiv:1509.06321. With P(S) the probability when the cells S of the picture are shown and the
    others are the substrate, S_f the first share f of an order, and trapezoids over `FRACTIONS`,

        gain = area under P(S_f)  -  area under P(all but S_f)        margin = gain of the map - gain of "random"

    `picture` is `(C, H, W)` on the model's device, `maps` `(h, w)`, signed, one for each of `scores`. All orders rank
    the same 256 or so nearly square cells, so fine maps and coarse ones take regions of one size. A cell's value is
    the mean of the map as it is drawn; equal values are in a random order, from `seed`. Where a target is the
    difference of two scores, its probability is the sigmoid of that.

    "Random" is the map itself, laid at seven other places that are evenly spread over the picture (`Cells.elsewhere`).
    To take cells one by one at random would be no fair control: scattered holes and one hole of the same area are
    different pictures to a network, and gains of smooth orders without any knowledge vary 1.3 to 5 times as much as
    those of scattered ones (standard deviations, on the embedded model). By that control ignorant smooth maps would
    look good far too often.

    What counts as better. If where the map is hot has nothing to do with the model, any of its eight places is as good
    as the others, and its lead over the mean of the seven, divided by their standard deviation (`noise`) and by
    sqrt(1 + 1 / 7), follows Student's t with 6 degrees of freedom, as far as gains are about normal. "Better" is a
    lead above the 95th percentile, `QUANTILE` * `noise`, and above each of the seven: one in twenty ignorant maps is
    called better all the same, and whatever gains are like, hardly more than one in eight. A smaller lead of at least
    `SMALLEST_LEAD` is "inconclusive". Centre and edge, each
    other's reverse, must be beaten by as much, since many pictures have in the middle what they are of. More cannot be
    said of one picture; the mean margin of many has its own, smaller error.

    Deviations. Pixels are taken by the cell and in few steps, so areas can be compared with each other, not with
    published ones. The model was not trained on pictures with holes (Hooker et al., 2019, arXiv:1806.10758), and part
    of each fall is due to them: that is why only differences to the controls are judged, on two substrates.

    Raises `TooManySamples`, and `NonFiniteMap` or `NonFiniteScores` where there is nothing to judge.
    """
    if not maps:
        return []
    work = work or Work()
    work.allow(evaluations(len(maps)), field="faithfulness", because="faithfulness")
    cells = Cells(picture.shape[1], picture.shape[2])
    values = [cells.means(_finite(map_)) for map_ in maps]
    orders = [ranks_of(-cells.distances(), seed)]
    ways = [_ways(value, orders, cells, seed) for value in values]
    views = views_of([walk for way in ways for walks in way.values() for walk in walks])
    rows = _run(subject, picture, cells.spread(orders), views, work)
    pairs = [(row, np.asarray(probabilities(row))) for row in rows]
    return [
        _judged(
            way,
            is_flat(value),
            score.versus is not None,
            {v: _probability(score, *pair) for v, pair in zip(views, pairs, strict=True)},
        )
        for score, value, way in zip(scores, values, ways, strict=True)
    ]


def _ways(value: NDArray[np.float64], orders: list[Ranks], cells: Cells, seed: int) -> dict[Order, list[Walk]]:
    """Return the walks for a map's cells, and append its orders to `orders`, of which the first is the centre's."""
    ranks = ranks_of(value, seed)
    first = len(orders)
    orders += [ranks, *cells.elsewhere(ranks)]
    elsewhere = [Walk(first + 1 + n, cells.count, (n % len(_ALL),)) for n in range(ELSEWHERE)]
    return {
        "map": elsewhere if is_flat(value) else [Walk(first, cells.count, _ALL)],
        "random": elsewhere,
        "centre": [Walk(0, cells.count, _ALL)],
        "edge": [Walk(0, cells.count, _ALL, reverse=True)],
    }


def _run(subject: Subject, picture: Tensor, orders: Ranks, views: Sequence[View], work: Work) -> NDArray[np.float32]:
    """Return the scores `(views, K)` of what is seen; `orders` is `(planes, H, W)`."""
    shown = at_least_float32(picture)
    hidden = torch.cat([baseline_of(kind, subject, shown[None]) for kind in SUBSTRATES])
    places = torch.from_numpy(orders).to(picture.device)

    @torch.inference_mode()
    def run(part: range) -> NDArray[np.float32]:
        substrate, plane, low, high = torch.tensor(views[part.start : part.stop], device=picture.device).T
        at = places[plane]
        inside = (at >= low[:, None, None]) & (at < high[:, None, None])
        seen = torch.where(inside[:, None], shown, hidden[substrate])
        return subject.scores(seen.to(picture.dtype)).float().cpu().numpy()

    rows = np.concatenate(list(work.steps(len(views), run)))
    if not np.isfinite(rows).all():
        msg = "The model answers NaN or infinity when parts of the picture are hidden, so the map cannot be judged."
        raise NonFiniteScores(msg)
    return rows


def _judged(
    ways: Mapping[Order, Sequence[Walk]], constant: bool, versus: bool, probability: Mapping[View, float]
) -> Faithfulness:
    insertion = {order: _curve([walk.insertion() for walk in walks], probability) for order, walks in ways.items()}
    deletion = {order: _curve([walk.deletion() for walk in walks], probability) for order, walks in ways.items()}
    each = [_curve([w.insertion()], probability) for w in ways["random"]]
    other = [_curve([w.deletion()], probability) for w in ways["random"]]
    gains = [_area(i, FRACTIONS) - _area(d, FRACTIONS) for i, d in zip(each, other, strict=True)]
    return Faithfulness(
        fractions=FRACTIONS,
        insertion=insertion,
        deletion=deletion,
        substrates=SUBSTRATES,
        runs=len(probability),
        noise=float(np.std(gains, ddof=1)),
        highest=max(gains),
        constant=constant,
        versus=versus,
    )


def _curve(ways: Sequence[list[list[View]]], probability: Mapping[View, float]) -> tuple[float, ...]:
    """Return the mean probability at each fraction, over the ways and their substrates."""
    values = [[probability[view] for view in way] for substrates in ways for way in substrates]
    return tuple(float(mean) for mean in np.mean(values, axis=0))


def _area(curve: Sequence[float], fractions: Sequence[float]) -> float:
    return float(np.trapezoid(curve, fractions))


def _probability(score: Score, row: NDArray[np.float32], probabilities: NDArray[np.floating]) -> float:
    if score.versus is None:
        return float(probabilities[score.index])
    difference = float(row[score.index]) - float(row[score.versus])
    return 0.5 * (1 + math.tanh(difference / 2))  # the sigmoid, without overflow


def _finite(map_: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(map_).all():
        msg = "The map holds NaN or infinity, so it cannot be judged."
        raise NonFiniteMap(msg)
    return map_


def _tenth(answer: Faithfulness) -> str:
    """Return what becomes of the probability without the hottest tenth, and without the same shape elsewhere."""
    before = answer.deletion["map"][0]
    hottest, other = (before - answer.deletion[order][1] for order in ("map", "random"))
    what = f"the probability{' against the other class' if answer.versus else ''} of {before:.2f}"
    if _is_slight(hottest):
        rest = (
            "nor does the same shape elsewhere" if _is_slight(other) else f"the same shape elsewhere {_verb(other)} it"
        )
        return f"Removing the hottest tenth hardly changes {what}; {rest}{_by(other)}."
    same = (other >= 0) == (hottest >= 0)
    verb = " hardly changes it" if _is_slight(other) else "" if same else f" {_verb(other)} it"
    return (
        f"Removing the hottest tenth {_verb(hottest)} {what}{_by(hottest)}; the same shape elsewhere{verb}{_by(other)}."
    )


def _is_slight(change: float) -> bool:
    """Whether a change of probability would be printed as zero."""
    return abs(change) < 0.005


def _verb(fall: float) -> str:
    return "lowers" if fall >= 0 else "raises"


def _by(fall: float) -> str:
    return "" if _is_slight(fall) else f" by {abs(fall):.2f}"


def _conclusion(answer: Faithfulness) -> str:
    if answer.constant:
        return "The map is the same everywhere: it ranks nothing, and is no better than chance."
    margin = "0" if _is_slight(answer.margin) else f"{answer.margin:+.2f}"
    lead = f"lead {margin}; above {answer.threshold:.2f} chance is unlikely"
    if answer.margin < -answer.threshold:
        return f"Over all steps, the map's hot places matter less than others ({lead})."
    if answer.verdict == "no_better_than_random":
        return f"Over all steps, the map is no better than the same shape elsewhere ({lead})."
    if answer.verdict == "inconclusive":
        return f"Over all steps, the map is better than the same shape elsewhere, but chance can do that ({lead})."
    if answer.verdict == "better_than_controls":
        return f"Over all steps, the map is better than chance, and than the picture's centre or edge ({lead})."
    place = "centre" if answer.gain("centre") > answer.gain("edge") else "edge"
    return f"Over all steps, the map is better than chance, but not clearly than the picture's {place} ({lead})."
