"""The command `heatlens`. Exit codes: 0 done, 1 failed, 2 wrong use, 3 a server or a worker cannot start."""

import json
import os
import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from app.cli.batch import batch
from app.cli.console import complain, fail, print_method, print_methods, say, show, text, watched
from app.cli.diagnose import diagnose_app
from app.cli.doctor import doctor
from app.cli.evaluate import evaluate
from app.cli.jobs import jobs_app
from app.cli.keys import keys_app
from app.cli.options import AsJson, options_of
from app.cli.service import service_here
from app.config import SettingsError, load_settings
from app.schemas.answers import MethodInfo
from app.schemas.options import ExplainOptions

if TYPE_CHECKING:
    from app.engine import Watch
    from app.service import Service

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="HeatLens shows why an image model decided what it decided.",
)
models_app = typer.Typer(no_args_is_help=True, help="The models that can be explained.")
app.add_typer(models_app, name="models")
app.add_typer(diagnose_app, name="diagnose")
app.add_typer(jobs_app, name="jobs")
app.add_typer(keys_app, name="keys")

SAMPLE = Path(__file__).parents[1] / "web" / "static" / "cat.jpg"
"""scikit-image's picture of the cat Chelsea, CC0."""

ModelName = Annotated[str, typer.Argument(help="A model, see `heatlens models list`.")]

_DEFAULTS = {name: field.default for name, field in ExplainOptions.model_fields.items()}


def main() -> None:
    """Run the command line."""
    try:
        app()
    except SettingsError as error:
        fail(str(error), code=2)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (HEATLENS_HOST).")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on (HEATLENS_PORT).")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes (HEATLENS_WORKERS).")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let anybody ask without an API key (HEATLENS_INSECURE).")
    ] = False,
) -> None:
    """Answer HTTP requests until stopped. Everything else is set by HEATLENS_* variables, see `heatlens doctor`.

    Where others than this machine can reach it, it starts once there is an API key, see `heatlens keys`.
    """
    from app.errors import ServiceError
    from app.opening import refusal, taken

    given = {"HEATLENS_HOST": host, "HEATLENS_PORT": port, "HEATLENS_WORKERS": workers}
    given |= {"HEATLENS_INSECURE": True} if insecure else {}
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    try:
        settings = load_settings()
        if reason := refusal(settings):
            fail(f"cannot start: {reason}", code=2)
    except ServiceError as error:
        fail(f"cannot start: {error}", code=3)  # as gunicorn and `heatlens worker` end
    if not {"GUNICORN_CMD_ARGS", "LISTEN_FDS"} & os.environ.keys() and (reason := taken(settings.host, settings.port)):
        fail(f"cannot start: {reason}", code=1)  # which gunicorn by itself would take many lines to say
    # gunicorn wants to be the process itself: signals reach it directly.
    os.execv(  # noqa: S606 - fixed arguments, no shell
        sys.executable,
        [sys.executable, "-m", "gunicorn", "-c", "python:app.gunicorn_conf", "app.wsgi:application()"],
    )


@app.command()
def worker() -> None:
    """Explain the pictures of jobs until stopped, on one device; start as many as you like, on any machine.

    Those that share work have the same HEATLENS_DATABASE_URL and HEATLENS_ARTIFACTS_URL. `heatlens serve` starts
    HEATLENS_JOB_WORKERS of them by itself.
    """
    from app.jobs import supervisor

    settings = load_settings()
    if settings.torch_threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(settings.torch_threads))  # before torch is imported
    # As with gunicorn: who stops the command stops the supervisor itself.
    command = supervisor.command(stall_s=settings.job_stall_s, grace_s=settings.graceful_timeout_s + 1)
    os.execv(sys.executable, command)  # noqa: S606 - fixed arguments, no shell


def welcome(url: str, *, keyed: bool) -> None:
    """Say that the server answers, and how to try it."""
    key = " with a key of scope explain in HEATLENS_KEY, see `heatlens keys`" if keyed else ""
    # Plain print: the curl line has to survive copying, so nothing may wrap or colour it.
    print(  # noqa: T201
        f"\nHeatLens is ready: {url}\n\nTry it{key}:\n  {trial(url, keyed=keyed)}\n", flush=True
    )


def trial(url: str, *, keyed: bool) -> str:
    """Return the line by which a server is tried; where it is refused, no picture is written."""
    key = '-H "Authorization: Bearer $HEATLENS_KEY" ' if keyed else ""
    return f"curl -f {key}-T {_shell(SAMPLE)} {url}/v1/explain -o heat.jpg"


