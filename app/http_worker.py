"""gunicorn's threaded worker, made safe against slow clients and against a model that never comes back.

A request costs a thread only once its headers are there; until then, and when its connection lingers after the
answer, the main thread looks after it. The master, which reads this, must not import what `app.metrics` does.
"""

import errno
import logging
import os
import re
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from gunicorn import http
from gunicorn.http.body import Body
from gunicorn.http.errors import LimitRequestHeaders
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, TConn, ThreadWorker

from app import http_errors
from app.config import BOOT_FAILED, LONGEST_S, load_settings
from app.http_errors import Refusal
from app.http_socket import PacedSocket, Patience, Places

_HEAD_BYTES = 2**16
_PROBE = re.compile(rb"(GET|HEAD) /(healthz|readyz|metrics|ping|health|v2/health/\w+)[ ?]")
_BODY = re.compile(rb"content-length|transfer-encoding|expect", re.IGNORECASE)
_PROBE_THREADS = 2
_LINGER_S = 2.0
_LINGER_AT_MOST_S = 30.0
_LINGER_BYTES = 2**26
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NOBODY = (errno.EAGAIN, errno.ECONNABORTED)
_PAUSE_S = 0.1
_HARD = struct.pack("ii", 1, 0)
_WATCH_S = 1.0
_log = logging.getLogger(__name__)


class Connection(TConn):  # type: ignore[misc]
    """A client's connection, with what came of its next request's headers."""

    sock: PacedSocket
    parser: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head = bytearray()
        self.is_whole = False
        self.waits_in: deque[Any] | None = None
        """Where the main thread has it while it waits; nowhere once a thread handles it, or once it was ended."""
        self.lingered_bytes = 0
        self.lingers_until = 0.0
        self.data_ready = True  # nothing is handled before

    def add(self, data: bytes) -> None:
        """Add what came of the headers, and see whether it ends them, or has a break with which gunicorn refuses them.

        Only what is new is looked at: many single bytes would cost their square.
        """
        before = len(self.head)
        self.head += data
        self.is_whole = (
            self.is_whole
            or self.head.find(b"\r\n\r\n", max(0, before - 3)) >= 0
            or self.head.count(b"\n", before) != self.head.count(b"\r\n", max(0, before - 1))
        )

    @property
    def has_head(self) -> bool:
        """Whether there is enough of a request for a thread to have work, though it may be to refuse it."""
        return self.is_whole or len(self.head) > _HEAD_BYTES

    def init(self) -> None:
        """Begin to be handled by a thread; gunicorn's own would look for other protocols."""
        self.sock.setblocking(True)
        if self.parser is None:
            self.parser = http.get_parser(self.cfg, self.sock, self.client)
        self.initialized = True
        head, is_whole = bytes(self.head), self.is_whole
        self.head.clear()
        self.is_whole = False
        if not is_whole:
            raise LimitRequestHeaders("too long")
        self.parser.unreader.unread(head)


class _Body(Body):  # type: ignore[misc]
    """A request's body; once it was read the client keeps no thread waiting, and one that cannot be read is the last.

    `connection` is told of both.
    """

    def __init__(self, request: Any, connection: PacedSocket) -> None:
        super().__init__(request.body.reader)
        self._request = request
        self._connection = connection

    @property
    def _is_over(self) -> bool:
        return getattr(self.reader, "length", None) == 0 or getattr(self.reader, "parser", self) is None

    def _read_reader(self, size: int) -> bytes:
        try:
            data: bytes = super()._read_reader(size)
        except Exception:
            self._request.force_close()
            raise
        if self._is_over:
            self._connection.end()
        return data

    def begin_answer(self, *, is_last: bool) -> None:
        """Tell the client to send no other request on this connection if `is_last`, or where a body is to come.

        Of a body that nobody wants only a little is read, so that the connection cannot be kept.
        """
        if is_last or not self._is_over:
            self._request.force_close()


