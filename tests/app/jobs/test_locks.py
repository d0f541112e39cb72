"""Locks between processes, beside a SQLite file and on Postgres."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from app.config import Settings
from app.errors import JobsUnavailable
from app.jobs.database import Database
from app.jobs.locks import Locks, Seat, SeatLost
from tests.app.jobs.postgres import Postgres

HOLDER = """
import sys
from app.config import Settings
from app.jobs.database import Database
from app.jobs.locks import Locks

lock = Locks(Database(Settings())).take(sys.argv[1])
print("taken" if lock else "refused", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locks(database: Database) -> Locks:
    return Locks(database)


@contextmanager
def held_elsewhere(settings: Settings, name: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds a lock, or was refused it, as its first line says."""
    environment = {"HEATLENS_DATA_DIR": str(settings.data_dir), "HEATLENS_DATABASE_URL": settings.database_url}
    command = [sys.executable, "-c", HOLDER, name]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_lock_has_one_holder_even_in_one_process_and_names_are_apart(locks: Locks) -> None:
    lock = locks.take("a")
    assert lock
    assert lock.is_held()
    assert locks.take("a") is None
    assert not locks.is_free("a")
    assert locks.is_free("b")
    lock.release()
    assert locks.is_free("a")
    assert locks.is_free("a"), "looking took it away"


def test_a_lock_is_refused_to_another_process_and_ends_with_the_process_that_is_killed(
    settings: Settings, locks: Locks
) -> None:
    mine = locks.take("a")
    assert mine
    with held_elsewhere(settings, "a") as refused:
        assert answer(refused) == "refused"
    mine.release()
    with held_elsewhere(settings, "a") as holder:
        assert answer(holder) == "taken"
        assert not locks.is_free("a")
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        assert locks.is_free("a")


def test_workers_sit_on_the_first_free_places(locks: Locks) -> None:
    first, second = Seat.take(locks), Seat.take(locks)
    assert (first.slot, second.slot) == (0, 1)
    assert first.executor != second.executor
    first.leave()
    again = Seat.take(locks)
    assert (again.slot, again.executor) == (0, first.executor)
    for seat in (second, again):
        seat.leave()


def test_a_file_s_workers_have_the_same_names_in_a_container_that_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, locks: Locks
) -> None:
    before = locks.host
    monkeypatch.setattr(socket, "gethostname", lambda: "0c1f0c5a7e2b")
    assert locks.host == ("0c1f0c5a7e2b" if settings.database_url else before)


@pytest.fixture
def postgres_locks(postgres_url: str) -> Locks:
    return Locks(Database(Settings(database_url=postgres_url)))


def cut_off(url: str) -> None:
    """End all other connections to a database, as its restart does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_place_that_goes_with_the_connection_is_taken_again(postgres_locks: Locks, postgres_url: str) -> None:
    seat = Seat.take(postgres_locks)
    seat.confirm(lambda: pytest.fail("nothing was lost, so there is nothing to ask"))
    assert seat.is_sure
    cut_off(postgres_url)
    assert postgres_locks.is_free(seat.executor)
    asked: list[bool] = []
    seat.confirm(lambda: asked.append(True) or True)
    assert asked
    assert seat.is_sure
    assert not postgres_locks.is_free(seat.executor)
    seat.leave()


def test_a_place_that_another_took_meanwhile_is_lost(postgres_locks: Locks, postgres_url: str) -> None:
    seat = Seat.take(postgres_locks)
    cut_off(postgres_url)
    usurper = Seat.take(postgres_locks)
    assert usurper.executor == seat.executor
    with pytest.raises(SeatLost):
        seat.confirm(lambda: True)
    assert not seat.is_sure
    usurper.leave()


def test_a_place_whose_work_another_took_meanwhile_is_lost_too(postgres_locks: Locks, postgres_url: str) -> None:
    seat = Seat.take(postgres_locks)
    cut_off(postgres_url)
    with pytest.raises(SeatLost):
        seat.confirm(lambda: False)
    seat.leave()


def test_the_question_whose_work_it_is_is_asked_until_it_is_answered(postgres_locks: Locks, postgres_url: str) -> None:
    def away() -> bool:
        msg = "away"
        raise JobsUnavailable(msg)

    seat = Seat.take(postgres_locks)
    cut_off(postgres_url)
    with pytest.raises(JobsUnavailable):
        seat.confirm(away)
    with pytest.raises(SeatLost):
        seat.confirm(lambda: False)
    seat.leave()


def test_a_server_that_is_away_is_said_to_be(postgres: Postgres, postgres_url: str) -> None:
    nobody = postgres_url.replace(f":{postgres.port}/", ":1/")
    with pytest.raises(JobsUnavailable):
        Locks(Database(Settings(database_url=nobody))).take("a")


def test_the_server_notices_within_ten_seconds_that_a_machine_is_gone(postgres_url: str, postgres_locks: Locks) -> None:
    """What a power cut does cannot be done here, so what the server was told is asked of its socket."""
    lock = postgres_locks.take("a")
    assert lock is not None
    connection = lock._connection  # type: ignore[attr-defined]
    told = {
        name: int(connection.execute(f"SHOW tcp_keepalives_{name}").fetchone()[0])
        for name in ("idle", "interval", "count")
    }
    assert told["idle"] + told["interval"] * told["count"] <= 10
    lock.release()
