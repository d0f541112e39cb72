"""Networks built to have each illness, and healthy ones."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from skimage import data
from torch import Tensor, nn

from explainers import Subject, Target
from explainers.diagnostics.gradient_flow import Finding, GradientFlow, gradient_flow, score_objective
from models import Registry
from models.loading import load
from tests.explainers.diagnostics.ill_nets import (
    CLASSES,
    Branches,
    FunctionalDead,
    Residual,
    ReZero,
    Spoils,
    chain,
    detached,
    pictures,
    unused,
    with_dead_relu,
    without_gradient,
)


def examined(net: nn.Module, x: Tensor | None = None, objective: Any = None) -> GradientFlow:
    net = net.eval().requires_grad_(False)
    x = pictures() if x is None else x
    objective = objective or score_objective([Target()] * len(x))
    return gradient_flow(Subject(net, lambda x: net(x).float()), x, objective)


def only(answer: GradientFlow) -> Finding:
    (finding,) = answer.verdict.findings
    assert answer.verdict.kind == finding.kind
    return finding


def loss(scores: Tensor) -> Tensor:
    return F.cross_entropy(scores, torch.arange(len(scores)))


# Vanishing and exploding


@pytest.mark.parametrize("objective", [None, loss], ids=["score", "loss"])
@pytest.mark.parametrize(("depth", "gain"), [(6, 0.5), (6, 1.0), (20, 1.0), (40, 2.0)])
def test_deep_sigmoid(depth: int, gain: float, objective: Any) -> None:
    """The slope of a sigmoid is at most 1/4: with He's weights a layer hands on at most sqrt(2) / 4, a third."""
    answer = examined(chain(depth, nn.Sigmoid, gain), objective=objective)
    finding = only(answer)
    assert finding.kind == "vanishing"
    assert finding.layers[0] == "0"
    assert len(finding.layers) >= depth - 1
    assert "shrinks steadily" in finding.reason
    first, last = answer.layers[0], answer.layers[2 * depth - 2]
    assert first.grad_output_norm < last.grad_output_norm * 0.5**depth


@pytest.mark.parametrize("gain", [0.1, 0.3])
def test_weights_that_are_far_too_small(gain: float) -> None:
    answer = examined(chain(16, nn.ReLU, gain))
    assert only(answer).kind == "vanishing"
    shrinkage = answer.layers[0].grad_output_norm / answer.layers[30].grad_output_norm
    assert math.log(shrinkage) / 15 == pytest.approx(math.log(gain), rel=0.25)


@pytest.mark.parametrize("objective", [None, loss], ids=["score", "loss"])
@pytest.mark.parametrize(("depth", "gain"), [(8, 5.0), (8, 10.0), (16, 3.0), (20, 2.0)])
def test_oversized_weights(depth: int, gain: float, objective: Any) -> None:
    """He's weights keep a ReLU network's signal, so with `gain` times them the gradient grows by it at each layer."""
    answer = examined(chain(depth, nn.ReLU, gain), pictures() * 1e-3, objective)
    finding = only(answer)
    assert finding.kind == "exploding"
    assert finding.layers[0] == "0"
    assert "grows steadily" in finding.reason
    growth = answer.layers[0].grad_output_norm / answer.layers[2 * depth - 2].grad_output_norm
    assert math.log(growth) / (depth - 1) == pytest.approx(math.log(gain), rel=0.25)


def test_oversized_weights_before_tanh() -> None:
    """The activations cannot grow, the gradient does: the network is chaotic (Poole et al. 2016)."""
    assert only(examined(chain(20, nn.Tanh, 8.0))).kind == "exploding"


def test_gradients_below_the_number_format() -> None:
    """Forty sigmoids: 0.1 to the power of 40 and more is below float16, even below float32 for a hundred."""
    half = examined(chain(20, nn.Sigmoid, 0.5).half(), pictures().half())
    assert half.verdict.kind == "vanishing"
    assert any("rounds it to zero" in finding.reason for finding in half.verdict.findings)
    assert half.layers[0].grad_output_norm == 0
    single = examined(chain(100, nn.Sigmoid, 0.5))
    assert single.verdict.kind == "vanishing"
    assert {finding.kind for finding in single.verdict.findings} == {"vanishing"}
    assert any("rounds it to zero" in finding.reason for finding in single.verdict.findings)
    assert single.verdict.notes == ()  # biases that are zero are no weights that start at zero
    assert single.layers[0].grad_output_norm == 0


# Healthy networks


@pytest.mark.parametrize("objective", [None, loss], ids=["score", "loss"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, partial(nn.ReLU, inplace=True)])
@pytest.mark.parametrize("depth", [3, 8, 24])
def test_a_well_scaled_chain_is_healthy(depth: int, activation: Callable[[], nn.Module], objective: Any) -> None:
    verdict = examined(chain(depth, activation, 1.0), objective=objective).verdict
    assert (verdict.kind, verdict.findings, verdict.notes) == ("ok", (), ())


