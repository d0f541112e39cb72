"""Jobs: many pictures at once, explained by the server's workers."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from app.client.connection import Connection
from app.client.uploads import Form
from app.schemas.jobs import ItemAnswer, ItemList, JobAnswer, JobList, job_path

_OVER = frozenset({"succeeded", "completed_with_errors", "failed", "cancelled"})
_PAGE = 1000
_KINDS = {".zip": "results.zip", ".ndjson": "results.ndjson"}


class Jobs:
    """The jobs of a server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self,
        pictures: Iterable[str | Path] | None = None,
        *,
        archive: str | Path | None = None,
        source: str | None = None,
        **options: Any,
    ) -> "Job":
        """Have pictures explained: files, or a zip or tar of them, or what the server finds at a source.

        The options are those of `POST /v1/jobs`, and the method's own. Files are sent as they are read, so there may
        be any number of them. A request that is sent again makes no second job.
        """
        if sum(given is not None for given in (pictures, archive, source)) != 1:
            raise TypeError("give one of pictures, archive and source")
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        asked: dict[str, Any] = {"options": options | ({"source": source} if source else {}), "headers": headers}
        if source is None:
            files = [("archive", archive)] if archive is not None else [("image", path) for path in pictures or ()]
            form = Form([(part, Path(path)) for part, path in files])
            asked |= {"headers": headers | form.headers, "body": form.pieces}
        return Job(self._connection, self._connection.read(JobAnswer, "POST", "/v1/jobs", **asked))

    def get(self, job_id: str) -> "Job":
        """Return the job of an id."""
        return Job(self._connection, self._connection.read(JobAnswer, "GET", job_path(job_id)))

    def __iter__(self) -> Iterator["Job"]:
        """Yield this client's jobs, the newest first."""
        cursor = None
        while True:
            page = self._connection.read(JobList, "GET", "/v1/jobs", options={"cursor": cursor})
            yield from (Job(self._connection, job) for job in page.jobs)
            if (cursor := page.next) is None:
                return


class Job:
    """A job of a server; `facts` is how far it was when it was last looked at."""

    def __init__(self, connection: Connection, facts: JobAnswer) -> None:
        self._connection = connection
        self.facts = facts

    def __repr__(self) -> str:
        progress = self.facts.progress
        return f"<Job {self.id}, {self.status}, {progress.done} of {progress.total}>"

    @property
    def id(self) -> str:
        """What the server calls it."""
        return self.facts.id

    @property
    def status(self) -> str:
        """Where it stood when it was last looked at."""
        return self.facts.status

    def refresh(self) -> Self:
        """Look how far it is."""
        return self._now("GET", "")

    def wait(
        self,
        progress: Callable[[JobAnswer], object] | None = None,
        *,
        timeout_s: float | None = None,
        poll_s: float = 1.0,
    ) -> Self:
        """Return when the job is over; `progress` is called with its facts at first, and when they changed.

        Raises `TimeoutError` if that takes longer than `timeout_s`; the job goes on then.
        """
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        told: JobAnswer | None = None
        while True:
            self.refresh()
            if progress is not None and self.facts != told:
                progress(self.facts)
                told = self.facts
            if self.status in _OVER:
                return self
            if ends is not None and time.monotonic() + poll_s > ends:
                raise TimeoutError(f"job {self.id} is {self.status} after {timeout_s:g} s")
            time.sleep(poll_s)

    def items(self, **filters: Any) -> Iterator[ItemAnswer]:
        """Yield its pictures with what was found, in its order; see `GET /v1/jobs/{id}/items` for the filters."""
        cursor = None
        while True:
            asked = {"limit": _PAGE, **filters, "cursor": cursor}
            page = self._connection.read(ItemList, "GET", f"{job_path(self.id)}/items", options=asked)
            yield from page.items
            if (cursor := page.next) is None:
                return

    def overlay(self, number: int, *, target: int = 0) -> bytes:
        """Return a picture with the heat of one target over it."""
        path = f"{job_path(self.id)}/items/{number}/overlay"
        return self._connection.ask("GET", path, options={"target": target})

    def download(self, path: str | Path) -> Path:
        """Write the results, and return the path: `.zip` has the files of all pictures, `.ndjson` a line for each."""
        path = Path(path)
        if path.suffix not in _KINDS:
            raise ValueError(f"results are .zip or .ndjson, not {path.suffix!r}")
        temporary = path.with_name(f".{path.name}.new")
        try:
            with (
                self._connection.stream("GET", f"{job_path(self.id)}/{_KINDS[path.suffix]}") as response,
                open(temporary, "wb") as file,
            ):
                for piece in response.iter_bytes():
                    file.write(piece)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return path

    def cancel(self) -> Self:
        """Stop it: what waits never starts."""
        return self._now("POST", "/cancel")

    def retry(self) -> Self:
        """Have the pictures that failed explained again, and those that a cancelled job left out."""
        return self._now("POST", "/retry")

    def delete(self) -> None:
        """Delete it with its pictures and results."""
        self._connection.ask("DELETE", job_path(self.id))

    def _now(self, method: str, action: str) -> Self:
        self.facts = self._connection.read(JobAnswer, method, f"{job_path(self.id)}{action}")
        return self
