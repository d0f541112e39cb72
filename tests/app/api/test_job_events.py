"""Jobs watched live, by clients of a real server; what needs no server is tested on the stream itself."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api import events
from app.api.events import Stream, Streams
from app.config import Settings
from app.errors import JobsUnavailable, OutOfSpace, ServiceError, TooManyStreams
from tests.app.jobs.books import Book, opened
from tests.conftest import Server, start_server, stop_server


@dataclass
class Event:
    kind: str = "message"
    id_: int | None = None
    data: Any = None


def parsed(lines: Iterator[str]) -> Iterator[Event]:
    """Read server-sent events as the standard says, as far as ours use it."""
    event, seen = Event(), False
    for line in lines:
        name, _, value = line.partition(": ")
        if not line:
            if seen:
                yield event
            event, seen = Event(), False
        elif name == "event":
            event.kind = value
        elif name == "id":
            event.id_ = int(value)
        elif name == "data":
            event.data, seen = json.loads(value), True
        else:
            assert name in ("retry", ""), line


@dataclass
class Watched:
    """A client that reads a stream in a thread of its own, until it ends."""

    response: httpx.Response
    events: list[Event] = field(default_factory=list)
    error: Exception | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: bool = False

    def read(self) -> None:
        try:
            for event in parsed(self.response.iter_lines()):
                with self.changed:
                    self.events.append(event)
                    self.changed.notify_all()
        except httpx.HTTPError as error:
            self.error = error
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait(self, count: int, kind: str = "item") -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.of(kind)) >= count, timeout=30), self.events

    def wait_for_end(self) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.ended, timeout=30)
        assert self.error is None

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


@contextmanager
def watching(server: Server, job_id: str, after: int | None = None, **headers: str) -> Iterator[Watched]:
    url = f"{server.url}/v1/jobs/{job_id}/events" + ("" if after is None else f"?after={after}")
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    with accepted(url, sent) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-store"
        watched = Watched(response)
        thread = threading.Thread(target=watched.read)
        thread.start()
        try:
            yield watched
        finally:
            if not watched.ended:  # closing alone would not, while the thread reads
                response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            thread.join(timeout=30)
            assert not thread.is_alive()


@contextmanager
def accepted(url: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
    """Ask until there is a place: that of who has gone is free a moment later."""
    deadline = time.monotonic() + 30
    while True:
        with httpx.stream("GET", url, headers=headers, timeout=60) as response:
            if response.status_code != 503:
                assert response.status_code == 200
                yield response
                return
        assert time.monotonic() < deadline, "no place became free"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    with opened(Settings(data_dir=tmp_path_factory.mktemp("jobs"))) as book:
        yield book


@pytest.fixture(scope="module")
def jobs_server(book: Book, models_dir: Path) -> Iterator[Server]:
    server = started(book, models_dir)
    yield server
    stop_server(server)


def started(book: Book, models_dir: Path) -> Server:
    return start_server(
        data_dir=str(book.settings.data_dir),
        models_dir=str(models_dir),
        default_model="small",
        workers="1",
        torch_threads="1",
        event_streams="2",
        log_level="warning",
    )


@pytest.mark.server
def test_a_job_is_told_from_its_beginning_to_its_end(book: Book, jobs_server: Server) -> None:
    job_id = book.submit(["a.jpg", "b.jpg", "c.jpg"])
    book.succeed(job_id, 0)
    with watching(jobs_server, job_id) as client:
        client.wait(1)
        first = client.events[0]
        assert (first.kind, first.id_, first.data["progress"]["done"]) == ("progress", None, 1)
        book.fail(job_id, 2)
        client.wait(2)
        client.wait(2, "progress")
        book.succeed(job_id, 1)
        client.wait_for_end()
    assert [(event.id_, event.data["number"], event.data["status"]) for event in client.of("item")] == [
        (1, 0, "succeeded"),
        (2, 2, "failed"),
        (3, 1, "succeeded"),
    ]
    assert client.of("item")[0].data == httpx.get(f"{jobs_server.url}/v1/jobs/{job_id}/items/0", timeout=60).json()
    last = client.events[-1]
    assert (last.kind, last.id_, last.data["status"]) == ("end", None, "completed_with_errors")


@pytest.mark.server
def test_who_comes_again_gets_what_it_missed(book: Book, jobs_server: Server) -> None:
    job_id = book.submit([f"{n}.jpg" for n in range(6)])
    book.succeed(job_id, *range(6))
    for sent in ({"Last_Event_ID": "4"}, {"Last_Event_ID": "4", "after": 1}, {"after": 4}):
        with watching(jobs_server, job_id, **sent) as client:
            client.wait_for_end()
        assert [event.id_ for event in client.of("item")] == [5, 6]
        assert client.events[-1].kind == "end"
    with watching(jobs_server, job_id, Last_Event_ID="6") as client:
        client.wait_for_end()
    assert [event.kind for event in client.events] == ["progress", "end"]


@pytest.mark.server
def test_a_client_cut_off_at_any_point_misses_nothing_and_gets_nothing_twice(book: Book, jobs_server: Server) -> None:
    job_id = book.submit([f"{n}.jpg" for n in range(40)])
    seen: list[int] = []
    for number in range(0, 40, 8):
        book.succeed(job_id, *range(number, number + 8))
        with watching(jobs_server, job_id, Last_Event_ID=str(seen[-1] if seen else 0)) as client:
            client.wait(5)
        seen += [event.id_ or 0 for event in client.of("item")]
    with watching(jobs_server, job_id, Last_Event_ID=str(seen[-1])) as client:
        client.wait_for_end()
    seen += [event.id_ or 0 for event in client.of("item")]
    assert seen == list(range(1, 41))


@pytest.mark.server
@pytest.mark.parametrize("text", ["x", "-1", "1.5", "9" * 30, ""])
def test_an_event_that_is_none_is_refused(book: Book, jobs_server: Server, text: str) -> None:
    job_id = book.submit(["a.jpg"])
    answer = httpx.get(f"{jobs_server.url}/v1/jobs/{job_id}/events", headers={"Last-Event-ID": text}, timeout=60)
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


@pytest.mark.server
def test_streams_are_limited_and_the_place_of_who_goes_is_free_again(book: Book, jobs_server: Server) -> None:
    job_id = book.submit(["a.jpg"])
    url = f"{jobs_server.url}/v1/jobs/{job_id}/events"
    for _ in range(3):  # places that leaked would be missed soon
        with watching(jobs_server, job_id) as one, watching(jobs_server, job_id) as two:
            one.wait(1, "progress")
            two.wait(1, "progress")
            refused = httpx.get(url, timeout=60)
            assert (refused.status_code, refused.json()["code"]) == (503, "too_many_streams")
            assert refused.json()["limit"] == 2
            assert int(refused.headers["Retry-After"]) > 0
            other = httpx.get(f"{jobs_server.url}/v1/jobs/{job_id}", timeout=60)
            assert other.status_code == 200  # other routes answer


@pytest.mark.server
def test_a_server_that_stops_ends_its_streams_at_once_and_cleanly(book: Book, models_dir: Path) -> None:
    server = started(book, models_dir)
    job_id = book.submit(["a.jpg"])
    with watching(server, job_id) as client:
        client.wait(1, "progress")
        began = time.monotonic()
        said = stop_server(server)
        took = time.monotonic() - began
        client.wait_for_end()  # with the last chunk: a cut connection would be an error
    assert server.process.returncode == 0
    assert took < 15  # the grace is 30 s
    assert client.of("end") == []
    assert "Traceback" not in said


def streamed(book: Book, job_id: str, *, after: int = 0, ending: threading.Event | None = None) -> Iterator[str]:
    ending = ending or threading.Event()
    stream = Stream(book.ledger, book.ledger.job(job_id), after=after, ending=ending, environ={})
    return (piece.decode() for piece in stream)


def test_a_heartbeat_breaks_the_silence(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_HEARTBEAT_S", 0.0)
    pieces = streamed(book, book.submit(["a.jpg"]))
    assert next(pieces).startswith("retry: ")
    assert next(pieces).startswith("event: progress\n")
    assert [next(pieces), next(pieces)] == [": still here\n\n"] * 2


@pytest.mark.parametrize("error", [JobsUnavailable, OutOfSpace])
def test_the_silence_of_a_database_that_is_away_is_broken_too(
    book: Book, monkeypatch: pytest.MonkeyPatch, error: type[ServiceError]
) -> None:
    monkeypatch.setattr(events, "_HEARTBEAT_S", 0.0)
    monkeypatch.setattr(events, "_AWAY_S", 0.0)
    monkeypatch.setattr(events, "_POLL_S", 0.01)
    asked, ending = [], threading.Event()

    def fail(id_: str) -> None:
        asked.append(id_)
        if len(asked) == 3:
            ending.set()
        raise error("away")

    pieces = streamed(book, book.submit(["a.jpg"]), ending=ending)
    assert [next(pieces).split()[0] for _ in range(2)] == ["retry:", "event:"]
    monkeypatch.setattr(book.ledger, "job", fail)
    assert list(pieces) == [": still here\n\n"] * 4  # after what was told, and each time that it was asked in vain


def test_what_is_written_is_one_line_whatever_a_picture_is_called(book: Book) -> None:
    job_id = book.submit(["a\r\ndata: forged\n\nevent: end\u2028.jpg"])
    book.succeed(job_id, 0)
    (item,) = [event for event in parsed(iter("".join(streamed(book, job_id)).split("\n"))) if event.kind == "item"]
    assert item.data["name"] == "a\r\ndata: forged\n\nevent: end\u2028.jpg"


def test_the_ledger_is_asked_at_most_twice_a_second(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = book.submit(["a.jpg"])
    ending = threading.Event()
    asked: list[str] = []
    real = book.ledger.job

    def job(id_: str) -> Any:
        asked.append(id_)
        if len(asked) == 4:
            ending.set()
        return real(id_)

    pieces = streamed(book, job_id, ending=ending)
    monkeypatch.setattr(book.ledger, "job", job)
    began = time.monotonic()
    for _ in pieces:
        pass
    assert len(asked) == 4
    assert time.monotonic() - began >= 4 * 0.5


def test_a_database_that_is_away_is_waited_for(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_AWAY_S", 0.0)
    monkeypatch.setattr(events, "_POLL_S", 0.01)
    job_id = book.submit(["a.jpg", "b.jpg"])
    book.succeed(job_id, 0)
    pieces = streamed(book, job_id)
    for name in ("job", "events", "rate_per_s"):
        real, failures = getattr(book.ledger, name), [JobsUnavailable("away"), JobsUnavailable("away")]

        def fail_first(*arguments: Any, _real: Any = real, _failures: Any = failures, **named: Any) -> Any:
            if _failures:
                raise _failures.pop()
            return _real(*arguments, **named)

        monkeypatch.setattr(book.ledger, name, fail_first)
    found = parsed(line for piece in pieces for line in piece.split("\n"))
    kinds = [next(found).kind, next(found).kind]
    assert sorted(kinds) == ["item", "progress"]
    book.fail(job_id, 1)
    assert [event.kind for event in found][-1] == "end"


def test_a_deleted_job_ends_its_stream(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_POLL_S", 0.01)
    job_id = book.submit(["a.jpg"])
    pieces = streamed(book, job_id)
    assert "progress" in next(pieces) + next(pieces)
    book.ledger.delete(job_id)
    assert list(pieces) == []


def test_a_retry_that_is_cancelled_has_an_end_though_its_last_number_is_gone(book: Book) -> None:
    job_id = book.submit(["a.jpg", "b.jpg"])
    book.succeed(job_id, 0)
    book.fail(job_id, 1)
    book.ledger.retry(job_id)
    book.ledger.cancel(job_id)
    found = list(parsed(iter("".join(streamed(book, job_id)).split("\n"))))
    assert [(event.kind, event.id_) for event in found] == [("progress", None), ("item", 1), ("end", None)]


def test_no_stream_at_all_where_the_operator_wants_none() -> None:
    with pytest.raises(TooManyStreams, match="HEATLENS_EVENT_STREAMS"):
        Streams(0).take()


@pytest.mark.server
def test_the_document_has_the_headers(jobs_server: Server) -> None:
    paths = httpx.get(f"{jobs_server.url}/openapi.json", timeout=60).json()["paths"]
    item = "/v1/jobs/{id}/items/{number}"
    routes = {
        "/v1/jobs/{id}/events": "Last-Event-ID",
        f"{item}/overlay": "If-None-Match",
        f"{item}/artifacts/{{name}}": "If-None-Match",
    }
    for route, name in routes.items():
        assert [each["name"] for each in paths[route]["get"]["parameters"] if each["in"] == "header"] == [name]
