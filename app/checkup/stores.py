"""What the server keeps things in, asked whether it answers: database, store of the jobs, Redis."""

import os
import secrets
import time
from collections.abc import Iterator

import redis
import sqlalchemy as sa

from app.checkup.finding import Finding, error, warning
from app.config import Settings, without_password
from app.errors import JobsUnavailable, OutOfSpace
from app.jobs import tables
from app.jobs.artifacts import Store
from app.jobs.database import Database

_PATIENCE_S = 3
_CLOCKS_S = 30
"""How far two machines' clocks may be apart: keys and links expire, and jobs are sorted, by them."""


def database(settings: Settings) -> Iterator[Finding]:
    """The jobs' database: reachable, of this version, with a clock like ours."""
    if not settings.database_url and not os.path.exists(settings.data_dir / "jobs.db"):
        return  # it is made at the first start
    setting = "database_url" if settings.database_url else "data_dir"
    database = Database(settings)
    try:
        with database.read() as connection:
            yield from _version(setting, connection)
            yield from _clock(connection)
    except (JobsUnavailable, OutOfSpace) as why:
        reason = str(getattr(why.__cause__, "orig", why)).strip().replace("\n", " ")
        what = f"{settings.database_shown} does not answer: no jobs, and where keys are needed, no requests. {reason}"
        yield error(setting, what, "is it running, and are host, user and password right?")
    finally:
        database.close()


def _version(setting: str, connection: sa.Connection) -> Iterator[Finding]:
    if not sa.inspect(connection).has_table(tables.versions.name):
        return
    found = connection.scalar(sa.select(sa.func.max(tables.versions.c.version)))
    if found is not None and found > tables.VERSION:
        what = f"the database was upgraded to version {found} by a newer HeatLens; this one knows {tables.VERSION}"
        yield error(setting, what, "the newer HeatLens, or the backup that was made before the upgrade")


def _clock(connection: sa.Connection) -> Iterator[Finding]:
    if connection.dialect.name != "postgresql":
        return
    apart_s = abs(float(connection.scalar(sa.text("SELECT extract(epoch FROM clock_timestamp())"))) - time.time())
    if apart_s > _CLOCKS_S:
        what = f"the clocks of this machine and of the database are {apart_s:.0f} s apart"
        yield warning("database_url", what, "let both follow the same time (chrony, systemd-timesyncd)")


def artifacts(settings: Settings) -> Iterator[Finding]:
    """The store of the jobs' pictures and results, by writing a file and deleting it."""
    if settings.database_url and not settings.artifacts_url:
        what = "other machines may share the database, but not the pictures and results in HEATLENS_DATA_DIR"
        yield warning("artifacts_url", what, "s3://BUCKET/PREFIX, or a folder that all of them mount")
    if not settings.artifacts_url:
        return  # the data folder is looked at by itself
    store, name = Store(settings), f"doctor-{secrets.token_hex(8)}"
    try:
        store.write(f"{name}/file", b"heatlens doctor")
        store.delete_tree(name)
    except (OSError, OutOfSpace) as why:
        what = f"{without_password(settings.artifacts_url)} cannot be written, so no job is taken: {why}"
        yield error("artifacts_url", what, "does the bucket exist, and do the credentials allow put and delete?")


def counters(settings: Settings) -> Iterator[Finding]:
    """Redis, in which requests are counted."""
    if not settings.rate_limit or settings.rate_limit_storage == "memory://":
        return
    client = redis.Redis.from_url(
        settings.rate_limit_storage, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S
    )
    try:
        client.ping()
    except redis.RedisError as why:
        what = f"{without_password(settings.rate_limit_storage)} does not answer ({why}): each worker counts for itself"
        yield warning("rate_limit_storage", what, "is it running, and are host, port and password right?")
    finally:
        client.close()
