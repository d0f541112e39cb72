"""The server of a siege: a real one, in a process group and with folders of its own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.app.jobs.crew import children, kill

WEB_WORKERS = 2
THREADS = 32
QUEUE_TOTAL = 12
_STARTS_S = 300
_STOPS_S = 60
_LOADED = "loaded efficientnet_lite0"


def until(condition: Callable[[], object], limit_s: float, what: str) -> None:
    """Wait for what is to come true."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            msg = f"after {limit_s:g} s still not: {what}"
            raise TimeoutError(msg)
        time.sleep(0.05)


class Fortress:
    """A running server, seen from outside: its processes and its folders."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.data, self.temporary, self.metrics = folder / "data", folder / "tmp", folder / "metrics"
        self._log = folder / "log"
        self.address = ("127.0.0.1", 0)

    def wait_until_it_answers(self) -> None:
        """Wait for the first worker's greeting, and for all models."""
        until(lambda: self._greeting() or self.process.poll() is not None, _STARTS_S, "the server is ready")
        if not (found := self._greeting()):
            msg = f"the server stopped with {self.process.returncode}:\n{self.log()}"
            raise RuntimeError(msg)
        self.address = ("127.0.0.1", int(found[1]))
        until(lambda: self.loads() >= WEB_WORKERS, _STARTS_S, "all workers have their model")

    def _greeting(self) -> re.Match[str] | None:
        return re.search(r"ready; try: curl .*-T .* http://127\.0\.0\.1:(\d+)/v1/explain", self.log())

    def log(self) -> str:
        """Return what was logged so far, by all processes."""
        return self._log.read_text(errors="replace")

    def loads(self) -> int:
        """Return how often a worker was done with loading its model."""
        return self.log().count(_LOADED)

    @property
    def master(self) -> int:
        return self.process.pid

    def web(self) -> list[int]:
        """The web workers, the oldest first."""
        own = children(self.master)
        return sorted((pid for pid in own if pid not in self.supervisors()), key=_started)

    def supervisors(self) -> list[int]:
        """The processes that look after the workers of jobs."""
        return [pid for pid in children(self.master) if b"app.jobs.supervisor" in _command(pid)]

    def job_workers(self) -> list[int]:
        return [worker for supervisor in self.supervisors() for worker in children(supervisor)]

    def roles(self) -> dict[int, str]:
        """All processes, and what each is."""
        found = {self.master: "master"}
        found |= dict.fromkeys(self.web(), "web worker") | dict.fromkeys(self.supervisors(), "supervisor")
        return found | dict.fromkeys(self.job_workers(), "job worker")

    def half_written(self) -> list[str]:
        """Files that only exist while something is written, or that nobody is there for."""
        parts = [path for path in (self.data / "jobs").rglob(".*") if path.is_file()]
        return [str(path.relative_to(self.folder)) for path in (*parts, *self.temporary.rglob("*"))]

    def stop(self) -> int:
        """Stop as an operator does, and return the exit code; whoever is left then is killed."""
        pids = list(self.roles())
        self.process.terminate()
        try:
            return self.process.wait(_STOPS_S)
        except subprocess.TimeoutExpired:
            for pid in pids:
                kill(pid)
            return self.process.wait()


@contextmanager
def fortress(folder: Path, **settings: str) -> Iterator[Fortress]:
    """Start a server on a free port, whose every request is in its log, and stop it in the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEATLENS_", "OMP_"))}
    chosen = {
        "workers": str(WEB_WORKERS),
        "threads": str(THREADS),
        "queue_total": str(QUEUE_TOTAL),
        "queue_size": str(QUEUE_TOTAL),
        "torch_threads": "1",
        "job_workers": "1",
        "min_free_bytes": "0",
        "result_cache_bytes": str(2**20),
        "log_format": "json",
        "data_dir": str(folder / "data"),
        **settings,
    }
    environment |= {f"HEATLENS_{name.upper()}": value for name, value in chosen.items()}
    environment |= {"TMPDIR": str(folder / "tmp"), "PROMETHEUS_MULTIPROC_DIR": str(folder / "metrics")}
    for name in ("data", "tmp", "metrics"):
        (folder / name).mkdir()
    command = [sys.executable, "-m", "app", "serve", "--port", "0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    running = Fortress(process, folder)
    try:
        running.wait_until_it_answers()
        yield running
    finally:
        if process.poll() is None:
            running.stop()


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _started(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return 0
