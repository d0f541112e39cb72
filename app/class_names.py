"""How people name classes: by index, by label, as `predicted`, or as `top3`."""

import re
from collections.abc import Sequence

from app.errors import LimitExceeded, UnknownLabel
from app.schemas.options import ClassName
from explainers import Rank, Target
from explainers.errors import close_matches
from models.loading import LoadedModel

_TOP = re.compile(r"top([0-9]{1,4})")


def targets_of(
    names: Sequence[ClassName], versus: ClassName | None, model: LoadedModel, limit: int
) -> tuple[Target, ...]:
    """Return the targets that are meant, each against `versus`; raises `UnknownLabel`, `LimitExceeded`."""
    against = None if versus is None else class_of(versus, model, "versus")
    chosen: list[int | Rank] = []
    for name in names:
        chosen += _classes(name, model)
        if len(chosen) > limit:
            msg = f"More targets were asked for than the limit of {limit} (HEATLENS_MAX_TARGETS)."
            raise LimitExceeded(msg, field="target", limit=limit)
    return tuple(Target(of, against) for of in chosen)


def class_of(name: ClassName, model: LoadedModel, field: str) -> int | Rank:
    """Return the class that is meant: an index (unchecked), `predicted`, or a label, whatever its case.

    Raises `UnknownLabel` for a label that no class has, or several have.
    """
    if isinstance(name, int):
        return name
    if name == "predicted":
        return Rank(0)
    found = [index for index, label in enumerate(model.labels) if label == name]
    found = found or [index for index, label in enumerate(model.labels) if label.casefold() == name.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        msg = f"{field}: {len(found)} classes are called {name!r}; give the index, one of {', '.join(map(str, found))}."
        raise UnknownLabel(msg, field=field, choices=found)
    part = [label for label in model.labels if name.casefold() in label.casefold()]
    part.sort(key=lambda label: name.casefold() not in label.casefold().split())  # whole words first
    close = part[:3] or close_matches(name, model.labels)
    hint = f"did you mean {', '.join(map(repr, close))}?" if close else "see /v1/models/{model}/labels."
    msg = f"{field}: the model has no class {name!r}; {hint}"
    raise UnknownLabel(msg, field=field, close_matches=close)


def most_classes(name: ClassName) -> int:
    """Return how many classes one `target` names at most: n of `top<n>`, else one."""
    top = _TOP.fullmatch(name) if isinstance(name, str) else None
    return max(1, int(top[1])) if top else 1


def _classes(name: ClassName, model: LoadedModel) -> list[int | Rank]:
    """Resolve one `target`: as `class_of`, or `top<n>` (as many as the model has)."""
    if isinstance(name, str) and (top := _TOP.fullmatch(name)) and int(top[1]) > 0:
        return [Rank(place) for place in range(min(int(top[1]), len(model.labels)))]
    return [class_of(name, model, "target")]
