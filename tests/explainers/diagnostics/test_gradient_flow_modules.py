"""Modules of every kind, and what they take, give and do to the graph."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from explainers import Subject, Target
from explainers.diagnostics.gradient_flow import gradient_flow, score_objective
from explainers.errors import ExplainError, NotConnected, TargetOutOfRange, UnhookableModel, VersusEqualsTarget
from explainers.targets import Rank
from tests.explainers.diagnostics.flow_checks import TARGETS, by_name, norm, of, the_score
from tests.explainers.nets import CASES, CLASSES, Case, Head, pictures, seeded
from tests.explainers.odd_nets import Call, Cut, UnderMode, sequential
from tests.references.gradient_flow import flow, parameter_gradients

# Modules of every kind


class Parts(nn.Module):
    """Takes and gives what the functions make of it."""

    def __init__(self, give: Callable[[Tensor], Any], take: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.give, self.take, self.head = Call(give), Call(take), nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.take(self.give(x)))


GIVES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda x: (x * 2, x * 3), lambda pair: pair[0] + pair[1]),
    "nested": (lambda x: [(x * 2, "text"), {"more": x * 3}], lambda it: it[0][0] + it[1]["more"]),
    "dict": (lambda x: {"a": x * 2, "b": x * 3, "n": 5}, lambda it: it["a"] + it["b"]),
}


@pytest.mark.parametrize("kind", GIVES)
def test_tuples_and_dicts_count_as_one_long_tensor(kind: str) -> None:
    """Of four numbers each: at the two outputs ones arrive, sqrt(8) together; 2 + 3 go back to each of four places."""
    net = Parts(*GIVES[kind])
    answer = gradient_flow(Subject(net, net), torch.ones(1, 1, 2, 2), lambda scores: scores.sum())
    give, take, _ = answer.layers
    assert give.grad_output_norm == take.grad_input_norm == pytest.approx(math.sqrt(8))
    assert give.grad_input_norm == 10
    assert give.zero_fraction == 0
    assert answer.verdict.kind == "ok"


def test_inputs_given_by_name() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat, self.twice = nn.Flatten(), nn.Linear(1, 1, bias=False)
            nn.init.constant_(self.twice.weight, 2.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.twice(input=self.flat(x))

    answer = of(Net().eval(), torch.ones(1, 1, 1, 1), [Target(0)])
    assert [(layer.grad_output_norm, layer.grad_input_norm) for layer in answer.layers] == [(2, 2), (1, 2)]


def test_attention_holds_the_weights_of_a_projection_that_it_does_not_call() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            tokens = x.flatten(2).transpose(1, 2)
            return self.head(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(dim=1))

    torch.manual_seed(0)
    net = Net().eval()
    x = pictures(2, 3, 2, channels=4).float()
    gradients = torch.autograd.grad(the_score(net(x)), list(net.parameters()))
    expected = dict(zip(dict(net.named_parameters()), gradients, strict=True))
    leaf = x.clone().requires_grad_()
    (at_input,) = torch.autograd.grad(the_score(net(leaf)), leaf)
    net.requires_grad_(False)
    answer = of(net, x)
    attention, _ = answer.layers
    assert (attention.name, attention.type) == ("attention", "MultiheadAttention")
    assert attention.grad_input_norm == pytest.approx(norm(at_input), rel=1e-5)  # query, key and value are one tensor
    assert {p.name for p in attention.parameters} == {
        "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias",
    }  # fmt: skip
    for p in attention.parameters:
        assert p.gradient_norm == pytest.approx(norm(expected[f"attention.{p.name}"]), rel=1e-5, abs=1e-8)
    assert answer.parameters == ()


def test_a_spectral_layer() -> None:
    """Of what is conjugated, torch hands the imaginary part's gradient on as a view that is only marked as negative."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.real, self.imaginary, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            spectrum = torch.complex(self.real(x), self.imaginary(x)).conj()
            return self.head(torch.fft.ifft2(spectrum).abs().mean(dim=(2, 3)))

    net = seeded(Net())
    x = pictures(2, 5, 6)
    net.requires_grad_()
    biases = [net.get_parameter(f"{name}.bias") for name in ("real", "imaginary")]
    expected = torch.autograd.grad(the_score(net(x)), biases)
    answer = of(net.requires_grad_(False), x)
    for name, gradient in zip(("real", "imaginary"), expected, strict=True):
        (bias,) = (own for own in by_name(answer, name).parameters if own.name == "bias")
        assert bias.gradient_norm == pytest.approx(norm(gradient), rel=1e-6)


