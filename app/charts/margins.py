"""The chart of how much better than the same shape elsewhere each method's maps are, picture by picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from app.charts.canvas import INK, MAP, RANDOM, SOFT, ChartFormat, chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW_IN = 0.4


class Margins(NamedTuple):
    """A method's leads over the same shape elsewhere, one per picture, their mean and, if any, its interval."""

    method: str
    values: Sequence[float]
    mean: float
    interval: tuple[float, float] | None


def margins_chart(rows: Sequence[Margins], format_: ChartFormat) -> bytes:
    """Draw a row for each method: a dot per picture, the mean, and its interval; right of the line is better."""
    longest = max((len(row.method) for row in rows), default=0)
    left_in = 0.3 + 0.07 * longest
    size_in = left_in + 5.6, 0.95 + _ROW_IN * max(1, len(rows))
    return chart(size_in, format_, lambda figure: _paint(figure, rows, left_in))


def _paint(figure: "Figure", rows: Sequence[Margins], left_in: float) -> None:
    width_in, height_in = figure.get_size_inches()
    body_in = _ROW_IN * max(1, len(rows))
    axes = figure.add_axes((left_in / width_in, 0.5 / height_in, 5.4 / width_in, body_in / height_in))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.method for row in rows], color=INK, size=8.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.axvline(0, color=SOFT, lw=1.2, zorder=1)
    for place, row in enumerate(rows):
        dots = [place - 0.14] * len(row.values)
        axes.plot(row.values, dots, ls="none", marker="o", ms=4.5, color=RANDOM, alpha=0.7, mew=0)
        if row.interval is not None:
            axes.hlines(place + 0.2, *row.interval, color=MAP, lw=2.4, zorder=3)
        axes.plot([row.mean], [place + 0.2], marker="D", ms=5, color=MAP, zorder=4)
    axes.margins(x=0.05)
    axes.set_xlabel("lead: insertion minus deletion of the map, less that of the same shape elsewhere", labelpad=3)
    x, y = left_in / width_in, 1 - 0.12 / height_in
    figure.text(x, y, "dots: pictures; diamond: their mean, with its 95 % interval", va="top", color=SOFT)
