import pytest
import torch
from torch import Tensor, nn

from explainers import Subject, Target, explain
from explainers.errors import ExplainError, LayerNeverRan, LayerOutputNotTensor, NotConnected, UnknownLayer
from explainers.hooks import capture, find_layer
from tests.explainers.checks import activation_and_gradient_by_capture, assert_same, maps, snapshot
from tests.explainers.nets import Head, Residual, pictures, seeded
from tests.explainers.odd_nets import Call, Shared
from tests.references.cam import gradcam

# Layers that are called in unusual ways


@pytest.mark.parametrize("inplace", [False, True])
def test_of_a_shared_module_the_last_call_counts(inplace: bool) -> None:
    shared = seeded(Shared(inplace=inplace))
    unshared = nn.Sequential(shared.conv1, nn.ReLU(), shared.conv2, nn.ReLU(), shared.head).eval()
    x = pictures(2, 9, 7)
    targets = [[Target(0)], [Target(1)]]
    (expected,) = maps(Subject(unshared, unshared), "gradcam", x, targets, ["3"])
    subject = Subject(shared, shared)
    for _ in range(2):
        (actual,) = maps(subject, "gradcam", x, targets, ["relu"])
        assert_same(actual, expected)
    assert_same(actual[0], gradcam(shared, x[:1], 0, layer="relu"))


class Chained(nn.Module):
    """The same layer, feeding itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), Head(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(self.layer(self.stem(x)))).relu_())


def test_of_a_layer_called_in_a_chain_the_last_call_counts() -> None:
    net = seeded(Chained())
    x = pictures(1, 9, 7)
    subject = Subject(net, net)
    for _ in range(2):
        (actual,) = maps(subject, "gradcam", x, [[Target(0)]], ["layer"])
        # At the last call: A = layer(layer(layer(stem))), y = head(relu(A)).
        activation = net.layer(net.layer(net.layer(net.stem(x)))).requires_grad_()
        (gradient,) = torch.autograd.grad(net.head(activation.relu())[0, 0], activation)
        assert_same(actual[0], (gradient.mean(dim=(2, 3), keepdim=True) * activation.detach()).sum(dim=1)[0])


class Siamese(nn.Module):
    """The same layer on two views; neither call sees the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(3, 4, 3), Head(4)

    def forward(self, x: Tensor) -> Tensor:
        first = self.layer(x).neg_()  # in place, but only here
        return self.head(first + self.layer(x.flip(3)))


def test_of_a_layer_called_on_two_views_the_last_call_counts() -> None:
    net = seeded(Siamese())
    x = pictures(1, 9, 7)
    subject = Subject(net, net)
    # conv -> GAP -> linear in the last call, so the map is sum_c w_0c A_c / (h w) of the flipped view.
    expected = torch.einsum("c,nchw->nhw", net.head.fc.weight[0], net.layer(x.flip(3))) / (7 * 5)
    for _ in range(2):
        (actual,) = maps(subject, "gradcam", x, [[Target(0)]], ["layer"])
        assert_same(actual, expected)


class Aliased(nn.Module):
    """The layer returns its own input, which others change in place afterwards."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.conv, self.layer, self.head = nn.Conv2d(3, 4, 3), layer, Head(4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x)
        y = self.layer(features)
        return self.head(y * y) + self.head(features.neg_())


@pytest.mark.parametrize("layer", [nn.Identity(), nn.Dropout(0.5)], ids=["Identity", "Dropout"])
def test_a_layer_that_returns_its_input_is_not_changed_through_it(layer: nn.Module) -> None:
    net = seeded(Aliased(layer))
    x = pictures(1, 9, 7)
    a = net.conv(x)
    # y = head(A * A) + head(-features), where only the first depends on A: dy/dA_c = 2 w_c A_c / (h w).
    gradient = 2 * net.head.fc.weight[0].reshape(1, 4, 1, 1) * a / (7 * 5)
    subject = Subject(net, net)
    for _ in range(3):
        activation, actual = activation_and_gradient_by_capture(subject, x, 0, "layer")
        assert_same(activation, a)
        assert_same(actual, gradient)


class AliasedLater(nn.Module):
    """The same, behind an earlier call of the layer, where the graph has already begun."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2, self.layer, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), layer, Head(4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv2(self.layer(self.conv1(x)))
        y = self.layer(features)
        return self.head(y * y) + self.head(features.neg_())


@pytest.mark.parametrize("layers", [["layer"], ["conv1", "layer"]], ids=" ".join)
def test_nor_behind_the_beginning_of_the_graph(layers: list[str]) -> None:
    net = seeded(AliasedLater(nn.Identity()))
    x = pictures(1, 9, 7)
    a = net.conv2(net.conv1(x))
    gradient = 2 * net.head.fc.weight[0].reshape(1, 4, 1, 1) * a / (5 * 3)  # as above
    subject = Subject(net, net)
    for _ in range(3):
        with capture(subject, layers) as captures:
            score = net(x)[0, 0]
            assert_same(captures[-1].activation, a)
            assert_same(captures[-1].gradient(score), gradient)


