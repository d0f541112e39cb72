"""The numbers that every method promises, over the whole registry."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from explainers import ExplainError, Explanation, Rank, Subject, Target, explain, get, names
from explainers.errors import (
    NonFiniteMap,
    NonFiniteScores,
    TargetOutOfRange,
    VersusEqualsTarget,
)
from tests.explainers.checks import (
    assert_same,
    looks_at,
    maps,
    parameter_sets,
    twin,
    twin_looks_at,
)
from tests.explainers.nets import CASES, CLASSES, PLAIN, Case, Head, pictures
from tests.explainers.odd_nets import Roots, sequential

METHODS = names()
SETTINGS = [pytest.param(name, chosen, id=f"{name}-{chosen}") for name in METHODS for chosen in parameter_sets(name)]
LAYERED = [name for name in METHODS if get(name).layers > 0]
each_method = pytest.mark.parametrize("method", METHODS)
each_setting = pytest.mark.parametrize(("method", "parameters"), SETTINGS)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def raws(answer: Explanation | ExplainError) -> list[np.ndarray]:
    assert isinstance(answer, Explanation), answer
    return [attribution.raw for attribution in answer.attributions]


# Numbers


@each_case
@each_setting
def test_a_map_equals_its_literal_twin(method: str, parameters: dict[str, object], case: Case) -> None:
    net, literal, x = case.build(), case.build(inplace=False), case.pictures(2)
    subject = Subject(net, net)
    for _ in range(2):
        rounds = maps(
            subject, method, x, [[Target(0), Target(3, versus=1)]] * 2, **looks_at(method, case), **parameters
        )
        for n in range(2):
            for k, (of, versus) in enumerate([(0, None), (3, 1)]):
                where = twin_looks_at(method, case)
                assert_same(rounds[k][n], twin(method, literal, x[n : n + 1], of, versus, **where, **parameters))


TARGETS = [[Target(0)], [Target(1), Target(2)], [Target(), Target(Rank(4)), Target(Rank(1), versus=Rank(3))], []]


@each_case
@each_setting
def test_a_batch_equals_its_pictures(method: str, parameters: dict[str, object], case: Case) -> None:
    net, x = case.build(), case.pictures(4)
    options = {**looks_at(method, case), **parameters}
    batch = maps(Subject(net, net), method, x, TARGETS, **options)
    for n in range(4):
        alone = maps(Subject(net, net), method, x[n : n + 1], TARGETS[n : n + 1], **options)
        assert len(alone) == len(TARGETS[n])
        for together, single in zip(batch, alone, strict=False):
            assert_same(together[n], single[0])


@each_case
@each_setting
def test_a_batch_equals_its_pictures_in_float32(method: str, parameters: dict[str, object], case: Case) -> None:
    net, x = case.build().float(), case.pictures(4).float()
    options: dict[str, Any] = {"method": method, "parameters": parameters, **looks_at(method, case)}
    subject = Subject(net, net)
    for n, answer in enumerate(explain(subject, x, TARGETS, **options)):
        (alone,) = explain(subject, x[n : n + 1], TARGETS[n : n + 1], **options)
        for together, single in zip(raws(answer), raws(alone), strict=True):
            assert_same(together, single, 1e-6)
        assert_same(answer.scores, alone.scores, 1e-6)


@each_case
@each_setting
def test_several_targets_equal_each_alone(method: str, parameters: dict[str, object], case: Case) -> None:
    net, x = case.build(), case.pictures(2)
    targets = [Target(0), Target(Rank(1)), Target(2, versus=4), Target(0)]
    subject = Subject(net, net)
    together = maps(subject, method, x, [targets] * 2, **looks_at(method, case), **parameters)
    assert len(together) == 4
    for k, target in enumerate(targets):
        (alone,) = maps(subject, method, x, [[target]] * 2, **looks_at(method, case), **parameters)
        assert_same(together[k], alone)
    assert torch.equal(together[0], together[3])


@each_setting
def test_an_explicit_class_equals_the_predicted_one(method: str, parameters: dict[str, object]) -> None:
    case = next(case for case in CASES if case.name == "strided")
    net, x = case.build(), case.pictures(3)
    predicted = net(x).argmax(dim=1).tolist()
    assert len(set(predicted)) > 1, "choose pictures that differ"
    options: dict[str, Any] = {"method": method, "parameters": parameters, **looks_at(method, case)}
    subject = Subject(net, net)
    by_default = explain(subject, x, [[Target()]] * 3, **options)
    by_rank = explain(subject, x, [[Target(Rank(0))]] * 3, **options)
    by_index = explain(subject, x, [[Target(of)] for of in predicted], **options)
    for default, rank, explicit in zip(by_default, by_rank, by_index, strict=True):
        assert raws(default)[0].tobytes() == raws(rank)[0].tobytes() == raws(explicit)[0].tobytes()
        assert default.attributions[0].score == explicit.attributions[0].score


@each_case
@pytest.mark.parametrize(("method", "parameters"), [("gradcam", {}), ("saliency", {"reduction": "signed_sum"})])
def test_versus_is_the_difference_of_the_two_maps(method: str, parameters: dict[str, object], case: Case) -> None:
    """Both methods are linear in the score."""
    net, x = case.build(), case.pictures(2)
    targets = [[Target(1), Target(3), Target(1, versus=3)]] * 2
    one, other, difference = maps(Subject(net, net), method, x, targets, **looks_at(method, case), **parameters)
    assert_same(difference, one - other)


# One bad picture


@each_setting
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Target(CLASSES), TargetOutOfRange),
        (Target(-1), TargetOutOfRange),
        (Target(Rank(CLASSES)), TargetOutOfRange),
        (Target(0, versus=CLASSES), TargetOutOfRange),
        (Target(Rank(0), versus=Rank(0)), VersusEqualsTarget),
        (float("nan"), NonFiniteScores),
        (float("inf"), NonFiniteScores),
    ],
    ids=str,
)
def test_a_bad_picture_fails_alone(
    method: str, parameters: dict[str, object], place: int, bad: Target | float, error: type[ExplainError]
) -> None:
    net, x = PLAIN.build(), PLAIN.pictures(3)
    targets = [[Target(0)], [Target(1), Target(2)], [Target(3)]]
    good = explain(Subject(net, net), x, targets, method=method, parameters=parameters, **looks_at(method, PLAIN))
    if isinstance(bad, Target):
        targets[place] = [Target(0), bad]
    else:
        x[place, 1, 4, 3] = bad
    subject = Subject(net, net)
    for _ in range(2):
        answers = explain(subject, x, targets, method=method, parameters=parameters, **looks_at(method, PLAIN))
        assert type(answers[place]) is error
        for n in {0, 1, 2} - {place}:
            for actual, expected in zip(raws(answers[n]), raws(good[n]), strict=True):
                assert_same(actual, expected, 1e-6)


@each_method
def test_a_picture_whose_map_is_not_finite_fails_alone(method: str) -> None:
    """sqrt has an infinite slope at zero: the scores of a black picture are finite, their gradient is not."""
    net = sequential(nn.Conv2d(3, 4, 3, bias=False), Roots(), Head(4))
    x = pictures(3, 9, 7)
    x[1] = 0
    case = Case("roots", nn.Identity, "0")
    subject = Subject(net, net)
    for _ in range(2):
        first, black, last = explain(subject, x, [[Target(0)]] * 3, method=method, **looks_at(method, case))
        assert isinstance(black, NonFiniteMap)
        for n, answer in ((0, first), (2, last)):
            assert_same(raws(answer)[0], twin(method, net, x[n : n + 1], 0, **twin_looks_at(method, case)), 1e-6)
