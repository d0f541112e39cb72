import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import Subject, Target, explain
from explainers.errors import NotConnected, UnknownLayer
from explainers.hooks import capture
from tests.explainers.checks import activation_and_gradient_by_capture, assert_same, maps, snapshot
from tests.explainers.ledger import Ledger
from tests.explainers.nets import CASES, PLAIN, Case, Head, pictures, seeded
from tests.explainers.odd_nets import RefusesBackward, RefusesForward, sequential
from tests.explainers.torchvision_nets import build
from tests.references.cam import activation_and_gradient, gradcam

# The ledger behind the fixture that fails any test which leaves a hook


def test_the_ledger_names_the_hooks_that_stay(ledger: Ledger) -> None:
    inner = Ledger()
    with inner.open():
        kept, removed = nn.ReLU(), nn.Linear(1, 1)
        handle = kept.register_forward_hook(lambda *_: None)
        removed.register_full_backward_hook(lambda *_: None).remove()
        dying = nn.Conv2d(1, 1, 1).register_forward_pre_hook(lambda *_: None)  # the module is not held here
    nn.Tanh().register_forward_hook(lambda *_: None).remove()  # outside: only the fixture's ledger sees it
    assert (inner.registered, ledger.registered) == (3, 4)
    assert inner.left() == ledger.left() == ["ReLU: register_forward_hook", "Conv2d: register_forward_pre_hook"]
    handle.remove()
    assert inner.left() == ledger.left() == ["Conv2d: register_forward_pre_hook"]
    dying.remove()
    assert inner.left() == ledger.left() == []


def test_the_ledger_sees_the_hooks_of_a_capture(ledger: Ledger) -> None:
    net = PLAIN.build()
    subject = Subject(net, net)
    for registered in (1, 1 + 1):  # a forward hook; then again
        with capture(subject, ["2"]):
            assert ledger.left() == ["Conv2d: register_forward_hook"]
        assert ledger.left() == []
        assert ledger.registered == registered


# Which hook, which gradient


@contextmanager
def gradient_at_the_leaf_is_spoilt(taken: Any) -> Iterator[None]:
    """Make autograd answer zeros for the layer's output, so that only what a hook saw before can be right."""
    handle = taken._output.register_hook(torch.zeros_like)
    yield
    handle.remove()


@pytest.mark.parametrize(
    ("net", "layer"),
    [("plain", "2"), ("resnet50", "layer4"), ("resnet50", "layer3"), ("vgg11", "features.19")],
)
def test_a_full_backward_hook_is_attached_and_its_gradient_used(net: str, layer: str) -> None:
    model = PLAIN.build(inplace=False) if net == "plain" else build(net)
    module = model.get_submodule(layer)
    subject = Subject(model, model)
    x = pictures(1, 64, 64)
    activation, gradient = activation_and_gradient(model, x, 3, layer=layer)

    first = activation_and_gradient_by_capture(subject, x, 3, layer)
    assert subject.backward_hookable == {(layer,): (True,)}
    assert_same(first[0], activation)
    assert_same(first[1], gradient)

    for _ in range(2):
        with capture(subject, [layer]) as (taken,):
            assert len(module._forward_hooks) == 1
            assert len(module._backward_hooks) == 1
            score = model(x)[0, 3]
            with gradient_at_the_leaf_is_spoilt(taken):
                assert_same(taken.gradient(score), gradient)
            assert_same(taken.activation, activation)
        assert len(module._forward_hooks) == len(module._backward_hooks) == 0


