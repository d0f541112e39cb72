import math

import pytest
import torch
from torch import nn

from explainers import Subject
from explainers.baselines import baseline_of
from tests.explainers.checks import assert_same
from tests.explainers.nets import pictures
from tests.references.baselines import baseline


def subject(*black: float) -> Subject:
    return Subject(nn.Identity(), nn.Identity(), black=black or None)


@pytest.mark.parametrize("size", [(9, 7), (7, 9), (1, 1), (1, 30), (40, 33)], ids=str)
@pytest.mark.parametrize("kind", ["mean", "blur"])
def test_each_picture_has_the_literal_one(kind: str, size: tuple[int, int]) -> None:
    x = pictures(2, *size)
    before = x.clone()
    made = baseline_of(kind, subject(0.5, 0.5, 0.5), x)
    assert made.dtype == torch.float64
    assert torch.equal(x, before)
    for n in range(2):
        assert_same(made[n : n + 1], baseline(kind, x[n : n + 1]))


def test_black_is_what_the_subject_says() -> None:
    x = pictures(2, 3, 2)
    made = baseline_of("black", subject(-2.0, 0.25, 1.0), x)
    assert made.shape == x.shape
    assert made.dtype == x.dtype
    for channel, value in enumerate((-2.0, 0.25, 1.0)):
        assert (made[:, channel] == value).all()
    assert (baseline_of("black", subject(), x) == 0).all()


@pytest.mark.parametrize("kind", ["mean", "blur"])
def test_an_even_picture_stays_as_it_is(kind: str) -> None:
    x = torch.tensor([[0.3, -1.5, 2.0]], dtype=torch.float64).reshape(1, 3, 1, 1).expand(1, 3, 50, 41)
    assert_same(baseline_of(kind, subject(), x), x, 1e-14)


def test_the_blur_spreads_a_point_by_a_twentieth_of_the_shorter_side() -> None:
    # Of 5.05 px, three times that are 15.15 px: it is cut at 16.5 px. A Gaussian cut at c standard deviations has the
    # variance 1 - 2 c phi(c) / (2 Phi(c) - 1) of the whole one.
    c = 16.5 / 5.05
    phi, share = math.exp(-c * c / 2) / math.sqrt(2 * math.pi), math.erf(c / math.sqrt(2))
    expected = 5.05**2 * (1 - 2 * c * phi / share)
    x = torch.zeros(1, 1, 101, 121, dtype=torch.float64)
    x[0, 0, 50, 60] = 1
    spread = baseline_of("blur", subject(), x)[0, 0]
    assert float(spread.sum()) == pytest.approx(1)
    rows, columns = torch.arange(101.0) - 50, torch.arange(121.0) - 60
    for variance in ((spread.sum(dim=1) * rows**2).sum(), (spread.sum(dim=0) * columns**2).sum()):
        assert float(variance) == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["black", "mean", "blur"])
def test_the_number_format_stays(kind: str, dtype: torch.dtype) -> None:
    x = pictures(1, 9, 7).to(dtype)
    assert baseline_of(kind, subject(0.1, 0.2, 0.3), x).dtype == dtype


@pytest.mark.parametrize("kind", ["black", "mean", "blur"])
def test_a_bad_picture_does_not_reach_the_others(kind: str) -> None:
    x = pictures(2, 9, 7)
    expected = baseline_of(kind, subject(), x)[0]
    x[1, 0, 4, 4] = float("nan")
    assert torch.equal(baseline_of(kind, subject(), x)[0], expected)
