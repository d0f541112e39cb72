"""A fast way to a layer: what lies before it is a copy that is quicker, what lies behind it is the network itself.

Most explanations need the gradient from the score back to one layer, so nothing before it has to be differentiable
or hooked. That part, the trunk, is traced (torch.fx) and its convolutions are folded and packed (`models.folding`).
The layer's place is taken by a module of its name that hands on what the trunk found, so that hooks can be registered
there; behind it the network's own modules are called. The network stays as it was.
"""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.fx.proxy import TraceError
from torch.nn.modules.batchnorm import _BatchNorm

from models import folding
from models.errors import ModelError
from models.finite import has_hooks
from models.loading import LoadedModel
from models.order import mixes

_tracing = threading.Lock()
_TRACED = ("_tensor_constant", "_param_constant")  # what fx leaves in the module it traces
_UNTRACEABLE = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What foreign code may raise when it is run with stand-ins for tensors."""


class NotSplit(Exception):
    """Why a network is better run as it is: the rest of a sentence about it, for the log."""


@dataclass(frozen=True, eq=False)
class Split:
    """The same scores as the model's, by the fast way.

    `module` has one named submodule, the layer, whose output it is: hooks registered there see what they would see
    in the model. It is what `scores` runs. `size_bytes` is what all this takes in memory beside the model.
    """

    module: nn.Module
    size_bytes: int
    _fast: LoadedModel

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores (N, K) float32 of inputs (N, C, h, w) float32; differentiable from the layer on.

        The inputs are of the size that the preprocessing makes. Raises `InvalidOutput`.
        """
        return self._fast.scores(x)


def split(model: LoadedModel, layer: str) -> Split:
    """Return the fast way to `layer`, checked against the model itself; raises `NotSplit`.

    Folding is exact but for rounding. Only the owner of the model may call it: it runs the network.
    """
    trunk, tail = _traced(model.module, model.module.get_submodule(layer))
    _check_functions(model, trunk, tail)
    with torch.no_grad(), _as_reason():
        gain = folding.fold(trunk)
        if _is_packable(model):
            gain += folding.pack(trunk, _inputs(model)[:1])
    if not gain:
        raise NotSplit("no convolution before the layer's output has anything to fold")
    module = _Joined(trunk, tail, layer).eval()
    fast = replace(model, module=module)
    _check(model, fast)
    return Split(module, folding.size_bytes(trunk), fast)


class _Joined(nn.Module):
    """The trunk without gradients, the layer's place, and the rest."""

    def __init__(self, trunk: nn.Module, tail: nn.Module, layer: str) -> None:
        super().__init__()
        self._run = (trunk, tail)  # in a tuple: they are no submodules, whose names could be the layer's
        self._place = (nn.Identity(),)
        parent: nn.Module = self
        *outer, name = layer.split(".")
        for part in outer:
            parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        parent.add_module(name, self._place[0])

    def forward(self, x: Tensor) -> Any:
        (trunk, tail), (place,) = self._run, self._place
        with torch.no_grad():  # not in inference mode: autograd could not keep what comes out of it
            output, *values = trunk(x)
        return tail(place(output), *values)


def _layer_output(output: Tensor) -> Tensor:
    """Mark in the graph where the layer has finished."""
    return output


