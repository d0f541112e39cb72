"""What a verdict rests on, and the words for it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from explainers.diagnostics.answer import ParameterGradient
from explainers.diagnostics.measure import Size
from explainers.diagnostics.recording import Call


@dataclass(frozen=True)
class Evidence:
    """All calls in the order of execution, the parameters' gradients, and whether what came out is finite."""

    calls: Sequence[Call]
    parameters: Mapping[str, Sequence[ParameterGradient]]
    """By the layer's name."""
    loose: Sequence[ParameterGradient]
    """Of no listed layer, by full name."""
    scores_finite: bool
    objective_finite: bool


def named(call: Call, evidence: Evidence) -> str:
    """Return the layer's name as it stands in a sentence, with the number of the call where there are several."""
    name = repr(call.name) if call.name else "the model itself"
    calls = max(other.number for other in evidence.calls if other.module is call.module)
    return name if calls == 1 else f"{name} (call {call.number} of {calls})"


def counted(size: Size) -> str:
    """Return how many NaN and infinite numbers there are, in words."""
    parts = [f"{count} {word}" for count, word in ((size.nan, "NaN"), (size.inf, "infinite")) if count]
    return f"{' and '.join(parts)} of {size.count} numbers"


def unique(calls: Iterable[Call]) -> tuple[str, ...]:
    """Return the layers' names, each once, in the order of the calls."""
    return tuple(dict.fromkeys(call.name for call in calls))


def listed(names: Sequence[str]) -> str:
    """Return up to three names for a sentence; of more, the first, the last and how many."""
    if len(names) > 3:
        return f"{len(names)} layers from {names[0]!r} to {names[-1]!r}"
    return " and ".join([", ".join(map(repr, names[:-1])), repr(names[-1])] if len(names) > 1 else map(repr, names))
