"""Running the model on many changed copies of each picture, a bounded number at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from explainers.batch import Batch, at_least_float32
from explainers.gradients import Scored, input_gradient

Change = Callable[[int, Sequence[int]], Tensor]
"""Returns the changed copies `(m, C, H, W)` with these numbers of a picture; the same ones whenever it is asked."""


class Part(NamedTuple):
    """The gradients `(rounds, m, C, H, W)` of the explained scores at some changed copies of one picture."""

    picture: int
    samples: Sequence[int]
    gradients: Tensor


def score_clean(batch: Batch) -> Scored:
    """Score the pictures as they are, without a graph."""
    with torch.inference_mode():
        return batch.score(batch.inputs)


def changed_scores(batch: Batch, scored: Scored, samples: int | Sequence[int], change: Change) -> Tensor:
    """Return the explained scores `(rounds, N, samples)` of the changed copies; 0 for pictures with an error.

    `samples` is how many copies there are of every picture, or of each: a picture with fewer has zeros at the end.
    """
    counts = [samples] * len(batch.inputs) if isinstance(samples, int) else samples
    values = torch.zeros(scored.rounds, len(counts), max(counts, default=0), dtype=scored.values.dtype)

    @torch.inference_mode()
    def run(part: range) -> list[tuple[int, list[int], Tensor]]:
        groups = grouped(scored.pictures, counts, part)
        scores = batch.subject.scores(torch.cat([change(n, numbers) for n, numbers in groups]))
        read = scored.read(scores, [n for n, numbers in groups for _ in numbers]).cpu()
        pieces = torch.split(read, [len(numbers) for _, numbers in groups], dim=1)
        return [(n, numbers, piece) for (n, numbers), piece in zip(groups, pieces, strict=True)]

    for groups in batch.work.steps(sum(counts[n] for n in scored.pictures), run):
        for n, numbers, piece in groups:
            values[:, n, numbers] = piece
    return values


def changed_gradients(batch: Batch, scored: Scored, samples: int, change: Change) -> Iterator[Part]:
    """Yield the gradients of the explained scores in the changed copies, in order, a part at a time.

    Raises `NotConnected` where the model cuts the gradient.
    """
    counts = [samples] * len(batch.inputs)

    def run(part: range) -> list[Part]:
        groups = grouped(scored.pictures, counts, part)
        with torch.inference_mode(mode=False), torch.enable_grad():
            inputs = torch.cat([change(n, numbers) for n, numbers in groups]).clone().requires_grad_()
            scores = batch.subject.scores(inputs.clone())
            read = scored.read(scores, [n for n, numbers in groups for _ in numbers]).sum(dim=1)
            each = [input_gradient(score, inputs, keep_graph=k < len(read) - 1) for k, score in enumerate(read)]
            gradients = at_least_float32(torch.stack(each))
        sizes = [len(numbers) for _, numbers in groups]
        pieces = zip(groups, torch.split(gradients, sizes, dim=1), strict=True)
        return [Part(n, numbers, gradient) for (n, numbers), gradient in pieces]

    for parts in batch.work.steps(len(scored.pictures) * samples, run):
        yield from parts


def summed_gradients(
    batch: Batch, scored: Scored, samples: int, change: Change, weigh: Callable[[Part], Tensor]
) -> Tensor:
    """Return, for every round and picture, the sum of what `weigh` makes of the parts, `(rounds, N, C, H, W)`.

    `weigh` returns the weighted sum `(rounds, C, H, W)` of a part's gradients. Pictures with an error get zeros.
    """
    total = at_least_float32(batch.inputs.new_zeros(scored.rounds, *batch.inputs.shape))
    for part in changed_gradients(batch, scored, samples, change):
        total[:, part.picture] += weigh(part)
    return total


def noise(seed: int, sample: int, like: Tensor) -> Tensor:
    """Return standard normal noise in the shape of one picture `(C, H, W)`: for each sample its own, on any device.

    It is drawn on the CPU from a generator of its own, so that nobody else's random numbers are touched.
    """
    return torch.randn(like.shape, dtype=torch.float32, generator=generator(seed, sample)).to(like)


def generator(seed: int, sample: int) -> torch.Generator:
    """Return the random numbers of one sample, whichever others are drawn beside it."""
    return torch.Generator().manual_seed(seed * 1_000_003 + sample)


def grouped(pictures: Sequence[int], counts: Sequence[int], part: range) -> list[tuple[int, list[int]]]:
    """Split a part of the numbers of (picture, sample) pairs: each picture with those of its samples in it."""
    groups, start = [], 0
    for n in pictures:
        numbers = range(max(part.start - start, 0), min(part.stop - start, counts[n]))
        if numbers:
            groups.append((n, list(numbers)))
        start += counts[n]
    return groups
