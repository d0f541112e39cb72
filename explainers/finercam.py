"""Finer-CAM: what tells the class from its likes."""

import torch
from pydantic import Field
from torch import Tensor

from explainers.batch import Batch, Maps
from explainers.cam import LAYER_SANITY, MAX_LAYERS, Parameters, gradcam_of, weighted
from explainers.gradients import Scored
from explainers.registry import Method, register


class FinerParameters(Parameters):
    """How many classes to compare with, and how strongly."""

    classes: int = Field(3, ge=1, le=100, description="With how many classes of the nearest scores to compare")
    strength: float = Field(
        1.0, ge=0, le=10, allow_inf_nan=False, description="How much of their scores to subtract; 0: Grad-CAM"
    )


def finercam(batch: Batch, parameters: FinerParameters) -> Maps:
    """Explain by Grad-CAM not the class's score, but what it has above the scores of similar classes.

    Zhang et al., "Finer-CAM: Spotting the Difference Reveals Finer Details for Visual Explanation", CVPR 2025,
    arXiv:2501.11309: Grad-CAM's map of y_c - strength * y_d, averaged over the `classes` references d whose scores
    are nearest to y_c. Ties go to the lower index.

    Deviations: the references count alike; the authors' code weighs them by their softmax probabilities and lets
    the gradient flow through the weights, which makes no difference for one reference. With a `versus`, that class
    is the only reference; a model of one class has none, and it is Grad-CAM. No final ReLU. Returns `(N, h, w)`, in
    logits per cell.
    """
    return weighted(batch, gradcam_of, parameters, lambda scored: scored.sums_of(compared(scored, parameters)))


def compared(scored: Scored, parameters: FinerParameters) -> Tensor:
    """Return the weights `(rounds, N, K)` of the classes' scores in what is explained."""
    weights = scored.weights.clone()
    for n in scored.pictures:
        for k, round_ in enumerate(weights[:, n]):
            if (round_ < 0).any():  # an explicit versus
                round_[round_ < 0] = -parameters.strength
            elif (round_ > 0).any():
                nearest = _nearest(scored.scores[n], int(round_.argmax()), parameters.classes)
                weights[k, n, nearest] = -parameters.strength / max(1, len(nearest))
    return weights


def _nearest(scores: Tensor, index: int, count: int) -> list[int]:
    order = torch.argsort((scores - scores[index]).abs(), stable=True).tolist()
    return [other for other in order if other != index][:count]


register(
    Method(
        name="finercam",
        family="cam",
        summary="What tells the class from the classes most like it: details instead of the whole object.",
        weakness="What the class shares with its likes is left out on purpose, even the object itself.",
        sanity=LAYER_SANITY,
        paper="https://arxiv.org/abs/2501.11309",
        cost="one forward pass, one short backward pass per target",
        cost_class="low",
        max_layers=MAX_LAYERS,
        parameters=FinerParameters,
        run=finercam,
    )
)
