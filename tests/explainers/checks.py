"""What several test files need: comparing maps, running a method in float64, and what a model remembers."""

import random
from collections.abc import Sequence
from importlib import import_module
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from explainers import Subject, Target, registry
from explainers.batch import Batch, ToGrid
from explainers.hooks import capture
from tests.explainers.nets import Case


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Compare two maps; `tolerance` is relative to the largest absolute value, which must not be zero."""
    actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert actual.shape == expected.shape
    scale = np.abs(expected).max()
    assert scale > 0, "an empty map proves nothing"
    assert np.isfinite(actual).all()
    assert np.abs(actual - expected).max() <= tolerance * scale


def maps(
    subject: Subject,
    method: str,
    inputs: Tensor,
    targets: Sequence[Sequence[Target]],
    layers: Sequence[str] = (),
    to_grid: ToGrid | None = None,
    **parameters: object,
) -> list[Tensor]:
    """Return a method's rounds as it computes them: `(N, h, w)` each, float64 for a float64 model."""
    chosen = registry.get(method)
    batch = Batch(subject, inputs, targets, layers, to_grid)
    return list(chosen.run(batch, chosen.parameters.model_validate(parameters)).rounds)


def twin(
    method: str, model: nn.Module, picture: Tensor, index: int, versus: int | None = None, **options: Any
) -> Tensor:
    """Return the map `(h, w)` of the method's literal reference: `tests/references/<method>.py`."""
    return getattr(import_module(f"tests.references.{method}"), method)(model, picture, index, versus, **options)


def looks_at(method: str, case: Case) -> dict[str, Any]:
    """Return the arguments that say where the method looks: the case's layer, or nothing."""
    count = registry.get(method).layers
    return {"layers": (case.layer,) * count, "to_grid": case.to_grid} if count else {}


def twin_looks_at(method: str, case: Case) -> dict[str, Any]:
    """Return the same for the method's twin."""
    return {"layer": case.layer, "to_grid": case.to_grid} if registry.get(method).layers else {}


def parameter_sets(method: str) -> list[dict[str, object]]:
    """Return the method's defaults, and each named choice of each parameter."""
    sets: list[dict[str, object]] = [{}]
    for name, field in registry.get(method).parameters.model_fields.items():
        sets += [{name: choice} for choice in get_args(field.annotation) if isinstance(choice, str)]
    return sets


def bits(tensor: Tensor | None) -> bytes | None:
    """Return a tensor's memory, so that NaN and -0.0 count too."""
    return None if tensor is None else tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def _fact(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value.items())
    return value if isinstance(value, bool | int | float | str | None) else id(value)


def snapshot(module: nn.Module) -> dict[str, object]:
    """Return everything that an explanation might change: the model's state, and the process's.

    Of each module all attributes (hooks, training flags, in-place flags among them), of each parameter and buffer
    the identity, bits, version, `requires_grad` and `.grad`.
    """
    facts: dict[str, object] = {
        "torch rng": bits(torch.get_rng_state()),
        "numpy rng": repr(np.random.get_state()),  # noqa: NPY002 - the legacy state is the global one
        "python rng": random.getstate(),
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()),
    }
    for name, submodule in module.named_modules(remove_duplicate=False):
        own = ("_parameters", "_buffers", "_modules")
        facts[f"module {name}"] = {key: _fact(value) for key, value in vars(submodule).items() if key not in own}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        facts[f"tensor {name}"] = (
            id(tensor),
            tensor.data_ptr(),
            tensor._version,
            tensor.requires_grad,
            bits(tensor) if tensor.dim() else tensor.item(),
            id(tensor.grad) if tensor.grad is not None else None,
            bits(tensor.grad),
        )
    return facts


def activation_and_gradient_by_capture(subject: Subject, x: Tensor, index: int, layer: str) -> tuple[Tensor, Tensor]:
    """Return what `capture` says about the sum of the pictures' scores of class `index`."""
    with capture(subject, [layer]) as (taken,):
        score = subject.scores(x.clone())[:, index].sum()
        return taken.activation, taken.gradient(score)
