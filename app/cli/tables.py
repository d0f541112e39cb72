"""What `heatlens diagnose` prints."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from app.cli.console import complain, print_table, say, text

if TYPE_CHECKING:
    from app.records import SanityRecord
    from app.schemas.diagnostics import (
        ActivationAnswer,
        CompareAnswer,
        FlowVerdict,
        GradientFlowAnswer,
        LayerActivation,
        LayerFlow,
        ParameterFlow,
        SensitivityAnswer,
    )

_COLOURS = {"ok": "green", "passes": "green", "undecided": "yellow"}
_FLOW_LEGEND = (
    "[dim]The gradient comes from below. Output, input: its L2 norm there; decay: against the layer before it on that\n"
    "way; params: the largest norm of a parameter's gradient over the parameter's own; -: none.[/]"
)


def print_flow(answer: "GradientFlowAnswer") -> None:
    """Print the gradients, a row per call of a layer, and below them the verdict, where the eye ends up."""
    columns = ["layer", "output", "input", "decay", "params", "zeros", "type", "notes"]
    rows = [_flow_row(layer) for layer in answer.layers] + [_parameter_row(own) for own in answer.parameters]
    print_table(columns, rows, whole=len(columns) - 2)
    say(_FLOW_LEGEND)
    kind = "score" if answer.objective.kind == "score" else "loss"
    value = answer.objective.value
    say(f"\n{kind} {'that is not finite' if value is None else f'{value:.4g}'} of {answer.pictures} picture(s)")
    _say_verdict(answer.verdict)


def print_activations(answer: "ActivationAnswer") -> None:
    """Print what the layers answered; of a named layer also how like each other the pictures are."""
    if answer.layers:
        columns = ["layer", "shape", "mean", "std", "min", "max", "zeros", "notes"]
        print_table(columns, [_activation_row(layer) for layer in answer.layers], whole=len(columns) - 1)
    if answer.embeddings is None:
        return
    if answer.embeddings.similarity is not None and answer.pictures > 1:
        say(f"\nSimilarity of the pictures in {escape(answer.embeddings.layer)} (cosine):")
        numbers = [str(number) for number in range(1, answer.pictures + 1)]
        rows = zip(numbers, answer.embeddings.similarity, strict=True)
        print_table(["", *numbers], [[number, *(_number(value, ".2f") for value in row)] for number, row in rows])
    if answer.embeddings.missing is not None:
        say(escape(f"\n{answer.embeddings.missing}"))


def print_sensitivity(answer: "SensitivityAnswer") -> None:
    """Print which unit was asked about, and what it answers."""
    unit = answer.unit
    parts = [f"{name} {value}" for name in ("channel", "row", "column") if (value := getattr(unit, name)) is not None]
    where = f"{unit.layer}, {', '.join(parts)}" if parts else f"{unit.layer}, all of it"
    say(escape(f"{where}: {unit.value:.4g}"))
    if answer.map.min == answer.map.max == 0.0:
        say("No pixel moves it: its gradient is zero everywhere.")


def print_comparison(answer: "CompareAnswer") -> None:
    """Print what was compared, how far it agrees, and the unit of the difference."""
    rows = [
        [place, side.model.name, text(side.method), text(side.layers), text(side.target and side.target.label)]
        for place, side in (("first", answer.first), ("second", answer.second))
    ]
    print_table(["", "model", "method", "layers", "class"], rows)
    say("")
    if answer.agreement is not None:
        say(escape(answer.agreement.words))
    difference = answer.difference
    say(f"difference from {difference.min:.3g} to {difference.max:.3g}, {difference.unit}")


def print_sanity(found: "Mapping[str, SanityRecord]", failed: Mapping[str, str]) -> None:
    """Print what became of each method's maps."""
    for name, record in found.items():
        colour = _COLOURS.get(record.verdict, "red")
        say(f"[{colour}]{record.verdict}[/]  [bold]{escape(name)}[/]")
        say(escape(record.words))
        print_table(
            ["similarity", "after these layers, and all behind them, were made up"],
            [[_number(stage.similarity, ".2f"), _range(stage.layers)] for stage in record.stages],
        )
        say("")
    for name, why in failed.items():
        complain(f"[red]failed[/]  {escape(f'{name}: {why}')}")


def print_json(facts: "Mapping[str, object]") -> None:
    """Print facts as JSON for machines."""
    print(json.dumps(facts, indent=2, default=lambda value: value.model_dump(mode="json")))  # noqa: T201


def _say_verdict(verdict: "FlowVerdict") -> None:
    colour = _COLOURS.get(verdict.kind, "red")
    say(f"[{colour}]{verdict.kind.replace('_', ' ')}[/]" + ("" if verdict.findings else ": nothing stands out"))
    for reason in [*(finding.reason for finding in verdict.findings), *verdict.notes]:
        say(escape(f"- {reason}"))


def _flow_row(layer: "LayerFlow") -> list[str]:
    ratios = [parameter.ratio for parameter in layer.parameters if parameter.ratio is not None]
    return [
        _called(layer),
        _number(layer.grad_output_norm, ".3g"),
        _number(layer.grad_input_norm, ".3g"),
        _number(layer.decay, ".2g"),
        _number(max(ratios, default=None), ".2g"),
        _number(layer.zero_fraction, ".0%"),
        layer.type,
        _bad(layer),
    ]


def _parameter_row(own: "ParameterFlow") -> list[str]:
    """Return the row of a parameter that belongs to no listed layer."""
    shape = "x".join(map(str, own.shape))
    return [own.name, "-", "-", "-", _number(own.ratio, ".2g"), _number(own.zero_fraction, ".0%"), shape, _bad(own)]


def _activation_row(layer: "LayerActivation") -> list[str]:
    saturated = f"sat. {layer.saturated_fraction:.0%}" if layer.saturated_fraction else ""
    dead = f"dead {layer.dead_channels}/{layer.channels}" if layer.dead_channels else ""
    return [
        _called(layer),
        "-" if layer.shape is None else "x".join(map(str, layer.shape[1:])),
        *(_number(value, ".3g") for value in (layer.mean, layer.std, layer.min, layer.max)),
        _number(layer.zero_fraction, ".0%"),
        ", ".join(filter(None, [_bad(layer), saturated, dead])),
    ]


def _called(layer: "LayerFlow | LayerActivation") -> str:
    return layer.name if layer.calls == 1 else f"{layer.name} ({layer.call} of {layer.calls})"


def _bad(layer: "LayerFlow | LayerActivation | ParameterFlow") -> str:
    return ", ".join([f"{layer.nan} NaN"] * bool(layer.nan) + [f"{layer.inf} Inf"] * bool(layer.inf))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _range(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]}, {len(names)} layers"