def test_a_recurrent_layer() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.GRU(4, 3, batch_first=True), nn.Linear(3, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.recurrent(x.flatten(2).transpose(1, 2))[1][0])

    torch.manual_seed(0)
    net = Net().eval()
    x = pictures(2, 3, 2, channels=4).float()
    leaf = x.clone().requires_grad_()
    (at_input,) = torch.autograd.grad(the_score(net(leaf)), leaf)
    answer = of(net.requires_grad_(False), x)
    assert by_name(answer, "recurrent").grad_input_norm == pytest.approx(norm(at_input), rel=1e-5)
    assert len(by_name(answer, "recurrent").parameters) == 4


def test_a_weight_that_is_put_together_is_its_layers_own() -> None:
    torch.manual_seed(0)
    convolution = parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    net = nn.Sequential(convolution, nn.ReLU(), Head(4)).eval().requires_grad_(False)
    answer = of(net, pictures(2, 5, 5).float())
    assert [layer.name for layer in answer.layers] == ["0", "1", "2.fc"]
    assert {p.name for p in answer.layers[0].parameters} == {
        "bias", "parametrizations.weight.original0", "parametrizations.weight.original1",
    }  # fmt: skip
    assert all(p.gradient_norm for p in answer.layers[0].parameters)


def test_a_module_that_returns_its_parameter_or_a_constant() -> None:
    """y = x + p + c: the parameter's gradient arrives at the module that gives it; a constant has none to lack."""

    class Gives(nn.Module):
        def __init__(self, *, learns: bool) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.ones(1, 4)) if learns else None

        def forward(self) -> Tensor:
            return torch.zeros(1, 4) if self.value is None else self.value

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat, self.position, self.constant = nn.Flatten(), Gives(learns=True), Gives(learns=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.flat(x) + self.position() + self.constant()

    net = Net().eval().requires_grad_(False)
    answer = gradient_flow(Subject(net, net), torch.ones(1, 1, 2, 2), lambda scores: 3 * scores.sum())
    assert by_name(answer, "position").grad_output_norm == 6
    assert by_name(answer, "position").grad_input_norm is None
    assert by_name(answer, "constant").grad_output_norm is None
    assert answer.verdict.kind == "ok"
    assert not net.position.value._backward_hooks


def test_a_module_that_hands_on_its_very_input() -> None:
    net = sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Identity(), nn.ReLU(inplace=True), Head(4))
    answer = of(net, pictures(2, 5, 5))
    convolution, dropout, identity, relu, _ = answer.layers
    assert convolution.grad_output_norm == relu.grad_input_norm
    for layer in (dropout, identity):
        assert layer.grad_output_norm == layer.grad_input_norm == convolution.grad_output_norm


class Viewed(nn.Module):
    """A view of a convolution's output, changed in place after somebody else has used the output, and by whom."""

    def __init__(self, change: Callable[[Tensor], Tensor], view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.convolution, self.view = nn.Conv2d(3, 4, 1), Call(view)
        self.head, self.change = Head(4), change

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x)
        other = (x * 5).sum(dim=(1, 2, 3))[:, None]
        view = self.view(x)
        before = (view * 3).sum(dim=(1, 2, 3))[:, None]
        return self.head(self.change(view)) + other + before