TORCHVISION = (
    "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "mnasnet1_0", "mobilenet_v2",
    "mobilenet_v3_large", "mobilenet_v3_small", "resnet18", "resnet50", "shufflenet_v2_x1_0", "squeezenet1_0", "swin_t",
    "swin_v2_t", "vgg11", "vgg16_bn", "vit_b_16",
)  # fmt: skip


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvisions_networks_are_healthy_as_they_start(name: str) -> None:
    torch.manual_seed(0)
    named = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    net = torchvision.models.get_model(name, weights=None, **named)
    size = {"inception_v3": 149, "vit_b_16": 224}.get(name, 64)
    objectives = ((2, loss),) if name.startswith(("vgg", "vit")) else ((1, None), (2, loss))  # these take long
    for count, objective in objectives:
        answer = examined(net, pictures(count, size), objective)
        assert answer.verdict.findings == ()
        assert answer.verdict.kind == "ok"
        assert all(layer.grad_output_norm is not None for layer in answer.layers)


def test_a_head_that_starts_at_zero_is_told_and_no_illness() -> None:
    """torchvision's ViT starts so: nothing goes back through zero weights, but they learn."""
    net = chain(4, nn.ReLU, 1.0)
    nn.init.zeros_(net[-1].weight)
    answer = examined(net)
    assert answer.verdict.kind == "ok"
    (note,) = answer.verdict.notes
    assert f"'{len(net) - 1}'" in note
    assert all(layer.grad_output_norm == 0 for layer in answer.layers[:-1])
    assert answer.layers[-1].parameters[0].gradient_norm > 0


def test_a_block_that_starts_at_zero_is_told_and_no_illness() -> None:
    answer = examined(ReZero())
    assert answer.verdict.kind == "ok"
    (note,) = answer.verdict.notes
    assert "'block'" in note
    assert "'alpha'" in note


@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea"])
def test_the_embedded_default_is_healthy_on_real_pictures(name: str) -> None:
    model = load(Registry(None).get("efficientnet_lite0"))
    inputs = torch.from_numpy(model.preprocess(getattr(data, name)())[0])[None]
    for objective in (score_objective([Target()]), lambda scores: F.cross_entropy(scores, scores.argmax(dim=1) * 0)):
        answer = gradient_flow(Subject(model.module, model.scores), inputs, objective)
        assert (answer.verdict.kind, answer.verdict.findings) == ("ok", ())


# Dead


@pytest.mark.parametrize("inplace", [False, True])
def test_a_dead_relu(inplace: bool) -> None:
    answer = examined(with_dead_relu(inplace=inplace))
    finding = only(answer)
    assert (finding.kind, finding.layers) == ("dead", ("3",))
    assert "output is zero everywhere" in finding.reason
    assert "'0', '1' and '2'" in finding.reason  # who starves
    relu = answer.layers[3]
    assert relu.grad_output_norm > 0
    assert relu.grad_input_norm == 0
    assert [layer.grad_output_norm for layer in answer.layers[:3]] == [0, 0, 0]


def test_a_dead_relu_in_half_precision() -> None:
    """The gradients are so small that they might be rounded off, but a ReLU that gives zero passes zero anyway."""
    answer = examined(with_dead_relu().half(), pictures().half(), lambda scores: scores.sum() * 1e-2)
    assert answer.layers[3].grad_output_norm / math.sqrt(2 * 32 * 8 * 8) < 1e-4
    assert (only(answer).kind, only(answer).layers) == ("dead", ("3",))


def test_a_head_of_zeros_that_does_not_learn_is_dead() -> None:
    """Its weights' gradient is the features times the scores' gradient, and the features are zero."""
    net = with_dead_relu()
    nn.init.constant_(net[6].bias, -1e3)
    nn.init.zeros_(net[-1].weight)
    answer = examined(net)
    assert answer.layers[-1].parameters[0].gradient_norm == 0
    assert (only(answer).kind, only(answer).layers) == ("dead", ("10",))
    assert answer.verdict.notes == ()


def test_a_dead_relu_whose_silence_goes_on() -> None:
    """Without biases all layers behind it give zero, too: the cause is the first."""
    net = with_dead_relu()
    for k in (4, 6):
        nn.init.zeros_(net[k].bias)
    finding = only(examined(net))
    assert (finding.kind, finding.layers) == ("dead", ("3", "5", "7"))
    assert "that of '3' and '5', which ran before: the first of them is the cause" in finding.reason


def test_a_dead_relu_beside_a_shortcut() -> None:
    finding = only(examined(Residual()))
    assert (finding.kind, finding.layers) == ("dead", ("relu",))
    assert "'branch'" in finding.reason
    assert "'stem'" not in finding.reason


