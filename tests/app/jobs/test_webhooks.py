"""Webhooks: signed, sent to the very address that was checked, and never to a private one."""

import http.server
import json
import logging
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import pytest
from pydantic import SecretStr
from standardwebhooks import Webhook

from app.config import Settings
from app.jobs import webhooks
from app.jobs.webhooks import Undelivered, Webhooks, is_public
from app.schemas.jobs import JobAnswer
from tests.app.jobs.books import Book, opened

SECRET = "whsec_" + "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0"
PUBLIC = "93.184.215.14"


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    with opened(Settings(data_dir=tmp_path)) as book:
        yield book


@dataclass
class Receiver:
    """A server that gives the answers it was told to give, in turn, and keeps what it was sent."""

    answers: list[int] = field(default_factory=lambda: [204])
    headers: dict[str, str] = field(default_factory=dict)
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0


@contextmanager
def serving(receiver: Receiver, context: ssl.SSLContext | None = None) -> Iterator[None]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0])
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    with serving(receiver):
        yield receiver


def sender(book: Book, resolve: Callable[[str, int], list[str]] | None = None, *, private: bool = True) -> Webhooks:
    changes: dict[str, Any] = {"webhook_secret": SecretStr(SECRET), "webhook_private": private}
    return Webhooks(book.settings.model_copy(update=changes), book.ledger, resolve)


def finished(book: Book, webhook: str) -> str:
    job_id = book.submit(["a.jpg"], webhook=webhook)
    book.succeed(job_id, 0)
    return job_id


def test_what_is_sent_verifies_and_is_the_job(book: Book, receiver: Receiver) -> None:
    job_id = finished(book, f"http://127.0.0.1:{receiver.port}/hook?x=1")
    sender(book).deliver(job_id)
    ((path, headers, body),) = receiver.got
    assert path == "/hook?x=1"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert headers["content-type"] == "application/json"
    told = Webhook(SECRET).verify(body, headers)
    assert told["type"] == "job.finished"
    assert told["timestamp"] == told["data"]["finished_at"]
    job = JobAnswer.model_validate(told["data"], by_alias=True)
    assert (job.id, job.status) == (job_id, "succeeded")


def test_a_changed_body_does_not_verify(book: Book, receiver: Receiver) -> None:
    sender(book).deliver(finished(book, f"http://127.0.0.1:{receiver.port}/"))
    ((_, headers, body),) = receiver.got
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(SECRET).verify(body.replace(b"succeeded", b"cancelled"), headers)


