"""Whether a client has hung up, with real sockets in each of their states."""

import fcntl
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from werkzeug.exceptions import ClientDisconnected

from app.api.connection import require_client

Ends = tuple[socket.socket, socket.socket]
"""The server's end of a connection, and the client's."""


@pytest.fixture(params=["tcp", "unix"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    with ExitStack() as stack:
        if request.param == "unix":
            server, client = socket.socketpair()
        else:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            client = socket.create_connection(listener.getsockname(), timeout=10)
            server, _ = listener.accept()
        stack.enter_context(server)
        stack.enter_context(client)
        yield server, client


def has_hung_up(server: socket.socket) -> bool:
    watch = require_client({"gunicorn.socket": server})
    assert watch is not None
    try:
        watch(None)  # type: ignore[arg-type]
    except ClientDisconnected:
        return True
    return False


@pytest.mark.parametrize("timeout_s", [None, 0, 30])  # blocking, not blocking, blocking for a while
def test_a_client_that_waits_is_there_and_one_that_has_closed_is_not(ends: Ends, timeout_s: float | None) -> None:
    server, client = ends
    server.settimeout(timeout_s)
    assert not has_hung_up(server)
    client.close()
    assert has_hung_up(server)


def test_a_client_that_has_closed_its_own_half_is_gone(ends: Ends) -> None:
    server, client = ends
    client.shutdown(socket.SHUT_WR)
    assert has_hung_up(server)


def test_a_reset_is_a_hang_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=10)
        server, _ = listener.accept()
    with server:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert has_hung_up(server)


def test_data_that_waits_is_no_hang_up_and_stays(ends: Ends) -> None:
    server, client = ends
    client.sendall(b"GET /next HTTP/1.1")
    assert not has_hung_up(server)
    assert server.recv(100) == b"GET /next HTTP/1.1"
    assert not has_hung_up(server)


def test_who_hangs_up_behind_data_that_waits_is_gone(ends: Ends) -> None:
    server, client = ends
    client.sendall(b"\r\n")
    client.close()
    assert has_hung_up(server)


def test_a_descriptor_above_1023_is_watched_too(ends: Ends) -> None:
    server, client = ends
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 2000:
        pytest.skip("no such descriptor is allowed here (ulimit -n)")
    high = fcntl.fcntl(server.fileno(), fcntl.F_DUPFD, 1500)
    with socket.socket(fileno=high) as moved:
        assert moved.fileno() >= 1500
        assert not has_hung_up(moved)
        client.close()
        assert has_hung_up(moved)


def test_a_socket_that_the_server_has_closed_meanwhile_is_a_hang_up(ends: Ends) -> None:
    server, _ = ends
    watch = require_client({"gunicorn.socket": server})
    assert watch is not None
    server.close()
    with pytest.raises(ClientDisconnected):
        watch(None)  # type: ignore[arg-type]


def test_a_server_that_hands_nothing_over_is_not_watched() -> None:
    assert require_client({}) is None
