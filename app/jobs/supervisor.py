"""Keeps a worker process alive: starts it, restarts it when it dies, kills it when it hangs, and goes when it is told.

It is a process of its own that imports nothing heavy, since what it watches can be killed by what it does. Its worker
says by a `Pulse` that it is alive, and learns by it when the supervisor is not.
"""

import argparse
import ctypes
import json
import logging
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

_PULSE = "_HEATLENS_PULSE"
"""The environment variable in which a worker finds the number of the pipe for its pulse."""
CANNOT_START = 3
"""The exit code of a worker that another start would not help."""
_STOP_SIGNALS = signal.SIGTERM, signal.SIGINT
_LOOK_S = 0.2
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_FIRST_HOPE_S, _LAST_HOPE_S = 10.0, 300.0
"""As long is waited for what a start needs to be mended, by whoever does not give up."""
_WELL_S = 30.0
"""A worker that lived so long is started again at once."""
_START_S = 3600.0
"""Until it beats for the first time, a worker may take this long."""
_BETWEEN_S = 10.0
_PR_SET_PDEATHSIG = 1
_log = logging.getLogger("app.jobs.supervisor")


def command(
    *, stall_s: float, grace_s: float, parent: int = 0, never_gives_up: bool = False, worker: Sequence[str] = ()
) -> list[str]:
    """Return the command line of a supervisor, and of its worker unless that is `app.jobs.worker`.

    With a `parent` it stops when that process dies, for which its main thread must be the one that starts it. One
    that `never_gives_up` starts a worker again, ever more seldom, that says that another start would not help. The
    working directory is kept off the import path, where a folder called `models` would be taken for ours.
    """
    limits = ["--stall-s", str(stall_s), "--grace-s", str(grace_s), "--parent", str(parent)]
    limits += ["--never-gives-up"] if never_gives_up else []
    worker = worker or [sys.executable, "-P", "-m", "app.jobs.worker"]
    return [sys.executable, "-P", "-m", "app.jobs.supervisor", *limits, "--", *worker]


