"""An evaluation as one HTML file: no script, nothing from anywhere else."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from app import charts
from app.evaluation import Estimate, Evaluation, Figures, MethodSummary, Outcome, estimate, words
from app.schemas.answers import Curves

CONTROL_NAMES = {"centre": "centre first", "edge": "edge first"}
ELSEWHERE = "same shape elsewhere"

_TEMPLATES = Path(__file__).parent / "web" / "templates"


def page(evaluation: Evaluation) -> str:
    """Return the page; it follows the reader's wish for light or dark."""
    stability = any(row.noise is not None or row.mirror is not None for row in evaluation.methods)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("evaluation.html").render(
        evaluation=evaluation,
        stability=stability,
        controls=CONTROL_NAMES,
        elsewhere=ELSEWHERE,
        words=words,
        figures=_figures,
        cells=lambda row: _cells(row, stability),
        margins=_margins(evaluation) if evaluation.methods else "",
        curves=_curves(evaluation) if evaluation.methods else "",
        tried=len(evaluation.outcomes) + len(evaluation.failures),
    )


def _figures(row: Figures) -> Markup:
    """Return the cells that every order has."""
    return Markup().join(
        [_cell(row.insertion, "{:.2f}"), _cell(row.deletion, "{:.2f}"), _cell(row.gain, "{:+.2f}")],
    )


def _cells(row: MethodSummary, stability: bool) -> Markup:
    """Return the cells that only methods have."""
    cells = [_cell(row.margin, "{:+.2f}"), _cell(row.better, "{:.0%}"), _cell(row.inconclusive, "{:.0%}")]
    if stability:
        cells += [_cell(row.noise, "{:.2f}"), _cell(row.mirror, "{:.2f}")]
    cells.append(_cell(row.seconds, "{:.2g}"))
    return Markup().join(cells)


def _cell(value: Estimate | None, form: str) -> Markup:
    if value is None:
        return Markup("<td>&ndash;</td>")
    mean = form.format(value.mean)
    if value.low is None or value.high is None:
        return Markup("<td>{}</td>").format(mean)
    return Markup("<td>{}<small>{} … {}</small></td>").format(mean, form.format(value.low), form.format(value.high))


def _margins(evaluation: Evaluation) -> Markup:
    rows = [
        charts.Margins(
            method=row.name,
            values=[o.faithfulness.margin for o in evaluation.outcomes if o.method == row.name],
            mean=row.margin.mean,
            interval=None if row.margin.low is None or row.margin.high is None else (row.margin.low, row.margin.high),
        )
        for row in evaluation.methods
    ]
    label = "For each method, its lead over the same shape elsewhere on each picture, and the mean with its interval"
    return _inline(charts.margins_chart(rows, "svg"), label)


def _curves(evaluation: Evaluation) -> Markup:
    rows = [
        _mean_curves(row.name, [o for o in evaluation.outcomes if o.method == row.name], evaluation.seed)
        for row in evaluation.methods
    ]
    label = "For each method, the model's probability while pictures are put back, or taken away, region by region"
    return _inline(charts.curves_chart(rows, "svg"), label)


def _mean_curves(title: str, outcomes: Sequence[Outcome], seed: int) -> "charts.Curves":
    faithful = [outcome.faithfulness for outcome in outcomes]
    insertion, deletion = [each.insertion_curves for each in faithful], [each.deletion_curves for each in faithful]
    bands = (
        [_band([curves.map for curves in way], seed) for way in (insertion, deletion)] if len(faithful) > 1 else None
    )
    return charts.Curves(
        title=title,
        fractions=faithful[0].fractions,
        insertion=_means(insertion),
        deletion=_means(deletion),
        bands=None if bands is None else (bands[0], bands[1]),
    )


def _means(curves: Sequence[Curves]) -> dict[str, list[float]]:
    return {order: np.mean([getattr(each, order) for each in curves], axis=0).tolist() for order in Curves.model_fields}


def _band(curves: Sequence[Sequence[float]], seed: int) -> "charts.Band":
    points = [estimate(values, seed=seed) for values in zip(*curves, strict=True)]
    return charts.Band([point.low or 0.0 for point in points], [point.high or 0.0 for point in points])


def _inline(svg: bytes, label: str) -> Markup:
    return Markup(charts.inline_svg(svg, label=label))  # noqa: S704 - matplotlib escapes what it writes
