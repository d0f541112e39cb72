"""Gradients of units inside the network: differences, closed forms, captum, and every way to fail."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import NeuronGradient
from torch import Tensor, nn

from explainers import Subject, Target, explain
from explainers.diagnostics.sensitivity import Sensitivity, Unit, sensitivity
from explainers.errors import (
    BadParameter,
    ExplainError,
    LayerNeverRan,
    LayerNotSpatial,
    LayerOutputNotTensor,
    NonFiniteMap,
    NonFiniteScores,
    NotConnected,
    UnknownLayer,
)
from tests.explainers.checks import assert_same, bits, snapshot
from tests.explainers.nets import CASES, PLAIN, Case, Head, pictures, seeded
from tests.explainers.odd_nets import BreaksBackward, Call, Cut, Roots, Shared, UnderMode, breaks_forward, sequential
from tests.references import diagnostics as references

UNITS = [Unit(), Unit(channel=1), Unit(row=1, column=0), Unit(channel=2, row=0, column=1)]


def of(net: nn.Module, x: Tensor, layer: str, unit: Unit = Unit(), **options: Any) -> list[Sensitivity | ExplainError]:  # noqa: B008 - frozen
    return sensitivity(Subject(net, net), x, layer, unit, **options)


def value_of(net: nn.Module, case: Case, unit: Unit) -> Callable[[Tensor], Tensor]:
    """The unit's value, read off by a hook."""

    def value(x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handle = net.get_submodule(case.layer).register_forward_hook(lambda _m, _a, out: seen.append(out.clone()))
        net(x.clone())
        handle.remove()
        grid = seen[0] if case.to_grid is None else case.to_grid(seen[0])
        channels, rows, columns = (
            range(count) if index is None else [index]
            for index, count in zip((unit.channel, unit.row, unit.column), grid.shape[1:], strict=True)
        )
        chosen = [grid[0, c, i, j] for c in channels for i in rows for j in columns]
        return torch.stack(chosen).sum() / len(chosen)

    return value


@pytest.mark.parametrize("unit", UNITS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_map_says_how_the_value_moves(case: Case, unit: Unit) -> None:
    net, x = case.build(), case.pictures(2)
    value = value_of(case.build(inplace=False), case, unit)
    slopes = references.slopes(value, x[1:])
    expected = {"max_abs": slopes.abs().amax(dim=0), "signed_sum": slopes.sum(dim=0)}
    for reduction, map_ in expected.items():
        _, found = of(net, x, case.layer, unit, to_grid=case.to_grid, reduction=reduction)
        assert found.value == pytest.approx(float(value(x[1:])), rel=1e-12)
        assert found.raw.dtype == np.float32
        assert_same(found.raw, map_, 1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_captum_agrees(case: Case) -> None:
    net, x = case.build(inplace=False), case.pictures(2).requires_grad_()
    grid = case.to_grid or (lambda tensor: tensor)
    selectors: dict[Unit, Callable[[Tensor], Tensor]] = {
        Unit(channel=1): lambda t: grid(t)[:, 1].mean(dim=(1, 2)),
        Unit(channel=2, row=1, column=1): lambda t: grid(t)[:, 2, 1, 1],
    }
    captum = NeuronGradient(net, net.get_submodule(case.layer))
    for unit, selector in selectors.items():
        expected = captum.attribute(x, selector).detach()
        found = of(net, x, case.layer, unit, to_grid=case.to_grid, reduction="signed_sum")
        assert_same([answer.raw for answer in found], expected.sum(dim=1), 1e-6)
        found = of(net, x, case.layer, unit, to_grid=case.to_grid)
        assert_same([answer.raw for answer in found], expected.abs().amax(dim=1), 1e-6)


def test_a_convolution_shows_its_kernel() -> None:
    net = seeded(nn.Conv2d(3, 4, 3, padding=1))
    (found,) = of(nn.Sequential(net), pictures(1, 9, 7), "0", Unit(2, 4, 3), reduction="signed_sum")
    expected = torch.zeros(9, 7, dtype=torch.float64)
    expected[3:6, 2:5] = net.weight[2].sum(dim=0)
    assert_same(found.raw, expected, 1e-6)


def test_a_layer_without_a_grid_has_channels_only() -> None:
    net, x = PLAIN.build(), PLAIN.pictures(2)
    found = of(net, x, "5.fc", Unit(channel=3))
    saliency = explain(Subject(net, net), x, [[Target(3)]] * 2, method="saliency")
    for answer, explanation in zip(found, saliency, strict=True):
        assert answer.value == pytest.approx(explanation.attributions[0].score.value)
        assert_same(answer.raw, explanation.attributions[0].raw, 1e-6)
    scores = net(x.clone())
    assert [answer.value for answer in of(net, x, "5.fc")] == pytest.approx(scores.mean(dim=1).tolist())
    for field in ("row", "column"):
        with pytest.raises(BadParameter, match=f"{field}: the layer has no grid, only 5 channels") as caught:
            of(net, x, "5.fc", Unit(**{field: 0}))
        assert caught.value.field == field


def test_the_last_call_of_a_shared_layer_counts() -> None:
    net = seeded(Shared(inplace=True))
    x = pictures(1, 9, 7)
    (found,) = of(net, x, "relu", Unit(channel=3))
    twin = seeded(Shared(inplace=False))
    slopes = references.slopes(lambda x: twin.conv2(twin.conv1(x).relu()).relu()[0, 3].mean(), x)
    assert_same(found.raw, slopes.abs().amax(dim=0), 1e-5)


def test_a_unit_that_does_not_move_is_an_answer() -> None:
    net = sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), Head(4))
    net[0].bias[1] = -100
    (found,) = of(net, pictures(1, 9, 7), "1", Unit(channel=1))
    assert found.value == 0
    assert (found.raw == 0).all()
    (alive,) = of(net, pictures(1, 9, 7), "0", Unit(channel=1))
    assert alive.value < -50
    assert (alive.raw != 0).any()


def test_a_batch_answers_as_its_pictures_do() -> None:
    net, x = PLAIN.build(), PLAIN.pictures(3)
    together = of(net, x, "2", Unit(channel=1))
    for n in range(3):
        (alone,) = of(net, x[n : n + 1], "2", Unit(channel=1))
        assert_same(together[n].raw, alone.raw, 1e-6)
        assert together[n].value == pytest.approx(alone.value)


def test_half_precision_means_are_float32() -> None:
    """bfloat16 has three digits."""
    net = sequential(nn.Conv2d(3, 2, 1), nn.Identity()).to(torch.bfloat16)
    net[0].bias.fill_(10)
    x = pictures(1, 10, 7).to(torch.bfloat16)
    (found,) = of(net, x, "0", Unit(channel=0), reduction="signed_sum")
    assert found.value == pytest.approx(float(net[0](x)[0, 0].double().mean()), rel=1e-6)
    assert_same(found.raw, np.full((10, 7), float(net[0].weight[0].double().sum()) / 70), 0.02)


# What is wrong


@pytest.mark.parametrize(
    ("unit", "field", "last"),
    [
        (Unit(channel=8), "channel", 7),
        (Unit(channel=-1), "channel", 7),
        (Unit(row=9, column=0), "row", 8),
        (Unit(0, row=0, column=7), "column", 6),
        (Unit(row=-1, column=-1), "row", 8),
    ],
    ids=str,
)
def test_a_unit_outside_of_the_layer(unit: Unit, field: str, last: int) -> None:
    with pytest.raises(BadParameter, match=rf"^{field}: .* valid are 0 to {last}\.") as caught:
        of(PLAIN.build(), PLAIN.pictures(1), "2", unit)
    assert caught.value.field == field
    assert caught.value.extra == {"minimum": 0, "maximum": last}


@pytest.mark.parametrize(("unit", "missing"), [(Unit(row=1), "column"), (Unit(0, column=1), "row")], ids=str)
def test_a_place_is_a_row_and_a_column(unit: Unit, missing: str) -> None:
    with pytest.raises(BadParameter, match=f"{missing}: ") as caught:
        of(PLAIN.build(), PLAIN.pictures(1), "2", unit)
    assert caught.value.field == missing


class Windows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x])


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.unused = PLAIN.build(), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize(
    ("build", "layer", "error"),
    [
        (PLAIN.build, "nope", UnknownLayer),
        (Unused, "unused", LayerNeverRan),
        (lambda: sequential(Call(lambda x: (x, x)), Call(lambda p: p[0])), "0", LayerOutputNotTensor),
        (lambda: sequential(Call(lambda x: x.argmax(1)), Call(lambda x: x.double())), "0", LayerOutputNotTensor),
        (lambda: sequential(Call(lambda x: x.flatten(2)), nn.Flatten()), "0", LayerNotSpatial),
        (lambda: sequential(Windows(), nn.Flatten()), "0", LayerNotSpatial),
        (lambda: sequential(Cut(), nn.Conv2d(3, 4, 3)), "1", NotConnected),
        (lambda: sequential(Call(torch.ones_like), nn.Conv2d(3, 4, 3)), "1", NotConnected),
        (lambda: sequential(UnderMode(torch.no_grad, nn.ReLU()), nn.Conv2d(3, 4, 3)), "1", NotConnected),
        (lambda: sequential(UnderMode(torch.inference_mode, nn.ReLU()), Head(3)), "0", NotConnected),
        (lambda: sequential(nn.Conv2d(3, 4, 3), Call(breaks_forward)), "0", ArithmeticError),
        (lambda: sequential(Call(BreaksBackward.apply), nn.Conv2d(3, 4, 3)), "1", ArithmeticError),
    ],
)
@pytest.mark.parametrize("unfrozen", [False, True])
def test_what_is_wrong_is_named_and_nothing_changes(
    build: Callable[[], nn.Module], layer: str, error: type[Exception], unfrozen: bool
) -> None:
    net, x = build().eval().requires_grad_(unfrozen).double(), pictures(2, 9, 7)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    before, pixels = snapshot(net), bits(x)
    with pytest.raises(error):
        of(net, x, layer)
    assert snapshot(net) == before
    assert (bits(x), x.requires_grad) == (pixels, False)


def test_a_picture_with_numbers_that_are_not_finite_fails_alone() -> None:
    net = sequential(nn.Conv2d(3, 4, 3, bias=False), Roots(), Head(4))
    x = pictures(3, 9, 7)
    x[0] = 0  # the square root's slope at zero is infinite
    x[1, 0, 4, 4] = torch.nan
    (expected,) = of(net, x[2:], "1")
    steep, nan, good = of(net, x, "1")
    assert isinstance(steep, NonFiniteMap)
    assert "'1'" in str(steep)
    assert isinstance(nan, NonFiniteScores)
    assert_same(good.raw, expected.raw, 1e-6)


@pytest.mark.parametrize("unfrozen", [False, True])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_success_changes_nothing(case: Case, mode: Callable[[], Any], unfrozen: bool) -> None:
    net = case.build().requires_grad_(unfrozen)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    (expected,) = of(case.build(), case.pictures(1), case.layer, to_grid=case.to_grid)
    before = snapshot(net)
    with mode():
        x = case.pictures(1)
        (found,) = of(net, x, case.layer, to_grid=case.to_grid)
    assert_same(found.raw, expected.raw)
    assert snapshot(net) == before
    assert not x.requires_grad
