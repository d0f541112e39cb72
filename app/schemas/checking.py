"""Checking options: every fault is named with the field, the limit and the valid choices."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from app.errors import BadOption, UnknownOption
from app.known_errors import close_matches

Options = TypeVar("Options", bound=BaseModel)

REPEATABLE = frozenset({"target", "layer", "label", "with_layer"})
"""Options that may be given several times."""
_CLASSES = frozenset({"target", "versus", "label", "with_target", "with_versus"})
"""Options that name classes."""

_INDEX = re.compile(r"-?[0-9]{1,9}")
_LIMITS = frozenset({"ge", "gt", "le", "lt", "min_length", "max_length"})
"""What pydantic calls a limit."""


def from_text(name: str, value: str) -> str | int:
    """Return an option that came as text (query, form, command line).

    A number that names a class is its index. In a query a plus means a space, but no method's name has a space.
    """
    if name in ("method", "with_method"):
        return value.replace(" ", "+")
    return int(value) if name in _CLASSES and _INDEX.fullmatch(value) else value


def check(
    model: type[Options], options: Mapping[str, Any], *, parameters: Iterable[str] = ()
) -> tuple[Options, dict[str, Any]]:
    """Split and check options: those of `model`, and those named in `parameters`, which the caller checks.

    Raises `UnknownOption` with close matches, `BadOption` with the field, its value's fault and the valid choices.
    """
    known = set(model.model_fields)
    others = set(parameters) - known
    unknown = sorted(options.keys() - known - others)
    if unknown:
        valid = sorted(known | others)
        close = close_matches(unknown[0], valid)
        hint = f"did you mean {', '.join(map(repr, close))}?" if close else f"valid are {', '.join(valid)}."
        msg = f"There is no option {unknown[0][:100]!r}; {hint}"
        raise UnknownOption(msg, field=unknown[0][:100], choices=valid, close_matches=close)
    try:
        checked = model.model_validate({name: options[name] for name in options if name in known})
    except ValidationError as error:
        raise bad_option(error) from error
    return checked, {name: options[name] for name in options if name not in known}


def bad_option(error: ValidationError) -> BadOption:
    """Return what pydantic found first, in our words."""
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0] if first["loc"] else first.get("ctx", {}).get("field", "body"))
    message = first["msg"][0].lower() + first["msg"][1:]
    if field in _CLASSES and first["type"] == "int_type":  # of what may be either, pydantic tells of the first
        message = "input should be the index of a class, or a label of 1 to 200 characters"
    facts: dict[str, Any] = {name: value for name, value in first.get("ctx", {}).items() if name in _LIMITS}
    if first["type"] == "literal_error":
        facts["choices"] = re.findall(r"'([^']*)'", first["ctx"]["expected"])
    return BadOption(f"{field}: {message}.", field=field, **facts)
