"""The only place that registers hooks. They live inside a `with` and are gone afterwards, whatever happened.

Three facts of PyTorch decide the shape of this file:

- If the forward hook replaces the layer's output by a fresh leaf and the parameters are frozen, no graph exists
  before the layer: the backward pass is only as long as the rest of the model.
- `register_full_backward_hook` wraps the layer's output in a view that refuses in-place changes (`out += identity`,
  `nn.ReLU(inplace=True)`), and its input too where that carries a gradient (then it would not fire at the leaf
  either). Such layers get no full-backward hook: the model receives a clone, and the gradient of the original is
  what `torch.autograd.grad` returns, the same number.
- Whether an output is changed in place shows in the version counter of the tensor that was handed on. That is
  always a clone, so that not even a write through `.data` reaches the activation. The first capture of a layer
  looks; the answer is remembered in the subject.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from explainers.errors import (
    LayerNeverRan,
    LayerOutputNotTensor,
    NotConnected,
    UnknownLayer,
    close_matches,
)
from explainers.gradients import gradient_of
from explainers.graph import Edge, is_relu, leaf_of, steps_of
from explainers.subject import Subject

_NO_INPUT_GRADIENT = "Full backward hook is firing when gradients are computed with respect to module outputs"


class Capture:
    """One layer during one `with`: its output in the last forward pass and the gradient that comes back.

    A layer that runs several times is captured at its last call, as captum and torch-cam do: that is the output
    nearest to the score.
    """

    def __init__(self, layer: str, tape: "_Tape", *, backward_hook: bool) -> None:
        self.layer = layer
        self._tape = tape
        self._backward_hook = backward_hook
        self._inputs: list[Tensor] = []
        self._output: Tensor | None = None
        self._handed_on: Tensor | None = None
        self._hooked_gradient: Tensor | None = None
        self._calls = 0
        self._input_has_gradient = False
        self._has_graph = False

    @property
    def activation(self) -> Tensor:
        """The layer's output, detached, in the layer's own shape and dtype."""
        return self._taken().detach()

    def gradient(self, score: Tensor, *, keep_graph: bool = False) -> Tensor:
        """Return the gradient of the scalar `score` with respect to the layer's output, in its shape and dtype.

        `keep_graph` allows a further call on the same forward pass. No parameter's `.grad` is touched.
        Raises `LayerNeverRan` and `NotConnected`.
        """
        sources = [self._taken(), *self._inputs]
        self._hooked_gradient = None
        gradient = gradient_of(score, sources, keep_graph=keep_graph)
        if gradient is None:
            msg = f"The score does not depend on the output of layer {self.layer!r}; choose a layer on the way to it."
            raise NotConnected(msg, field="layer")
        return gradient if self._hooked_gradient is None else self._hooked_gradient

    def gradients(self, scores: Sequence[Tensor], *, keep_graph: bool = False) -> list[Tensor]:
        """Return the gradient of each of several scalars; one backward pass carries them all where that is possible.

        The weights behind the layer are then read from memory once, which is what short backward passes cost. A
        full-backward hook sees the gradients stacked in a form of torch's own, so autograd's answer is taken.
        Raises what `gradient` raises.
        """
        if len(scores) > 1 and (together := self._together(scores)) is not None:
            return list(together)
        last = len(scores) - 1
        return [self.gradient(score, keep_graph=keep_graph or k < last) for k, score in enumerate(scores)]

    @property
    def calls(self) -> int:
        """How often the layer ran in the forward pass; the last call is the captured one."""
        return self._calls

    @property
    def has_graph(self) -> bool:
        """Whether the forward pass that just ran made a graph."""
        return self._has_graph

    @property
    def hookable(self) -> bool:
        """Whether a full-backward hook works here, as seen in the forward pass that just ran."""
        if self._backward_hook or self._handed_on is None:
            return self._backward_hook
        modified = self._handed_on._version > 0  # noqa: SLF001 - autograd's own counter, public in all but name
        return not modified and self._calls == 1 and not self._input_has_gradient

    def attach(self, module: nn.Module, stack: ExitStack) -> None:
        """Register the hooks; `stack` undoes it."""
        stack.callback(self._close)
        changes_input = getattr(module, "inplace", False)  # which torch allows only while those hooks stay out
        if module._backward_hooks and not changes_input:  # noqa: SLF001 - nothing public tells
            stack.callback(module.register_forward_pre_hook(self._on_begin).remove)
        stack.callback(module.register_forward_hook(self._on_forward).remove)
        kind = module._is_full_backward_hook  # noqa: SLF001 - set by the registration, never reset by `remove`
        self._backward_hook = self._backward_hook and kind is not False
        if self._backward_hook:
            stack.callback(setattr, module, "_is_full_backward_hook", kind)
            stack.callback(module.register_full_backward_hook(self._on_full_backward).remove)

    def _on_begin(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Let the graph begin at the inputs of a layer that has full-backward hooks of its own.

        Otherwise torch calls those with None for the inputs' gradients, and forbids them to return anything, which
        hooks that change gradients do.
        """
        if not torch.is_grad_enabled() or any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            return None
        begun = tuple(self._tape.begin(arg) if isinstance(arg, Tensor) else arg for arg in args)
        self._inputs += [arg for arg in begun if isinstance(arg, Tensor) and arg.requires_grad]
        return begun

    def _on_forward(self, _module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        self._calls += 1
        self._has_graph = torch.is_grad_enabled()
        self._input_has_gradient = any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        self._output = self._tape.cut(tensor_of(self.layer, output))
        self._handed_on = self._output.clone()
        return self._handed_on

    def _on_full_backward(self, _module: nn.Module, _grad_input: Any, grad_output: tuple[Tensor, ...]) -> None:
        self._hooked_gradient = grad_output[0]

    def _together(self, scores: Sequence[Tensor]) -> Tensor | None:
        """Return the gradients stacked, or None if it has to be one after the other."""
        sources = [self._taken(), *self._inputs]
        each = torch.eye(len(scores), dtype=scores[0].dtype, device=scores[0].device)
        try:
            gradients, *_ = torch.autograd.grad(
                torch.stack(list(scores)), sources, each, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
        except RuntimeError:  # no graph, an operation that torch cannot batch, not enough memory for all at once
            return None
        self._hooked_gradient = None
        return gradients

    def _close(self) -> None:
        self._output = self._handed_on = self._hooked_gradient = None
        self._inputs.clear()

    def _taken(self) -> Tensor:
        if self._output is None:
            raise never_ran(self.layer)
        return self._output


class _Tape:
    """Whether the graph of this `with` has begun."""

    def __init__(self) -> None:
        self._has_begun = False

    def cut(self, output: Tensor) -> Tensor:
        """Return `output` as a fresh leaf, or with its graph behind an earlier captured layer, whose graph goes on.

        It is a copy: a layer may return its own input (`nn.Identity`, dropout in eval mode), which others may
        still change in place.
        """
        if self._has_begun and output.requires_grad:
            return output.clone()
        return self.begin(output)

    def begin(self, tensor: Tensor) -> Tensor:
        """Return a copy as a fresh leaf, if it can have a gradient."""
        self._has_begun = True
        return tensor.detach().clone().requires_grad_(tensor.is_floating_point())


@contextmanager
def capture(subject: Subject, layers: Sequence[str]) -> Iterator[list[Capture]]:
    """Attach a forward and a full-backward hook to each layer; yield one `Capture` each; remove them all.

    Raises `UnknownLayer` before anything is attached. Gradients are enabled inside the `with`, whatever the
    caller's mode. The model goes on with a copy of the layer's output: where a layer returns its own input and the
    model then changes that input in place, the copy does not follow.
    """
    key = tuple(layers)
    modules = [find_layer(subject.module, layer) for layer in layers]
    hookable = subject.backward_hookable.get(key, (False,) * len(key))
    tape = _Tape()
    captures = [
        Capture(layer, tape, backward_hook=able and subject.frozen) for layer, able in zip(key, hookable, strict=True)
    ]
    _silence_the_expected_warning()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        for module, taken in zip(modules, captures, strict=True):
            taken.attach(module, stack)
        try:
            yield captures
        except RuntimeError:  # perhaps an in-place change that no earlier request made: the next one takes no risk
            subject.backward_hookable[key] = (False,) * len(key)
            raise
        if all(taken.has_graph for taken in captures):  # without one, inputs do not show their gradients
            subject.backward_hookable.setdefault(key, tuple(taken.hookable for taken in captures))


@contextmanager
def replaced(subject: Subject, layer: str, call: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let the model go on with `change(output)` after the `call`-th call of a layer, counted from 1.

    The layer's own output is a copy, so neither `change` nor the model can spoil it. Raises `UnknownLayer`.
    """
    module = find_layer(subject.module, layer)
    calls = 0

    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        nonlocal calls
        calls += 1
        return change(output.clone()) if calls == call else output

    with ExitStack() as stack:
        stack.callback(module.register_forward_hook(hook).remove)
        yield


BackwardRule = Callable[[Tensor, Tensor], Tensor]
"""From the gradient that comes to a step of the backward pass, and the one it would hand on, to the one it hands on."""


def change_relus(score: Tensor, rule: BackwardRule) -> int:
    """Let the backward pass of every ReLU between the input and `score` follow the rule; return how many there are.

    They are found in the graph of the score, so however a ReLU is written (module, function or method, in place or
    not), and nothing is attached to the model: these hooks go when the graph goes. Raises `MethodNotApplicable` where
    the graph has a step that another may be hidden in.
    """
    relus = [step for step in steps_of(score) if is_relu(step)]
    for relu in relus:
        relu.register_hook(lambda before, behind: tuple(g if g is None else rule(behind[0], g) for g in before))
    return len(relus)


@contextmanager
def observe(
    module: nn.Module,
    on_output: Callable[[str, nn.Module, object], None],
    on_input: Callable[[str, nn.Module, Sequence[object]], None] | None = None,
) -> Iterator[None]:
    """Call `on_output(name, module, output)` whenever a named submodule finishes; outputs pass unchanged.

    `on_input(name, module, arguments)` is called when it begins; the named arguments follow the others.
    """
    with ExitStack() as stack:
        for name, submodule in module.named_modules():

            def tell(finished: nn.Module, _args: Any, output: Any, *, name: str = name) -> None:
                on_output(name, finished, output)

            stack.callback(submodule.register_forward_hook(tell).remove)
            if on_input is None:
                continue

            def begin(started: nn.Module, args: Any, kwargs: Any, *, name: str = name) -> None:
                on_input(name, started, (*args, *kwargs.values()))

            stack.callback(submodule.register_forward_pre_hook(begin, with_kwargs=True).remove)
        yield


def on_arrival(edge: Edge, tell: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `tell` with the whole gradient that arrives at a place of the graph; it goes on unchanged.

    Nothing is attached to the model, unless the place is a parameter: then the handle must be removed.
    """
    step, number = edge

    def hook(arriving: Sequence[Tensor | None]) -> None:
        if (gradient := arriving[number]) is not None:
            tell(gradient)

    if (leaf := leaf_of(step)) is not None:  # a place where gradients are kept is not executed as a step
        return cast("RemovableHandle", leaf.register_hook(tell))  # type: ignore[no-untyped-call]
    return step.register_prehook(hook)


def on_departure(step: Node, tell: Callable[[Sequence[Tensor | None]], None]) -> RemovableHandle:
    """Call `tell` with the gradients that a step hands on, one for each of its `next_functions`, unchanged."""
    return step.register_hook(lambda handed_on, _arrived: tell(handed_on))


@contextmanager
def ordinary_inputs(module: nn.Module) -> Iterator[None]:
    """Let modules work on copies of tensors that were made in inference mode, once it is over.

    Autograd cannot keep such a tensor, which a layer with parameters to be differentiated needs.
    """

    def is_left_over(value: Any) -> bool:
        return isinstance(value, Tensor) and value.is_inference()

    def hook(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled() or not any(map(is_left_over, (*args, *kwargs.values()))):
            return None
        copies = {key: value.clone() if is_left_over(value) else value for key, value in kwargs.items()}
        return tuple(value.clone() if is_left_over(value) else value for value in args), copies

    with ExitStack() as stack:
        for submodule in module.modules():
            stack.callback(submodule.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def find_layer(module: nn.Module, layer: str) -> nn.Module:
    """Return the submodule called `layer` (dotted path, as in `named_modules`), or raise `UnknownLayer`."""
    try:
        if layer:
            return module.get_submodule(layer)
    except AttributeError:
        pass
    close = close_matches(layer, [name for name, _ in module.named_modules(remove_duplicate=False) if name])
    hint = f" Did you mean {', '.join(map(repr, close))}?" if close else ""
    msg = f"The model has no layer {layer!r}.{hint}"
    raise UnknownLayer(msg, close_matches=close)


def tensor_of(layer: str, output: object) -> Tensor:
    """Return what a layer answered, or raise `LayerOutputNotTensor`."""
    if isinstance(output, Tensor) and output.is_floating_point():
        return output
    kind = f"a tensor of {output.dtype}" if isinstance(output, Tensor) else type(output).__name__
    msg = f"Layer {layer!r} returns {kind}, not one floating-point tensor; choose a layer inside it."
    raise LayerOutputNotTensor(msg)


def never_ran(layer: str) -> LayerNeverRan:
    """Return the error of a layer that no hook heard of."""
    return LayerNeverRan(
        f"Layer {layer!r} was not executed in the forward pass, or only inside a compiled or traced part, "
        "where hooks do not fire; choose a layer that the model runs."
    )


def _silence_the_expected_warning() -> None:
    """Ignore torch's warning that no module input requires a gradient: that is the purpose of the fresh leaf.

    `warnings.catch_warnings` would be undone by other threads, so the filter is process-wide, and set on first
    use instead of at import.
    """
    if not any(message and message.pattern == _NO_INPUT_GRADIENT for _, message, *_ in warnings.filters):
        warnings.filterwarnings("ignore", message=_NO_INPUT_GRADIENT)