def test_the_spoilt_leaf_proves_something() -> None:
    """Where no backward hook is attached, the same spoiling does reach the answer."""
    net = PLAIN.build()  # an in-place ReLU follows
    subject = Subject(net, net)
    for _ in range(2):
        with capture(subject, ["2"]) as (taken,):
            assert len(net[2]._backward_hooks) == 0
            score = net(PLAIN.pictures(1))[0, 3]
            with gradient_at_the_leaf_is_spoilt(taken):
                assert taken.gradient(score).abs().max() == 0
    assert subject.backward_hookable == {("2",): (False,)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_was_found_out_is_remembered_per_layer(case: Case) -> None:
    for inplace, hookable in ((True, not case.has_inplace), (False, True)):
        net = case.build(inplace=inplace)
        subject = Subject(net, net)
        for _ in range(2):
            activation_and_gradient_by_capture(subject, case.pictures(1), 0, case.layer)
            assert subject.backward_hookable == {(case.layer,): (hookable,)}


class InPlaceForTwo(nn.Module):
    """Changes the layer's output in place only if there are two pictures."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if len(x) > 1:
            y.relu_()
        return y.mean((2, 3))


def test_an_in_place_change_that_only_some_requests_make_fails_once_at_most() -> None:
    net = InPlaceForTwo().eval().requires_grad_(False)
    subject = Subject(net, net)
    one, two = torch.randn(1, 3, 8, 8), torch.randn(2, 3, 8, 8)

    def run(inputs: Tensor) -> Tensor:
        with capture(subject, ["conv"]) as (layer,):
            return layer.gradient(net(inputs)[0, 0])

    run(one)
    assert subject.backward_hookable == {("conv",): (True,)}
    with pytest.raises(RuntimeError, match="modified inplace"):
        run(two)
    assert subject.backward_hookable == {("conv",): (False,)}
    for _ in range(2):  # and so it stays, whatever comes
        run(one)
        run(two)


def test_several_gradients_of_one_forward_pass() -> None:
    net = PLAIN.build(inplace=False)
    subject = Subject(net, net)
    x = PLAIN.pictures(1)
    expected = [activation_and_gradient(net, x, index, layer="2")[1] for index in range(5)]
    for _ in range(2):
        with capture(subject, ["2"]) as (taken,):
            scores = net(x)
            for index in range(5):
                assert_same(taken.gradient(scores[0, index], keep_graph=index < 4), expected[index])


# Several layers at once

SEVERAL = ["1 5", "0 2", "5 1", "1 3 5", "2 5 2", "block block.0", "block.0 block 7"]


def deep() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 5, 3),
        nn.SiLU(),
        nn.Conv2d(5, 6, 3),
        nn.Hardswish(inplace=True),
    )
    net.append(nn.Conv2d(6, 6, 1))
    net.add_module("block", nn.Sequential(nn.Conv2d(6, 6, 1)))
    net.append(Head(6))
    return seeded(net)


@pytest.mark.parametrize("names", SEVERAL)
def test_each_of_several_layers_gets_its_own_gradient(names: str) -> None:
    net, layers = deep(), names.split()
    subject = Subject(net, net)
    x = pictures(2, 9, 7)
    expected = [activation_and_gradient(net, x[:1], 0, layer=layer) for layer in layers]
    for _ in range(3):
        with capture(subject, layers) as captures:
            score = net(x)[:, 0].sum()
            for taken, (activation, gradient) in zip(captures, expected, strict=True):
                assert_same(taken.gradient(score, keep_graph=True)[:1], gradient)
                assert_same(taken.activation[:1], activation)


def test_parallel_branches_get_their_own_gradients() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), Head(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.left(x) * self.right(x))

    net = seeded(Parallel())
    x = pictures(1, 9, 7)
    subject = Subject(net, net)
    weight = net.head.fc.weight[1].reshape(1, 4, 1, 1) / (7 * 5)  # dy/d(left) = w right / (h w), and the reverse
    right_output = net.right(x)
    for _ in range(2):
        with capture(subject, ["left", "right"]) as (left, right):
            score = net(x)[0, 1]
            assert_same(left.gradient(score, keep_graph=True), weight * right_output)
            assert_same(right.gradient(score), weight * left.activation)


# Whatever happens, nothing stays


def test_a_registration_that_fails_leaves_nothing_of_those_before(ledger: Ledger) -> None:
    net = sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), RefusesForward(4, 4, 1), Head(4))
    subject = Subject(net, net)
    before = snapshot(net)
    with pytest.raises(RuntimeError, match="no forward hooks"), capture(subject, ["0", "1", "2"]):
        pytest.fail("the third registration was refused")
    assert ledger.registered == 2
    assert ledger.left() == []
    assert snapshot(net) == before


def test_a_backward_registration_that_fails_leaves_nothing_of_those_before(ledger: Ledger) -> None:
    net = sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), RefusesBackward(4, 4, 1), Head(4))
    layers = ["0", "2"]
    subject = Subject(net, net, backward_hookable={("0", "2"): (True, True)})
    before = snapshot(net)
    with pytest.raises(RuntimeError, match="no backward hooks"), capture(subject, layers):
        pytest.fail("the fourth registration was refused")
    assert ledger.registered == 3
    assert ledger.left() == []
    assert snapshot(net) == before


def test_an_unknown_layer_is_refused_before_anything_is_attached(ledger: Ledger) -> None:
    net = PLAIN.build()
    with pytest.raises(UnknownLayer), capture(Subject(net, net), ["0", "nope"]):
        pytest.fail("there is no such layer")
    assert ledger.registered == 0


def test_the_hooks_of_others_stay_and_fire(ledger: Ledger) -> None:
    net = PLAIN.build(inplace=False)
    seen: list[str] = []
    handles = [
        net[2].register_forward_pre_hook(lambda *_: seen.append("pre")),
        net[2].register_forward_hook(lambda *_: seen.append("forward")),
        net[2].register_full_backward_hook(lambda *_: seen.append("backward")),
    ]
    subject = Subject(net, net)
    before = snapshot(net)
    for _ in range(2):
        seen.clear()
        explain(subject, PLAIN.pictures(1), [[Target(0)]], method="gradcam", layers=["2"])
        assert seen == ["pre", "forward", "backward"]
        assert snapshot(net) == before
    for handle in handles:
        handle.remove()


def test_a_module_keeps_taking_the_other_kind_of_backward_hook() -> None:
    """torch allows one kind per module, and remembers it after the hook is gone."""
    net = PLAIN.build(inplace=False)
    subject = Subject(net, net)
    for _ in range(2):
        explain(subject, PLAIN.pictures(1), [[Target(0)]], method="gradcam", layers=["2"])
    net[2].register_backward_hook(lambda *_: None).remove()
    expected = gradcam(net, PLAIN.pictures(1), 0, layer="2")
    for _ in range(2):  # now it is of the other kind: no full-backward hook can be attached
        (actual,) = maps(subject, "gradcam", PLAIN.pictures(1), [[Target(0)]], ["2"])
        assert_same(actual[0], expected)


def test_the_expected_warning_alone_is_silenced_and_once() -> None:
    net = PLAIN.build(inplace=False)
    subject = Subject(net, net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        count = len(warnings.filters)
        for _ in range(4):
            explain(subject, PLAIN.pictures(1), [[Target(0)]], method="gradcam", layers=["2"])
        assert subject.backward_hookable == {("2",): (True,)}
        assert len(warnings.filters) == count + 1
        with pytest.raises(UserWarning, match="something else"):
            warnings.warn("something else", UserWarning, stacklevel=1)


class Doubled(torch.autograd.Function):
    """Twice its input; torch cannot batch its backward, which looks at numbers."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        Doubled.passes += 1
        return gradient * 2 if gradient.sum().item() is not None else gradient

    passes = 0


@pytest.mark.parametrize("batchable", [True, False])
def test_several_gradients_together_are_those_one_after_the_other(batchable: bool) -> None:
    torch.manual_seed(0)
    head = nn.Linear(4, 5).double().requires_grad_(False)
    net = nn.Sequential(nn.Conv2d(3, 4, 3).double()).requires_grad_(False)
    subject = Subject(net, net)
    for _ in range(2):  # without and with a full-backward hook
        with capture(subject, ["0"]) as (layer,):
            pooled = net(torch.randn(2, 3, 8, 8, dtype=torch.float64)).square().mean((2, 3))
            scores = head(pooled if batchable else Doubled.apply(pooled))
            sums = list(scores.sum(0))
            Doubled.passes = 0
            together = layer.gradients(sums)
            assert Doubled.passes == (0 if batchable else 1 + len(sums))  # one attempt, then each alone
            # d/dA of sum_n w . mean(A^2) * factor = w * 2 A / (h w) * factor
            factor = 1 if batchable else 2
            for k, gradient in enumerate(together):
                expected = factor * head.weight[k][None, :, None, None] * 2 * layer.activation / 36
                torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)


def test_several_scores_that_are_not_connected_are_named() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3)).requires_grad_(False)
    with capture(Subject(net, net), ["0"]) as (layer,):
        scores = net(torch.randn(1, 3, 8, 8)).detach().flatten()
        with pytest.raises(NotConnected):
            layer.gradients([scores[0], scores[1]])
