"""The walk that all gradient methods share: one forward pass, then one short backward pass per target."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol, cast

import torch
from torch import Tensor

from explainers.errors import ExplainError, NotConnected
from explainers.targets import Score, Target, resolve_all


class Source(Protocol):
    """Returns the gradient of a scalar score with respect to a fixed tensor `(N, ...)`."""

    def __call__(self, score: Tensor, *, keep_graph: bool) -> Tensor: ...  # noqa: D102


class Scored:
    """The scores of a batch `(N, K)` with their graph, and each picture's resolved targets, or its own error."""

    def __init__(self, scores: Tensor, targets: Sequence[Sequence[Target]]) -> None:
        self._graph = scores
        self.scores = scores.detach().float().cpu()
        self.chosen: list[list[Score] | ExplainError] = [
            resolve_all(wanted, row) for wanted, row in zip(targets, self.scores, strict=True)
        ]

    @property
    def rounds(self) -> int:
        """The largest number of targets of any picture: so many backward passes are needed."""
        return max((len(scores) for scores in self.chosen if not isinstance(scores, ExplainError)), default=0)

    @property
    def pictures(self) -> list[int]:
        """The pictures that there is something to explain about: without an error, and with a target."""
        return [n for n, scores in enumerate(self.chosen) if scores and not isinstance(scores, ExplainError)]

    @cached_property
    def weights(self) -> Tensor:
        """The scores to explain as weights `(rounds, N, K)` of the classes: 1 of the target, -1 of the versus.

        A picture without a k-th target (or with an error) has zeros there, and its map is not to be read.
        """
        weights = torch.zeros(self.rounds, *self._graph.shape, dtype=self._graph.dtype)
        for n in self.pictures:
            for k, score in enumerate(cast("list[Score]", self.chosen[n])):
                weights[k, n, score.index] = 1
                if score.versus is not None:
                    weights[k, n, score.versus] = -1
        return weights.to(self._graph.device)

    def read(self, scores: Tensor, pictures: Sequence[int]) -> Tensor:
        """Return the explained scores `(rounds, M)` of other runs: row m of `scores` `(M, K)` is of `pictures[m]`."""
        return torch.einsum("rmk,mk->rm", self.weights[:, pictures].to(scores.dtype), scores)

    @property
    def values(self) -> Tensor:
        """The explained scores `(rounds, N)`, detached; 0 where there is nothing to explain."""
        values = torch.zeros(self.weights.shape[:2], dtype=self._graph.dtype, device=self._graph.device)
        values[:, self.pictures] = self.read(self._graph.detach()[self.pictures], self.pictures)
        return values

    @property
    def sums(self) -> list[Tensor]:
        """Per round, the sum of each picture's score, a scalar with its graph."""
        return self.sums_of(self.weights)

    def sums_of(self, weights: Tensor) -> list[Tensor]:
        """Per round, the sum over the pictures of their classes' scores times `weights` `(rounds, N, K)`.

        Pictures do not see each other in eval mode, so the gradient of the sum of their scores holds each one's own.
        """
        good = self.pictures
        return [(round_[good] * self._graph[good]).sum() for round_ in weights]

    def gradients(self, source: Source) -> Iterator[Tensor]:
        """Yield, per round, the gradient `(N, ...)` of its sum, one backward pass after the other."""
        for k, score in enumerate(self.sums):
            yield source(score, keep_graph=k < self.rounds - 1)


def gradient_of(score: Tensor, source: Tensor | Sequence[Tensor], *, keep_graph: bool) -> Tensor | None:
    """Return the gradient of a scalar with respect to `source`, or None if it does not depend on it.

    Of several sources the first counts; the backward pass goes as far as all of them.
    """
    if not score.requires_grad:
        return None
    return torch.autograd.grad(score, source, retain_graph=keep_graph, allow_unused=True)[0]


def input_gradient(score: Tensor, inputs: Tensor, *, keep_graph: bool) -> Tensor:
    """Return the gradient of a scalar with respect to the pictures, or raise `NotConnected`."""
    gradient = gradient_of(score, inputs, keep_graph=keep_graph)
    if gradient is None:
        raise cut_off()
    return gradient


def cut_off() -> NotConnected:
    """Return the error of a score that has no gradient with respect to the picture."""
    msg = "The score does not depend on the picture: the model cuts the gradient (no_grad, detach) on the way."
    return NotConnected(msg)
