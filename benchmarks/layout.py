"""Contiguous against channels_last weights and inputs: one bare forward of each network on this machine's CPU.

The table is why `models.loading` stores networks with convolutions as channels_last. Weights are random
(speed does not depend on them); the two layouts run in turn, so that a busy machine slows both.

    python -m benchmarks.layout                                  # one thread, less than a minute
    python -m benchmarks.layout --threads 1 2 --seconds 5        # steadier
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from models.loading import load
from models.spec import ModelSpec, RandomWeights

NETWORKS = {
    "efficientnet_lite0": "timm:tf_efficientnet_lite0",
    "resnet50": "torchvision:resnet50",
    "mobilenet_v3_large": "torchvision:mobilenet_v3_large",
    "vgg16": "torchvision:vgg16",
    "densenet121": "torchvision:densenet121",
    "vit_b_16": "torchvision:vit_b_16",
    "convnext_tiny": "torchvision:convnext_tiny",
}
LAYOUTS = ("contiguous", "channels_last")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    print(_row("network", "threads", "batch", *(f"{layout} ms" for layout in LAYOUTS), "ratio", "runs"))
    for name in options.network:
        models = [load(_spec(name, layout)) for layout in LAYOUTS]
        for threads in options.threads:
            torch.set_num_threads(threads)
            for batch in options.batch:
                x = torch.rand(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))
                pairs = _timed_pairs_ms(models, x, options.runs, options.seconds)
                medians = [f"{statistics.median(times):.1f}" for times in zip(*pairs, strict=True)]
                ratio = statistics.median(contiguous / channels_last for contiguous, channels_last in pairs)
                print(_row(name, threads, batch, *medians, f"{ratio:.2f}", len(pairs)), flush=True)


def _row(name, threads, batch, contiguous, channels_last, ratio, runs):
    return f"{name:20} {threads:>7} {batch:>5} {contiguous:>14} {channels_last:>17} {ratio:>6} {runs:>5}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--runs", type=int, default=15, help="most timed runs of each layout")
    parser.add_argument("--seconds", type=float, default=1.0, help="stop a row's runs after this time")
    return parser


def _spec(name, layout):
    return ModelSpec(name=name, arch=NETWORKS[name], weights=RandomWeights(), memory_format=layout)


@torch.inference_mode()
def _timed_pairs_ms(models, x, runs, seconds):
    """Return the times of one forward as (contiguous, channels_last) in milliseconds, after a warm-up.

    The ratio is taken within each pair, so that a machine that is busy at times disturbs it least.
    """
    for model in models:
        model.scores(x)
    pairs = []
    stop = time.perf_counter() + seconds
    while len(pairs) < runs and (not pairs or time.perf_counter() < stop):
        pairs.append([_time_ms(model, x) for model in models])
    return pairs


def _time_ms(model, x):
    start = time.perf_counter()
    model.scores(x)
    return 1e3 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
