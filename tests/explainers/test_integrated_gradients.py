"""Integrated gradients and gradient SHAP: closed forms, completeness, and captum's answers."""

import math

import numpy as np
import pytest
import torch
from captum.attr import GradientShap, IntegratedGradients
from torch import Tensor, nn

from explainers import Subject, Target, explain, get
from explainers.baselines import baseline_of
from explainers.batch import Batch, Maps
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import PLAIN, pictures, seeded
from tests.explainers.torchvision_nets import build
from tests.references.gradient import gauss_legendre, gradient_shap, integrated_gradients

BASELINES = ("black", "blur", "mean")
COMPLETE = ("integrated_gradients", "gradient_shap")


class Powers(nn.Module):
    """y = sum of w * x^p; a second class has the score -y."""

    def __init__(self, weights: Tensor, power: int) -> None:
        super().__init__()
        self.weights, self.power = weights, power

    def forward(self, x: Tensor) -> Tensor:
        y = (self.weights * x**self.power).sum(dim=(1, 2, 3))
        return torch.stack([y, -y], dim=1)


def powers(power: int) -> Powers:
    return Powers(pictures(1, 5, 4, seed=9)[0], power)


def run(net: nn.Module, method: str, x: Tensor, targets: list[list[Target]], **parameters: object) -> Maps:
    chosen = get(method)
    subject = Subject(net, net, black=(-0.7, 0.2, 0.5))
    return chosen.run(Batch(subject, x, targets), chosen.parameters.model_validate(parameters))


def start_of(kind: str, x: Tensor) -> Tensor:
    return baseline_of(kind, Subject(nn.Identity(), nn.Identity(), black=(-0.7, 0.2, 0.5)), x)


# Closed forms


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize(("power", "steps"), [(1, 1), (2, 1), (3, 2), (4, 2), (10, 5), (2, 32), (2, 1000)])
def test_of_powers_it_is_exactly_each_pixel_s_difference(power: int, steps: int, baseline: str) -> None:
    # Pixels do not meet, so each one's share is w * (x^p - b^p). The gradient has degree p - 1 along the line, and S
    # points of Gauss-Legendre are exact up to degree 2 S - 1.
    net, x = powers(power), pictures(2, 5, 4)
    found = run(net, "integrated_gradients", x, [[Target(0), Target(1)]] * 2, steps=steps, baseline=baseline)
    expected = (net.weights * (x**power - start_of(baseline, x) ** power)).sum(dim=1)
    assert_same(found.rounds[0], expected, 1e-11)
    assert_same(found.rounds[1], -expected, 1e-11)
    for gaps in found.gaps:
        assert gaps.abs().max() < 1e-10 * expected.abs().sum()


def test_too_few_steps_leave_the_gap_that_the_rule_is_known_to_leave() -> None:
    # One point takes the slope 3 m^2 in the middle m = (x + b) / 2 for x^3, and x^3 - b^3 - 3 m^2 (x - b) is
    # (x - b)^3 / 4.
    net, x = powers(3), pictures(1, 5, 4)
    found = run(net, "integrated_gradients", x, [[Target(0)]], steps=1)
    missing = (net.weights * (x - start_of("black", x)) ** 3 / 4).sum()
    assert float(found.gaps[0]) == pytest.approx(-float(missing), rel=1e-10)
    (answer,) = explain(
        Subject(net, net, black=(-0.7, 0.2, 0.5)),
        x,
        [[Target(0)]],
        method="integrated_gradients",
        parameters={"steps": 1},
    )
    assert answer.attributions[0].completeness_gap == float(found.gaps[0])


@pytest.mark.parametrize("method", COMPLETE)
@pytest.mark.parametrize("baseline", BASELINES)
def test_of_a_linear_model_without_noise_it_is_the_weights_times_the_difference(method: str, baseline: str) -> None:
    net, x = powers(1), pictures(2, 5, 4)
    options = {"noise": 0.0} if method == "gradient_shap" else {}
    found = run(net, method, x, [[Target(0)]] * 2, baseline=baseline, **options)
    assert_same(found.rounds[0], (net.weights * (x - start_of(baseline, x))).sum(dim=1))
    assert found.gaps[0].abs().max() < 1e-12


def test_gradient_shap_of_a_linear_model_misses_by_the_mean_noise() -> None:
    # The map is w * (x + sigma * mean of e_s - b), so its sum misses y(x) - y(b) by w * sigma * mean of e_s.
    net, x = powers(1), pictures(1, 5, 4)
    found = run(net, "gradient_shap", x, [[Target(0)]], samples=3, noise=0.3, seed=5)
    noises = []
    for sample in range(3):
        numbers = torch.Generator().manual_seed(5 * 1_000_003 + sample)
        torch.rand((), generator=numbers)  # the place on the line comes first
        noises.append(torch.randn(3, 5, 4, generator=numbers).double())
    missing = (net.weights * 0.3 * (x.max() - x.min()) * torch.stack(noises).mean(dim=0)).sum()
    assert abs(float(missing)) > 0.1
    assert float(found.gaps[0]) == pytest.approx(float(missing), rel=1e-9)


# Completeness


def smooth() -> nn.Module:
    return seeded(nn.Sequential(nn.Conv2d(3, 6, 3), nn.SiLU(), nn.Conv2d(6, 4, 3), nn.SiLU(), nn.Flatten()))


