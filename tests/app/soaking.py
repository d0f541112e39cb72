"""Many requests of every kind against one server in this process: what is answered, and what is left behind.

The same number always asks the same, so that a run can be repeated.
"""

import ctypes
import gc
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from flask import Flask
from PIL import Image
from torch import nn
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from app import create_app
from app.config import Settings

THREADS = 16
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PAGE_BYTES = 4096
_SETTLE_S = 60.0
_GOOD = (
    {"method": "gradcam"},
    {"method": "gradcam", "target": "top3", "format": "json"},
    {"method": "gradcam", "target": "cat", "layer": "first", "view": "side_by_side", "legend": "true"},
    {"method": "gradcam++", "layer": "second", "format": "npy"},
    {"method": "layercam", "target": "1", "versus": "2", "format": "png"},
    {"method": "saliency", "target": "3", "format": "webp"},
    {"method": "smoothgrad", "samples": "4"},
    {"method": "integrated_gradients", "steps": "8", "format": "npz"},
    {"method": "eigencam", "view": "heatmap"},
)
_BAD = (
    {"method": "nonsense"},
    {"alpha": "7"},
    {"target": "dog"},
    {"target": "17"},
    {"layer": "head"},
    {"layer": "nowhere"},
    {"colour": "red"},
    {"method": "rise", "samples": "1000000"},
)


@dataclass(frozen=True)
class Ask:
    """One request: which statuses are right, and for a client that goes away, when, and after how much of the body."""

    kind: str
    options: dict[str, str]
    body: bytes
    right: frozenset[int]
    headers: dict[str, str] = field(default_factory=dict)
    leaves_after_s: float | None = None
    sends: float = 1.0

    @property
    def path(self) -> str:
        return f"/v1/explain?{urlencode({'model': 'small', **self.options})}"


