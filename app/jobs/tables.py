"""The tables of the jobs. Times are seconds since 1970, UTC."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, Text

from app.errors import DatabaseTooNew

VERSION = 2
"""Of the tables; they say it themselves, so that an older HeatLens refuses those of a newer one."""
SCHEMA_LOCK = 0x4845_4154
"""Held on Postgres while tables are created."""
ROOM_LOCK = SCHEMA_LOCK + 1
"""Held on Postgres while it is seen whether there is room for one more thing to keep."""
KEYS_LOCK = SCHEMA_LOCK + 2
"""Held on Postgres while it is seen whether a key's name is free."""

metadata = sa.MetaData()

versions = sa.Table("heatlens_version", metadata, Column("version", Integer, primary_key=True))

jobs = sa.Table(
    "heatlens_jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("options", sa.JSON, nullable=False),
    Column("webhook", Text),
    Column("waiting_for", Text),
    Column("total", Integer, nullable=False, default=0),
    Column("done", Integer, nullable=False, default=0),
    Column("failed", Integer, nullable=False, default=0),
    Column("events", Integer, nullable=False, default=0),
    Column("shards", Integer, nullable=False, default=0),
    Column("attempt", Integer, nullable=False, default=0),
    Column("size_bytes", BigInteger, nullable=False, default=0),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("deleted_at", Float),
    Column("idempotency_key", Text),
    Column("payload_sha256", Text),
    Index("heatlens_jobs_by_age", "created_at", "id"),
    Index("heatlens_jobs_by_key", "owner", "idempotency_key", unique=True),
)
"""`events`, `shards` and `attempt` are the last number given to an outcome, to a shard, and to a run of the job."""

items = sa.Table(
    "heatlens_items",
    metadata,
    Column("job_id", Text, ForeignKey("heatlens_jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("shard", Integer, nullable=False, default=0),
    Column("name", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("status", Text, nullable=False, default="waiting"),
    Column("event", Integer),
    Column("attempts", Integer, nullable=False, default=0),
    Column("sha256", Text),
    Column("size_bytes", BigInteger, nullable=False, default=0),
    Column("artifact_bytes", BigInteger, nullable=False, default=0),
    Column("label", Text),
    Column("target", Integer),
    Column("confidence", Float),
    Column("result", sa.JSON(none_as_null=True)),
    Column("error", sa.JSON(none_as_null=True)),
    Column("finished_at", Float),
    Index("heatlens_items_by_shard", "job_id", "shard", "status"),
    Index("heatlens_items_by_event", "job_id", "event"),
)

kept = sa.Table(
    "heatlens_kept",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("image_id", Text),
    Column("job_id", Text),
    Column("facts", sa.JSON, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Index("heatlens_kept_by_expiry", "expires_at"),
    Index("heatlens_kept_by_image", "image_id"),
    Index("heatlens_kept_by_owner", "owner", "size_bytes"),
)
"""What is kept for a while beside the jobs: pictures of /v1/images, and what embed links show of them, or of a job."""

keys = sa.Table(
    "heatlens_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)
"""The API keys, also those that open nothing any more: once there is one, whoever asks needs one."""


def migrate(connection: sa.Connection) -> None:
    """Create the tables, or bring those of an older HeatLens up to date. Raises `DatabaseTooNew`."""
    found = version(connection)
    if found is None:
        metadata.create_all(connection)
        connection.execute(sa.insert(versions).values(version=VERSION))
        return
    require_known(found)
    for step in range(found, VERSION):
        for statement in _STEPS[step]:
            connection.exec_driver_sql(statement)
        connection.execute(sa.update(versions).values(version=step + 1))


def version(connection: sa.Connection) -> int | None:
    """Return the version of the tables that are there, if any are."""
    if not sa.inspect(connection).has_table(versions.name):
        return None
    found: int | None = connection.scalar(sa.select(sa.func.max(versions.c.version)))
    return found


def require_known(found: int | None) -> None:
    """Raise `DatabaseTooNew` where tables are of a version that this HeatLens does not know."""
    if found is not None and found > VERSION:
        msg = (
            f"The jobs' database is of version {found}, made by a later HeatLens; this one knows version {VERSION} and "
            "leaves it alone. Install the later HeatLens again, or restore the backup from before the upgrade."
        )
        raise DatabaseTooNew(msg)


_STEPS = {
    1: [
        "CREATE TABLE heatlens_keys (id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL, "
        "scopes TEXT NOT NULL, created_at FLOAT NOT NULL, expires_at FLOAT, revoked_at FLOAT)"
    ],
}
"""What makes of the tables of a version those of the next one; written out, since the tables above change later."""
