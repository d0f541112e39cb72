"""A SQLite file of the jobs that is removed, replaced or damaged under those who use it, and who may read it."""

import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from app.cli import app
from app.config import Settings
from app.errors import JobsUnavailable, KeysUnavailable, Unauthorized
from app.jobs import tables
from app.jobs.database import Database
from app.keys import Keys
from tests.app.jobs.crew import Crew
from tests.app.jobs.postgres import Postgres


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def running(folder: Path) -> Iterator[Database]:
    """A database that a server uses."""
    database = Database(Settings(data_dir=folder))
    database.migrate()
    yield database
    database.close()


def note(database: Database, name: str) -> None:
    """Write something that is found again."""
    kept = {"id": name, "kind": "", "owner": "", "facts": {}, "size_bytes": 0, "created_at": 0, "expires_at": 0}
    with database.write() as connection:
        connection.execute(sa.insert(tables.kept).values(kept))


def notes(database: Database) -> set[str]:
    with database.read() as connection:
        return set(connection.scalars(sa.select(tables.kept.c.id)))


def backup(folder: Path, copy: Path) -> Path:
    """As OPERATIONS.md has it."""
    with sqlite3.connect(folder / "jobs.db") as source:
        source.execute("VACUUM INTO ?", [str(copy)])
    source.close()
    return copy


def critical(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]


