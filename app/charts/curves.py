"""The charts of the model's probability while a picture is filled in, or cleared, region by region."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from app.charts.canvas import CENTRE, EDGE, INK, MAP, RANDOM, SOFT, ChartFormat, chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = {
    "map": {"color": MAP, "lw": 2.2, "zorder": 4, "label": "the map's order"},
    "random": {"color": RANDOM, "lw": 1.4, "ls": (0, (4, 2)), "label": "the same shape elsewhere"},
    "centre": {"color": CENTRE, "lw": 1.2, "label": "from the centre"},
    "edge": {"color": EDGE, "lw": 1.2, "label": "from the edge"},
}
_PANEL_IN = 3.1


class Band(NamedTuple):
    """The bounds of what the map's curve may be, as long as the fractions."""

    low: Sequence[float]
    high: Sequence[float]


class Curves(NamedTuple):
    """Curves over the share of the picture, by order; `bands` is of the map's, of insertion and deletion."""

    title: str
    fractions: Sequence[float]
    insertion: Mapping[str, Sequence[float]]
    deletion: Mapping[str, Sequence[float]]
    bands: tuple[Band, Band] | None = None


def curves_chart(rows: Sequence[Curves], format_: ChartFormat) -> bytes:
    """Draw a row of two panels, insertion and deletion, for each of several curves, all on one scale."""
    row_in = 2.45
    size_in = 2 * _PANEL_IN + 1.35, row_in * len(rows) + 0.45
    return chart(size_in, format_, lambda figure: _paint(figure, rows, row_in))


def _paint(figure: "Figure", rows: Sequence[Curves], row_in: float) -> None:
    width_in, height_in = figure.get_size_inches()
    top = _top(rows)
    for number, curves in enumerate(rows):
        upper_in = height_in - number * row_in
        figure.text(
            0.12 / width_in, (upper_in - 0.08) / height_in, curves.title, va="top", weight="bold", size=9, color=INK
        )
        for column, (name, by_order) in enumerate((("insertion", curves.insertion), ("deletion", curves.deletion))):
            left_in, bottom_in = 0.55 + column * (_PANEL_IN + 0.45), upper_in - row_in + 0.48
            axes = figure.add_axes(
                (left_in / width_in, bottom_in / height_in, _PANEL_IN / width_in, (row_in - 0.82) / height_in)
            )
            _paint_panel(axes, curves, by_order, None if curves.bands is None else curves.bands[column])
            axes.set_ylim(0, top)
            if column == 0:
                axes.set_ylabel("probability", labelpad=3)
            verb = "put back, the rest blurred or gray" if name == "insertion" else "taken away"
            axes.set_xlabel(f"{name}: share of the picture {verb}", labelpad=2)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.4 / width_in, 0.02), ncols=4, labelcolor=SOFT)


def _paint_panel(axes: "Axes", curves: Curves, by_order: Mapping[str, Sequence[float]], band: Band | None) -> None:
    for order, style in _STYLES.items():
        if order in by_order:
            axes.plot(curves.fractions, by_order[order], **style)  # type: ignore[arg-type]
    if band is not None:
        axes.fill_between(curves.fractions, band.low, band.high, color=MAP, alpha=0.18, lw=0)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def _top(rows: Sequence[Curves]) -> float:
    """Return where the axis of probability ends: at 1, or nearer where nothing comes close."""
    curves = [values for row in rows for way in (row.insertion, row.deletion) for values in way.values()]
    curves += [band.high for row in rows for band in row.bands or ()]
    largest = max((value for values in curves for value in values), default=1.0)
    return 1.02 if largest > 0.5 else max(1e-6, 1.1 * largest)
