"""What the clients of a siege ask, each in its own way, and what is a right answer. The same number asks the same."""

import json
import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from tests.app.soaking import picture

CORPUS = Path(__file__).parents[2] / "corpus"
"""Hostile files; any file there is sent."""
_LIMIT_S = 120
_WATCH_S = 3.0
_PAUSE_S = 0.2
_SILENT_S = 12.0
_JOB_PICTURES = 3
_IDLERS = 5
"""Kinds of clients, the last ones, that keep the server less busy than they could."""
_GOOD = (
    {"method": "gradcam"},
    {"method": "gradcam", "target": "top3", "format": "json"},
    {"method": "gradcam", "target": "tabby", "view": "side_by_side", "legend": "true"},
    {"method": "gradcam++", "format": "npy"},
    {"method": "layercam", "target": "1", "versus": "2", "format": "png"},
    {"method": "saliency", "target": "3", "format": "webp"},
    {"method": "smoothgrad", "samples": "4"},
    {"method": "integrated_gradients", "steps": "8", "format": "npz"},
    {"method": "eigencam", "view": "heatmap"},
)
_BAD = (
    {"method": "nonsense"},
    {"alpha": "7"},
    {"target": "dogfish shark of nowhere"},
    {"target": "1000000"},
    {"layer": "nowhere"},
    {"colour": "red"},
    {"method": "rise", "samples": "1000000"},
)
_PAGES = ("/", "/batch", "/healthz", "/readyz", "/v1/methods", "/v1/models", "/v1/jobs", "/metrics", "/openapi.json")
_OK, _REFUSED = frozenset({200}), frozenset({400, 413, 415, 422})
LEFT, BROKEN = 0, -1
"""In the place of a status: the client has left, as it wanted to; the connection has ended without an answer."""


@dataclass(frozen=True)
class Visit:
    """What came of one request. Times are of `time.monotonic`; waiting counts from when it was due."""

    name: str
    kind: str
    due: float
    ended: float
    status: int
    right: bool
    why: str = ""
    told_when: bool = False
    """Whether the answer says when to come again."""
    id: str = ""

    @property
    def took_s(self) -> float:
        return self.ended - self.due


