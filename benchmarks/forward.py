"""What makes a forward pass, and with it Grad-CAM, faster: layout, folding, packing, compiling; all in one run.

Multiples of the network as PyTorch makes it (contiguous, eager, no gradient), whose milliseconds are printed too;
Grad-CAM in multiples of Grad-CAM without `models.trunk`. "packed" is what the service runs: folded, and on the CPU
packed by oneDNN with activations and sums fused. "compiled" is the folded network after torch.compile (inductor,
frozen), which needs a C++ compiler and is no part of the service, since it does not pay. Random weights: time does not
depend on them.

    python benchmarks/forward.py                       # one thread; some minutes, most of them compiling
    python benchmarks/forward.py --no-compile --rounds 40
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from unittest.mock import patch

import torch
from _timing import print_table, ratios
from torch import Tensor, nn

from explainers import Subject, Target, explain
from models.loading import LoadedModel, load
from models.spec import ModelSpec, RandomWeights
from models.trunk import NotSplit, split

NETWORKS = {
    "efficientnet_lite0": ("timm:tf_efficientnet_lite0", "bn2"),
    "resnet50": ("torchvision:resnet50", "layer4"),
    "mobilenet_v3_large": ("torchvision:mobilenet_v3_large", "features.16"),
    "convnext_tiny": ("torchvision:convnext_tiny", "features.7"),
}


def network(name: str, layout: str) -> LoadedModel:
    """A network as the service holds it."""
    arch, _ = NETWORKS[name]
    return load(ModelSpec(name=name, arch=arch, weights=RandomWeights(), memory_format=layout))


def forward(module: nn.Module, inputs: Tensor) -> Callable[[], object]:
    """One forward pass without any gradient."""

    def run() -> object:
        with torch.no_grad():
            return module(inputs)

    return run


def gradcam(module: nn.Module, inputs: Tensor, layer: str) -> Callable[[], object]:
    """The scores and one map per picture."""
    subject = Subject(module, module)
    return lambda: explain(subject, inputs, [[Target(0)]] * len(inputs), method="gradcam", layers=[layer])


def contenders(name: str, inputs: Tensor, *, compiles: bool) -> tuple[dict[str, Callable[[], object]], ...]:
    """Return the forward passes by name, and the ways to Grad-CAM."""
    layer = NETWORKS[name][1]
    contiguous, own = (network(name, layout) for layout in ("contiguous", "channels_last"))
    suited = inputs.contiguous(memory_format=torch.channels_last)
    passes = {"contiguous": forward(contiguous.module, inputs), "channels_last": forward(own.module, suited)}
    maps = {"Grad-CAM": gradcam(own.module, suited, layer)}
    try:
        with patch("models.folding.can_pack", return_value=False):
            folded = split(own, layer).module
        packed = split(own, layer).module
    except NotSplit as reason:
        print(f"{name}: {reason}")
        if compiles:
            passes["compiled"] = forward(torch.compile(own.module, options={"freezing": True}), suited)
        return passes, maps
    passes |= {"folded": forward(folded, suited), "packed": forward(packed, suited)}
    if compiles:
        passes["compiled"] = forward(torch.compile(folded, options={"freezing": True}), suited)
    return passes, maps | {"Grad-CAM, packed": gradcam(packed, suited, layer)}


def milliseconds(run: Callable[[], object], count: int) -> float:
    """Return how long one picture of `count` takes, the median of five runs."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - started) / count)
    return statistics.median(times)


def main() -> None:
    """Print one table per network, with a row per batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    print(f"torch {torch.__version__}, {options.threads} thread(s); multiples of contiguous, and of Grad-CAM\n")
    columns = ["contiguous", "channels_last", "folded", "packed", "compiled", "Grad-CAM", "Grad-CAM, packed"]
    for name in options.models:
        rows = []
        for batch in options.batches:
            inputs = torch.randn(batch, 3, 224, 224)
            rounds = options.rounds if batch == 1 else max(3, options.rounds // 4)
            passes, maps = contenders(name, inputs, compiles=options.compile)
            measured = ratios(passes, base="contiguous", rounds=rounds) | ratios(maps, base="Grad-CAM", rounds=rounds)
            cells = {column: f"{ratio:.2f}" for column, ratio in measured.items()}
            cells["contiguous"] = f"{milliseconds(passes['contiguous'], batch):.0f} ms"
            cells["Grad-CAM"] = f"{milliseconds(maps['Grad-CAM'], batch):.0f} ms"
            rows.append([name, str(batch), *(cells.get(column, "") for column in columns)])
            torch.compiler.reset()
        print_table(["model", "batch", *columns], rows)


if __name__ == "__main__":
    main()
