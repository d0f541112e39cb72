"""What gradient flow costs, as a multiple of a plain forward and backward pass of the same model in the same run.

Plain: no hook anywhere, the gradients of all parameters, as in training. Random weights: time does not depend on them.
"""

import argparse
from collections.abc import Callable

import torch
import torchvision
from _timing import print_table, ratios
from torch import Tensor, nn

from explainers import Subject, Target
from explainers.diagnostics.gradient_flow import gradient_flow, score_objective

MODELS = ("resnet50", "mobilenet_v3_large", "vgg16", "densenet121", "swin_t")


def plain(model: nn.Module, inputs: Tensor) -> Callable[[], object]:
    """Forward, and the gradient of the first class's score with respect to all parameters."""

    def run() -> object:
        model.requires_grad_(True)
        gradients = torch.autograd.grad(model(inputs)[:, 0].sum(), list(model.parameters()), allow_unused=True)
        model.requires_grad_(False)
        return gradients

    return run


def ours(model: nn.Module, inputs: Tensor) -> Callable[[], object]:
    """HeatLens: the norms of all layers and the verdict."""
    subject, objective = Subject(model, model), score_objective([Target(0)] * len(inputs))
    return lambda: gradient_flow(subject, inputs, objective)


def main() -> None:
    """Print one row per model and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads; multiples of one plain forward and backward pass\n")
    rows = []
    for name in options.models:
        torch.manual_seed(0)
        model = torchvision.models.get_model(name, weights=None).eval().requires_grad_(False)
        for layout in (torch.contiguous_format, torch.channels_last):
            model = model.to(memory_format=layout)
            cells = []
            for batch in options.batches:
                inputs = torch.randn(batch, 3, 224, 224).contiguous(memory_format=layout)
                contenders = {"plain": plain(model, inputs), "flow": ours(model, inputs)}
                rounds = options.rounds if batch == 1 else max(3, options.rounds // 3)
                cells.append(f"{ratios(contenders, base='plain', rounds=rounds)['flow']:.2f}")
            rows.append([name, str(layout).rpartition(".")[2], *cells])
    print_table(["model", "memory format", *(f"batch {batch}" for batch in options.batches)], rows)


if __name__ == "__main__":
    main()
