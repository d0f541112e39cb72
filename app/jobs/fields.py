"""Names of FiftyOne's fields: one for each method and each class that was asked for."""

import re
from collections.abc import Sequence

from app.class_names import most_classes
from app.schemas.options import ClassName


def field(method: str, place: int, targets: Sequence[ClassName], count: int, of: tuple[str, int]) -> str:
    """Name the field for the target in that place, of the `count` which `targets` asked for.

    A class that was asked for by its rank is called so, `gradcam_predicted` or `gradcam_top_2`, since it is another one
    in each picture; else it is called by label and index (`of`), `gradcam_tabby_281`.
    """
    ranks = [rank for name in targets for rank in _ranks(name)]
    asked = ranks[place] if len(ranks) == count else None  # a model may have fewer classes than top<n> asks for
    return re.sub(r"[\W_]+", "_", f"{method.replace('+', 'p')}_{asked or _of_class(*of)}", flags=re.ASCII).lower()


def _ranks(name: ClassName) -> list[str | None]:
    """Return what each class is called that one `target` names; None where it names a class."""
    if name == "predicted":
        return ["predicted"]
    if isinstance(name, str) and re.fullmatch(r"top[0-9]+", name):
        return [f"top_{rank}" for rank in range(1, most_classes(name) + 1)]
    return [None]


def _of_class(label: str, index: int) -> str:
    return f"{label}_{index}"
