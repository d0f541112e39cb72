"""Charts with a row for every layer, the first that ran at the top: as long as the network is deep."""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from app.charts.canvas import INK, LINE, SOFT, WRONG, ChartFormat, chart, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_IN, _LONGEST_IN = 0.165, 120.0
_LEGIBLE_IN = 0.11
"""Rows lower than this have no words: where there are thousands, every n-th has."""
_NAME_CHARACTERS, _TYPE_CHARACTERS = 44, 22
_CHARACTER_IN, _LINE_IN, _PAD_IN, _GUTTER_IN = 0.064, 0.17, 0.15, 0.28
_NOTES_IN = 1.5
_ROWS_IN_VIEW = 30
"""Of more rows, the numbers of the axes are written at the foot as well."""


class Row(NamedTuple):
    """The words of a row: what it is called, its type, a note at its end, and whether it is marked."""

    name: str
    type: str
    note: str = ""
    marked: bool = False


class Panel(NamedTuple):
    """A column of the chart: its head, and its width in inches."""

    title: str
    width_in: float


@dataclass(frozen=True)
class RowChart:
    """A chart of rows: `panels` from left to right, behind the rows' words; below the title, `lines` of text."""

    title: str
    lines: Sequence[str]
    rows: Sequence[Row]
    panels: Sequence[Panel]
    wrong: bool = False
    """Whether the title is in the colour of trouble."""

    def drawn(self, format_: ChartFormat, paint: "Callable[[list[Axes]], None]") -> bytes:
        """Return the chart; `paint` fills the panels' axes, on which row i is at y = i; legends go beside the heads."""
        return chart((self._width_in, self._height_in), format_, lambda figure: self._paint(figure, paint))

    def _paint(self, figure: "Figure", paint: "Callable[[list[Axes]], None]") -> None:
        self._write_head(figure)
        axes = self._axes(figure)
        self._write_rows(figure)
        paint(axes)
        for ax in axes:
            if (legend := ax.get_legend()) is not None:
                legend.set_bbox_to_anchor((1, 1 + 0.3 / self._body_in))

    @cached_property
    def _row_in(self) -> float:
        return min(_ROW_IN, _LONGEST_IN / max(1, len(self.rows)))

    @cached_property
    def _name_in(self) -> float:
        return _PAD_IN + _CHARACTER_IN * max((len(plain(row.name, _NAME_CHARACTERS)) for row in self.rows), default=0)

    @cached_property
    def _words_in(self) -> float:
        longest = max((len(plain(row.type, _TYPE_CHARACTERS)) for row in self.rows), default=0)
        return self._name_in + _PAD_IN + _CHARACTER_IN * longest + _PAD_IN

    @cached_property
    def _width_in(self) -> float:
        return self._words_in + sum(panel.width_in + _GUTTER_IN for panel in self.panels) + _NOTES_IN

    @cached_property
    def _wrapped(self) -> list[str]:
        characters = int((self._width_in - 2 * _PAD_IN) / (0.92 * _CHARACTER_IN))
        return [part for line in self.lines for part in textwrap.wrap(line, characters)]

    @cached_property
    def _head_in(self) -> float:
        return 0.42 + _LINE_IN * len(self._wrapped) + 0.62

    @cached_property
    def _height_in(self) -> float:
        return self._head_in + self._body_in + 0.35

    @cached_property
    def _body_in(self) -> float:
        return self._row_in * max(1, len(self.rows))

    def _write_head(self, figure: "Figure") -> None:
        def write(text: str, top_in: float, **style: object) -> None:
            x, y = _PAD_IN / self._width_in, 1 - top_in / self._height_in
            figure.text(x, y, text, va="top", **style)  # type: ignore[arg-type]

        write(self.title, 0.14, size=11, weight="bold", color=WRONG if self.wrong else INK)
        for number, line in enumerate(self._wrapped):
            write(line, 0.42 + number * _LINE_IN, color=SOFT)

    def _axes(self, figure: "Figure") -> "list[Axes]":
        found, left = [], self._words_in
        top = 1 - self._head_in / self._height_in
        for panel in self.panels:
            place = (left / self._width_in, top - self._body_in / self._height_in)
            size = (panel.width_in / self._width_in, self._body_in / self._height_in)
            axes = figure.add_axes((*place, *size))
            axes.set_ylim(max(1, len(self.rows)) - 0.5, -0.5)
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            at_foot = len(self.rows) > _ROWS_IN_VIEW
            axes.tick_params(axis="x", top=True, labeltop=True, bottom=at_foot, labelbottom=at_foot)
            axes.grid(axis="x")
            axes.set_axisbelow(True)
            axes.set_title(panel.title, loc="left", size=8, color=INK, pad=19, weight="bold")
            found.append(axes)
            left += panel.width_in + _GUTTER_IN
        return found

    def _write_rows(self, figure: "Figure") -> None:
        """Write the words of the rows on an axes of their own, which lies under all and has the stripes."""
        bottom = (self._height_in - self._head_in - self._body_in) / self._height_in
        axes = figure.add_axes((0, bottom, 1, self._body_in / self._height_in), zorder=-1)
        axes.set_xlim(0, self._width_in)
        axes.set_ylim(max(1, len(self.rows)) - 0.5, -0.5)
        axes.axis("off")
        every = math.ceil(_LEGIBLE_IN / self._row_in)
        for number, row in enumerate(self.rows):
            if number % every == 0 or row.marked:
                self._write_row(axes, number, row)
        plain_rows = [number for number, row in enumerate(self.rows) if number % 2 and not row.marked]
        self._fill(axes, plain_rows, LINE, 0.28)
        self._fill(axes, [number for number, row in enumerate(self.rows) if row.marked], WRONG, 0.16)

    def _fill(self, axes: "Axes", rows: Sequence[int], colour: str, opacity: float) -> None:
        """Give rows a ground: all at once, as every patch of its own takes milliseconds."""
        from matplotlib.collections import PolyCollection

        width = self._width_in
        corners = [[(0, row - 0.5), (width, row - 0.5), (width, row + 0.5), (0, row + 0.5)] for row in rows]
        axes.add_collection(PolyCollection(corners, facecolors=colour, alpha=opacity, linewidths=0), autolim=False)

    def _write_row(self, axes: "Axes", number: int, row: Row) -> None:
        # Words of the figure, not of the axes: each of those gets a clip path of its own, which takes longer than it.
        style = {"va": "center_baseline", "size": 7.5, "transform": axes.transData}
        write = axes.figure.text
        write(_PAD_IN, number, plain(row.name, _NAME_CHARACTERS), color=INK, **style)  # type: ignore[arg-type]
        write(self._name_in + _PAD_IN, number, plain(row.type, _TYPE_CHARACTERS), color=SOFT, **style)  # type: ignore[arg-type]
        if row.note:
            colour = WRONG if row.marked else SOFT
            write(self._width_in - _NOTES_IN, number, row.note, color=colour, **style)  # type: ignore[arg-type]