@dataclass
class Sent:
    """A request on the wire, and how its client behaves."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    right: frozenset[int] = _OK
    pieces: int = 1
    pause_s: float = 0.0
    sends: float = 1.0
    leaves_after_s: float | None = None


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    told_when: bool = False
    why: str = ""


def exchange(address: tuple[str, int], name: str, sent: Sent) -> Answer:
    """Send a request on a connection of its own, and return the one answer to it."""
    connection = HTTPConnection(*address, timeout=_LIMIT_S)
    try:
        connection.connect()
        _send(connection, name, sent)
        if sent.leaves_after_s is not None:
            time.sleep(sent.leaves_after_s)
            return Answer(LEFT)
        return _receive(connection)
    except (OSError, HTTPException) as error:
        gone = sent.leaves_after_s is not None
        return Answer(LEFT) if gone else Answer(BROKEN, why=f"{type(error).__name__}: {error}")
    finally:
        connection.close()


def _send(connection: HTTPConnection, name: str, sent: Sent) -> None:
    connection.putrequest(sent.method, sent.path)
    head = {"Connection": "close", "X-Request-Id": name, **sent.headers}
    if sent.body or sent.method == "POST":
        head = {"Content-Type": "application/octet-stream", "Content-Length": str(len(sent.body)), **head}
    for key, value in head.items():
        connection.putheader(key, value)
    connection.endheaders()
    body = sent.body[: int(sent.sends * len(sent.body))]
    step = max(1, -(-len(body) // sent.pieces))
    for start in range(0, len(body), step):
        time.sleep(sent.pause_s)
        connection.send(body[start : start + step])


def _receive(connection: HTTPConnection) -> Answer:
    wire: socket.socket = connection.sock
    answer = connection.getresponse()
    body = answer.read()
    rest = wire.recv(1) if wire.fileno() >= 0 else b""
    why = f"a second answer: {rest!r}" if rest else ""
    return Answer(answer.status, body, answer.getheader("Retry-After") is not None, why)


class Visitor:
    """Pays visits to one server; knows which jobs were made."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.jobs: list[str] = []
        """Accepted ones, which nobody has looked after yet."""
        self.finished_jobs = 0
        self._ways: dict[str, tuple[int, Callable[[str, random.Random], Visit]]] = {
            "good": (50, self._good),
            "bad option": (8, self._bad),
            "no picture": (3, self._nothing),
            "damaged picture": (4, self._damaged),
            "hostile file": (6, self._hostile),
            "page": (9, self._page),
            "expired": (2, self._expired),
            "embed link": (3, self._link),
            "job": (2, self._job),
            "silent client": (3, self._silent),
            "slow client": (4, self._slow),
            "abandoned": (4, self._abandoned),
            "half sent": (3, self._half),
            "watched job": (2, self._watched),
        }

    @property
    def kinds(self) -> list[str]:
        return list(self._ways)

    def pay(self, number: int, due: float, *, hurried: bool = False) -> Visit:
        """Pay the visit of this number; `hurried` clients neither dawdle nor leave, so that they load the server."""
        chance = random.Random(number)  # noqa: S311 - a choice that can be repeated
        ways = list(self._ways)[:-_IDLERS] if hurried else list(self._ways)
        kind = chance.choices(ways, [self._ways[way][0] for way in ways])[0]
        visit = self._ways[kind][1](f"visit-{number}", chance)
        return Visit(**{**vars(visit), "kind": kind, "due": due, "ended": time.monotonic(), "id": f"visit-{number}"})

    def ask(self, name: str, sent: Sent) -> tuple[Visit, bytes]:
        """Send something, and return how it went with what was answered."""
        answer = exchange(self.address, name, sent)
        allowed = answer.status in sent.right or (answer.status == LEFT and sent.leaves_after_s is not None)
        right = allowed and not answer.why
        why = answer.why or ("" if allowed else answer.body[:200].decode(errors="replace"))
        return Visit(name, "", 0.0, 0.0, answer.status, right, why, answer.told_when), answer.body

    def _explain(self, name: str, chance: random.Random, options: dict[str, str], **rest: object) -> Visit:
        sent = Sent("POST", f"/v1/explain?{urlencode(options)}", picture(chance.randrange(1000)))
        for key, value in rest.items():
            setattr(sent, key, value)
        return self.ask(name, sent)[0]

    def _good(self, name: str, chance: random.Random) -> Visit:
        return self._explain(name, chance, chance.choice(_GOOD))

    def _bad(self, name: str, chance: random.Random) -> Visit:
        return self._explain(name, chance, chance.choice(_BAD), right=frozenset({422}))

    def _nothing(self, name: str, chance: random.Random) -> Visit:
        nothing = chance.choice([b"", b"nonsense", b"<svg/>"])
        return self._explain(name, chance, {}, body=nothing, right=frozenset({400, 415}))

    def _damaged(self, name: str, chance: random.Random) -> Visit:
        whole = picture(chance.randrange(1000))
        return self._explain(name, chance, {}, body=whole[: len(whole) // 3], right=frozenset({422}))

    def _hostile(self, name: str, chance: random.Random) -> Visit:
        files = hostile_files()
        data = chance.choice(files).read_bytes() if files else chance.randbytes(2000)
        return self._explain(name, chance, {}, body=data, right=_OK | _REFUSED)

    def _page(self, name: str, chance: random.Random) -> Visit:
        return self.ask(name, Sent("GET", chance.choice(_PAGES)))[0]

    def _expired(self, name: str, chance: random.Random) -> Visit:
        late = {"X-Request-Deadline-S": "0.001"}
        options = {"method": "rise", "samples": "64"}
        return self._explain(name, chance, options, headers=late, right=frozenset({504}))

    def _slow(self, name: str, chance: random.Random) -> Visit:
        return self._explain(name, chance, {}, pieces=chance.randrange(3, 12), pause_s=_PAUSE_S)

    def _silent(self, _name: str, chance: random.Random) -> Visit:
        """Begin a request, and say no more: the server may hang up when it likes, or say that it does."""
        begun = b"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-"
        with socket.create_connection(self.address, timeout=_LIMIT_S) as connection:
            connection.sendall(begun[: chance.randrange(len(begun))])
            connection.settimeout(_SILENT_S)
            with suppress(OSError):
                said = connection.recv(4096)
                return Visit(
                    "", "", 0.0, 0.0, LEFT, not said or said.split()[1] in (b"408", b"503"), said[:100].decode()
                )
        return Visit("", "", 0.0, 0.0, LEFT, right=True)

    def _abandoned(self, name: str, chance: random.Random) -> Visit:
        options = {"method": "rise", "samples": "400"}
        return self._explain(name, chance, options, leaves_after_s=chance.uniform(0.0, 0.5))

    def _half(self, name: str, chance: random.Random) -> Visit:
        return self._explain(name, chance, {}, sends=0.5, leaves_after_s=chance.uniform(0.0, 2.0))

    def _link(self, name: str, chance: random.Random) -> Visit:
        path = "/v1/embed-links?lifetime_s=60"
        made, body = self.ask(name, Sent("POST", path, picture(chance.randrange(1000)), right=frozenset({201})))
        if not made.right or made.status != 201:
            return made
        shown = urlsplit(json.loads(body)["urls"]["image"]).path
        return self.ask(f"{name}-shown", Sent("GET", shown))[0]

    def _job(self, name: str, chance: random.Random) -> Visit:
        pictures = [picture(chance.randrange(1000)) for _ in range(_JOB_PICTURES)]
        kind, form = _form(pictures)
        visit, body = self.ask(name, Sent("POST", "/v1/jobs", form, {"Content-Type": kind}, right=frozenset({202})))
        if visit.status == 202:
            self.jobs.append(json.loads(body)["id"])
        return visit

    def _watched(self, name: str, chance: random.Random) -> Visit:
        if not (jobs := list(self.jobs)):
            return self._page(name, chance)
        path = f"/v1/jobs/{chance.choice(jobs)}/events"
        # Some stay until the end, which may be long gone, and some leave before. Finished jobs are deleted meanwhile.
        leaves_after_s = chance.choice([None, chance.uniform(0.0, _WATCH_S)])
        return self.ask(name, Sent("GET", path, right=frozenset({200, 404, 503}), leaves_after_s=leaves_after_s))[0]

    def look_after_a_job(self, name: str) -> str | None:
        """If the oldest job is over, see that each picture has one result, and delete it; say what is wrong."""
        if not self.jobs:
            return None
        job_id = self.jobs[0]
        visit, body = self.ask(name, Sent("GET", f"/v1/jobs/{job_id}"))
        if visit.status != 200:
            return None  # judged as a visit of its own kind would be; the job is looked at again
        job = json.loads(body)
        if job["status"] in ("queued", "running"):
            return None
        self.jobs.remove(job_id)
        self.finished_jobs += 1
        lines = self.ask(f"{name}-lines", Sent("GET", f"/v1/jobs/{job_id}/results.ndjson"))
        numbers = [json.loads(line)["number"] for line in lines[1].splitlines()] if lines[0].status == 200 else None
        self.ask(f"{name}-delete", Sent("DELETE", f"/v1/jobs/{job_id}", right=frozenset({202, 204, 404})))
        expected = list(range(_JOB_PICTURES))
        if job["status"] != "succeeded" or (numbers is not None and sorted(numbers) != expected):
            return f"job {job_id}: {job['status']}, results of {numbers}"
        return None


def _form(pictures: list[bytes]) -> tuple[str, bytes]:
    boundary = "besieged0besieged"
    parts = [
        b'--%b\r\nContent-Disposition: form-data; name="image"; filename="%d"\r\n\r\n%b\r\n'
        % (boundary.encode(), number, data)
        for number, data in enumerate(pictures)
    ]
    return f"multipart/form-data; boundary={boundary}", b"".join(parts) + b"--%b--\r\n" % boundary.encode()


@cache
def hostile_files() -> list[Path]:
    """Return the files of the corpus, in an order that does not depend on the disk."""
    if not CORPUS.is_dir():
        return []
    return sorted(file for file in CORPUS.rglob("*") if file.is_file() and file.suffix not in (".py", ".md", ".json"))
