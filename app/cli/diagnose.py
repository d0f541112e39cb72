"""`heatlens diagnose`: looking inside a model, without a server."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel
from rich.markup import escape

from app.cli import tables
from app.cli.console import fail, say, watched
from app.cli.options import AsJson, options_of
from app.cli.pictures import read
from app.cli.randomisation import randomisation
from app.cli.service import service_here

if TYPE_CHECKING:
    from app.charts import ChartFormat
    from app.engine import Watch
    from app.schemas.answers import Answer

diagnose_app = typer.Typer(
    no_args_is_help=True, help="Look inside a model: gradients, activations, what a unit sees, what two maps share."
)

Format = TypeVar("Format", bound=str)
Found = TypeVar("Found")
Options = TypeVar("Options", bound=BaseModel)
Answered = TypeVar("Answered", bound="Answer")
Images = Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Pictures.", exists=True, dir_okay=False)]
Image = Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture.", exists=True, dir_okay=False)]
Model = Annotated[str | None, typer.Option(help="Model name, see `heatlens models list`.")]
Chart = Annotated[Path | None, typer.Option(dir_okay=False, help="File for the chart, .svg or .png.")]
Alpha = Annotated[float | None, typer.Option(help="Opacity of the heat, 0 to 1.")]
Colormap = Annotated[str | None, typer.Option(help="Colours of the heat.")]
MaxSide = Annotated[int | None, typer.Option(help="Longest side of the result, in pixels.")]

_CHARTS: tuple["ChartFormat", ...] = ("svg", "png")
_PICTURES = ("jpeg", "png", "webp", "npy", "npz")


@diagnose_app.command("gradient-flow")
def gradient_flow(
    images: Images,
    model: Model = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Class whose score the gradient is of; once, or once for each picture.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="True class: the gradient of the training loss, in place of a score.")
    ] = None,
    chart: Chart = None,
    as_json: AsJson = False,
) -> None:
    """Say whether the gradient reaches every layer, and what is wrong where it does not.

    There is a row for each call of a layer, in the order in which they ran.
    """
    from app import diagnostic_answers as answers
    from app.diagnosing import Diagnostics
    from app.schemas.diagnostics import FlowOptions

    format_ = _format(chart, _CHARTS)
    options, _ = _checked(FlowOptions, {"model": model, "target": target, "label": label})
    with closing(service_here(model)) as service:
        ask = Diagnostics(service).gradient_flow
        flowed = _asked("following the gradient", lambda watch: ask(read(images), options, watch=watch))
    if chart is not None:
        _write(chart, answers.flow_chart(flowed, format_))
    _tell(answers.flow_answer(flowed), as_json, tables.print_flow, chart)


@diagnose_app.command("activations")
def activations(
    images: Images,
    model: Model = None,
    layer: Annotated[
        str | None, typer.Option(help="A layer whose feature maps are wanted, see `heatlens models layers`.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File for what --layer answers: .npz has all of it, .png, .jpg or .webp the first picture's maps.",
        ),
    ] = None,
    chart: Chart = None,
    colormap: Colormap = None,
    max_side: MaxSide = None,
    as_json: AsJson = False,
) -> None:
    """Say what every layer answers, in numbers; of one layer, all of it as arrays or as a picture of its maps."""
    from app import diagnostic_answers as answers
    from app.diagnosing import Diagnostics
    from app.schemas.diagnostics import ActivationOptions

    if out is not None and layer is None:
        fail("--out is for the features of one layer; name it with --layer (or take --chart).", code=2)
    chart_format, format_ = _format(chart, _CHARTS), _format(out, ("npz", "png", "jpeg", "webp"))
    options, _ = _checked(
        ActivationOptions, {"model": model, "layer": layer, "colormap": colormap, "max_side": max_side}
    )
    with closing(service_here(model)) as service:
        ask = Diagnostics(service).activations
        activated = _asked("looking at the layers", lambda watch: ask(read(images), options, watch=watch))
    if chart is not None:
        _write(chart, answers.activation_chart(activated, chart_format))
    if out is not None and (features := activated.features) is not None:
        with _said():
            arrays = format_ == "npz"
            drawn = answers.feature_arrays(features) if arrays else answers.feature_picture(features, options, format_)
        _write(out, drawn)
    _tell(answers.activation_answer(activated), as_json, tables.print_activations, chart, out)


@diagnose_app.command("sensitivity")
def sensitivity(
    image: Image,
    layer: Annotated[
        str | None, typer.Option(help="Layer, see `heatlens models layers`; default: the model's.")
    ] = None,
    channel: Annotated[int | None, typer.Option(min=0, help="The layer's channel; default: the mean of all.")] = None,
    row: Annotated[
        int | None, typer.Option(min=0, help="Row of the layer's grid, with --column; default: all.")
    ] = None,
    column: Annotated[int | None, typer.Option(min=0, help="Column of the layer's grid, with --row.")] = None,
    reduction: Annotated[
        str | None, typer.Option(help="How colour channels become one: max_abs or signed_sum.")
    ] = None,
    model: Model = None,
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Result, .jpg, .png, .webp, .npy or .npz; default: beside IMAGE."),
    ] = None,
    view: Annotated[str | None, typer.Option(help="overlay, heatmap, side_by_side or layer.")] = None,
    colormap: Colormap = None,
    alpha: Alpha = None,
    max_side: MaxSide = None,
    as_json: AsJson = False,
) -> None:
    """Show which pixels move a unit inside the network: a channel, a place, or both, of a layer."""
    from app import diagnostic_answers as answers
    from app.diagnosing import Diagnostics
    from app.schemas.diagnostics import SensitivityOptions

    out = out or image.with_name(f"{image.stem}.sensitivity.jpg")
    format_ = _format(out, _PICTURES)
    given = {
        "model": model, "layer": layer, "channel": channel, "row": row, "column": column, "reduction": reduction,
        "view": view, "colormap": colormap, "alpha": alpha, "max_side": max_side, "format": format_,
    }  # fmt: skip
    options, _ = _checked(SensitivityOptions, given)
    with closing(service_here(model)) as service:
        ask = Diagnostics(service).sensitivity
        sensed = _asked("asking the layer", lambda watch: ask(read([image])[0], options, watch=watch))
    drawing = answers.SensitivityDrawing(sensed, options)
    with _said():
        _write(out, drawing.binary(format_))
    _tell(drawing.answer(), as_json, tables.print_sensitivity, out)


@diagnose_app.command("compare")
def compare(
    image: Image,
    model: Model = None,
    method: Annotated[str | None, typer.Option(help="Method name, see `heatlens methods`.")] = None,
    target: Annotated[str | None, typer.Option(help="Class index, label or predicted.")] = None,
    versus: Annotated[str | None, typer.Option(help="Why the target and not this class.")] = None,
    layer: Annotated[list[str] | None, typer.Option(help="Target layer, see `heatlens models layers`.")] = None,
    with_model: Annotated[
        str | None, typer.Option(help="The second's model; like each of these, default: as the first.")
    ] = None,
    with_method: Annotated[str | None, typer.Option(help="The second's method.")] = None,
    with_target: Annotated[str | None, typer.Option(help="The second's target.")] = None,
    with_versus: Annotated[str | None, typer.Option(help="The second's --versus.")] = None,
    with_layer: Annotated[list[str] | None, typer.Option(help="The second's target layer.")] = None,
    of: Annotated[
        str | None, typer.Option(help="maps: two explanations; features: what a layer of each model answers.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="raw, relative or auto: the unit in which maps are compared.")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of the method's own parameters; with_NAME=VALUE: the second's."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Result, .jpg, .png, .webp, .npy or .npz; default: beside IMAGE."),
    ] = None,
    view: Annotated[str | None, typer.Option(help="overlay or heatmap.")] = None,
    colormap: Colormap = None,
    alpha: Alpha = None,
    max_side: MaxSide = None,
    as_json: AsJson = False,
) -> None:
    """Set two explanations of one picture beside each other: two models, methods, layers, targets or parameters.

    The result shows first, second and difference: red is more in the first, blue more in the second.
    """
    from app import comparison_answers as answers
    from app.comparing import Comparisons
    from app.schemas.diagnostics import CompareOptions

    out = out or image.with_name(f"{image.stem}.compare.jpg")
    format_ = _format(out, _PICTURES)
    given = {
        "model": model, "method": method, "target": None if target is None else [target], "versus": versus,
        "layer": layer, "with_model": with_model, "with_method": with_method, "with_target": with_target,
        "with_versus": with_versus, "with_layer": with_layer, "of": of, "scale": scale, "view": view,
        "colormap": colormap, "alpha": alpha, "max_side": max_side, "format": format_,
    }  # fmt: skip
    options, parameters = _checked(CompareOptions, given, parameter or [])
    with closing(service_here(model, with_model)) as service:
        ask = Comparisons(service)
        if options.of == "features":
            found = _asked("comparing", lambda watch: ask.features(read([image])[0], options, parameters, watch=watch))
            drawing: answers.MapsDrawing | answers.FeaturesDrawing = answers.FeaturesDrawing(found, options)
        else:
            maps = _asked("comparing", lambda watch: ask.maps(read([image])[0], options, parameters, watch=watch))
            drawing = answers.MapsDrawing(maps, options)
    with _said():
        _write(out, drawing.binary(format_))
    _tell(drawing.answer(), as_json, tables.print_comparison, out)


diagnose_app.command("randomisation")(randomisation)


def _format(file: Path | None, able: Sequence[Format]) -> Format:
    """Return the format that a file's name asks for; another one is wrong use. Without a file it does not matter."""
    if file is None:
        return able[0]
    ending = file.suffix.lower().removeprefix(".")
    found = [format_ for format_ in able if format_ == {"jpg": "jpeg"}.get(ending, ending)]
    if not found:
        fail(f"{file}: the name has to end in {', '.join(f'.{name}' for name in able).replace('jpeg', 'jpg')}.", code=2)
    return found[0]


