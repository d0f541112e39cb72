"""FullGrad: the score split into the input's part and the part of every bias."""

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from explainers.batch import Batch, Maps, at_least_float32
from explainers.cam import upsampled
from explainers.gradients import cut_off
from explainers.hooks import trail
from explainers.registry import Method, register


class Parameters(BaseModel, extra="forbid", frozen=True):
    """FullGrad has no parameters of its own."""


def fullgrad(batch: Batch, _parameters: Parameters) -> Maps:
    """Add up the input's share and the biases' shares of the score, each brought to the input's size.

    Srinivas & Fleuret, "Full-Gradient Representation for Neural Network Visualization", NeurIPS 2019,
    arXiv:1905.00780, equations 2 and 5: a network of ReLUs is y(x) = x * dy/dx + sum over biases of b * dy/db, and

        map = psi(x * dy/dx) + sum over layers, channels of psi(b * dy/db)
        psi(a) = upsampled((|a| - min |a|) / (max |a| - min |a|)), minimum and maximum over the layer's channels

    with a bias at each place of a channel, as in the authors' code. Biases are those of two-dimensional
    convolutions and, with the running statistics folded in, of batch normalisations: beta - gamma * mean / std.

    Deviations: upsampling is between the cells' centres; a share that is the same everywhere is 0. Not negative,
    so evidence against the class is not told from evidence for it. Returns `(N, H, W)`, without unit.
    """
    leaf = batch.inputs.detach().clone().requires_grad_()
    with trail(batch.subject, (nn.Conv2d, nn.BatchNorm2d)) as steps:
        scored = batch.score(leaf)
        biased = [(bias, output) for module, output in steps if (bias := _bias(module)) is not None]
        sources = [leaf, *(output for _, output in biased)]
        rounds = []
        for k, score in enumerate(scored.sums):
            first, *others = _gradients(score, sources, keep_graph=k < scored.rounds - 1)
            shares = [leaf.detach() * first]
            shares += [bias.detach().reshape(1, -1, 1, 1) * g for (bias, _), g in zip(biased, others, strict=True)]
            rounds.append(_added_up([at_least_float32(share) for share in shares]))
        return Maps(scored, rounds)


def _gradients(score: Tensor, sources: list[Tensor], *, keep_graph: bool) -> list[Tensor]:
    found = (
        torch.autograd.grad(score, sources, retain_graph=keep_graph, allow_unused=True)
        if score.requires_grad
        else [None]
    )
    if found[0] is None:
        raise cut_off()
    return [torch.zeros_like(source) if g is None else g for g, source in zip(found, sources, strict=True)]


def _bias(module: nn.Module) -> Tensor | None:
    """Return what a module adds to each channel whatever its input, `(C,)`, None if nothing."""
    if not isinstance(module, nn.BatchNorm2d):
        return getattr(module, "bias", None)
    if module.running_mean is None or module.running_var is None:
        return module.bias
    shift = -module.running_mean / torch.sqrt(module.running_var + module.eps)
    return shift if module.weight is None else module.bias + module.weight * shift


def _added_up(shares: list[Tensor]) -> Tensor:
    size = (shares[0].shape[2], shares[0].shape[3])
    return torch.stack([upsampled(_scaled(share.abs()).sum(dim=1), size) for share in shares]).sum(dim=0)


def _scaled(share: Tensor) -> Tensor:
    low, high = share.amin(dim=(1, 2, 3), keepdim=True), share.amax(dim=(1, 2, 3), keepdim=True)
    return (share - low) / torch.where(high > low, high - low, 1)


register(
    Method(
        name="fullgrad",
        family="cam",
        summary="All layers at once: the score as the sum of what the input and every bias contribute.",
        weakness="Not signed. Made for convolutions and ReLUs: of a transformer it sees little but the input.",
        sanity="Passes the randomisation check.",
        paper="https://arxiv.org/abs/1905.00780",
        cost="one forward pass, one full backward pass per target; holds the outputs of all convolutions",
        cost_class="low",
        parameters=Parameters,
        run=fullgrad,
    )
)
