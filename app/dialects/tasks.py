"""The pictures of Label Studio's tasks: inline, or from the one Label Studio that the operator named."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote

import httpx2

from app.api.bodies import from_base64
from app.clock import Clock
from app.config import Settings
from app.engine import DeadlineExceeded
from app.errors import BadRequestBody, LabelStudioUnavailable, PictureUnavailable

_TIMEOUT_S = 20.0
"""How long Label Studio may be silent."""
_OK = 200
_REFUSED = frozenset({401, 403})
_CLOSED = _REFUSED | {429}
"""Label Studio lets us in to no picture, or not now."""
_BROKEN = 500


class TaskPictures:
    """Reads pictures by what a task says of them."""

    def __init__(self, settings: Settings) -> None:
        self._limit_bytes = settings.max_body_bytes
        self._token = settings.label_studio_token.get_secret_value()
        self._base = httpx2.URL(settings.label_studio_url + "/") if settings.label_studio_url else None

    def read(self, reference: object, clock: Clock) -> bytes:
        """Return a picture, by data URL, by path of Label Studio, or by URL there.

        Raises `PictureUnavailable` for this picture's fault, `LabelStudioUnavailable` and `DeadlineExceeded` for what
        is no picture's.
        """
        if not isinstance(reference, str) or not reference:
            raise PictureUnavailable("The task has no picture where the labelling configuration says.")
        if not reference.startswith("data:"):
            return self._fetch(self._locate(reference), clock)
        try:
            return from_base64(reference, "the task's picture")
        except BadRequestBody as error:
            raise PictureUnavailable(str(error)) from error

    def _locate(self, reference: str) -> httpx2.URL:
        """Return where the picture lies; it is nowhere but below HEATLENS_LABEL_STUDIO_URL."""
        if self._base is None:
            msg = "The task's picture is an address, and HEATLENS_LABEL_STUDIO_URL is not set, so nothing is fetched."
            raise PictureUnavailable(msg)
        below = self._base.path
        if reference.startswith("/") and not reference.startswith(("//", below)):
            reference = below + reference.lstrip("/")
        try:
            url = self._base.join(reference)
            inside = _origin(url) == _origin(self._base) and url.path.startswith(below) and not _climbs(url)
        except (httpx2.InvalidURL, ValueError) as error:  # ValueError: half characters, ports beyond the last
            raise PictureUnavailable("The task's picture has an address that is none.") from error
        if not inside or url.userinfo:
            msg = f"The task's picture lies at {url.host[:200]}; it is fetched only below HEATLENS_LABEL_STUDIO_URL."
            raise PictureUnavailable(msg)
        return url

    def _fetch(self, url: httpx2.URL, clock: Clock) -> bytes:
        data = bytearray()
        with self._asked(url, clock) as response:
            _require_ok(response)
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise PictureUnavailable("Label Studio packed the task's picture, which was not asked for.")
            for piece in response.iter_raw():
                data += piece
                if len(data) > self._limit_bytes:
                    msg = f"The task's picture is larger than {self._limit_bytes} bytes (HEATLENS_MAX_BODY_BYTES)."
                    raise PictureUnavailable(msg, limit=self._limit_bytes)
                _require_time(clock)
        _require_time(clock)  # what ends there without a length looks whole, though it was cut off
        return bytes(data)

    @contextmanager
    def _asked(self, url: httpx2.URL, clock: Clock) -> Iterator[httpx2.Response]:
        headers = {"Accept": "image/*", "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Token {self._token}"
        _require_time(clock)
        timeout_s = max(0.001, min(_TIMEOUT_S, clock.remaining_s))
        try:
            with (
                _Cut(clock.remaining_s) as cut,
                httpx2.Client(timeout=timeout_s, trust_env=False, follow_redirects=False) as http,
                http.stream("GET", url, headers=headers, extensions={"trace": cut.watch}) as response,
            ):
                yield response
        except httpx2.TransportError as error:
            _require_time(clock)
            msg = f"Label Studio did not give a task's picture: {str(error).rstrip('.') or type(error).__name__}."
            raise LabelStudioUnavailable(msg) from error


class _Cut:
    """Ends a connection after a time, since who sends a little now and then is never silent for long."""

    def __init__(self, after_s: float) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._over = False
        self._timer = threading.Timer(after_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> "_Cut":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, event: str, facts: Mapping[str, Any]) -> None:
        """Take notice of a connection that was made; httpcore's `trace`."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            stream = facts["return_value"]
            with self._lock:
                self._socket = stream.get_extra_info("socket")
                if self._over:
                    self._shut()

    def _end(self) -> None:
        with self._lock:
            self._over = True
            self._shut()

    def _shut(self) -> None:
        """Shut the connection down, which wakes who reads; closing is left to them."""
        if self._socket:
            with suppress(OSError):  # closed already
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # as TLS does it, what is read falls apart


def _require_time(clock: Clock) -> None:
    if not clock.remaining_s:
        raise DeadlineExceeded(f"Label Studio had not given the tasks' pictures within {clock.limit}.")


def _require_ok(response: httpx2.Response) -> None:
    status = response.status_code
    if status in _CLOSED or status >= _BROKEN:
        hint = "; see HEATLENS_LABEL_STUDIO_TOKEN" if status in _REFUSED else ""
        raise LabelStudioUnavailable(f"Label Studio answered {status} for a task's picture{hint}.")
    if status != _OK:
        where = " (redirects are not followed)" if response.has_redirect_location else ""
        raise PictureUnavailable(f"Label Studio answered {status} for the task's picture{where}.")


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    default = {"http": 80, "https": 443}
    return url.scheme, url.host, url.port or default.get(url.scheme)


def _climbs(url: httpx2.URL) -> bool:
    """Whether a path might lead out of where it seems to lie, for a server that reads it generously."""
    path = unquote(unquote(url.path)).replace("\\", "/")
    return ".." in path.split("/")
