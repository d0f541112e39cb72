import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from explainers import Score, Subject, Work
from explainers.errors import NonFiniteMap, NonFiniteScores, TooManySamples
from explainers.faithfulness import (
    FRACTIONS,
    ORDERS,
    QUANTILE,
    SMALLEST_LEAD,
    Faithfulness,
    evaluations,
    faithfulness,
)
from explainers.orders import ELSEWHERE, Cells, is_flat, ranks_of
from tests.explainers.checks import snapshot
from tests.explainers.nets import CASES, PLAIN, Case, pictures
from tests.explainers.odd_nets import Call
from tests.references import faithfulness as literal

NETS = [case for case in CASES if case.name in ("plain", "normed", "residual")]
Scores = NDArray[np.floating]


def softmax(scores: Scores) -> Scores:
    return np.asarray(scipy.special.softmax(scores.astype(np.float64)))


def itself(scores: Scores) -> Scores:
    return scores


def judge(net: nn.Module, picture: Tensor, maps: Sequence[Any], scores: Sequence[Score], **options: Any) -> Any:
    raws = [np.asarray(map_, np.float32) for map_ in maps]
    return faithfulness(Subject(net, net), picture, scores, raws, probabilities=softmax, **options)


# Against the literal twin


@pytest.mark.parametrize("case", NETS, ids=[case.name for case in NETS])
@pytest.mark.parametrize(("index", "versus", "grid"), [(1, None, (3, 2)), (3, 0, (22, 27))])
def test_curves_are_the_literal_ones(case: Case, index: int, versus: int | None, grid: tuple[int, int]) -> None:
    net, x, map_ = case.build(), pictures(1, 22, 27)[0], pictures(1, *grid, seed=3, channels=1)[0, 0].float()
    (answer,) = judge(net, x, [map_], [Score(index, versus, 0.0)], seed=4)
    insertion, deletion, gains = literal.faithfulness(net, x, map_, index, versus, seed=4)
    for order in ORDERS:
        # The scores are float32, of numbers around 1.
        assert answer.insertion[order] == pytest.approx(insertion[order], abs=1e-6)
        assert answer.deletion[order] == pytest.approx(deletion[order], abs=1e-6)
        assert answer.gain(order) == pytest.approx(
            literal.area(insertion[order]) - literal.area(deletion[order]), abs=1e-6
        )
    assert answer.noise == pytest.approx(float(np.std(gains, ddof=1)), abs=1e-6)
    assert answer.highest == pytest.approx(max(gains), abs=1e-6)
    assert np.ptp(insertion["map"]) > 1e-3, "flat curves prove nothing"


def test_each_target_is_answered_as_if_it_were_alone() -> None:
    net, x = PLAIN.build(), pictures(1, 20, 24)[0]
    maps = [pictures(1, 5, 6, seed=seed, channels=1)[0, 0] for seed in range(3)]
    scores = [Score(0, None, 0.0), Score(4, None, 0.0), Score(2, 1, 0.0)]
    together = judge(net, x, maps, scores, work=Work(chunk=7))
    for map_, score, answer in zip(maps, scores, together, strict=True):
        (alone,) = judge(net, x, [map_], [score], work=Work(chunk=7))
        for order in ORDERS:
            assert answer.insertion[order] == pytest.approx(alone.insertion[order], abs=1e-6)
            assert answer.deletion[order] == pytest.approx(alone.deletion[order], abs=1e-6)
        assert answer.runs == evaluations(3)
        assert alone.runs == evaluations(1)


# What must come out, by derivation

OBJECT = (slice(0, 24), slice(8, 32))
"""Rows and columns of the object in pictures of 64 x 64 px with cells of 4 x 4 px: 6 x 6 of 256 cells."""
CHECKER = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(32, 32)[None]
"""A picture whose mean is zero, and whose blur (3.2 px) is so, to 1e-5, but for the border."""


def share_of(rows: slice, columns: slice) -> nn.Module:
    """The score of class 0 is the share of the object that is seen, that of class 1 is 1 less."""

    def score(x: Tensor) -> Tensor:
        seen = (x * CHECKER)[:, 0, rows, columns].mean(dim=(1, 2))
        return torch.stack([seen, 1 - seen], dim=1)

    return Call(score)


