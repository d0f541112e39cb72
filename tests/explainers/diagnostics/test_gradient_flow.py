"""The figures: compared with torch's own hooks, and with numbers worked out by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explainers import Subject, Target
from explainers.diagnostics.gradient_flow import gradient_flow
from tests.explainers import torchvision_nets
from tests.explainers.diagnostics.flow_checks import assert_as_the_reference, by_name, norm, of, the_score
from tests.explainers.nets import CASES, CLASSES, Case, pictures, seeded
from tests.explainers.odd_nets import Call, Shared, sequential
from tests.references.gradient_flow import flow, parameter_gradients
from tests.references.inplace import OutOfPlace

# Against torch's own hooks


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_norms_are_those_of_full_backward_hooks(case: Case, count: int) -> None:
    """The network works in place, the reference's twin does not: its gradients are the same."""
    x = case.pictures(count)
    answer = of(case.build(inplace=True), x)
    assert_as_the_reference(answer, flow(case.build(inplace=False).requires_grad_(), x, the_score))
    assert answer.verdict.kind == "ok"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_parameters_gradients_are_those_of_backward(case: Case) -> None:
    x = case.pictures(2)
    answer = of(case.build(inplace=True), x)
    twin = case.build(inplace=False).requires_grad_()
    expected = parameter_gradients(twin, x, the_score)
    found = {f"{layer.name}.{p.name}": p for layer in answer.layers for p in layer.parameters}
    found |= {p.name: p for p in answer.parameters}
    assert found.keys() == expected.keys()
    assert [p.name for p in answer.parameters] == (["cls"] if case.name == "tokens" else [])
    for name, gradient in expected.items():
        own = twin.get_parameter(name).detach()
        assert found[name].shape == own.shape
        assert found[name].norm == pytest.approx(norm(own), rel=1e-10)
        assert found[name].gradient_norm == pytest.approx(norm(gradient), rel=1e-10)
        assert found[name].ratio == pytest.approx(norm(gradient) / norm(own), rel=1e-10)
        assert found[name].zero_fraction == pytest.approx(float((gradient == 0).double().mean()), abs=1e-12)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "densenet121", "shufflenet_v2_x0_5"])
def test_a_torchvision_network_in_place_is_as_its_twin_that_is_not(name: str) -> None:
    x = pictures(1, 64, 48)
    answer = gradient_flow(*subject_of(torchvision_nets.build(name), x), lambda scores: scores[0, 1])
    twin = torchvision_nets.build(name)
    with OutOfPlace() as mode:
        calls = flow(twin.requires_grad_(True), x, lambda scores: scores[0, 1])
    assert mode.rewritten
    assert_as_the_reference(answer, calls)


def subject_of(net: nn.Module, x: Tensor) -> tuple[Subject, Tensor]:
    return Subject(net, net), x


def test_linear_layers_on_tokens_before_an_in_place_relu() -> None:
    """Their output is a view: an in-place change of it leaves out the step of the graph that made the view."""

    def net(*, inplace: bool) -> nn.Module:
        act = nn.ReLU(inplace=inplace)
        return sequential(Call(lambda x: x.flatten(2)), nn.Linear(63, 6), act, nn.Linear(6, 4), nn.Flatten(), act)

    x = pictures(2, 9, 7)
    answer = of(net(inplace=True), x)
    assert_as_the_reference(answer, flow(net(inplace=False).requires_grad_(), x, the_score))
    assert all(layer.grad_input_norm for layer in answer.layers)


# Closed forms


def test_a_linear_network() -> None:
    """y = w2 . (W1 x + b1): at W1's output w2 arrives, at its input W1' w2, and dy/dW1 = w2 x'."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Linear(2, 2))
    first, second = net[1], net[2]
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 2.0, 1.0]]))
        second.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        first.bias.zero_()
        second.bias.zero_()
    x = torch.tensor([1.0, 2.0, 2.0, 4.0]).reshape(1, 1, 2, 2)  # norm 5; W1 x = (5, 8); y = 3 * 5 + 4 * 8 = 47
    answer = of(net.eval(), x, [Target(0)])
    assert answer.objective == 47
    flat, hidden, last = answer.layers
    assert (last.grad_output_norm, last.zero_fraction) == (1, 0.5)
    assert last.grad_input_norm == hidden.grad_output_norm == 5  # (3, 4)
    assert hidden.zero_fraction == 0
    assert hidden.grad_input_norm == pytest.approx(math.sqrt(3**2 + 6**2 + 8**2 + 4**2))  # (3, 6, 8, 4)
    assert flat.grad_input_norm == flat.grad_output_norm == hidden.grad_input_norm
    assert [p.name for p in hidden.parameters] == ["weight", "bias"]
    weight, bias = hidden.parameters
    assert weight.gradient_norm == pytest.approx(5 * 5)
    assert weight.norm == pytest.approx(math.sqrt(10))
    assert weight.ratio == pytest.approx(25 / math.sqrt(10))
    assert (bias.gradient_norm, bias.norm, bias.ratio) == (5, 0, None)
    assert last.parameters[0].zero_fraction == 0.5  # the other class's row
    assert [layer.decay for layer in answer.layers] == pytest.approx([math.sqrt(125) / 5, 5, None])
    assert [layer.output_norm for layer in answer.layers] == pytest.approx([5, math.sqrt(89), 47])


def test_a_shortcut_is_not_counted_in_what_a_layer_passes_back() -> None:
    """y = sum of (x + f(x)) with f = 3x: f passes 3 back to each of four places, while x gets 4 in all."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.times = Call(lambda x: x * 1), Call(lambda x: x * 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return (x + self.times(x)).sum(dim=(1, 2, 3))[:, None]

    answer = of(Net().eval(), torch.ones(1, 1, 2, 2), [Target(0)])
    assert by_name(answer, "times").grad_output_norm == 2  # four ones
    assert by_name(answer, "times").grad_input_norm == 6
    assert by_name(answer, "first").grad_output_norm == 8
    assert answer.objective == 16


