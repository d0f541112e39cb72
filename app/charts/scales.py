"""The axes of numbers that may be of any size."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TICKS = 5
_LINEAR_WITHIN = 1000.0
"""Up to this ratio of the largest value to the typical one, a linear axis shows both."""


def log_axis(axes: "Axes", values: Iterable[float]) -> None:
    """Make x logarithmic, with whole decades that hold all positive values, and at most five of them written out."""
    exponents = [math.log10(value) for value in values if value > 0.0]
    low, high = (math.floor(min(exponents)), math.ceil(max(exponents))) if exponents else (-1, 1)
    high = max(high, low + 1)
    step = -(-(high - low) // (_TICKS - 1))
    axes.set_xscale("log")
    axes.set_xlim(10.0 ** (low - 0.15), 10.0 ** (high + 0.15))
    _ticks(axes, [10.0**exponent for exponent in range(low, high + 1, step)])


def signed_axis(axes: "Axes", values: Iterable[float]) -> None:
    """Make x hold all values and 0: linear if that shows the typical one beside the largest, else by decades."""
    sizes = sorted(abs(value) for value in values if value)
    largest, typical = (sizes[-1], sizes[len(sizes) // 2]) if sizes else (1.0, 1.0)
    if largest <= _LINEAR_WITHIN * typical:
        axes.margins(x=0.04)
        axes.locator_params(axis="x", nbins=_TICKS + 2)
        return
    inner, outer = math.floor(math.log10(typical)), math.ceil(math.log10(largest))
    axes.set_xscale("symlog", linthresh=10.0**inner)
    sides = [10.0**exponent for exponent in {inner + 1, (inner + outer) // 2, outer}]
    _ticks(axes, sorted([-side for side in sides if min(values) < -side / 10] + [0.0, *sides]))


def _ticks(axes: "Axes", places: list[float]) -> None:
    axes.set_xticks(
        places, [f"{place:g}" if 0.01 <= abs(place) <= 1000 or not place else _power(place) for place in places]
    )
    axes.minorticks_off()


def _power(value: float) -> str:
    return f"{'-' if value < 0 else ''}1e{round(math.log10(abs(value)))}"
