"""What every method costs: short ones against a bare forward pass, repeated ones against their own passes, and peers.

Random weights: time does not depend on them. Every ratio is of two runs that took turns.
"""

import argparse
import math
import warnings
from collections.abc import Callable, Mapping

import torch
import torchvision
from _timing import print_table, ratios
from captum.attr import IntegratedGradients, KernelShap, Lime, NoiseTunnel, Occlusion, Saliency, ShapleyValueSampling
from pytorch_grad_cam import AblationCAM, ScoreCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn
from torchcam.methods import ScoreCAM as TorchCamScoreCAM

from explainers import Subject, Target, Work, explain, get, names
from explainers.errors import MethodNotApplicable

LAYERS = {"resnet50": "layer4", "efficientnet_b0": "features.8", "convnext_tiny": "features.7"}
"""For the short methods; `resnet18` stands for them all in the long ones."""
CHUNK = 8
"""Changed pictures in one pass, for us (the default setting) and for the peers."""
STEPS = 32
Run = Callable[[], object]


def network(name: str) -> nn.Module:
    """A network as the service holds it: eval, frozen, channels_last."""
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None).eval().requires_grad_(False)
    return model.to(memory_format=torch.channels_last)


def bare(model: nn.Module, inputs: Tensor) -> Run:
    """One forward pass without any gradient."""

    def run() -> object:
        with torch.inference_mode():
            return model(inputs)

    return run


def ours(model: nn.Module, inputs: Tensor, method: str, layer: str, **parameters: object) -> Run:
    """HeatLens: one target of each picture."""
    subject, layers = Subject(model, model), [layer] * min(get(method).max_layers, 1)
    return lambda: explain(
        subject,
        inputs,
        [[Target(0)]] * len(inputs),
        method=method,
        layers=layers,
        parameters=parameters,
        work=Work(chunk=CHUNK),
    )


def short_methods(inputs: Tensor, rounds: int) -> None:
    """Methods of one or two passes, as multiples of a bare forward pass."""
    methods = [name for name in names() if get(name).cost_class == "low" and get(name).family != "attention"]
    columns: dict[str, dict[str, str]] = {}
    for name, layer in LAYERS.items():
        model = network(name)
        columns[name] = {}
        for method in methods:
            try:
                runs = {"bare": bare(model, inputs), method: ours(model, inputs, method, layer)}
                columns[name][method] = f"{ratios(runs, base='bare', rounds=rounds)[method]:.2f}"
            except MethodNotApplicable:  # no ReLU
                columns[name][method] = "-"
    print("Multiples of one bare forward pass, one picture:\n")
    print_table(["method", *LAYERS], [[method, *(columns[name][method] for name in LAYERS)] for method in methods])


