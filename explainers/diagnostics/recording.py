"""What each module did in one forward and backward pass: looked at from outside, nothing in its way is changed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from explainers.diagnostics.measure import Size, is_finite, size_of
from explainers.graph import Edge, base_of, clock, crossings, edge_of, first_change
from explainers.hooks import observe, on_arrival, on_departure, ordinary_inputs


class _Ruler:
    """Measures gradients. What one layer hands on is as a rule what arrives at the next, and is measured once."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, int, Size] | None = None

    def size_of(self, gradient: Tensor) -> Size:
        version = gradient._version  # noqa: SLF001 - see `explainers.hooks`
        if self._last is not None and self._last[0] is gradient and self._last[1] == version:
            return self._last[2]
        self._last = gradient, version, size_of(gradient, count_zeros=True)
        return self._last[2]

    def forget(self) -> None:
        self._last = None


class Gathered:
    """Gradients at several places, which come in parts: each is added up before it is measured."""

    def __init__(self, ruler: _Ruler) -> None:
        self._ruler = ruler
        self._expected: Counter[int] = Counter()
        self._parts: dict[int, list[Tensor]] = {}
        self._sizes: list[Size] = []

    def expect(self, key: int) -> None:
        """One more part for the place `key` may come."""
        self._expected[key] += 1

    def add(self, key: int, part: Tensor) -> None:
        """A part has come. Where it is the last one, nothing is kept but its size."""
        self._parts.setdefault(key, []).append(part)
        if len(self._parts[key]) == self._expected[key]:
            self._measure(key)

    def total(self) -> Size | None:
        """Return the size of all places together, of the parts that came; None: nothing came."""
        for key in list(self._parts):
            self._measure(key)
        return reduce(add, self._sizes) if self._sizes else None

    def _measure(self, key: int) -> None:
        first, *others = self._parts.pop(key)
        self._sizes.append(self._ruler.size_of(reduce(add, (part.reshape(first.shape) for part in others), first)))


@dataclass(eq=False)
class Call:
    """One call of a module inside which no other module ran."""

    name: str
    module: nn.Module
    number: int
    """Which call of the module, from 1."""
    output: Size | None
    """Of the floating-point tensors that came out, together; None: there is none."""
    fed_finite: bool
    """Whether all that went in was finite. Only asked for up to the first output that is not."""
    could_have_gradient: bool
    """Whether it has parameters, or something that went in has a gradient."""
    at_output: Gathered
    at_input: Gathered
    smallest: float = 0.0
    """The smallest number above zero that the gradient's dtype knows."""
    hidden: bool = False
    """Whether a later in-place change of the output, or of what it shows, hides its gradients."""

    @property
    def has_weights(self) -> bool:
        """Whether one of its parameters has two axes or more: biases and scales do not make a layer of weights."""
        return any(parameter.dim() > 1 for parameter in self.module.parameters())

    @property
    def gradient_output(self) -> Size | None:
        """Of the gradient at the output, all its tensors together; None: none arrived."""
        return None if self.hidden else self.at_output.total()

    @property
    def gradient_input(self) -> Size | None:
        """Of the gradient that this call passed back to its inputs, all together; None: none, or not to be told."""
        return None if self.hidden else self.at_input.total()

    def hear(self, gradient: Tensor, output: int | None, input: int | None) -> None:  # noqa: A002 - a pair with output
        """A part of the gradient at an output, at an input, or at both, which are then one tensor, has come."""
        if output is not None:
            self.smallest = torch.finfo(gradient.dtype).smallest_normal * torch.finfo(gradient.dtype).eps
            self.at_output.add(output, gradient)
        if input is not None:
            self.at_input.add(input, gradient)


@dataclass(frozen=True)
class _Frame:
    """A call that has begun."""

    module: nn.Module
    inputs: Mapping[Edge, int]
    since: int
    fed_finite: bool
    inner: list[str]
    """The modules that ran inside."""


@dataclass(frozen=True)
class _View:
    """An output that shows what was there before the call."""

    call: Call
    tensor: Tensor
    version: int
    base: Edge | None
    """Where the gradient of what it shows arrived before any later change; None: it does not show all of it."""
    output: int
    input: int | None
    """Which input of the call shows the same."""


