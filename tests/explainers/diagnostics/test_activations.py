"""What layers answer: numbers worked out by hand, numpy's, and a model that is as it was."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import timm.layers
import torch
import torchvision
from torch import Tensor, nn

from explainers import Subject
from explainers.diagnostics.activations import LayerActivation, activations, embedding, features, similarity
from explainers.errors import LayerNeverRan, LayerNotSpatial, LayerOutputNotTensor, NonFiniteMap, UnknownLayer
from tests.explainers.checks import assert_same, bits, snapshot
from tests.explainers.nets import CASES, PLAIN, Case, Head, pictures, seeded
from tests.explainers.odd_nets import Call, Shared, breaks_forward, sequential


def of(module: nn.Module, inputs: Tensor) -> tuple[LayerActivation, ...]:
    return activations(Subject(module.eval(), module), inputs)


def leaf_outputs(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What each module without parts returns, in the order in which they finish; nothing may be changed in place."""
    outputs: dict[str, Tensor] = {}

    def take(name: str) -> Callable[..., None]:
        return lambda _module, _args, output: outputs.update({name: output})

    leaves = [(name, module) for name, module in net.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(take(name)) for name, module in leaves]
    net(x)
    for handle in handles:
        handle.remove()
    return outputs


def first_of(module: nn.Module, values: list[float]) -> LayerActivation:
    """What the module makes of the values as one channel of one picture."""
    return of(nn.Sequential(module), torch.tensor(values, dtype=torch.float64).reshape(1, 1, 1, -1))[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_figures_are_numpys(case: Case) -> None:
    """Compared with what the network without in-place changes gives, module by module."""
    twin, x = case.build(inplace=False), case.pictures(2)
    outputs = {name: output.numpy() for name, output in leaf_outputs(twin, x).items()}
    found = of(case.build(inplace=True), x)
    assert [layer.name for layer in found] == list(outputs)
    for layer, output in zip(found, outputs.values(), strict=True):
        assert layer.shape == output.shape
        assert layer.type == type(twin.get_submodule(layer.name)).__name__
        figures = (layer.mean, layer.std, layer.min, layer.max, layer.zero_fraction)
        expected = (output.mean(), output.std(), output.min(), output.max(), (output == 0).mean())
        assert figures == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert (layer.call, layer.calls, layer.nan, layer.inf) == (1, 1, 0, 0)


def test_each_call_of_a_shared_module_is_listed() -> None:
    found = of(seeded(Shared(inplace=True)), pictures(1, 9, 7))
    assert [(layer.name, layer.call, layer.calls) for layer in found] == [
        ("conv1", 1, 1),
        ("relu", 1, 2),
        ("conv2", 1, 1),
        ("relu", 2, 2),
        ("head.fc", 1, 1),
    ]
    assert found[1].shape == (1, 6, 7, 5)
    assert found[3].shape == (1, 4, 5, 3)


def test_a_module_whose_parts_do_not_run_speaks_for_them() -> None:
    """torch's attention uses its projection's weights without calling it; its first answer is what goes on."""
    net = torchvision.models.VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=5)
    x = pictures(2, 32, 32).float()
    found = {layer.name: layer for layer in of(net, x)}
    attention = found["encoder.layers.encoder_layer_0.self_attention"]
    assert (attention.type, attention.shape) == ("MultiheadAttention", (2, 17, 16))
    assert attention.std > 0
    assert "encoder.layers.encoder_layer_0" not in found
    assert "encoder.layers.encoder_layer_0.mlp.0" in found


def test_a_network_that_is_one_module() -> None:
    (layer,) = of(seeded(nn.Conv2d(3, 5, 1)), pictures(1, 4, 4))
    assert (layer.name, layer.type, layer.shape) == ("", "Conv2d", (1, 5, 4, 4))


def test_numbers_that_are_not_finite_are_counted_and_left_out() -> None:
    layer = first_of(nn.Identity(), [1.0, math.nan, 0.0, math.inf, -math.inf, math.nan, 5.0, math.nan])
    assert (layer.nan, layer.inf) == (3, 2)
    # Of 1, 0 and 5: mean 2, squares of the deviations 1, 4, 9.
    assert (layer.mean, layer.min, layer.max) == (2, 0, 5)
    assert layer.std == pytest.approx(math.sqrt(14 / 3))
    assert layer.zero_fraction == pytest.approx(1 / 3)