@app.command()
def explain(
    images: Annotated[list[Path], typer.Argument(help="Pictures to explain.", exists=True, dir_okay=False)],
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default: beside each picture.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name, see `heatlens models list`.")] = None,
    method: Annotated[str, typer.Option(help="Method name, see `heatlens methods`.")] = _DEFAULTS["method"],
    target: Annotated[
        list[str] | None, typer.Option(help="Class index, label, predicted or top<n>; repeatable.")
    ] = None,
    versus: Annotated[str | None, typer.Option(help="Why the target and not this class.")] = None,
    layer: Annotated[list[str] | None, typer.Option(help="Target layer, see `heatlens models layers`.")] = None,
    view: Annotated[str, typer.Option(help="overlay, heatmap, side_by_side or layer.")] = _DEFAULTS["view"],
    colormap: Annotated[str, typer.Option(help="Colours of the heat.")] = _DEFAULTS["colormap"],
    alpha: Annotated[float, typer.Option(help="Opacity of the heat, 0 to 1.")] = _DEFAULTS["alpha"],
    legend: Annotated[bool, typer.Option("--legend", help="Draw a legend.")] = False,
    max_side: Annotated[int, typer.Option(help="Longest side of the result, in pixels.")] = _DEFAULTS["max_side"],
    format_: Annotated[str, typer.Option("--format", help="jpeg, png, webp, npy, npz or json.")] = "jpeg",
    faithfulness: Annotated[
        bool, typer.Option("--faithfulness", help="Measure whether each map finds what counts.")
    ] = False,
    stability: Annotated[
        bool, typer.Option("--stability", help="Measure whether each map stays when the picture hardly changes.")
    ] = False,
    parameter: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of the method's own parameters.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain pictures without a server; each result is written as NAME.heat.EXTENSION."""
    given: dict[str, Any] = {
        "model": model, "method": method, "target": target, "versus": versus, "layer": layer, "view": view,
        "colormap": colormap, "alpha": alpha, "legend": legend, "max_side": max_side, "format": format_,
        "faithfulness": faithfulness, "stability": stability,
    }  # fmt: skip
    service = service_here(model)
    options, parameters = _checked(service, given, parameter or [])
    jobs = _results(images, out, options)
    with closing(service):
        rows = [
            _explain_one(service, image, result, options, parameters, watch)
            for (image, result), watch in watched(jobs, "explaining")
        ]
    if as_json:
        print(json.dumps(rows))  # noqa: T201
    else:
        for row in rows:
            _say_result(row)
    raise typer.Exit(1 if any("error" in row for row in rows) else 0)


app.command()(batch)
app.command()(doctor)
app.command()(evaluate)


@models_app.command("list")
def models_list(as_json: AsJson = False) -> None:
    """List the models."""
    listing = service_here().catalogue.models()
    columns = ["name", "weights", "licence", "description"]
    rows = [[_named(row.name, row.default), row.weights, row.licence or "", row.description] for row in listing.models]
    show(listing, as_json, columns, rows)


@models_app.command("show")
def models_show(name: ModelName, as_json: AsJson = False) -> None:
    """Describe one model; loads it."""
    detail = _loaded(name).catalogue.model(name)
    show(detail, as_json, ["", ""], [[key, text(value)] for key, value in detail])


@models_app.command("layers")
def models_layers(name: ModelName, as_json: AsJson = False) -> None:
    """List a model's layers in the order in which they finish; loads the model."""
    listing = _loaded(name).catalogue.layers(name)
    columns = ["name", "type", "shape", "calls", "target layer"]
    rows = [
        [_named(row.name, row.name == listing.default), row.type, text(row.shape), str(row.calls), "yes" * row.spatial]
        for row in listing.layers
    ]
    show(listing, as_json, columns, rows)


@models_app.command("fetch")
def models_fetch(names: Annotated[list[str], typer.Argument(help="Models, see `heatlens models list`.")]) -> None:
    """Download models' weights into torch's or timm's cache, so that the server needs no network."""
    from models import ModelError, fetch

    registry = service_here().registry
    for name in names:
        try:
            sha256 = fetch(registry.get(name), progress=True)
        except ModelError as error:
            fail(str(error), code=1)
        say(f"{name}: {'random weights' if sha256 is None else f'sha256 {sha256}'}")


@models_app.command("verify")
def models_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Models; default: those with weights here.")] = None,
) -> None:
    """Load models, check their weights, and explain the sample picture with each."""
    from app.known_errors import KNOWN_ERRORS

    service = service_here()
    present = [row.name for row in service.catalogue.models().models if row.weights != "missing"]
    failed = False
    for name, _ in watched(names or present, "verifying"):
        try:
            label = _verify(service, name)
            say(f"[green]ok[/]      {name}: the sample picture is {escape(repr(label))}")
        except KNOWN_ERRORS as error:
            failed = True
            say(f"[red]failed[/]  {name}: {escape(str(error))}")
    raise typer.Exit(1 if failed else 0)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to be told all of it.")] = None, as_json: AsJson = False
) -> None:
    """List the explanation methods, or describe one with its parameters."""
    from app.known_errors import KNOWN_ERRORS

    catalogue = service_here().catalogue
    try:
        found = catalogue.methods() if name is None else catalogue.method(name)
    except KNOWN_ERRORS as error:
        fail(str(error), code=2)
    if as_json:
        print(found.model_dump_json(indent=2))  # noqa: T201
    elif isinstance(found, MethodInfo):
        print_method(found)
    else:
        print_methods(found.methods)


