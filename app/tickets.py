"""Tickets: one path each, for a minute, for browsers, which send no header with a download.

Within its minute a ticket opens its path as often as it is used: a browser that resumes a download asks again.
"""

import time
from collections.abc import Callable
from functools import cached_property

from itsdangerous import BadData, URLSafeSerializer

from app.config import Settings
from app.errors import Unauthorized
from app.signing import serializer, signed

LIFETIME_S = 60

_SALT = "heatlens.ticket"


class Tickets:
    """Issues and reads them. A ticket is signed and can be read; it names a path, and a key by its id."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock

    def issue(self, path: str, key_id: str) -> tuple[str, int]:
        """Return a ticket for a path, and when it is over, in seconds since 1970; `key_id` is empty without a key."""
        expires_at = int(self._clock()) + LIFETIME_S
        return signed(self._serializer, [path, key_id, expires_at]), expires_at

    def holder(self, ticket: str, path: str) -> str:
        """Return the id of the key that a ticket acts for. Raises `Unauthorized`, whatever is wrong with it."""
        try:
            of_path, key_id, expires_at = self._serializer.loads(ticket)
        except BadData as error:
            raise Unauthorized from error
        if of_path != path or expires_at <= self._clock():
            raise Unauthorized
        return str(key_id)

    @cached_property
    def _serializer(self) -> URLSafeSerializer:
        return serializer(self._settings, _SALT)
