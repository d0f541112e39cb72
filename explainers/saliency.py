"""The gradient of the score with respect to the input: alone, and times the input."""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from explainers.batch import Batch, Maps, at_least_float32
from explainers.gradients import Scored, input_gradient
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
    scored, gradients = input_gradients(batch)
    return Maps(scored, [reduced(gradient, parameters) for gradient in gradients])


class NoParameters(BaseModel, extra="forbid", frozen=True):
    """Input x gradient has no parameters of its own."""


def input_x_gradient(batch: Batch, _parameters: NoParameters) -> Maps:
    """Multiply the input by its gradient, value by value, and add the channels up.

    Shrikumar et al., "Not Just a Black Box: Learning Important Features Through Propagating Activation Differences",
    2016, arXiv:1605.01713: with x the input `(C, H, W)` and y the score, map[i, j] = sum over c of
    x[c, i, j] * dy / dx[c, i, j].

    x is the input as the model receives it: what the normalisation maps to zero, about the data set's mean colour,
    gets no attribution whatever it means. Returns `(N, H, W)`, in logits; where the model is linear without bias, the
    map's sum is the score.
    """
    scored, gradients = input_gradients(batch)
    inputs = at_least_float32(batch.inputs)
    return Maps(scored, [(inputs * gradient).sum(dim=1) for gradient in gradients])


def input_gradients(
    batch: Batch, before_backward: Callable[[Scored], None] = lambda _: None
) -> tuple[Scored, list[Tensor]]:
    """Run the model once; return, per round, the gradient at the input `(N, C, H, W)`. Raises `NotConnected`."""
    leaf = batch.inputs.detach().clone().requires_grad_()

    def source(score: Tensor, *, keep_graph: bool) -> Tensor:
        return at_least_float32(input_gradient(score, leaf, keep_graph=keep_graph))

    with torch.inference_mode(mode=False), torch.enable_grad():
        scored = batch.score(leaf)
        before_backward(scored)
        return scored, list(scored.gradients(source))


def reduced(gradient: Tensor, parameters: Parameters) -> Tensor:
    """Return one number `(N, H, W)` for the channels of a gradient `(N, C, H, W)`."""
    return _REDUCTIONS[parameters.reduction](gradient)


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
        sanity="Passes the randomisation check.",
        cost="one forward pass, one full backward pass per target",
        cost_class="low",
        display_percentile=99.0,
        parameters=Parameters,
        run=saliency,
    )
)
register(
    Method(
        name="input_x_gradient",
        family="gradient",
        summary="What each pixel's value contributes to the score, if the model is nearly linear around the picture.",
        weakness="Dark and bright pixels count more than those of the mean colour, whatever they mean; noisy.",
        paper="https://arxiv.org/abs/1605.01713",
        sanity="Passes the randomisation check by numbers; to the eye the picture's own structure stays.",
        cost="one forward pass, one full backward pass per target",
        cost_class="low",
        display_percentile=99.0,
        parameters=NoParameters,
        run=input_x_gradient,
    )
)
