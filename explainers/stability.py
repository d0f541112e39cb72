"""Whether a map stays the same where the picture hardly changes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from explainers.diagnostics.comparison import rank_correlation

NOISE = 0.02
"""Standard deviation of the noise, as a share of the picture's range from darkest to brightest: hardly seen."""
NOISY = 2
"""How many noisy copies there are; the mirrored one comes after them."""
COPIES = NOISY + 1


@dataclass(frozen=True)
class Stability:
    """Rank correlations, in [-1, 1], of a map with the maps of changed copies of the picture.

    `noise`: the mean over the noisy copies; `mirror`: with the mirrored picture's map, mirrored back. None where a map
    is the same everywhere, or a copy has none.
    """

    noise: float | None
    mirror: float | None

    @property
    def words(self) -> str:
        """What the figures say, in plain sentences."""
        return f"{_told('noise that is hardly seen', self.noise)} {_told('mirroring the picture', self.mirror)}"


def changed(picture: NDArray[np.float32], *, seed: int = 0) -> NDArray[np.float32]:
    """Return the changed copies `(3, C, H, W)` of a model's input `(C, H, W)`: two noisy ones and the mirrored one.

    The noise is Gaussian, with a standard deviation of 2 % of the picture's range (its largest value minus its
    smallest): a seventh of what SmoothGrad adds by default. It depends on `seed` alone.
    """
    sigma = NOISE * float(picture.max() - picture.min())
    draws = [np.random.default_rng((seed, n)).standard_normal(picture.shape, np.float32) for n in range(NOISY)]
    return np.stack([*(picture + sigma * draw for draw in draws), picture[:, :, ::-1]])


def stability(
    maps: Sequence[NDArray[np.float32]], changed_maps: Sequence[Sequence[NDArray[np.float32] | None]]
) -> list[Stability]:
    """Compare each target's map `(h, w)` with those of the copies that `changed` returned.

    `changed_maps[copy][target]` is the map of the same class in a copy, in the copies' order; None where there is none.
    Explain the copies with the class that was explained in the picture itself, not with their own prediction. Raises
    `ValueError` for another number of copies or maps.
    """
    if len(changed_maps) != COPIES or any(len(copy) != len(maps) for copy in changed_maps):
        counts = [len(copy) for copy in changed_maps]
        msg = f"{len(maps)} maps need as many of each of the {COPIES} copies; there are {counts}."
        raise ValueError(msg)
    *noisy, mirrored = changed_maps
    return [
        Stability(
            noise=_mean([_agreement(map_, copy[k]) for copy in noisy]),
            mirror=_agreement(map_, None if (mirror := mirrored[k]) is None else np.fliplr(mirror)),
        )
        for k, map_ in enumerate(maps)
    ]


def _agreement(map_: NDArray[np.float32], other: NDArray[np.float32] | None) -> float | None:
    return None if other is None else rank_correlation(map_, other)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _told(change: str, value: float | None) -> str:
    if value is None:
        return f"Whether {change} changes the map cannot be said: there is a map that is the same everywhere, or none."
    if value >= 0.8:
        says = "hardly changes the map"
    elif value >= 0.5:
        says = "changes the map in part: its details are not to be relied on"
    else:
        says = "changes the map much: it is not to be relied on"
    return f"{change[0].upper()}{change[1:]} {says} (rank correlation {value:.2f})."
