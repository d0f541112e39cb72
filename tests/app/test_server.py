"""A real server process: what it prints, that the printed line works, and how it stops."""

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import httpx
import pytest
from PIL import Image

from app.config import Settings
from app.jobs.database import Database
from app.keys import Keys
from app.opening import taken, url_of
from tests.conftest import Server, start_server, stop_server

pytestmark = pytest.mark.server
REPOSITORY = Path(__file__).parents[2]


def test_the_printed_curl_line_works_as_pasted(server: Server, tmp_path: Path) -> None:
    (line,) = re.findall(r"curl .*", server.greeting)
    words = shlex.split(line)
    out = tmp_path / words[words.index("-o") + 1]
    subprocess.run(["bash", "-c", line.replace("-o heat.jpg", f"-o {out}")], check=True, cwd=REPOSITORY)
    with Image.open(out) as picture:
        assert (picture.format, picture.size) == ("JPEG", (451, 300))


def test_the_printed_curl_line_works_with_a_key(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    _, key = Keys(settings, Database(settings)).create("ci", ["explain"])
    server = start_server(workers="1", torch_threads="1", log_level="warning", data_dir=str(tmp_path))
    (line,) = re.findall(r"curl .*", server.greeting)
    try:
        for given, code in (("wrong", 22), (key, 0)):
            out = tmp_path / f"{code}.jpg"
            command = ["bash", "-c", line.replace("-o heat.jpg", f"-o {out}")]
            done = subprocess.run(command, env={**os.environ, "HEATLENS_KEY": given}, check=False, cwd=REPOSITORY)
            assert (done.returncode, out.exists()) == (code, code == 0)
    finally:
        stop_server(server)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_taken_port_is_said_in_one_line(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as other:
        port = other.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "app", "serve", "--host", host, "--port", str(port)],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode == 1
    assert " ".join(done.stderr.split()) == (
        f"heatlens: cannot start: port {port} is taken; name another with --port or HEATLENS_PORT (0: a free one)."
    )


def test_a_port_that_becomes_free_and_one_that_a_client_just_left_are_not_taken() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        listening.accept()[0].close()  # the first to close keeps the port in TIME_WAIT
        assert client.recv(1) == b""
    freed = threading.Timer(0.2, listening.close)
    freed.start()
    assert taken("127.0.0.1", port) is None
    freed.join()


def test_it_is_ready_when_it_says_so(server: Server) -> None:
    answer = httpx.get(f"{server.url}/readyz", timeout=60).json()
    assert answer == {"status": "ready", "models": {"efficientnet_lite0": "ready"}}


def test_one_owner_thread_serves_many_clients_and_mixes_nothing(server: Server, cat: bytes) -> None:
    """Each of many clients at once gets the map of the class it asked for."""
    wanted = [281, 282, 285, 287] * 4
    alone = {index: _map(server, cat, index) for index in set(wanted)}
    got: list[tuple[int, bytes]] = []
    threads = [
        threading.Thread(target=lambda index=index: got.append((index, _map(server, cat, index)))) for index in wanted
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(index for index, _ in got) == sorted(wanted)
    assert all(alone[index] == content for index, content in got)
    assert len(set(alone.values())) == len(alone)


def _map(server: Server, cat: bytes, target: int) -> bytes:
    response = httpx.post(f"{server.url}/v1/explain?target={target}&format=npy", content=cat, timeout=60)
    assert response.status_code == 200, response.text
    return response.content


def test_who_hangs_up_is_no_longer_worked_for(server: Server, cat: bytes) -> None:
    """5000 runs of the model would keep the next client waiting for as long as a request may last."""
    url = f"{server.url}/v1/explain?method=rise&samples=5000"
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, content=cat, timeout=2)
    answered = httpx.post(f"{server.url}/v1/explain?alpha=0.123", content=cat, timeout=60)  # nobody asked before
    assert answered.status_code == 200
    (queue,) = re.findall(r"queue;dur=([\d.]+)", answered.headers["Server-Timing"])
    assert float(queue) < 20_000  # ms; the 5000 runs end with the 60 s that a request has, at the earliest


def test_it_starts_in_a_folder_that_has_a_folder_called_models(tmp_path: Path, cat: bytes) -> None:
    (tmp_path / "models").mkdir()
    server = start_server(cwd=tmp_path, workers="1", torch_threads="1")
    assert httpx.post(f"{server.url}/v1/explain", content=cat, timeout=60).status_code == 200
    stop_server(server)


def test_an_answer_that_did_not_wait_for_the_body_is_the_last_of_its_connection(server: Server, cat: bytes) -> None:
    """Or a proxy would send its next request on a connection that is being closed."""
    last = []
    for path, body in [("/v1/explain", cat), ("/v1/nowhere", cat), ("/v1/explain", b""), ("/v1/nowhere", b"")]:
        with socket.create_connection(server.url.removeprefix("http://").split(":"), timeout=60) as client:
            client.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            client.sendall(body)
            answer = HTTPResponse(client)
            answer.begin()
            last.append(answer.will_close)
    assert last == [False, True, False, False]


def test_a_client_that_sends_all_before_it_reads_sees_why_it_was_refused(server: Server) -> None:
    size = 30 * 2**20  # more than the kernel holds, and than may be sent
    client = HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    client.request("POST", "/v1/explain", bytes(size))
    assert client.getresponse().status == 413
    client.close()


@pytest.mark.parametrize(("more", "code"), [(0, "unsupported_image_format"), (1, "body_too_large")])
def test_a_body_in_chunks_beyond_the_limit_is_refused(server: Server, more: int, code: str) -> None:
    def chunks() -> object:
        for _ in range(20):
            yield bytes(2**20)
        yield bytes(more)

    response = httpx.post(f"{server.url}/v1/explain", content=chunks(), timeout=60)
    assert response.json()["code"] == code


def test_no_header_says_where_the_service_is(server: Server) -> None:
    """What gunicorn takes from a proxy on its own machine, others could have a proxy pass on."""
    for path, name in [("/foo/v1/models", "/foo"), ("//evil.example/", "//evil.example")]:
        status = httpx.get(f"{server.url}{path}", headers={"SCRIPT_NAME": name}, timeout=60).status_code
        assert (path, status) == (path, 404)
    assert httpx.get(f"{server.url}/healthz", headers={"SCRIPT_NAME": "/foo"}, timeout=60).status_code == 200


@pytest.mark.parametrize(("wishes", "ends"), [("close", True), ("TE, Close", True), ("TE, keep-alive", False)])
def test_a_client_that_wishes_so_is_the_last_of_its_connection(server: Server, wishes: str, ends: bool) -> None:
    client = HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    client.request("GET", "/healthz", headers={"Connection": wishes})
    answer = client.getresponse()
    assert (answer.status, answer.will_close) == (200, ends)
    client.close()


@pytest.mark.parametrize(
    "request_", [b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"Content-Length: 9\r\nConnection: close\r\n\r\nab"]
)
def test_a_body_that_breaks_off_is_a_400(server: Server, request_: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\n" + request_)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b" 400 " in answer.splitlines()[0]
    assert b'"code": "bad_request_body"' in answer


def test_sigterm_finishes_what_is_in_flight_and_stops_cleanly(cat: bytes) -> None:
    running = start_server(workers="1", torch_threads="1", log_level="warning")
    answers: list[int] = []

    def ask() -> None:
        answers.append(
            httpx.post(
                f"{running.url}/v1/explain?method=rise&samples=50&format=npz", content=cat, timeout=60
            ).status_code
        )

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while _connections(running) + len(answers) < len(threads):
        assert time.monotonic() < deadline, answers
        time.sleep(0.01)
    httpx.get(f"{running.url}/healthz", timeout=60)  # accepted after the others, so those are in the server's hands
    said = stop_server(running)
    for thread in threads:
        thread.join()
    assert running.process.returncode == 0
    assert answers == [200] * 4
    assert "Traceback" not in said


def _connections(server: Server) -> int:
    """Count the connections that the server has accepted, as the kernel sees them."""
    port = int(server.url.rsplit(":", 1)[1])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = "01"
    return sum(row[1].endswith(f":{port:04X}") and row[3] == established for row in rows)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("HEATLENS_PROT", "1", "HEATLENS_PROT is not a setting; did you mean HEATLENS_PORT?"),
        ("HEATLENS_DEVICE", "tpu", "HEATLENS_DEVICE='tpu'"),
    ],
)
def test_a_wrong_setting_stops_the_start_and_is_named(variable: str, value: str, words: str) -> None:
    done = _heatlens({variable: value})
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_default_model_that_cannot_load_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    done = _heatlens({"HEATLENS_DEFAULT_MODEL": "missing", "HEATLENS_WORKERS": "1"})
    assert done.returncode != 0
    assert "There is no model 'missing'" in done.stderr
    (tmp_path / "mine.toml").write_text('arch = "timm:resnet18"\nweights = "gone.safetensors"\n')
    done = _heatlens({"HEATLENS_DEFAULT_MODEL": "mine", "HEATLENS_MODELS_DIR": str(tmp_path), "HEATLENS_WORKERS": "1"})
    assert done.returncode != 0
    assert "gone.safetensors" in done.stderr


def _heatlens(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("HEATLENS_")}
    return subprocess.run(
        [sys.executable, "-m", "app", "serve", "--port", "0"],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),  # noqa: S104 - to print
        ("::", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
        ("heat.example.com", "http://heat.example.com:8000"),
    ],
)
def test_the_url_that_is_printed_leads_to_this_machine(host: str, url: str) -> None:
    assert url_of(host, 8000) == url


def test_preload_is_refused_with_the_reason() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gunicorn", "--preload", "-c", "python:app.gunicorn_conf", "app.wsgi:application()"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "cannot run with --preload" in done.stderr


def test_the_master_imports_no_torch() -> None:
    code = "import sys, app.cli, app.gunicorn_conf; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
