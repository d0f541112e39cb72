"""A client's connection that does not hold a thread for ever: neither by sending slowly, nor by reading slowly."""

import errno
import ipaddress
import select
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.errors import BodyTooSlow, TooManyUploads

if TYPE_CHECKING:
    from socket import _SendableFile

    from _typeshed import ReadableBuffer

_RETRY_S = 5
_FILE_BYTES = 2**18
_FREE_S = 1.5
"""How long a client may keep a thread waiting, all in all, before one of the few places for those who wait long is
needed: no line is without a pause."""
_MOMENT_S = 0.2
"""For what is under way, as a body behind its headers, a client is waited for even where all places are taken."""


@dataclass(frozen=True)
class Patience:
    """How long a client is waited for, and how fast it has to be beyond that; 0: any."""

    timeout_s: float
    bytes_per_s: int


class Pool:
    """Places for threads, of which one address cannot take all."""

    def __init__(self, limit: int, *, shared: bool) -> None:
        self.limit = limit
        self.share = min(limit, max(2, limit // 2)) if shared else limit
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, whose: str) -> bool:
        """Take a place, if there is one for this address."""
        with self._lock:
            share = self.share if whose else self.limit  # a socket of the file system has no addresses
            free = self._taken.total() < self.limit and self._taken[whose] < share
            if free:
                self._taken[whose] += 1
            return free

    def leave(self, whose: str) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[whose] -= 1
            self._taken += Counter()  # forgets whose count is 0


class Places:
    """How many threads may wait for clients; the others are kept for all who keep nobody waiting.

    Who waits long to read has not the place of who waits long to write, and a fifth is left for who waits a little.
    With `shared` an address has half of each; behind a proxy all have the same.
    """

    def __init__(self, threads: int, *, shared: bool = True) -> None:
        most = max(1, threads - max(2, threads // 8))
        self.all = Pool(most, shared=shared)
        self.reading = Pool(max(1, most * 2 // 5), shared=shared)
        self.writing = Pool(max(1, most * 2 // 5), shared=shared)


class _Turn:
    """The client's turn to send, or to take: waiting for it uses up its seconds, what it moves gives them back."""

    def __init__(self, patience: Patience, pool: Pool, event: int) -> None:
        self.pool = pool
        self.event = event
        self.free_s = _FREE_S
        self.moment_s = _MOMENT_S
        self.left_s = patience.timeout_s
        self._patience = patience

    def wait(self, poll: select.poll, seconds: float) -> bool:
        """Wait for the client for so long, and no longer than it has; say whether it is there."""
        began = time.monotonic()
        found = poll.poll(max(0.0, min(seconds, self.left_s)) * 1000)
        waited_s = time.monotonic() - began
        self.left_s -= waited_s
        self.free_s -= waited_s
        self.moment_s -= waited_s
        return bool(found)

    def moved(self, count: int) -> None:
        """Note that the client sent or took so many bytes."""
        rate = self._patience.bytes_per_s
        earned_s = count / rate if rate else self._patience.timeout_s
        self.left_s = min(self._patience.timeout_s, self.left_s + earned_s)


class _Full(Exception):
    """There is no place to wait for this client, in this pool."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool


class PacedSocket(socket.socket):
    """A socket on which a request is read and answered by a thread, in blocking mode.

    Between `begin` and `end` a thread that has to wait for the client takes one of all `places`, and one of those to
    read or to write where it waits for long. It keeps them until its body was read, or until the end; where all are
    taken a client is waited for a moment.
    """

    def __init__(self, accepted: socket.socket, address: object, places: Places, patience: Patience) -> None:
        super().__init__(fileno=accepted.detach())
        self.gave_up = ""
        """Why the client did not get all of its answer; what is still to be sent is of no use then."""
        self._whose = _whose(address)
        self._places = places
        self._held: set[Pool] = set()
        self._patience = patience
        self.begin()

    def begin(self, *, hurried: bool = False) -> None:
        """Begin with another request, for which the client has its time anew; a `hurried` one has a moment only."""
        self._hurried = hurried
        self._reading = _Turn(self._patience, self._places.reading, select.POLLIN)
        self._writing = _Turn(self._patience, self._places.writing, select.POLLOUT)

    def end(self) -> None:
        """End with a request, or with its body: nothing is waited for any more."""
        while self._held:
            self._held.pop().leave(self._whose)

    def recv_now(self, size: int) -> bytes:
        """Receive what is there, in non-blocking mode."""
        return super().recv(size)

    def send_now(self, data: bytes) -> None:
        """Send what the kernel takes, in non-blocking mode."""
        super().send(data)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive; raises `BodyTooSlow` and `TooManyUploads`.

        `TimeoutError` where the socket has a timeout: so gunicorn reads what was left unread, which keeps no thread.
        """
        if not _poll(self, select.POLLIN).poll(0):
            if self.gettimeout() is not None:
                raise TimeoutError
            try:
                if not self._wait(self._reading):
                    raise BodyTooSlow(_too_slow(self._patience))
            except _Full as full:
                raise TooManyUploads(_too_many(full.pool), retry_after_s=_RETRY_S) from None
        data = super().recv(size, flags)
        self._reading.moved(len(data))
        return data

    def send(self, data: "ReadableBuffer", flags: int = 0, /) -> int:
        """Send all, as `sendall` does."""
        self.sendall(data, flags)
        return memoryview(data).nbytes

    def sendall(self, data: "ReadableBuffer", flags: int = 0, /) -> None:
        """Send; raises `ConnectionResetError` where the client does not take it."""
        rest = memoryview(data).cast("B")
        while rest:
            try:
                sent = super().send(rest, flags | socket.MSG_DONTWAIT)
            except BlockingIOError:
                if self._is_taken():
                    continue
                raise ConnectionResetError(errno.ECONNRESET, self.gave_up) from None
            self._writing.moved(sent)
            rest = rest[sent:]

    def _is_taken(self) -> bool:
        try:
            if not self._wait(self._writing):
                self.gave_up = "it was not taken within HEATLENS_CLIENT_TIMEOUT_S, or too slowly"
        except _Full as full:
            self.gave_up = (
                f"it is taken slowly, and so are others: {full.pool.limit} threads, and "
                f"{full.pool.share} for one address, may wait for that (HEATLENS_THREADS)"
            )
        return not self.gave_up

    def _wait(self, turn: _Turn) -> bool:
        """Wait for the client, a moment without a place; raises `_Full`."""
        poll = _poll(self, turn.event)
        if not (self._hurried or self._take(self._places.all)):
            if turn.moment_s > 0 and turn.wait(poll, turn.moment_s):
                return True
            raise _Full(self._places.all)
        if turn.free_s > 0 and turn.pool not in self._held:
            if turn.wait(poll, turn.free_s):
                return True
            if turn.left_s <= 0:
                return False
        if self._hurried or not self._take(turn.pool):
            raise _Full(turn.pool)
        return turn.wait(poll, turn.left_s)

    def _take(self, pool: Pool) -> bool:
        if pool not in self._held and pool.take(self._whose):
            self._held.add(pool)
        return pool in self._held

    def sendfile(self, file: "_SendableFile", offset: int = 0, count: int | None = None) -> int:
        """Send a file; raises as `sendall` does."""
        file.seek(offset)
        sent = 0
        while piece := file.read(_FILE_BYTES if count is None else min(_FILE_BYTES, count - sent)):
            self.sendall(piece)
            sent += len(piece)
        return sent


def _whose(address: object) -> str:
    """Return whose places a client takes: those of its address, or, in IPv6, of the network that one customer has."""
    host = str(address[0]) if isinstance(address, tuple) else ""
    try:
        number = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if number.version == 4 or number.ipv4_mapped:
        return host
    return str(ipaddress.ip_network((number, 64), strict=False))


def _poll(connection: socket.socket, event: int) -> select.poll:
    poll = select.poll()  # `select.select` knows no descriptor above 1023
    poll.register(connection, event)
    return poll


def _too_many(pool: Pool) -> str:
    return (
        f"This body comes slowly, and so do others: {pool.limit} threads of this worker, and {pool.share} for one "
        f"address, may wait for that (a part of HEATLENS_THREADS); try again in {_RETRY_S} s."
    )


def _too_slow(patience: Patience) -> str:
    return (
        f"No more of the body came for {patience.timeout_s:g} s (HEATLENS_CLIENT_TIMEOUT_S), or less than "
        f"{patience.bytes_per_s} bytes per second (HEATLENS_MIN_BODY_BYTES_PER_S)."
    )