def _follow(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before
        os.kill(os.getpid(), signal.SIGTERM)


class Pulse:
    """By which a worker says that it is alive, and sees that its supervisor is; without a supervisor it does nothing.

    Safe for threads, and never waits.
    """

    def __init__(self) -> None:
        number = os.environ.pop(_PULSE, "")  # not for processes that this one starts
        self._pipe = int(number) if number else None
        self._poll = select.poll()
        if self._pipe is not None:
            os.set_inheritable(self._pipe, False)
            os.set_blocking(self._pipe, False)
            self._poll.register(self._pipe, 0)

    def beat(self) -> None:
        """Say that this process gets on with its work."""
        if self._pipe is not None:
            with suppress(OSError):  # full since the supervisor is stopped, or closed since it is dead
                os.write(self._pipe, b".")

    @property
    def is_heard(self) -> bool:
        """Whether the supervisor, if there was one, still lives."""
        return not self._poll.poll(0)


class Supervisor:
    """Runs one worker after the other until it is told to stop; a second signal, or the end of the grace, kills."""

    def __init__(self, worker: Sequence[str], *, stall_s: float, grace_s: float, never_gives_up: bool) -> None:
        self._worker = worker
        self._never_gives_up = never_gives_up
        self._stall_s = stall_s
        self._grace_s = grace_s
        self._signals = 0
        self._wait_s = 0.0

    def run(self) -> int:
        """Return the exit code: 0, or the worker's own if it cannot start."""
        for number in _STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        while not self._signals:
            started = time.monotonic()
            code = self._watched()
            if code == CANNOT_START and not self._never_gives_up:
                return code
            if not self._signals:
                self._before_the_next(code, lived_s=time.monotonic() - started)
        return 0

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._signals += 1

    def _watched(self) -> int:
        reading, writing = os.pipe()
        environment = os.environ | {_PULSE: str(writing)}
        # A session of its own: what a terminal sends to all is for this process to pass on.
        process = subprocess.Popen(self._worker, env=environment, pass_fds=[writing], start_new_session=True)  # noqa: S603
        os.close(writing)
        try:
            self._watch(process, reading)
        finally:
            os.close(reading)
        return process.wait()

    def _watch(self, process: "subprocess.Popen[bytes]", reading: int) -> None:
        patience_ends = time.monotonic() + _START_S
        told = 0
        while process.poll() is None:
            if self._beats(reading):
                patience_ends = time.monotonic() + self._stall_s
            if self._signals > told:
                told, grace_ends = self._pass_on(process, told)
                patience_ends = grace_ends
            if time.monotonic() > patience_ends:
                _log.error("the worker %d did nothing for too long, and is killed", process.pid)
                process.kill()
                return

    def _pass_on(self, process: "subprocess.Popen[bytes]", told: int) -> tuple[int, float]:
        if told:
            process.kill()
        else:
            process.terminate()
        return self._signals, time.monotonic() + self._grace_s

    def _beats(self, reading: int) -> bool:
        """Wait a moment for beats; once it stops, they count no more."""
        if select.select([reading], [], [], _LOOK_S)[0] and os.read(reading, 4096):
            return not self._signals
        time.sleep(_LOOK_S / 10)  # if it closed the pipe, it is about to end
        return False

    def _before_the_next(self, code: int, lived_s: float) -> None:
        self._wait_s = self._next_wait_s(code, lived_s)
        reason = " since it cannot start" if code == CANNOT_START else ""
        _log.warning("the worker ended with %d%s; another is started in %g s", code, reason, self._wait_s)
        ends = time.monotonic() + self._wait_s
        while not self._signals and time.monotonic() < ends:
            time.sleep(min(_LOOK_S, self._wait_s))

    def _next_wait_s(self, code: int, lived_s: float) -> float:
        if code == CANNOT_START:
            return min(max(2 * self._wait_s, _FIRST_HOPE_S), _LAST_HOPE_S)
        if lived_s > _WELL_S:
            return _FIRST_WAIT_S
        return min(max(2 * self._wait_s, _FIRST_WAIT_S), _LONGEST_WAIT_S)


class Supervisors:
    """The supervisors that a server keeps beside its own workers. Uses no thread, since the server forks."""

    def __init__(self, count: int, command: Sequence[str], environment: Mapping[str, str], *, grace_s: float) -> None:
        self._command = command
        self._environment = dict(environment)
        self._grace_s = grace_s
        self._started = [-_BETWEEN_S] * count
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self._ends = math.inf

    def keep(self) -> None:
        """Start those that do not run, but each at most every ten seconds; call it every second."""
        if self._ends < math.inf:
            return
        now = time.monotonic()
        for place, process in enumerate(self._processes):
            ended = process is None or process.poll() is not None
            if ended and now - self._started[place] >= _BETWEEN_S:
                self._started[place] = now
                try:
                    self._processes[place] = self._start()
                except OSError as error:  # of which the server would end
                    _log.error("a process for jobs cannot be started, and is tried again: %s", error)

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, env=self._environment, start_new_session=True)  # noqa: S603

    def tell(self) -> None:
        """Tell all to stop, and start none any more. A second time would kill, so it does nothing."""
        if self._ends < math.inf:
            return
        self._ends = time.monotonic() + self._grace_s
        for process in self._alive():
            process.terminate()

    def wait(self) -> None:
        """Wait until all have stopped, and kill what is left when the grace is over since they were told."""
        self.tell()
        for process in self._alive():
            try:
                process.wait(max(0.1, self._ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # its worker sees that it is gone

    def _alive(self) -> "list[subprocess.Popen[bytes]]":
        return [process for process in self._processes if process and process.poll() is None]


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"timestamp": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name}
        return json.dumps(line | {"event": record.getMessage()})


def _log_as_all_do() -> None:
    """As `app.logs` has it, which is too heavy."""
    logging.Formatter.converter = time.gmtime
    logging.Formatter.default_time_format, logging.Formatter.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    logging.basicConfig(format="%(asctime)s [%(levelname)s] %(message)s [%(name)s]")
    if os.environ.get("HEATLENS_LOG_FORMAT") == "json":
        logging.getLogger().handlers[0].setFormatter(_Json())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a supervisor: `python -m app.jobs.supervisor [OPTIONS] -- COMMAND...`."""
    parser = argparse.ArgumentParser("app.jobs.supervisor")
    parser.add_argument("--stall-s", type=float, required=True)
    parser.add_argument("--grace-s", type=float, required=True)
    parser.add_argument("--parent", type=int, default=0)
    parser.add_argument("--never-gives-up", action="store_true")
    parser.add_argument("worker", nargs="+")
    given = parser.parse_args(arguments)
    _log_as_all_do()
    supervisor = Supervisor(
        given.worker, stall_s=given.stall_s, grace_s=given.grace_s, never_gives_up=given.never_gives_up
    )
    if given.parent:
        _follow(given.parent)
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
