"""What each layer answers: its statistics, its features, and how alike pictures are to it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.batch import at_least_float32
from explainers.errors import LayerNotSpatial, NonFiniteMap
from explainers.hooks import find_layer, never_ran, observe, tensor_of
from explainers.subject import Subject

SATURATED = 0.01
"""How near to a bound of a smooth activation, as a share of its range, counts as saturated. For the logistic function
that is below 0.01 or above 0.99, for tanh beyond ±0.98; their slope there is at most 4 % of its largest. Activations
made of straight lines have their full slope up to the bound, so with them only the bound itself counts."""

_SMOOTH = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "softsign": (-1.0, 1.0)}
_STRAIGHT = {"hardsigmoid": (0.0, 1.0)}  # and nn.Hardtanh, whose bounds are its own
"""Bounds by the lower-case name of the class: timm has classes of its own beside torch's."""

_SQUARES_OVERFLOW = 1e150
"""Only a network in float64 gets there."""


@dataclass(frozen=True)
class LayerActivation:
    """What one call of one module gave, for all pictures of the batch together.

    Listed are the modules inside which no other module ran, and those that have parameters of their own. `call`
    counts from 1, of `calls`. `shape` is the output's with the batch axis; where a module returns several things, its
    first is looked at; None, and all figures with it, where that is not a floating-point tensor.

    `mean`, `std` (of all values, not of a sample), `min`, `max` and `zero_fraction` are of the finite values, summed
    in float64; None where there are none. `nan` and `inf` count the others.
    """

    name: str
    type: str
    call: int
    calls: int
    shape: tuple[int, ...] | None
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    zero_fraction: float | None = None
    saturated_fraction: float | None = None
    """The share of the finite values at a bound of a bounded activation, see `SATURATED`; None for other modules. A
    lower bound of zero (ReLU6) is a ReLU's own and counts as zero, not as saturated."""
    channels: int | None = None
    """The length of the channel axis: axis 1, but the last one for tokens and channels-last layers."""
    dead_channels: int | None = None
    """How many channels are zero everywhere, in all pictures."""
    nan: int = 0
    inf: int = 0


def activations(subject: Subject, inputs: Tensor, *, also: str | None = None) -> tuple[LayerActivation, ...]:
    """Run the model once on `inputs` `(N, C, H, W)` and return what each layer gave, in the order of execution.

    `also` names a layer that is listed although others run inside.

    Numbers that are not finite are counted, not refused: this is where they are looked for. Outputs are looked at as
    the layer returned them, after the model's own hooks, before anything changes them in place; none is kept.
    """
    watch = _Watch(also)
    with torch.inference_mode(mode=False), torch.no_grad(), observe(subject.module, watch.leave, watch.enter):
        subject.scores(inputs.detach().clone())
    calls = Counter(layer.name for layer in watch.found)
    return tuple(replace(layer, calls=calls[layer.name]) for layer in watch.found)


def features(subject: Subject, inputs: Tensor, layer: str) -> Tensor:
    """Return a layer's output at its last call, in its own shape, detached, at least float32.

    Raises `UnknownLayer`, `LayerNeverRan`, `LayerOutputNotTensor`.
    """
    with torch.inference_mode(mode=False), torch.no_grad():
        output, _ = run_to_layer(subject, inputs.detach().clone(), layer)
    return at_least_float32(output)


