"""Which values of a traced network are finite wherever its picture is, as far as its operations tell.

oneDNN's fused ReLU makes 0 of NaN, where torch's own hands it on: a network that divides by zero for some pictures
would get an answer from the copy that it does not give. So there it is fused only where no NaN can come from.
"""

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, fx, nn

_LIBRARIES = ("torch.nn.", "timm.", "torchvision.")
_BUILT_IN = ("torch", "torchvision", "timm", "_operator", "builtins")
_KEEPING = {
    "add", "iadd", "sub", "isub", "mul", "imul", "neg", "cat", "concat", "stack", "chunk", "split", "getitem",
    "getattr", "size", "flatten", "reshape", "view", "permute", "transpose", "contiguous", "unsqueeze",
    "squeeze", "expand", "expand_as", "mean", "sum", "amax", "relu", "relu6", "hardtanh", "hardswish",
    "hardsigmoid", "silu", "gelu", "sigmoid", "tanh", "clamp", "softmax", "adaptive_avg_pool2d",
    "adaptive_max_pool2d", "avg_pool2d", "max_pool2d", "pad", "dropout", "dropout2d", "interpolate", "linear",
    "conv2d", "stochastic_depth", "drop_path",
}  # fmt: skip
"""Functions and methods that make finite values of finite ones, unless they are beyond what the dtype holds."""


def always_finite(graph_module: fx.GraphModule, plain: Container[fx.Node]) -> set[fx.Node]:
    """Return the nodes whose values are finite for every picture, but for overflow; `plain` are those without tensors.

    What is not known may be anything: operations that divide, take logarithms or choose, modules of the operator's
    own that could not be traced, and those with hooks.
    """
    finite: set[fx.Node] = set()
    for node in graph_module.graph.nodes:
        if all(before in finite for before in node.all_input_nodes) and (
            node in plain or node.op == "placeholder" or _keeps(graph_module, node)
        ):
            finite.add(node)
    return finite


def _keeps(graph_module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether the node makes finite values of finite ones."""
    if node.op == "get_attr":
        value: Any = graph_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return isinstance(value, Tensor) and bool(torch.isfinite(value).all())
    if node.op == "call_module":
        return _is_library(graph_module.get_submodule(str(node.target)))
    if node.op == "call_method":
        return str(node.target).rstrip("_") in _KEEPING
    name = getattr(node.target, "__name__", "")
    if name in ("truediv", "div"):
        divisor = node.args[1] if len(node.args) > 1 else None
        return isinstance(divisor, int | float) and divisor != 0
    module = getattr(node.target, "__module__", None) or "builtins"
    return node.op == "call_function" and name.rstrip("_") in _KEEPING and module.partition(".")[0] in _BUILT_IN


def _is_library(part: nn.Module) -> bool:
    """Whether it is a module of the libraries that does what its class says, and so are all inside."""
    return all(type(inner).__module__.startswith(_LIBRARIES) and not is_changed(inner) for inner in part.modules())


def is_changed(part: nn.Module) -> bool:
    """Whether somebody gave this one module hooks or a `forward` of its own."""
    return has_hooks(part) or "forward" in vars(part)


def has_hooks(part: nn.Module) -> bool:
    """Whether a module has hooks of its own, of any kind."""
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")  # nothing public tells
    return any(getattr(part, kind) for kind in kinds)