def test_a_view_that_is_changed_in_place_later() -> None:
    """The view's gradient goes round the step that made it; the part that others get from there is not counted."""
    x = pictures(2, 3, 3)
    for times in (1, 2):

        def change(view: Tensor, times: int = times) -> Tensor:
            for _ in range(times):
                view.mul_(2).add_(1)
            return view

        def twin(view: Tensor, times: int = times) -> Tensor:
            for _ in range(times):
                view = view * 2 + 1
            return view

        whole = of(seeded(Viewed(change, lambda x: x.view(2, 4, 9, 1))), x)
        expected = flow(seeded(Viewed(twin, lambda x: x.view(2, 4, 9, 1))).requires_grad_(True), x, the_score)
        assert [layer.grad_output_norm for layer in whole.layers] == pytest.approx(
            [norm(c["output"]) for c in expected]
        )
        assert [layer.grad_input_norm for layer in whole.layers] == pytest.approx([norm(c["input"]) for c in expected])
        assert whole.verdict.kind == "ok"


def transposed(x: Tensor) -> Tensor:
    return x.transpose(2, 3)


def every_second(x: Tensor) -> Tensor:
    return x[:, :, ::2]


@pytest.mark.parametrize("view", [transposed, every_second])
def test_a_view_that_shows_a_part_or_another_order_is_not_told(view: Callable[[Tensor], Tensor]) -> None:
    """Only what used it before the change could be heard; half a gradient would be worse than none."""
    answer = of(seeded(Viewed(torch.relu_, view)), pictures(2, 3, 3))
    assert by_name(answer, "view").grad_output_norm is None
    assert by_name(answer, "view").grad_input_norm is None
    assert by_name(answer, "convolution").grad_output_norm
    assert answer.verdict.kind == "ok"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_backbone_without_gradients(mode: Callable[[], Any]) -> None:
    """Its layers get none, the head's are those of the head alone."""
    case = CASES[0]
    x = case.pictures(2)
    head = case.build()[5].fc
    net = seeded(nn.Sequential(UnderMode(mode, case.build(inplace=False)[:5]), Head(8)))
    head.load_state_dict(net[1].fc.state_dict())
    answer = of(net, x)
    features = net[0](x).clone().mean(dim=(2, 3))
    expected = parameter_gradients(head.requires_grad_(), features, the_score)
    assert [layer.grad_output_norm is None for layer in answer.layers] == [True] * 5 + [False]
    assert [p.gradient_norm for p in answer.layers[-1].parameters] == pytest.approx(
        [norm(gradient) for gradient in expected.values()]
    )
    assert all(p.gradient_norm is None for layer in answer.layers[:5] for p in layer.parameters)
    assert answer.verdict.kind == "disconnected"
    assert answer.verdict.findings[0].layers == tuple(f"0.net.{k}" for k in range(5))


def test_a_layer_on_features_that_were_made_in_inference_mode() -> None:
    """Autograd cannot keep them for the weights' gradient: its rows are f0 (class 1), f1 (class 3), -f1 (class 0)."""
    body = UnderMode(torch.inference_mode, sequential(nn.Conv2d(3, 4, 3), nn.Flatten()))
    net, x = sequential(body, nn.Linear(36, CLASSES)), pictures(2, 5, 5)
    first, second = net[0](x).clone()
    answer = of(net, x)
    expected = math.sqrt(norm(first) ** 2 + 2 * norm(second) ** 2)
    assert by_name(answer, "1").parameters[0].gradient_norm == pytest.approx(expected)
    assert by_name(answer, "1").grad_input_norm is None


def test_parameters_of_layers_that_never_ran_are_told_apart() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = Head(3), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    answer = of(seeded(Net()), pictures(2, 3, 3))
    assert [(p.name, p.gradient_norm, p.ratio) for p in answer.parameters] == [
        ("idle.weight", None, None),
        ("idle.bias", None, None),
    ]
    assert answer.verdict.kind == "ok"


