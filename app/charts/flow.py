"""The chart of the gradients of a network, layer by layer."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.charts.canvas import CENTRE, MAP, SOFT, ChartFormat
from app.charts.rows import Panel, Row, RowChart
from app.charts.scales import log_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from explainers.diagnostics.answer import GradientFlow, LayerFlow

_MEANINGS = {
    "ok": "ok, nothing stands out",
    "vanishing": "vanishing",
    "exploding": "exploding",
    "dead": "dead layers",
    "disconnected": "layers without gradient",
    "non_finite": "not finite",
}
_FINDINGS_SHOWN = 4


def gradient_flow_chart(flow: "GradientFlow", format_: ChartFormat) -> bytes:
    """Draw the gradients, a row per call of a layer, the first that ran at the top: what came back goes upwards.

    On the left is the L2 norm of the gradient at the layer's output, on the right, for each of its parameters, the
    norm of its gradient over its own, both logarithmic. The title says the verdict; below it are the reasons, and what
    else there is to say. The rows of the layers that they name are marked, and say why. A gradient that is missing, 0
    or not finite is no point of the line but a note at the row's end.
    """
    kinds = _kinds(flow)
    reasons = [finding.reason for finding in flow.verdict.findings]
    more = [f"… and {len(reasons) - _FINDINGS_SHOWN} more findings."] if len(reasons) > _FINDINGS_SHOWN else []
    chart = RowChart(
        title=f"Gradient flow: {_MEANINGS.get(flow.verdict.kind, flow.verdict.kind)}",
        lines=[*reasons[:_FINDINGS_SHOWN], *more, *flow.verdict.notes],
        rows=[_row(layer, kinds.get(layer.name, [])) for layer in flow.layers],
        panels=[Panel("gradient at the output, L2", 3.4), Panel("gradient / value", 2.5)],
        wrong=flow.verdict.kind != "ok",
    )
    return chart.drawn(format_, lambda axes: _paint(axes, flow.layers))


def _paint(axes: "list[Axes]", layers: "Sequence[LayerFlow]") -> None:
    norms = [_drawable(layer.grad_output_norm) for layer in layers]
    log_axis(axes[0], [norm for norm in norms if not math.isnan(norm)])
    axes[0].plot(norms, range(len(layers)), color=MAP, lw=1.2, marker="o", ms=3)
    ratios = [
        (_drawable(parameter.ratio), place, parameter.name)
        for place, layer in enumerate(layers)
        for parameter in layer.parameters
    ]
    log_axis(axes[1], [ratio for ratio, _, _ in ratios if not math.isnan(ratio)])
    for is_weight, style in ((True, {"ms": 4}), (False, {"mfc": "none", "ms": 4})):
        chosen = [(ratio, place) for ratio, place, name in ratios if (name == "weight") == is_weight]
        axes[1].plot(
            [ratio for ratio, _ in chosen],
            [place for _, place in chosen],
            ls="none",
            marker="o",
            color=CENTRE,
            label="weight" if is_weight else "others",
            **style,
        )
    axes[1].legend(loc="lower right", ncols=2, handletextpad=0.1, columnspacing=1, labelcolor=SOFT)


def _drawable(value: float | None) -> float:
    """Return a value that a logarithmic axis has a place for, else NaN, which interrupts the line."""
    return value if value is not None and math.isfinite(value) and value > 0.0 else math.nan


def _kinds(flow: "GradientFlow") -> Mapping[str, list[str]]:
    """Return, for each layer that a finding names, of what kind the findings are."""
    kinds: dict[str, list[str]] = {}
    for finding in flow.verdict.findings:
        for layer in finding.layers:
            kinds.setdefault(layer, []).append(finding.kind.replace("_", " "))
    return kinds


def _row(layer: "LayerFlow", kinds: Sequence[str]) -> Row:
    facts = [f"{layer.nan} NaN"] * bool(layer.nan) + [f"{layer.inf} Inf"] * bool(layer.inf)
    if layer.grad_output_norm is None:
        facts.append("no gradient")
    elif layer.grad_output_norm == 0.0 and not facts:
        facts.append("zero")
    note = ", ".join([*dict.fromkeys(kinds), *facts])
    return Row(called(layer.name, layer.call, layer.calls), layer.type, note, marked=bool(kinds))


def called(name: str, call: int, calls: int) -> str:
    """Return the name of a layer, with the number of the call where there are several."""
    return name if calls == 1 else f"{name} ({call} of {calls})"