def _verify(service: "Service", name: str) -> str:
    explained = service.explain(SAMPLE.read_bytes(), ExplainOptions(model=name), {})
    return explained.model.labels[explained.most_probable(1)[0]]


def _checked(service: "Service", given: dict[str, Any], pairs: list[str]) -> tuple[ExplainOptions, dict[str, Any]]:
    """Return the options and the method's own parameters; wrong ones are wrong use."""
    from app.known_errors import KNOWN_ERRORS
    from app.schemas.checking import check

    options = options_of(given, pairs)
    try:
        checked, parameters = check(ExplainOptions, options, parameters=service.catalogue.parameter_schemas())
        service.check(checked, parameters)
        return checked, parameters
    except KNOWN_ERRORS as error:
        fail(str(error), code=2)


def _results(images: list[Path], out: Path | None, options: ExplainOptions) -> list[tuple[Path, Path]]:
    """Return each picture with the file of its result; two pictures may not have one result."""
    extension = "jpg" if options.format == "jpeg" else options.format
    jobs = [(image, (out or image.parent) / f"{image.stem}.heat.{extension}") for image in images]
    seen: dict[Path, Path] = {}
    for image, result in jobs:
        if result in seen:
            fail(f"{seen[result]} and {image} would both be written to {result}; explain them apart.", code=2)
        seen[result] = image
    return jobs


def _explain_one(
    service: "Service",
    image: Path,
    result: Path,
    options: ExplainOptions,
    parameters: dict[str, Any],
    watch: "Watch",
) -> dict[str, Any]:
    from app.drawing import draw
    from app.known_errors import KNOWN_ERRORS

    try:
        explained = service.explain(image.read_bytes(), options, parameters, watch=watch)
        drawn, timings = draw(explained, options, options.format or "jpeg")
        result.parent.mkdir(parents=True, exist_ok=True)
        result.write_bytes(drawn.body(image.name, timings))
    except (*KNOWN_ERRORS, OSError) as error:
        return {"image": str(image), "error": str(error)}
    index, trust = explained.attributions[0].score.index, explained.trust[0]
    return {
        "image": str(image),
        "result": str(result),
        "target": index,
        "label": explained.model.labels[index],
        "probability": float(explained.probabilities[index]),
        "class_specific": explained.method.class_specific,
        "trust": [measured.words for measured in (trust.faithfulness, trust.stability) if measured],
    }


def _say_result(row: dict[str, Any]) -> None:
    if "error" in row:
        complain(f"[red]failed[/]  {escape(row['image'])}: {escape(row['error'])}")
    else:
        same = "" if row["class_specific"] else "; the map is the same for every class"
        say(escape(f"{row['result']}  {row['label']} ({row['probability']:.1%}){same}"))
        for words in row["trust"]:
            say(f"  {escape(words)}")


def _loaded(name: str) -> "Service":
    from app.known_errors import KNOWN_ERRORS

    service = service_here(name)
    try:
        service.hosts.ready(name)
    except KNOWN_ERRORS as error:
        fail(str(error), code=1)
    return service


def _named(name: str, default: bool) -> str:
    return f"{name} (default)" if default else name


def _shell(path: Path) -> str:
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
