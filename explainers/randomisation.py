"""Whether a method's maps change when what the model has learnt is destroyed, from the score downwards."""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from explainers.diagnostics.comparison import rank_correlation
from explainers.errors import ExplainError
from explainers.hooks import find_layer
from explainers.perturb import generator
from explainers.work import unheard

Verdict = Literal["passes", "fails", "undecided"]
Raw = NDArray[np.float32]
Explain = Callable[[], Sequence[Raw | None]]
"""Explains the same pictures for the same classes by the module as it is, one map each; None where that fails."""

MUCH = 0.5
"""Maps stay "much the same" above half of the way from chance to equality."""

_ALIKE = 0.9
"""Where maps of different pictures agree by more, they are about one map, whatever the picture."""
_T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""The 95th percentiles of Student's t with 1 to 9 degrees of freedom."""
_STAGES = 8
"""At most."""


@dataclass(frozen=True)
class Stage:
    """The maps after `layers`, and those of all stages before, were randomised.

    `similarity`, in [0, 1], is the mean over the pictures of the absolute rank correlation with the true map; None
    where no map can be compared, since one of each pair is missing or the same everywhere.
    """

    layers: tuple[str, ...]
    similarity: float | None


@dataclass(frozen=True)
class Randomisation:
    """What becomes of a method's maps on a model; the stages begin at the score.

    `pictures` is how many there were. `chance` is how similar the true maps of different pictures are; None for one.
    """

    stages: tuple[Stage, ...]
    pictures: int
    verdict: Verdict
    words: str
    chance: float | None


def randomisation(
    module: nn.Module,
    order: Sequence[str],
    explain: Explain,
    *,
    seed: int = 0,
    on_step: Callable[[int, int], None] = unheard,
) -> Randomisation:
    """Randomise a model's layers in a cascade, and compare what a method shows with what it showed before.

    Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018, arXiv:1810.03292, section 3.1: a map that stays
    the same does not show what the model has learnt. `order` names the layers with parameters in the order in which
    they run; a layer has the parameters inside it that belong to no other named one. The last one, the classifier as a
    rule, is the first stage alone; the others are shared out evenly, and parameters of none of them (tokens, positions)
    are made up in the last stage. `explain` has to see `module` itself and no copy,
    and to explain the classes that were explained at first. `on_step(done, total)` tells how many stages are done,
    at first none; whatever it raises ends the work. Parameters and buffers are put back bit by bit, whatever happens;
    meanwhile nobody else may use the model.

    The new values are normal with the mean and standard deviation of each parameter. Signals then keep about their
    size, which initial values would not see to: a BatchNorm in eval mode divides by the statistics that belong to the
    old weights. Those statistics are no weights, and stay. All layers of a stage and of those before are drawn anew at
    each stage, so that no single draw decides.

    Verdict. Maps of different pictures agree to some degree too: that is `chance`. Per picture, the similarity's share
    of the way from chance to 1 is taken, at each stage up to half of the layers (below, nothing is left of the model,
    and all methods change). "fails": at one of them the share is above `MUCH`, by more than its error over the
    pictures (one-sided 95 % bounds of Student's t). "passes": at all of them it is below by more than that. Else
    "undecided", as always with one picture. Five pictures or more are advised. A method that has about one map for all
    pictures (chance above 0.9) fails if that map stays, and is undecided otherwise.

    Raises `UnknownLayer`, and `ExplainError` where there is no parameter, or no true map to compare with.
    """
    parts = _parts(module, order)
    with _put_back(module) as saved:
        on_step(0, len(parts))
        true = list(explain())
        if all(map_ is None or _flat(map_) for map_ in true):
            msg = "No picture has a map that is not the same everywhere, so there is nothing to compare."
            raise ExplainError(msg)
        similar: list[list[float]] = []
        for stage in range(len(parts)):
            _randomise(parts[: stage + 1], saved, seed, stage)
            similar.append(_similarities(zip(true, explain(), strict=True)))
            on_step(stage + 1, len(parts))
    found = tuple(Stage(part.layers, _mean(values)) for part, values in zip(parts, similar, strict=True))
    chance = _mean(_similarities(combinations(true, 2)))
    verdict, words = _judged(found, similar, chance)
    return Randomisation(found, len(true), verdict, words, chance)


@dataclass(frozen=True)
class _Part:
    """What one stage makes up."""

    layers: tuple[str, ...]
    parameters: tuple[Tensor, ...]


def _parts(module: nn.Module, order: Sequence[str]) -> list[_Part]:
    """Return the stages, nearest to the score first; each parameter in one of them."""
    parameters, others = _by_layer(module, order)
    layers = [name for name, own in parameters.items() if own]
    if not layers:
        msg = "None of the layers has parameters, so there is nothing to randomise."
        raise ExplainError(msg, field="model")
    rest = np.array_split(np.arange(1, len(layers)), _STAGES - 1)
    shares = [layers[:1], *([layers[k] for k in share] for share in rest if len(share))]
    parts = [_Part(tuple(share), tuple(p for name in share for p in parameters[name])) for share in shares]
    return [*parts[:-1], _Part(parts[-1].layers, (*parts[-1].parameters, *others))]


