"""Which of the waiting jobs run next, and together. It knows no thread, and is told the time."""

from collections.abc import Callable, Hashable
from typing import Generic

from app.engine.job import Job, P, R


class Batcher(Generic[P, R]):
    """The waiting jobs, the oldest first.

    A batch begins with the oldest job and takes others of its key, in their order, up to `size(key)`; so no key
    starves, and keys never mix.
    """

    def __init__(self, size: Callable[[Hashable], int]) -> None:
        self._size = size
        self._jobs: list[Job[P, R]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job[P, R]) -> None:
        """Let a job wait."""
        self._jobs.append(job)

    def discard(self, job: Job[P, R]) -> None:
        """Take a job away, if it still waits."""
        if job in self._jobs:
            self._jobs.remove(job)

    def clear(self) -> list[Job[P, R]]:
        """Take all jobs away, and return them."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def take(self, now: float, *, patience_ends: float) -> list[Job[P, R]]:
        """Return the next batch, full or once patience has ended; empty where there is none, or not yet.

        Jobs that are past their deadline, abandoned or answered are dropped before the batch forms.
        """
        self._jobs = [job for job in self._jobs if not job.is_lost(now)]
        if not self._jobs:
            return []
        key = self._jobs[0].key
        size = max(1, self._size(key))
        batch = [job for job in self._jobs if job.key == key][:size]
        if len(batch) < size and now < patience_ends:
            return []
        taken = set(map(id, batch))
        self._jobs = [job for job in self._jobs if id(job) not in taken]
        return batch
