"""What is done to a server while it works: each fault returns when its trouble is over, and is written down."""

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass

from tests.app.jobs.crew import kill
from tests.app.siege.server import QUEUE_TOTAL, THREADS, WEB_WORKERS, Fortress, until
from tests.app.siege.visits import Sent, Visit, Visitor
from tests.app.soaking import picture

_HEALS_S = 300
_SETTLES_S = 3.0
"""What had to wait during a fault is answered so long after it."""
KILLS, RESTART = "web worker killed", "rolling restart"


@dataclass(frozen=True)
class Fault:
    """What was done, from when to when others could notice (`time.monotonic`), and how long it took to heal."""

    name: str
    began: float
    ended: float
    healed_s: float


class Faults:
    """Does harm to one server, in an order that the seed gives; visits that are part of it are kept too."""

    def __init__(self, server: Fortress, visitor: Visitor, chance: random.Random) -> None:
        self._server = server
        self._visitor = visitor
        self._chance = chance
        self.done: list[Fault] = []
        self.visits: list[Visit] = []
        self._ways: dict[str, Callable[[], None]] = {
            KILLS: self._kill_web,
            "job worker killed": self._kill_job_worker,
            RESTART: self._restart,
            "full queue": self._flood,
            "database locked": self._lock,
            "clients disconnect": self._storm,
        }
        self._order: list[str] = []
        self._asked = 0

    @property
    def missing(self) -> set[str]:
        """What was not done yet."""
        return set(self._ways) - {fault.name for fault in self.done}

    def warm(self) -> None:
        """Have every thread of all web workers work once: with the database locked, each writer keeps one."""
        with ThreadPoolExecutor(1) as beside:
            with self._locked():
                writers = beside.submit(self._together, 2 * WEB_WORKERS * THREADS, "many writers", self._keep)
                time.sleep(_SETTLES_S)
            writers.result()

    def _keep(self) -> Sent:
        return Sent("POST", "/v1/images", picture(3), right=frozenset({200, 201, 503}))

    def one(self, *, restart: bool = True) -> None:
        """Do the next fault: each once, in random order, then again; all `restart` again only where that is wanted."""
        if not self._order:
            self._order = self._chance.sample(list(self._ways), len(self._ways))
        name = self._order.pop()
        if name not in self.missing and name == RESTART and not restart:
            return
        began = time.monotonic()
        self._ways[name]()
        healed = time.monotonic()
        self.done.append(Fault(name, began, healed + _SETTLES_S, healed - began))

    def _kill_web(self) -> None:
        """Kill the youngest, so that one worker lives long enough to show what it gathers."""
        before = self._server.loads()
        victim = self._server.web()[-1]
        kill(victim)
        self._await_web(without={victim}, loads=before + 1)

    def _restart(self) -> None:
        before, old = self._server.loads(), set(self._server.web())
        os.kill(self._server.master, signal.SIGHUP)
        self._await_web(without=old, loads=before + WEB_WORKERS)

    def _await_web(self, without: set[int], loads: int) -> None:
        def whole() -> bool:
            now = self._server.web()
            return len(now) == WEB_WORKERS and without.isdisjoint(now) and self._server.loads() >= loads

        until(whole, _HEALS_S, "all workers are there again")

    def _kill_job_worker(self) -> None:
        """Kill it where it works; another is there when the supervisor has begun one."""
        victims = set(self._server.job_workers())
        for victim in victims:
            kill(victim)
        until(lambda: set(self._server.job_workers()) - victims, _HEALS_S, "another worker for jobs is there")

    def _flood(self) -> None:
        """Ask for more than all queues hold, at once, with work that keeps the models busy."""
        many = 2 * WEB_WORKERS * QUEUE_TOTAL
        sent = Sent("POST", "/v1/explain", picture(1), right=frozenset({200, 503}))
        self._together(many, "full queue", lambda: sent)

    def _storm(self) -> None:
        """Many who begin to send and leave."""
        leave = Sent("POST", "/v1/explain", picture(2), sends=0.5, leaves_after_s=0.0)
        self._together(100, "clients disconnect", lambda: leave)

    def _together(self, many: int, kind: str, sent: Callable[[], Sent]) -> None:
        gate = threading.Barrier(many)

        def one(number: int) -> Visit:
            gate.wait()
            began = time.monotonic()
            visit, _ = self._visitor.ask(f"fault-{number}", sent())
            facts = {"kind": kind, "due": began, "ended": time.monotonic(), "id": f"fault-{number}"}
            return Visit(**{**vars(visit), **facts})

        with ThreadPoolExecutor(many) as threads:
            self.visits += threads.map(one, range(self._asked, self._asked + many))
        self._asked += many

    def _lock(self) -> None:
        with self._locked():
            time.sleep(self._chance.uniform(2, 8))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of whoever writes, as a backup or a slow disk does."""
        with closing(sqlite3.connect(self._server.data / "jobs.db", timeout=60)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.rollback()