def test_the_id_stays_over_the_tries_of_one_end_and_changes_with_the_next(
    book: Book, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.answers = [500, 204]
    job_id = book.submit(["a.jpg"], webhook=f"http://127.0.0.1:{receiver.port}/")
    book.fail(job_id, 0)
    with pytest.raises(Undelivered, match="500"):
        sender(book).deliver(job_id)
    with monkeypatch.context() as patch:
        patch.setattr(webhooks, "datetime", InAMinute)
        sender(book).deliver(job_id)
    book.ledger.retry(job_id)
    sender(book).deliver(job_id)  # it runs again: there is nothing to tell
    assert len(receiver.got) == 2
    book.succeed(job_id, 0)
    sender(book).deliver(job_id)
    ids = [headers["webhook-id"] for _, headers, _ in receiver.got]
    assert ids[0] == ids[1] != ids[2]
    first, second, _ = (headers["webhook-timestamp"] for _, headers, _ in receiver.got)
    assert int(second) - int(first) >= 60  # an old one would be refused
    for _, headers, body in receiver.got:
        Webhook(SECRET).verify(body, headers)


class InAMinute(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(minutes=1)


@pytest.mark.parametrize("status", [300, 301, 302, 307, 400, 404, 429, 500, 503])
def test_other_answers_are_tried_again_and_redirects_not_followed(book: Book, receiver: Receiver, status: int) -> None:
    receiver.answers, receiver.headers = [status], {"Location": f"http://127.0.0.1:{receiver.port}/elsewhere"}
    job_id = finished(book, f"http://127.0.0.1:{receiver.port}/")
    with pytest.raises(Undelivered, match=str(status)):
        sender(book).deliver(job_id)
    assert [path for path, _, _ in receiver.got] == ["/"]


def test_gone_is_gone(book: Book, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.answers = [410]
    sender(book).deliver(finished(book, f"http://127.0.0.1:{receiver.port}/"))
    assert "wants no more webhooks" in caplog.text


def test_nothing_is_told_of_jobs_without_webhook_or_deleted(book: Book, receiver: Receiver) -> None:
    sender(book).deliver("0" * 32)
    silent = book.submit(["a.jpg"])
    book.succeed(silent, 0)
    sender(book).deliver(silent)
    job_id = finished(book, f"http://127.0.0.1:{receiver.port}/")
    book.ledger.delete(job_id)
    sender(book).deliver(job_id)
    assert receiver.got == []


def test_a_cancelled_job_is_told_of(book: Book, receiver: Receiver) -> None:
    job_id = book.submit(["a.jpg"], webhook=f"http://127.0.0.1:{receiver.port}/")
    book.ledger.cancel(job_id)
    sender(book).deliver(job_id)
    assert json.loads(receiver.got[0][2])["data"]["status"] == "cancelled"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.5.5", "172.31.255.255", "192.168.1.1",  # noqa: S104
        "169.254.169.254", "100.64.0.1", "100.127.255.254", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.7",
        "203.0.113.9", "224.0.0.1", "224.0.1.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "::ffff:169.254.169.254",
        "::ffff:100.64.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:5db8:d80e::1",
        "2001:0:5ef5:79fb::1", "2001:db8::1", "fc00::1", "fd12:3456::1", "fe80::1", "fe80::1%eth0", "fec0::1",
        "ff02::1", "ff0e::1", "100::1", "nonsense", "", "127.1",
    ],
)  # fmt: skip
def test_private_addresses_are_refused_and_not_tried_again(
    book: Book, receiver: Receiver, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    assert not is_public(address)
    job_id = finished(book, f"http://example.com:{receiver.port}/")
    sender(book, lambda _host, _port: [address], private=False).deliver(job_id)
    assert receiver.got == []
    assert "HEATLENS_WEBHOOK_PRIVATE" in caplog.text


@pytest.mark.parametrize(
    "address", [PUBLIC, "8.8.8.8", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_not(address: str) -> None:
    assert is_public(address)


def test_one_private_address_among_public_ones_is_enough(book: Book, receiver: Receiver) -> None:
    job_id = finished(book, f"http://example.com:{receiver.port}/")
    sender(book, lambda _host, _port: [PUBLIC, "127.0.0.1"], private=False).deliver(job_id)
    assert receiver.got == []


def test_a_name_that_changes_its_address_is_asked_once(
    book: Book, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding: public when it is looked at, private when it is connected to."""
    asked, dialled = [], []

    def resolve(host: str, _port: int) -> list[str]:
        asked.append(host)
        return [PUBLIC] if len(asked) == 1 else ["127.0.0.1"]

    def dial(address: tuple[str, int], *_rest: object, **_more: object) -> socket.socket:
        dialled.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", dial)
    job_id = finished(book, f"http://rebound.example:{receiver.port}/")
    with pytest.raises(Undelivered):
        sender(book, resolve, private=False).deliver(job_id)
    assert asked == ["rebound.example"]
    assert dialled == [(PUBLIC, receiver.port)]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{}/",
        "http://localhost:{}/",
        "http://[::ffff:127.0.0.1]:{}/",
        "http://0:{}/",
        "http://2130706433:{}/",
        "http://0x7f.1:{}/",
    ],
)
def test_this_machine_by_any_of_its_names_is_refused(book: Book, receiver: Receiver, url: str) -> None:
    """With the system's own resolver."""
    sender(book, private=False).deliver(finished(book, url.format(receiver.port)))
    assert receiver.got == []


@pytest.mark.parametrize("url", ["ftp://example.com/", "nonsense", "https://[::1/", ""])
def test_what_is_no_url_is_given_up(book: Book, url: str) -> None:
    sender(book, lambda _host, _port: [PUBLIC]).deliver(finished(book, url))


def test_names_and_paths_beyond_ascii_are_written_as_http_has_them(book: Book, receiver: Receiver) -> None:
    asked = []

    def resolve(host: str, _port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    sender(book, resolve).deliver(finished(book, f"http://bücher.example:{receiver.port}/größe"))
    assert asked == ["xn--bcher-kva.example"]
    assert receiver.got[0][0] == "/gr%C3%B6%C3%9Fe"


def test_without_a_secret_nothing_is_sent(book: Book, receiver: Receiver) -> None:
    job_id = finished(book, f"http://127.0.0.1:{receiver.port}/")
    Webhooks(book.settings.model_copy(update={"webhook_private": True}), book.ledger).deliver(job_id)
    assert receiver.got == []


def test_a_name_that_does_not_resolve_and_a_port_that_nobody_listens_on_are_tried_again(book: Book) -> None:
    def unknown(_host: str, _port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(Undelivered, match="not known"):
        sender(book, unknown).deliver(finished(book, "http://nowhere.example/"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Undelivered, match=r"127\.0\.0\.1 did not answer"):
        sender(book).deliver(finished(book, f"http://127.0.0.1:{port}/"))


def test_the_second_address_is_tried_where_the_first_does_not_answer(book: Book, receiver: Receiver) -> None:
    sender(book, lambda _host, _port: ["127.0.0.9", "127.0.0.1"]).deliver(
        finished(book, f"http://two.example:{receiver.port}/")
    )
    assert receiver.got[0][1]["host"] == f"two.example:{receiver.port}"


def test_a_host_of_many_addresses_that_do_not_answer_is_left(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_DELIVERY_S", 0.5)
    monkeypatch.setattr(webhooks, "_CONNECT_S", 0.2)
    dialled: list[float] = []

    def dial(_address: tuple[str, int], timeout: float, **_more: object) -> socket.socket:
        dialled.append(timeout)
        time.sleep(timeout)  # as the kernel does where nobody says anything
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", dial)
    many = [f"127.0.0.{number}" for number in range(1, 255)]
    with pytest.raises(Undelivered):
        sender(book, lambda _host, _port: many).deliver(finished(book, "http://many.example/"))
    assert 0 < len(dialled) < len(many)
    assert sum(dialled) < 0.6


def test_tls_asks_for_a_certificate_of_the_host_and_not_of_the_address(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hooks.example"),
            *("-addext", "subjectAltName=DNS:hooks.example", "-keyout", tmp_path / "key", "-out", tmp_path / "cert"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
    receiver = Receiver()
    with serving(receiver, context):
        here = sender(book, lambda _host, _port: ["127.0.0.1"])
        here.deliver(finished(book, f"https://hooks.example:{receiver.port}/"))
        assert len(receiver.got) == 1
        with pytest.raises(Undelivered, match="Hostname mismatch"):
            here.deliver(finished(book, f"https://other.example:{receiver.port}/"))
        assert len(receiver.got) == 1


@contextmanager
def dripping(chunk: bytes) -> Iterator[int]:
    """A server that never ends its answer: it sends a little again and again until the client goes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    while True:
                        connection.sendall(chunk)
                        time.sleep(0.02)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_who_never_ends_the_head_of_an_answer_is_left(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_DELIVERY_S", 0.5)
    with dripping(b"H") as port, pytest.raises(Undelivered):
        sender(book).deliver(finished(book, f"http://127.0.0.1:{port}/"))
    with dripping(b"HTTP/1.1 200 OK\r\n"[:1]) as port, pytest.raises(Undelivered):
        sender(book).deliver(finished(book, f"http://127.0.0.1:{port}/"))


def test_an_endless_body_is_not_read(book: Book, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = []

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                try:
                    while True:
                        sent.append(connection.send(b"1000\r\n" + b"x" * 0x1000 + b"\r\n"))
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        sender(book).deliver(finished(book, f"http://127.0.0.1:{listener.getsockname()[1]}/"))
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert "told 127.0.0.1" in caplog.text


def test_nothing_of_the_url_but_its_host_is_logged(
    book: Book, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sender(book).deliver(finished(book, f"http://127.0.0.1:{receiver.port}/secret-path?token=hidden"))
    sender(book, private=False).deliver(finished(book, f"http://127.0.0.1:{receiver.port}/secret-path?token=hidden"))
    assert "127.0.0.1" in caplog.text
    assert "secret-path" not in caplog.text
    assert "hidden" not in caplog.text
