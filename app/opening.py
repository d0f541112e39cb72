"""Whether a server may open its door: never to others than this machine without an API key, unless that is wanted."""

import errno
import socket
import time
from collections.abc import Iterable

from app.config import Settings
from app.errors import JobsUnavailable, OutOfSpace

_EVERYWHERE = "0.0.0.0"  # noqa: S104 - to compare with, not to bind
_LOOPBACK = "127.0.0.1"
_FREED_WITHIN_S = 5.0


def hosts_of(addresses: Iterable[object]) -> list[str]:
    """Return the hosts among gunicorn's addresses: a host with a port, the number of an open socket, or a path.

    Who may use a socket in a folder is not ours to tell. No host at all (`:8000`) means every one of this machine's.
    """
    named = [_name_of(address) if isinstance(address, int) else address for address in addresses]
    return [str(address[0]) or _EVERYWHERE for address in named if isinstance(address, tuple)]


def _name_of(descriptor: int) -> object:
    """Return where a socket that is open already listens; what cannot say so may be anywhere."""
    try:
        inherited = socket.socket(fileno=descriptor)
    except (OSError, ValueError):  # no socket, no descriptor
        return (_EVERYWHERE, 0)
    try:
        return inherited.getsockname()
    except OSError:
        return (_EVERYWHERE, 0)
    finally:
        inherited.detach()  # it is gunicorn's, who goes on with it


def url_of(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a server that listens there."""
    shown = _LOOPBACK if host in (_EVERYWHERE, "::") else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def public_host(settings: Settings, hosts: Iterable[str]) -> str | None:
    """Return the first of these hosts at which others can reach the server."""
    return next((host for host in hosts if settings.model_copy(update={"host": host}).is_public), None)


def refusal(settings: Settings) -> str | None:
    """Return why a server with these settings must not start, if so.

    A database that does not answer is no reason: until it does, nobody is let in. Raises `DatabaseTooNew`.
    """
    if settings.insecure or not settings.is_public:
        return None
    from app.jobs.database import Database  # which takes a moment that a server on loopback need not wait
    from app.keys import Keys

    database = Database(settings)
    try:
        database.require_known()
        if Keys(settings, database).any_usable():
            return None
    except (JobsUnavailable, OutOfSpace):
        return None
    finally:
        database.close()
    return (
        f"others can reach HEATLENS_HOST={settings.host}, and there is no valid API key. Make one with "
        "`heatlens keys create NAME --scope explain,jobs`, or let anybody in with `heatlens serve --insecure` "
        "(HEATLENS_INSECURE=true)."
    )


def taken(host: str, port: int) -> str | None:
    """Return why a server cannot listen there, if so.

    It waits as long as gunicorn would: workers of a master that was killed may hold the port for a moment.
    """
    deadline = time.monotonic() + _FREED_WITHIN_S
    while (number := _bind(host, port)) == errno.EADDRINUSE and time.monotonic() < deadline:
        time.sleep(0.1)
    if number == errno.EADDRINUSE:
        return f"port {port} is taken; name another with --port or HEATLENS_PORT (0: a free one)."
    if number == errno.EACCES:
        return f"this user may not listen at port {port}; name one from 1024 on with --port or HEATLENS_PORT."
    return None  # or gunicorn says why


def _bind(host: str, port: int) -> int | None:
    """Return the number of the error with which listening there fails, as gunicorn does it."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
    except OSError as error:
        return error.errno
    return None
