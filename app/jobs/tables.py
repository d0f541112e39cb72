"""The tables of the jobs. Times are seconds since 1970, UTC."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, Text

from app.errors import JobsUnavailable

VERSION = 1
"""Of the tables; they say it themselves, so that an older HeatLens refuses those of a newer one."""
SCHEMA_LOCK = 0x4845_4154
"""Held on Postgres while tables are created."""

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


def create(connection: sa.Connection) -> None:
    """Create the tables, or raise `JobsUnavailable` where those that are there are of another version."""
    metadata.create_all(connection)
    found = connection.scalar(sa.select(sa.func.max(versions.c.version)))
    if found is None:
        connection.execute(sa.insert(versions).values(version=VERSION))
    elif found != VERSION:
        msg = f"The jobs' database is of version {found}, and this HeatLens knows version {VERSION}."
        raise JobsUnavailable(msg)
