"""Which layer is explained by default, over the families of torchvision and timm: its grid, its map, its place.

Weights are random. The expected grids are those of the papers: the input's side by the product of the strides.
docs/architectures.md holds the same for all of torchvision and at least one network of every timm family.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from skimage.data import astronaut
from torch import nn

from app.config import Settings
from app.hosting import Host
from app.metrics import Metrics
from app.tasks import Explain, Payload
from benchmarks._placing import PLACES, answers, found_again
from explainers import Target
from models import ModelSpec
from models.architectures import build
from models.layers import Layout
from models.preprocess import Preprocess
from models.spec import RandomWeights

SMALL = (128, 160)  # not square, so that swapped axes show; a fifth of the usual work


@contextmanager
def hosted(arch: str, size: tuple[int, int] | None = None, **options: Any) -> Iterator[Host]:
    preprocess = Preprocess(input_size=size, mean=(0.5,) * 3, std=(0.25,) * 3) if size else None
    spec = ModelSpec(name="m", arch=arch, arch_options=options, weights=RandomWeights(), preprocess=preprocess)
    host = Host(spec, Settings(torch_threads=1), Metrics(), may_download=False)
    try:
        host.owner.wait_until_ready(timeout_s=None)
        yield host
    finally:
        host.owner.close(grace_s=60)


def check(host: Host, grid: tuple[int, int]) -> None:
    """The default layer has the grid, a map that differs from cell to cell, and cells where the picture's parts are."""
    layer = host.network.default_layer
    assert layer is not None, host.network.why_no_default_layer
    layout = next(info.layout for info in host.network.layers if info.name == layer)
    assert layout is not None
    inputs = host.model.preprocess(astronaut())[0]
    job = host.submit(Explain.by("gradcam", [layer], {}), Payload(inputs, (Target(),)), timeout_s=120)
    raw = job.result().attributions[0].raw
    assert raw.shape == grid
    assert np.ptp(raw) > 1e-5 * np.abs(raw).max()
    told = answers(host.model, layer, layout.to_grid, torch.from_numpy(inputs))
    assert found_again(told) == len(PLACES)


# One of each family; of families of large networks the smallest. Halving five times is a stride of 32.
TORCHVISION = {
    # 128 -> (128 + 4 - 11) / 4 + 1 = 31 -> (31 - 3) / 2 + 1 = 15 -> 7; likewise 160 -> 39 -> 19 -> 9
    "alexnet": (7, 9),
    "convnext_tiny": (4, 5),
    "densenet121": (4, 5),
    "efficientnet_b0": (4, 5),
    "efficientnet_v2_s": (4, 5),
    "googlenet": (4, 5),
    "mnasnet0_5": (4, 5),
    "mobilenet_v2": (4, 5),
    "mobilenet_v3_small": (4, 5),
    "regnet_x_400mf": (4, 5),
    "regnet_y_400mf": (4, 5),
    "resnet18": (4, 5),
    "resnext50_32x4d": (4, 5),
    "shufflenet_v2_x0_5": (4, 5),
    # 128 -> 61 -> 30 -> 15 -> 7 by a convolution of 7 and three poolings of 3, stride 2, rounding up; 160 -> 77 -> ...
    "squeezenet1_0": (7, 9),
    "swin_t": (4, 5),
    "swin_v2_t": (4, 5),
    "vgg11": (8, 10),  # before the last pooling
    "wide_resnet50_2": (4, 5),
}


@pytest.mark.parametrize(("name", "grid"), TORCHVISION.items())
def test_torchvision(name: str, grid: tuple[int, int]) -> None:
    with hosted(f"torchvision:{name}", SMALL) as host:
        check(host, grid)


@pytest.mark.parametrize(
    ("name", "grid"),
    [("inception_v3", (8, 8)), ("maxvit_t", (7, 7))],  # 299 x 299, as its paper's table 1; 224 / 32
)
def test_torchvision_at_the_size_that_the_network_wants(name: str, grid: tuple[int, int]) -> None:
    with hosted(f"torchvision:{name}") as host:
        check(host, grid)


