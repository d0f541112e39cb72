"""The walk that all gradient methods share: one forward pass, then one short backward pass per target."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from explainers.errors import ExplainError
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
    def sums(self) -> list[Tensor]:
        """Per round k, the sum of each picture's k-th score, a scalar with its graph.

        Pictures do not see each other in eval mode, so the gradient of the sum of their scores holds each one's
        own. A picture without a k-th target (or with an error) has zeros there, which are not to be read.
        """
        return [
            torch.stack(
                [
                    scores[k].read(row)
                    for scores, row in zip(self.chosen, self._graph, strict=True)
                    if not isinstance(scores, ExplainError) and k < len(scores)
                ]
            ).sum()
            for k in range(self.rounds)
        ]

    def gradients(self, source: Source) -> Iterator[Tensor]:
        """Yield, per round, the gradient `(N, ...)` of its sum, one backward pass after the other."""
        for k, score in enumerate(self.sums):
            yield source(score, keep_graph=k < self.rounds - 1)


def gradient_of(score: Tensor, source: Tensor, *, keep_graph: bool) -> Tensor | None:
    """Return the gradient of a scalar with respect to `source`, or None if it does not depend on it."""
    if not score.requires_grad:
        return None
    return torch.autograd.grad(score, source, retain_graph=keep_graph, allow_unused=True)[0]
