"""A siege: the capacity is measured, then a part of it is asked for, evenly and for long, while faults happen."""

import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.app.siege.faults import Fault, Faults
from tests.app.siege.server import Fortress, fortress
from tests.app.siege.visits import Sent, Visit, Visitor
from tests.app.siege.watching import Life, Watch

CLIENTS = 64
_HURRIED = 8
"""Clients that ask one after the other while the capacity is measured: enough to keep two workers busy."""
_SETTLES_S = 300
_UNDER_WAY = "heatlens_pending", "heatlens_job_pictures_waiting"


@dataclass(frozen=True)
class Plan:
    """How long and how hard. The same seed asks the same, and does the same harm at the same times."""

    minutes: float = 30.0
    share: float = 0.7
    """Of the capacity."""
    seed: int = 1
    capacity_s: float = 30.0
    warm_s: float = 60.0
    """A process's youth, in which it may grow."""
    fault_every_s: float = 60.0
    look_every_s: float = 2.0
    judges_speed: bool = True
    """Whether the slowest answers of the first and the last third are compared: a short siege is nearly all faults."""


@dataclass
class Story:
    """What happened. Times are of `time.monotonic`."""

    plan: Plan
    capacity: float = 0.0
    """Requests per second."""
    began: float = 0.0
    ended: float = 0.0
    visits: list[Visit] = field(default_factory=list)
    fault_visits: list[Visit] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lives: dict[int, Life] = field(default_factory=dict)
    before: dict[int, Life] = field(default_factory=dict)
    after: dict[int, Life] = field(default_factory=dict)
    """What the processes held when idle: after the capacity was measured, and in the end."""
    logged: Counter[str] = field(default_factory=Counter)
    """How often the server wrote down an answer to each request."""
    jobs_accepted: int = 0
    jobs_finished: int = 0
    wrong_jobs: list[str] = field(default_factory=list)
    busy_gauges: list[str] = field(default_factory=list)
    """Metrics that count what is under way, and are not 0 when nothing is."""
    half_written: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    exit_code: int = -1

    def in_trouble(self, visit: Visit) -> list[Fault]:
        """The faults during which a visit was under way."""
        return [fault for fault in self.faults if visit.due < fault.ended and fault.began < visit.ended]


class _Siege:
    def __init__(self, plan: Plan, server: Fortress) -> None:
        self._plan = plan
        self._server = server
        self._visitor = Visitor(server.address)
        self._numbers = count(plan.seed * 1_000_000)
        self._chance = random.Random(plan.seed)  # noqa: S311 - a choice that can be repeated
        self.story = Story(plan)

    def run(self) -> Story:
        story = self.story
        story.capacity = self._capacity()
        faults = Faults(self._server, self._visitor, self._chance)
        faults.warm()
        story.before = self._idle()
        with Watch(self._server, self._plan.look_every_s) as watch:
            story.began = time.monotonic()
            self._load(faults)
            story.ended = time.monotonic()
        story.lives, story.faults, story.fault_visits = watch.lives, faults.done, faults.visits
        self._settle()
        story.after = self._idle()
        story.half_written = self._server.half_written()
        return story

    def _capacity(self) -> float:
        """Return how many requests a second are answered when some clients ask as fast as they can."""
        ends = time.monotonic() + self._plan.capacity_s

        def ask(_client: int) -> int:
            done = 0
            while time.monotonic() < ends:
                self._visitor.pay(next(self._numbers), time.monotonic(), hurried=True)
                done += 1
            return done

        began = time.monotonic()
        with ThreadPoolExecutor(_HURRIED) as clients:
            done = sum(clients.map(ask, range(_HURRIED)))
        return done / (time.monotonic() - began)

    def _idle(self) -> dict[int, Life]:
        """Wait until nothing is under way, and look at all processes."""
        deadline = time.monotonic() + _SETTLES_S
        while (busy := self._busy()) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.story.busy_gauges = busy
        watch = Watch(self._server, 0)
        watch.look()
        return watch.lives

    def _load(self, faults: Faults) -> None:
        """Send each request when its time has come, whether or not those before were answered, until all was done."""
        seconds = 60 * self._plan.minutes
        over = threading.Event()
        harm = threading.Thread(target=self._harm, args=(faults, over))
        care = threading.Thread(target=self._look_after_jobs, args=(over,))
        harm.start()
        care.start()
        due, ends = time.monotonic(), time.monotonic() + seconds
        with ThreadPoolExecutor(CLIENTS) as clients:
            paid = []
            while True:
                due += self._chance.expovariate(self._plan.share * self.story.capacity)
                if due > ends and not faults.missing:
                    break
                time.sleep(max(0.0, due - time.monotonic()))
                paid.append(clients.submit(self._visitor.pay, next(self._numbers), due))
            self.story.visits = [visit.result() for visit in paid]
        over.set()
        harm.join()
        care.join()

    def _harm(self, faults: Faults, over: threading.Event) -> None:
        chance = random.Random(self._plan.seed + 1)  # noqa: S311 - the pauses do not depend on what the faults choose
        half = time.monotonic() + 30 * self._plan.minutes
        while not over.wait(chance.uniform(0.5, 1.5) * self._plan.fault_every_s):
            faults.one(restart=time.monotonic() < half)

    def _look_after_jobs(self, over: threading.Event) -> None:
        for number in count():
            if over.wait(0.5):
                return
            self._look_after_a_job(f"job-{number}")

    def _look_after_a_job(self, name: str) -> None:
        wrong = self._visitor.look_after_a_job(name)
        self.story.wrong_jobs += [wrong] if wrong else []

    def _settle(self) -> None:
        """Have all jobs end, and nothing under way."""
        deadline = time.monotonic() + _SETTLES_S
        for number in count():
            if not self._visitor.jobs or time.monotonic() > deadline:
                break
            self._look_after_a_job(f"last-job-{number}")
            time.sleep(0.05)
        self.story.wrong_jobs += [f"job {job_id} never ended" for job_id in self._visitor.jobs]
        self.story.jobs_finished = self._visitor.finished_jobs
        self.story.jobs_accepted = self._visitor.finished_jobs + len(self._visitor.jobs)

    def _busy(self) -> list[str]:
        _, body = self._visitor.ask(f"metrics-{next(self._numbers)}", Sent("GET", "/metrics"))
        return [
            line for line in body.decode().splitlines() if line.startswith(_UNDER_WAY) and float(line.rsplit(" ", 1)[1])
        ]


def besiege(plan: Plan, folder: Path) -> Story:
    """Do it all, with a server of its own in an empty folder, and return what happened."""
    with fortress(folder) as server:
        siege = _Siege(plan, server)
        story = siege.run()
        story.exit_code = server.stop()
        story.logged, story.tracebacks = _read(server.log())
    return story


def _read(log: str) -> tuple[Counter[str], list[str]]:
    """Return how often each request was answered, and the lines that tell of what nobody expected."""
    answered: Counter[str] = Counter()
    unexpected = []
    for line in log.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            unexpected.append(line)
            continue
        if said.get("logger") == "app.telemetry":
            answered[said["request_id"]] += 1
        if "exception" in said:
            unexpected.append(f"{said['event']}: {said['exception'].splitlines()[-1]}")
    return answered, unexpected
