"""What Grad-CAM costs, as a multiple of one bare forward pass of the same model; peers in the same run.

The bare forward runs in `inference_mode`, with the same weights and memory format. Random weights: time does not
depend on them.
"""

import argparse
import warnings
from collections.abc import Callable

import torch
import torchvision
from _timing import print_table, ratios
from captum.attr import LayerGradCam
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn
from torchcam.methods import GradCAM as TorchCamGradCAM

from explainers import Subject, Target, explain

LAYERS = {
    "resnet50": "layer4",
    "mobilenet_v3_large": "features.16",
    "vgg16": "features.29",
    "densenet121": "features.norm5",
}


def bare(model: nn.Module, inputs: Tensor) -> Callable[[], object]:
    """One forward pass without any gradient."""

    def run() -> object:
        with torch.inference_mode():
            return model(inputs)

    return run


def ours(model: nn.Module, inputs: Tensor, layer: str, targets: int = 1) -> Callable[[], object]:
    """HeatLens: the scores and the maps of the given number of classes."""
    subject = Subject(model, model)
    wanted = [[Target(index) for index in range(targets)]] * len(inputs)
    return lambda: explain(subject, inputs, wanted, method="gradcam", layers=[layer])


def pytorch_grad_cam(model: nn.Module, inputs: Tensor, layer: str) -> Callable[[], object]:
    """pytorch-grad-cam (PyPI grad-cam)."""
    cam = GradCAM(model, [model.get_submodule(layer)])
    return lambda: cam(inputs, [ClassifierOutputTarget(0)] * len(inputs))


def captum(model: nn.Module, inputs: Tensor, layer: str) -> Callable[[], object]:
    """captum's LayerGradCam."""
    cam = LayerGradCam(model, model.get_submodule(layer))
    return lambda: cam.attribute(inputs, 0)


def torchcam(model: nn.Module, inputs: Tensor, layer: str) -> Callable[[], object]:
    """torch-cam (PyPI torchcam)."""
    cam = TorchCamGradCAM(model, layer)

    def run() -> object:
        scores = model(inputs)
        return cam([0] * len(inputs), scores)

    return run


PEERS = {"pytorch-grad-cam": pytorch_grad_cam, "captum": captum, "torch-cam": torchcam}


def network(name: str, layout: torch.memory_format) -> nn.Module:
    """A network as the service holds it: eval, frozen."""
    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None).eval().requires_grad_(False).to(memory_format=layout)


def peer_ratio(name: str, peer: str, inputs: Tensor, rounds: int) -> str:
    """Measure one peer on a copy of its own, since some leave hooks behind; unfrozen, as its manual says."""
    model = network(name, torch.channels_last).requires_grad_(True)
    try:
        run = PEERS[peer](model, inputs, LAYERS[name])
        # A model of its own, so that the peer's hooks do not slow the base.
        measured = ratios(
            {"bare": bare(network(name, torch.channels_last), inputs), peer: run}, base="bare", rounds=rounds
        )
    except RuntimeError as error:  # in-place consumers of the hooked output
        return f"fails: {str(error).split('.')[0][:40]}"
    return f"{measured[peer]:.2f}"


def main() -> None:
    """Print one row per model and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--models", nargs="*", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    print(f"torch {torch.__version__}, {options.threads} threads, channels_last; multiples of one bare forward\n")
    rows = []
    for name in options.models:
        for batch in options.batches:
            inputs = torch.randn(batch, 3, 224, 224).contiguous(memory_format=torch.channels_last)
            model = network(name, torch.channels_last)
            layer = LAYERS[name]
            contenders = {
                "bare": bare(model, inputs),
                "one": ours(model, inputs, layer),
                "five": ours(model, inputs, layer, 5),
            }
            rounds = options.rounds if batch == 1 else max(3, options.rounds // 3)
            measured = ratios(contenders, base="bare", rounds=rounds)
            peers = [peer_ratio(name, peer, inputs, max(3, rounds // 2)) for peer in PEERS]
            rows.append([name, str(batch), f"{measured['one']:.2f}", f"{measured['five']:.2f}", *peers])
    print_table(["model", "batch", "HeatLens", "HeatLens, 5 targets", *PEERS], rows)


if __name__ == "__main__":
    main()
