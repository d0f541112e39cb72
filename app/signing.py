"""What the server signs: names of embed links, which can be neither guessed nor prolonged, and tickets."""

import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import time
from functools import cached_property
from pathlib import Path

from itsdangerous import BadData, URLSafeSerializer

from app.config import SECRET_CHARACTERS, Settings
from app.errors import JobsUnavailable

NO_LINK = "-"
"""What is no link's id."""

_FILE = "embed.secret"
_SECRET = re.compile(r"[!-~]+\n?")
_RETRY_AFTER_S = 5
_log = logging.getLogger(__name__)


class Signer:
    """Signs with the first of HEATLENS_EMBED_SECRETS, and believes all of them; reads or makes its own at first use."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def sign(self, link_id: str, expires_at: float) -> str:
        """Return a token, of letters that a URL takes as they are."""
        return signed(self._serializer, [link_id, int(expires_at)])

    def link_of(self, token: str) -> str:
        """Return the id that a token names; `NO_LINK` for one that is forged or over."""
        try:
            link_id, expires_at = self._serializer.loads(token)
        except BadData:
            return NO_LINK
        return str(link_id) if expires_at > time.time() else NO_LINK

    @cached_property
    def _serializer(self) -> URLSafeSerializer:
        return serializer(self._settings, "heatlens.embed")


def serializer(settings: Settings, salt: str) -> URLSafeSerializer:
    """Return what signs with the server's secrets; what is signed with one salt is worth nothing with another."""
    keys = [secret.get_secret_value() for secret in settings.embed_secrets]
    kwargs = {"key_derivation": "hmac", "digest_method": hashlib.sha256}
    # itsdangerous signs with the last of its keys, where here the first one does
    return URLSafeSerializer(keys[::-1] or own_secret(settings.data_dir), salt=salt, signer_kwargs=kwargs)


def signed(by: URLSafeSerializer, value: object) -> str:
    """Return a value, signed; it can be read."""
    text = by.dumps(value)
    return text.decode() if isinstance(text, bytes) else text


def own_secret(folder: Path) -> str:
    """Return the secret of a data folder, which all its processes share; whoever asks first makes it.

    One that is cut short, or blank, or of zeros as a disk leaves them, is refused: with it anybody could sign.
    """
    path = folder / _FILE
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(folder / f"{_FILE}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _write_privately(path, secrets.token_urlsafe(32))
            if len(secret := path.read_text()) < SECRET_CHARACTERS or not _SECRET.fullmatch(secret):
                words = f"{_FILE} is no word of {SECRET_CHARACTERS} characters or more; delete it"
                raise OSError(errno.EINVAL, words)
            return secret
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"{_FILE} is no text; delete it"
        _log.warning("HEATLENS_DATA_DIR=%s has no secret that signs embed links: %s", folder, why)
        msg = f"The secret that signs embed links cannot be read; try again in {_RETRY_AFTER_S} s."
        raise JobsUnavailable(msg, retry_after_s=_RETRY_AFTER_S) from error


def _write_privately(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, and that nobody else may read."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