def passes(model: nn.Module, inputs: Tensor, chunk: int, total: int) -> Run:
    """Forward and backward passes to the input, `total` pictures, `chunk` at a time, and nothing else."""
    many = inputs.repeat(chunk, 1, 1, 1)

    def run() -> None:
        for _ in range(total // chunk):
            leaf = many.detach().requires_grad_()
            torch.autograd.grad(model(leaf)[:, 0].sum(), leaf)

    return run


def stepwise_methods(inputs: Tensor, rounds: int) -> None:
    """SmoothGrad and its like, as multiples of as many forward and backward passes at the best chunk."""
    model = network("resnet18")
    by_chunk = {str(chunk): passes(model, inputs, chunk, STEPS) for chunk in (1, 2, 4, 8, 16, 32)}
    times = ratios(by_chunk, base="16", rounds=rounds)
    best = min(times, key=lambda chunk: times[chunk])
    captum = {
        "smoothgrad": lambda: NoiseTunnel(Saliency(model)).attribute(
            inputs.clone().requires_grad_(),
            nt_type="smoothgrad",
            nt_samples=STEPS,
            nt_samples_batch_size=CHUNK,
            stdevs=0.5,
            target=0,
            abs=False,
        ),
        "integrated_gradients": lambda: IntegratedGradients(model).attribute(
            inputs, target=0, n_steps=STEPS, internal_batch_size=CHUNK, method="riemann_middle"
        ),
    }
    rows = []
    for method in ("smoothgrad", "vargrad", "integrated_gradients", "gradient_shap"):
        count = {"steps" if method == "integrated_gradients" else "samples": STEPS}
        runs = {"base": by_chunk[best], "ours": ours(model, inputs, method, "", **count)}
        if method in captum:
            runs["captum"] = captum[method]
        measured = ratios(runs, base="base", rounds=rounds)
        rows.append([method, f"{measured['ours']:.2f}", f"{measured['captum']:.2f}" if "captum" in measured else "-"])
    print(f"\nresnet18, multiples of {STEPS} forward and backward passes, {best} at a time (the best chunk):\n")
    print_table(["method", "HeatLens", "captum"], rows)


def literal_rise(model: nn.Module, inputs: Tensor, samples: int) -> Run:
    """RISE as its authors wrote it: all masks first, then the model on masked copies, then one product."""
    cell = math.ceil(inputs.shape[2] / 7)

    def run() -> Tensor:
        grids = (torch.rand(samples, 1, 7, 7) < 0.5).float()
        large = nn.functional.interpolate(grids, size=8 * cell, mode="bilinear", align_corners=False)
        shifts = torch.randint(cell, (samples, 2)).tolist()
        masks = torch.stack(
            [m[:, y : y + inputs.shape[2], x : x + inputs.shape[3]] for m, (y, x) in zip(large, shifts, strict=True)]
        )
        with torch.inference_mode():
            scores = torch.cat([model(inputs * part)[:, 0] for part in masks.split(CHUNK)])
            return torch.einsum("s,schw->hw", scores, masks) / samples / 0.5

    return run


def long_methods(inputs: Tensor, rounds: int) -> None:
    """Methods of hundreds of passes beside their peers, as multiples of our time."""
    model, target = network("resnet18"), ClassifierOutputTarget(0)
    window = round(inputs.shape[2] / 7)
    # As the manuals have it, each peer on a model of its own: some leave hooks behind.
    score, ablation, torchcam = (network("resnet18") for _ in range(3))
    peers: dict[str, Mapping[str, Run]] = {
        "scorecam": {
            "pytorch-grad-cam": cam_run(ScoreCAM(score, [score.layer4]), inputs, target),
            "torch-cam": torchcam_run(torchcam, inputs),
        },
        "ablationcam": {"pytorch-grad-cam": cam_run(AblationCAM(ablation, [ablation.layer4]), inputs, target)},
        "occlusion": {
            "captum": lambda: Occlusion(model).attribute(
                inputs,
                sliding_window_shapes=(3, window, window),
                strides=(3, window // 2, window // 2),
                target=0,
                perturbations_per_eval=CHUNK,
            )
        },
        "rise": {"literal": literal_rise(model, inputs, 256)},
        "lime": {"captum": superpixels_run(Lime, model, inputs, n_samples=256)},
        "kernel_shap": {"captum": superpixels_run(KernelShap, model, inputs, n_samples=256)},
        "shapley_sampling": {"captum": superpixels_run(ShapleyValueSampling, model, inputs, n_samples=5)},
    }
    counts: dict[str, dict[str, object]] = {"rise": {"samples": 256}, "lime": {"samples": 256}}
    counts |= {"kernel_shap": {"samples": 256}, "shapley_sampling": {"samples": 5, "segments": 49}}
    rows = []
    for method, theirs in peers.items():
        runs = {"ours": ours(model, inputs, method, "layer4", **counts.get(method, {})), **theirs}
        measured = ratios(runs, base="ours", rounds=rounds)
        rows.append([method, ", ".join(f"{peer} {measured[peer]:.2f}" for peer in theirs)])
    print("\nresnet18, time of the peer as a multiple of ours (above 1: HeatLens is faster):\n")
    print_table(["method", "peers"], rows)


def cam_run(cam: ScoreCAM | AblationCAM, inputs: Tensor, target: ClassifierOutputTarget) -> Run:
    """pytorch-grad-cam with our chunk."""
    cam.batch_size = CHUNK
    return lambda: cam(inputs, [target])


def torchcam_run(model: nn.Module, inputs: Tensor) -> Run:
    """torch-cam with our chunk."""
    cam = TorchCamScoreCAM(model, "layer4", batch_size=CHUNK)

    def run() -> object:
        with torch.no_grad():
            scores = model(inputs)
        return cam(0, scores)

    return run


def superpixels_run(method: Callable[..., object], model: nn.Module, inputs: Tensor, n_samples: int) -> Run:
    """captum on squares of 32 px, 49 superpixels: its user brings the segmentation."""
    rows = torch.arange(inputs.shape[2]) // 32
    mask = (rows[:, None] * 7 + rows[None, :]).expand(1, 1, -1, -1)
    explainer = method(model)
    return lambda: explainer.attribute(  # type: ignore[attr-defined]
        inputs, target=0, feature_mask=mask, n_samples=n_samples, perturbations_per_eval=CHUNK
    )


def main() -> None:
    """Print three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="of the short methods; the long ones take a third")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    print(f"torch {torch.__version__}, {options.threads} threads, float32, channels_last, 224 px\n")
    inputs = torch.randn(1, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    short_methods(inputs, options.rounds)
    stepwise_methods(inputs, max(3, options.rounds // 3))
    long_methods(inputs, max(3, options.rounds // 3))


if __name__ == "__main__":
    main()
