"""What the tests of gradient flow share: the question, and how an answer is compared."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor, nn

from explainers import Subject, Target
from explainers.diagnostics.gradient_flow import GradientFlow, LayerFlow, gradient_flow, score_objective

TARGETS = [Target(1), Target(3, versus=0)]


def of(net: nn.Module, x: Tensor, targets: Sequence[Target] = TARGETS) -> GradientFlow:
    return gradient_flow(Subject(net, net), x, score_objective(list(targets)[: len(x)]))


def the_score(scores: Tensor) -> Tensor:
    """What the targets ask for, written out."""
    return scores[0, 1] if len(scores) == 1 else scores[0, 1] + scores[1, 3] - scores[1, 0]


def norm(tensor: Tensor | None) -> float | None:
    return None if tensor is None else math.sqrt(sum(v * v for v in tensor.double().flatten().tolist()))


def by_name(answer: GradientFlow, name: str, call: int = 1) -> LayerFlow:
    (layer,) = (layer for layer in answer.layers if (layer.name, layer.call) == (name, call))
    return layer


def assert_as_the_reference(answer: GradientFlow, calls: Sequence[dict[str, Any]]) -> None:
    assert [layer.name for layer in answer.layers] == [call["name"] for call in calls]
    for layer, call in zip(answer.layers, calls, strict=True):
        assert layer.grad_output_norm == pytest.approx(norm(call["output"]), rel=1e-10), layer.name
        assert layer.grad_input_norm == pytest.approx(norm(call["input"]), rel=1e-10), layer.name
        assert layer.output_norm == pytest.approx(norm(call["answer"]), rel=1e-10), layer.name
        zeros = float((call["output"] == 0).double().mean())
        assert layer.zero_fraction == pytest.approx(zeros, abs=1e-12), layer.name
        assert (layer.nan, layer.inf, layer.output_nan, layer.output_inf) == (0, 0, 0, 0)
