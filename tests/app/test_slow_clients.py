"""Clients that send slowly, read slowly, or send what is no HTTP: nobody else notices, and each is told why."""

import json
import os
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from app.errors import BodyTooSlow, TooManyUploads
from app.http_socket import PacedSocket, Patience, Places
from app.http_worker import Connection
from app.telemetry import HEADERS
from tests.app.test_server_life import until, workers
from tests.conftest import Server, start_server, stop_server

THREADS = 6
CLIENTS = 2 * THREADS
HERE = ("127.0.0.1", 1)
CAT = (Path(__file__).parents[2] / "app" / "web" / "static" / "cat.jpg").read_bytes()
POST = b"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def server(models_dir: Path) -> Iterator[Server]:
    running = start_server(
        models_dir=str(models_dir),
        default_model="small",
        workers="1",
        torch_threads="1",
        threads=str(THREADS),
        queue_total="3",
        event_streams="2",
        header_timeout_s="4",
        client_timeout_s="4",
        log_level="info",
    )
    written = running.process.stdout
    assert written is not None
    lines: list[str] = []
    reading = threading.Thread(target=lines.extend, args=[written], daemon=True)
    reading.start()  # or the server, which logs each request, would wait once the pipe is full
    yield running
    running.process.terminate()
    running.process.wait(60)
    reading.join()
    written.close()
    said = "".join(lines)
    assert "Traceback" not in said
    assert "hl_secret" not in said


def connect(server: Server, sent: bytes, *, receive_bytes: int = 0) -> socket.socket:
    url = httpx.URL(server.url)
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(60)
    client.connect((url.host, url.port))
    client.sendall(sent)
    return client


def everything(client: socket.socket) -> bytes:
    """All that comes until the server closes, or resets, the connection."""
    found = b""
    try:
        while piece := client.recv(2**16):
            found += piece
    except ConnectionResetError:
        pass
    return found


def status_and_code(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), json.loads(body)["code"]


def require_service(server: Server) -> None:
    """Ask for what has to be answered whatever others do."""
    for path in ("/healthz", "/readyz", "/metrics"):
        assert httpx.get(f"{server.url}{path}", timeout=60).status_code == 200
    answer = httpx.post(f"{server.url}/v1/explain", content=CAT, timeout=60)
    assert answer.status_code == 200, answer.text


def descriptors(server: Server) -> int:
    (worker,) = workers(server)
    return len(os.listdir(f"/proc/{worker}/fd"))


@pytest.fixture
def crowd(server: Server) -> Iterator[Callable[..., list[socket.socket]]]:
    """Connects many clients at once; when they have gone, the worker has as few descriptors as before."""
    require_service(server)
    before = descriptors(server)
    with ExitStack() as stack:
        yield lambda sent, **how: [
            stack.enter_context(closing(connect(server, sent, **how))) for _client in range(CLIENTS)
        ]
    until(lambda: descriptors(server) <= before + 1)  # a connection of who was asked last may still end


@pytest.mark.server
def test_headers_that_do_not_end_cost_no_thread(server: Server, crowd: Callable[..., list[socket.socket]]) -> None:
    clients = crowd(b"GET /v1/models?token=hl_secret HTTP/1.1\r\nHost:")
    require_service(server)
    answers = [status_and_code(everything(client)) for client in clients]
    assert answers == [(408, "headers_too_slow")] * CLIENTS


@pytest.mark.server
def test_who_sends_nothing_is_let_go_without_a_word(server: Server, crowd: Callable[..., list[socket.socket]]) -> None:
    assert [everything(client) for client in crowd(b"")] == [b""] * CLIENTS


@pytest.mark.server
def test_bodies_that_stall_leave_threads_for_others(server: Server, crowd: Callable[..., list[socket.socket]]) -> None:
    clients = crowd(POST % 5000 + b"x")
    require_service(server)
    answers = [everything(client) for client in clients]
    told = sorted(map(status_and_code, answers))
    late = told.count((408, "body_too_slow"))
    assert 1 <= late <= CLIENTS // 2  # two fifths of the threads that are not kept are one
    assert told[late:] == [(503, "too_many_uploads")] * (CLIENTS - late)
    refused = [answer for answer in answers if b"too_many_uploads" in answer]
    assert all(b"\r\nRetry-After: 5\r\n" in answer for answer in refused)
    assert all(b"\r\nConnection: close\r\n" in answer for answer in answers)