def test_what_a_layer_takes_by_the_back_door_is_not_its_input() -> None:
    """y = x * z with z = 3 x at x = 2: the layer was given x, to which it passes z = 6 back; z's own way is z's."""
    stash: list[Tensor] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.triples = Call(lambda x: x * 1), Call(lambda x: x * 3)
            self.product = Call(lambda x: x * stash[-1])

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            stash.append(self.triples(x))
            return self.product(x).flatten(1)

    answer = of(Net().eval(), torch.full((1, 1, 1, 1), 2.0), [Target(0)])
    assert by_name(answer, "product").grad_input_norm == 6
    assert by_name(answer, "triples").grad_output_norm == 2
    assert by_name(answer, "first").grad_output_norm == 12
    stash.clear()


def test_an_input_that_is_used_twice_inside_a_layer_gets_the_sum() -> None:
    """x * x at 3: the slope is 6, and each of the two uses hands on 3."""
    net = nn.Sequential(nn.Flatten(), Call(lambda x: x * x))
    answer = of(net.eval(), torch.full((1, 1, 1, 1), 3.0), [Target(0)])
    assert by_name(answer, "1").grad_input_norm == 6


def test_each_call_of_a_shared_module() -> None:
    """y = w (w x) at w = 2, x = 3: the second call passes 2 back, the first 4; dy/dw = 2 w x = 12, told once."""
    shared = nn.Linear(1, 1, bias=False)
    nn.init.constant_(shared.weight, 2.0)
    answer = of(nn.Sequential(nn.Flatten(), shared, shared).eval(), torch.full((1, 1, 1, 1), 3.0), [Target(0)])
    _, first, second = answer.layers
    assert (first.name, first.call, first.calls) == ("1", 1, 2)
    assert (second.name, second.call, second.calls) == ("1", 2, 2)
    assert (second.grad_output_norm, second.grad_input_norm) == (1, 2)
    assert (first.grad_output_norm, first.grad_input_norm) == (2, 4)
    assert first.parameters == ()
    assert [p.gradient_norm for p in second.parameters] == [12]


@pytest.mark.parametrize("inplace", [False, True])
def test_a_relu_that_is_called_twice(inplace: bool) -> None:
    x = pictures(2, 9, 7)
    answer = of(seeded(Shared(inplace=inplace)), x)
    assert [(layer.name, layer.call, layer.calls) for layer in answer.layers if layer.name == "relu"] == [
        ("relu", 1, 2),
        ("relu", 2, 2),
    ]
    assert_as_the_reference(answer, flow(seeded(Shared(inplace=False)).requires_grad_(), x, the_score))


def test_a_parameter_that_two_layers_share_is_told_of_both() -> None:
    """y = w (w x) as above, with two modules of one weight."""
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    second.weight = first.weight
    nn.init.constant_(first.weight, 2.0)
    answer = of(nn.Sequential(nn.Flatten(), first, second).eval(), torch.full((1, 1, 1, 1), 3.0), [Target(0)])
    assert [[p.gradient_norm for p in layer.parameters] for layer in answer.layers] == [[], [12], [12]]
    assert answer.parameters == ()


def test_cross_entropy_as_objective() -> None:
    """Its gradient at the scores is softmax - one-hot, divided by the number of pictures."""
    case = CASES[0]
    net, x, labels = case.build(), case.pictures(2), torch.tensor([3, 0])
    answer = gradient_flow(Subject(net, net), x, lambda scores: F.cross_entropy(scores, labels))
    scores = net(x)
    expected = (scores.softmax(dim=1) - F.one_hot(labels, CLASSES)) / 2
    assert answer.objective == pytest.approx(float(F.cross_entropy(scores, labels)))
    assert answer.layers[-1].grad_output_norm == pytest.approx(norm(expected))
    assert_as_the_reference(
        answer, flow(case.build(inplace=False).requires_grad_(), x, lambda scores: F.cross_entropy(scores, labels))
    )
