"""Convolutions as inference likes them: batch norms folded in; on the CPU packed once, activation and sum fused.

Works on a graph of its own (torch.fx). The network's modules are only read: what changes is a copy.
"""

import copy
import math
import operator
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from models.finite import always_finite, is_changed

Fused = tuple[str, list[float], str]
"""An activation as oneDNN's convolution takes it: name, numbers, algorithm."""

_NONE: Fused = ("none", [], "")
_ACTIVATIONS: dict[object, Fused] = {
    nn.ReLU: ("relu", [], ""),
    nn.ReLU6: ("hardtanh", [0.0, 6.0], ""),
    nn.Hardswish: ("hardswish", [], ""),
    nn.SiLU: ("swish", [], ""),
    F.relu: ("relu", [], ""),
    torch.relu: ("relu", [], ""),
    "relu": ("relu", [], ""),
    "relu_": ("relu", [], ""),
}
_SWALLOWING = ("relu", "hardtanh")
"""Those of which oneDNN's make a number of NaN."""
_COPIES = ("folded_", "packed_")
_SUMS = (operator.add, torch.add)  # as which fx records `+=` too; where that matters, the check at the end finds it
_NO_OPERATION = (nn.Identity, nn.Dropout, nn.Dropout2d)


def fold(graph_module: fx.GraphModule) -> int:
    """Fold each batch norm into the convolution before it whose output nothing else uses; return how many.

    What the module holds afterwards under `folded_...` are copies; each call has its own, so a convolution that is
    used with two batch norms becomes two.
    """
    count = 0
    for node in list(graph_module.graph.nodes):
        norm = _module(graph_module, node)
        if not _is_foldable_norm(norm):
            continue
        (before,) = node.all_input_nodes
        conv = _module(graph_module, before)
        if _is_convolution(conv) and len(before.users) == 1:
            _call(graph_module, before, f"folded_{before.name}", _folded(conv, norm))
            _replace_norm(graph_module, node, norm, before)
            count += 1
    _drop_no_operations(graph_module)
    graph_module.recompile()
    return count


def pack(graph_module: fx.GraphModule, x: Tensor) -> int:
    """Let oneDNN hold the convolutions in its own layout, with what follows fused in; return how many were fused.

    `x` is an input: the layout depends on its size (not on the batch). PyTorch's own choice on one thread is a plain
    matrix product for 1x1 convolutions, and a pass over memory for each activation and sum.
    """
    shapes = _Shapes(graph_module)
    shapes.run(x)
    finite = always_finite(graph_module, shapes.plain)
    count = 0
    for node in list(graph_module.graph.nodes):
        conv = _module(graph_module, node)
        if not _is_convolution(conv):
            continue
        shape = shapes.of[node.args[0]]
        if (placed := _without_same_padding(conv, shape)) is None:
            continue
        behind = _sum_behind(node, shapes)
        last = behind[-1] if behind else node
        fused = _activation_behind(graph_module, last, after_sum=bool(behind))
        if fused[0] in _SWALLOWING and last not in finite:
            fused = _NONE
        if fused != _NONE:
            behind += last.users
        _call(graph_module, node, f"packed_{node.name}", PackedConv(conv, *placed, shape, fused))
        _take_over(node, behind)
        count += bool(behind)
    graph_module.recompile()
    return count


def can_pack() -> bool:
    """Whether this build of torch has what `pack` needs; they are inductor's operations, and may change."""
    names = ("_convolution_pointwise", "_reorder_convolution_weight")
    is_built_in = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_built_in and all(hasattr(torch.ops.mkldnn, name) for name in names)