class BehindAutogradsBack(nn.Module):
    """Changes the layer's output through `.data`, which no version counter shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(3, 4, 3), Head(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y.data.clamp_(min=0)
        return self.head(y * y)


def test_a_write_through_data_gives_the_same_on_first_and_later_captures() -> None:
    net = seeded(BehindAutogradsBack())
    x = pictures(1, 9, 7)
    subject = Subject(net, net)
    a = net.layer(x)
    gradient = 2 * net.head.fc.weight[0].reshape(1, 4, 1, 1) * a.clamp(min=0) / (7 * 5)
    for _ in range(3):
        activation, actual = activation_and_gradient_by_capture(subject, x, 0, "layer")
        assert_same(activation, a)
        assert_same(actual, gradient)


class Checkpointed(nn.Module):
    """Runs its middle again during the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), Head(4)

    def forward(self, x: Tensor) -> Tensor:
        middle = lambda x: self.layer(x).sigmoid()  # noqa: E731
        return self.head(torch.utils.checkpoint.checkpoint(middle, self.stem(x), use_reentrant=False))


def test_gradient_checkpointing_is_followed() -> None:
    net = seeded(Checkpointed())
    x = pictures(1, 9, 7)
    subject = Subject(net, net)
    plain = nn.Sequential(net.stem, net.layer, nn.Sigmoid(), net.head).eval()
    for _ in range(2):
        (actual,) = maps(subject, "gradcam", x, [[Target(0)]], ["layer"])
        assert_same(actual[0], gradcam(plain, x, 0, layer="1"))


# Layers that cannot be explained


class Branches(nn.Module):
    """A classifier with every kind of layer that a gradient method cannot use."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), Head(4)
        self.unused = nn.Conv2d(3, 4, 3)
        self.aside = nn.Conv2d(3, 4, 3)
        self.cut = nn.Conv2d(3, 4, 3)
        self.frozen = nn.Conv2d(3, 4, 3)
        self.lstm = nn.LSTM(4, 4)
        self.answers = Call(lambda x: {"logits": x})
        self.order = Call(lambda x: x.argmax(dim=1, keepdim=True))
        self.mask = Call(lambda x: x > 0)
        self.phase = Call(torch.fft.fft2)

    def forward(self, x: Tensor) -> Tensor:
        self.aside(x)
        features = self.conv(x) + self.cut(x).detach()
        with torch.no_grad():
            features = features + self.frozen(x)
        memory, _ = self.lstm(features.flatten(2).mean(dim=2).unsqueeze(0))
        features = features + memory.mean() + self.order(x).sum() + self.mask(x).sum() + self.phase(x).real.mean()
        return self.answers(self.head(features))["logits"]


@pytest.mark.parametrize(
    ("layer", "error", "text"),
    [
        ("unused", LayerNeverRan, "'unused' was not executed"),
        ("aside", NotConnected, "does not depend on the output of layer 'aside'"),
        ("cut", NotConnected, "does not depend on the output of layer 'cut'"),
        ("frozen", NotConnected, "does not depend on the output of layer 'frozen'"),
        ("lstm", LayerOutputNotTensor, "'lstm' returns tuple"),
        ("answers", LayerOutputNotTensor, "'answers' returns dict"),
        ("order", LayerOutputNotTensor, "'order' returns a tensor of torch.int64"),
        ("mask", LayerOutputNotTensor, "'mask' returns a tensor of torch.bool"),
        ("phase", LayerOutputNotTensor, "'phase' returns a tensor of torch.complex128"),
        ("con", UnknownLayer, "no layer 'con'. Did you mean 'conv'"),
        ("", UnknownLayer, "no layer ''"),
    ],
)
def test_layers_that_cannot_be_explained_are_named(layer: str, error: type[ExplainError], text: str) -> None:
    net = seeded(Branches())
    subject = Subject(net, net)
    x = pictures(2, 9, 7)
    before = snapshot(net)
    for unfrozen in (False, False, True):
        net.requires_grad_(unfrozen)
        with pytest.raises(error, match=text) as caught:
            explain(subject, x, [[Target(0)], [Target(1)]], method="gradcam", layers=[layer])
        assert caught.value.field == "layer"
    net.requires_grad_(requires_grad=False)
    assert snapshot(net) == before


def test_close_matches_are_offered_for_a_misspelt_layer() -> None:
    with pytest.raises(UnknownLayer) as caught:
        find_layer(seeded(Residual(inplace=True)), "BN3")
    assert set(caught.value.extra["close_matches"]) == {"bn1", "bn2"}
    with pytest.raises(UnknownLayer) as caught:
        find_layer(seeded(Residual(inplace=True)), "zzz")
    assert caught.value.extra["close_matches"] == []
    assert str(caught.value) == "The model has no layer 'zzz'."


def test_a_shared_module_is_found_under_each_of_its_names() -> None:
    relu = nn.ReLU()
    net = nn.Sequential(relu, nn.Sequential(relu))
    assert find_layer(net, "0") is find_layer(net, "1.0") is relu
