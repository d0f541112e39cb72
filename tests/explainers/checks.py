"""What several test files need: comparing maps, running a method in float64, and what a model remembers."""

import math
import random
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from explainers import Subject, Target, Work, registry
from explainers.batch import Batch, ToGrid
from explainers.hooks import capture
from tests.explainers.nets import CASES, Case, Tokens

FEW: dict[str, object] = {"samples": 6, "steps": 5, "segments": 4}
"""Values of the parameters that say how often the model runs."""


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
    to_grid: Mapping[str, ToGrid] | None = None,
    token_grids: Mapping[int, ToGrid] | None = None,
    work: Work | None = None,
    **parameters: object,
) -> list[Tensor]:
    """Return a method's rounds as it computes them: `(N, h, w)` each, float64 for a float64 model."""
    chosen = registry.get(method)
    batch = Batch(subject, inputs, targets, layers, to_grid or {}, token_grids or {}, work or Work())
    return list(chosen.run(batch, chosen.parameters.model_validate(parameters)).rounds)


def twin(
    method: str, model: nn.Module, picture: Tensor, index: int, versus: int | None = None, **options: Any
) -> Tensor:
    """Return the map `(h, w)` of the method's literal reference: `tests/references/<family>.py`."""
    references = import_module(f"tests.references.{registry.get(method).family}")
    return getattr(references, method.replace("+", "_plus"))(model, picture, index, versus, **options)


def applies(method: str, case: Case) -> bool:
    """Whether the method can explain the case's network."""
    if registry.get(method).family == "attention":
        return case.name == "tokens"
    if method in ("guided_backprop", "deconvnet", "guided_gradcam"):
        return case.has_relu
    return True


def looks_at(method: str, case: Case) -> dict[str, Any]:
    """Return the arguments that say where the method looks: the case's layer, its tokens, or nothing."""
    if registry.get(method).family == "attention":
        return {"token_grids": {1 + math.prod(Tokens.GRID): case.to_grid}}
    to_grid = {} if case.to_grid is None else {case.layer: case.to_grid}
    return {"layers": (case.layer,), "to_grid": to_grid} if registry.get(method).max_layers else {}


def twin_looks_at(method: str, case: Case) -> dict[str, Any]:
    """Return the same for the method's twin."""
    if registry.get(method).family == "attention":
        return {"to_grid": case.to_grid}
    return {"layer": case.layer, "to_grid": case.to_grid} if registry.get(method).max_layers else {}


def few(method: str) -> dict[str, object]:
    """Return what makes the method run the model a few times only."""
    return {name: value for name, value in FEW.items() if name in registry.get(method).parameters.model_fields}


def parameter_sets(method: str) -> list[dict[str, object]]:
    """Return the method's defaults, and each named choice of each parameter; few samples, for the nets are small."""
    sets = [few(method)]
    for name, field in registry.get(method).parameters.model_fields.items():
        if name == "fusion":  # nothing is fused where there is one layer
            continue
        choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
        sets += [few(method) | {name: choice} for choice in choices if choice != field.default]
    return sets


def with_cases(methods: Sequence[str]) -> list[Any]:
    """Return each method with few samples and with each network that it can explain, for pytest."""
    return [
        pytest.param(method, few(method), case, id=f"{method}-{case.name}")
        for case in CASES
        for method in methods
        if applies(method, case)
    ]


def with_settings_and_cases(methods: Sequence[str]) -> list[Any]:
    """Return the same for each of the method's parameter sets."""
    return [
        pytest.param(method, chosen, case, id="-".join([method, *map(str, chosen.values()), case.name]))
        for case in CASES
        for method in methods
        if applies(method, case)
        for chosen in parameter_sets(method)
    ]


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
