"""Input-gradient saliency."""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from explainers.batch import Batch, Maps, at_least_float32
from explainers.errors import NotConnected
from explainers.gradients import gradient_of
from explainers.registry import Method, register


class Parameters(BaseModel, extra="forbid", frozen=True):
    """How the gradient's colour channels become one map."""

    reduction: Literal["max_abs", "signed_sum"] = Field(
        "max_abs",
        description="max_abs: the largest absolute gradient over the channels; signed_sum: their sum, with sign",
    )


def saliency(batch: Batch, parameters: Parameters) -> Maps:
    """Return the gradient of the score with respect to the input, one number per input pixel.

    Simonyan, Vedaldi, Zisserman, "Deep Inside Convolutional Networks", 2013, arXiv:1312.6034, section 3: with x
    the input `(C, H, W)` and y the score, g = dy / dx,

        max_abs: map[i, j] = max over c of |g[c, i, j]|        signed_sum: map[i, j] = sum over c of g[c, i, j]

    The gradient is taken at the normalised input, as the model receives it: per pixel value in [0, 1] it is to be
    divided by the channel's std. Returns `(N, H, W)`, in logits per unit of input.
    """
    leaf = batch.inputs.detach().clone().requires_grad_()

    def source(score: Tensor, *, keep_graph: bool) -> Tensor:
        gradient = gradient_of(score, leaf, keep_graph=keep_graph)
        if gradient is None:
            msg = "The score does not depend on the picture: the model cuts the gradient (no_grad, detach) on the way."
            raise NotConnected(msg)
        return gradient

    with torch.inference_mode(mode=False), torch.enable_grad():
        scored = batch.score(leaf)
        reduce = _REDUCTIONS[parameters.reduction]
        return Maps(scored, [reduce(at_least_float32(g)) for g in scored.gradients(source)])


_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_abs": lambda gradient: gradient.abs().amax(dim=1),
    "signed_sum": lambda gradient: gradient.sum(dim=1),
}

register(
    Method(
        name="saliency",
        family="gradient",
        summary="Which pixels would change the score most if they changed a little. Fine and noisy.",
        weakness="Shows sensitivity, not evidence: edges and texture light up whether they speak for the class or not.",
        paper="https://arxiv.org/abs/1312.6034",
        cost="one forward pass, one full backward pass per target",
        layers=0,
        display_percentile=99.0,
        parameters=Parameters,
        run=saliency,
    )
)
