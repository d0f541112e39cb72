"""Networks that end in a softmax or a sigmoid: what is explained is what stands before it.

A score has to be a logit. The gradient of a probability is that of the logit times p (1 - p), so it fades where the
network is sure, and a softmax of probabilities is no probability. So the network is watched while it answers two
inputs. A final `nn.Softmax`, `nn.LogSoftmax` or `nn.Sigmoid` is taken out of it; where the normalisation is written
into `forward`, the scores are computed back from the answer (`output.logits`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from models.errors import ModelError
from models.output import ScoreKind
from models.spec import Head

Answer = Callable[[Tensor], Tensor]
"""Runs the network and returns the tensor that the specification selects: (N, K), or (N,) for one logit."""

_FUNCTIONS = {
    "softmax": "softmax",
    "special_softmax": "softmax",
    "log_softmax": "log_softmax",
    "special_log_softmax": "log_softmax",
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "special_expit": "sigmoid",
}
_DEFINITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(dim=1),
    "log_softmax": lambda logits: logits.log_softmax(dim=1),
    "sigmoid": torch.sigmoid,
}
_MODULES = {"softmax": nn.Softmax, "log_softmax": nn.LogSoftmax, "sigmoid": nn.Sigmoid}
_REMOVED: dict[str, ScoreKind] = {
    "softmax": "before the final Softmax",
    "log_softmax": "before the final LogSoftmax",
    "sigmoid": "before the final Sigmoid",
}
_COMPUTED: dict[str, ScoreKind] = {
    "softmax": "logarithms of the probabilities",
    "log_softmax": "log-probabilities",
    "sigmoid": "log-odds of the probabilities",
}
_SUM_TOLERANCE = 1e-4


def expose_logits(module: nn.Module, answer: Answer, head: Head, inputs: Sequence[Tensor]) -> ScoreKind:
    """Take a final normalisation out of `module` if it is a part of it, and return what the scores are then.

    `inputs` are two different ones, (1, C, h, w) each; `answer` runs once if the network does not normalise. It is
    compared in float32: half precision does not add up to 1.
    """
    with _Watch() as watch:
        first = answer(inputs[0])
    seen = watch.function_behind(first)
    form = _form(first, head, seen)
    if form is None:
        return "logits"
    answers = [first, answer(inputs[1])]
    if _form(answers[1], head, seen) != form:
        return "logits"
    if seen is None and torch.equal(*answers):
        return "logits"  # two numbers that add up to 1 by chance, since nothing depends on the picture
    parts = [part for part in module.modules() if isinstance(part, _MODULES[form])]
    for part in reversed(parts):  # the final one tends to be the last; others change the answer if they are missing
        if _take_out(module, part, lambda: _explains(answer, inputs, answers, form)):
            return _REMOVED[form]
    return _COMPUTED[form]


class _Watch(TorchFunctionMode):
    """Keeps what every softmax and sigmoid of a forward pass returned."""

    def __init__(self) -> None:
        super().__init__()
        self._results: list[tuple[str, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (name := _FUNCTIONS.get(getattr(func, "__name__", ""))) and isinstance(result, Tensor):
            self._results.append((name, result))
        return result

    def function_behind(self, answer: Tensor) -> str | None:
        """Return the function that made `answer`."""
        return next((name for name, result in self._results if _is_same(result, answer)), None)


def _is_same(result: Tensor, answer: Tensor) -> bool:
    """Whether both are the same numbers in memory, perhaps in another shape (`squeeze`, `flatten`)."""
    return result.data_ptr() == answer.data_ptr() and result.numel() == answer.numel()


def _form(answer: Tensor, head: Head, seen: str | None) -> str | None:
    """Return which normalisation the numbers of an answer have been through, as far as they tell."""
    if head != "softmax":
        return "sigmoid" if seen == "sigmoid" and _is_within_unit(answer) else None
    if answer.dim() != 2 or answer.shape[1] < 2:
        return None
    if _is_within_unit(answer) and _adds_up(answer):
        return "softmax"
    return "log_softmax" if bool((answer <= 0).all()) and _adds_up(answer.exp()) else None


def _is_within_unit(answer: Tensor) -> bool:
    return bool(((answer >= 0) & (answer <= 1)).all())


def _adds_up(probabilities: Tensor) -> bool:
    return bool(((probabilities.sum(dim=1) - 1).abs() < _SUM_TOLERANCE).all())


def _take_out(module: nn.Module, part: nn.Module, is_right: Callable[[], bool]) -> bool:
    """Put `nn.Identity` in the place of `part`, or leave it there if that turns out not to be right."""
    places = [name for name, found in module.named_modules(remove_duplicate=False) if found is part]
    if "" in places:
        return False  # the network is nothing but this
    _put(module, places, nn.Identity())
    try:
        if is_right():
            return True
    except ModelError:  # the network uses the part in another way too
        pass
    _put(module, places, part)
    return False


def _put(module: nn.Module, places: Sequence[str], part: nn.Module) -> None:
    part.train(module.training)
    for place in places:
        module.set_submodule(place, part)


def _explains(answer: Answer, inputs: Sequence[Tensor], before: Sequence[Tensor], form: str) -> bool:
    """Whether the answers are now other ones, and those of before but for the normalisation.

    A log-softmax of a log-softmax is the same: without the change, a part that never ran would be the final one.
    """
    normalise, now = _DEFINITIONS[form], [answer(x) for x in inputs]
    if all(torch.equal(new, old) for new, old in zip(now, before, strict=True)):
        return False
    return all(torch.allclose(normalise(new), old, rtol=1e-4, atol=1e-6) for new, old in zip(now, before, strict=True))
