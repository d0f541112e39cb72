"""The numbers that every method promises, over the whole registry."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from explainers import ExplainError, Explanation, Rank, Subject, Target, Work, explain, get, names
from explainers.errors import (
    NonFiniteMap,
    NonFiniteScores,
    TargetOutOfRange,
    VersusEqualsTarget,
)
from tests.explainers.checks import (
    applies,
    assert_same,
    few,
    looks_at,
    maps,
    twin,
    twin_looks_at,
    with_cases,
    with_settings_and_cases,
)
from tests.explainers.nets import CASES, CLASSES, PLAIN, Case, Head, pictures
from tests.explainers.odd_nets import Roots, sequential

METHODS = names()
ON_PLAIN = [name for name in METHODS if applies(name, PLAIN)]
SEEDED = [name for name in METHODS if "seed" in get(name).parameters.model_fields]
LINEAR: dict[str, dict[str, object]] = {
    "ablationcam": {},
    "gradcam": {},
    "gradient_shap": {},
    "hirescam": {},
    "input_x_gradient": {},
    "integrated_gradients": {},
    "kernel_shap": {},
    "occlusion": {},
    "rise": {},
    "saliency": {"reduction": "signed_sum"},
    "shapley_sampling": {},
    "smoothgrad": {"reduction": "signed_sum"},
    "xgradcam": {},
}
"""The methods whose maps are linear in the score, with the parameters that make them so."""

CONDITIONED = {"ablationcam": 1e-4, "eigengradcam": 1e-4, "gradcam++": 1e-3, "xgradcam": 1e-3}
CONDITIONED |= dict.fromkeys(("kernel_shap", "lime", "occlusion", "rise", "shapley_sampling"), 1e-4)
"""Tolerances in float32 of methods that divide by what may be nearly zero, or subtract what is nearly equal."""

each_method = pytest.mark.parametrize(("method", "parameters", "case"), with_cases(METHODS))
each_setting = pytest.mark.parametrize(("method", "parameters", "case"), with_settings_and_cases(METHODS))


def raws(answer: Explanation | ExplainError) -> list[np.ndarray]:
    assert isinstance(answer, Explanation), answer
    return [attribution.raw for attribution in answer.attributions]


# Numbers


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


@each_method
def test_a_batch_equals_its_pictures(method: str, parameters: dict[str, object], case: Case) -> None:
    net, x = case.build(), case.pictures(4)
    options = {**looks_at(method, case), **parameters}
    batch = maps(Subject(net, net), method, x, TARGETS, **options)
    for n in range(4):
        alone = maps(Subject(net, net), method, x[n : n + 1], TARGETS[n : n + 1], **options)
        assert len(alone) == len(TARGETS[n])
        for together, single in zip(batch, alone, strict=False):
            assert_same(together[n], single[0])


@each_method
def test_a_batch_equals_its_pictures_in_float32(method: str, parameters: dict[str, object], case: Case) -> None:
    net, x = case.build().float(), case.pictures(4).float()
    options: dict[str, Any] = {"method": method, "parameters": parameters, **looks_at(method, case)}
    subject = Subject(net, net)
    for n, answer in enumerate(explain(subject, x, TARGETS, **options)):
        (alone,) = explain(subject, x[n : n + 1], TARGETS[n : n + 1], **options)
        for together, single in zip(raws(answer), raws(alone), strict=True):
            assert_same(together, single, CONDITIONED.get(method, 1e-6))
        assert_same(answer.scores, alone.scores, 1e-6)


@each_method
def test_several_targets_equal_each_alone(method: str, parameters: dict[str, object], case: Case) -> None:
    net, x = case.build(), case.pictures(2)
    targets = [Target(0), Target(Rank(1)), Target(2, versus=4), Target(0)]
    subject = Subject(net, net)
    together = maps(subject, method, x, [targets] * 2, **looks_at(method, case), **parameters)
    assert len(together) == 4
    for k, target in enumerate(targets):
        (alone,) = maps(subject, method, x, [[target]] * 2, **looks_at(method, case), **parameters)
        assert_same(together[k], alone)
    assert_same(together[0], together[3], 1e-12)


@pytest.mark.parametrize(
    ("method", "parameters", "case"),
    [param for param in with_cases(METHODS) if param.values[2].name in ("strided", "normed", "tokens")],
)
def test_an_explicit_class_equals_the_predicted_one(method: str, parameters: dict[str, object], case: Case) -> None:
    net, x = case.build(), pictures(8, 9, 7, seed=3)
    predicted = net(x).argmax(dim=1).tolist()
    assert len(set(predicted)) > 1, "choose pictures that differ"
    options: dict[str, Any] = {"method": method, "parameters": parameters, **looks_at(method, case)}
    subject = Subject(net, net)
    by_default = explain(subject, x, [[Target()]] * 8, **options)
    by_rank = explain(subject, x, [[Target(Rank(0))]] * 8, **options)
    by_index = explain(subject, x, [[Target(of)] for of in predicted], **options)
    for default, rank, explicit in zip(by_default, by_rank, by_index, strict=True):
        assert raws(default)[0].tobytes() == raws(rank)[0].tobytes() == raws(explicit)[0].tobytes()
        assert default.attributions[0].score == explicit.attributions[0].score


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("method", sorted(set(LINEAR) & set(METHODS)))
def test_versus_is_the_difference_of_the_two_maps(method: str, case: Case) -> None:
    net, x = case.build(), case.pictures(2)
    targets = [[Target(1), Target(3), Target(1, versus=3)]] * 2
    options = {**looks_at(method, case), **few(method), **LINEAR[method]}
    one, other, difference = maps(Subject(net, net), method, x, targets, **options)
    assert_same(difference, one - other)


@each_method
def test_a_map_depends_on_the_target_where_the_method_says_so(
    method: str, parameters: dict[str, object], case: Case
) -> None:
    net, x = case.build(), case.pictures(1)
    targets = [[Target(of) for of in range(CLASSES)] + [Target(0, versus=1)]]
    rounds = maps(Subject(net, net), method, x, targets, **looks_at(method, case), **parameters)
    same = [torch.equal(one, other) for one, other in pairwise(rounds)]
    assert not any(same) if get(method).class_specific else all(same)


@pytest.mark.parametrize(("method", "parameters", "case"), with_cases(SEEDED))
def test_a_seeded_map_repeats_and_another_seed_gives_another(
    method: str, parameters: dict[str, object], case: Case
) -> None:
    net, x = case.build(), case.pictures(2)
    options = {**looks_at(method, case), **parameters}

    def of(seed: int, chunk: int) -> Tensor:
        work = Work(chunk=chunk)
        return maps(Subject(net, net), method, x, [[Target(0)]] * 2, work=work, seed=seed, **options)[0]

    assert torch.equal(of(1, 16), of(1, 16))
    assert_same(of(1, 4), of(1, 16))
    assert (of(1, 16) - of(2, 16)).abs().max() > 1e-6 * of(1, 16).abs().max()


@each_method
def test_frozen_equals_unfrozen(method: str, parameters: dict[str, object], case: Case) -> None:
    net, x, options = case.build(), case.pictures(2), {**looks_at(method, case), **parameters}
    (frozen,) = maps(Subject(net, net), method, x, [[Target(0)], [Target(3, versus=2)]], **options)
    net.requires_grad_()
    (unfrozen,) = maps(Subject(net, net), method, x, [[Target(0)], [Target(3, versus=2)]], **options)
    assert_same(unfrozen, frozen)


@each_method
def test_the_callers_mode_makes_no_difference(method: str, parameters: dict[str, object], case: Case) -> None:
    net, options = case.build(), {**looks_at(method, case), **parameters}
    (expected,) = maps(Subject(net, net), method, case.pictures(1), [[Target(2)]], **options)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            (actual,) = maps(Subject(net, net), method, case.pictures(1), [[Target(2)]], **options)
        assert_same(actual, expected)


# One bad picture


@pytest.mark.parametrize("method", ON_PLAIN)
@pytest.mark.parametrize(
    ("place", "bad", "error"),
    [
        (0, Target(CLASSES), TargetOutOfRange),
        (1, Target(-1), TargetOutOfRange),
        (2, Target(Rank(CLASSES)), TargetOutOfRange),
        (0, Target(0, versus=CLASSES), TargetOutOfRange),
        (1, Target(Rank(0), versus=Rank(0)), VersusEqualsTarget),
        (0, float("nan"), NonFiniteScores),
        (1, float("nan"), NonFiniteScores),
        (2, float("inf"), NonFiniteScores),
    ],
    ids=str,
)
def test_a_bad_picture_fails_alone(method: str, place: int, bad: Target | float, error: type[ExplainError]) -> None:
    net, x = PLAIN.build(), PLAIN.pictures(3)
    targets = [[Target(0)], [Target(1), Target(2)], [Target(3)]]
    options: dict[str, Any] = {"method": method, "parameters": few(method), **looks_at(method, PLAIN)}
    good = explain(Subject(net, net), x, targets, **options)
    if isinstance(bad, Target):
        targets[place] = [Target(0), bad]
    else:
        x[place, 1, 4, 3] = bad
    subject = Subject(net, net)
    for _ in range(2):
        answers = explain(subject, x, targets, **options)
        assert type(answers[place]) is error
        for n in {0, 1, 2} - {place}:
            for actual, expected in zip(raws(answers[n]), raws(good[n]), strict=True):
                assert_same(actual, expected, 1e-6)


ROOTS = Case("roots", nn.Identity, "0", has_relu=False)


@pytest.mark.parametrize("method", [name for name in METHODS if get(name).uses_gradients and applies(name, ROOTS)])
def test_a_picture_whose_map_is_not_finite_fails_alone(method: str) -> None:
    """sqrt has an infinite slope at zero: the scores of a black picture are finite, their gradient is not."""
    net = sequential(nn.Conv2d(3, 4, 3, bias=False), Roots(), Head(4))
    x, parameters = pictures(3, 9, 7), few(method)
    x[1] = 0
    subject, options = Subject(net, net), {"method": method, "parameters": parameters, **looks_at(method, ROOTS)}
    for _ in range(2):
        first, black, last = explain(subject, x, [[Target(0)]] * 3, **options)
        assert isinstance(black, NonFiniteMap)
        for n, answer in ((0, first), (2, last)):
            expected = twin(method, net, x[n : n + 1], 0, **twin_looks_at(method, ROOTS), **parameters)
            assert_same(raws(answer)[0], expected, 1e-6)


# Between methods


@pytest.mark.parametrize("parameters", [{}, {"fusion": "maximum"}], ids=str)
def test_hirescam_equals_gradcam_where_only_pooling_and_a_linear_head_follow(parameters: dict[str, object]) -> None:
    # The gradient is then the same in every cell, w / cells, so its mean is itself.
    net = sequential(nn.Conv2d(3, 6, 3), nn.SiLU(), nn.Conv2d(6, 4, 3), Head(4))
    x, targets = pictures(2, 9, 7), [[Target(0)], [Target(4, versus=1)]]
    one, other = (maps(Subject(net, net), name, x, targets, ["2"], **parameters)[0] for name in ("gradcam", "hirescam"))
    assert_same(one, other)
