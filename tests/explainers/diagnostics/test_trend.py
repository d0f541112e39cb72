"""Trends over made-up layers, where the slope is known."""

import math
from collections.abc import Sequence

import pytest

from explainers.diagnostics.answer import Finding
from explainers.diagnostics.trend import Point, trends


def points(decades: Sequence[float], *, outputs: Sequence[float] | None = None) -> list[Point]:
    """Layers in the order of execution with these logarithms of the gradient; outputs that leave no influence."""
    outputs = [-level for level in decades] if outputs is None else outputs
    return [Point(str(k), 10**g, 10**a) for k, (g, a) in enumerate(zip(decades, outputs, strict=True))]


def line(slope: float, count: int, start: float = 0.0) -> list[float]:
    return [start + slope * k for k in range(count)]


def flat(count: int) -> list[float]:
    return [0.0] * count


def kinds(found: list[Finding]) -> list[str]:
    return [finding.kind for finding in found]


@pytest.mark.parametrize(
    ("slope", "count", "expected"),
    [
        (0.14, 100, []),  # not steep enough, however long
        (0.16, 9, []),  # 8 steps, without the two largest 0.96 decades
        (0.16, 10, ["vanishing"]),  # 1.12
        (-0.14, 100, []),
        (-0.16, 9, []),
        (-0.16, 10, ["exploding"]),
    ],
)
def test_influence(slope: float, count: int, expected: list[str]) -> None:
    """With outputs that do not change, the influence goes as the gradient does."""
    assert kinds(trends(points(line(slope, count), outputs=flat(count)))) == expected


@pytest.mark.parametrize(
    ("slope", "count", "expected"),
    [
        (0.19, 100, []),
        (0.21, 14, []),  # 13 steps, without the two largest 2.31 decades
        (0.21, 15, ["vanishing"]),  # 2.52
        (0.8, 6, []),  # 2.4
        (0.9, 6, ["vanishing"]),  # 2.7
        (-0.19, 100, []),
        (-0.21, 12, []),  # 1.89
        (-0.21, 13, ["exploding"]),  # 2.1
    ],
)
def test_the_gradient_alone(slope: float, count: int, expected: list[str]) -> None:
    """The outputs make up for it, as in a network of ReLUs, so the influence is the same everywhere."""
    assert kinds(trends(points(line(slope, count)))) == expected


def test_fewer_than_five_layers_have_no_trend() -> None:
    assert trends(points(line(2.0, 4), outputs=flat(4))) == []
    assert kinds(trends(points(line(2.0, 5), outputs=flat(5)))) == ["vanishing"]
    assert trends([]) == []


@pytest.mark.parametrize("count", [5, 6, 7, 8, 24])
@pytest.mark.parametrize("jump", [9.0, -9.0])
def test_one_jump_is_no_trend(jump: float, count: int) -> None:
    """A head, a pooling, a change of units: nine decades at once, and nothing before and after."""
    for place in range(count + 1):
        levels = [0.0] * place + [jump] * (count - place)
        assert trends(points(levels, outputs=flat(count))) == []


def test_two_jumps_are_no_trend() -> None:
    for first in range(24):
        for second in range(first, 24):
            levels = [9.0 * (k > first) + 9.0 * (k > second) for k in range(24)]
            assert trends(points(levels, outputs=flat(24))) == []


def test_a_side_branch_is_no_trend() -> None:
    """Small gradients inside, but the layers before the branch get large ones (layer scale, attention)."""
    branch = line(-0.5, 8, -0.5)
    for levels in (flat(6) + branch + flat(6), flat(6) + branch[::-1] + flat(6)):
        assert trends(points(levels, outputs=flat(20))) == []


def test_noise_does_not_hide_a_trend() -> None:
    noise = [0.2 * math.sin(7.0 * k) for k in range(20)]
    levels = [level + n for level, n in zip(line(0.5, 20), noise, strict=True)]
    assert kinds(trends(points(levels, outputs=flat(20)))) == ["vanishing"]


def test_the_stretch_is_named() -> None:
    """Healthy, then ten layers of half a decade each, then healthy: on the way back these are where it is lost."""
    levels = flat(10) + line(0.5, 11) + [5.0] * 10
    (finding,) = trends(points(levels, outputs=flat(31)))
    first, last = int(finding.layers[0]), int(finding.layers[-1])
    assert finding.kind == "vanishing"
    assert finding.layers == tuple(str(k) for k in range(first, last + 1))
    assert set(range(10, 21)) <= set(range(first, last + 1))
    assert first >= 6  # a window of eight of which half are in the trend
    assert last <= 24
    assert f"from '{last}' to '{first}'" in finding.reason
    assert "in all to 1e-05 times" in finding.reason


def test_both_ways_in_one_network() -> None:
    """Growing on the way back to the middle, and from there to the front shrinking."""
    levels = line(0.5, 12) + line(-0.5, 12, 5.5)
    found = {finding.kind: finding for finding in trends(points(levels, outputs=flat(24)))}
    assert found.keys() == {"vanishing", "exploding"}
    assert int(found["vanishing"].layers[0]) == 0
    assert int(found["exploding"].layers[-1]) == 23


def test_a_layer_that_is_called_often_is_named_once() -> None:
    repeated = [Point("shared", 10.0**-k, 1.0) for k in range(8)]
    (finding,) = trends(repeated)
    assert finding.layers == ("shared",)
    assert "over 8 layers" in finding.reason
