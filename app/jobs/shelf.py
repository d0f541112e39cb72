"""What is kept for a while, beside the jobs: rows in their database, files in their store, all with an end.

What is over is invisible at once, in every process; its files go with the next housekeeping, or when room is needed.
"""

import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import func, select

from app.config import Settings
from app.errors import ImagesFull, JobsUnavailable, QuotaExceeded, ServiceError, UnknownImage, UnknownLink
from app.jobs.artifacts import Store
from app.jobs.database import Database
from app.jobs.room import require_room
from app.jobs.tables import ROOM_LOCK, kept

Kind = Literal["image", "link"]

UNKNOWN_IMAGE = "No such picture is kept: it never was, it was deleted, or its time is over."

_AT_ONCE = 1000
_BESIDE_BYTES = 4096
"""What a thing counts beside its bytes, so that the smallest ones cannot be kept without end."""
_RETRY_AFTER_S = 5
_RETRY_QUOTA_S = 60
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kept:
    """Something that is kept. Its `id` cannot be guessed; `job_id` is of the job that it shows a picture of."""

    id: str
    owner: str
    facts: Mapping[str, Any]
    size_bytes: int
    expires_at: float
    job_id: str | None


class Shelf:
    """Keeps things of both kinds, together within HEATLENS_MAX_KEPT_IMAGES_BYTES. Safe for threads and processes.

    Those of one owner are within HEATLENS_MAX_CALLER_IMAGES_BYTES.

    Raises `JobsUnavailable` while the database or the store is away.
    """

    def __init__(self, database: Database, store: Store, settings: Settings) -> None:
        self._database = database
        self._store = store
        self._settings = settings

    def put(
        self,
        kind: Kind,
        files: Mapping[str, bytes],
        facts: Mapping[str, Any],
        *,
        owner: str,
        lifetime_s: float,
        image_id: str | None = None,
        job_id: str | None = None,
    ) -> Kept:
        """Keep files by name, with facts about them; with `image_id` for no longer than that one is kept.

        Raises `ImagesFull`, `QuotaExceeded` and `OutOfSpace` where there is no room, for nothing that is not over
        makes any; `UnknownImage` and `UnknownLink` where what it shows, or it itself, is over before it is there.
        """
        self._require_space()
        now, size_bytes = time.time(), sum(map(len, files.values()))
        row = {
            "id": secrets.token_urlsafe(16), "kind": kind, "owner": owner, "image_id": image_id, "job_id": job_id,
            "facts": dict(facts), "size_bytes": size_bytes, "created_at": now, "expires_at": now + lifetime_s,
        }  # fmt: skip
        expires_at = self._reserve_or_sweep(row)
        self._write(str(row["id"]), files)
        self._require_there(str(row["id"]), kind, image_id)
        return Kept(str(row["id"]), owner, facts, size_bytes, expires_at, job_id)

    def get(self, kind: Kind, id_: str) -> Kept | None:
        """Return what has this id and is not over."""
        alive = kept.c.id == id_, kept.c.kind == kind, kept.c.expires_at > time.time()
        with self._database.read() as connection:
            found = connection.execute(select(kept).where(*alive)).one_or_none()
        if found is None:
            return None
        return Kept(found.id, found.owner, found.facts, found.size_bytes, found.expires_at, found.job_id)

    def read(self, thing: Kept, name: str) -> bytes | None:
        """Return a file, or None where it has gone meanwhile."""
        with self._working():
            try:
                return self._store.read(f"{_folder(thing.id)}/{name}")
            except FileNotFoundError:
                return None

    def delete(self, kind: Kind, id_: str) -> bool:
        """End something, and the links that show it; say whether it was there."""
        now = time.time()
        alive = kept.c.id == id_, kept.c.kind == kind, kept.c.expires_at > now
        with self._database.write() as connection:
            there = connection.execute(sa.update(kept).where(*alive).values(expires_at=0.0)).rowcount > 0
            if there:
                connection.execute(sa.update(kept).where(kept.c.image_id == id_).values(expires_at=0.0))
            mine = connection.scalars(select(kept.c.id).where(sa.or_(kept.c.id == id_, kept.c.image_id == id_))).all()
        if there:
            for start in range(0, len(mine), _AT_ONCE):
                self._remove(mine[start : start + _AT_ONCE])
        return there

    def end_links_of(self, job_id: str) -> None:
        """End all links that show pictures of a job."""
        with self._database.write() as connection:
            connection.execute(sa.update(kept).where(kept.c.job_id == job_id).values(expires_at=0.0))

    def sweep(self) -> None:
        """Remove all that is over, rows and files. What cannot be removed now is removed the next time."""
        for over in self._over():
            self._remove(over)

    def _over(self) -> Iterator[Sequence[str]]:
        """Yield what is over now, some at once, each once, whatever becomes of it."""
        place = kept.c.expires_at, kept.c.id
        ended = select(*place).where(kept.c.expires_at <= time.time()).order_by(*place).limit(_AT_ONCE)
        last = (-1.0, "")
        while True:
            with self._database.read() as connection:
                found = connection.execute(ended.where(sa.tuple_(*place) > sa.tuple_(*last))).all()
            if not found:
                return
            last = found[-1].expires_at, found[-1].id
            yield [row.id for row in found]

    def _reserve_or_sweep(self, row: Mapping[str, Any]) -> float:
        """Make room by what is over until there is some."""
        over = self._over()
        while True:
            try:
                return self._reserve(row)
            except (ImagesFull, QuotaExceeded):
                ids = next(over, None)
                if ids is None:
                    raise
                self._remove(ids)

    def _reserve(self, row: Mapping[str, Any]) -> float:
        """Write down that something is kept, and return until when; files of what is over still take room."""
        with self._database.write() as connection:
            if not self._database.is_sqlite:
                connection.execute(select(func.pg_advisory_xact_lock(ROOM_LOCK)))
            self._require_room(connection, row["owner"], row["size_bytes"] + _BESIDE_BYTES)
            expires_at = float(row["expires_at"])
            if row["image_id"] is not None:
                expires_at = min(expires_at, _end_of(connection, row["image_id"]))
            connection.execute(sa.insert(kept).values({**row, "expires_at": expires_at}))
        return expires_at

    def _require_room(self, connection: sa.Connection, owner: str, more: int) -> None:
        """Raise `ImagesFull` or `QuotaExceeded`; an index holds all that is summed up."""
        taken = select(func.coalesce(func.sum(kept.c.size_bytes + _BESIDE_BYTES), 0))
        of_all = self._settings.max_kept_images_bytes, "HEATLENS_MAX_KEPT_IMAGES_BYTES"
        of_caller = self._settings.max_caller_images_bytes, "HEATLENS_MAX_CALLER_IMAGES_BYTES"
        limit, setting = min(of_all, of_caller)
        if more > limit:
            size = f"{more - _BESIDE_BYTES} bytes, and {_BESIDE_BYTES} beside them,"
            msg = f"{size} are never kept: the limit is {limit} ({setting})."
            raise ImagesFull(msg, limit=limit, setting=setting)
        limit, setting = of_all
        if int(connection.scalar(taken) or 0) + more > limit:
            msg = f"As much is kept as may be, {limit} bytes ({setting}); delete some, or wait until some is over."
            raise ImagesFull(msg, limit=limit, setting=setting)
        limit, setting = of_caller
        if int(connection.scalar(taken.where(kept.c.owner == owner)) or 0) + more > limit:
            msg = (
                f"Your pictures and embed links, each with {_BESIDE_BYTES} bytes beside its own, would have more than "
                f"{limit} bytes ({setting}); delete some, or wait until some are over."
            )
            raise QuotaExceeded(msg, field="image", limit=limit, setting=setting, retry_after_s=_RETRY_QUOTA_S)

    def _write(self, id_: str, files: Mapping[str, bytes]) -> None:
        try:
            with self._working():
                for name, data in files.items():
                    self._store.write(f"{_folder(id_)}/{name}", data)
        except BaseException:
            with self._database.write() as connection:
                connection.execute(sa.update(kept).where(kept.c.id == id_).values(expires_at=0.0))
            self._remove([id_])
            raise

    def _require_there(self, id_: str, kind: Kind, image_id: str | None) -> None:
        """Leave no files behind where the row went, or is about to, while they were written."""
        alive = kept.c.id == id_, kept.c.expires_at > time.time()
        with self._database.read() as connection:
            if connection.scalar(select(kept.c.id).where(*alive)) is not None:
                return
        self._remove([id_])
        raise _gone(kind, image_id)

    def _remove(self, ids: Sequence[str]) -> None:
        removed = [id_ for id_ in ids if self._remove_files(id_)]
        if removed:
            with self._database.write() as connection:
                connection.execute(sa.delete(kept).where(kept.c.id.in_(removed)))

    def _remove_files(self, id_: str) -> bool:
        """Say whether nothing is left."""
        try:
            self._store.delete_tree(_folder(id_))
        except OSError as error:
            _log.warning("files of a picture that is over cannot be deleted now: %s", error.strerror)
            return False
        return True

    def _require_space(self) -> None:
        with self._working():
            room = self._store.room()
        require_room(room, self._settings)

    @contextmanager
    def _working(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _log.warning("the store of the kept pictures does not work: %s", error.strerror)
            msg = f"The store of the kept pictures does not work; try again in {_RETRY_AFTER_S} s."
            raise JobsUnavailable(msg, retry_after_s=_RETRY_AFTER_S) from error


def _end_of(connection: sa.Connection, image_id: str) -> float:
    """Return how long a picture is kept, and hold its row, so that its deletion also sees what is added now."""
    alive = kept.c.id == image_id, kept.c.expires_at > time.time()
    expires_at = connection.scalar(select(kept.c.expires_at).where(*alive).with_for_update())
    if expires_at is None:
        raise UnknownImage(UNKNOWN_IMAGE)
    return float(expires_at)


def _gone(kind: Kind, image_id: str | None) -> ServiceError:
    if kind == "link" and image_id is None:
        return UnknownLink("What the link was to show was deleted, or its time was over, before it was there.")
    return UnknownImage(UNKNOWN_IMAGE)


def _folder(id_: str) -> str:
    return f"images/{id_}"
