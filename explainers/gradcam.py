"""Grad-CAM."""

import torch
from pydantic import BaseModel

from explainers.batch import Batch, Maps
from explainers.hooks import capture
from explainers.registry import Method, register


class Parameters(BaseModel, extra="forbid", frozen=True):
    """Grad-CAM has no parameters of its own."""


def gradcam(batch: Batch, _parameters: Parameters) -> Maps:
    """Weigh each channel of a layer by its mean gradient, and add the channels up.

    Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV
    2017, arXiv:1610.02391, equations 1 and 2: with A the activation `(C, h, w)` and y the score of the target,

        alpha_c = mean over i, j of dy / dA[c, i, j]        map = sum over c of alpha_c * A[c]

    Deviation: the paper ends with a ReLU. The map returned is the signed sum before it, `(N, h, w)` in logits per
    cell; the ReLU belongs to the display map. One forward pass serves all targets, and so does
    one backward pass from the scores to the layer where torch can batch it. A gradient that is zero everywhere gives
    a map of zeros: no positive evidence.
    """
    with capture(batch.subject, batch.layers) as (layer,):
        scored = batch.score(batch.inputs)
        activation = batch.grid(layer.activation)
        rounds = []
        for gradient in layer.gradients(scored.sums):
            alpha = batch.grid(gradient).mean(dim=(2, 3))
            rounds.append(torch.einsum("nc,nchw->nhw", alpha, activation))
        return Maps(scored, rounds)


register(
    Method(
        name="gradcam",
        family="cam",
        summary="Where the layer saw evidence for the class. Coarse, robust, about the cost of one prediction.",
        weakness="Resolution is the layer's grid; several instances of a class may be merged or missed.",
        paper="https://arxiv.org/abs/1610.02391",
        cost="one forward pass, one short backward pass per target",
        layers=1,
        parameters=Parameters,
        run=gradcam,
    )
)