# The input's side in the name, or 224; by the stride in the name (patchN), or 32. None is larger than 30 M.
TIMM = {
    "caformer_s18": 224 // 32,
    "cait_xxs24_224": 224 // 16,  # the class token joins for the last two blocks only
    "coat_lite_tiny": 224 // 32,
    "coatnet_pico_rw_224": 224 // 32,
    "convit_tiny": 224 // 16,
    "convnext_zepto_rms": 224 // 32,
    "crossvit_tiny_240": 240 // 12,  # two branches: this one, and patches of 16 in 224 pixels
    "davit_tiny": 224 // 32,
    "deit_tiny_distilled_patch16_224": 224 // 16,
    "edgenext_xx_small": 256 // 32,
    "efficientformerv2_s0": 224 // 32,
    "efficientvit_b0": 224 // 32,
    "eva02_tiny_patch14_224": 224 // 14,
    "fastvit_t8": 256 // 32,
    "focalnet_tiny_srf": 224 // 32,
    "gcvit_xxtiny": 224 // 32,
    "inception_next_atto": 224 // 32,
    "maxvit_pico_rw_256": 256 // 32,
    "mobilevit_xxs": 256 // 32,
    "mvitv2_tiny": 224 // 32,
    "nest_tiny": 224 // 16,  # patches of 4, merged twice
    "poolformer_s12": 224 // 32,
    "pvt_v2_b0": 224 // 32,
    "repvit_m0_9": 224 // 32,
    "swin_tiny_patch4_window7_224": 224 // 32,
    "swinv2_tiny_window8_256": 256 // 32,
    "tnt_s_legacy_patch16_224": 224 // 16,
    "twins_svt_small": 224 // 32,
    "vit_tiny_patch16_224": 224 // 16,
    "vit_wee_patch16_reg1_gap_256": 256 // 16,
    "volo_d1_224": 224 // 16,
    "xcit_nano_12_p16_224": 224 // 16,
}


@pytest.mark.parametrize(("name", "side"), TIMM.items())
def test_timm(name: str, side: int) -> None:
    with hosted(f"timm:{name}") as host:
        check(host, (side, side))


def with_a_head(network: str) -> nn.Module:
    """A network of torchvision or timm whose head does not begin at zero."""
    module = build(ModelSpec(name="m", arch=network, weights=RandomWeights()))
    for part in module.modules():
        if isinstance(part, nn.Linear) and not part.weight.any():
            nn.init.normal_(part.weight, std=0.02)
    return module


@pytest.mark.parametrize(
    ("arch", "layer", "side"),
    [
        ("torchvision:vit_b_32", "encoder.layers.encoder_layer_11.ln_1", 224 // 32),
        ("timm:hiera_tiny_224", "blocks.11", 224 // 32),  # in rows again after the last pooling, and only then
        ("timm:mixer_s32_224", "norm", 224 // 32),
        ("timm:resmlp_12_224", "norm", 224 // 16),
    ],
)
def test_networks_whose_head_begins_at_zero(arch: str, layer: str, side: int) -> None:
    with hosted(f"python:{__name__}:with_a_head", network=arch) as host:
        check(host, (side, side))
        assert host.network.default_layer == layer


def test_tokens_in_another_order_are_no_grid() -> None:
    with hosted("timm:hiera_tiny_224") as host:
        layouts = {info.name: info.layout for info in host.network.layers}
    assert layouts["blocks.11"] == Layout("tokens", (7, 7))
    assert layouts["blocks.5"] is None  # 14 x 14 tokens, one mask unit of 2 x 2 after the other


# Where there is none


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ("timm:mixer_s32_224", "its scores have no gradient with respect to the picture"),  # the head is zero
        (f"python:{__name__}:Flat", "none of its layers returns a spatial grid"),
        (f"python:{__name__}:Scrambled", "in none of its grids do the cells lie where the picture's parts do"),
        (f"python:{__name__}:Worthless", "the score's gradient is zero or the map the same everywhere"),
    ],
)
def test_why_there_is_none(arch: str, reason: str) -> None:
    with hosted(arch, (32, 32)) if arch.startswith("python") else hosted(arch) as host:
        assert host.network.default_layer is None
        assert host.network.why_no_default_layer is not None
        assert reason in host.network.why_no_default_layer


class Flat(nn.Module):
    """Sees pixels in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 32 * 32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1))


class Scrambled(nn.Module):
    """Cuts the picture into patches in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * 4 * 4, 8)
        self.head = nn.Linear(8, 4)
        self.order = torch.randperm(64, generator=torch.Generator().manual_seed(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = nn.functional.pixel_unshuffle(x, 4).flatten(2).transpose(1, 2)
        return self.head(self.embed(patches[:, self.order]).relu().mean(1))


class Worthless(nn.Module):
    """Has one layer with a grid, on a branch that is worth nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.mean((2, 3))) + 0 * self.branch(x).mean((2, 3))
