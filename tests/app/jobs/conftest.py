"""The databases that jobs can have."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config import Settings
from app.jobs.database import Database
from tests.app.jobs import postgres as server
from tests.app.jobs.postgres import Postgres
from tests.support import require


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A Postgres server of this session's own."""
    require(server.BINARIES is not None, "Postgres (apt-get install postgresql)")
    with server.running() as running:
        yield running


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """An empty database on it."""
    return postgres.make()


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of both deployments, with nothing in their database yet."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    return Settings(data_dir=tmp_path, database_url=url)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    """Each kind of database, with its tables."""
    database = Database(settings)
    database.migrate()
    yield database
    database.close()
