"""Colour maps against facts published about them, and as perceptual scales."""

import numpy as np
import pytest
from numpy.typing import NDArray

from app.imaging.colormaps import COLORMAPS

LUMA = np.array([0.299, 0.587, 0.114])


@pytest.mark.parametrize("table", COLORMAPS.values(), ids=COLORMAPS.keys())
def test_shape(table: NDArray[np.uint8]) -> None:
    assert table.shape == (256, 3)
    assert table.dtype == np.uint8
    assert not table.flags.writeable


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        # matplotlib's _cm_listed.py, first and last entries x 255
        ("inferno", (0.001462, 0.000466, 0.013866), (0.988362, 0.998364, 0.644924)),
        ("magma", (0.001462, 0.000466, 0.013866), (0.987053, 0.991438, 0.749504)),
        ("plasma", (0.050383, 0.029803, 0.527975), (0.940015, 0.975158, 0.131326)),
        ("viridis", (0.267004, 0.004874, 0.329415), (0.993248, 0.906157, 0.143936)),
    ],
)
def test_ends_in_rgb_order(name: str, low: tuple[float, ...], high: tuple[float, ...]) -> None:
    for entry, published in ((0, low), (255, high)):
        assert np.abs(COLORMAPS[name][entry] - 255 * np.array(published)).max() <= 1.0


def test_turbo_goes_from_blue_to_red() -> None:
    table = COLORMAPS["turbo"].astype(int)
    assert table[30, 2] > table[30, 0] + 50
    assert table[240, 0] > table[240, 2] + 50


@pytest.mark.parametrize("name", sorted(set(COLORMAPS) - {"turbo"}))
def test_brightness_grows_all_the_way(name: str) -> None:
    """More is lighter, so the map survives gray printing; single steps may fall by rounding."""
    brightness = COLORMAPS[name] @ LUMA
    assert (brightness[8:] > brightness[:-8]).all()


def test_nobody_can_change_them() -> None:
    with pytest.raises(TypeError):
        COLORMAPS["mine"] = COLORMAPS["turbo"]  # type: ignore[index]
