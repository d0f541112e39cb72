"""The connection to a client: whether it still waits for its answer, and what it is told of one that ends too early."""

import errno
import logging
import select
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from flask import g
from werkzeug.exceptions import ClientDisconnected

from app.engine import Watch
from app.errors import ServiceError

_log = logging.getLogger(__name__)


def require_client(environ: Mapping[str, Any]) -> Watch | None:
    """Return what raises `ClientDisconnected` once the client has hung up; None where the server does not tell.

    gunicorn hands its socket over in `environ`.
    """
    connection: socket.socket | None = environ.get("gunicorn.socket")
    if connection is None:
        return None
    ended = select.poll()  # `select.select` knows no descriptor above 1023
    ended.register(connection, select.POLLRDHUP)  # also where bytes that nobody has read lie before the end

    def watch(_job: object) -> None:
        """Raise once the client has closed the connection, or reset it, or closed at least its own half.

        None that does the latter is known to wait for more.
        """
        if ended.poll(0):
            raise ClientDisconnected

    return watch


def whole_or_cut(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a download, and cut the connection where one cannot be had.

    An end would make what came look complete.
    """
    return _whole_or_cut(pieces, g.request_id)


def _whole_or_cut(pieces: Iterator[bytes], request_id: str) -> Iterator[bytes]:
    try:
        yield from pieces
    except (ServiceError, OSError) as error:
        _log.warning("a download is cut short: %s", error, extra={"request_id": request_id})
        # To gunicorn this is a client that has gone: it closes the connection and logs nothing.
        raise ConnectionResetError(errno.ECONNRESET, "the download is cut short") from None
