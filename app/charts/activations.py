"""The chart of what the layers of a network gave."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.charts.canvas import CENTRE, EDGE, MAP, SOFT, ChartFormat
from app.charts.flow import called
from app.charts.rows import Panel, Row, RowChart
from app.charts.scales import signed_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from explainers.diagnostics.activations import LayerActivation


def activations_chart(layers: "Sequence[LayerActivation]", format_: ChartFormat) -> bytes:
    """Draw the layers' outputs, a row per call of a layer, the first that ran at the top.

    On the left are the values: a thin line from the smallest to the largest, a thick one a standard deviation to either
    side of the mean, which is a dot. On the right are the shares of values that are 0 and that are saturated, and of
    channels that are 0 everywhere, as far as there are any. Rows with values that are not finite are marked.
    """
    bad = sum(1 for layer in layers if layer.nan or layer.inf)
    chart = RowChart(
        title="Activations" + (f": not finite in {bad} of {len(layers)} calls" if bad else ""),
        lines=["All numbers are of the finite values."] if bad else [],
        rows=[_row(layer) for layer in layers],
        panels=[Panel("values: range, mean ± deviation", 3.4), Panel("shares", 2.9)],
        wrong=bool(bad),
    )
    return chart.drawn(format_, lambda axes: _paint(axes, layers))


def _paint(axes: "list[Axes]", layers: "Sequence[LayerActivation]") -> None:
    _paint_values(axes[0], layers)
    shares = {
        "zeros": (CENTRE, [_percent(layer.zero_fraction) for layer in layers]),
        "saturated": (MAP, [_percent(layer.saturated_fraction) for layer in layers]),
        "dead channels": (EDGE, [_percent(_dead_share(layer)) for layer in layers]),
    }
    for marker, (name, (colour, values)) in zip("oDs", shares.items(), strict=True):
        axes[1].plot(values, range(len(layers)), ls="none", marker=marker, ms=3.6, color=colour, label=name, alpha=0.9)
    axes[1].set_xlim(-3, 103)
    axes[1].set_xticks([0, 25, 50, 75, 100], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes[1].legend(loc="lower right", ncols=3, handletextpad=0.1, columnspacing=1, labelcolor=SOFT)


def _paint_values(axes: "Axes", layers: "Sequence[LayerActivation]") -> None:
    found = [
        (place, layer.min, layer.mean - layer.std, layer.mean, layer.mean + layer.std, layer.max)
        for place, layer in enumerate(layers)
        if None not in (layer.min, layer.max)
        and layer.mean is not None
        and layer.std is not None
        and math.isfinite(layer.mean + layer.std)
    ]
    if not found:
        return
    places, low, left, mean, right, high = zip(*found, strict=True)
    axes.hlines(places, low, high, color=CENTRE, lw=0.9)
    axes.hlines(places, left, right, color=CENTRE, lw=3.2, alpha=0.55)
    axes.plot(mean, places, ls="none", marker="o", ms=3, color=MAP)
    axes.axvline(0, color=SOFT, lw=0.8, zorder=0)
    signed_axis(axes, [*low, *high])


def _dead_share(layer: "LayerActivation") -> float | None:
    return layer.dead_channels / layer.channels if layer.dead_channels is not None and layer.channels else None


def _percent(share: float | None) -> float:
    return 100.0 * share if share else math.nan


def _row(layer: "LayerActivation") -> Row:
    facts = [f"{layer.nan} NaN"] * bool(layer.nan) + [f"{layer.inf} Inf"] * bool(layer.inf)
    if layer.dead_channels:
        facts.append(f"{layer.dead_channels} of {layer.channels} dead")
    if layer.mean is None and not facts:
        facts.append("no values")
    return Row(called(layer.name, layer.call, layer.calls), layer.type, ", ".join(facts), bool(layer.nan or layer.inf))