class Recorder:
    """The calls of a forward pass, in the order of execution, and then what the backward pass brings to each.

    It is entered around both passes; afterwards nothing listens any more.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._frames: list[_Frame] = []
        self._counts: Counter[nn.Module] = Counter()
        self._views: list[_View] = []
        self._all_finite = True
        self._checked: tuple[Tensor, int] | None = None
        self._ruler = _Ruler()
        self._handles = ExitStack()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self._handles.close()
        self._ruler.forget()
        self._frames.clear()
        self._views.clear()
        self._checked = None

    @contextmanager
    def forward(self, module: nn.Module) -> Iterator[None]:
        """Inside the `with` the model runs, once."""
        with ordinary_inputs(module), observe(module, self._leave, self._enter):
            yield
        for view in self._views:
            self._listen_behind(view)
        self._views.clear()
        self._checked = None

    def _enter(self, name: str, module: nn.Module, arguments: Sequence[object]) -> None:
        if _is_parametrization(name):
            return
        if self._frames:
            self._frames[-1].inner.append(name)
        tensors = _tensors(arguments)
        self._frames.append(_Frame(module, _edges(tensors), clock(), self._is_fed_finite(tensors), []))

    def _leave(self, name: str, module: nn.Module, output: object) -> None:
        if _is_parametrization(name):
            return
        while (frame := self._frames.pop()).module is not module:
            pass  # that one ended by an exception which the model itself caught
        if frame.inner:
            return
        self._counts[module] += 1
        tensors = _tensors(output)
        size = reduce(add, map(size_of, tensors)) if tensors else None
        call = Call(
            name=name,
            module=module,
            number=self._counts[module],
            output=size,
            fed_finite=frame.fed_finite,
            could_have_gradient=bool(frame.inputs) or next(module.parameters(), None) is not None,
            at_output=Gathered(self._ruler),
            at_input=Gathered(self._ruler),
        )
        self.calls.append(call)
        self._note_finite(tensors, size)
        self._listen(call, frame, tensors)

    def _note_finite(self, outputs: Sequence[Tensor], size: Size | None) -> None:
        if size is not None and not size.finite:
            self._all_finite = False
        if self._all_finite and len(outputs) == 1 and not outputs[0].is_inference():
            self._checked = outputs[0], outputs[0]._version  # noqa: SLF001 - see `explainers.hooks`

    def _is_fed_finite(self, tensors: Sequence[Tensor]) -> bool:
        return not self._all_finite or all(self._is_checked(tensor) or is_finite(tensor) for tensor in tensors)

    def _is_checked(self, tensor: Tensor) -> bool:
        """Whether this is what the layer before gave, unchanged, as most inputs are: reading it again costs time."""
        if self._checked is None or tensor.is_inference():
            return False
        return tensor is self._checked[0] and tensor._version == self._checked[1]  # noqa: SLF001

    def _listen(self, call: Call, frame: _Frame, outputs: Sequence[Tensor]) -> None:
        until = clock()
        edges = []
        for number, tensor in enumerate(outputs):
            edge = edge_of(tensor)
            if edge is None:
                continue
            whole = base_of(tensor)
            base = None if whole is None else edge_of(whole)
            if base is not None and frame.since <= base.step._sequence_nr() < until:  # noqa: SLF001 - as in `crossings`
                edge = base  # made here as well, and an in-place change of the output does not go round it
            elif tensor._is_view():  # noqa: SLF001 - see `explainers.graph.base_of`
                same = None if base is None else frame.inputs.get(base)
                self._views.append(_View(call, tensor, tensor._version, base, number, same))  # noqa: SLF001
            edges.append(edge)
            self._hear_arrival(call, edge, number, frame.inputs.get(edge))
        places: dict[Node, list[tuple[int, int]]] = {}
        for step, place, key in crossings(edges, frame.inputs, frame.since, until):
            places.setdefault(step, []).append((place, key))
        for step, keys in places.items():
            self._hear_departure(call, step, [(place, None, key) for place, key in keys])

    def _listen_behind(self, view: _View) -> None:
        """Follow an output that shows what was there before the call, and was changed in place after it."""
        if view.tensor._version == view.version:  # noqa: SLF001
            return
        change = first_change(view.tensor, view.base) if view.base and view.tensor.is_contiguous() else None
        if change is None:
            view.call.hidden = True
        else:
            self._hear_departure(view.call, change, [(0, view.output, view.input)])

    def _hear_arrival(self, call: Call, edge: Edge, output: int, same: int | None) -> None:
        """Listen to the gradient of an output, which may be the very input number `same`."""
        call.at_output.expect(output)
        if same is not None:
            call.at_input.expect(same)
        self._handles.callback(on_arrival(edge, lambda gradient: call.hear(gradient, output, same)).remove)

    def _hear_departure(self, call: Call, step: Node, places: Sequence[tuple[int, int | None, int | None]]) -> None:
        """Listen to what a step hands on: at each place a part of the gradient at that output and that input."""
        for _, output, key in places:
            if output is not None:
                call.at_output.expect(output)
            if key is not None:
                call.at_input.expect(key)

        def tell(gradients: Sequence[Tensor | None]) -> None:
            for place, output, key in places:
                if (gradient := gradients[place]) is not None:
                    call.hear(gradient, output, key)

        self._handles.callback(on_departure(step, tell).remove)


def _edges(tensors: Sequence[Tensor]) -> dict[Edge, int]:
    """Return where the gradients of a call's inputs arrive: of a view also where its base's does."""
    edges: dict[Edge, int] = {}
    for key, tensor in enumerate(tensors):
        base = base_of(tensor)
        for shown in (tensor, *([] if base is None else [base])):
            edge = edge_of(shown)
            if edge is not None:
                edges.setdefault(edge, key)
    return edges


def _is_parametrization(name: str) -> bool:
    """Whether a module makes another one's weight (`torch.nn.utils.parametrize`): it is a part of that layer."""
    return "parametrizations" in name.split(".")


def _tensors(value: object) -> list[Tensor]:
    """Return the floating-point tensors in what a module takes or gives, each once."""
    found = {id(tensor): tensor for tensor in _walk(value) if tensor.is_floating_point() or tensor.is_complex()}
    return list(found.values())


def _walk(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _walk(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _walk(item)
    elif is_dataclass(value):
        yield from _walk([getattr(value, part.name) for part in fields(value)])
