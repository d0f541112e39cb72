"""`heatlens batch`: pictures by the thousand, explained without a server."""

import json
import signal
from contextlib import closing
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.markup import escape

from app.cli.console import complain, err, fail, say
from app.cli.jobs import bar
from app.cli.options import AsJson, options_of
from app.cli.service import service_here
from app.config import load_settings

if TYPE_CHECKING:
    from app.jobs.local import Tally
    from app.jobs.options import Asked

_ERRORS_SHOWN = 10


class Layout(StrEnum):
    """How the results of a batch are laid out."""

    FLAT = "flat"
    MIRROR = "mirror"
    FIFTYONE = "fiftyone"


class Summary(StrEnum):
    """In what form the table of the results is written."""

    CSV = "csv"
    PARQUET = "parquet"
    NONE = "none"


def batch(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder, a picture, a quoted pattern ('photos/**/*.jpg'), a zip or tar, or a URL as fsspec reads it "
            "(s3://bucket/photos).",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="Folder for the results.")],
    layout: Annotated[
        Layout,
        typer.Option(help="flat: all in one folder; mirror: the source's folders; fiftyone: maps for FiftyOne."),
    ] = Layout.FLAT,
    summary: Annotated[Summary, typer.Option(help="Table of the results: csv, parquet or none.")] = Summary.CSV,
    retry: Annotated[bool, typer.Option("--retry", help="Try pictures again that failed before.")] = False,
    model: Annotated[str | None, typer.Option(help="Model name, see `heatlens models list`.")] = None,
    method: Annotated[str | None, typer.Option(help="Method name, see `heatlens methods`.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Class index, label, predicted or top<n>; repeatable.")
    ] = None,
    versus: Annotated[str | None, typer.Option(help="Why the target and not this class.")] = None,
    layer: Annotated[list[str] | None, typer.Option(help="Target layer, see `heatlens models layers`.")] = None,
    artifact: Annotated[
        list[str] | None,
        typer.Option(
            help="What to make of each picture, repeatable: overlay, map, arrays. Default: overlay. fiftyone always "
            "has map."
        ),
    ] = None,
    view: Annotated[str | None, typer.Option(help="overlay, heatmap, side_by_side or layer.")] = None,
    colormap: Annotated[str | None, typer.Option(help="Colours of the heat.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Opacity of the heat, 0 to 1.")] = None,
    legend: Annotated[bool | None, typer.Option("--legend", help="Draw a legend.")] = None,
    max_side: Annotated[int | None, typer.Option(help="Longest side of the results, in pixels.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="jpeg, png or webp.")] = None,
    faithfulness: Annotated[
        bool | None, typer.Option("--faithfulness", help="Measure whether each map finds what counts.")
    ] = None,
    stability: Annotated[
        bool | None, typer.Option("--stability", help="Measure whether each map stays when the picture hardly changes.")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of the method's own parameters.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain pictures by the thousand without a server. What was stopped goes on when the same is run again."""
    given = {
        "model": model, "method": method, "target": target, "versus": versus, "layer": layer, "view": view,
        "artifacts": _artifacts(artifact, layout), "colormap": colormap,
        "alpha": alpha, "legend": legend, "max_side": max_side, "format": format_,
        "faithfulness": faithfulness, "stability": stability,
    }  # fmt: skip
    _require_parquet(summary)
    asked = _asked(given, parameter or [])
    _Run(asked, source, out, retry=retry).run(layout, summary, as_json)


class _Run:
    """One run of `heatlens batch`."""

    def __init__(self, asked: "Asked", source: str, out: Path, *, retry: bool) -> None:
        from app.errors import ServiceError
        from app.jobs.local import Batch
        from app.jobs.options import to_json

        settings = load_settings()
        models = dict.fromkeys([*settings.models, *filter(None, [asked.options.model])])  # the operator's own wish
        try:
            self._batch = Batch(settings.model_copy(update={"models": tuple(models)}), source, out)
        except ServiceError as error:
            fail(str(error), code=2)
        self._options = to_json(asked)
        self._retry = retry

    def run(self, layout: Layout, summary: Summary, as_json: bool) -> NoReturn:
        """Do what is to be done, lay the results out, and end with the exit code."""
        from app.errors import JobsUnavailable, OutOfSpace, ServiceError
        from app.jobs.local import BatchError, OtherBatch

        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with self._batch.locked(self._options):
                tally = self._explained()
                self._lay_out(layout, summary)
                self._report(tally, summary, as_json)
        except KeyboardInterrupt:
            fail("stopped; run the same command again to go on where it was.", code=1)
        except (BatchError, JobsUnavailable, OutOfSpace, OSError) as error:
            fail(str(error), code=2 if isinstance(error, OtherBatch) else 1)
        except ServiceError as error:  # of the source
            fail(str(error), code=2)
        finally:
            signal.signal(signal.SIGTERM, before)
        raise typer.Exit(1 if tally.failed else 0)

    def _explained(self) -> "Tally":
        with err.status("looking for pictures"):
            self._batch.submit_new(self._options, self._batch.source.text)
        unfinished = self._batch.resume(retry=self._retry)
        if unfinished:
            with bar("explaining") as show:
                for tally in self._batch.run(unfinished):
                    show(*tally)
        return self._batch.tally()

    def _lay_out(self, layout: Layout, summary: Summary) -> None:
        from app.jobs.layouts import lay_out

        with err.status("laying out the results"):
            for _ in lay_out(self._batch, layout.value, summary.value):
                pass

    def _report(self, tally: "Tally", summary: Summary, as_json: bool) -> None:
        table = None if summary == Summary.NONE else str(self._batch.out / f"summary.{summary}")
        if as_json:
            facts = {"pictures": tally.total, "failed": tally.failed, "out": str(self._batch.out), "summary": table}
            print(json.dumps(facts))  # noqa: T201
            return
        for item in self._batch.failures(_ERRORS_SHOWN):
            complain(f"[red]failed[/]  {escape(item.name)}: {escape((item.error or {}).get('detail', ''))}")
        if tally.failed > _ERRORS_SHOWN:
            complain(f"... and {tally.failed - _ERRORS_SHOWN} more, see the summary.")
        done = tally.total - tally.failed
        say(escape(f"{done} of {tally.total} pictures explained, {tally.failed} failed: {table or self._batch.out}"))


def _artifacts(given: list[str] | None, layout: Layout) -> list[str] | None:
    """Return what is made of each picture; without maps there would be nothing for FiftyOne."""
    if layout != Layout.FIFTYONE or "map" in (given or []):
        return given
    return [*(given or []), "map"]


def _asked(given: dict[str, Any], pairs: list[str]) -> "Asked":
    """Return the options and the method's own parameters; wrong ones are wrong use."""
    from app.jobs.options import read_options
    from app.known_errors import KNOWN_ERRORS

    options = options_of(given, pairs)
    with closing(service_here(given["model"])) as service:
        try:
            return read_options(service, options)
        except KNOWN_ERRORS as error:
            fail(str(error), code=2)


def _require_parquet(summary: Summary) -> None:
    if summary == Summary.PARQUET and find_spec("pyarrow") is None:
        fail("--summary parquet needs pyarrow: pip install 'heatlens[parquet]'", code=2)
