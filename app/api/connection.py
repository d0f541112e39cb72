"""Whether the client still waits for its answer."""

import select
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from werkzeug.exceptions import ClientDisconnected

from app.engine import Watch


def require_client(environ: Mapping[str, Any]) -> Watch | None:
    """Return what raises `ClientDisconnected` once the client has hung up; None where the server does not tell.

    gunicorn hands its socket over in `environ`. One that speaks TLS is not watched: to look at what it has to read
    would be to decrypt it.
    """
    connection: socket.socket | None = environ.get("gunicorn.socket")
    if connection is None or isinstance(connection, ssl.SSLSocket):
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
