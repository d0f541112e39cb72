"""FullGrad: the score split into the input's part and the part of every bias."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import BaseModel
from torch import Tensor
from torch.overrides import TorchFunctionMode

from explainers.batch import Batch, Maps, at_least_float32
from explainers.cam import upsampled
from explainers.gradients import cut_off
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
    In the end the map's least value is taken off, as the authors draw it.

    Deviations: upsampling is between the cells' centres; a share that is the same everywhere is 0. Not negative,
    so evidence against the class is not told from evidence for it. Returns `(N, H, W)`, without unit.
    """
    leaf = batch.inputs.detach().clone().requires_grad_()
    with torch.inference_mode(mode=False), torch.enable_grad():
        with _Biased() as biased:
            scored = batch.score(leaf)
        sources = [leaf, *(output for _, output in biased.calls)]
        rounds = []
        for k, score in enumerate(scored.sums):
            first, *others = _gradients(score, sources, keep_graph=k < scored.rounds - 1)
            shares = [leaf.detach() * first]
            shares += [bias.reshape(1, -1, 1, 1) * g for (bias, _), g in zip(biased.calls, others, strict=True)]
            rounds.append(_added_up([at_least_float32(share) for share in shares]))
        return Maps(scored, rounds)


class _Biased(TorchFunctionMode):
    """Inside the `with`, writes down each call that adds a bias: the bias `(C,)` and the output with its graph.

    It sees functions, not modules: timm's `BatchNormAct2d` is a BatchNorm2d whose output lies behind the activation,
    and convolutions of standardised weights are no `Conv2d` at all. The model gets copies of the outputs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        bias_of = _BIASES.get(func)
        bias = bias_of(*args, **(kwargs or {})) if bias_of and output.dim() == 4 else None
        if bias is None:
            return output
        kept = output if output.requires_grad else output.detach().requires_grad_()
        self.calls.append((bias.detach(), kept))
        return kept.clone()


def _convolution_bias(_input: Tensor, _weight: Tensor, bias: Tensor | None = None, *_: Any, **__: Any) -> Tensor | None:
    return bias


def _norm_bias(
    input: Tensor,  # noqa: A002 - the arguments of torch's batch_norm, by their names
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Return beta - gamma * mean / std, `(C,)`."""
    if training or running_mean is None or running_var is None:
        return bias
    shift = -running_mean / torch.sqrt(running_var + eps)
    if weight is not None:
        shift = shift * weight
    return shift if bias is None else bias + shift


_BIASES: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    F.conv2d: _convolution_bias,
    F.batch_norm: _norm_bias,
}


def _gradients(score: Tensor, sources: list[Tensor], *, keep_graph: bool) -> list[Tensor]:
    found = (
        torch.autograd.grad(score, sources, retain_graph=keep_graph, allow_unused=True)
        if score.requires_grad
        else [None]
    )
    if found[0] is None:
        raise cut_off()
    return [torch.zeros_like(source) if g is None else g for g, source in zip(found, sources, strict=True)]


def _added_up(shares: list[Tensor]) -> Tensor:
    size = (shares[0].shape[2], shares[0].shape[3])
    total = torch.stack([upsampled(_scaled(share.abs()).sum(dim=1), size) for share in shares]).sum(dim=0)
    return total - total.amin(dim=(1, 2), keepdim=True)


def _scaled(share: Tensor) -> Tensor:
    low, high = share.amin(dim=(1, 2, 3), keepdim=True), share.amax(dim=(1, 2, 3), keepdim=True)
    return (share - low) / torch.where(high > low, high - low, 1)


register(
    Method(
        name="fullgrad",
        family="cam",
        summary="All layers at once: the score as the sum of what the input and every bias contribute.",
        weakness="Not signed. Made for convolutions and ReLUs: of a transformer it sees little but the input.",
        sanity="Fails the randomisation check on the embedded model: with the classifier made up, its maps agree with "
        "the true ones by 0.89, those of different pictures by 0.50.",
        paper="https://arxiv.org/abs/1905.00780",
        cost="one forward pass, one full backward pass per target; holds the outputs of all convolutions",
        cost_class="low",
        parameters=Parameters,
        run=fullgrad,
    )
)
