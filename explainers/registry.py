"""The methods by name: one dictionary behind three functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from explainers.batch import Batch, Maps
from explainers.errors import UnknownMethod, close_matches

Family = Literal["cam", "gradient", "perturbation", "attention"]
CostClass = Literal["low", "medium", "high"]


@dataclass(frozen=True)
class Method:
    """A method and what people need to know to choose it."""

    name: str
    family: Family
    summary: str
    weakness: str
    sanity: str
    """Whether the map changes when the model's weights are randomised (Adebayo et al. 2018, arXiv:1810.03292).

    Begins with "Passes", "Fails" or "Not".
    """
    paper: str
    cost: str
    cost_class: CostClass
    """low: a few passes of the model; medium: tens of them; high: hundreds or thousands."""
    parameters: type[BaseModel]
    run: Callable[[Batch, Any], Maps]
    max_layers: int = 0
    """How many layers it can look at; 0: it looks at the input, or finds what it looks at."""
    class_specific: bool = True
    """Whether the map depends on the target at all."""
    uses_gradients: bool = True
    repeatable: bool = True
    """Whether the same again gives the same map: not for a method that draws random numbers without a `seed`."""
    display_percentile: float = 100.0
    """The percentile of the positive map that is drawn at full heat: below 100 where single pixels stick out."""

    @property
    def fails_randomisation(self) -> bool:
        """Whether the map stays much the same when the model is randomised: what it shows is not what was learnt."""
        return self.sanity.startswith("Fails")


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
    close = close_matches(name, _METHODS)
    hint = f"did you mean {', '.join(map(repr, close))}?" if close else f"valid are {', '.join(names())}."
    msg = f"There is no method {name!r}; {hint}"
    raise UnknownMethod(msg, choices=names(), close_matches=close)
