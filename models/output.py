"""From whatever a network returns to scores (N, K), and from scores to probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models.errors import InvalidOutput, NonFiniteOutput
from models.spec import Head

Selector = int | str | None
ScoreKind = Literal[
    "logits",
    "before the final Softmax",
    "before the final LogSoftmax",
    "before the final Sigmoid",
    "log-probabilities",
    "logarithms of the probabilities",
    "log-odds of the probabilities",
]
"""What the scores are: the network's own answer, what stands before its last part, or computed from the answer."""

_ALMOST_ONE = 1e-7  # from 1: float32 has nothing in between


def select(output: object, selector: Selector) -> Tensor:
    """Return the tensor that `selector` picks: an index of a tuple, a key of a dict or an attribute.

    None takes the tensor itself, else `logits` (key or attribute), else the first tensor of a tuple or dict.
    Raises `InvalidOutput`.
    """
    chosen = _default(output) if selector is None else _pick(output, selector)
    if not isinstance(chosen, Tensor) or not chosen.is_floating_point():
        choices = _choices(output)
        msg = (
            f"The network returns {type(output).__name__}; `output` = {selector!r} picks no floating-point tensor "
            f"from it. Choose one of: {', '.join(map(str, choices)) or 'nothing to choose from'}."
        )
        raise InvalidOutput(msg, output=selector, choices=choices)
    return chosen


def logits(answer: Tensor, kind: ScoreKind) -> Tensor:
    """Return the logits float32 of a network's answer, in the same shape; differentiable and finite.

    Of softmax probabilities p the logits are known but for one number common to all classes:
    log p = logit - logsumexp(logits), and softmax(log p) = p. The same holds for log-probabilities. So an explanation
    of such a score says what speaks for the class and against all others. Of a sigmoid's p, log(p / (1 - p)) is the
    very logit. Where float32 has rounded p to 0 (or a sigmoid's to 1), the gradient is lost.
    """
    answer = answer.float()
    if kind == "logarithms of the probabilities":
        return answer.clamp(min=torch.finfo(torch.float32).tiny).log()
    return torch.logit(answer, eps=_ALMOST_ONE) if kind == "log-odds of the probabilities" else answer


def scores(logits: Tensor, head: Head) -> Tensor:
    """Return the scores (N, K) float32: the logits, or for a binary head with one logit z the pair (-z, +z).

    Raises `InvalidOutput` for other shapes.
    """
    logits = logits.float()
    if head == "binary":
        logit = logits.reshape(-1, 1) if logits.dim() == 1 else logits
        if logit.dim() != 2 or logit.shape[1] != 1:
            msg = f"A binary head gives one logit per picture, (N, 1); this output is {tuple(logits.shape)}."
            raise InvalidOutput(msg, shape=list(logits.shape))
        return torch.cat([-logit, logit], dim=1)
    if logits.dim() != 2:
        msg = f"A {head} head gives scores (N, K); this output is {tuple(logits.shape)}. Choose another `output`."
        raise InvalidOutput(msg, shape=list(logits.shape))
    if head == "softmax" and logits.shape[1] == 1:
        msg = 'A softmax over one class is always 1; set head = "binary" (or "sigmoid") for a single logit.'
        raise InvalidOutput(msg, shape=list(logits.shape))
    return logits


def cross_entropy(scores: Tensor, classes: Sequence[int], head: Head) -> Tensor:
    """Return the usual training loss, a scalar in nats, of scores (N, K) for the true class of each picture.

    softmax: the mean over the pictures of -log p; sigmoid: the binary cross-entropy of every class, the true one
    against all others, mean over pictures and classes (torch's default); binary: the mean of -log p, whose logit is
    the score of the true class.
    """
    labels = torch.tensor(classes, device=scores.device)
    if head == "softmax":
        return F.cross_entropy(scores, labels)
    if head == "binary":
        return F.softplus(-scores.gather(1, labels[:, None])).mean()
    return F.binary_cross_entropy_with_logits(scores, F.one_hot(labels, scores.shape[1]).to(scores.dtype))


def probabilities(scores: NDArray[Any], head: Head) -> NDArray[np.float64]:
    """Return the probabilities (..., K) float64 in [0, 1] of scores (..., K); raises `NonFiniteOutput`.

    The pair (-z, +z) of a binary head becomes (1 - sigmoid(z), sigmoid(z)).
    """
    values = np.asarray(scores, np.float64)
    if not np.isfinite(values).all():
        msg = "The network answered NaN or infinity."
        raise NonFiniteOutput(msg)
    if head == "softmax":
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
    small = np.exp(-np.abs(values))  # never overflows
    return np.where(values >= 0, 1.0, small) / (1.0 + small)


def _default(output: object) -> object:
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((value for value in values if isinstance(value, Tensor)), None)


def _pick(output: object, selector: int | str) -> object:
    if isinstance(selector, str):
        return output.get(selector) if isinstance(output, Mapping) else getattr(output, selector, None)
    is_indexable = isinstance(output, Sequence) and -len(output) <= selector < len(output)
    return output[selector] if is_indexable else None  # type: ignore[index]


def _choices(output: object) -> list[int | str]:
    """Return the selectors that would pick a floating-point tensor."""
    if isinstance(output, Mapping):
        entries = dict(output)
    elif isinstance(output, tuple | list):
        entries = dict(enumerate(output))
    else:
        entries = vars(output) if hasattr(output, "__dict__") and not isinstance(output, Tensor) else {}
    return [key for key, value in entries.items() if isinstance(value, Tensor) and value.is_floating_point()]