@pytest.mark.parametrize("method", COMPLETE)
@pytest.mark.parametrize("baseline", BASELINES)
def test_gaps_are_what_the_sum_misses(method: str, baseline: str) -> None:
    net, x = smooth(), pictures(2, 6, 5)
    targets = [[Target(0)], [Target(2), Target(1, versus=5)]]
    found = run(net, method, x, targets, baseline=baseline)
    start, end = net(start_of(baseline, x)), net(x)
    for k, n, rise in (
        (0, 0, end[0, 0] - start[0, 0]),
        (0, 1, end[1, 2] - start[1, 2]),
        (1, 1, end[1, 1] - end[1, 5] - start[1, 1] + start[1, 5]),
    ):
        assert float(found.gaps[k][n]) == pytest.approx(float(found.rounds[k][n].sum() - rise), abs=1e-12)


@pytest.mark.parametrize("baseline", BASELINES)
def test_more_steps_close_the_gap(baseline: str) -> None:
    # SiLU is analytic, so the gap of S points falls by a constant factor with each further point.
    gaps = [
        float(
            run(smooth(), "integrated_gradients", pictures(1, 6, 5), [[Target(2)]], steps=s, baseline=baseline).gaps[0]
        )
        for s in (2, 6, 24)
    ]
    assert abs(gaps[0]) > 100 * abs(gaps[1])
    assert abs(gaps[2]) < 1e-9


def test_more_steps_close_the_gap_of_relus_too() -> None:
    # The gradient jumps along the line: the gap falls about with 1 / S.
    net, x = PLAIN.build(), PLAIN.pictures(4)
    few, many = (run(net, "integrated_gradients", x, [[Target(0)]] * 4, steps=s).gaps[0].abs().max() for s in (3, 300))
    assert many < few / 20


def test_gradient_shap_without_noise_comes_near_integrated_gradients() -> None:
    # The standard error of a mean of S random points falls with the root of S: 40 times for 1600 samples.
    net, x = smooth(), pictures(1, 6, 5)
    subject = Subject(net, net)
    (exact,) = maps(subject, "integrated_gradients", x, [[Target(2)]], steps=32)
    errors = []
    for samples in (25, 1600):
        (random,) = maps(subject, "gradient_shap", x, [[Target(2)]], samples=samples, noise=0.0)
        errors.append(float((random - exact).abs().max() / exact.abs().max()))
    assert errors[1] < 0.05
    assert errors[1] < errors[0] / 2


# The literal twins, with other parameters than the contract's


@pytest.mark.parametrize("baseline", BASELINES)
def test_equal_their_literal_twins(baseline: str) -> None:
    net, literal, x = PLAIN.build(), PLAIN.build(inplace=False), PLAIN.pictures(1, seed=4)
    subject, targets = Subject(net, net), [[Target(1, versus=4)]]
    (actual,) = maps(subject, "integrated_gradients", x, targets, steps=7, baseline=baseline)
    assert_same(actual[0], integrated_gradients(literal, x, 1, 4, steps=7, baseline=baseline))
    options: dict[str, object] = {"samples": 3, "noise": 0.4, "seed": 2**31 - 1, "baseline": baseline}
    (actual,) = maps(subject, "gradient_shap", x, targets, **options)
    assert_same(actual[0], gradient_shap(literal, x, 1, 4, **options))


@pytest.mark.parametrize("count", [1, 2, 5, 33])
def test_the_twin_s_rule_integrates_what_it_should(count: int) -> None:
    for degree in range(min(2 * count, 12)):
        total = sum(weight * place**degree for place, weight in gauss_legendre(count))
        assert total == pytest.approx(1 / (degree + 1), rel=1e-12)


# Captum


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_captum_agrees(name: str) -> None:
    net, x = build(name).float(), pictures(2, 64, 64).float()
    for kind in BASELINES:
        baseline = start_of(kind, x)
        expected, gaps = IntegratedGradients(net).attribute(
            x, baseline, torch.tensor([3, 8]), n_steps=9, method="gausslegendre", return_convergence_delta=True
        )
        answers = explain(
            Subject(net, net, black=(-0.7, 0.2, 0.5)),
            x,
            [[Target(3)], [Target(8)]],
            method="integrated_gradients",
            parameters={"steps": 9, "baseline": kind},
        )
        for n in range(2):
            found = answers[n].attributions[0]
            assert_same(found.raw, expected[n].sum(dim=0).detach(), 1e-5)
            scale = float(expected[n].abs().sum())
            assert math.isclose(found.completeness_gap, float(gaps[n]), abs_tol=1e-5 * scale)


def test_captum_agrees_on_gradient_shap(monkeypatch: pytest.MonkeyPatch) -> None:
    # Captum draws from the global generators of torch and NumPy; it is handed our numbers instead.
    net, x = build("resnet18").float(), pictures(1, 64, 64).float()
    baseline, sigma = start_of("black", x), 0.15 * float(x.max() - x.min())
    numbers = [torch.Generator().manual_seed(sample) for sample in range(4)]
    places = [float(torch.rand((), generator=each)) for each in numbers]
    noises = torch.stack([torch.randn(3, 64, 64, generator=each) for each in numbers])
    monkeypatch.setattr(torch, "normal", lambda mean, std: mean + std * noises)
    monkeypatch.setattr(np.random, "uniform", lambda _low, _high, count: np.array(places[:count]))
    expected = GradientShap(net).attribute(x, baseline, n_samples=4, stdevs=sigma, target=3)
    (answer,) = explain(
        Subject(net, net, black=(-0.7, 0.2, 0.5)), x, [[Target(3)]], method="gradient_shap", parameters={"samples": 4}
    )
    assert_same(answer.attributions[0].raw, expected[0].sum(dim=0).detach(), 1e-5)