def test_checkpoints_change_nothing() -> None:
    """In the backward pass the modules run again: that is not told twice."""

    class Net(nn.Module):
        def __init__(self, *, reentrant: bool | None) -> None:
            super().__init__()
            self.body, self.head, self.reentrant = sequential(nn.Conv2d(3, 4, 3), nn.Tanh()), Head(4), reentrant

        def forward(self, x: Tensor) -> Tensor:
            if self.reentrant is None:
                return self.head(self.body(x))
            return self.head(checkpoint(self.body, x, use_reentrant=self.reentrant))

    x = pictures(2, 5, 5)
    assert of(seeded(Net(reentrant=False)), x) == of(seeded(Net(reentrant=None)), x)
    net = seeded(Net(reentrant=True))
    with pytest.raises(UnhookableModel, match="use_reentrant=False"):
        of(net, x)
    assert not any(parameter.requires_grad for parameter in net.parameters())


# Half precision


def test_half_precision_is_measured_in_float32() -> None:
    """65536 gradients of 0.01 in bfloat16: norm 2.56. Summed up in bfloat16, 256 times the square would not grow."""
    net = nn.Sequential(Call(lambda x: x * 1), nn.Flatten()).bfloat16()
    subject = Subject(net, lambda x: net(x.bfloat16()).float())
    answer = gradient_flow(subject, torch.ones(1, 1, 256, 256), lambda scores: 0.01 * scores.sum())
    rounded = float(torch.tensor(0.01).bfloat16())
    assert answer.layers[0].grad_output_norm == pytest.approx(256 * rounded, rel=1e-6)
    assert answer.layers[0].output_norm == pytest.approx(256, rel=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bfloat16_is_near_float64(case: Case) -> None:
    x = case.pictures(2)
    net = case.build().bfloat16()
    answer = gradient_flow(Subject(net, lambda x: net(x.bfloat16()).float()), x, score_objective(TARGETS))
    expected = of(case.build(), x)
    for layer, other in zip(answer.layers, expected.layers, strict=True):
        assert layer.grad_output_norm == pytest.approx(other.grad_output_norm, rel=0.2)
        for p, q in zip(layer.parameters, other.parameters, strict=True):
            assert p.gradient_norm == pytest.approx(q.gradient_norm, rel=0.2)


# What cannot be answered


@pytest.mark.parametrize(
    "net",
    [sequential(nn.Conv2d(3, 4, 3), Head(4), Cut()), UnderMode(torch.no_grad, sequential(nn.Conv2d(3, 4, 3), Head(4)))],
    ids=["detach", "no_grad"],
)
def test_scores_without_any_gradient(net: nn.Module) -> None:
    with pytest.raises(NotConnected, match="cuts it off"):
        of(net.eval(), pictures(2, 5, 5))


def test_a_model_that_runs_unseen() -> None:
    """Its forward is called past its hooks, as a compiled or traced copy would be."""
    convolution = nn.Conv2d(3, CLASSES, 5)
    subject = Subject(convolution, lambda x: convolution.forward(x).flatten(1))
    with pytest.raises(UnhookableModel, match="No layer was seen"):
        gradient_flow(subject, pictures(2, 5, 5).float(), score_objective(TARGETS))


def test_an_objective_that_uses_nothing_of_the_model() -> None:
    net = CASES[0].build()
    own = torch.ones((), requires_grad=True)
    with pytest.raises(NotConnected):
        gradient_flow(Subject(net, net), CASES[0].pictures(1), lambda _scores: own * 2)


@pytest.mark.parametrize(
    ("targets", "error"),
    [
        ([Target(0), Target(CLASSES)], TargetOutOfRange),
        ([Target(0), Target(1, versus=1)], VersusEqualsTarget),
        ([Target(0)], ExplainError),
    ],
)
def test_targets_that_there_are_not(targets: list[Target], error: type[ExplainError]) -> None:
    net = CASES[0].build()
    with pytest.raises(error):
        gradient_flow(Subject(net, net), CASES[0].pictures(2), score_objective(targets))


def test_the_objective_is_the_sum_of_the_pictures_scores() -> None:
    case = CASES[0]
    net, x = case.build(), case.pictures(2)
    scores = net(x)
    first, second = scores[0].argmax(), scores[1].argsort()[-2]
    expected = scores[0, first] + scores[1, second] - scores[1, 0]
    targets = [Target(), Target(Rank(1), versus=0)]
    assert of(net, x, targets).objective == pytest.approx(float(expected))
