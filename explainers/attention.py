"""A transformer's attention weights as one forward pass uses them, with their graph.

Fused attention never has its weights in memory, so it is done in the open here. That is a matter of functions, not of
modules, and so no hook can do it: a mode of torch's, active in this thread inside a `with`, sees the calls.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from pydantic import BaseModel
from torch import Tensor
from torch.overrides import TorchFunctionMode

from explainers.batch import Batch, at_least_float32
from explainers.errors import MethodNotApplicable, NotConnected
from explainers.gradients import Scored

_INSTEAD = "Use a CAM method such as gradcam, which explains any layer with a spatial grid."
_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)
_SOFTMAX = {F.softmax, torch.softmax, torch.special.softmax, Tensor.softmax}


class Parameters(BaseModel, extra="forbid", frozen=True):
    """The attention methods have no parameters."""


class Attention(TorchFunctionMode):
    """Inside the `with`, writes down the weights of each attention from all tokens to all tokens.

    It sees torch's fused attention, torch's multi-head attention, and every softmax over the last axis of a square:
    `(N, heads, T, T)`, or `(N, T, T)` for one head, N the number of `pictures`. The weights written down are those
    that the output is computed from, so gradients with respect to them are those of the score. Where a graph is
    wanted and none leads to them (frozen model), it begins there. `others` holds the shapes of weights of other kinds.
    """

    def __init__(self, pictures: int) -> None:
        super().__init__()
        self._pictures = pictures
        self.weights: list[Tensor] = []
        self.others: list[tuple[int, ...]] = []

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._fused(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        return self._softmax(func, args, kwargs) if func in _SOFTMAX else func(*args, **kwargs)

    def _softmax(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        result = func(*args, **kwargs)
        dim = kwargs["dim"] if "dim" in kwargs else args[1] if len(args) > 1 else None
        if dim not in (-1, result.dim() - 1):
            return result
        if self._is_whole(result.shape):
            return self._kept(result)
        if result.dim() > 3 or (result.dim() == 3 and result.shape[-1] == result.shape[-2]):
            self.others.append(tuple(result.shape))
        return result

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Return what torch's documentation says that `scaled_dot_product_attention` returns."""
        shape = (*query.shape[:-1], key.shape[-2])
        if not self._is_whole(shape):
            self.others.append(shape)
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, dim=-3), value.repeat_interleave(groups, dim=-3)
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
        if is_causal:
            attn_mask = torch.ones(shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
        weights = self._kept(scores.softmax(dim=-1))
        return (F.dropout(weights, dropout_p) if dropout_p > 0 else weights) @ value

    def _multi_head(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Let torch compute the weights, masks and all, and go on from there to the output."""
        call = _MULTI_HEAD.bind(*args, **kwargs)
        call.apply_defaults()
        options = dict(call.arguments)
        call.arguments.update(need_weights=True, average_attn_weights=False)
        weights = cast("Tensor", F.multi_head_attention_forward(*call.args, **call.kwargs)[1])
        if not self._is_whole(weights.shape) or weights.dim() == 3 or options["static_v"] is not None:
            self.others.append(tuple(weights.shape))
            return F.multi_head_attention_forward(*args, **kwargs)
        weights = self._kept(weights)
        output = _output_of(weights, options)
        if not options["need_weights"]:
            return output, None
        return output, weights.mean(dim=1) if options["average_attn_weights"] else weights

    def _is_whole(self, shape: Sequence[int]) -> bool:
        return len(shape) in (3, 4) and shape[0] == self._pictures and shape[-1] == shape[-2]

    def _kept(self, weights: Tensor) -> Tensor:
        """Write the weights down, and return a copy: the model may go on to change it in place."""
        if torch.is_grad_enabled() and not weights.requires_grad:
            weights = weights.detach().requires_grad_()
        self.weights.append(weights if weights.dim() == 4 else weights[:, None])
        return self.weights[-1].clone().reshape(weights.shape)

    def of_all_tokens(self, batch: Batch) -> list[Tensor]:
        """Return each attention's weights `(N, heads, T, T)`, the first first.

        Raises `MethodNotApplicable` unless each attention of the model looks from all tokens at all tokens, which
        are the same tokens from beginning to end, and whose places in the picture are known.
        """
        if not self.weights and not self.others:
            msg = "The model has no attention that can be seen (softmax of queries times keys)."
            raise MethodNotApplicable(f"{msg} {_INSTEAD}")
        counts = {weights.shape[-1] for weights in self.weights}
        if self.others or len(counts) > 1:
            shapes = sorted({*self.others, *(tuple(weights.shape) for weights in self.weights)})
            msg = (
                "The model's attention does not always look from all tokens at all tokens (windows, pooling, stages of "
                "several sizes, or heads folded into the batch): its weights have shapes "
                f"{', '.join(map(str, shapes))}."
            )
            raise MethodNotApplicable(f"{msg} {_INSTEAD}")
        (count,) = counts
        if count not in batch.token_grids:
            msg = f"How the model's {count} tokens lie in the picture is not known."
            raise MethodNotApplicable(f"{msg} {_INSTEAD}")
        return self.weights


def _output_of(weights: Tensor, options: dict[str, Any]) -> Tensor:
    """Return multi-head attention's output `(T, N, C)` from its weights and the arguments of its call."""
    value, bias = options["value"], options["in_proj_bias"]
    separate = options["use_separate_proj_weight"]
    projection = options["v_proj_weight"] if separate else options["in_proj_weight"].chunk(3)[2]
    projected = F.linear(value, projection, None if bias is None else bias.chunk(3)[2])
    heads = projected.reshape(*value.shape[:2], weights.shape[1], -1).permute(1, 2, 0, 3)
    joined = (weights @ heads).permute(2, 0, 1, 3).flatten(2)
    return F.linear(joined, options["out_proj_weight"], options["out_proj_bias"])


def attended(batch: Batch) -> tuple[Scored, list[Tensor]]:
    """Run the model once; return the scores and each attention's weights `(N, heads, T, T)`, with their graphs.

    The caller has gradients enabled. Raises `MethodNotApplicable`.
    """
    attention = Attention(len(batch.inputs))
    with attention:
        scored = batch.score(batch.inputs)
    return scored, attention.of_all_tokens(batch)


def gradients(score: Tensor, weights: Sequence[Tensor], *, keep_graph: bool) -> list[Tensor]:
    """Return the gradient of a scalar with respect to each of the weights; raises `NotConnected`."""
    if score.requires_grad and all(each.requires_grad for each in weights):
        found = torch.autograd.grad(score, list(weights), retain_graph=keep_graph, allow_unused=True)
        if all(gradient is not None for gradient in found):
            return [at_least_float32(gradient) for gradient in found]
    msg = "The score does not depend on the attention: the model cuts the gradient (no_grad, detach) on the way."
    raise NotConnected(msg)


def rows_read(gradient: Tensor) -> Tensor:
    """Return which tokens the head reads after the last attention, as shares `(N, T)` that add up to 1.

    `gradient` `(N, heads, T, T)` is that of the score with respect to the last attention's weights, whose rows are the
    tokens that look: it is zero for those that nothing looks at afterwards. So nothing need be known about the
    head: class token, distillation token, mean of the patches.
    """
    rows = (gradient != 0).any(dim=3).any(dim=1).to(gradient)
    return rows / rows.sum(dim=1, keepdim=True).clamp(min=1)


def token_map(batch: Batch, relevance: Tensor) -> Tensor:
    """Return the relevance of all tokens `(N, T)` as a map of those that are patches, `(N, h, w)`."""
    return batch.token_grids[relevance.shape[1]](relevance[..., None])[:, 0]
