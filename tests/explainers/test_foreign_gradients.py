"""What a model's author did to its gradients (functions and hooks of their own) counts, and is there afterwards."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import Rank, Subject, Target, Work, explain, get, names
from explainers.diagnostics.activations import activations, features
from explainers.diagnostics.gradient_flow import gradient_flow, score_objective
from explainers.diagnostics.sensitivity import Unit, sensitivity
from tests.explainers import foreign_nets as nets
from tests.explainers.checks import applies, assert_same, few, looks_at, maps, snapshot, twin, twin_looks_at
from tests.explainers.ledger import Ledger
from tests.explainers.nets import Case, Tokens, pictures, seeded, tokens_to_grid
from tests.references import cam

CONVOLUTIONAL = Case("foreign", nets.plain, "layer", has_inplace=False)
TRANSFORMER = Case("tokens", nets.clipped_transformer, "norm1", tokens_to_grid, has_inplace=False, has_relu=False)
METHODS = [name for name in names() if get(name).uses_gradients]
ON_CONVOLUTIONAL = [name for name in METHODS if applies(name, CONVOLUTIONAL)]
ON_TRANSFORMER = [name for name in METHODS if applies(name, TRANSFORMER)]
each_net = pytest.mark.parametrize("build", nets.FOREIGN, ids=lambda build: build.__name__)


@pytest.fixture(autouse=True)
def ledger() -> None:
    """The networks here have hooks of their own, so the folder's check does not fit; the snapshots are stricter."""


def test_the_folders_check_is_replaced_by_one_that_sees_hooks() -> None:
    net = nets.plain()
    before = snapshot(net)
    with Ledger().open() as ledger:
        handle = net.layer.register_full_backward_hook(lambda *_: None)
    assert snapshot(net) != before
    assert len(ledger.left()) == 1
    handle.remove()


@pytest.mark.parametrize("method", [name for name in ON_CONVOLUTIONAL if name != "finercam"])
@each_net
def test_every_method_gives_what_plain_autograd_gives(build: Callable[[], nn.Module], method: str) -> None:
    """The twins run the whole model, hooks and all, and call `backward`."""
    net, x, parameters = build(), pictures(1, 9, 7), few(method)
    before = snapshot(net)
    where, twin_where = looks_at(method, CONVOLUTIONAL), twin_looks_at(method, CONVOLUTIONAL)
    subject, work = Subject(net, net), Work(chunk=1)  # a rule for the whole gradient sees all pictures of a run
    for _ in range(2):  # what the first run learns of the layer is used in the second
        one, other = maps(subject, method, x, [[Target(0), Target(3)]], **where, work=work, **parameters)
        assert snapshot(net) == before
        assert_same(one[0], twin(method, net, x, 0, **twin_where, **parameters), 1e-9)
        assert_same(other[0], twin(method, net, x, 3, **twin_where, **parameters), 1e-9)


@each_net
def test_finercam_differentiates_the_difference_of_scores(build: Callable[[], nn.Module]) -> None:
    """Its twin takes the difference of maps, which is the same only where the backward pass is linear."""
    net, x = build(), pictures(1, 9, 7)
    (found,) = maps(Subject(net, net), "finercam", x, [[Target(0)]], ["layer"])
    activation = net.features(x.requires_grad_())
    activation.retain_grad()
    scores = net.head(net.block(net.behind(activation)))[0]
    values = scores.tolist()
    near = sorted(range(1, 5), key=lambda d: abs(values[d] - values[0]))[:3]
    (scores[0] - scores[near].mean()).backward()
    gradient = activation.grad
    if build is nets.clipped_by_backward_pre_hooks:  # what acts on the gradient of a layer's output is part of it
        gradient = gradient.clamp(-nets.BOUND, nets.BOUND)
    assert_same(found[0], cam.weighted_sum(activation.detach(), gradient), 1e-9)


@pytest.mark.parametrize("method", [name for name in ON_TRANSFORMER if name != "finercam"])
def test_every_method_gives_what_plain_autograd_gives_on_a_transformer(method: str) -> None:
    net, x, parameters = nets.clipped_transformer(), pictures(1, 9, 7), few(method)
    before = snapshot(net)
    for _ in range(2):
        (map_,) = maps(Subject(net, net), method, x, [[Target(1)]], **looks_at(method, TRANSFORMER), **parameters)
        assert_same(map_[0], twin(method, net, x, 1, **twin_looks_at(method, TRANSFORMER), **parameters), 1e-9)
        assert snapshot(net) == before


@each_net
def test_it_makes_a_difference(build: Callable[[], nn.Module]) -> None:
    """Or the tests above would prove nothing: at the picture for all, and at the layer for what lies behind it."""
    x = pictures(1, 9, 7)
    for method, layers in (("saliency", []), ("hirescam", ["layer"])):
        own, without = (maps(Subject(net, net), method, x, [[Target(0)]], layers)[0] for net in (build(), nets.plain()))
        differ = float((own - without).abs().max() / without.abs().max())
        assert differ > 1e-3 or (method, build) == ("hirescam", nets.clipped_at_the_layer)


def test_it_makes_a_difference_to_a_transformer() -> None:
    x = pictures(1, 9, 7)
    clipped = nets.clipped_transformer()
    without = seeded(Tokens())
    own, other = (maps(Subject(net, net), "saliency", x, [[Target(1)]])[0] for net in (clipped, without))
    assert (own - other).abs().max() > 0.1 * other.abs().max()