def test_a_saturated_sigmoid_is_dead() -> None:
    """Its output is 1 to the last bit, so that its slope is 0."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))
    nn.init.constant_(net[0].bias, 200.0)
    finding = only(examined(net))
    assert (finding.kind, finding.layers) == ("dead", ("1",))
    assert "its slope is zero" in finding.reason


def test_a_dead_function_between_layers() -> None:
    finding = only(examined(FunctionalDead()))
    assert (finding.kind, finding.layers) == ("dead", ("first", "second"))
    assert "code between the layers" in finding.reason


def test_an_objective_that_is_flat() -> None:
    answer = examined(chain(3, nn.ReLU, 1.0), objective=lambda scores: (scores * 0).sum())
    finding = only(answer)
    assert finding.kind == "dead"
    assert "objective is flat" in finding.reason
    assert len(finding.layers) == len(answer.layers)


# Disconnected


@pytest.mark.parametrize("cut", [detached, without_gradient, unused])
def test_a_branch_without_gradient(cut: Callable[[Branches, Tensor], Tensor]) -> None:
    answer = examined(Branches(cut))
    finding = only(answer)
    assert (finding.kind, finding.layers) == ("disconnected", ("side", "relu"))
    assert "detach" in finding.reason
    assert "does not use" in finding.reason
    stem, side, relu, head = answer.layers
    assert side.grad_output_norm is relu.grad_output_norm is side.decay is relu.decay is None
    assert stem.decay == stem.grad_output_norm / head.grad_output_norm  # the layer that the backward pass came from


# NaN and infinity


def at(place: int, **spoils: float) -> nn.Module:
    net = chain(4, nn.ReLU, 1.0)
    net.insert(place, Spoils(**spoils))
    return net


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 3, 8])
def test_the_layer_that_makes_nan_is_named(place: int, value: float) -> None:
    answer = examined(at(place, forward=value))
    finding = only(answer)
    assert (finding.kind, finding.layers) == ("non_finite", (str(place),))
    assert "1 NaN" in finding.reason if math.isnan(value) else "1 infinite" in finding.reason
    assert "all that went in is finite" in finding.reason
    layer = answer.layers[place]
    assert (layer.output_nan, layer.output_inf) == ((1, 0) if math.isnan(value) else (0, 1))
    assert len(answer.layers) == 12


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 3, 8])
def test_the_layer_that_makes_a_nan_gradient_is_named(place: int, value: float) -> None:
    answer = examined(at(place, backward=value))
    finding = answer.verdict.findings[0]
    assert answer.verdict.kind == "non_finite"
    assert finding.layers == (str(place),)
    assert "passes back" in finding.reason
    assert answer.layers[place].nan + answer.layers[place].inf == 1
    assert math.isfinite(answer.objective)


def test_a_slope_that_is_infinite_is_named() -> None:
    """sqrt at 0: finite itself, its slope is not."""

    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sqrt()

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Root(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
    assert only(examined(net)).layers == ("2",)


def test_a_parameter_that_is_nan_is_named() -> None:
    net = chain(4, nn.ReLU, 1.0)
    with torch.no_grad():
        net[4].weight[0, 0, 0, 0] = math.nan
    finding = only(examined(net))
    assert (finding.kind, finding.layers) == ("non_finite", ("4",))
    assert "its own weight" in finding.reason


def test_a_picture_that_is_nan() -> None:
    x = pictures()
    x[0, 0, 0, 0] = math.nan
    finding = only(examined(chain(4, nn.ReLU, 1.0), x))
    assert finding.layers == ("0",)
    assert "from the picture" in finding.reason


@pytest.mark.parametrize("objective", [lambda scores: scores.sum() * math.nan, lambda scores: scores.sum() / 0])
def test_an_objective_that_is_not_finite(objective: Any) -> None:
    answer = examined(chain(4, nn.ReLU, 1.0), objective=objective)
    finding = answer.verdict.findings[0]
    assert answer.verdict.kind == "non_finite"
    assert finding.layers == ("10",)
    assert "The objective is" in finding.reason
    assert not math.isfinite(answer.objective)


def test_scores_that_are_not_finite_though_all_layers_are() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chain = chain(3, nn.ReLU, 1.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.chain(x) / 0

    finding = examined(Net()).verdict.findings[0]
    assert (finding.kind, finding.layers) == ("non_finite", ("chain.8",))
    assert "The scores are" in finding.reason


def test_half_precision_that_overflows_is_named() -> None:
    """float16 ends at 65504: sums of 32 * 9 products of numbers near 1e3 with weights of some hundreds are beyond."""
    net = chain(4, nn.ReLU, 1.0)
    with torch.no_grad():
        net[4].weight.mul_(1e5)
    assert examined(net).verdict.kind != "non_finite"
    finding = only(examined(net.half(), pictures().half()))
    assert (finding.kind, finding.layers) == ("non_finite", ("4",))


def test_the_calls_of_a_repeated_layer_are_told_apart() -> None:
    """The second time, its input is so large that exp overflows."""

    class Grows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp() * 100

    grows = Grows()
    net = nn.Sequential(grows, nn.Identity(), grows, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    finding = only(examined(net))
    assert finding.layers == ("0",)
    assert "call 2 of 2" in finding.reason


def test_nothing_is_said_of_trends_where_numbers_are_not_finite() -> None:
    """float32 ends at 3e38: what is infinite is named, and the worst comes first."""
    verdict = examined(chain(60, nn.ReLU, 10.0)).verdict
    assert verdict.kind == "non_finite"
    assert verdict.findings[0].kind == "non_finite"
