"""Telling a foreign server that a job has finished.

Whose address it is decides who made the job, so it must not be one that only this machine can reach.
"""

import ipaddress
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import httpcore2
import httpx2
from standardwebhooks import Webhook

from app.config import Settings
from app.errors import UnknownJob
from app.jobs.ledger import Ledger
from app.jobs.rows import JobRow
from app.schemas.jobs import job_answer

_CONNECT_S = 5.0
_ANSWER_S = 10.0
"""How long one read or write may take."""
_DELIVERY_S = 30.0
"""How long a delivery may take, however busy the other side looks."""
_READ_CHUNKS = 4
"""What is read of an answer: a server may be unhappy about a client that never looks."""
_GONE = 410
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], list[str]]
"""Returns the addresses of a host, the preferred one first; raises `OSError`."""

_log = logging.getLogger(__name__)


class Undelivered(Exception):
    """The webhook was not accepted, and may be another time."""


class AddressRefused(Exception):
    """The host's address is none of the public internet."""


class Webhooks:
    """Calls the webhooks of finished jobs, signed as Standard Webhooks has it (standardwebhooks.com)."""

    def __init__(self, settings: Settings, ledger: Ledger, resolve: Resolve | None = None) -> None:
        self._ledger = ledger
        self._secret = settings.webhook_secret.get_secret_value()
        self._private = settings.webhook_private
        self._resolve = resolve or addresses

    def deliver(self, job_id: str) -> None:
        """Tell a job's webhook that it has finished.

        Returns when it knows, or is not to be told: the job was deleted or runs again, the server wants no more
        (410), or its address is private. Raises `Undelivered` where it is worth another try.
        """
        try:
            job = self._ledger.job(job_id)
        except UnknownJob:
            return
        if job.webhook is None or not job.is_finished:
            return
        if not self._secret:
            _log.warning("the webhook of job %s is not called: HEATLENS_WEBHOOK_SECRET is not set any more", job_id)
            return
        try:
            url = _url(job.webhook)
            status = self._post(url, *self._message(job))
        except (AddressRefused, httpcore2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            _log.warning("the webhook of job %s is given up: %s", job_id, error)
            return
        self._judge(job, url.host.decode(), status)

    def _message(self, job: JobRow) -> tuple[dict[str, str], bytes]:
        """Return headers and body. The id is the same however often the same end is told."""
        data = job_answer(job, self._ledger.rate_per_s(job)).model_dump(mode="json")
        body = json.dumps({"type": "job.finished", "timestamp": data["finished_at"], "data": data})
        id_, now = f"job_{job.id}_{job.attempt}", datetime.now(UTC)
        signature = Webhook(self._secret).sign(id_, now, body)
        headers = {
            "content-type": "application/json",
            "user-agent": "heatlens",
            "webhook-id": id_,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": signature,
        }
        return headers, body.encode()

    def _post(self, url: httpcore2.URL, headers: dict[str, str], body: bytes) -> int:
        """Return the status of the answer; redirects are answers like others."""
        seconds = {"connect": _CONNECT_S, "read": _ANSWER_S, "write": _ANSWER_S, "pool": _CONNECT_S}
        asked: dict[str, Any] = {"headers": _complete(headers, url), "extensions": {"timeout": seconds}}
        backend = _GuardedBackend(self._resolve, private=self._private)
        try:
            with (
                httpcore2.ConnectionPool(network_backend=backend) as pool,
                pool.stream("POST", url, content=body, **asked) as answer,
            ):
                for _ in islice(answer.iter_stream(), _READ_CHUNKS):
                    pass
                return answer.status
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
            msg = f"{url.host.decode()} did not answer: {type(error).__name__} {error}"
            raise Undelivered(msg) from error

    def _judge(self, job: JobRow, host: str, status: int) -> None:
        if 200 <= status < 300:
            _log.info("told %s that job %s has finished", host, job.id)
        elif status == _GONE:
            _log.warning("%s wants no more webhooks (410); it is not told of job %s", host, job.id)
        else:
            msg = f"{host} answered {status}"
            raise Undelivered(msg)


def addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host as the system resolves it."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(text: str) -> bool:
    """Whether an address, as the system writes it, is of the public internet.

    An IPv4 address inside one of IPv6 counts as what it is where it is reached directly (`::ffff:`, NAT64), and
    the tunnels are refused. What Python calls global still has multicast in it.
    """
    try:
        address = _plain(ipaddress.ip_address(text))
    except ValueError:  # with a scope, as in fe80::1%eth0
        return False
    of_a_kind = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    if isinstance(address, ipaddress.IPv6Address):
        of_a_kind = of_a_kind or address.is_site_local or bool(address.sixtofour or address.teredo)
    return address.is_global and not of_a_kind


def _plain(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address


def _url(text: str) -> httpcore2.URL:
    """Return what is asked for in the characters of HTTP."""
    url = httpx2.URL(text)
    return httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _complete(headers: dict[str, str], url: httpcore2.URL) -> dict[str, str]:
    host = url.host.decode()
    shown = f"[{host}]" if ":" in host else host
    return {"host": shown if url.port is None else f"{shown}:{url.port}", **headers}


class _GuardedBackend(httpcore2.SyncBackend):
    """Connects to the very address that was found to be public: a name is resolved once, so it cannot change between.

    TLS still asks for a certificate of the host, since httpcore takes that name from the URL.
    """

    def __init__(self, resolve: Resolve, *, private: bool) -> None:
        self._resolve = resolve
        self._private = private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        try:
            found = self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(str(error)) from error
        refused = [] if self._private else [address for address in found if not is_public(address)]
        if refused:
            msg = f"{host} is {refused[0]}, which is no public address (HEATLENS_WEBHOOK_PRIVATE)."
            raise AddressRefused(msg)
        deadline = time.monotonic() + _DELIVERY_S
        return _Stream(self._first(found, port, timeout, socket_options, deadline), deadline)

    def _first(
        self, found: list[str], port: int, timeout: float | None, options: Any, deadline: float
    ) -> httpcore2.NetworkStream:
        """Connect to the first address that takes it: a name may have hundreds that do not answer."""
        failed: Exception = httpcore2.ConnectError("the host has no address")
        for address in found:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            patience_s = left_s if timeout is None else min(left_s, timeout)
            try:
                return super().connect_tcp(address, port, patience_s, None, options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed


class _Stream(httpcore2.NetworkStream):
    """A connection with a last moment: who sends a byte now and then must not hold a worker for hours."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._left(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._left(timeout, httpcore2.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        left_s = self._left(timeout, httpcore2.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left_s), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _left(self, timeout: float | None, expired: type[Exception]) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise expired(f"not done after {_DELIVERY_S:g} s")
        return left_s if timeout is None else min(left_s, timeout)