@each_net
def test_sensitivity_is_what_plain_autograd_gives(build: Callable[[], nn.Module]) -> None:
    """The model's parts are called one after the other, so all their hooks work."""
    net, unit = build(), Unit(channel=2)
    x = pictures(1, 9, 7).requires_grad_()
    value = net.features(x)[:, 2].mean()
    (expected,) = torch.autograd.grad(value, x)
    before = snapshot(net)
    (found,) = sensitivity(Subject(net, net), x, "layer", unit, reduction="signed_sum")
    assert found.value == pytest.approx(value.item())
    assert_same(found.raw, expected.sum(dim=1)[0], 1e-6)
    assert snapshot(net) == before


@each_net
def test_gradient_flow_is_what_plain_autograd_gives(build: Callable[[], nn.Module]) -> None:
    net, x = build(), pictures(2, 9, 7)
    twin = build().requires_grad_()
    twin(x.clone().requires_grad_())[:, 1].sum().backward()
    expected = {name: float(parameter.grad.norm()) for name, parameter in twin.named_parameters()}
    before = snapshot(net)
    flow = gradient_flow(Subject(net, net), x, score_objective([Target(1)] * 2))
    assert snapshot(net) == before
    found = {f"{layer.name}.{own.name}": own.gradient_norm for layer in flow.layers for own in layer.parameters}
    assert found == pytest.approx(expected, rel=1e-5)


@each_net
def test_features_are_those_that_the_model_goes_on_with(build: Callable[[], nn.Module]) -> None:
    net, x = build(), pictures(2, 9, 7)
    before = snapshot(net)
    expected = net.features(x)
    assert_same(features(Subject(net, net), x, "layer"), expected)
    (layer,) = [layer for layer in activations(Subject(net, net), x) if layer.name == "layer"]
    assert (layer.mean, layer.max) == pytest.approx((float(expected.mean()), float(expected.max())))
    assert snapshot(net) == before


def test_hooks_of_ones_own_fire_in_their_order_each_time() -> None:
    net, fired = nets.plain(), []

    def note(what: str) -> Callable[..., None]:
        return lambda *_: fired.append(what)

    for number in (1, 2):
        net.conv.register_forward_pre_hook(note(f"pre {number}"))
        net.conv.register_forward_hook(note(f"forward {number}"))
        net.conv.register_full_backward_pre_hook(note(f"backward pre {number}"))
        net.conv.register_full_backward_hook(note(f"backward {number}"))
    forward = ["pre 1", "pre 2", "forward 1", "forward 2"]
    backward = ["backward pre 1", "backward pre 2", "backward 1", "backward 2"]
    before = snapshot(net)
    for _ in range(2):
        for method, layers in (("gradcam", ["layer"]), ("saliency", [])):
            fired.clear()
            explain(Subject(net, net), pictures(1, 9, 7), [[Target(Rank(0))]], method=method, layers=layers)
            assert fired == forward + (backward if method == "saliency" else [])  # the backward pass ends at the layer
        fired.clear()
        explain(Subject(net, net), pictures(1, 9, 7), [[Target(0)]], method="gradcam", layers=["conv"])
        assert fired == forward + backward
        fired.clear()
        gradient_flow(Subject(net, net), pictures(1, 9, 7), score_objective([Target(0)]))
        assert fired == forward + backward
        fired.clear()
        sensitivity(Subject(net, net), pictures(1, 9, 7), "conv", Unit())
        assert fired == forward + backward
    assert snapshot(net) == before


def test_a_batch_answers_as_its_pictures_do_where_the_function_looks_at_values() -> None:
    net = nets.clipped()
    x: Tensor = pictures(3, 9, 7)
    targets = [[Target(n)] for n in range(3)]
    (together,) = maps(Subject(net, net), "saliency", x, targets)
    for n in range(3):
        (alone,) = maps(Subject(net, net), "saliency", x[n : n + 1], targets[n : n + 1])
        assert_same(together[n], alone[0])


@pytest.fixture(scope="module")
def documented() -> dict[str, Any]:
    """What the page for operators defines."""
    page = (Path(__file__).parents[2] / "docs" / "custom-gradients.md").read_text()
    names: dict[str, Any] = {"__name__": "documented"}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)  # noqa: S102 - our own page
    return names


def test_the_documented_network_is_explained_as_it_is(documented: dict[str, Any]) -> None:
    net, x = seeded(documented["quantised"]()), pictures(1, 33, 33)
    (map_,) = maps(Subject(net, net), "gradcam", x, [[Target(1)]], ["second"])
    assert_same(map_[0], twin("gradcam", net, x, 1, layer="second"), 1e-9)
    (map_,) = maps(Subject(net, net), "saliency", x, [[Target(1)]])
    assert_same(map_[0], twin("saliency", net, x, 1), 1e-9)


def test_the_documented_clipping_by_norm_sees_each_picture_alone(documented: dict[str, Any]) -> None:
    x = 100 * pictures(3, 9, 7)
    net = seeded(nets.Net(behind=lambda x: with_rule(x, lambda g: documented["clip_by_norm"](g, 0.01))))
    targets = [[Target(n)] for n in range(3)]
    (together,) = maps(Subject(net, net), "saliency", x, targets)
    plain = seeded(nets.Net())
    (without,) = maps(Subject(plain, plain), "saliency", x, targets)
    assert (together - without).abs().max() > 0.1 * without.abs().max()
    for n in range(3):
        (alone,) = maps(Subject(net, net), "saliency", x[n : n + 1], targets[n : n + 1])
        assert_same(together[n], alone[0])


def with_rule(x: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    if x.requires_grad:
        x.register_hook(rule)
    return x