@pytest.mark.server
def test_answers_that_nobody_takes_leave_threads_for_others(
    server: Server, crowd: Callable[..., list[socket.socket]]
) -> None:
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    size = len(httpx.get(f"{server.url}/openapi.json", timeout=60).content)
    many = 1 + 2**24 // size  # more than the kernel holds for both sides
    clients = crowd(asked * many, receive_bytes=4096)
    require_service(server)
    (worker,) = workers(server)
    until(lambda: all(_is_over(server, client) for client in clients))
    assert workers(server) == {worker}
    assert all(len(everything(client)) < many * size for client in clients)


def _is_over(server: Server, client: socket.socket) -> bool:
    """Whether the server has no socket any more that talks to this client, as the kernel sees it."""
    (worker,) = workers(server)
    own = f"{client.getsockname()[1]:04X}"
    rows = [line.split() for line in Path(f"/proc/{worker}/net/tcp").read_text().splitlines()[1:]]
    return not any(row[2].endswith(f":{own}") and row[3] == "01" and row[9] != "0" for row in rows)


@pytest.mark.server
def test_a_slow_but_steady_body_is_waited_for_and_the_connection_kept(server: Server) -> None:
    with closing(connect(server, POST % len(CAT))) as client:
        step = len(CAT) // 12
        for start in range(0, len(CAT), step):
            client.sendall(CAT[start : start + step])
            time.sleep(0.4)  # 13 pieces: longer in all than is waited for one
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = everything(client)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.endswith(b'{"status":"ok","models":{}}')


@pytest.mark.server
def test_requests_sent_together_and_in_pieces_are_answered_in_order(server: Server) -> None:
    last = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with closing(connect(server, POST % len(CAT) + CAT + b"GET /healthz HTTP/1.1\r\nHo")) as client:
        answers = client.recv(1)
        client.sendall(b"st: x\r\n\r\n" + last[:20])
        client.sendall(last[20:])
        answers += everything(client)
    statuses = [answer.split(b" ")[0] for answer in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"200", b"404"]


@pytest.mark.server
@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET /x?token=hl_secret HTTP/9.9\r\n\r\n", 400, "bad_request"),
        (b"GET /x?token=hl_secret\n\n", 400, "bad_request"),
        (b"GET /x HTTP/1.1\r\nhl_secret\r\n\r\n", 400, "bad_request"),
        (b"GET /x?token=hl_secret%s HTTP/1.1\r\n\r\n" % (b"y" * 5000), 414, "uri_too_long"),
        (b"GET /x HTTP/1.1\r\nX-API-Key: hl_secret%s\r\n\r\n" % (b"y" * 9000), 431, "headers_too_large"),
        (b"GET /x HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431, "headers_too_large"),
        (b"GET /x HTTP/1.1\r\nA: " + b"y" * 2**17, 431, "headers_too_large"),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: hl_secret, chunked\r\n\r\n", 501, "not_implemented"),
        (b"GET /x HTTP/1.1\r\nExpect: hl_secret\r\n\r\n", 417, "expectation_failed"),
    ],
)
def test_what_is_no_http_is_answered_as_a_problem_with_all_headers(
    server: Server, sent: bytes, status: int, code: str
) -> None:
    with closing(connect(server, sent)) as client:
        answer = everything(client)
    assert status_and_code(answer) == (status, code)
    head = answer.partition(b"\r\n\r\n")[0].decode()
    assert "Content-Type: application/problem+json" in head
    assert all(f"{name}: {value}" in head for name, value in HEADERS.items())
    metrics = httpx.get(f"{server.url}/metrics", timeout=60).text
    assert f'heatlens_problems_total{{code="{code}"}}' in metrics