def size_bytes(graph_module: fx.GraphModule) -> int:
    """Return what the copies hold."""
    parts = [part for name, part in graph_module.named_children() if name.startswith(_COPIES)]
    tensors = [tensor for part in parts for tensor in (part.weight, part.bias) if isinstance(tensor, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class PackedConv(nn.Module):
    """A convolution of float32 pictures (N, C, h, w) with a fused activation; no gradient.

    With `other` it returns activation(convolution + other).
    """

    def __init__(
        self, conv: nn.Conv2d, weight: Tensor, padding: tuple[int, int], shape: torch.Size, fused: Fused
    ) -> None:
        super().__init__()
        self._geometry = (list(padding), list(conv.stride), list(conv.dilation), conv.groups)
        self._fused = fused
        self.weight = torch.ops.mkldnn._reorder_convolution_weight(weight, *self._geometry, list(shape))  # noqa: SLF001
        self.bias = None if conv.bias is None else conv.bias.detach()

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:  # noqa: D102
        convolution = torch.ops.mkldnn._convolution_pointwise  # noqa: SLF001
        if other is None:
            return convolution(x, self.weight, self.bias, *self._geometry, *self._fused)  # type: ignore[no-any-return]
        name, numbers, algorithm = self._fused
        unary = (None if name == "none" else name, numbers, algorithm)
        return convolution.binary(  # type: ignore[no-any-return]
            x, other, self.weight, self.bias, *self._geometry, "add", 1.0, *unary
        )


class _Shapes(fx.Interpreter):
    """Notes the shape of each tensor of one run, and which nodes are none: sizes, and what is computed of them."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__(graph_module)
        self.of: dict[fx.Node, torch.Size] = {}
        self.plain: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.of[n] = result.shape
        elif isinstance(result, int | float | str | torch.Size | torch.dtype | torch.device | None):
            self.plain.add(n)
        return result


def _module(graph_module: fx.GraphModule, node: object) -> nn.Module | None:
    """Return the module that a node calls with one argument; one that somebody changed is not for us."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    part = graph_module.get_submodule(str(node.target))
    return None if is_changed(part) else part


def _is_convolution(part: nn.Module | None) -> TypeGuard[nn.Conv2d]:
    """Whether it is one that computes with `weight` and `bias` and nothing else; subclasses may not."""
    return type(part) in (nn.Conv2d, Conv2dSame)


def _is_foldable_norm(part: nn.Module | None) -> TypeGuard[nn.BatchNorm2d]:
    """Whether it is a batch norm that scales by numbers of its own, not by those of its input."""
    if not isinstance(part, nn.BatchNorm2d) or type(part) not in (nn.BatchNorm2d, BatchNormAct2d):
        return False
    return not part.training and part.running_mean is not None


def _folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """Return a copy with the norm's numbers in it, in the convolution's dtype and layout, computed in float64."""
    mean, var, gain, shift, bias = (
        None if number is None else number.double()
        for number in (norm.running_mean, norm.running_var, norm.weight, norm.bias, conv.bias)
    )
    fused = fuse_conv_bn_weights(conv.weight.double(), bias, mean, var, norm.eps, gain, shift)  # type: ignore[arg-type]
    folded = copy.deepcopy(conv)
    folded.weight, folded.bias = (nn.Parameter(number.to(conv.weight.dtype), requires_grad=False) for number in fused)
    return folded


def _call(graph_module: fx.GraphModule, node: fx.Node, name: str, part: nn.Module) -> None:
    before = str(node.target)
    graph_module.add_module(name, part)
    node.target = name
    if before.startswith(_COPIES):
        graph_module.delete_submodule(before)


def _replace_norm(graph_module: fx.GraphModule, node: fx.Node, norm: nn.Module, before: fx.Node) -> None:
    """Put what else the norm does (timm: drop and activation) in its place."""
    last = before
    if isinstance(norm, BatchNormAct2d):
        for kind, part in (("drop", norm.drop), ("act", norm.act)):
            name = f"{kind}_{node.name}"
            graph_module.add_module(name, part)
            with graph_module.graph.inserting_before(node):
                last = graph_module.graph.call_module(name, (last,))
    node.replace_all_uses_with(last)
    graph_module.graph.erase_node(node)


def _drop_no_operations(graph_module: fx.GraphModule) -> None:
    """Take out what returns the very tensor it is given, so that neighbours can be seen as such."""
    for node in list(graph_module.graph.nodes):
        if type(_module(graph_module, node)) in _NO_OPERATION:
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)


def _without_same_padding(conv: nn.Conv2d, shape: torch.Size) -> tuple[Tensor, tuple[int, int]] | None:
    """Return weight and padding (rows, columns), or None where oneDNN cannot pad so.

    TensorFlow's "same" pads one more behind than before. That is the same as padding both sides by the larger number
    and a kernel with a row or column of zeros before it, which saves the padded copy of the picture.
    """
    weight = conv.weight.detach()
    if not isinstance(conv, Conv2dSame):
        plain = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
        return (weight, conv.padding) if plain else None  # type: ignore[return-value]
    axes = zip(shape[2:], conv.kernel_size, conv.stride, conv.dilation, strict=True)
    totals = [max((math.ceil(n / step) - 1) * step + (k - 1) * gap + 1 - n, 0) for n, k, step, gap in axes]
    (top, left), (bottom, right) = [t // 2 for t in totals], [t - t // 2 for t in totals]
    if any(more and gap > 1 for more, gap in zip((bottom - top, right - left), conv.dilation, strict=True)):
        return None
    return F.pad(weight, (right - left, 0, bottom - top, 0)), (bottom, right)


def _sum_behind(node: fx.Node, shapes: _Shapes) -> list[fx.Node]:
    """Return the sum of the node's output and another tensor of its shape, if that alone uses it, right behind it."""
    user = node.next
    if list(node.users) != [user] or user.target not in _SUMS or len(user.args) != 2 or user.kwargs:
        return []
    other = _other(user, node)
    if other is node or shapes.of.get(other) != shapes.of[node]:
        return []
    return [user]


def _other(user: fx.Node, node: fx.Node) -> Any:
    """Return the operand of a sum that is not `node`."""
    return user.args[1] if user.args[0] is node else user.args[0]


def _activation_behind(graph_module: fx.GraphModule, node: fx.Node, *, after_sum: bool) -> Fused:
    """Return the activation that alone uses the node's output; after a sum oneDNN takes no other than ReLU."""
    if len(node.users) != 1:
        return _NONE
    (user,) = node.users
    part = _module(graph_module, user)
    # A module's path could read like a method's name.
    kind = type(part) if user.op == "call_module" else user.target
    fused = _ACTIVATIONS.get(kind, _NONE)
    return _NONE if after_sum and fused[0] != "relu" else fused


def _take_over(node: fx.Node, behind: Sequence[fx.Node]) -> None:
    """Let a packed convolution stand for the sum and the activation behind it."""
    if behind and behind[0].target in _SUMS:
        node.args = (node.args[0], _other(behind[0], node))
    for user in reversed(behind):
        user.replace_all_uses_with(node)
        node.graph.erase_node(user)
