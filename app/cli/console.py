"""What the command line prints: lines, tables, bars, and the description of methods."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.engine import Job, Watch

if TYPE_CHECKING:
    from app.schemas.answers import Answer, MethodInfo

Item = TypeVar("Item")

_FAMILIES = {
    "cam": "Class activation maps: the evidence in a layer, or in several",
    "gradient": "Gradients: how pixels enter the score",
    "perturbation": "Perturbation: what the score does when the picture is changed",
    "attention": "Attention: for vision transformers",
}

_out = Console()
err = Console(stderr=True)


def say(line: str) -> None:
    """Print a line of rich markup, however long."""
    _out.print(line, highlight=False, soft_wrap=True)


def complain(line: str) -> None:
    """Print a line of rich markup where errors go."""
    err.print(line, highlight=False, soft_wrap=True)


def fail(message: str, *, code: int) -> NoReturn:
    """Say what is wrong, and end with this exit code."""
    complain(f"[red]heatlens:[/] {escape(message)}")
    raise SystemExit(code)


def show(answer: "Answer", as_json: bool, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print an answer as JSON for machines, or as a table for people."""
    if as_json:
        print(answer.model_dump_json(indent=2))  # noqa: T201
    else:
        print_table(columns, rows)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, whole: int = 1) -> None:
    """Print a table of plain text; the first column, which people copy from, stays whole on a narrow terminal.

    `whole` says for how many columns, from the left, that holds. The others are folded, and lose nothing either.
    """
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[:whole]:
        column.no_wrap = True
    for column in table.columns[whole:]:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*map(escape, row))
    _out.print(table, highlight=False)


def text(value: object) -> str:
    """Return a value as people write it."""
    return "-" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def watched(items: Sequence[Item], what: str) -> Iterator[tuple[Item, Watch]]:
    """Yield each item with a watch of its work: bars show the items, where there are several, and long work's steps."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True, disable=not err.is_terminal) as bars:
        every = bars.add_task(what, total=len(items), visible=len(items) > 1)
        for item in items:
            steps = bars.add_task("steps", total=None, visible=False)
            yield item, _watch(bars, steps)
            bars.remove_task(steps)
            bars.advance(every)


def _watch(bars: Progress, task: TaskID) -> Watch:
    def watch(job: Job[object, object]) -> None:
        if job.progress is not None:
            done, total = job.progress
            bars.update(task, completed=done, total=total, visible=True, refresh=True)

    return watch


def print_methods(methods: Sequence["MethodInfo"]) -> None:
    """Print all methods, family by family, and how to learn more of one."""
    longest = max(len(method.name) for method in methods)
    for family, meaning in _FAMILIES.items():
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(width=longest, no_wrap=True)
        table.add_column(width=len("medium"), no_wrap=True)
        table.add_column()
        for method in methods:
            if method.family == family:
                table.add_row(method.name, method.cost_class, escape(method.summary) + _care(method))
        _out.print(f"[bold]{meaning}[/]", table, "", sep="\n", highlight=False)
    _out.print("The second column is the cost. [bold]heatlens methods NAME[/] tells more.", highlight=False)


def print_method(method: "MethodInfo") -> None:
    """Print all that there is to know of a method."""
    from app.schemas.parameters import allowed, shown

    layers = "none" if not method.max_layers else f"1 to {method.max_layers}" if method.max_layers > 1 else "1"
    title = f"[bold]{method.name}[/], {_FAMILIES[method.family].partition(':')[0].lower()}"
    _out.print(title, escape(method.summary), "", sep="\n", highlight=False)
    facts = {
        "weakness": method.weakness,
        "sanity": method.sanity,
        "cost": f"{method.cost_class}: {method.cost}",
        "layers": layers,
        "classes": "each has a map of its own" if method.class_specific else "all have the same map",
        "paper": method.paper,
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, fact in facts.items():
        table.add_row(name, escape(fact))
    _out.print(table, "", sep="\n", highlight=False)
    parameters = method.parameters.get("properties", {})
    if parameters:
        rows = [
            [name, shown(schema.get("default", "-")), allowed(schema), schema.get("description", "")]
            for name, schema in parameters.items()
        ]
        print_table(["parameter", "default", "allowed", "meaning"], rows)


def _care(method: "MethodInfo") -> str:
    return " [red]Fails the randomisation check.[/]" if method.fails_randomisation else ""
