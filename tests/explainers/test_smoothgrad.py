"""SmoothGrad and VarGrad: closed forms, and captum's answer."""

import pytest
import torch
from captum.attr import NoiseTunnel, Saliency
from torch import Tensor, nn

from explainers import Subject, Target, Work, explain, get
from explainers.batch import Batch
from explainers.smoothgrad import Parameters
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import CASES, PLAIN, Case, pictures
from tests.explainers.torchvision_nets import build
from tests.references.gradient import smoothgrad, vargrad


class Parabola(nn.Module):
    """y = sum of slope * x + bend / 2 * x^2, so dy / dx = slope + bend * x."""

    def __init__(self, slope: float, bend: float) -> None:
        super().__init__()
        self.slope, self.bend = slope, bend

    def forward(self, x: Tensor) -> Tensor:
        y = (self.slope * x + self.bend / 2 * x**2).sum(dim=(1, 2, 3))
        return torch.stack([y, -y], dim=1)


def noises(samples: int, seed: int, shape: tuple[int, ...]) -> Tensor:
    """The noise `(samples, *shape)` by the documented rule."""
    each = [torch.randn(shape, generator=torch.Generator().manual_seed(seed * 1_000_003 + s)) for s in range(samples)]
    return torch.stack(each).double()


# Closed forms


@pytest.mark.parametrize("seed", [0, 7])
def test_of_a_parabola_the_mean_follows_the_noise(seed: int) -> None:
    # The mean of slope + bend * (x + sigma * e_s) is slope + bend * (x + sigma * mean of e_s).
    x = pictures(2, 5, 4)
    net = Parabola(0.3, 2.0)
    (actual,) = maps(
        Subject(net, net), "smoothgrad", x, [[Target(0)], [Target(1)]], samples=9, noise=0.2, seed=seed,
        reduction="signed_sum",
    )  # fmt: skip
    for n, sign in ((0, 1), (1, -1)):
        sigma = 0.2 * (x[n].max() - x[n].min())
        mean = 0.3 + 2.0 * (x[n] + sigma * noises(9, seed, (3, 5, 4)).mean(dim=0))
        assert_same(actual[n], sign * mean.sum(dim=0))


@pytest.mark.parametrize("seed", [0, 7])
def test_of_a_parabola_the_variance_is_that_of_the_noise(seed: int) -> None:
    # The variance of slope + bend * (x + sigma * e_s) is bend^2 * sigma^2 * variance of e_s, divided by S.
    x = pictures(2, 5, 4)
    net = Parabola(0.3, 2.0)
    (actual,) = maps(Subject(net, net), "vargrad", x, [[Target(0)], [Target(1)]], samples=9, noise=0.2, seed=seed)
    for n in range(2):
        sigma = 0.2 * (x[n].max() - x[n].min())
        variance = noises(9, seed, (3, 5, 4)).var(dim=0, correction=0)
        assert_same(actual[n], (2.0 * sigma) ** 2 * variance.sum(dim=0))


def test_the_variance_survives_large_gradients() -> None:
    # Gradients near 1e8 with deviations near 1: their squares need 1e16 and the mean of squares minus the square of
    # the mean is off by 1e16 * 2^-53 = 1, as large as the answer. The gradients themselves are exact to 1e-8.
    x, net = pictures(1, 5, 4), Parabola(1e8, 2.0)
    sigma = 0.2 * (x.max() - x.min())
    noise = noises(9, 0, (3, 5, 4))
    expected = (2.0 * sigma) ** 2 * noise.var(dim=0, correction=0).sum(dim=0)
    gradients = 1e8 + 2.0 * (x + sigma * noise)
    naive = ((gradients**2).mean(dim=0) - gradients.mean(dim=0) ** 2).sum(dim=0)
    assert (naive - expected).abs().max() > 0.01 * expected.max(), "the case does not tell the two ways apart"
    for chunk in (1, 4, 9):
        batch = Batch(Subject(net, net), x, [[Target(0)]], work=Work(chunk=chunk))
        (actual,) = get("vargrad").run(batch, Parameters(samples=9, noise=0.2)).rounds
        assert_same(actual[0], expected, 1e-6)


def test_of_a_linear_model_noise_changes_nothing() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double().requires_grad_(requires_grad=False)
    x = pictures(1, 2, 2)
    subject = Subject(net, net)
    (smooth,) = maps(subject, "smoothgrad", x, [[Target(1)]], noise=1.0, samples=3)
    assert_same(smooth[0], net[1].weight[1].reshape(3, 2, 2).abs().amax(dim=0), 1e-14)
    (spread,) = maps(subject, "vargrad", x, [[Target(1)]], noise=1.0, samples=3)
    assert spread.max() < 1e-28


@pytest.mark.parametrize("reduction", ["max_abs", "signed_sum"])
def test_without_noise_it_is_saliency(reduction: str) -> None:
    net, x = PLAIN.build(), PLAIN.pictures(2)
    targets = [[Target(0), Target(1, versus=2)]] * 2
    smooth = maps(Subject(net, net), "smoothgrad", x, targets, noise=0.0, samples=3, reduction=reduction)
    plain = maps(Subject(net, net), "saliency", x, targets, reduction=reduction)
    for one, other in zip(smooth, plain, strict=True):
        assert_same(one, other)


# The literal twins, with other parameters than the contract's


@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: case.name)
def test_equal_their_literal_twins(case: Case) -> None:
    net, literal, x = case.build(), case.build(inplace=False), case.pictures(1, seed=3)
    options: dict[str, object] = {"samples": 4, "noise": 0.4, "seed": 2**31 - 1}
    for method, twin in (("smoothgrad", smoothgrad), ("vargrad", vargrad)):
        (actual,) = maps(Subject(net, net), method, x, [[Target(1, versus=4)]], **options)
        assert_same(actual[0], twin(literal, x, 1, 4, **options))


# Captum, which draws its noise from torch's global generator, all samples at once


@pytest.mark.parametrize("method", ["smoothgrad", "vargrad"])
def test_captum_agrees(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = build("resnet18").float()
    x = pictures(1, 64, 64).float()
    sigma = 0.15 * float(x.max() - x.min())
    own = noises(5, 0, (3, 64, 64)).float()
    monkeypatch.setattr(torch, "normal", lambda mean, std: mean + std * own)
    # Saliency would take the absolute value of each gradient before the mean; abs=False is the paper's.
    captum = NoiseTunnel(Saliency(net)).attribute(
        x.clone().requires_grad_(), nt_type=method, nt_samples=5, stdevs=sigma, target=3, abs=False
    )
    options = {"samples": 5} | ({"reduction": "signed_sum"} if method == "smoothgrad" else {})
    (answer,) = explain(Subject(net, net), x, [[Target(3)]], method=method, parameters=options)
    assert_same(answer.attributions[0].raw, captum[0].sum(dim=0).detach(), 1e-5)
