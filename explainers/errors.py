"""What can go wrong while explaining: one small tree that knows no HTTP."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

_LONGEST = 200
"""No name is longer, and comparing takes memory and time by the length."""


def close_matches(name: str, choices: Iterable[str]) -> list[str]:
    """Return up to three of `choices` that look like `name`, best first, whatever the case."""
    if len(name) > _LONGEST:
        return []
    by_lower = {choice.lower(): choice for choice in choices}
    return [by_lower[match] for match in get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]


class ExplainError(Exception):
    """Base of all errors of this package.

    `code` is a stable word for programs, `field` the option at fault (or None), `extra` holds facts that a
    program may want (limits, choices, close matches). The text is a full sentence that may be shown to anybody.
    """

    code: ClassVar[str] = "explain_error"
    field: str | None = None

    def __init__(self, detail: str, *, field: str | None = None, **extra: object) -> None:
        super().__init__(detail)
        self.field = field or self.field
        self.extra = extra


class UnknownMethod(ExplainError):
    """There is no method of this name."""

    code = "unknown_method"
    field = "method"


class LayerNotTaken(ExplainError):
    """A layer was given to a method that looks at no layer, or more than it can look at, or the same twice."""

    code = "layer_not_taken"
    field = "layer"


class UnknownLayer(ExplainError):
    """The model has no module of this name."""

    code = "unknown_layer"
    field = "layer"


class LayerNeverRan(ExplainError):
    """The model did not run the layer for this picture."""

    code = "layer_never_ran"
    field = "layer"


class LayerOutputNotTensor(ExplainError):
    """The layer returns a tuple, a dict or anything else that is not one floating-point tensor."""

    code = "layer_output_not_tensor"
    field = "layer"


class LayerNotSpatial(ExplainError):
    """The layer's output has no spatial axes to draw a map on, or not one map per picture."""

    code = "layer_not_spatial"
    field = "layer"


class NotConnected(ExplainError):
    """The score does not depend on the layer's output (or on the input), so there is no gradient."""

    code = "not_connected"


class UnhookableModel(ExplainError):
    """Hooks cannot see inside the model (traced, scripted)."""

    code = "unhookable_model"
    field = "model"


class TargetOutOfRange(ExplainError):
    """A class index that the model does not have."""

    code = "target_out_of_range"
    field = "target"


class VersusEqualsTarget(ExplainError):
    """The difference of a class's score with itself is zero everywhere."""

    code = "versus_equals_target"
    field = "versus"


class MethodNotApplicable(ExplainError):
    """The method explains by something that this model does not have (ReLUs, attention over all tokens)."""

    code = "method_not_applicable"
    field = "method"


class TooManySamples(ExplainError):
    """The method would run the model more often than is allowed."""

    code = "too_many_samples"


class BadParameter(ExplainError):
    """A parameter that the method does not have, or a value outside its bounds."""

    code = "bad_parameter"


class NonFiniteScores(ExplainError):
    """The model answered NaN or infinity."""

    code = "non_finite_scores"


class NonFiniteMap(ExplainError):
    """The attribution holds NaN or infinity although the scores are finite."""

    code = "non_finite_map"


class NotComparable(ExplainError):
    """Two things that have no common shape: maps of other sizes, features with another number of channels."""

    code = "not_comparable"