class Worker(ThreadWorker):  # type: ignore[misc]
    """A worker process: `HEATLENS_THREADS` threads for requests, and two for probes where those are all taken."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = load_settings()
        self._header_s = settings.header_timeout_s
        self._patience = Patience(settings.client_timeout_s, settings.min_body_bytes_per_s)
        self._places = Places(self.cfg.threads, shared=not settings.trusted_proxies)
        self._lingering: deque[Connection] = deque()
        self._at_work = 0
        self._loaded = threading.Event()
        self._watched = 0.0

    def init_process(self) -> None:
        """Run; called by the master after the fork."""
        self._probes = ThreadPoolExecutor(_PROBE_THREADS, thread_name_prefix="probe")
        super().init_process()

    def begin_loading(self) -> None:
        """Tell the master from now on that this process lives, until it serves; loading may take `LONGEST_S`.

        A thread does, so that a process in which no thread runs any more is ended all the same.
        """
        ends = time.monotonic() + LONGEST_S

        def beat() -> None:
            while not self._loaded.wait(_WATCH_S) and time.monotonic() < ends:
                try:
                    self.notify()
                except ValueError:  # the file is closed already: loading has failed, and the process ends
                    return

        threading.Thread(target=beat, name="loading", daemon=True).start()

    def load_wsgi(self) -> None:
        """Load the app, and start all threads."""
        try:
            super().load_wsgi()
            self.wsgi.wsgi_app = self._announcing(self.wsgi.wsgi_app)
            self._start(self.tpool, self.cfg.threads)
            self._start(self._probes, _PROBE_THREADS)
        finally:
            self._loaded.set()

    def _start(self, pool: ThreadPoolExecutor, count: int) -> None:
        """Start all threads of a pool now: one that the system refuses later would end all that is at work here."""
        all_run = threading.Barrier(count + 1)
        try:
            for _thread in range(count):
                pool.submit(all_run.wait)  # none is free for another until all are there
            all_run.wait()
        except RuntimeError as error:
            all_run.abort()
            msg = "cannot start: %s; HEATLENS_THREADS (%d) is too high for the processes that this one may have"
            _log.critical(msg, error, self.cfg.threads)
            sys.exit(BOOT_FAILED)

    def _announcing(self, app: Any) -> Any:
        """Let an app's answers say whether they are the last of their connection."""

        def announcing(environ: dict[str, Any], start_response: Any) -> Any:
            def start(*answer: Any) -> Any:
                environ["wsgi.input"].begin_answer(is_last=not self.alive)
                return start_response(*answer)

            return app(environ, start)

        return announcing

    def is_parent_alive(self) -> bool:
        """Have this process end without its master as it does when it is told to.

        gunicorn would only leave its loop: the port would stay open, though nobody is answered there any more.
        """
        if not super().is_parent_alive():
            signal.raise_signal(signal.SIGTERM)
        return True

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """Look after connections, and now and then after the models."""
        super().wait_for_and_dispatch_events(timeout)
        now = time.monotonic()
        if now - self._watched >= _WATCH_S:
            self._watched = now
            self.wsgi.extensions["heatlens"].hosts.watch()

    # Connections that wait for their headers, or for the end.

    def set_accept_enabled(self, enabled: bool) -> None:
        """Begin to accept, or stop; for good where this worker ends.

        Once all have closed it nobody can connect any more, in place of waiting for an end that answers nobody.
        """
        super().set_accept_enabled(enabled)
        if not (enabled or self.alive):
            for listener in self.sockets:
                listener.close()

    def accept(self, listener: socket.socket) -> None:
        """Accept a connection, in the place of one that waits where there are too many."""
        try:
            accepted, address = listener.accept()
        except OSError as error:
            self._go_on_without(error)
            return
        if self.nr_conns >= self.worker_connections - 1:
            self._drop_oldest()
        self.nr_conns += 1
        paced = PacedSocket(accepted, address, self._places, self._patience)
        self._await_head(Connection(self.cfg, paced, address, listener.getsockname()))

    def _go_on_without(self, error: OSError) -> None:
        """Make room for a connection that cannot be accepted; accept(2) names many reasons, and none is this process's.

        It stays in the queue, so that the next turn comes at once.
        """
        if error.errno in _NOBODY or (error.errno in _NO_ROOM and self._drop_oldest()):
            return
        if error.errno not in _NO_ROOM:
            _log.warning("a connection was not accepted: %s", error)
        time.sleep(_PAUSE_S)  # in place of asking again all the time

    def on_client_socket_readable(self, conn: Any, client: Any) -> None:
        """Begin to wait for the next request of a connection that is kept."""
        if conn.waits_in is self.keepalived_conns:
            self._forget(conn)
            self._await_head(conn)

    def on_pending_socket_readable(self, conn: Any, client: Any) -> None:
        """Take what came of a request's headers."""
        if conn.waits_in is not self.pending_conns:  # ended by what else came at the same time
            return
        if not (data := self._received(conn)):
            if data is not None:
                self._forget(conn)
                self._end(conn)
            return
        conn.add(data)
        if conn.has_head:
            self._forget(conn)
            self.enqueue_req(conn)

    def murder_pending(self) -> None:
        """End the connections whose headers take too long, and those that lingered long enough."""
        now = time.monotonic()
        while self.pending_conns and self.pending_conns[0].timeout <= now:
            conn = self.pending_conns[0]
            self._forget(conn)
            if conn.head:
                self._refuse_head(conn)
            else:
                self._end(conn)
        while self._lingering and self._lingering[0].timeout <= now:
            conn = self._lingering[0]
            self._forget(conn)
            self._end(conn)

    def _await_head(self, conn: Connection) -> None:
        """Wait without a thread for the headers of the next request."""
        conn.sock.setblocking(False)
        conn.timeout = time.monotonic() + (self._header_s if self.alive else STOP_KEEPALIVE_LINGER)
        self._wait_in(self.pending_conns, conn, self.on_pending_socket_readable)

    def _cap_keepalive(self, deadline: float) -> None:
        super()._cap_keepalive(deadline)
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, deadline)
        for conn in self._lingering:
            conn.lingers_until = min(conn.lingers_until, deadline)

    def _refuse_head(self, conn: Connection) -> None:
        """Answer whose headers were too slow; the answer fits into what the kernel sends by itself."""
        limit = {"limit": f"{self._header_s:g}", "setting": "HEATLENS_HEADER_TIMEOUT_S"}
        refused = http_errors.TOO_SLOW._replace(detail=http_errors.TOO_SLOW.detail.format(**limit))
        with suppress(OSError):
            conn.sock.send_now(self._refusal(refused, conn.client))
        self._linger(conn)

    def _linger(self, conn: Connection) -> None:
        """Close the connection once the client has, which has read its answer then; no thread waits for it.

        One that still sends the rest of a refused body may go on for a while: many clients, proxies among them, look at
        the answer only after that, and would never see it on a connection that is reset.
        """
        try:
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._end(conn)
            return
        conn.sock.setblocking(False)
        conn.lingers_until = time.monotonic() + (_LINGER_AT_MOST_S if self.alive else _LINGER_S)
        self._wait_for_its_end(conn)

    def _wait_for_its_end(self, conn: Connection) -> None:
        conn.timeout = time.monotonic() + _LINGER_S
        self._wait_in(self._lingering, conn, self._discard)

    def _discard(self, conn: Connection, _client: Any) -> None:
        if conn.waits_in is not self._lingering or (data := self._received(conn)) is None:
            return
        self._forget(conn)
        conn.lingered_bytes += len(data)
        if data and conn.lingered_bytes <= _LINGER_BYTES and time.monotonic() < conn.lingers_until:
            self._wait_for_its_end(conn)
        else:
            self._end(conn)

    def _received(self, conn: Connection) -> bytes | None:
        """Return what came; nothing where the client has gone, None where it only seemed that something had."""
        try:
            return conn.sock.recv_now(_HEAD_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _drop_oldest(self) -> bool:
        """End a connection that waits: first one that was answered, then one of whom nothing, or not all, has come.

        Of each kind it is the first in line. Say whether there was one.
        """
        for waiting in (self._lingering, self.keepalived_conns, self.pending_conns):
            if waiting:
                conn = waiting[0]
                self._forget(conn)
                self._end(conn)
                return True
        return False

    def _wait_in(self, waiting: deque[Any], conn: Connection, on_readable: Callable[[Connection, Any], None]) -> None:
        conn.waits_in = waiting
        waiting.append(conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(on_readable, conn))

    def _forget(self, conn: Connection) -> None:
        """Take a connection from where it waits; an event of the same turn may still be for it."""
        if conn.waits_in is not None:
            conn.waits_in.remove(conn)
            conn.waits_in = None
        with suppress(KeyError, ValueError, OSError):
            self.poller.unregister(conn.sock)

    def _end(self, conn: Any) -> None:
        self.nr_conns -= 1
        conn.close()

    # Requests.

    def enqueue_req(self, conn: Any) -> None:
        """Give a request to a thread; a probe is answered also while all others are busy."""
        busy = self._at_work >= self.cfg.threads
        is_probe = busy and _PROBE.match(conn.head) is not None and _BODY.search(conn.head) is None
        conn.sock.begin(hurried=is_probe)
        self._at_work += 1
        future = (self._probes if is_probe else self.tpool).submit(self.handle, conn)
        future.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))

    def handle(self, conn: Any) -> Any:
        """Handle a request, in a thread."""
        try:
            return super().handle(conn)
        finally:
            conn.sock.end()

    def handle_request(self, req: Any, conn: Any) -> bool:
        """Have the app answer a request."""
        req.body = _Body(req, conn.sock)
        req.headers = [(name, value) for name, value in req.headers if name != "UPGRADE"]  # to what is not spoken here
        wishes = ",".join(value for name, value in req.headers if name == "CONNECTION")
        if "close" in (wish.strip().lower() for wish in wishes.split(",")):  # gunicorn knows it alone, and in no list
            req.force_close()
        return bool(super().handle_request(req, conn))

    def finish_request(self, conn: Any, fs: Future[Any]) -> None:
        """Go on with a connection whose request was answered, in the main thread."""
        self._at_work -= 1
        keep = not fs.cancelled() and not fs.exception() and bool(fs.result())
        if not keep:
            self._part(conn)
        elif rest := conn.parser.unreader.take_buffered():  # of the next request, which was sent before the answer
            conn.add(rest)
            if conn.has_head:
                self.enqueue_req(conn)
            else:
                self._await_head(conn)
        else:
            self._keep(conn)

    def _keep(self, conn: Connection) -> None:
        """Keep a connection for its next request, for a shorter time where this worker is stopping."""
        conn.sock.setblocking(False)
        conn.timeout = time.monotonic() + (self.cfg.keepalive if self.alive else STOP_KEEPALIVE_LINGER)
        self._wait_in(self.keepalived_conns, conn, self.on_client_socket_readable)

    def _part(self, conn: Connection) -> None:
        if conn.sock.gave_up:
            _log.info("an answer is cut off: %s", conn.sock.gave_up)
            with suppress(OSError):
                conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HARD)
            self._end(conn)
        else:
            self._linger(conn)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Answer what never came to the app, or what it failed to answer, as a problem; neither path nor query is told.

        gunicorn's own answer is HTML, and its log line holds the path.
        """
        refused = http_errors.refusal(exc)
        if refused is http_errors.UNEXPECTED:
            _log.error("unexpected error beside the app", exc_info=exc)
        with suppress(OSError):
            client.sendall(self._refusal(refused, addr))

    def _refusal(self, refused: Refusal, address: Any) -> bytes:
        answer, request_id = http_errors.answer(refused)
        metrics = self.wsgi.extensions["heatlens"].metrics
        metrics.problem(refused.code)
        metrics.request("unreadable", "other", refused.status.value, 0.0)
        facts = {"status": refused.status.value, "code": refused.code, "client": address[0] if address else None}
        _log.info("request", extra={"request_id": request_id, "route": "unreadable", **facts})
        return answer

    # Signals.

    def init_signals(self) -> None:
        """Begin to look after signals, also of SIGTERM while the main thread waits for the models to be loaded."""
        super().init_signals()
        signal.siginterrupt(signal.SIGTERM, True)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """End once those who are here were answered: at once where nobody can be, since the app is still loading."""
        if not self._loaded.is_set():
            os._exit(0)
        super().handle_exit(sig, frame)

    def handle_quit(self, _sig: int, _frame: Any) -> None:
        """End at once. The interpreter's own end would wait for the threads, and so for whoever is being answered."""
        os._exit(0)
