"""Which score is explained: a class, a class by rank, or the difference of two (why this and not that)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explainers.errors import ExplainError, NonFiniteScores, TargetOutOfRange, VersusEqualsTarget


@dataclass(frozen=True)
class Rank:
    """The class at a place in the model's own order: `Rank(0)` is the predicted class, `Rank(1)` the next."""

    place: int


@dataclass(frozen=True)
class Target:
    """A request for one map: of the score of class `of`, or of that score minus the score of `versus`."""

    of: int | Rank = Rank(0)
    versus: int | Rank | None = None


@dataclass(frozen=True)
class Score:
    """A target resolved against one picture's scores; `value` is in logits."""

    index: int
    versus: int | None
    value: float


def resolve(target: Target, scores: Tensor) -> Score:
    """Resolve a target against one picture's scores `(K,)` on the CPU.

    Indices are checked here and not on the device, where a bad one would poison the process. Raises
    `TargetOutOfRange`, `VersusEqualsTarget`.
    """
    index = _index(target.of, scores, "target")
    if target.versus is None:
        return Score(index, None, float(scores[index]))
    versus = _index(target.versus, scores, "versus")
    if versus == index:
        msg = f"target and versus are both class {index}; the difference of a score with itself explains nothing."
        raise VersusEqualsTarget(msg)
    return Score(index, versus, float(scores[index] - scores[versus]))


def resolve_all(targets: Sequence[Target], scores: Tensor) -> list[Score] | ExplainError:
    """Resolve all targets of one picture, or say what is wrong with it, so that it fails alone in its batch."""
    if not bool(torch.isfinite(scores).all()):
        return NonFiniteScores("The model answered NaN or infinity for this picture, so there is nothing to explain.")
    try:
        return [resolve(target, scores) for target in targets]
    except ExplainError as error:
        return error.with_traceback(None)  # its frames hold the graph, and the graph's holder holds the error


def _index(choice: int | Rank, scores: Tensor, field: str) -> int:
    classes = len(scores)
    number = choice.place if isinstance(choice, Rank) else choice
    if not 0 <= number < classes:
        what = f"rank {number}" if isinstance(choice, Rank) else f"class index {number}"
        msg = f"{field} asks for {what}, but the model has {classes} classes: valid are 0 to {classes - 1}."
        raise TargetOutOfRange(msg, field=field, minimum=0, maximum=classes - 1)
    if isinstance(choice, Rank):
        return int(torch.argsort(scores, descending=True, stable=True)[number])
    return int(number)
