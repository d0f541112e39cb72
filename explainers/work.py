"""How much a method may do at once, and how it hears that nobody waits for it any more."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from explainers.errors import TooManySamples

T = TypeVar("T")


def unheard(_done: int, _total: int) -> None:
    """Tell nobody how far the work is."""


class Work:
    """The means of one call of `explain`; methods that run the model many times go through it.

    `chunk` is how many changed pictures are in memory at once, in one pass of the model: halved when memory runs
    out. `limit` is how many one picture may cost, and `limit_name` what the operator calls it. `on_step(done, total)`
    is called between passes; whatever it raises ends the work.
    """

    def __init__(
        self,
        *,
        chunk: int = 8,
        limit: int = 100_000,
        limit_name: str = "the limit",
        on_step: Callable[[int, int], None] = unheard,
    ) -> None:
        self.chunk = chunk
        self._limit = limit
        self._limit_name = limit_name
        self.on_step = on_step

    def within(self, on_step: Callable[[], None]) -> "Work":
        """Return the means of a part with steps of its own: between its passes, `on_step()` is called."""
        return Work(
            chunk=self.chunk,
            limit=self._limit,
            limit_name=self._limit_name,
            on_step=lambda _done, _total: on_step(),
        )

    def allow(self, count: int, *, field: str, because: str) -> None:
        """Raise `TooManySamples` where `count` changed pictures for one picture are too many."""
        if count > self._limit:
            msg = f"{because} takes {count} runs of the model, {self._limit_name} is {self._limit}."
            raise TooManySamples(msg, field=field, limit=self._limit)

    def steps(self, total: int, run: Callable[[range], T]) -> Iterator[T]:
        """Yield `run(range)` for consecutive ranges that cover `range(total)`.

        Where `run` finds no memory it is called again with half as many, and so are all later ones. It must give
        the same answer when it is called again.
        """
        done = 0
        while done < total:
            self.on_step(done, total)
            part = range(done, min(total, done + self.chunk))
            try:
                result = run(part)
            except RuntimeError as error:  # torch.OutOfMemoryError is one
                if len(part) == 1 or not is_out_of_memory(error):
                    raise
                self.chunk = len(part) // 2
            else:
                yield result
                done = part.stop
        self.on_step(total, total)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: the CPU's allocator and CUDA's libraries have no error class of their own."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    return any(sign in text for sign in ("DefaultCPUAllocator", "STATUS_ALLOC_FAILED"))