def test_a_folder_that_is_removed_takes_nothing_more_until_its_file_is_back(
    running: Database, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note(running, "before")
    copy = backup(folder, tmp_path / "copy.db")
    shutil.rmtree(folder)
    for _ in range(3):
        with pytest.raises(JobsUnavailable, match=r"jobs\.db in HEATLENS_DATA_DIR, was removed"):
            note(running, "lost")
        with pytest.raises(JobsUnavailable, match="was removed"):
            running.require_known()
    assert not folder.exists()  # to look for a file makes none
    assert len(critical(caplog)) == 1
    folder.mkdir()
    copy.rename(folder / "jobs.db")
    note(running, "after")
    assert notes(running) == {"before", "after"}
    assert len(critical(caplog)) == 2  # that it is gone, and that there is another


def test_a_backup_that_is_moved_over_the_file_is_what_everybody_uses(
    running: Database, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left of the one before is not written into it: its log lies beside, and fits into any file."""
    other = Database(Settings(data_dir=folder))  # as another process
    note(running, "in both")
    copy = backup(folder, tmp_path / "copy.db")
    note(running, "in the old one only")
    assert notes(other) == notes(running) == {"in both", "in the old one only"}
    assert (folder / "jobs.db-wal").stat().st_size > 0
    copy.replace(folder / "jobs.db")
    for database in (running, other):
        note(database, f"new of {database is other}")
    assert notes(running) == notes(other) == {"in both", "new of False", "new of True"}
    assert len(critical(caplog)) == 2  # one of each process
    other.close()
    fresh = Database(Settings(data_dir=folder))
    with fresh.read() as connection:
        assert connection.scalar(sa.text("PRAGMA integrity_check")) == "ok"
    assert notes(fresh) == notes(running)
    fresh.close()


def test_an_empty_file_gets_its_tables_while_many_look(running: Database, folder: Path) -> None:
    note(running, "before")
    for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm"):
        (folder / name).rename(folder / f"old-{name}")
    (folder / "jobs.db").touch()
    assert notes(running) == set()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: note(running, str(number)), range(16)))
    assert notes(running) == {str(number) for number in range(16)}


def test_whoever_makes_the_tables_first_takes_over_a_file_that_was_replaced(running: Database, folder: Path) -> None:
    """It holds the lock of the file as it does, which it must not wait for."""
    note(running, "before")
    (folder / "empty").touch()
    (folder / "empty").replace(folder / "jobs.db")
    running.migrate()
    assert notes(running) == set()


def test_a_backup_of_a_later_version_is_refused_until_another_comes(running: Database, folder: Path) -> None:
    copy, later = backup(folder, folder / "copy.db"), backup(folder, folder / "later.db")
    with sqlite3.connect(later) as connection:
        connection.execute("UPDATE heatlens_version SET version = 1000")
    connection.close()
    later.replace(folder / "jobs.db")
    for _ in range(2):
        with pytest.raises(JobsUnavailable, match="of version 1000, made by a later HeatLens"):
            notes(running)
    copy.replace(folder / "jobs.db")
    assert notes(running) == set()


def test_keys_of_a_restored_file_hold_within_five_seconds(running: Database, folder: Path) -> None:
    ticks = [1000.0]
    settings = Settings(data_dir=folder)
    keys = Keys(settings, running, ticks=lambda: ticks[0])
    _, kept = keys.create("kept", ["explain"])
    copy = backup(folder, folder / "copy.db")
    _, later = keys.create("later", ["explain"])
    assert keys.check(later).name == "later"
    copy.replace(folder / "jobs.db")
    ticks[0] += 5
    with pytest.raises(Unauthorized):
        keys.check(later)
    assert keys.check(kept).name == "kept"
    assert keys.revoke("kept").revoked_at
    with pytest.raises(Unauthorized):
        keys.check(kept)


def test_jobs_go_on_in_the_file_that_is_there_now(folder: Path) -> None:
    """The queue's own connections follow, too."""
    crew = Crew(Settings(data_dir=folder))
    try:
        crew.start()
        first = crew.submit([b"1", b"2"])
        assert crew.finish(first).status == "succeeded", crew.log()
        backup(folder, folder / "copy.db").replace(folder / "jobs.db")
        second = crew.submit([b"3", b"4"])
        assert crew.finish(second).status == "succeeded", crew.log()
        assert crew.job(first).status == "succeeded"
    finally:
        crew.close()


@pytest.mark.parametrize("mask", [0o022, 0o000])
def test_nobody_else_can_read_the_file_nor_what_lies_beside_it(folder: Path, mask: int) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    before = os.umask(mask)
    try:
        database = Database(Settings(data_dir=folder))
        database.migrate()
        note(database, "something")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        database.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db.lock"], 0o600)


# Damage.


@pytest.fixture(params=["no database", "malformed"])
def damaged(request: pytest.FixtureRequest, folder: Path) -> Path:
    """A data folder whose file cannot be read."""
    database = Database(Settings(data_dir=folder))
    database.migrate()
    Keys(Settings(data_dir=folder), database).create("ci", ["explain"])
    database.close()
    file = folder / "jobs.db"
    data = file.read_bytes()
    # the header of a file is its first 100 bytes; what follows on the first page is the list of the tables
    file.write_bytes(b"garbage" * 1000 if request.param == "no database" else data[:100] + b"\xff" * (len(data) - 100))
    return folder


def test_a_damaged_file_is_said_to_be_one_and_lets_nobody_in(damaged: Path) -> None:
    settings = Settings(data_dir=damaged)
    database = Database(settings)
    for call in (database.migrate, database.require_known, lambda: notes(database)):
        with pytest.raises(JobsUnavailable, match=r"The jobs' database is damaged \(.*\)\. Stop all that uses it"):
            call()
    with pytest.raises(KeysUnavailable):
        Keys(settings, database).are_needed()
    database.close()


@pytest.mark.parametrize("command", ["keys list", "keys create ci --scope explain", "jobs list"])
def test_commands_say_in_one_line_that_a_file_is_damaged(
    damaged: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEATLENS_DATA_DIR", str(damaged))
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 1, result.exception
    assert result.stdout == ""
    assert result.stderr.startswith("heatlens: The jobs' database is damaged (")
    assert result.stderr.count("\n") == 1


def test_a_user_without_rights_is_told_so(postgres: Postgres, postgres_url: str, tmp_path: Path) -> None:
    owner = Database(Settings(data_dir=tmp_path, database_url=postgres_url))
    owner.migrate()
    owner.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
    database = Database(Settings(data_dir=tmp_path, database_url=postgres_url.replace("//postgres@", "//reader@")))
    lacks = "The user of HEATLENS_DATABASE_URL lacks rights in the jobs' database (permission denied for table "
    for call in (database.require_known, lambda: notes(database)):
        with pytest.raises(JobsUnavailable) as refused:
            call()
        assert str(refused.value).startswith(lacks)
    database.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE reader")