@pytest.mark.server
def test_probes_are_answered_while_every_thread_is_taken(
    models_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "--threads 3")  # fewer than the settings allow, so that few clients do it
    server = start_server(
        models_dir=str(models_dir), default_model="small", data_dir=str(tmp_path), workers="1", torch_threads="1",
        log_level="warning",
    )  # fmt: skip
    job = httpx.post(f"{server.url}/v1/jobs", files={"image": ("cat.jpg", CAT)}, timeout=60).json()["id"]
    with ExitStack() as stack:
        for _stream in range(3):  # nobody works on jobs here, so they do not end
            watch = stack.enter_context(
                closing(connect(server, b"GET /v1/jobs/%s/events HTTP/1.1\r\nHost: localhost\r\n\r\n" % job.encode()))
            )
            until(lambda watch=watch: b"event: progress" in watch.recv(2**16))  # type: ignore[misc]
        waiting = stack.enter_context(
            closing(connect(server, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
        )
        for path in ("/healthz", "/readyz", "/metrics", "/v2/health/live"):
            assert httpx.get(f"{server.url}{path}", timeout=60).status_code == 200
        waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.recv(1)
    stop_server(server)


@pytest.mark.server
def test_who_asks_for_another_protocol_or_sends_a_body_nobody_reads_is_answered_in_http(server: Server) -> None:
    asked = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    unread = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    with closing(connect(server, asked)) as client:
        answers = client.recv(2**16)
        client.sendall(unread)
        answers += everything(client)  # closed, though the rest of the body never comes
    assert answers.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.server
def test_of_too_many_connections_one_that_waits_is_dropped_though_it_speaks_up_just_then(
    models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 8
    monkeypatch.setenv("GUNICORN_CMD_ARGS", f"--worker-connections {most}")
    server = start_server(
        models_dir=str(models_dir), default_model="small", workers="1", torch_threads="1", threads="3",
        queue_total="1", event_streams="1", log_level="warning",
    )  # fmt: skip
    (worker,) = workers(server)
    ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with ExitStack() as stack:
        before = descriptors(server)
        waiting = [stack.enter_context(closing(connect(server, b""))) for _client in range(most - 1)]
        until(lambda: descriptors(server) == before + most - 1)
        os.kill(worker, signal.SIGSTOP)  # so that both come in one turn, first the newcomer
        newcomer = stack.enter_context(closing(connect(server, ask)))
        waiting[0].sendall(b"G")
        os.kill(worker, signal.SIGCONT)
        assert everything(newcomer).startswith(b"HTTP/1.1 200 OK")
        assert everything(waiting[0]) == b""
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (descriptors(server), 2**10))
        for _time in range(most):
            assert everything(stack.enter_context(closing(connect(server, ask)))).startswith(b"HTTP/1.1 200 OK")
    assert workers(server) == {worker}
    assert "Traceback" not in stop_server(server)


@pytest.fixture
def connection() -> Iterator[Connection]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield Connection(None, ours, HERE, HERE)


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nA: b\r\n\r\nrest", b"GET /\r\nA\nB", b"\n", b"\r\n\r\n", b"a\r\r\n"]
)
def test_the_end_of_the_headers_is_found_wherever_they_are_cut(connection: Connection, head: bytes) -> None:
    for count in range(len(head)):
        connection.add(head[count : count + 1])
        come = head[: count + 1]
        assert connection.has_head == (re.search(rb"\r\n\r\n|(?<!\r)\n", come) is not None)


def test_headers_that_come_in_single_bytes_cost_no_more_than_they_are_long(connection: Connection) -> None:
    began = time.thread_time()
    for _byte in range(60_000):
        connection.add(b"y")
    assert time.thread_time() - began < 3  # a search of all that came, each time, is of two milliards of bytes


def test_one_address_cannot_take_all_places_and_a_network_of_ipv6_is_one() -> None:
    places = Places(threads=80)
    patience = Patience(30.0, 1000)
    assert [(pool.limit, pool.share) for pool in (places.all, places.reading, places.writing)] == [
        (70, 35),
        (28, 14),
        (28, 14),
    ]
    assert [places.reading.take("a") for _client in range(20)].count(True) == 14
    assert [places.reading.take("b") for _client in range(20)].count(True) == 14
    places.reading.leave("a")
    assert places.reading.take("c")
    assert not places.reading.take("a")
    behind_a_proxy = Places(threads=80, shared=False)
    assert [behind_a_proxy.reading.take("a") for _client in range(40)].count(True) == 28
    whose = []
    for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:192.0.2.1", "::ffff:192.0.2.2"):
        ours, theirs = socket.socketpair()
        with closing(theirs), closing(PacedSocket(ours, (address, 1, 0, 0), places, patience)) as paced:
            whose.append(paced._whose)
    assert whose[0] == whose[1]
    assert len(set(whose)) == 4


def test_a_short_pause_needs_no_place(pair: Callable[[float, int], tuple[PacedSocket, socket.socket]]) -> None:
    paced, client = pair(30.0, 1000)
    assert paced._places.reading.take("another")  # the only one
    drip(client, 1, 0.3)
    assert paced.recv(1) == b"x"
    with pytest.raises(TooManyUploads):
        paced.recv(1)


def test_what_is_left_of_a_body_keeps_no_thread_waiting(
    pair: Callable[[float, int], tuple[PacedSocket, socket.socket]],
) -> None:
    paced, client = pair(60.0, 1000)
    paced.settimeout(60)
    client.sendall(b"x")
    assert paced.recv(2) == b"x"
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        paced.recv(1)
    assert time.monotonic() - began < 30


def test_small_answers_that_are_not_taken_end_the_connection_too(
    pair: Callable[[float, int], tuple[PacedSocket, socket.socket]],
) -> None:
    paced, _client = pair(0.5, 1000)

    def send() -> None:
        try:
            while True:
                paced.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        except ConnectionResetError:
            return

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(60)
    assert not sending.is_alive()
    assert "HEATLENS_CLIENT_TIMEOUT_S" in paced.gave_up


@pytest.fixture
def pair() -> Iterator[Callable[..., tuple[PacedSocket, socket.socket]]]:
    with ExitStack() as stack:

        def make(timeout_s: float, bytes_per_s: int, threads: int = 3) -> tuple[PacedSocket, socket.socket]:
            ours, theirs = socket.socketpair()
            paced = PacedSocket(ours, HERE, Places(threads), Patience(timeout_s, bytes_per_s))
            return stack.enter_context(closing(paced)), stack.enter_context(closing(theirs))

        yield make


def drip(client: socket.socket, count: int, pause_s: float) -> threading.Thread:
    def send() -> None:
        for _byte in range(count):
            time.sleep(pause_s)
            try:
                client.sendall(b"x")
            except OSError:
                return

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_a_body_that_drips_is_given_up_though_something_always_comes(
    pair: Callable[[float, int], tuple[PacedSocket, socket.socket]],
) -> None:
    paced, client = pair(1.0, 1000)
    drip(client, 2000, 0.01)  # 100 bytes per second at most, so nine tenths of the waiting are not earned
    with pytest.raises(BodyTooSlow, match=r"1 s \(HEATLENS_CLIENT_TIMEOUT_S\).*1000 bytes per second"):
        b"".join(paced.recv(1) for _byte in range(2000))


def test_it_may_drip_where_the_operator_lets_it(
    pair: Callable[[float, int], tuple[PacedSocket, socket.socket]],
) -> None:
    paced, client = pair(3.0, 0)
    dripping = drip(client, 40, 0.1)
    assert b"".join(paced.recv(1) for _byte in range(40)) == b"x" * 40
    dripping.join()


def test_one_thread_in_three_waits_and_its_place_is_given_back() -> None:
    places, patience = Places(threads=3), Patience(0.2, 1000)
    assert places.all.limit == places.reading.limit == places.writing.limit == 1
    pairs = [socket.socketpair() for _pair in range(2)]
    first, second = (PacedSocket(ours, HERE, places, patience) for ours, _theirs in pairs)
    with ExitStack() as stack:
        for each in (first, second, *(theirs for _ours, theirs in pairs)):
            stack.enter_context(closing(each))
        with pytest.raises(BodyTooSlow):
            first.recv(1)
        with pytest.raises(TooManyUploads, match=r"1 threads of this worker.*HEATLENS_THREADS"):
            second.recv(1)
        pairs[1][1].sendall(b"x")
        assert second.recv(1) == b"x"  # what is there needs no place
        first.end()
        with pytest.raises(BodyTooSlow):
            second.recv(1)


def test_who_is_refused_a_place_is_told_how_many_of_those_there_are(
    pair: Callable[..., tuple[PacedSocket, socket.socket]],
) -> None:
    paced, _silent = pair(60.0, 1000, threads=12)
    places = paced._places
    assert [(pool.limit, pool.share) for pool in (places.all, places.reading)] == [(10, 5), (4, 2)]
    for _other in range(2):
        assert places.reading.take(HERE[0])
    with pytest.raises(TooManyUploads, match=r"4 threads of this worker, and 2 for one address"):
        paced.recv(1)
    paced.end()
    for _other in range(5):
        assert places.all.take(HERE[0])
    with pytest.raises(TooManyUploads, match=r"10 threads of this worker, and 5 for one address"):
        paced.recv(1)


def test_an_answer_that_is_not_taken_ends_the_connection_and_one_that_is_arrives_whole(
    pair: Callable[[float, int], tuple[PacedSocket, socket.socket]],
) -> None:
    paced, client = pair(5.0, 1000)
    sent = os.urandom(2**22)
    found = bytearray()

    def take() -> None:
        while len(found) < len(sent):
            found.extend(client.recv(2**16))

    taking = threading.Thread(target=take)
    taking.start()
    paced.sendall(sent)
    taking.join()
    assert bytes(found) == sent
    with pytest.raises(ConnectionResetError):
        paced.sendall(sent)
    assert paced.gave_up
