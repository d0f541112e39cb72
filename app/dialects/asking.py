"""What the dialects ask of the service: one map of one picture, and the numbers of it."""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.class_names import most_classes
from app.drawing import Drawing
from app.errors import BadOption, LimitExceeded, UnknownOption
from app.schemas.answers import Facts, MapFacts
from app.schemas.checking import REPEATABLE, check
from app.schemas.options import MapOptions, PredictOptions, QuestionOptions
from app.service import Explained, Service

MAP = frozenset({*QuestionOptions.model_fields, "max_side"})
"""Options that decide on a map."""
PICTURE = MAP | {"view", "colormap", "alpha", "legend"}
"""Those, and the ones that decide on how it is drawn."""
TRUST = frozenset({"faithfulness", "stability"})

LIST_SIDE_PX = 512
"""The longest side of a map written out as decimal numbers, of which each takes some 20 bytes."""


class Asking:
    """Reads the options that a dialect takes; `max_side` is the dialect's default."""

    def __init__(self, service: Service, able: Collection[str], max_side: int) -> None:
        self._parameters = service.catalogue.parameter_schemas()
        self._able = able
        self._max_side = max_side

    def options(self, model: str, raw: Mapping[str, Any]) -> tuple[MapOptions, dict[str, Any]]:
        """Return the checked options and the method's own parameters, unchecked; the model is the one of the path."""
        for name in sorted(raw.keys() & MapOptions.model_fields.keys()):
            if name == "model" or name not in self._able:
                valid = sorted(set(self._able) - {"model"})
                msg = f"{name} cannot be chosen here; valid are {', '.join(valid)}, and the method's own parameters."
                raise BadOption(msg, field=name, choices=valid)
        given = {name: [value] if _lonely(name, value) else value for name, value in raw.items()}
        filled = {"max_side": self._max_side, **given, "model": model}
        options, parameters = check(MapOptions, filled, parameters=self._parameters)
        require_one_class(options, "target: one map is answered, so give one target; /v1/explain takes several.")
        return options, parameters


class Explanation:
    """One picture, explained for one class."""

    def __init__(self, explained: Explained, options: MapOptions) -> None:
        self._drawing = Drawing(explained, options)
        self._transparent = options.view == "layer"

    @property
    def facts(self) -> Facts:
        """What there is to say of the picture."""
        return self._drawing.facts()

    @cached_property
    def map_facts(self) -> MapFacts:
        """What there is to say of the map."""
        return self._drawing.map_facts()[0]

    @property
    def heat(self) -> NDArray[np.float32]:
        """The raw signed map in the displayed frame, `(H, W)`."""
        return self._drawing.heat(0)

    def picture(self) -> bytes:
        """The drawn picture: JPEG, or PNG where it is transparent."""
        return self._drawing.picture(0, "png" if self._transparent else "jpeg")


def predict_options(model: str, raw: Mapping[str, Any]) -> PredictOptions:
    """Return the checked options of a classification by the model of the path."""
    if "model" in raw:
        raise BadOption("model cannot be chosen here: it is the one of the path.", field="model", choices=["top"])
    if unknown := sorted(raw.keys() - {"top"}):
        name = unknown[0][:100]
        raise UnknownOption(f"There is no option {name!r}; valid is top.", field=name, choices=["top"])
    return check(PredictOptions, {**raw, "model": model})[0]


def require_one_class(options: QuestionOptions, words: str) -> None:
    """Raise `BadOption` with these words where more than one class is asked about."""
    if sum(map(most_classes, options.target)) > 1:
        raise BadOption(words, field="target", limit=1)


def check_list_side(options: MapOptions) -> None:
    """Raise `LimitExceeded` for a map that is too large to be written out in decimal numbers."""
    if options.max_side > LIST_SIDE_PX:
        msg = (
            f"max_side is {options.max_side}; a map that is written out in decimal numbers has {LIST_SIDE_PX} at most."
        )
        raise LimitExceeded(msg, field="max_side", limit=LIST_SIDE_PX)


def _lonely(name: str, value: object) -> bool:
    return name in REPEATABLE and not isinstance(value, list)
