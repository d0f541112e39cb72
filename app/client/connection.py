"""One server, and how it says no."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ConfigDict

Picture = str | Path | bytes
"""Where a picture lies, or what is in it."""
Body = Callable[[], Any]
"""Makes what is sent: again for each try, since what was streamed once is gone."""

LONGEST_WAIT_S = 60.0
"""A server that wants more patience than this is not asked again."""
_FIRST_WAIT_S = 1.0
_KEY = re.compile(r"[!-~]+")
_SERVICE_UNAVAILABLE = 503

Answer = TypeVar("Answer", bound=BaseModel)


class HeatLensError(Exception):
    """The server refused, or could not be reached.

    `code` is stable, see `/docs/errors` of the server; it is `unreachable` where there was no answer at all, also where
    the address is none, and `bad_answer` where it was none of HeatLens's. `status` is that of HTTP, None without an
    answer; `field` the option at fault. `facts` are all members of the problem.
    """

    def __init__(self, code: str, detail: str, *, status: int | None = None, facts: Mapping[str, Any] | None = None):
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.facts = dict(facts or {})
        self.request_id: str | None = self.facts.get("request_id")
        self.field: str | None = self.facts.get("field")

    def __str__(self) -> str:
        return f"{self.detail} ({self.code}{f', {self.status}' if self.status else ''})"


class _Problem(BaseModel):
    """What is needed of a problem, as any version of the server answers it."""

    model_config = ConfigDict(extra="allow")

    code: str
    detail: str
    request_id: str | None = None
    field: str | None = None


class Connection:
    """Requests to one server. One that is busy or still loads (503) is asked again when it says, `tries` times."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        tries: int,
        api_key: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url.rstrip("/")
        self._tries = tries
        self._sleep = sleep
        try:
            self._http = httpx2.Client(base_url=self.url, timeout=timeout_s, headers=_key_header(api_key))
        except httpx2.InvalidURL as error:
            raise HeatLensError("unreachable", f"{self.url[:200]!r} is no server's address: {error}") from error

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def read(self, answer: type[Answer], method: str, path: str, **asked: Any) -> Answer:
        """Ask, and return the JSON answer; members that this client does not know yet are left out."""
        content = self.ask(method, path, **asked)
        try:
            return answer.model_validate_json(content, extra="ignore")
        except ValueError as error:
            msg = f"{self.url}{path} did not answer as HeatLens does: {error}"
            raise HeatLensError("bad_answer", msg) from error

    def ask(self, method: str, path: str, **asked: Any) -> bytes:
        """Ask, and return the body of the answer."""
        with self.stream(method, path, **asked) as response:
            return response.read()

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        options: Mapping[str, object] | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx2.Response]:
        """Ask, and lend the answer while it comes. Raises `HeatLensError`."""
        try:
            for tried in range(1, self._tries + 1):
                content = None if body is None else body()
                asked = self._http.build_request(
                    method, path, params=_query(options or {}), content=content, headers=headers
                )
                response = self._http.send(asked, stream=True)
                wait_s = _wait_s(response)
                if tried == self._tries or wait_s is None:
                    break
                response.close()
                self._sleep(wait_s)
            try:
                _require_success(response)
                yield response
            finally:
                response.close()
        except httpx2.DecodingError as error:
            raise HeatLensError("bad_answer", f"{self.url}{path} answered what cannot be decoded: {error}") from error
        except (
            httpx2.TransportError,
            httpx2.InvalidURL,
            UnicodeError,
        ) as error:  # UnicodeError: the host's name is none
            msg = f"{self.url} did not answer: {error or type(error).__name__}"
            raise HeatLensError("unreachable", msg) from error


def _key_header(api_key: str | None) -> dict[str, str]:
    if api_key is None:
        return {}
    if not _KEY.fullmatch(api_key):
        raise ValueError("the API key has characters, such as a line's end, that no key has")  # which is not told
    return {"Authorization": f"Bearer {api_key}"}


def bytes_of(picture: Picture) -> bytes:
    """Return what is in a picture's file."""
    return picture if isinstance(picture, bytes) else Path(picture).read_bytes()


def _query(options: Mapping[str, object]) -> list[tuple[str, str | int | float | bool | None]]:
    """Return options as the query has them: a list is repeated, None is left out."""
    return [
        (name, str(one).lower() if isinstance(one, bool) else str(one))
        for name, value in options.items()
        if value is not None
        for one in (value if isinstance(value, list | tuple) else [value])
    ]


def _wait_s(response: httpx2.Response) -> float | None:
    """Return after how many seconds to ask again; None: this answer is the last word."""
    told = response.headers.get("Retry-After")
    if response.status_code != _SERVICE_UNAVAILABLE or told is None:
        return None
    try:
        wait_s = float(told)
    except ValueError:  # a date, which HeatLens does not send
        wait_s = _FIRST_WAIT_S
    return wait_s if 0 <= wait_s <= LONGEST_WAIT_S else None


def _require_success(response: httpx2.Response) -> None:
    if response.is_success:
        return
    content = response.read()
    try:
        problem = _Problem.model_validate_json(content)
    except ValueError:  # a proxy's page, say
        msg = f"{response.url} answered {response.status_code} {response.reason_phrase}."
        raise HeatLensError("bad_answer", msg, status=response.status_code) from None
    facts = problem.model_dump(exclude_unset=True)
    raise HeatLensError(problem.code, problem.detail, status=response.status_code, facts=facts)
