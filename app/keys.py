"""API keys: who may ask for what. They lie in the jobs' database, so that all processes and machines share them.

A key is shown once, as `hl_<id>_<secret>`. What is kept is the HMAC of its secret. A slow hash, as argon2 is for
passwords, would protect nothing: it makes guessing dear where what is guessed is short, and a secret is 256 random
bits. It would cost 50 ms and megabytes with each request, also with those whose key is wrong, which is an attack.
"""

import hashlib
import hmac
import logging
import math
import re
import secrets
import string
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

import sqlalchemy as sa
from sqlalchemy import select

from app.config import Settings
from app.errors import JobsUnavailable, KeysUnavailable, OutOfSpace, Unauthorized
from app.jobs import tables
from app.jobs.database import Database

SCOPES = ("explain", "jobs", "admin")
"""What a key may be for; `admin` does not have the others in it."""
BELIEVED_S = 5.0
"""How long a revoked key works at most, in every process."""
HELD_S = 600.0
"""How long what the database said last is held true while it does not answer."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(r"hl_([A-Za-z0-9]{12})_([A-Za-z0-9_-]{43})")
_ID_LETTERS, _ID_LENGTH = string.ascii_letters + string.digits, 12
_SECRET_BYTES = 32
_NO_DIGEST = "0" * 64
_ASKED_AHEAD_S = 2.5
"""From this age on one thread asks again, while the others go on with what they have."""
_NEW_S = 0.1
"""A key that is not known yet may have been made since; so often at most is looked for it."""
_RETRY_S = 1.0
_WAIT_S = 1.0
_RETRY_AFTER_S = 5
_log = logging.getLogger(__name__)


class KeysError(Exception):
    """Base of what can be wrong with the making and revoking of keys."""


class BadKey(KeysError):
    """A name or a scope that no key can have."""


class KeyExists(KeysError):
    """A key of this name is in use."""


class UnknownKey(KeysError):
    """There is no key of this name or id."""


@dataclass(frozen=True)
class Key:
    """What is known of a key, which is not its secret. Times are seconds since 1970."""

    id: str
    name: str
    scopes: frozenset[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def is_usable(self, now: float) -> bool:
        """Whether it opens anything at this time."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True)
class _Said:
    """What the database said, and when it was asked."""

    ever_made: bool
    keys: Mapping[str, tuple[Key, str]]
    """By id: those that are neither revoked nor over, with the digests of their secrets."""
    at: float