def picture(number: int) -> bytes:
    """Return one of a thousand small pictures."""
    pixels = np.random.default_rng(number % 1000).integers(0, 256, (6, 8, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).resize((96, 72)).save(file, ("JPEG", "PNG", "WEBP")[number % 3])
    return file.getvalue()


def ask(number: int) -> Ask:
    """Return what the request of this number asks: of twenty, eleven are good."""
    chance = random.Random(number)  # noqa: S311 - a choice that can be repeated
    body = picture(number)
    slow = {"method": "rise", "samples": "64"}
    match chance.randrange(20):
        case 0 | 1:
            return Ask("bad option", chance.choice(_BAD), body, frozenset({422}))
        case 2:
            return Ask("no picture", {}, chance.choice([b"", b"nonsense", b"<svg/>"]), frozenset({400, 415}))
        case 3:
            return Ask("damaged picture", {}, body[: len(body) // 3], frozenset({422}))
        case 4 | 5:
            return Ask("slow", slow, body, frozenset({200}))
        case 6:
            gone_s = chance.uniform(0.0, 0.1)
            return Ask("abandoned", {**slow, "samples": "4000"}, body, frozenset(), leaves_after_s=gone_s)
        case 7:
            return Ask("half sent", {}, body, frozenset(), leaves_after_s=0.0, sends=0.5)
        case 8:
            return Ask("expired", slow, body, frozenset({504}), headers={"X-Request-Deadline-S": "0.001"})
        case _:
            return Ask("good", chance.choice(_GOOD), body, frozenset({200}))


class Counting:
    """WSGI: how many requests came in, and how often any was answered.

    The app is told of werkzeug's socket as gunicorn tells of its own, so that it sees a client go.
    """

    def __init__(self, app: Flask) -> None:
        self._app = app
        self._lock = threading.Lock()
        self.requests = 0
        self.answers: Counter[int] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        environ["gunicorn.socket"] = environ["werkzeug.socket"]
        with self._lock:
            self.requests += 1

        def answer(status: str, headers: Any, exc_info: Any = None) -> Any:
            with self._lock:
                self.answers[int(status[:3])] += 1
            return start_response(status, headers, exc_info)

        return self._app(environ, answer)


class _Quiet(WSGIRequestHandler):
    def log(self, *args: object) -> None:
        """Say nothing: clients that go away are part of it."""

    def connection_dropped(self, error: BaseException, environ: object = None) -> None:
        """Likewise."""


class _Pooled(ThreadedWSGIServer):
    """Answers from a pool of threads, as gunicorn does, instead of a new thread for every connection."""

    def __init__(self, app: Counting) -> None:
        super().__init__("127.0.0.1", 0, app, handler=_Quiet)
        self._pool = ThreadPoolExecutor(2 * THREADS)  # a client that has left can still keep one busy

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to the pool."""
        self._pool.submit(self.process_request_thread, request, client_address)

    def server_close(self) -> None:
        """Close the port, and end the threads."""
        super().server_close()
        self._pool.shutdown()


class Soak:
    """A server with the small network, and what it was asked so far."""

    def __init__(self, app: Flask, port: int, counting: Counting) -> None:
        self._service = app.extensions["heatlens"]
        self._port = port
        self._lock = threading.Lock()
        self.counting = counting
        self.answers: Counter[tuple[str, str]] = Counter()
        """What the clients saw: by kind of request and status, or that the client left."""
        self.wrong: list[str] = []
        """Answers that are none of the right ones, or more than one."""

    def run(self, numbers: range) -> None:
        """Ask all of these, from many threads, and wait until the server has done with them."""
        with ThreadPoolExecutor(THREADS) as threads:
            for _ in threads.map(self._one, numbers):
                pass
        deadline = time.monotonic() + _SETTLE_S
        while (self.unanswered or self.inside) and time.monotonic() < deadline:
            time.sleep(0.02)

    @property
    def unanswered(self) -> int:
        """Requests that the app has not answered; below 0 if it answered one twice."""
        return self.counting.requests - self.counting.answers.total()

    @property
    def inside(self) -> int:
        """Requests that hold a place at a model."""
        return int(self._service.hosts.inside)

    def _one(self, number: int) -> None:
        asked = ask(number)
        status, rest = send(self._port, asked)
        with self._lock:
            self.answers[asked.kind, "left" if status is None else str(status)] += 1
            if rest or (status is not None and status not in asked.right):
                self.wrong.append(f"{number}, {asked.kind} {asked.options}: {status}, then {rest[:80]!r}")


def send(port: int, asked: Ask) -> tuple[int | None, bytes]:
    """Return the status, None where the client left, and what came behind the answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    connection.connect()
    try:
        head = {"Content-Type": "application/octet-stream", "Connection": "close", **asked.headers}
        connection.putrequest("POST", asked.path)
        for name, value in {**head, "Content-Length": str(len(asked.body))}.items():
            connection.putheader(name, value)
        connection.endheaders(asked.body[: int(asked.sends * len(asked.body))])
        if asked.leaves_after_s is not None:
            time.sleep(asked.leaves_after_s)
            return None, b""
        wire: socket.socket = connection.sock
        answer = connection.getresponse()
        answer.read()
        return answer.status, wire.recv(1) if wire.fileno() >= 0 else b""
    finally:
        connection.close()


@contextmanager
def soak(models_dir: Path) -> Iterator[Soak]:
    """Serve the networks in a folder from this process, with a result cache that is soon full."""
    app = create_app(Settings(models_dir=models_dir, default_model="small", torch_threads=1, result_cache_bytes=2**20))
    service = app.extensions["heatlens"]
    service.start()
    counting = Counting(app)
    server = _Pooled(counting)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Soak(app, server.server_port, counting)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        service.close()


def hooks_left() -> int:
    """Return how many hooks there are on all modules of this process."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]  # isinstance asks odd things
    return sum(len(getattr(module, name)) for module in modules for name in _HOOKS)


def resident_bytes() -> int:
    """Return the memory that this process holds, after it has given back what it can."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