def run_to_layer(subject: Subject, inputs: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """Run the model; return the layer's output at its last call, and the scores `(N, K)`, both with their graphs.

    The output is a copy made when the layer returned, which no in-place change reaches. Whether there are graphs is
    the caller's choice. Raises `UnknownLayer`, `LayerNeverRan`, `LayerOutputNotTensor`.
    """
    wanted = find_layer(subject.module, layer)
    outputs: list[Tensor] = []

    def take(_name: str, module: nn.Module, output: object) -> None:
        if module is wanted:
            outputs[:] = [tensor_of(layer, output).clone()]

    with observe(subject.module, take):
        scores = subject.scores(inputs)
    if not outputs:
        raise never_ran(layer)
    return outputs[0], scores


def embedding(features: Tensor) -> Tensor:
    """Return one vector `(N, C)` per picture: the mean over all axes of a grid `(N, C, ...)` behind its channels.

    `(N, D)` is returned as it is. Raises `LayerNotSpatial` for less than two axes.
    """
    if features.dim() < 2:
        msg = f"Features of shape {tuple(features.shape)} have no channels, so there is no vector per picture."
        raise LayerNotSpatial(msg)
    return features if features.dim() == 2 else at_least_float32(features).flatten(2).mean(dim=2)


def similarity(embeddings: Tensor) -> Tensor:
    """Return the cosine of the angle between each two of the embeddings `(N, D)`: `(N, N)` in [-1, 1].

    A vector of zeros has no direction: it is similar to nothing, 0, nor to itself. Raises `NonFiniteMap`.
    """
    vectors = at_least_float32(embeddings)
    if not bool(torch.isfinite(vectors).all()):
        raise NonFiniteMap("Embeddings with NaN or infinity cannot be compared.", field="layer")
    directions = _of_length_one(_of_length_one(vectors, torch.inf), 2)  # in two steps, so that no square overflows
    return (directions @ directions.T).clamp(-1, 1)


def _of_length_one(vectors: Tensor, order: float) -> Tensor:
    lengths = torch.linalg.vector_norm(vectors, order, dim=1, keepdim=True)
    return vectors / torch.where(lengths > 0, lengths, 1)


class _Watch:
    """Measures each module that finishes without another one having run inside, or that has parameters of its own."""

    def __init__(self, also: str | None) -> None:
        self.found: list[LayerActivation] = []
        self._also = also
        self._calls: Counter[str] = Counter()
        self._finished = 0
        self._begun: list[int] = []
        self._axes = _ChannelAxes()

    def enter(self, _name: str, _module: nn.Module, _args: Sequence[object]) -> None:
        self._begun.append(self._finished)

    def leave(self, name: str, module: nn.Module, output: object) -> None:
        is_leaf = self._begun.pop() == self._finished
        self._finished += 1
        if not (is_leaf or name == self._also or (name and has_own_parameters(module))):
            return
        self._calls[name] += 1
        layer = LayerActivation(name, type(module).__name__, self._calls[name], 0, None)
        first = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(first, Tensor) and first.is_floating_point():
            axis = self._axes.of(module, first)
            layer = replace(layer, shape=tuple(first.shape), **_measured(module, first.detach(), axis))
        self.found.append(layer)


def has_own_parameters(module: nn.Module) -> bool:
    """Whether a module has parameters that belong to none of those inside: a normalisation with its activation."""
    return next(module.parameters(recurse=False), None) is not None


class _ChannelAxes:
    """Which axis of an output holds the channels: what the module knows, or what is known of the shape so far."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], int] = {}

    def of(self, module: nn.Module, output: Tensor) -> int | None:
        if output.dim() < 2:
            return None
        last = output.dim() - 1
        if output.dim() == 3:
            return last  # tokens: of pictures there are no rows of another kind
        if isinstance(module, nn.Linear | nn.LayerNorm):
            width = module.out_features if isinstance(module, nn.Linear) else module.normalized_shape[-1]
            axis = last if output.shape[-1] == width else 1  # subclasses such as LayerNorm2d work on axis 1
        elif isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.GroupNorm):
            axis = 1
        else:
            return self._known.get(tuple(output.shape), 1)
        self._known[tuple(output.shape)] = axis
        return axis


def _measured(module: nn.Module, output: Tensor, axis: int | None) -> dict[str, Any]:
    """Return the figures of a `LayerActivation`."""
    is_zero = output == 0
    figures: dict[str, Any] = {}
    if axis is not None:
        others = [other for other in range(output.dim()) if other != axis]
        zeros = is_zero.sum(dim=others)
        figures |= {"channels": len(zeros), "dead_channels": int((zeros * len(zeros) == output.numel()).sum())}
    values = output.reshape(-1)
    if not values.numel():
        return figures
    lowest, highest = map(float, torch.aminmax(values))
    if not (math.isfinite(lowest) and math.isfinite(highest)):  # otherwise there is no need to look at each
        figures |= {"nan": int(values.isnan().sum()), "inf": int(values.isinf().sum())}
        values = values[values.isfinite()]
        if not len(values):
            return figures
        lowest, highest = map(float, torch.aminmax(values))
    return figures | {
        **dict(zip(("mean", "std"), _moments(values.double(), max(-lowest, highest)), strict=True)),
        "min": lowest,
        "max": highest,
        "zero_fraction": int(is_zero.sum()) / len(values),
        "saturated_fraction": _saturated(module, values),
    }


def _moments(values: Tensor, largest: float) -> tuple[float, float]:
    """Return mean and standard deviation of float64 values `(n,)`, the largest of which is so far from zero.

    In two passes, with a product of vectors: half the time that `torch.std_mean` takes on a CPU.
    """
    scale = largest if largest > _SQUARES_OVERFLOW else 1.0
    values = values / scale if scale != 1 else values
    mean = float(values.mean())
    centred = values - mean
    return mean * scale, math.sqrt(float(centred @ centred) / len(values)) * scale


def _saturated(module: nn.Module, values: Tensor) -> float | None:
    kind = type(module).__name__.lower()
    if isinstance(module, nn.Hardtanh):  # ReLU6 is one
        low, high, near = float(module.min_val), float(module.max_val), 0.0
        if low == 0:
            low = -torch.inf
    elif kind in _SMOOTH:
        (low, high), near = _SMOOTH[kind], SATURATED
    elif kind in _STRAIGHT:
        (low, high), near = _STRAIGHT[kind], 0.0
    else:
        return None
    margin = near * (high - low) if near else 0.0
    return _share((values <= low + margin) | (values >= high - margin))


def _share(mask: Tensor) -> float:
    return float(mask.sum()) / mask.numel()