class Keys:
    """The keys of a database. Connects when it is first asked; safe for threads.

    What the database says is believed for `BELIEVED_S`. `clock` tells the time of day, by which keys expire; `ticks`
    how long ago something was, whatever becomes of the time of day.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        clock: Callable[[], float] = time.time,
        *,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._ticks = ticks
        self._asking = threading.Lock()
        self._said: _Said | None = None
        self._failed_at = -math.inf
        self._has_table = False

    # For whoever runs the server. These raise `JobsUnavailable` where the database is away.

    def create(self, name: str, scopes: Iterable[str], *, lifetime_s: float | None = None) -> tuple[Key, str]:
        """Make a key, and return it with its text, which nobody can tell again. Raises `BadKey` and `KeyExists`."""
        now = self._clock()
        chosen = _checked(name, scopes, lifetime_s)
        id_ = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        key = Key(id_, name, chosen, now, None if lifetime_s is None else now + lifetime_s, None)
        self._database.migrate_own()
        with self._database.write() as connection:
            if not self._database.is_sqlite:
                connection.execute(select(sa.func.pg_advisory_xact_lock(tables.KEYS_LOCK)))
            if any(other.is_usable(now) for other in _read(connection, tables.keys.c.name == name)):
                raise KeyExists(f"There is a key {name!r} already; take another name, or revoke it first.")
            connection.execute(sa.insert(tables.keys).values(_row(key, _digest(id_, secret))))
        self._ask_anew()
        return key, f"hl_{id_}_{secret}"

    def all(self) -> list[Key]:
        """Return all keys that were ever made, the oldest first."""
        if not self._database.is_there:
            return []
        with self._database.read() as connection:
            return _read(connection) if self._can_read(connection) else []

    def revoke(self, name_or_id: str) -> Key:
        """Have a key open nothing any more; one that is revoked stays so since then. Raises `UnknownKey`."""
        known = self.all()
        mine = [key for key in known if key.id == name_or_id] or [key for key in known if key.name == name_or_id]
        if not mine:
            raise UnknownKey(_unknown(name_or_id, known))
        newest = max(mine, key=lambda key: (key.revoked_at is None, key.is_usable(self._clock()), key.created_at))
        with self._database.write() as connection:
            revoked = sa.update(tables.keys).where(tables.keys.c.id == newest.id, tables.keys.c.revoked_at.is_(None))
            connection.execute(revoked.values(revoked_at=self._clock()))
            found = _read(connection, tables.keys.c.id == newest.id)
        self._ask_anew()
        return found[0]

    def any_usable(self) -> bool:
        """Whether there is a key that opens anything."""
        now = self._clock()
        return any(key.is_usable(now) for key in self.all())

    # For each request. These raise `KeysUnavailable` where the database is away and said nothing lately.

    def are_needed(self) -> bool:
        """Whether who asks needs a key: at a public address, and once one was made; never where all is insecure."""
        if self._settings.insecure:
            return False
        return self._settings.is_public or self._hear().ever_made

    def check(self, text: str, *, fresh: bool = True) -> Key:
        """Return the key of this text. Raises `Unauthorized`, whatever is wrong with it.

        Not `fresh`, the database is not asked for the sake of a key that is not known: for who tries many of them.
        """
        found = _KEY.fullmatch(text)
        if not found:
            raise Unauthorized
        id_, secret = found.groups()
        key, digest = self._find(id_, fresh)
        if not hmac.compare_digest(_digest(id_, secret), digest) or key is None:  # compared for a key unknown, too
            raise Unauthorized
        return self._usable(key)

    def get(self, id: str) -> Key:  # noqa: A002 - it is what a key calls it
        """Return a key by its id, for whoever has shown it before. Raises `Unauthorized`."""
        key, _ = self._find(id, fresh=True)
        if key is None:
            raise Unauthorized
        return self._usable(key)

    def _usable(self, key: Key) -> Key:
        if not key.is_usable(self._clock()):
            raise Unauthorized
        return key

    def _find(self, id_: str, fresh: bool) -> tuple[Key | None, str]:
        said = self._hear()
        if fresh and id_ not in said.keys:
            said = self._hear(_NEW_S)
        return said.keys.get(id_, (None, _NO_DIGEST))

    def _hear(self, believed_s: float = BELIEVED_S) -> _Said:
        """Return what the database says, or said so lately that it is believed.

        One thread at a time asks. The others wait for it, a second at most: a database that hangs holds up one request.
        """
        said = self._said
        age_s = self._age_s(said)
        if age_s < min(believed_s, _ASKED_AHEAD_S):
            return self._believed(said)
        if self._asking.acquire(timeout=self._wait_s(said, believed_s)):
            try:
                if self._said is said and self._ticks() - self._failed_at >= _RETRY_S:  # nobody else did just now
                    self._ask()
            finally:
                self._asking.release()
        return self._believed(self._said)

    def _wait_s(self, said: _Said | None, believed_s: float) -> float:
        """How long to wait for another thread's question: not at all where the last one was in vain."""
        if self._failed_at > -math.inf or self._age_s(said) < believed_s:
            return 0
        return BELIEVED_S if self._age_s(said) >= HELD_S else _WAIT_S

    def _age_s(self, said: _Said | None) -> float:
        return math.inf if said is None else self._ticks() - said.at

    def _believed(self, said: _Said | None) -> _Said:
        if said is None or self._age_s(said) >= HELD_S:
            msg = f"The database of the API keys does not answer; try again in {_RETRY_AFTER_S} s."
            raise KeysUnavailable(msg, retry_after_s=_RETRY_AFTER_S)
        return said

    def _ask_anew(self) -> None:
        """Believe nothing any more that was said before this process changed it."""
        with self._asking:
            self._said = self._said and replace(self._said, at=-math.inf)

    def _ask(self) -> None:
        before = self._said
        asked_at = self._ticks()
        try:
            keys = self._usable_with_digests()
            # Keys that were made stay on record, so what once was needed is so for good: also if the file is gone.
            ever_made = bool(keys) or (before is not None and before.ever_made) or bool(self.all())
        except (JobsUnavailable, OutOfSpace) as error:
            self._failed_at = self._ticks()
            _log.warning("the API keys cannot be looked up: %s", error)
            return
        self._said, self._failed_at = _Said(ever_made, keys, asked_at), -math.inf

    def _usable_with_digests(self) -> dict[str, tuple[Key, str]]:
        if not self._database.is_there:
            return {}
        with self._database.read() as connection:
            if not self._can_read(connection):
                return {}
            ends = tables.keys.c.expires_at
            usable = tables.keys.c.revoked_at.is_(None), ends.is_(None) | (ends > self._clock())
            rows = connection.execute(select(tables.keys).where(*usable)).all()
        return {row.id: (_key(row), row.digest) for row in rows}

    def _can_read(self, connection: sa.Connection) -> bool:
        """Whether the table is there, which that of an older HeatLens is not; one that was there before has to be."""
        self._has_table = self._has_table or sa.inspect(connection).has_table(tables.keys.name)
        return self._has_table


def _checked(name: str, scopes: Iterable[str], lifetime_s: float | None) -> frozenset[str]:
    chosen = frozenset(scopes)
    if not _NAME.fullmatch(name):
        raise BadKey(f"{name!r} is no name for a key: it has 1 to 64 letters, digits, dots, dashes and underscores.")
    if not chosen:
        raise BadKey(f"A key is for something; scopes are {', '.join(SCOPES)}.")
    if wrong := sorted(chosen - set(SCOPES)):
        raise BadKey(f"There is no scope {wrong[0]!r}; scopes are {', '.join(SCOPES)}.")
    if lifetime_s is not None and not 0 < lifetime_s < math.inf:
        raise BadKey("A key expires in the future.")
    return chosen


def _digest(id_: str, secret: str) -> str:
    return hmac.new(id_.encode(), secret.encode(), hashlib.sha256).hexdigest()


def _row(key: Key, digest: str) -> dict[str, object]:
    scopes = " ".join(scope for scope in SCOPES if scope in key.scopes)
    facts = {"id": key.id, "name": key.name, "digest": digest, "scopes": scopes}
    return {**facts, "created_at": key.created_at, "expires_at": key.expires_at, "revoked_at": key.revoked_at}


def _key(row: sa.Row[tuple[object, ...]]) -> Key:
    times = row.created_at, row.expires_at, row.revoked_at
    return Key(row.id, row.name, frozenset(row.scopes.split()), *times)


def _read(connection: sa.Connection, *which: sa.ColumnElement[bool]) -> list[Key]:
    query = select(tables.keys).where(*which).order_by(tables.keys.c.created_at, tables.keys.c.id)
    return [_key(row) for row in connection.execute(query)]


def _unknown(name: str, known: list[Key]) -> str:
    names = [key.name for key in known] + [key.id for key in known]
    close = get_close_matches(name, names, n=3)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else " See `heatlens keys list`."
    return f"There is no key {name!r}.{hint}"
