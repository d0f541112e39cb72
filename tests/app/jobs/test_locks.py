"""Locks between processes, beside a SQLite file and on Postgres."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from app.config import Settings
from app.errors import JobsUnavailable
from app.jobs import locks as locks_module
from app.jobs.database import Database
from app.jobs.locks import Locks, Seat, SeatLost
from tests.app.jobs.crew import eventually
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
    assert locks.free(["a", "b"]) == {"b"}
    lock.release()
    assert locks.free(["a", "b"]) == {"a", "b"}
    assert locks.free([]) == set()


def test_who_looks_does_not_blind_others_who_look(locks: Locks) -> None:
    looks: list[set[str]] = []

    def look() -> None:
        looks.extend(locks.free(["a"]) for _ in range(100))

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(look)
    assert looks == [{"a"}] * 400


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
        assert locks.free(["a"]) == set()
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        assert locks.free(["a"]) == {"a"}


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
def postgres_locks(postgres_url: str) -> Iterator[Locks]:
    database = Database(Settings(database_url=postgres_url))
    yield Locks(database)
    database.close()


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
    assert postgres_locks.free([seat.executor]) == {seat.executor}
    asked: list[bool] = []
    seat.confirm(lambda: asked.append(True) or True)
    assert asked
    assert seat.is_sure
    assert postgres_locks.free([seat.executor]) == set()
    seat.leave()
    assert not seat.is_sure


def test_looking_at_many_locks_on_postgres_is_one_statement_and_no_connection_more(
    postgres_locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    engine = postgres_locks._database.engine
    sa.event.listen(engine, "before_cursor_execute", lambda _connection, _cursor, sql, *_: statements.append(sql))
    postgres_locks.free(["a"])
    monkeypatch.setattr(psycopg, "connect", lambda *_, **__: pytest.fail("another connection"))
    statements.clear()
    assert len(postgres_locks.free([str(number) for number in range(50)])) == 50
    assert len(statements) == 1


def test_a_place_is_held_by_its_lock_and_not_by_a_connection_that_answers(
    postgres_locks: Locks, postgres_url: str
) -> None:
    """As behind a pooler, which gives the connection that has the lock to somebody else."""
    lock = postgres_locks.take("a")
    assert lock
    assert lock.is_held()
    behind_it = lock._connection  # type: ignore[attr-defined]
    lock._connection = psycopg.connect(postgres_url, autocommit=True)  # type: ignore[attr-defined]
    assert not lock.is_held()
    behind_it.close()


def test_a_dead_connection_that_the_server_takes_for_alive_is_waited_out(
    postgres_locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat = Seat.take(postgres_locks)
    alive, dead = kept_by_the_server(seat)
    with pytest.raises(JobsUnavailable):
        seat.confirm(lambda: True)
    assert not seat.is_sure
    os.close(alive)
    eventually(lambda: postgres_locks.free([seat.executor]))
    seat.confirm(lambda: True)
    assert seat.is_sure
    dead.close()
    alive, dead = kept_by_the_server(seat)
    monkeypatch.setattr(locks_module, "_UNNOTICED_S", 0.3)
    with pytest.raises(JobsUnavailable):
        seat.confirm(lambda: True)
    time.sleep(0.3)
    with pytest.raises(SeatLost):
        seat.confirm(lambda: True)
    os.close(alive)
    dead.close()


def kept_by_the_server(seat: Seat) -> tuple[int, socket.socket]:
    """Have the client's end of the lock's connection be dead; the server's lives as long as what is returned."""
    descriptor = seat._lock._connection.fileno()  # type: ignore[union-attr]
    alive = os.dup(descriptor)
    dead, other_end = socket.socketpair()
    other_end.close()
    os.dup2(dead.fileno(), descriptor)
    return alive, dead


def test_a_pooler_in_between_is_told_of(
    postgres: Postgres, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as PgBouncer: the number of the connection that it tells is its own."""
    with pooler(postgres.port) as port:
        locks = Locks(Database(Settings(database_url=postgres_url.replace(f":{postgres.port}/", f":{port}/"))))
        seat = Seat.take(locks)
        assert "must pool sessions" in caplog.text
        seat.confirm(lambda: True)
        seat.leave()
    caplog.clear()
    Seat.take(Locks(Database(Settings(database_url=postgres_url)))).leave()
    assert not caplog.text


@contextmanager
def pooler(port: int) -> Iterator[int]:
    """Something that passes one connection on, but for the number of its server process."""

    def serve() -> None:
        client, _ = listener.accept()
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            while ready := select.select([client, server], [], [])[0]:
                data = ready[0].recv(65536)
                if not data:
                    return
                start = data.find(b"K\0\0\0\x0c") if ready[0] is server else -1
                if start >= 0:
                    data = data[: start + 5] + b"\0\0\0\x01" + data[start + 9 :]
                (client if ready[0] is server else server).sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def test_a_folder_of_locks_that_cannot_be_written_is_an_unavailable_database(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("")
    with pytest.raises(JobsUnavailable):
        Locks(Database(Settings(data_dir=tmp_path))).take("a")


def test_a_place_that_another_took_meanwhile_is_lost(
    postgres_locks: Locks, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks_module, "_UNNOTICED_S", 0.0)
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
