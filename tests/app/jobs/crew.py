"""Workers in processes of their own, as `heatlens worker` runs them, with the double for a model."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa

from app.config import Settings
from app.errors import JobsUnavailable
from app.jobs import supervisor
from app.jobs.artifacts import Store, input_key, result_key
from app.jobs.database import Database
from app.jobs.engine import ShardQueue
from app.jobs.ledger import Ledger
from app.jobs.rows import ItemRow, JobRow, NewItem
from tests.app.jobs.double import TRACES

STALL_S, GRACE_S = 60, 40


def eventually(condition: Callable[[], object], within_s: float = 60) -> None:
    """Wait for what is to come true; a database that is away meanwhile is waited for, too."""
    ends = time.monotonic() + within_s
    while True:
        with suppress(JobsUnavailable):
            if condition():
                return
        assert time.monotonic() < ends, "it never came true"
        time.sleep(0.05)


class Crew:
    """A deployment: its database, its store, and the supervisors that run, each with its worker."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings)
        self.database.migrate()
        self.ledger = Ledger(self.database, ShardQueue(self.database), shard_pictures=settings.job_shard_pictures)
        self.store = Store(settings)
        self.traces = settings.data_dir / "traces"
        self.traces.mkdir(exist_ok=True)
        self.supervisors: list[subprocess.Popen[bytes]] = []

    def submit(self, pictures: Sequence[bytes]) -> str:
        """Make a job of pictures, each of whose bytes are what the double does."""
        job_id = self.ledger.open(owner="me")
        for number, picture in enumerate(pictures):
            self.store.write(input_key(job_id, number), picture)
        items = [NewItem(f"{number}", f"store:{input_key(job_id, number)}") for number in range(len(pictures))]
        self.ledger.add(job_id, 0, items)
        return self.ledger.submit(job_id, options={"method": "gradcam"}).id

    def start(self, *, stall_s: float = STALL_S) -> "subprocess.Popen[bytes]":
        """Start one more worker."""
        worker = [sys.executable, "-m", "tests.app.jobs.double"]
        command = supervisor.command(stall_s=stall_s, grace_s=GRACE_S, worker=worker)
        with (self.settings.data_dir / "log").open("ab") as log:
            process = subprocess.Popen(command, env=environment(self.settings, self.traces), stderr=log)
        self.supervisors.append(process)
        return process

    def job(self, job_id: str) -> JobRow:
        return self.ledger.job(job_id)

    def items(self, job_id: str) -> list[ItemRow]:
        return self.ledger.items(job_id, after=None, limit=100_000)

    def wait_for(self, job_id: str, done: int, within_s: float = 60) -> None:
        """Wait until so many pictures have an outcome."""
        eventually(lambda: self.job(job_id).done >= done, within_s)

    def finish(self, job_id: str, within_s: float = 90) -> JobRow:
        eventually(lambda: self.job(job_id).is_finished, within_s)
        return self.job(job_id)

    def began(self) -> Counter[int]:
        """How often each picture was begun."""
        return Counter(int(line.split()[1]) for line in self.lines("began"))

    def unrecorded(self, job_id: str, worker: int) -> set[int]:
        """What a dead worker had explained that no outcome tells of."""
        ended = {int(number) for process, number in map(str.split, self.lines("ended")) if int(process) == worker}
        return ended - {item.number for item in self.items(job_id) if item.status == "succeeded"}

    def at_once(self) -> list[str]:
        """Who found that another worked on the same picture."""
        return self.lines("at_once")

    def lines(self, name: str) -> list[str]:
        file = self.traces / name
        return file.read_text().splitlines() if file.exists() else []

    def workflows(self) -> list[tuple[str, str, int]]:
        """What the engine has: shard, status, and how often it was begun."""
        table = "workflow_status" if self.database.is_sqlite else "dbos.workflow_status"
        query = f"SELECT workflow_uuid, status, recovery_attempts FROM {table}"  # noqa: S608
        with self.database.read() as connection:
            rows = connection.execute(sa.text(query)).all()
        return [(name.partition("/")[2], status, runs) for name, status, runs in rows]

    def log(self) -> str:
        return (self.settings.data_dir / "log").read_text()

    def require_exactly_once(self, job_id: str, pictures: Sequence[bytes]) -> None:
        """Every picture has one outcome, which is its own, and all that counts them agrees."""
        job, items = self.job(job_id), self.items(job_id)
        assert (job.status, job.done, job.failed) == ("succeeded", len(pictures), 0), self.log()
        assert [item.number for item in items] == list(range(len(pictures)))
        assert {item.status for item in items} == {"succeeded"}
        assert sorted(item.event or 0 for item in items) == list(range(1, len(pictures) + 1))
        for item, picture in zip(items, pictures, strict=True):
            assert item.result is not None
            name = item.result["explanations"][0]["artifacts"]["overlay"]
            assert self.store.read(result_key(job_id, name, item.number)) == picture
        eventually(lambda: {status for _, status, _ in self.workflows()} <= {"SUCCESS", "CANCELLED"})
        assert not self.at_once()

    def close(self) -> None:
        for process in self.supervisors:
            kill_all(process)
        self.database.close()


@contextmanager
def working(settings: Settings, workers: int) -> Iterator[Crew]:
    """A deployment with workers, which are killed in the end."""
    crew = Crew(settings)
    try:
        for _ in range(workers):
            crew.start()
        yield crew
    finally:
        crew.close()


def environment(settings: Settings, traces: Path) -> dict[str, str]:
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    own = {f"HEATLENS_{name.upper()}": str(value) for name, value in given.items()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEATLENS_")}
    return {**kept, **own, TRACES: str(traces), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}


def children(process_id: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(child) for child in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]
    except FileNotFoundError:
        return []


def kill(process_id: int) -> None:
    """As a crash does, or the kernel when memory is short."""
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)


def kill_all(process: "subprocess.Popen[bytes]") -> None:
    """A supervisor and its worker, as when the machine goes."""
    workers = children(process.pid)
    process.kill()
    for worker in workers:
        kill(worker)
    process.wait()
