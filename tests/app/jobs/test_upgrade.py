"""Databases of the version before, as that version wrote them, and of a later one."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from app.cli import app
from app.config import Settings
from app.errors import DatabaseTooNew
from app.jobs import tables
from app.jobs.artifacts import input_key
from app.jobs.database import Database
from app.keys import Keys
from tests.app.jobs.crew import Crew

DUMPS = Path(__file__).parent / "upgrades"
FINISHED, UNDER_WAY = "1" * 32, "2" * 32
OLD_TABLES = ["heatlens_jobs", "heatlens_items", "heatlens_kept"]
Rows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def old(settings: Settings) -> Settings:
    """The settings of a deployment of the version before, on each kind of database."""
    kind = "postgres" if settings.database_url else "sqlite"
    dump = (DUMPS / f"version_1_{kind}.sql").read_text()
    if settings.database_url:
        with psycopg.connect(settings.database_url, autocommit=True) as connection:
            connection.execute(dump.encode())
    else:
        file = sqlite3.connect(settings.data_dir / "jobs.db")
        file.executescript(dump)
        file.close()
    return settings


@pytest.fixture
def old_database(old: Settings) -> Iterator[Database]:
    database = Database(old)
    yield database
    database.close()


def rows(database: Database, names: list[str]) -> Rows:
    with database.read() as connection:
        return {
            name: sorted((tuple(row) for row in connection.execute(sa.text(f"SELECT * FROM {name}"))), key=str)  # noqa: S608
            for name in names
        }


def version(database: Database) -> int | None:
    with database.read() as connection:
        return tables.version(connection)


def set_version(database: Database, number: int) -> None:
    with database.write() as connection:
        connection.execute(sa.update(tables.versions).values(version=number))


def schema(database: Database) -> dict[str, object]:
    """What our tables are made of."""
    inspector = sa.inspect(database.engine)
    return {
        name: (
            [(column["name"], str(column["type"]), column["nullable"]) for column in inspector.get_columns(name)],
            inspector.get_pk_constraint(name)["constrained_columns"],
            sorted(map(str, inspector.get_indexes(name))),
        )
        for name in inspector.get_table_names()
        if name.startswith("heatlens_")
    }


def test_an_upgrade_loses_nothing_and_makes_what_a_new_database_has(
    old_database: Database, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert version(old_database) == 1
    before = rows(old_database, OLD_TABLES)
    # as the dumps' text has it: two jobs, of two pictures and four, and what is kept
    assert {name: len(found) for name, found in before.items()} == dict(zip(OLD_TABLES, [2, 6, 1], strict=True))
    old_database.migrate()
    old_database.migrate()  # a second time changes nothing
    assert rows(old_database, OLD_TABLES) == before
    assert rows(old_database, ["heatlens_version"]) == {"heatlens_version": [(2,)]}

    url = "" if old_database.is_sqlite else request.getfixturevalue("postgres").make()
    new = Database(Settings(data_dir=tmp_path / "new", database_url=url))
    new.migrate()
    assert schema(old_database) == schema(new)
    new.close()


def test_several_may_upgrade_at_once(old: Settings) -> None:
    databases = [Database(old) for _ in range(6)]
    with ThreadPoolExecutor(len(databases)) as pool:
        list(pool.map(Database.migrate, databases))
    assert version(databases[0]) == tables.VERSION
    for database in databases:
        database.close()


def test_a_job_that_was_under_way_goes_on_after_the_upgrade(old: Settings) -> None:
    crew = Crew(old.model_copy(update={"job_retention_s": 0.0}))
    try:
        first = crew.items(UNDER_WAY)[0]
        assert (first.status, crew.job(UNDER_WAY).done) == ("succeeded", 1)
        for number in range(4):
            crew.store.write(input_key(UNDER_WAY, number), f"{number}".encode())
        crew.start()
        job = crew.finish(UNDER_WAY)
        assert (job.status, job.done, job.failed) == ("succeeded", 4, 0), crew.log()
        assert set(crew.began()) == {1, 2, 3}  # and not what was explained before
        assert crew.items(UNDER_WAY)[0] == first
        finished = crew.job(FINISHED)
        assert (finished.name, finished.status, finished.done) == ("finished", "completed_with_errors", 2)
    finally:
        crew.close()


def test_keys_are_looked_for_without_an_upgrade_and_made_with_one(old: Settings, old_database: Database) -> None:
    keys = Keys(old, old_database)
    assert keys.all() == []
    assert not keys.are_needed()
    assert version(old_database) == 1
    key, text = keys.create("ci", ["explain"])
    assert version(old_database) == 2
    assert keys.check(text) == key
    assert keys.are_needed()


# What a later HeatLens made.


def test_tables_of_a_later_version_are_refused_and_left_alone(database: Database) -> None:
    set_version(database, 3)
    with database.write() as connection:
        connection.execute(sa.text("DROP TABLE heatlens_kept"))  # which that later version may have done
    with pytest.raises(DatabaseTooNew, match=r"of version 3, made by a later HeatLens; this one knows version 2"):
        database.migrate()
    with pytest.raises(DatabaseTooNew):
        database.require_known()
    assert version(database) == 3
    assert "heatlens_kept" not in schema(database)


def test_a_queue_of_a_later_dbos_is_refused_which_dbos_itself_would_work_on(database: Database) -> None:
    table = "dbos_migrations" if database.is_sqlite else "dbos.dbos_migrations"
    with database.write() as connection:
        connection.execute(sa.text(f"UPDATE {table} SET version = 10000"))  # noqa: S608
    with pytest.raises(DatabaseTooNew, match=r"of DBOS's version 10000, and the DBOS that is installed knows"):
        database.migrate()


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A data folder of a later version."""
    database = Database(Settings(data_dir=tmp_path))
    database.migrate()
    set_version(database, 3)
    database.close()
    return tmp_path


@pytest.mark.parametrize(
    "command",
    ["jobs list", "jobs show x", "jobs delete x", "keys list", "keys create ci --scope explain", "keys revoke ci"],
)
def test_commands_refuse_a_later_version_in_one_line(
    later: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEATLENS_DATA_DIR", str(later))
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("heatlens: The jobs' database is of version 3")


@pytest.mark.parametrize(
    ("command", "code"),
    [("serve --port 0", 3), ("serve --port 0 --host 0.0.0.0", 3), ("worker", 3)],
    ids=["serve", "serve at a public address", "worker"],
)
def test_processes_refuse_a_later_version_without_a_traceback(
    later: Path, models_dir: Path, command: str, code: int
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEATLENS_")}
    ours = {"DATA_DIR": later, "MODELS_DIR": models_dir, "DEFAULT_MODEL": "small", "WORKERS": 1, "JOB_WORKERS": 0}
    environment |= {f"HEATLENS_{name}": str(value) for name, value in ours.items()}
    done = subprocess.run(
        [sys.executable, "-m", "app", *command.split()], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == code, done.stderr
    said = done.stdout + done.stderr
    assert re.search(r"cannot start: The jobs' database is of version 3, made by a later HeatLens; .*", said)
    assert "Traceback" not in said