def _checked(
    kind: type[Options], given: Mapping[str, Any], pairs: Sequence[str] = ()
) -> tuple[Options, dict[str, Any]]:
    """Return the options, and the methods' own parameters, unchecked; wrong options are wrong use."""
    from app.known_errors import KNOWN_ERRORS
    from app.schemas.checking import check

    try:
        options = options_of(given, pairs)
        return check(kind, options, parameters=[pair.partition("=")[0] for pair in pairs])
    except KNOWN_ERRORS as error:
        fail(str(error), code=2)


@contextmanager
def _said() -> "Iterator[None]":
    """Say what goes wrong, and end: with 2 what is wrong with the options, with 1 all else."""
    from app.errors import BadOption, VersusNotTaken
    from app.known_errors import KNOWN_ERRORS
    from explainers.errors import BadParameter, UnknownMethod

    try:
        yield
    except (BadOption, BadParameter, UnknownMethod, VersusNotTaken) as error:
        fail(str(error), code=2)
    except (*KNOWN_ERRORS, OSError) as error:
        fail(str(error), code=1)


def _asked(what: str, ask: "Callable[[Watch], Found]") -> Found:
    """Ask once, with a bar where it takes steps."""
    with _said():
        for _, watch in watched([what], what):
            found = ask(watch)
    return found


def _write(file: Path, content: bytes) -> None:
    with _said():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _tell(answer: Answered, as_json: bool, print_: "Callable[[Answered], None]", *files: Path | None) -> None:
    """Print an answer, and below it which files were written."""
    if as_json:
        print(answer.model_dump_json(indent=2))  # noqa: T201
        return
    print_(answer)
    for file in filter(None, files):
        say(escape(str(file)))
