"""The methods by name: one dictionary behind three functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from explainers.batch import Batch, Maps
from explainers.errors import UnknownMethod, close_matches


@dataclass(frozen=True)
class Method:
    """A method and what people need to know to choose it."""

    name: str
    family: Literal["cam", "gradient"]
    summary: str
    weakness: str
    paper: str
    cost: str
    layers: int
    """How many layers it looks at; 0: it looks at the input."""
    parameters: type[BaseModel]
    run: Callable[[Batch, Any], Maps]
    display_percentile: float = 100.0
    """The percentile of the positive map that is drawn at full heat: below 100 where single pixels stick out."""


_METHODS: dict[str, Method] = {}


def register(method: Method) -> None:
    """Add a method; each method's file does it once."""
    _METHODS[method.name] = method


def names() -> list[str]:
    """Return the methods' names, sorted."""
    return sorted(_METHODS)


def get(name: str) -> Method:
    """Return the method called `name`, or raise `UnknownMethod`."""
    if name in _METHODS:
        return _METHODS[name]
    msg = f"There is no method {name!r}; valid are {', '.join(names())}."
    raise UnknownMethod(msg, choices=names(), close_matches=close_matches(name, _METHODS))
