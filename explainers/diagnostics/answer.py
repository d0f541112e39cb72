"""What is told of a gradient's way back: each layer's numbers, and what they say together."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["ok", "vanishing", "exploding", "dead", "disconnected", "non_finite"]


@dataclass(frozen=True)
class ParameterGradient:
    """A parameter and its gradient: L2 norms, in float32 or better, of the finite values."""

    name: str
    """Within its layer, such as `weight`."""
    shape: tuple[int, ...]
    norm: float
    gradient_norm: float | None
    """None: no gradient arrives."""
    ratio: float | None
    """The gradient's norm divided by the parameter's; None where there is no gradient, or the parameter is zero."""
    zero_fraction: float | None
    """The share of exact zeros in the gradient."""
    nan: int
    inf: int
    """How many there are in the gradient."""


@dataclass(frozen=True)
class LayerFlow:
    """One call of a module inside which no other module ran. Norms are L2, in float32 or better, of the finite values.

    Several tensors at an output or input (a tuple, a dict) count as one long one.
    """

    name: str
    """As in `named_modules`; empty: the model itself."""
    type: str
    call: int
    """Which of the module's calls, from 1."""
    calls: int
    grad_output_norm: float | None
    """Of the whole gradient at what the call returned. None: none arrives, or an in-place change of a part of it hides
    it."""
    grad_input_norm: float | None
    """Of what this call passes back to what it was given, without what others add there (a shortcut). None: nothing
    before it has a gradient, or it cannot be told apart. A module that returns its very input (dropout in eval mode)
    passes back all that arrives."""
    parameters: tuple[ParameterGradient, ...]
    """At the module's last call, of all its calls together."""
    zero_fraction: float | None
    """The share of exact zeros in the gradient at the output."""
    nan: int
    inf: int
    """How many there are in the gradients at output and input."""
    decay: float | None
    """grad_output_norm divided by that of the layer that the backward pass came from, the one that ran next; below 1:
    the gradient shrinks on its way back."""
    output_norm: float | None = None
    """Of what the call returned; None: no floating-point tensor."""
    output_nan: int = 0
    output_inf: int = 0


@dataclass(frozen=True)
class Finding:
    """One illness: the layers that show it, in the order of execution, and the reason in full sentences."""

    kind: Kind
    layers: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Verdict:
    """The worst finding's kind, and all findings, worst first; none when `ok`."""

    kind: Kind
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    """Full sentences about what looks strange and is no illness, such as a layer whose weights start at zero."""


@dataclass(frozen=True)
class GradientFlow:
    """All layers in the order of execution, what they say together, and the objective's value (perhaps NaN)."""

    objective: float
    layers: tuple[LayerFlow, ...]
    verdict: Verdict
    parameters: tuple[ParameterGradient, ...] = ()
    """What no listed layer holds, by full name: class tokens, position embeddings, layer scales, and the parameters of
    layers that never ran."""