def region(rows: slice, columns: slice) -> NDArray[np.float32]:
    map_ = np.zeros((64, 64), np.float32)
    map_[rows, columns] = 1
    return map_


def of_share(map_: NDArray[np.float32], place: tuple[slice, slice] = OBJECT, index: int = 0) -> Faithfulness:
    net = share_of(*place)
    subject, score = Subject(net, net), Score(index, None, 0.0)
    return faithfulness(subject, CHECKER, [score], [map_], probabilities=itself)[0]


def test_the_map_that_knows_has_the_areas_that_follow_from_the_counts() -> None:
    """26 of 256 cells are the first tenth: 26 / 36 of the object. A blurred border shows 1 % of it, by 1 / 8 cells."""
    answer = of_share(region(*OBJECT))
    share = 26 / 36
    assert answer.insertion["map"] == pytest.approx((0, share, 1, 1, 1, 1), abs=0.02)
    assert answer.deletion["map"] == pytest.approx((1, 1 - share, 0, 0, 0, 0), abs=0.02)
    area = 0.1 * share / 2 + 0.25 * (share + 1) / 2 + 0.65
    assert answer.insertion_area("map") == pytest.approx(area, abs=0.02)
    assert answer.deletion_area("map") == pytest.approx(1 - area, abs=0.02)
    assert answer.gain("map") == pytest.approx(2 * area - 1, abs=0.03)
    assert answer.margin > answer.threshold
    assert answer.verdict == "better_than_controls"


def test_of_the_places_of_a_map_only_the_right_one_is_called_better() -> None:
    rows, columns = OBJECT
    places = [(2 * i, 2 * i + 4 * j) for i in range(4) for j in range(2)]
    verdicts = {}
    for down, across in places:
        map_ = np.roll(region(rows, columns), (8 * down, 8 * across), axis=(0, 1))
        verdicts[down, across % 8] = of_share(map_).is_better
    assert len(verdicts) == ELSEWHERE + 1
    assert [place for place, better in verdicts.items() if better] == [(0, 0)]


@pytest.mark.parametrize("value", [0.0, 3.7, -1e-30, 1e30])
def test_a_constant_map_is_no_better_than_random_wherever_the_object_lies(value: float) -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, (7, 7))
    for place in (OBJECT, (slice(24, 40), slice(24, 40))):
        answer = of_share(np.float32(value) * (1 + 2e-7 * noise).astype(np.float32), place)
        assert answer.constant
        assert answer.margin == 0
        assert answer.verdict == "no_better_than_random"
        assert answer.runs < evaluations(1)


def test_the_map_upside_down_is_said_to_be_worse() -> None:
    answer = of_share(-region(*OBJECT))
    assert answer.margin < -answer.threshold
    assert answer.verdict == "no_better_than_random"
    assert "matter less" in answer.words


def test_what_the_centre_does_as_well_is_not_better_than_the_controls() -> None:
    middle = (slice(20, 44), slice(20, 44))
    answer = of_share(region(*middle), middle)
    # 36 cells around the centre: of the first 26 from the centre all lie inside.
    assert answer.insertion["centre"][1] == pytest.approx(26 / 36, abs=0.02)
    assert answer.verdict == "better_than_random"
    assert answer.words.endswith("but not clearly than the picture's centre (" + answer.words.rpartition("(")[2])


def test_a_score_that_never_changes_proves_nothing() -> None:
    net = Call(lambda x: torch.ones(len(x), 2) + 0 * x[:, 0, :1, 0])
    (answer,) = judge(net, CHECKER, [region(*OBJECT)], [Score(0, None, 1.0)])
    assert (answer.margin, answer.noise, answer.threshold) == (0, 0, SMALLEST_LEAD)
    assert answer.verdict == "no_better_than_random"


@pytest.mark.parametrize("size", [(21, 30), (1, 90)])
def test_centre_and_edge_are_each_other_s_reverse(size: tuple[int, int]) -> None:
    """Of 90 cells, 31.5 are 0.35 and 58.5 are 0.65: rounded apart, they are not all."""
    net, x = Call(lambda x: torch.stack([x[:, 0, :, ::2].sum((1, 2)), x[:, 1].sum((1, 2))], 1)), pictures(1, *size)[0]
    (answer,) = judge(net, x, [pictures(1, 4, 4, channels=1)[0, 0]], [Score(0, None, 0.0)])
    assert answer.insertion["centre"] == answer.deletion["edge"][::-1]
    assert answer.deletion["centre"] == answer.insertion["edge"][::-1]
    assert answer.gain("centre") == pytest.approx(-answer.gain("edge"), abs=1e-12)


