"""Target layers are found, not guessed: on networks of every family, and on small ones with one trap each."""

import weakref
from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from models.layers import Kind, LayerInfo, LayerTracer, Layout


def observed(network: nn.Module, size: tuple[int, int]) -> LayerTracer:
    """Run one forward pass and tell a tracer; the package itself registers no hook."""
    tracer = LayerTracer((1, 3, *size))
    handles = [
        module.register_forward_hook(lambda module, _args, output, name=name: tracer(name, module, output))
        for name, module in network.named_modules()
    ]
    with torch.no_grad():
        network(torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0)))
    for handle in handles:
        handle.remove()
    return tracer


def trace(network: nn.Module, height: int, width: int | None = None) -> LayerTracer:
    return observed(network.eval(), (height, width or height))


def unfilled(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network without spending time on weights: here only shapes matter."""
    with torch.device("meta"):
        network = build()
    return network.to_empty(device="cpu")


def names(tracer: LayerTracer) -> list[str]:
    return [info.name for info in tracer.candidates]


def layer(tracer: LayerTracer, name: str) -> LayerInfo:
    return next(info for info in tracer.layers if info.name == name)


# Real networks. The sizes follow from the strides: 64 px through five halvings is 2, through four 4.


@pytest.mark.parametrize(
    ("name", "size", "expected", "kind", "grid"),
    [
        ("resnet50", 64, "layer4", "channels_first", (2, 2)),
        ("densenet121", 64, "features.norm5", "channels_first", (2, 2)),
        ("vgg16", 64, "features.29", "channels_first", (4, 4)),
        ("alexnet", 224, "features.11", "channels_first", (13, 13)),
        ("mobilenet_v3_large", 64, "features.16", "channels_first", (2, 2)),
        ("mnasnet1_0", 64, "layers.16", "channels_first", (2, 2)),
        ("efficientnet_b0", 64, "features.8", "channels_first", (2, 2)),
        # 224 -> 111 -> 55 -> 27 -> 13: the map of the classes before their mean
        ("squeezenet1_1", 224, "classifier.2", "channels_first", (13, 13)),
        ("shufflenet_v2_x0_5", 64, "conv5", "channels_first", (2, 2)),
        ("googlenet", 64, "inception5b", "channels_first", (2, 2)),
        ("inception_v3", 299, "Mixed_7c", "channels_first", (8, 8)),
        ("convnext_tiny", 64, "features.7", "channels_first", (2, 2)),
    ],
)
def test_torchvision(name: str, size: int, expected: str, kind: Kind, grid: tuple[int, int]) -> None:
    options = {"init_weights": False} if name in ("vgg16", "googlenet", "inception_v3") else {}
    network = unfilled(lambda: torchvision.models.get_model(name, weights=None, **options))
    best = trace(network, size).candidates[0]
    assert (best.name, best.layout) == (expected, Layout(kind, grid))


@pytest.mark.parametrize(
    ("name", "size", "expected", "layout"),
    [
        ("tf_efficientnet_lite0", 64, "bn2", Layout("channels_first", (2, 2))),
        ("resnet18", 64, "layer4", Layout("channels_first", (2, 2))),
        ("pvt_v2_b0", 64, "stages", Layout("channels_first", (2, 2))),
        ("mixer_s32_224", 224, "norm", Layout("tokens", (7, 7), 0)),  # no class token; 224 / 32 = 7
        ("vit_tiny_patch16_224", 224, "norm", Layout("tokens", (14, 14), 1)),  # class token
        ("deit_tiny_distilled_patch16_224", 224, "norm", Layout("tokens", (14, 14), 2)),  # and distillation token
        ("hiera_tiny_224", 224, "blocks.11", Layout("tokens", (7, 7), 0)),  # no map has 49 cells
        ("vit_small_patch14_reg4_dinov2", 518, "norm", Layout("tokens", (37, 37), 5)),  # class and 4 registers
    ],
)
def test_timm(name: str, size: int, expected: str, layout: Layout) -> None:
    options = {"depth": 1} if "patch" in name else {}
    best = trace(unfilled(lambda: timm.create_model(name, **options)), size).candidates[0]
    assert (best.name, best.layout) == (expected, layout)


def test_levits_last_tokens_are_fewer_than_the_cells_of_any_map() -> None:
    best = trace(timm.create_model("levit_128s"), 224).candidates[0]
    assert (best.name, best.layout) == ("stages", Layout("tokens", (4, 4)))  # 224 / 16 = 14 -> 7 -> 4


def test_a_network_that_computes_with_tensors_while_it_is_built() -> None:
    assert names(trace(torchvision.models.regnet_x_400mf(weights=None), 64))[0] == "trunk_output"


def test_a_non_square_input_has_a_non_square_grid() -> None:
    best = trace(torchvision.models.resnet18(weights=None), 64, 160).candidates[0]
    assert best.layout == Layout("channels_first", (2, 5))
    vit = timm.create_model("vit_tiny_patch16_224", img_size=(32, 80))
    assert trace(vit, 32, 80).candidates[0].layout == Layout("tokens", (2, 5), 1)


def test_torchvisions_swin_transformer_works_channels_last() -> None:
    tracer = trace(torchvision.models.swin_t(weights=None), 64)  # patches of 4, then three halvings
    assert layer(tracer, "features.0.0").layout == Layout("channels_first", (16, 16))  # the convolution
    assert layer(tracer, "features.0.1").layout == Layout("channels_last", (16, 16))  # its permutation
    assert layer(tracer, "features.7.1.norm2").layout == Layout("channels_last", (2, 2))
    assert layer(tracer, "features.7").layout == Layout("channels_last", (2, 2))
    assert tracer.candidates[0].name == "permute"
    assert tracer.candidates[0].layout == Layout("channels_first", (2, 2))


def test_timms_swin_transformer_works_channels_last() -> None:
    best = trace(timm.create_model("swin_tiny_patch4_window7_224", img_size=64, window_size=2), 64).candidates[0]
    assert (best.name, best.layout) == ("norm", Layout("channels_last", (2, 2)))


def test_windows_of_an_attention_layer_are_no_grid() -> None:
    tracer = trace(torchvision.models.maxvit_t(weights=None), 224)
    partition = "blocks.0.layers.0.layers.window_attention.partition_op"
    # 56 x 56 in windows of 7 x 7: 64 windows of 49 places
    assert layer(tracer, partition).shape == (1, 64, 49, 64)
    assert layer(tracer, partition).layout is None
    norm = "blocks.1.layers.0.layers.window_attention.attn_layer.0"
    assert layer(tracer, norm).shape == (1, 16, 49, 128)  # 28 x 28: 16 windows; the norm knows its axis, not its grid
    assert layer(tracer, norm).layout is None
    assert tracer.candidates[0].name == "blocks.3"
    assert tracer.candidates[0].layout == Layout("channels_first", (7, 7))


# Vision transformers: the caller skips candidates without a gradient, for only the class token matters at the end.


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: timm.create_model("vit_tiny_patch16_224", depth=3, num_classes=5, img_size=64), "blocks.2.norm1"),
        (
            lambda: torchvision.models.VisionTransformer(
                image_size=64, patch_size=16, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=5
            ),
            "encoder.layers.encoder_layer_2.ln_1",
        ),
    ],
)
def test_of_a_vision_transformer_the_last_blocks_first_norm_is_the_best_with_a_gradient(
    build: Callable[[], nn.Module], expected: str
) -> None:
    torch.manual_seed(0)
    network = build().eval()
    for parameter in network.parameters():  # torchvision's head begins at zero
        nn.init.normal_(parameter, std=0.2)
    tracer = trace(network, 64)
    assert [info.layout for info in tracer.candidates[:1]] == [Layout("tokens", (4, 4), 1)]
    outputs: dict[str, Tensor] = {}
    handles = [
        module.register_forward_hook(lambda _module, _args, output, name=name: outputs.__setitem__(name, output))
        for name, module in network.named_modules()
    ]
    score = network(torch.rand(1, 3, 64, 64))[0, 2]
    for handle in handles:
        handle.remove()
    for info in tracer.candidates:
        (gradient,) = torch.autograd.grad(score, outputs[info.name], retain_graph=True)
        assert info.layout is not None
        if info.layout.to_grid(gradient).any():
            break
    assert info.name == expected


def test_on_vit_b_16_the_candidates_lead_to_the_last_first_norm() -> None:
    tracer = trace(unfilled(lambda: torchvision.models.vit_b_16(weights=None)), 224)
    assert names(tracer)[:2] == ["encoder", "encoder.layers"]
    behind = names(tracer)[: names(tracer).index("encoder.layers.encoder_layer_11.ln_1")]
    assert all(name.startswith(("encoder.layers.encoder_layer_11.", "encoder")) for name in behind)
    assert "encoder.layers.encoder_layer_10" not in behind


# Traps


class Net(nn.Module):
    """The given parts, run in the given order."""

    def __init__(self, run: Callable[["Net", Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def conv(channels_in: int = 3, channels_out: int = 4, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride, padding=1)


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3), nn.AdaptiveMaxPool2d(3), nn.LPPool2d(2, 2)]
)
def test_a_pooled_map_is_never_chosen(pool: nn.Module) -> None:
    network = nn.Sequential(conv(), nn.ReLU(), pool, nn.Identity(), nn.Dropout(), nn.Flatten())
    assert names(trace(network, 8)) == ["1", "0"]


def test_a_container_that_returns_a_pooled_map_is_not_chosen_either() -> None:
    network = nn.Sequential(nn.Sequential(conv(), nn.ReLU()), nn.Sequential(conv(4), nn.MaxPool2d(2)))
    assert names(trace(network, 8)) == ["1.0", "0.1", "0.0"]


def test_a_pooling_that_does_nothing_hides_no_layer() -> None:
    class GlobalPool(nn.Identity):
        pass

    network = nn.Sequential(conv(), nn.Sequential(conv(4), nn.ReLU()), GlobalPool())
    assert names(trace(network, 8))[0] == "1"


def test_an_in_place_activation_counts_as_the_layer() -> None:
    network = nn.Sequential(conv(), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    tracer = trace(network, 8)
    assert names(tracer) == ["2", "0"]  # "1" and "2" are the very same tensor


def test_the_outermost_module_stands_for_the_same_tensor_but_not_the_whole_backbone() -> None:
    stage = nn.Sequential(nn.Sequential(conv(4), nn.ReLU(inplace=True)))
    backbone = nn.Sequential(conv(), stage)
    network = nn.Sequential(backbone, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert names(trace(network, 8)) == ["0.1", "0.0"]


def test_freed_memory_is_not_taken_for_the_same_tensor() -> None:
    network = nn.Sequential(*[nn.Sequential(conv(4 if index else 3)) for index in range(8)])
    assert names(trace(network, 8)) == [str(index) for index in reversed(range(1, 8))] + ["0.0"]


def test_a_layer_that_never_ran_is_not_listed() -> None:
    network = Net(lambda net, x: net.used(x), used=conv(), unused=conv())
    assert [info.name for info in trace(network, 8).layers] == ["used"]


def test_a_repeated_layer_counts_at_its_last_call() -> None:
    network = Net(
        lambda net, x: net.act(net.second(net.act(net.first(x)))),
        act=nn.ReLU(),
        first=conv(),
        second=conv(4, 5, stride=2),
    )
    tracer = trace(network, 8)
    assert [info.name for info in tracer.layers] == ["first", "second", "act"]
    assert layer(tracer, "act") == LayerInfo("act", "ReLU", (1, 5, 4, 4), 2, Layout("channels_first", (4, 4)))


def test_a_network_whose_grid_is_one_cell_still_has_a_layer() -> None:
    network = nn.Sequential(conv(stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    tracer = trace(network, 2)
    assert names(tracer) == ["1", "0"]
    assert tracer.candidates[0].layout == Layout("channels_first", (1, 1))


def test_a_gate_of_one_cell_is_no_candidate_beside_real_grids() -> None:
    gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.Sigmoid())
    network = Net(lambda net, x: (y := net.conv(x)) * net.gate(y), conv=conv(), gate=gate)
    assert names(trace(network, 8)) == ["conv"]


def test_attention_weights_are_no_grid() -> None:
    def run(net: Net, x: Tensor) -> Tensor:
        tokens = net.patches(x).flatten(2).transpose(1, 2)  # (1, 16, 8)
        weights = net.softmax((tokens @ tokens.transpose(1, 2))[:, None])  # (1, heads, 16, 16)
        return net.head((weights[:, 0] @ tokens).mean(1))

    network = Net(run, patches=nn.Conv2d(3, 8, 4, 4), softmax=nn.Softmax(-1), head=nn.Linear(8, 2))
    tracer = trace(network, 16)
    assert layer(tracer, "softmax").shape == (1, 1, 16, 16)
    assert layer(tracer, "softmax").layout is None
    assert names(tracer) == ["patches"]


@pytest.mark.parametrize(
    ("size", "count", "layout"),
    [
        ((32, 80), 10, Layout("tokens", (2, 5), 0)),
        ((32, 80), 11, Layout("tokens", (2, 5), 1)),
        ((224, 200), 42, Layout("tokens", (7, 6), 0)),  # patches of 32, and 8 columns that no patch covers
        ((64, 64), 20, Layout("tokens", (4, 4), 4)),
        ((64, 64), 3, None),  # 1 x 3 and 3 x 1 do not cover a square evenly, and one patch is no grid
        ((64, 64), 34, None),  # 25 patches and 9 tokens before them: too many
    ],
)
def test_tokens_of_no_map_cover_the_picture_evenly(size: tuple[int, int], count: int, layout: Layout | None) -> None:
    tracer = LayerTracer((1, 3, *size))
    tracer("tokens", nn.Linear(4, 8), torch.zeros(1, count, 8))
    assert layer(tracer, "tokens").layout == layout


def test_linear_layers_are_the_last_resort() -> None:
    def run(net: Net, x: Tensor) -> Tensor:
        return net.project(net.patches(x).permute(0, 2, 3, 1))

    network = Net(run, patches=nn.Conv2d(3, 8, 4, 4), project=nn.Linear(8, 5))
    tracer = trace(network, 16)
    assert names(tracer) == ["patches", "project"]
    assert layer(tracer, "project").layout == Layout("channels_last", (4, 4))


def test_outputs_that_are_no_tensors_or_no_numbers_have_no_layout() -> None:
    tracer = LayerTracer((1, 3, 4, 4))
    tracer("pair", nn.Identity(), (torch.zeros(1, 3, 4, 4), None))
    tracer("labels", nn.Identity(), torch.zeros(1, 3, 4, 4, dtype=torch.long))
    tracer("empty", conv(), torch.zeros(1, 0, 4, 4))
    tracer("vector", nn.Linear(3, 4), torch.zeros(1, 4))
    tracer("video", nn.Conv3d(3, 4, 1), torch.zeros(1, 4, 2, 4, 4))
    tracer("", nn.Identity(), torch.zeros(1, 3, 4, 4))
    assert [info.layout for info in tracer.layers] == [None] * 5
    assert layer(tracer, "pair").shape is None
    assert layer(tracer, "labels").shape == (1, 3, 4, 4)
    assert tracer.candidates == []


def test_no_tensor_is_kept() -> None:
    tracer = LayerTracer((1, 3, 4, 4))
    output = torch.zeros(1, 3, 4, 4)
    tracer("a", conv(), output)
    alive = weakref.ref(output)
    del output
    assert alive() is None


# Layouts


def positions(height: int, width: int) -> Tensor:
    """Return a map (1, 2, h, w) whose channels are the row and the column."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows, columns])[None].float()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 8))
def test_every_layout_leads_to_the_same_grid(height: int, width: int, prefix: int) -> None:
    grid = positions(height, width)
    tokens = torch.cat([torch.full((1, prefix, 2), -1.0), grid.flatten(2).transpose(1, 2)], dim=1)
    for layout, output in [
        (Layout("channels_first", (height, width)), grid),
        (Layout("channels_last", (height, width)), grid.permute(0, 2, 3, 1)),
        (Layout("tokens", (height, width), prefix), tokens),
    ]:
        torch.testing.assert_close(layout.to_grid(output), grid, rtol=0, atol=0)


def test_the_gradient_reaches_the_patches_and_not_the_prefix() -> None:
    tokens = torch.zeros(2, 1 + 6, 3, requires_grad=True)
    Layout("tokens", (2, 3), 1).to_grid(tokens).sum().backward()
    assert tokens.grad is not None
    assert tokens.grad[:, 0].sum() == 0
    assert tokens.grad[:, 1:].eq(1).all()
