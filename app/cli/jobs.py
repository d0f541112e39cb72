"""`heatlens jobs`: the jobs of the server on this machine, or of its database."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from app.cli.console import err, fail, print_table, say, text
from app.cli.options import AsJson
from app.config import load_settings

if TYPE_CHECKING:
    from app.jobs.ledger import Ledger
    from app.jobs.rows import JobRow
    from app.schemas.jobs import JobAnswer

jobs_app = typer.Typer(no_args_is_help=True, help="The batch jobs of the server on this machine, or of its database.")

_POLL_S = 0.5

JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of a job, see `heatlens jobs list`.")]


@jobs_app.command("list")
def jobs_list(
    status: Annotated[str | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the newest.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the jobs, the newest first."""
    with _ledger() as ledger:
        found = [_answer(ledger, row) for row in ledger.jobs(status=_status(status), limit=limit)]
    if as_json:
        print(json.dumps([answer.model_dump(mode="json") for answer in found], indent=2))  # noqa: T201
        return
    columns = ["id", "name", "status", "done", "failed", "created"]
    print_table(columns, [[job.id, job.name, job.status, *_counts(job), _shown(job.created_at)] for job in found])


@jobs_app.command("show")
def jobs_show(id_: JobId, as_json: AsJson = False) -> None:
    """Describe one job."""
    with _ledger() as ledger:
        _show(_answer(ledger, ledger.job(id_)), as_json)


@jobs_app.command("cancel")
def jobs_cancel(id_: JobId, as_json: AsJson = False) -> None:
    """Stop a job: what waits never starts, and what runs ends with its batch."""
    with _ledger() as ledger:
        _show(_answer(ledger, ledger.cancel(id_)), as_json)


@jobs_app.command("retry")
def jobs_retry(id_: JobId, as_json: AsJson = False) -> None:
    """Have the failed pictures of a job explained again, and those that a cancelled one left out."""
    with _ledger() as ledger:
        _show(_answer(ledger, ledger.retry(id_)), as_json)


@jobs_app.command("delete")
def jobs_delete(ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of jobs.")]) -> None:
    """Delete jobs; a worker removes their files."""
    with _ledger() as ledger:
        for id_ in ids:
            ledger.delete(id_)
            say(f"deleted {escape(id_)}")


@jobs_app.command("watch")
def jobs_watch(id_: JobId, as_json: AsJson = False) -> None:
    """Show a job's progress until it is over; the exit code is 0 if all its pictures were explained."""
    with _ledger() as ledger:
        try:
            job = _watched(ledger, id_)
        except KeyboardInterrupt:
            fail("no longer watched; the job goes on.", code=1)
        _show(_answer(ledger, job), as_json)
    raise typer.Exit(0 if job.status == "succeeded" else 1)


def _watched(ledger: "Ledger", job_id: str) -> "JobRow":
    job = ledger.job(job_id)
    with bar(job.name or job_id) as show:
        while True:
            show(job.total, job.done, job.failed, job.waiting_for)
            if job.is_finished:
                return job
            time.sleep(_POLL_S)
            job = ledger.job(job_id)


@contextmanager
def _ledger() -> "Iterator[Ledger]":
    """Lend the ledger of the configured database; what is wrong with a job or with the database is said, and is 1."""
    from app.errors import ServiceError, UnknownJob
    from app.jobs.database import Database
    from app.jobs.engine import ShardQueue
    from app.jobs.ledger import Ledger

    settings = load_settings()
    if not settings.database_url and not os.path.exists(settings.data_dir / "jobs.db"):
        fail(f"there are no jobs: {settings.data_dir} has no jobs.db (HEATLENS_DATA_DIR).", code=1)
    database = Database(settings)
    try:
        database.require_known()
        yield Ledger(database, ShardQueue(database), shard_pictures=settings.job_shard_pictures)
    except UnknownJob as error:
        fail(f"{error} See `heatlens jobs list`.", code=1)
    except ServiceError as error:
        fail(str(error), code=1)
    finally:
        database.close()


def _status(text_: str | None) -> Any:
    from typing import get_args

    from app.schemas.jobs import JobStatus

    if text_ is not None and text_ not in get_args(JobStatus):
        fail(f"--status {text_!r} is none; valid are {', '.join(get_args(JobStatus))}.", code=2)
    return text_


def _answer(ledger: "Ledger", row: "JobRow") -> "JobAnswer":
    from app.schemas.jobs import job_answer

    return job_answer(row, ledger.rate_per_s(row))


def _show(job: "JobAnswer", as_json: bool) -> None:
    if as_json:
        print(job.model_dump_json(indent=2))  # noqa: T201
        return
    facts = {
        "id": job.id, "name": job.name, "status": job.status, "waiting for": job.waiting_for,
        "pictures": job.progress.total, "done": job.progress.done, "failed": job.progress.failed,
        "pictures per second": job.rate_per_s and round(job.rate_per_s, 2),
        "seconds left": job.eta_s and round(job.eta_s),
        "created": _shown(job.created_at), "finished": _shown(job.finished_at), "bytes": job.size_bytes,
        "options": json.dumps(job.options),
    }  # fmt: skip
    print_table(["", ""], [[name, text(fact)] for name, fact in facts.items()])


def _counts(job: "JobAnswer") -> Iterable[str]:
    return f"{job.progress.done}/{job.progress.total}", str(job.progress.failed)


def _shown(moment: datetime | None) -> str:
    return "-" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return pictures per second."""
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


@contextmanager
def bar(what: str) -> Iterator[Any]:
    """Lend what shows how many pictures there are, are done, and failed."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _RateColumn(), TimeRemainingColumn(),
        TextColumn("[red]{task.fields[troubles]}[/]"),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        task = bars.add_task(escape(what), total=None, troubles="")

        def show(total: int, done: int, failed: int, waiting_for: str | None) -> None:
            troubles = [f"{failed} failed"] * bool(failed) + [f"waits for {waiting_for}"] * bool(waiting_for)
            bars.update(task, total=total, completed=done, troubles=", ".join(troubles))

        yield show
