"""The raw signed map to the display map in [0, 1]. Raw numbers stay raw; this is what gets colours."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.imaging.placement import Placed


@dataclass(frozen=True)
class DisplayMap:
    """What is shown and how it came about.

    `values` is float32 (H, W) in [0, 1], 0 outside what was seen. `scale` is the raw value shown as 1 (0.0 if there is
    no positive evidence); `normalisation` names the rule, e.g. "positive/p99".
    """

    values: NDArray[np.float32]
    scale: float
    normalisation: str
    no_positive_evidence: bool


def display(placed: Placed, raw: NDArray[np.float32], percentile: float) -> DisplayMap:
    """Divide the positive part of a placed map by a percentile of the raw map's positive values, and clip at 1.

    `raw` is the map before it was placed: what counts as evidence and what is full heat do not depend on the size of
    the answer. The percentile (above 0, up to 100 = maximum) is taken over the positive values alone, so that a map
    with one small hot spot still has a scale. There is no absolute threshold: a map of 1e-30 is shown like one of 1e30.
    `no_positive_evidence` holds exactly if no raw value is positive; the display map is then 0 everywhere.

    Raises `ValueError` for a percentile out of range or a map that is not finite.
    """
    if not 0.0 < percentile <= 100.0:
        raise ValueError(f"percentile must be above 0 and at most 100, not {percentile}")
    if not np.isfinite(raw).all():
        raise ValueError("the map holds values that are not finite")
    normalisation = f"positive/p{percentile:g}"
    positive = raw[raw > 0.0]
    if positive.size == 0:
        return DisplayMap(np.zeros_like(placed.values), 0.0, normalisation, no_positive_evidence=True)
    # "lower" picks one of the values, so that no interpolation can round a tiny scale to zero.
    scale = np.percentile(positive, percentile, method="lower")
    values = np.clip(placed.values, 0.0, scale) / scale
    return DisplayMap(values, float(scale), normalisation, no_positive_evidence=False)
