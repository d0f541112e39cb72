"""`heatlens evaluate`: how good a model's explanations are, on pictures of your own."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from app.cli.console import complain, fail, print_table, say, watched
from app.cli.options import AsJson
from app.cli.pictures import methods_of, pictures_of
from app.cli.service import service_here

if TYPE_CHECKING:
    from app.engine import Watch
    from app.evaluation import Estimate, Evaluation, Failure, Figures, NotApplicable, Outcome
    from app.service import Service

DEFAULT_METHODS = ["gradcam", "integrated_gradients", "saliency"]
"""One of each family that is cheap."""

_FAILURES_SHOWN = 10


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model name, see `heatlens models list`.")],
    images: Annotated[
        Path, typer.Option(help="Folder with pictures, folders in it included.", exists=True, file_okay=False)
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method name, see `heatlens methods`; repeatable; all: every one. "
            f"Default: {', '.join(DEFAULT_METHODS)}."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for evaluation.json and evaluation.html.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="So many pictures at most, drawn at random.")] = None,
    stability: Annotated[
        bool, typer.Option(help="Whether to explain noisy and mirrored copies too; takes four times as long.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of the drawn pictures and of the intervals.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how far a model's heatmaps can be trusted, method by method, beside orders that know nothing.

    Of each picture its predicted class is explained; the figures are means with 95 % intervals.
    """
    methods = methods_of(method or DEFAULT_METHODS)
    pictures = pictures_of(images, limit, seed)
    with closing(service_here(model, method_timeouts_s={})) as service:
        evaluation = _evaluated(service, model, images, pictures, methods, stability=stability, seed=seed)
    if out is not None:
        _write(evaluation, out)
    if as_json:
        print(evaluation.model_dump_json(indent=2))  # noqa: T201
    else:
        _print(evaluation, out)
    raise typer.Exit(1 if evaluation.failures or not evaluation.outcomes else 0)


def _evaluated(
    service: "Service",
    model: str,
    folder: Path,
    pictures: Sequence[str],
    methods: Sequence[str],
    *,
    stability: bool,
    seed: int,
) -> "Evaluation":
    from app.evaluation import Evaluation, summarise
    from app.facts import model_ref
    from app.known_errors import KNOWN_ERRORS

    try:
        with service.hosts.using(model, timeout_s=service.settings.load_wait_s) as host:
            loaded = host.model
    except KNOWN_ERRORS as error:
        fail(str(error), code=1)
    run = _Run(service, model, folder, stability=stability)
    pairs = [(picture, method) for picture in pictures for method in methods]
    for (picture, method), watch in watched(pairs, "evaluating"):
        run.step(picture, method, watch)
    rows, controls = summarise(run.outcomes, seed=seed)
    return Evaluation(
        model=model_ref(loaded),
        fingerprint=loaded.fingerprint,
        version=version("heatlens"),
        measured_at=datetime.now(UTC),
        seed=seed,
        pictures=list(pictures),
        methods=rows,
        controls=controls,
        not_applicable=list(run.not_applicable.values()),
        failures=run.failures,
        outcomes=run.outcomes,
    )


class _Run:
    """What came of the pictures so far."""

    def __init__(self, service: "Service", model: str, folder: Path, *, stability: bool) -> None:
        self.outcomes: list[Outcome] = []
        self.failures: list[Failure] = []
        self.not_applicable: dict[str, NotApplicable] = {}
        self._service = service
        self._model = model
        self._folder = folder
        self._stability = stability
        self._bad: set[str] = set()

    def step(self, picture: str, method: str, watch: "Watch") -> None:
        """Measure one method on one picture, unless it is known that this cannot be."""
        from app.errors import NoDefaultLayer
        from app.evaluation import Failure, NotApplicable
        from app.imaging.errors import ImageError
        from app.known_errors import KNOWN_ERRORS
        from explainers.errors import LayerNotSpatial, MethodNotApplicable, UnhookableModel

        if picture in self._bad or method in self.not_applicable:
            return
        try:
            self.outcomes.append(self._outcome(picture, method, watch))
        except (MethodNotApplicable, UnhookableModel, NoDefaultLayer, LayerNotSpatial) as error:
            self.not_applicable[method] = NotApplicable(method=method, reason=str(error))
        except (ImageError, OSError) as error:
            self._bad.add(picture)
            self.failures.append(Failure(picture=picture, method=None, detail=str(error)))
        except KNOWN_ERRORS as error:
            self.failures.append(Failure(picture=picture, method=method, detail=str(error)))

    def _outcome(self, picture: str, method: str, watch: "Watch") -> "Outcome":
        from app.evaluation import Outcome
        from app.facts import class_scores, faithfulness_info, stability_info
        from app.schemas.options import ExplainOptions

        options = ExplainOptions(model=self._model, method=method, faithfulness=True, stability=self._stability)
        explained = self._service.explain((self._folder / picture).read_bytes(), options, {}, watch=watch)
        (trust,), (attribution,) = explained.trust, explained.attributions
        if trust.faithfulness is None:
            raise RuntimeError("faithfulness was asked for and not measured")
        (target,) = class_scores(explained, [attribution.score.index])
        return Outcome(
            picture=picture,
            method=method,
            target=target,
            faithfulness=faithfulness_info(trust.faithfulness),
            stability=None if trust.stability is None else stability_info(trust.stability),
            seconds=max(0.0, explained.timings.model - explained.timings.trust),
        )