def test_ends_are_the_whole_picture_and_the_substrates() -> None:
    net, x = PLAIN.build().float(), pictures(1, 21, 30)[0].float()
    (answer,) = judge(net, x, [pictures(1, 4, 4, channels=1)[0, 0]], [Score(2, 3, 0.0)])
    with torch.no_grad():
        scores = net(x[None])[0].tolist()
    whole = 1 / (1 + math.exp(scores[3] - scores[2]))
    for order in ORDERS:
        assert answer.deletion[order][0] == answer.insertion[order][-1] == pytest.approx(whole, abs=1e-6)
    for order in ("map", "centre", "edge"):
        assert answer.insertion[order][0] == answer.insertion["map"][0]


def test_the_quantile_is_student_s() -> None:
    assert pytest.approx(scipy.stats.t.ppf(0.95, ELSEWHERE - 1) * math.sqrt(1 + 1 / ELSEWHERE), abs=1e-3) == QUANTILE


def test_ignorant_maps_are_called_better_once_in_twenty_times() -> None:
    """The verdict's promise where gains are normal: 20,000 eights of normal numbers; five standard errors are 0.008."""
    gains = np.random.default_rng(0).standard_normal((20_000, 1 + ELSEWHERE))
    own, others = gains[:, 0], gains[:, 1:]
    threshold = np.maximum(QUANTILE * others.std(axis=1, ddof=1), (others.max(axis=1) - others.mean(axis=1)))
    assert (own - others.mean(axis=1) > threshold).mean() == pytest.approx(0.05, abs=0.008)


# Cells


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 40), (5, 3), (22, 27), (224, 224), (97, 300), (600, 31)])
def test_cells_cover_the_picture_evenly(height: int, width: int) -> None:
    cells = Cells(height, width)
    (plane,) = cells.spread([np.arange(cells.count, dtype=np.int32)])
    assert plane.shape == (height, width)
    sizes = np.bincount(plane.ravel(), minlength=cells.count)
    assert sizes.min() > 0
    rows, columns = (len(np.unique(plane[:, 0])), len(np.unique(plane[0])))
    assert rows * columns == cells.count
    assert all(n % 2 == 0 or n == 1 for n in (rows, columns))
    assert sizes.max() <= math.ceil(height / rows) * math.ceil(width / columns)
    if min(height, width) >= 22:
        assert 200 <= cells.count <= 300


def test_a_cell_s_value_is_its_mean_of_the_map_at_the_pixels() -> None:
    cells, map_ = Cells(22, 27), pictures(1, 22, 27, channels=1)[0, 0].numpy()
    (plane,) = cells.spread([np.arange(cells.count, dtype=np.int32)])
    expected = [map_[plane == cell].mean() for cell in range(cells.count)]
    assert cells.means(map_) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("size", [(1, 1), (7, 7), (14, 5)])
def test_a_coarse_map_counts_as_torch_enlarges_it(size: tuple[int, int]) -> None:
    cells, map_ = Cells(32, 48), pictures(1, *size, channels=1)
    enlarged = F.interpolate(map_, (32, 48), mode="bilinear", align_corners=False)[0, 0].numpy()
    assert cells.means(map_[0, 0].numpy()) == pytest.approx(cells.means(enlarged), abs=1e-12)


@pytest.mark.parametrize("times", [2, 3])
def test_a_map_finer_than_the_picture_counts_by_its_mean(times: int) -> None:
    cells, map_ = Cells(20, 30), pictures(1, 20 * times, 30 * times, channels=1)
    pooled = F.avg_pool2d(map_, times)[0, 0].numpy()
    assert cells.means(map_[0, 0].numpy()) == pytest.approx(cells.means(pooled), abs=1e-12)


