import math
from operator import itemgetter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from explainers import Rank, Score, Target
from explainers.errors import NonFiniteScores, TargetOutOfRange, VersusEqualsTarget
from explainers.targets import resolve, resolve_all

steady = settings(deadline=None, derandomize=True)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
FEW_VALUES = st.sampled_from([-2.0, -0.0, 0.0, 1.0])
"""So few that ties are the rule."""
SCORES = st.lists(FINITE, min_size=1, max_size=40) | st.lists(FEW_VALUES, min_size=1, max_size=40)


def ranking(scores: list[float]) -> list[int]:
    """Classes by falling score, ties by index: insertion into a sorted list, one after the other."""
    ranked: list[int] = []
    for index, score in enumerate(scores):
        place = sum(scores[other] >= score for other in ranked)
        ranked.insert(place, index)
    return ranked


@steady
@given(SCORES)
def test_ranks_are_a_stable_descending_order(scores: list[float]) -> None:
    tensor = torch.tensor(scores)
    found = [resolve(Target(Rank(place)), tensor) for place in range(len(scores))]
    assert [score.index for score in found] == ranking(scores)
    assert [score.value for score in found] == [scores[index] for index in ranking(scores)]


@steady
@given(SCORES)
def test_the_default_target_is_the_predicted_class(scores: list[float]) -> None:
    predicted, _ = max(enumerate(scores), key=itemgetter(1))  # `max` keeps the first of equals
    assert resolve(Target(), torch.tensor(scores)) == Score(predicted, None, scores[predicted])


@steady
@given(SCORES, st.data())
def test_an_index_is_taken_as_it_is(scores: list[float], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(scores) - 1))
    tensor = torch.tensor(scores)
    assert resolve(Target(index), tensor) == Score(index, None, scores[index])
    assert resolve(Target(np.int64(index)), tensor) == Score(index, None, scores[index])  # as argmax returns it


@steady
@given(SCORES, st.integers(), st.sampled_from(["target", "versus"]), st.booleans())
def test_bounds_are_checked_and_named(scores: list[float], number: int, field: str, by_rank: bool) -> None:
    assume(not 0 <= number < len(scores))
    wrong = Rank(number) if by_rank else number
    target = Target(wrong) if field == "target" else Target(0, versus=wrong)
    with pytest.raises(TargetOutOfRange) as caught:
        resolve(target, torch.tensor(scores))
    last = len(scores) - 1
    assert caught.value.field == field
    assert caught.value.extra == {"minimum": 0, "maximum": last}
    what = f"rank {number}" if by_rank else f"class index {number}"
    expected = f"{field} asks for {what}, but the model has {len(scores)} classes: valid are 0 to {last}."
    assert str(caught.value) == expected


CHOICES = st.integers(0, 7) | st.builds(Rank, st.integers(0, 7))


@steady
@given(st.lists(FINITE, min_size=8, max_size=8), CHOICES, CHOICES)
def test_versus_is_a_difference_or_refused(scores: list[float], of: int | Rank, versus: int | Rank) -> None:
    def plain(choice: int | Rank) -> int:
        return ranking(scores)[choice.place] if isinstance(choice, Rank) else choice

    tensor = torch.tensor(scores)
    if plain(of) == plain(versus):
        with pytest.raises(VersusEqualsTarget, match=f"both class {plain(of)}"):
            resolve(Target(of, versus), tensor)
        return
    score = resolve(Target(of, versus), tensor)
    assert (score.index, score.versus) == (plain(of), plain(versus))
    assert score.value == float(np.float32(scores[plain(of)]) - np.float32(scores[plain(versus)]))


@steady
@given(st.lists(FINITE, min_size=1, max_size=10), st.integers(0, 9), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_non_finite_scores_are_an_error_wherever_they_are(scores: list[float], place: int, bad: float) -> None:
    scores.insert(min(place, len(scores)), bad)
    answer = resolve_all([Target(0)], torch.tensor(scores))
    assert isinstance(answer, NonFiniteScores)


def test_all_targets_of_a_picture_or_its_error() -> None:
    scores = torch.tensor([1.0, 3.0, 2.0])
    assert resolve_all([Target(), Target(Rank(2)), Target(2, versus=Rank(0))], scores) == [
        Score(1, None, 3.0),
        Score(0, None, 1.0),
        Score(2, 1, -1.0),
    ]
    assert resolve_all([], scores) == []
    answer = resolve_all([Target(0), Target(3)], scores)
    assert isinstance(answer, TargetOutOfRange)
    assert answer.__traceback__ is None  # it is kept: a traceback would keep the graph alive
    assert answer.__context__ is None