def _write(evaluation: "Evaluation", out: Path) -> None:
    from app.evaluation_page import page

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "evaluation.json").write_text(evaluation.model_dump_json(indent=2), encoding="utf-8")
        (out / "evaluation.html").write_text(page(evaluation), encoding="utf-8")
    except OSError as error:
        fail(str(error), code=1)


def _print(evaluation: "Evaluation", out: Path | None) -> None:
    from app.evaluation import words

    if evaluation.methods:
        print_table(_COLUMNS, _rows(evaluation), whole=len(_COLUMNS))
        say(f"{_LEGEND}\n")
        for row in evaluation.methods:
            say(escape(words(row)))
    for each in evaluation.not_applicable:
        say(f"[dim]left out[/] {escape(f'{each.method}: {each.reason}')}")
    for failure in evaluation.failures[:_FAILURES_SHOWN]:
        where = failure.picture if failure.method is None else f"{failure.picture}, {failure.method}"
        complain(f"[red]failed[/]  {escape(f'{where}: {failure.detail}')}")
    if len(evaluation.failures) > _FAILURES_SHOWN:
        complain(f"... and {len(evaluation.failures) - _FAILURES_SHOWN} more.")
    if out is not None:
        say(escape(str(out / "evaluation.html")))


_COLUMNS = ["method", "insert", "delete", "lead", "better", "noise", "mirror", "secs"]
_LEGEND = (
    "[dim]Means, and below them their 95 % intervals. In brackets is what knows nothing of the model: under each\n"
    "method its own maps, laid elsewhere in the picture. Lead: insertion minus deletion, less that of the same shape\n"
    "elsewhere; better: on how many pictures that is more than chance does. Noise, mirror: how much of the map stays,\n"
    "1 is all.[/]"
)


def _rows(evaluation: "Evaluation") -> Iterator[list[str]]:
    """Yield the table's rows: the means, below them the intervals; the methods, each before its control, the others."""
    from app.evaluation_page import CONTROL_NAMES

    for row in evaluation.methods:
        own: list[tuple[Estimate | None, str]] = [
            (row.margin, "+.2f"), (row.better, ".0%"), (row.noise, ".2f"), (row.mirror, ".2f"), (row.seconds, ".2g")
        ]  # fmt: skip
        yield from _lines(row.name, row, own)
        yield from _lines("  (elsewhere)", row.elsewhere)
    for control in evaluation.controls:
        yield from _lines(f"({CONTROL_NAMES[control.name]})", control)


def _lines(name: str, row: "Figures", own: "Sequence[tuple[Estimate | None, str]]" = ()) -> Iterator[list[str]]:
    """Yield a line of means and one of intervals; `own` are the figures that only methods have."""
    figures = [(row.insertion, ".2f"), (row.deletion, ".2f"), *own]
    empty = [""] * (len(_COLUMNS) - 1 - len(figures))
    yield [name, *("-" if value is None else format(value.mean, form) for value, form in figures), *empty]
    intervals = ["" if form == ".2g" else _interval(value, form) for value, form in figures]  # of seconds: no room
    yield ["", *intervals, *empty]


def _interval(value: "Estimate | None", form: str) -> str:
    """Return both bounds in few characters, so that the table has room on a terminal of 80 columns."""
    if value is None or value.low is None or value.high is None:
        return ""
    form = form.removeprefix("+")
    low, high = (format(bound, form).replace("0.", ".", 1) for bound in (value.low, value.high))
    return f"{low.removesuffix('%')}-{high}" if form == ".0%" else f"{low} {high}"