def test_nothing_but_nan_has_no_figures() -> None:
    layer = first_of(nn.Sigmoid(), [math.nan, math.nan])
    assert (layer.nan, layer.inf, layer.shape, layer.channels, layer.dead_channels) == (2, 0, (1, 1, 1, 2), 1, 0)
    assert (layer.mean, layer.std, layer.min, layer.max) == (None,) * 4
    assert (layer.zero_fraction, layer.saturated_fraction) == (None, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_up_finely(dtype: torch.dtype) -> None:
    """200,000 times 1000 and 60,000: the sum overflows in float16, the squares too, and bfloat16 has three digits."""
    x = torch.cat([torch.full((200_000,), 1000.0), torch.full((200_000,), 60_000.0)]).to(dtype)
    net = nn.Sequential(nn.Identity())
    (layer,) = of(net, x.reshape(1, 1, 400, 1000))
    low, high = x[0].item(), x[-1].item()
    assert layer.mean == pytest.approx((low + high) / 2, rel=1e-9)
    assert layer.std == pytest.approx((high - low) / 2, rel=1e-9)


def test_large_numbers_do_not_overflow() -> None:
    layer = first_of(nn.Identity(), [-1e300, 1e300])
    assert (layer.mean, layer.std) == pytest.approx((0, 1e300))
    layer = first_of(nn.Identity(), [-1e300, 0])
    assert (layer.mean, layer.std) == pytest.approx((-5e299, 5e299))


@pytest.mark.parametrize(
    ("module", "values", "share"),
    [
        # log(0.99 / 0.01) = 4.595; tanh(2.298) = 0.98, as tanh(x) = 2 sigmoid(2 x) - 1
        (nn.Sigmoid(), [4.6, 4.59, 0, -4.59, -4.6], 2 / 5),
        (timm.layers.Sigmoid(), [4.6, 4.59, 0, -4.59, -4.6], 2 / 5),
        (nn.Tanh(), [2.3, 2.29, 0, -2.29], 1 / 4),
        (nn.Softsign(), [50, 48, 0, -50], 2 / 4),  # 50 / 51 = 0.9804, 48 / 49 = 0.9796
        (nn.Hardtanh(), [-1, -0.999, 0, 0.999, 1.5], 2 / 5),
        (nn.Hardtanh(-2, 3), [-2, 2.9, 4], 2 / 3),
        (nn.Hardsigmoid(), [-3, -2.9, 2.9, 3], 2 / 4),
        (timm.layers.HardSigmoid(), [-3, -2.9, 2.9, 3], 2 / 4),
        (nn.ReLU6(inplace=True), [-1, 0, 5.9, 6, 7], 2 / 5),
        (nn.ReLU6(), [-5, -1], 0),
        (nn.ReLU(), [-1, 1], None),
        (nn.SiLU(), [-9, 9], None),
        (nn.Conv2d(1, 1, 1).double(), [1, 2], None),
    ],
    ids=lambda what: type(what).__name__ if isinstance(what, nn.Module) else "",
)
def test_saturation(module: nn.Module, values: list[float], share: float | None) -> None:
    assert first_of(module.requires_grad_(requires_grad=False), values).saturated_fraction == (
        None if share is None else pytest.approx(share)
    )


def test_a_dead_channel_is_zero_in_all_pictures() -> None:
    x = torch.ones(2, 4, 3, 3, dtype=torch.float64)
    x[:, 0] = 0  # dead
    x[0, 1] = 0  # dead in one picture
    x[:, 2, 0] = 0  # dead in one row
    x[:, 3] = -1  # dead behind the ReLU
    before, behind, flat, vector = of(nn.Sequential(nn.Identity(), nn.ReLU(), nn.Flatten(1), Call(lambda x: x[0])), x)
    assert (before.channels, before.dead_channels, before.zero_fraction) == (4, 1, (18 + 9 + 6) / 72)
    assert (behind.channels, behind.dead_channels) == (4, 2)
    assert (flat.channels, flat.dead_channels) == (36, 9 + 3 + 9)  # each place is one
    assert (vector.shape, vector.channels, vector.dead_channels) == ((36,), None, None)


def test_channels_are_the_last_axis_of_tokens_and_of_channels_last_layers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.first = nn.Conv2d(3, 7, 1), nn.ReLU()
            self.norm, self.last = nn.LayerNorm(7), nn.ReLU()
            self.linear, self.tokens = nn.Linear(7, 9), nn.ReLU()
            self.norm2d = timm.layers.LayerNorm2d(7)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(self.norm2d(self.conv(x)))
            x = self.last(self.norm(x.permute(0, 2, 3, 1)))
            return self.tokens(self.linear(x.flatten(1, 2)))

    net = seeded(Net())
    net.linear.weight[:4], net.linear.bias[:4] = 0, -1
    found = {layer.name: layer for layer in of(net, pictures(2, 5, 4))}
    assert {name: layer.channels for name, layer in found.items()} == {
        **dict.fromkeys(["conv", "norm2d", "first", "norm", "last"], 7),
        **dict.fromkeys(["linear", "tokens"], 9),
    }
    assert found["tokens"].dead_channels == 4


def test_what_has_three_axes_is_tokens() -> None:
    (layer,) = of(nn.Sequential(Call(lambda x: x.flatten(2).transpose(1, 2))), torch.ones(1, 3, 4, 5))
    assert (layer.shape, layer.channels) == ((1, 20, 3), 3)


@pytest.mark.parametrize("call", [lambda s, x: activations(s, x), lambda s, x: features(s, x, "0")])
def test_no_graph_is_made_and_what_a_model_keeps_stays_usable(call: Callable[[Subject, Tensor], object]) -> None:
    kept: list[Tensor] = []
    net = sequential(nn.Conv2d(3, 4, 3), Call(lambda x: kept.append(x) or x)).requires_grad_()
    with torch.inference_mode():
        call(Subject(net, net), pictures(1, 5, 5))
    assert not kept[0].requires_grad
    assert not kept[0].is_inference()


def test_what_is_no_tensor_is_listed_without_figures() -> None:
    found = of(
        nn.Sequential(
            Call(lambda x: {"x": x}), Call(lambda d: (d["x"], 3)), Call(lambda p: p[0].argmax(1)), Call(lambda _: ())
        ),
        torch.ones(1, 2, 2, 2),
    )
    assert [layer.shape for layer in found] == [None, (1, 2, 2, 2), None, None]
    assert found[0] == LayerActivation("0", "Call", 1, 1, None)
    assert found[2] == LayerActivation("2", "Call", 1, 1, None)


def test_an_empty_output_has_no_figures() -> None:
    layer, _ = of(nn.Sequential(Call(lambda x: x[:, :, :0]), nn.Flatten()), torch.ones(1, 2, 2, 2))
    assert (layer.shape, layer.mean, layer.zero_fraction, layer.channels) == ((1, 2, 0, 2), None, None, 2)


# Features


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_features_are_the_layers_output_before_anything_changes_it(case: Case) -> None:
    x, net = case.pictures(2), case.build(inplace=True)
    with torch.inference_mode():
        found = features(Subject(net, net), x, case.layer)
    assert torch.equal(found, leaf_outputs(case.build(inplace=False), x)[case.layer])
    assert not found.requires_grad
    assert not found.is_inference()


def test_features_of_a_shared_module_are_those_of_its_last_call_by_any_name() -> None:
    net = seeded(Shared(inplace=False))
    net.alias = net.relu
    found = features(Subject(net, net), pictures(1, 9, 7), "alias")
    assert found.shape == (1, 4, 5, 3)


def test_half_precision_features_become_float32() -> None:
    net = PLAIN.build().bfloat16()
    assert features(Subject(net, net), PLAIN.pictures(1).bfloat16(), "2").dtype == torch.float32


def test_layers_without_features() -> None:
    net = sequential(Call(lambda x: (x, x)), Call(lambda p: p[0]), Call(lambda x: x.argmax(1)), nn.Identity())
    net[3].unused = nn.Conv2d(1, 1, 1)
    subject = Subject(net, net)
    for layer, error in (("0", LayerOutputNotTensor), ("2", LayerOutputNotTensor), ("3.unused", LayerNeverRan)):
        with pytest.raises(error, match=layer):
            features(subject, pictures(1, 3, 3), layer)
    with pytest.raises(UnknownLayer, match="'4'"):
        features(subject, pictures(1, 3, 3), "4")


# Embeddings


def test_an_embedding_is_the_mean_over_the_places() -> None:
    grid = torch.arange(24.0).reshape(2, 3, 2, 2)
    assert embedding(grid).tolist() == [[1.5, 5.5, 9.5], [13.5, 17.5, 21.5]]
    assert embedding(grid[:, :, 0]).tolist() == [[0.5, 4.5, 8.5], [12.5, 16.5, 20.5]]
    assert embedding(grid[:, :, 0, 0]) is not None
    assert torch.equal(embedding(grid[:, :, 0, 0]), grid[:, :, 0, 0])
    with pytest.raises(LayerNotSpatial, match=r"\(3,\)"):
        embedding(torch.ones(3))


def test_similarity_is_the_cosine() -> None:
    vectors = torch.tensor([[1.0, 0], [1, 1], [0, -2], [-3, 0], [0, 0]])
    half = math.sqrt(0.5)
    expected = [[1, half, 0, -1, 0], [half, 1, -half, -half, 0], [0, -half, 1, 0, 0], [-1, -half, 0, 1, 0], [0] * 5]
    for scale in (1.0, 1e-30, 1e37):
        assert np.abs(similarity(vectors * scale).numpy() - np.array(expected)).max() < 1e-6
    random = torch.randn(20, 512, generator=torch.Generator().manual_seed(0))
    assert similarity(random).abs().max() <= 1
    assert_same(similarity(random), nn.functional.cosine_similarity(random[:, None], random[None], dim=2), 1e-5)
    with pytest.raises(NonFiniteMap):
        similarity(torch.tensor([[1.0, math.nan]]))


# The model afterwards


@pytest.mark.parametrize(
    "call", [lambda s, x: activations(s, x), lambda s, x: features(s, x, "2")], ids=["activations", "features"]
)
@pytest.mark.parametrize("broken", [False, True])
def test_the_model_and_the_pictures_stay_as_they_were(call: Callable[[Subject, Tensor], object], broken: bool) -> None:
    net = sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Conv2d(4, 4, 3), Call(breaks_forward if broken else id_))
    net.append(Head(4).double()).eval().requires_grad_()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    fired: list[str] = []
    handle = net[2].register_forward_hook(lambda *_: fired.append("own"))
    x = pictures(2, 9, 7).requires_grad_()
    before, pixels = snapshot(net), bits(x)
    for _ in range(2):
        if broken:
            with pytest.raises(ArithmeticError):
                call(Subject(net, net), x)
        else:
            call(Subject(net, net), x)
        assert snapshot(net) == before
        assert (bits(x), x.grad) == (pixels, None)
    assert fired == ["own"] * 2
    handle.remove()


def id_(x: Tensor) -> Tensor:
    return x.mul_(1)  # in place


def test_a_layer_with_others_inside_is_listed_for_its_own_parameters_or_by_its_name() -> None:
    """timm's norm with activation normalises by itself, and its ReLU is a module inside."""
    norm = timm.layers.BatchNormAct2d(3)
    block = nn.Sequential(nn.Conv2d(3, 3, 1), norm)
    net = nn.Sequential(block, nn.Flatten())
    x = torch.randn((2, 3, 4, 4), generator=torch.Generator().manual_seed(0))
    found = of(net, x)
    assert [layer.name for layer in found] == ["0.0", "0.1.drop", "0.1.act", "0.1", "1"]
    assert found[3].mean == pytest.approx(float(block.eval()(x).detach().mean()), rel=1e-5)
    named = activations(Subject(net.eval(), net), x, also="0")
    assert [layer.name for layer in named] == ["0.0", "0.1.drop", "0.1.act", "0.1", "0", "1"]
    assert named[4].mean == named[3].mean
