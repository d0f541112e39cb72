"""The supervisor, with workers of a few lines."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.jobs import supervisor
from app.jobs.supervisor import CANNOT_START, Pulse, Supervisor, Supervisors
from tests.app.jobs.crew import eventually, kill_all

IMPORTS = "import os, signal, sys, time\nfrom app.jobs.supervisor import Pulse\n"
BEGINS = "pulse = Pulse()\nprint(os.getpid(), flush=True)\n"
ON_SIGNAL = "signal.signal(signal.SIGTERM, lambda *_: {})\n"
BEATS_ON = "while True: pulse.beat(); time.sleep(0.05)"
SAYS_BYE = "(time.sleep(0.5), print('bye', flush=True), os._exit(0))"

BEATS = IMPORTS + BEGINS + BEATS_ON
HANGS = IMPORTS + BEGINS + "pulse.beat(); time.sleep(60)"
STUBBORN = IMPORTS + ON_SIGNAL.format("print('told', flush=True)") + BEGINS + BEATS_ON
POLITE = IMPORTS + ON_SIGNAL.format(SAYS_BYE) + BEGINS + BEATS_ON
CANNOT = IMPORTS + BEGINS + f"sys.exit({CANNOT_START})"
LONELY = IMPORTS + BEGINS + "while pulse.is_heard: time.sleep(0.05)\nprint('alone', flush=True)"

Start = Callable[..., "Watched"]


class Watched:
    """A supervisor, and what its workers print."""

    def __init__(self, code: str, output: Path, **given: Any) -> None:
        command = supervisor.command(**{"stall_s": 30, "grace_s": 30, "worker": [sys.executable, "-c", code], **given})
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file)

    @property
    def output(self) -> str:
        return self._output.read_text()

    def lines(self) -> list[str]:
        return self.output.splitlines()

    def workers(self) -> list[int]:
        return [int(line) for line in self.lines() if line.isdecimal()]

    def first(self) -> int:
        eventually(self.workers)
        return self.workers()[0]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    watched: list[Watched] = []

    def start(code: str, **given: Any) -> Watched:
        watched.append(Watched(code, tmp_path / "output", **given))
        return watched[-1]

    yield start
    for one in watched:
        kill_all(one.process)


def lives(process_id: int) -> bool:
    return Path(f"/proc/{process_id}").exists()


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys; import app.jobs.supervisor; print({'torch', 'numpy', 'pydantic', 'sqlalchemy'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_a_worker_that_dies_is_replaced_and_each_time_a_little_later(start: Start) -> None:
    watched = start(BEATS)
    for number in (1, 2):
        eventually(lambda number=number: len(watched.workers()) == number)  # type: ignore[misc]
        os.kill(watched.workers()[-1], signal.SIGKILL)
    eventually(lambda: len(watched.workers()) == 3)
    assert "ended with -9; another is started in 0.5 s" in watched.output
    assert "ended with -9; another is started in 1 s" in watched.output


def test_a_worker_without_a_pulse_is_killed_and_replaced(start: Start) -> None:
    watched = start(HANGS, stall_s=0.5)
    eventually(lambda: len(watched.workers()) >= 2)
    assert not lives(watched.first())
    assert "did nothing for too long, and is killed" in watched.output


def test_a_worker_with_a_pulse_is_left_alone(start: Start) -> None:
    watched = start(BEATS, stall_s=2)  # forty times as long as between two beats
    first = watched.first()
    time.sleep(3)
    assert lives(first)
    assert len(watched.lines()) == 1


def test_a_signal_is_passed_on_and_the_worker_is_waited_for(start: Start) -> None:
    watched = start(POLITE)
    watched.first()
    watched.process.terminate()
    assert watched.process.wait(10) == 0
    assert watched.lines()[1:] == ["bye"]


def test_a_worker_that_does_not_stop_within_the_grace_is_killed(start: Start) -> None:
    watched = start(STUBBORN, grace_s=0.6)
    watched.first()
    told = time.monotonic()
    watched.process.terminate()
    assert watched.process.wait(60) == 0
    assert time.monotonic() - told >= 0.6
    assert watched.lines()[1] == "told"
    assert not lives(watched.first())


def test_a_second_signal_kills_at_once(start: Start) -> None:
    watched = start(STUBBORN)
    watched.first()
    watched.process.terminate()
    eventually(lambda: "told" in watched.lines())
    watched.process.send_signal(signal.SIGINT)
    assert watched.process.wait(10) == 0
    assert not lives(watched.first())


def test_where_another_start_would_not_help_there_is_none(start: Start) -> None:
    watched = start(CANNOT)
    assert watched.process.wait(60) == CANNOT_START
    assert len(watched.workers()) == 1


def test_who_never_gives_up_waits_longer_and_longer_for_a_start_to_be_possible(start: Start) -> None:
    watched = start(CANNOT, never_gives_up=True)
    eventually(lambda: "ended with 3" in watched.output)
    assert watched.lines()[1:] == [watched.lines()[1]], "said more than once"
    assert "ended with 3 since it cannot start; another is started in 10 s" in watched.output
    watched.process.terminate()
    assert watched.process.wait(10) == 0
    assert len(watched.workers()) == 1


def test_how_long_is_waited_before_the_next_start() -> None:
    one = Supervisor([], stall_s=1, grace_s=1, never_gives_up=True)
    waits = []
    # It cannot start, and says so at its first shard, which may be late; at last it can, and then dies.
    for code, lived_s in [*[(CANNOT_START, 3600.0)] * 7, (-9, 3600.0), (-9, 1.0)]:
        one._wait_s = one._next_wait_s(code, lived_s)
        waits.append(one._wait_s)
    assert waits == [10, 20, 40, 80, 160, 300, 300, 0.5, 1]


def test_a_worker_hears_that_its_supervisor_is_gone(start: Start) -> None:
    watched = start(LONELY)
    first = watched.first()
    watched.process.kill()
    watched.process.wait()
    eventually(lambda: not lives(first))
    assert watched.lines()[-1] == "alone"


def test_without_a_supervisor_there_is_nobody_to_hear() -> None:
    pulse = Pulse()
    pulse.beat()
    assert pulse.is_heard


def test_a_supervisor_ends_with_the_process_that_it_follows(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\nfrom app.jobs import supervisor\n"
        f"worker = [sys.executable, '-c', {LONELY!r}]\n"
        "command = supervisor.command(stall_s=30, grace_s=30, parent=os.getpid(), worker=worker)\n"
        "print(subprocess.Popen(command).pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        watcher, worker = int(parent.stdout.readline()), int(parent.stdout.readline())
        parent.kill()
    eventually(lambda: not lives(watcher) and not lives(worker))


def test_a_server_s_supervisors_are_replaced_even_if_the_server_reaps_them_and_none_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_BETWEEN_S", 0.0)
    command = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]
    supervisors = Supervisors(2, command, os.environ, grace_s=10)
    supervisors.keep()
    before = supervisors._alive()
    assert len(before) == 2
    before[0].send_signal(signal.SIGKILL)
    os.waitpid(before[0].pid, 0)  # as gunicorn does with whatever child ends
    supervisors.keep()
    after = supervisors._alive()
    assert len(after) == 2
    assert {process.pid for process in before} & {process.pid for process in after} == {before[1].pid}
    supervisors.tell()
    supervisors.wait()
    supervisors.keep()
    assert supervisors._alive() == []


def test_a_supervisor_that_cannot_be_started_does_not_end_the_server_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_BETWEEN_S", 0.0)
    program = tmp_path / "program"
    supervisors = Supervisors(1, [str(program)], os.environ, grace_s=10)
    supervisors.keep()
    assert supervisors._alive() == []
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    supervisors.keep()
    assert len(supervisors._alive()) == 1
    supervisors.wait()


def test_a_server_s_supervisors_have_their_grace_from_when_they_are_told_and_are_told_once(tmp_path: Path) -> None:
    said = tmp_path / "said"
    told = f"__import__('pathlib').Path({str(said)!r}).open('a').write('told\\n')"
    code = f"import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: {told})\nprint(flush=True)\ntime.sleep(60)"
    supervisors = Supervisors(1, [sys.executable, "-c", f"{code}\ntime.sleep(60)"], os.environ, grace_s=6)
    supervisors.keep()
    [process] = supervisors._alive()
    eventually(lambda: signal_is_caught(process.pid))
    began = time.monotonic()
    supervisors.tell()
    time.sleep(5)  # gunicorn waits for its own
    supervisors.tell()
    supervisors.wait()
    process.wait(60)
    assert 6 <= time.monotonic() - began < 10.5
    assert process.returncode == -signal.SIGKILL
    assert said.read_text() == "told\n"


def signal_is_caught(process_id: int) -> bool:
    [mask] = [line for line in Path(f"/proc/{process_id}/status").read_text().splitlines() if line.startswith("SigCgt")]
    return bool(int(mask.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
