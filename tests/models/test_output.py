"""Selectors, heads and probabilities."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import output
from models.errors import InvalidOutput, NonFiniteOutput
from models.spec import Head
from tests.models.networks import Named, Output

FIRST, SECOND = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0, 5.0]])
LOGITS = st.lists(st.floats(-700, 700), min_size=2, max_size=6)


@pytest.mark.parametrize(
    ("answer", "selector", "chosen"),
    [
        (FIRST, None, FIRST),
        ((FIRST, SECOND), None, FIRST),
        ((None, SECOND), None, SECOND),
        ([FIRST, SECOND], 1, SECOND),
        ((FIRST, SECOND), -1, SECOND),
        ({"a": FIRST, "b": SECOND}, None, FIRST),
        ({"a": FIRST, "logits": SECOND}, None, SECOND),
        ({"a": FIRST, "b": SECOND}, "b", SECOND),
        (Output(FIRST, SECOND), None, SECOND),
        (Output(FIRST, SECOND), "embedding", FIRST),
        (Named(FIRST, SECOND), None, FIRST),
        (Named(FIRST, SECOND), "scores", SECOND),
        (Named(FIRST, SECOND), 1, SECOND),
    ],
)
def test_the_selector_picks_one_tensor(answer: object, selector: int | str | None, chosen: torch.Tensor) -> None:
    assert output.select(answer, selector) is chosen


@pytest.mark.parametrize(
    ("answer", "selector", "choices"),
    [
        ((FIRST, SECOND), 2, [0, 1]),
        ((FIRST, SECOND), -3, [0, 1]),
        ((FIRST, "x"), 1, [0]),
        ({"a": FIRST, "b": 3}, "c", ["a"]),
        ({"a": FIRST}, 0, ["a"]),
        (Output(FIRST, SECOND), "scores", ["embedding", "logits"]),
        (FIRST, 0, []),
        (FIRST.long(), None, []),
        ("text", None, []),
        (None, None, []),
    ],
)
def test_a_wrong_selector_names_the_choices(answer: object, selector: int | str | None, choices: list[object]) -> None:
    with pytest.raises(InvalidOutput) as caught:
        output.select(answer, selector)
    assert caught.value.extra["choices"] == choices
    assert f"`output` = {selector!r}" in str(caught.value)


def test_scores_are_logits_or_the_pair_of_one_logit() -> None:
    half = torch.tensor([[1.5, -2.0]], dtype=torch.float16)
    assert output.scores(half, "softmax").dtype == torch.float32
    assert output.scores(torch.tensor([[2.0], [-3.0]]), "binary").tolist() == [[-2.0, 2.0], [3.0, -3.0]]
    assert output.scores(torch.tensor([2.0, -3.0]), "binary").tolist() == [[-2.0, 2.0], [3.0, -3.0]]


@pytest.mark.parametrize(
    ("shape", "head", "complaint"),
    [
        ((1, 4, 7, 7), "softmax", r"gives scores \(N, K\); this output is \(1, 4, 7, 7\)"),
        ((4,), "sigmoid", r"this output is \(4,\)"),
        ((1, 2), "binary", r"one logit per picture, \(N, 1\); this output is \(1, 2\)"),
        ((1, 1), "softmax", 'set head = "binary"'),
    ],
)
def test_another_shape_is_refused(shape: tuple[int, ...], head: Head, complaint: str) -> None:
    with pytest.raises(InvalidOutput, match=complaint):
        output.scores(torch.zeros(shape), head)


@given(LOGITS)
def test_softmax_is_that_of_the_definition(logits: list[float]) -> None:
    result = output.probabilities(np.array(logits, np.float32), "softmax")
    exact = [float(np.float32(value)) for value in logits]
    total = math.fsum(math.exp(value - max(exact)) for value in exact)
    expected = [math.exp(value - max(exact)) / total for value in exact]
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol=1e-12)


@given(LOGITS)
def test_sigmoid_is_that_of_the_definition(logits: list[float]) -> None:
    expected = [1 / (1 + math.exp(-value)) for value in logits]
    np.testing.assert_allclose(output.probabilities(np.array(logits), "sigmoid"), expected, rtol=1e-12)


@given(st.floats(-700, 700))
def test_a_binary_heads_probabilities_add_up_to_one(logit: float) -> None:
    no, yes = output.probabilities(np.array([-logit, logit]), "binary")
    assert yes == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-12)
    assert no + yes == pytest.approx(1, rel=1e-12)


def test_enormous_scores_are_no_trouble() -> None:
    assert output.probabilities(np.array([1e30, -1e30]), "softmax").tolist() == [1, 0]
    assert output.probabilities(np.array([1e30, -1e30]), "sigmoid").tolist() == [1, 0]


@pytest.mark.parametrize("head", ["softmax", "sigmoid", "binary"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_an_error(head: Head, bad: float) -> None:
    with pytest.raises(NonFiniteOutput):
        output.probabilities(np.array([0.0, bad]), head)


def test_cross_entropy_is_that_of_the_formula() -> None:
    scores = torch.tensor([[2.0, 0.0, -1.0], [0.5, 1.5, 0.0]], dtype=torch.float64)
    total = [sum(math.exp(v) for v in row) for row in scores.tolist()]
    softmax = -(math.log(math.exp(2.0) / total[0]) + math.log(math.exp(1.5) / total[1])) / 2
    assert float(output.cross_entropy(scores, [0, 1], "softmax")) == pytest.approx(softmax)

    def sigmoid(z: float) -> float:
        return 1 / (1 + math.exp(-z))

    each = [
        -math.log(sigmoid(z) if k == true else 1 - sigmoid(z))
        for row, true in zip(scores.tolist(), [0, 1], strict=True)
        for k, z in enumerate(row)
    ]
    assert float(output.cross_entropy(scores, [0, 1], "sigmoid")) == pytest.approx(sum(each) / 6)
    pair = torch.tensor([[-0.7, 0.7], [0.2, -0.2]], dtype=torch.float64)  # the logits 0.7 and -0.2
    binary = -(math.log(sigmoid(0.7)) + math.log(1 - sigmoid(-0.2))) / 2
    assert float(output.cross_entropy(pair, [1, 0], "binary")) == pytest.approx(binary)