class _Whole(nn.Module):
    """The trunk, not yet changed, and the rest, both with gradients."""

    def __init__(self, trunk: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.trunk, self.tail = trunk, tail

    def forward(self, x: Tensor) -> Any:
        return self.tail(*self.trunk(x))


class _Tracer(fx.Tracer):
    """Leaves whole: torch's modules, convolutions and norms of any kind, what has hooks, and what cannot be traced."""

    def __init__(self, root: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self._layer = layer
        self._around = {part for part in root.modules() if part is not layer and layer in set(part.modules())}
        self._thread = threading.get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if m in self._around:
            return False
        return isinstance(m, nn.Conv2d | _BatchNorm) or has_hooks(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if threading.get_ident() != self._thread:  # fx patches nn.Module for all threads: another model is running
            return forward(*args, **kwargs)
        result = self._call(m, forward, args, kwargs)
        if m is not self._layer:
            return result
        if not isinstance(result, fx.Proxy):
            raise TraceError("the layer returns something else than one tensor")
        return self.create_proxy("call_function", _layer_output, (result,), {})

    def _call(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        count, stack = len(self.graph.nodes), self.module_stack.copy()
        try:
            return super().call_module(m, forward, args, kwargs)
        except _UNTRACEABLE:
            if m in self._around:
                raise
            self.module_stack = stack
            for node in reversed(list(self.graph.nodes)[count:]):
                self.graph.erase_node(node)
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        # A graph has no modes: what a network switches off for a part of itself would be on.
        if not torch.is_grad_enabled() or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            raise TraceError("gradients or autocast are switched here")
        return super().create_node(*args, **kwargs)


def _traced(root: nn.Module, layer: nn.Module) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return trunk and tail; raises `NotSplit`."""
    if any(has_hooks(part) for part in root.modules() if part is not layer and layer in set(part.modules())):
        raise NotSplit("a part around the layer has hooks of its own, and the copy has no such part")
    if layer._backward_hooks or layer._backward_pre_hooks:  # noqa: SLF001 - nothing public tells
        raise NotSplit("the layer has backward hooks of its own, and no gradient would pass it")
    with _tracing, _unchanged(root), torch.inference_mode(mode=False), torch.enable_grad():
        try:
            return _cut(root, list(_Tracer(root, layer).trace(root, concrete_args=_defaults(root)).nodes))
        except _UNTRACEABLE as error:
            raise NotSplit("its forward cannot be traced") from error


def _cut(root: nn.Module, nodes: Sequence[fx.Node]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut the graph at the mark: what runs before gives the layer's output and all values that are needed later."""
    places = [place for place, node in enumerate(nodes) if node.target is _layer_output]
    if len(places) != 1:
        raise NotSplit(f"the layer is called {len(places)} times, not once, as far as can be traced")
    (place,) = places
    before, mark, behind, answer = nodes[:place], nodes[place], nodes[place + 1 : -1], nodes[-1].args[0]
    later = {*behind, nodes[-1]}
    values = [node for node in before if later & node.users.keys()]
    trunk, tail = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in before:
        copies[node] = trunk.node_copy(node, copies.__getitem__)
    trunk.output(tuple(copies[node] for node in [mark.all_input_nodes[0], *values]))
    copies = {node: tail.placeholder(node.name) for node in [mark, *values]}
    for node in behind:
        copies[node] = tail.node_copy(node, copies.__getitem__)
    tail.output(fx.node.map_arg(answer, copies.__getitem__))
    return fx.GraphModule(root, trunk), fx.GraphModule(root, tail)


@contextmanager
def _unchanged(root: nn.Module) -> Iterator[None]:
    """Undo what tracing leaves in the modules; raises `NotSplit` for a network that keeps what it has seen."""
    kept = [(held, dict(held)) for part in root.modules() for held in _holders(part)]
    try:
        yield
    finally:
        changed = False
        for held, items in kept:
            now = {name: value for name, value in held.items() if not name.startswith(_TRACED)}
            changed |= now.keys() != items.keys() or any(now[name] is not value for name, value in items.items())
            held.clear()
            held.update(items)
    if changed:
        raise NotSplit("its forward keeps what it has seen in the module")


def _holders(part: nn.Module) -> list[dict[str, Any]]:
    return [vars(part), part._parameters, part._buffers, part._modules]  # noqa: SLF001


def _defaults(root: nn.Module) -> dict[str, Any]:
    """Return the further arguments of a network as they are if nobody gives them."""
    parameters = list(inspect.signature(root.forward).parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


def _is_packable(model: LoadedModel) -> bool:
    """Whether oneDNN's convolutions take the trunk's tensors: float32 on the CPU, channels_last as they return them."""
    suits = model.device.type == "cpu" and model.dtype == torch.float32
    return suits and model.memory_format == torch.channels_last and folding.can_pack()


def _inputs(model: LoadedModel) -> Tensor:
    """Return two made-up pictures as the network takes them."""
    pictures = mixes(model.preprocess.channels, model.preprocess.input_size)[:2]
    return pictures.to(model.device, model.dtype).contiguous(memory_format=model.memory_format)


def _check_functions(model: LoadedModel, trunk: nn.Module, tail: nn.Module) -> None:
    """Raise `NotSplit` unless the traced copy's backward pass has the model's own `torch.autograd.Function`s.

    One that hands on its very input is invisible to fx, whatever it does to the gradient, and a comparison of
    gradients need not find it (clipping). Steps of torch itself are not compared: fx makes `a = a + b` of `a += b`.
    """
    copy = replace(model, module=_Whole(trunk, tail))
    with torch.inference_mode(mode=False), torch.enable_grad(), _as_reason():
        own, copied = (_functions(each.answer(_inputs(model)[:1].requires_grad_().clone())) for each in (model, copy))
    if own != copied:
        raise NotSplit("its forward has autograd functions that cannot be traced")


def _functions(answer: Tensor) -> Counter[str]:
    """Count the steps of the backward pass from a tensor that are written in Python, by their names."""
    seen: set[Node] = set()
    todo = [answer.grad_fn]
    while todo:
        step = todo.pop()
        if step is not None and step not in seen:
            seen.add(step)
            todo += [before for before, _ in step.next_functions]
    return Counter(step.name() for step in seen if isinstance(step, BackwardCFunction))


def _check(model: LoadedModel, fast: LoadedModel) -> None:
    """Raise `NotSplit` unless the scores of two pictures and of one are the model's.

    They may differ by half of the digits that the numbers have: rounding takes one or two (measured: 1e-6 of the
    largest score in float32, where 3e-4 is allowed), a wrong graph takes all.
    """
    inputs = _inputs(model).float()
    for pictures in (inputs[:1], inputs):
        with torch.no_grad():
            try:
                expected = model.scores(pictures)
            except (ModelError, *_UNTRACEABLE):
                continue  # it takes one picture at a time
            with _as_reason():
                scores = fast.scores(pictures)
        eps = max(torch.finfo(dtype).eps for dtype in (model.dtype, expected.dtype))
        allowed = eps**0.5 * expected.abs().max()
        if scores.shape != expected.shape or not bool(((scores - expected).abs() <= allowed).all()):
            raise NotSplit("the traced copy answers something else")


@contextmanager
def _as_reason() -> Iterator[None]:
    """Turn what foreign code raises inside the `with` into `NotSplit`."""
    try:
        yield
    except (ModelError, *_UNTRACEABLE) as error:
        raise NotSplit("the traced copy does not run") from error
