"""What can go wrong with models: one small tree that knows no HTTP.

No text names a folder of the server, and none quotes what foreign code said: the cause of an error is chained
(`raise ... from`), for the log and for the operator.
"""

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


def did_you_mean(close: Iterable[str]) -> str:
    """Return " Did you mean 'a', 'b'?", or nothing if there is no close match."""
    listed = ", ".join(map(repr, close))
    return f" Did you mean {listed}?" if listed else ""


class ModelError(Exception):
    """Base of all errors of this package.

    `code` is a stable word for programs, `field` the option at fault (or None), `extra` holds facts that a
    program may want (limits, choices, close matches). The text is a full sentence that may be shown to anybody.
    """

    code: ClassVar[str] = "model_error"
    field: ClassVar[str | None] = None

    def __init__(self, detail: str, **extra: object) -> None:
        super().__init__(detail)
        self.extra = extra


class UnknownModel(ModelError):
    """No model has this name (`close_matches`)."""

    code = "unknown_model"
    field = "model"


class InvalidModelFile(ModelError):
    """A TOML file in the models folder says something that cannot be (`file`, `key`)."""

    code = "invalid_model_file"


class UnknownArchitecture(ModelError):
    """`arch` names no network that can be built, or its factory failed."""

    code = "unknown_architecture"


class UnsupportedModule(ModelError):
    """The network is of a kind that cannot be explained here: scripted, quantised, with uninitialised weights."""

    code = "unsupported_module"


class WeightsUnavailable(ModelError):
    """The weights are not on this machine and were not, or could not be, downloaded (`file`)."""

    code = "weights_unavailable"


class InvalidWeights(ModelError):
    """The weights' file cannot be read safely as a state dict (`file`)."""

    code = "invalid_weights"


class ChecksumMismatch(InvalidWeights):
    """The file is not the one that the specification names (`expected`, `found`)."""

    code = "checksum_mismatch"


class WeightsMismatch(InvalidWeights):
    """The state dict is not this network's (`missing`, `unexpected`, `wrong_shape`)."""

    code = "weights_mismatch"


class CheckForwardFailed(ModelError):
    """The network does not accept what its preprocessing makes."""

    code = "check_forward_failed"


class InvalidOutput(ModelError):
    """The network's output is not what the specification says: selector, shape or number of labels."""

    code = "invalid_output"


class NonFiniteOutput(ModelError):
    """The network answered NaN or infinity."""

    code = "non_finite_output"


class WrongChannels(ModelError):
    """The model takes another number of channels than the picture or array has (`channels`, `given`)."""

    code = "wrong_channels"
    field = "image"