def _by_layer(module: nn.Module, order: Sequence[str]) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
    """Return the layers' parameters, nearest to the score first, and those of no layer.

    A shared parameter is that of the layer nearest to the score.
    """
    inside: dict[str, list[Tensor]] = {name: [] for name in reversed(order) if name and find_layer(module, name)}
    others: list[Tensor] = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.is_floating_point():
            owner = _owner(name, inside)
            (others if owner is None else inside[owner]).append(parameter)
    seen: set[int] = set()
    for own in (*inside.values(), others):
        own[:] = [p for p in dict.fromkeys(own) if id(p) not in seen]
        seen.update(map(id, own))
    return inside, others


def _owner(parameter: str, layers: Container[str]) -> str | None:
    """Return the innermost of the layers that the parameter lies in."""
    path = parameter.split(".")[:-1]
    inside = (".".join(path[:length]) for length in range(len(path), 0, -1))
    return next((name for name in inside if name in layers), None)


@contextmanager
def _put_back(module: nn.Module) -> Iterator[dict[int, Tensor]]:
    """Yield the values of all parameters and buffers by identity, and restore them in the end."""
    tensors = [*module.parameters(), *module.buffers()]
    saved = {id(tensor): tensor.detach().clone() for tensor in tensors}
    try:
        yield saved
    finally:
        with torch.inference_mode(mode=False), torch.no_grad():
            for tensor in tensors:
                tensor.copy_(saved[id(tensor)])


def _randomise(parts: Sequence[_Part], saved: Mapping[int, Tensor], seed: int, stage: int) -> None:
    numbers = generator(seed, stage)
    with torch.inference_mode(mode=False), torch.no_grad():
        for parameter in (p for part in parts for p in part.parameters):
            true = saved[id(parameter)].double()
            drawn = torch.randn(parameter.shape, generator=numbers, dtype=torch.float64).to(true.device)
            parameter.copy_(true.mean() + true.std(correction=0) * drawn)


def _similarities(pairs: Iterable[tuple[Raw | None, Raw | None]]) -> list[float]:
    """Return the absolute rank correlations of those pairs that have one."""
    found = [rank_correlation(one, other) for one, other in pairs if one is not None and other is not None]
    return [abs(value) for value in found if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _judged(stages: Sequence[Stage], similar: Sequence[list[float]], chance: float | None) -> tuple[Verdict, str]:
    """Return the verdict and its reasons, from each stage's similarities, one per picture."""
    if chance is None:
        return "undecided", "Undecided: with the map of one picture, nothing says how similar maps are by chance."
    layers = np.cumsum([len(stage.layers) for stage in stages])
    judged = max(1, int((2 * layers <= layers[-1]).sum()))
    # Where all pictures have about one map there is no way from chance to equality: only sameness can be told.
    zero, much = (0.0, _ALIKE) if chance > _ALIKE else (chance, MUCH)
    bounds = [_bounds([(value - zero) / (1 - zero) for value in values]) for values in similar[:judged]]
    verdict: Verdict = "undecided"
    if any(low > much for low, _ in bounds):
        verdict = "fails"
    elif chance <= _ALIKE and all(high < much for _, high in bounds):
        verdict = "passes"
    return verdict, _words(verdict, stages[:judged], chance)


def _bounds(shares: Sequence[float]) -> tuple[float, float]:
    """Return the one-sided 95 % bounds of the mean; none for fewer than two values."""
    if len(shares) < 2:
        return -math.inf, math.inf
    free = len(shares) - 1
    # Above nine degrees of freedom: the normal distribution's percentile with the first terms of Student's.
    quantile = _T_95[free - 1] if free <= len(_T_95) else 1.645 + 1.524 / free + 1.42 / free**2
    error = quantile * float(np.std(shares, ddof=1)) / math.sqrt(len(shares))
    mean = float(np.mean(shares))
    return mean - error, mean + error


def _words(verdict: Verdict, stages: Sequence[Stage], chance: float) -> str:
    starts = {
        "passes": "Passes: the maps change when what the model has learnt is destroyed.",
        "fails": "Fails: maps stay much the same although what the model has learnt is destroyed.",
        "undecided": "Undecided: these pictures do not tell.",
    }
    first = f"With the layer nearest to the score made up, they agree with the true ones by {_told(stages[0])}"
    last = sum(len(stage.layers) for stage in stages)
    second = f", with {last} layers by {_told(stages[-1])}" if len(stages) > 1 else ""
    return f"{starts[verdict]} {first}{second}; those of different pictures agree by {chance:.2f}."


def _told(stage: Stage) -> str:
    return "an unknown amount" if stage.similarity is None else f"{stage.similarity:.2f}"


def _flat(map_: Raw) -> bool:
    return bool(np.ptp(map_) == 0)