def test_elsewhere_is_all_other_places_of_the_same_lattice() -> None:
    cells = Cells(64, 64)
    ranks = ranks_of(np.arange(256.0), 0)
    laid = [grid.reshape(16, 16) for grid in cells.elsewhere(ranks)]
    where = {tuple(int(n) for n in np.argwhere(grid == ranks[0])[0]) for grid in laid}
    assert where == {(4 * i, (4 * i + 8 * j) % 16) for i in range(4) for j in range(2)} - {(0, 0)}
    for grid in laid:
        # Seen from there, the map's own place is one of the others.
        assert any((again.reshape(16, 16) == ranks.reshape(16, 16)).all() for again in cells.elsewhere(grid.ravel()))


def test_equal_values_are_ordered_by_the_seed_alone() -> None:
    values = np.repeat([2.0, 1.0], 50)
    first, again, other = (ranks_of(values, seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    for ranks in (first, other):
        assert sorted(ranks[:50]) == list(range(50))
    assert (ranks_of(values * 3, 1) == first).all()
    assert (ranks_of(values + np.linspace(0, 1e-7, 100), 1) == first).all()
    assert not is_flat(values)
    assert is_flat(np.full(5, 0.1) * 3)


# Words

NUMBERS: dict[str, Any] = {
    "fractions": FRACTIONS,
    "substrates": ("blur", "mean"),
    "runs": 91,
    "noise": 0.02,
    "highest": 0.0,
    "constant": False,
}
FLAT = (0.5,) * len(FRACTIONS)


def test_words_tell_the_figures_of_the_hottest_tenth() -> None:
    rising, falling = (0.1, 0.5, 0.7, 0.8, 0.8, 0.82), (0.82, 0.40, 0.3, 0.2, 0.1, 0.1)
    curves = {"random": (0.82, 0.77, 0.5, 0.3, 0.2, 0.1), "centre": falling, "edge": FLAT}
    answer = Faithfulness(
        insertion={"map": rising, "random": curves["random"][::-1], "centre": FLAT, "edge": FLAT},
        deletion={"map": falling, **curves},
        **NUMBERS,
    )
    assert answer.words.startswith(
        "Removing the hottest tenth lowers the probability of 0.82 by 0.42; the same shape elsewhere by 0.05. "
    )


def test_words_say_when_the_probability_rises() -> None:
    deletion = {"map": (0.5, 0.6, 0.5, 0.5, 0.5, 0.5), "random": (0.5, 0.2, 0.5, 0.5, 0.5, 0.5)}
    controls = {"centre": FLAT, "edge": FLAT}
    answer = Faithfulness(
        insertion={"map": FLAT, "random": FLAT, **controls}, deletion={**deletion, **controls}, **NUMBERS
    )
    assert answer.words.startswith(
        "Removing the hottest tenth raises the probability of 0.50 by 0.10; the same shape elsewhere lowers it by 0.30."
    )


def made(gains: dict[str, float], **numbers: Any) -> Faithfulness:
    """An answer with these gains: insertion is above 0.5 by half of each, deletion below, except at the ends."""
    curves = {order: np.array([0.5, *[0.5 + gain / 2] * 4, 0.5]) for order, gain in gains.items()}
    ends = 0.9  # trapezoids: of the first and the last tenth only half counts
    insertion = {order: tuple((0.5 + (curve - 0.5) / ends).tolist()) for order, curve in curves.items()}
    deletion = {order: tuple((1 - np.array(curve)).tolist()) for order, curve in insertion.items()}
    return Faithfulness(insertion=insertion, deletion=deletion, **(NUMBERS | numbers))


@pytest.mark.parametrize(
    ("own", "centre", "highest", "noise", "verdict"),
    [
        # Of "random" the gain is 0.1, and of the edge that of the centre, negative.
        (0.30, 0.0, 0.2, 0.05, "better_than_controls"),  # 0.2 above, 0.104 wanted
        (0.20, -0.1, 0.15, 0.05, "inconclusive"),  # 0.1 above, 0.104 wanted
        (0.30, 0.25, 0.2, 0.05, "better_than_random"),
        (0.30, -0.25, 0.2, 0.05, "better_than_random"),
        (0.30, 0.0, 0.31, 0.05, "inconclusive"),  # one of the other places is higher
        (0.105, 0.0, 0.1, 0.0, "no_better_than_random"),  # half a point of probability
        (0.115, 0.0, 0.1, 0.0, "better_than_controls"),
        (0.09, 0.0, 0.1, 0.05, "no_better_than_random"),
        (-0.30, 0.0, 0.2, 0.05, "no_better_than_random"),
    ],
)
def test_the_verdict_claims_what_the_lead_carries(
    own: float, centre: float, highest: float, noise: float, verdict: str
) -> None:
    gains = {"map": own, "random": 0.1, "centre": centre, "edge": -centre}
    answer = made(gains, highest=highest, noise=noise)
    assert {order: answer.gain(order) for order in ORDERS} == pytest.approx(gains)
    assert answer.margin == pytest.approx(own - 0.1)
    assert answer.verdict == verdict
    assert made(gains, highest=highest, noise=noise, constant=True).verdict == "no_better_than_random"
    told = {"better_than_controls": "or edge (", "better_than_random": "but not clearly", "inconclusive": "chance can"}
    assert told.get(verdict, "matter less" if own < 0 else "is no better than the same shape") in answer.words
    assert answer.is_better == verdict.startswith("better")


# What it costs and leaves


def test_one_target_takes_at_most_twelve_passes_of_eight() -> None:
    net, sizes = PLAIN.build(), []

    def scores(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return net(x)

    map_ = np.random.default_rng(0).standard_normal((7, 7)).astype(np.float32)
    (answer,) = faithfulness(
        Subject(net, scores), pictures(1, 20, 20)[0], [Score(0, None, 0.0)], [map_], probabilities=softmax
    )
    assert max(sizes) <= 8
    assert len(sizes) <= 12
    assert sum(sizes) == answer.runs == evaluations(1) == 91


def test_work_bounds_the_pass_and_hears_of_the_steps() -> None:
    net, steps, sizes = PLAIN.build(), [], []

    def scores(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return net(x)

    faithfulness(
        Subject(net, scores),
        pictures(1, 20, 20)[0],
        [Score(0, None, 0.0)],
        [np.eye(4, dtype=np.float32)],
        probabilities=softmax,
        work=Work(chunk=3, on_step=lambda done, total: steps.append((done, total))),
    )
    assert max(sizes) == 3
    assert steps[-1] == (91, 91)
    assert len(steps) == len(sizes) + 1


def test_more_runs_than_allowed_are_refused() -> None:
    with pytest.raises(TooManySamples) as caught:
        judge(PLAIN.build(), pictures(1, 9, 9)[0], [np.eye(3)], [Score(0, None, 0.0)], work=Work(limit=90))
    assert caught.value.field == "faithfulness"


def test_the_model_and_all_random_numbers_are_as_before() -> None:
    net, x = PLAIN.build(), pictures(1, 20, 20)[0]
    before = snapshot(net)
    judge(net, x, [np.eye(5)], [Score(0, None, 0.0)])
    assert snapshot(net) == before


def test_pictures_smaller_than_the_cells_are_judged_all_the_same() -> None:
    for size in ((1, 1), (1, 6), (5, 3)):
        x = pictures(1, *size)[0]
        net = Call(lambda x: x.mean(dim=(2, 3)))
        (answer,) = judge(net, x, [np.arange(math.prod(size)).reshape(size)], [Score(0, None, 0.0)])
        assert all(math.isfinite(value) for order in ORDERS for value in answer.insertion[order])


def test_half_precision_is_judged_in_its_own_precision() -> None:
    net, x, map_ = PLAIN.build(), pictures(1, 20, 20)[0], np.eye(5)
    (full,) = judge(net, x, [map_], [Score(0, None, 0.0)])
    (half,) = judge(net.bfloat16(), x.bfloat16(), [map_], [Score(0, None, 0.0)])
    # bfloat16 has 8 bits: scores around 2 are wrong by a hundredth.
    assert half.deletion["map"] == pytest.approx(full.deletion["map"], abs=0.03)


def test_no_map_needs_no_run() -> None:
    assert judge(Call(lambda x: x / 0), pictures(1, 9, 9)[0], [], []) == []


def test_what_is_not_finite_is_named() -> None:
    net, x = PLAIN.build(), pictures(1, 20, 20)[0]
    with pytest.raises(NonFiniteMap):
        judge(net, x, [np.array([[1.0, np.nan]])], [Score(0, None, 0.0)])
    broken = Call(lambda x: net(x) / (x.std(dim=(1, 2, 3)) > 0.1)[:, None])
    with pytest.raises(NonFiniteScores):
        judge(broken, x, [np.eye(5)], [Score(0, None, 0.0)])
