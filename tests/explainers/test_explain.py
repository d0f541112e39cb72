from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn

from explainers import (
    Attribution,
    ExplainError,
    Explanation,
    Rank,
    Score,
    Subject,
    Target,
    explain,
    get,
    names,
    predict,
)
from explainers.errors import BadParameter, LayerNotTaken, NonFiniteScores, TargetOutOfRange, UnknownMethod
from tests.explainers.checks import assert_same
from tests.explainers.nets import CLASSES, PLAIN

INPUTS = PLAIN.pictures(2).float()


@pytest.fixture
def subject() -> Subject:
    net = PLAIN.build().float()
    return Subject(net, net)


def test_the_answer_holds_scores_and_one_signed_map_per_target(subject: Subject) -> None:
    first, second = explain(subject, INPUTS, [[Target(1), Target(2, versus=0)], []], method="gradcam", layers=["2"])
    assert isinstance(first, Explanation)
    assert isinstance(second, Explanation)
    expected = subject.module(INPUTS).numpy()
    assert first.scores.dtype == np.float32
    assert first.scores.tolist() == expected[0].tolist()
    assert second.scores.tolist() == expected[1].tolist()
    assert second.attributions == []
    assert [attribution.score for attribution in first.attributions] == [
        Score(1, None, float(expected[0, 1])),
        Score(2, 0, float(expected[0, 2] - expected[0, 0])),
    ]
    for attribution in first.attributions:
        assert isinstance(attribution, Attribution)
        assert attribution.raw.dtype == np.float32
        assert attribution.raw.shape == (9, 7)


def test_a_saliency_map_has_the_shape_of_the_input(subject: Subject) -> None:
    (answer,) = explain(subject, INPUTS[:1], [[Target()]], method="saliency")
    assert answer.attributions[0].raw.shape == (9, 7)
    assert answer.attributions[0].raw.min() >= 0


def test_an_empty_batch_has_no_answers(subject: Subject) -> None:
    assert explain(subject, INPUTS[:0], [], method="gradcam", layers=["2"]) == []
    assert explain(subject, INPUTS[:0], [], method="saliency") == []


def test_pictures_and_targets_must_match(subject: Subject) -> None:
    with pytest.raises(ExplainError, match="2 pictures came with 1 lists of targets"):
        explain(subject, INPUTS, [[Target()]], method="saliency")


@pytest.mark.parametrize("method", names())
def test_no_pictures_have_no_explanations(subject: Subject, method: str) -> None:
    layers = ["2"] if get(method).max_layers else []
    assert explain(subject, INPUTS[:0], [], method=method, layers=layers) == []


def test_an_unknown_method_is_refused(subject: Subject) -> None:
    with pytest.raises(UnknownMethod, match="no method 'grad_cam'; did you mean 'gradcam'"):
        explain(subject, INPUTS, [[], []], method="grad_cam")


@pytest.mark.parametrize(
    ("method", "layers", "text"),
    [
        ("gradcam", [], "gradcam takes one to 8 layers; 0 were given"),
        ("gradcam", ["0", "2", "0"], "A layer was given twice: '0', '2', '0'"),
        ("saliency", ["2"], "saliency takes no layer; 1 were given"),
    ],
)
def test_the_number_of_layers_is_checked(subject: Subject, method: str, layers: list[str], text: str) -> None:
    with pytest.raises(LayerNotTaken, match=text) as caught:
        explain(subject, INPUTS, [[], []], method=method, layers=layers)
    assert caught.value.field == "layer"
    assert caught.value.extra == {"limit": 8 if method == "gradcam" else 0}


@pytest.mark.parametrize(
    ("method", "parameters", "field", "text"),
    [
        ("legrad", {"sigma": 1}, "sigma", "legrad has no parameter 'sigma'; it has none."),
        ("gradcam", {"sigma": 1}, "sigma", "gradcam has no parameter 'sigma'; valid are fusion."),
        ("saliency", {"sigma": 1}, "sigma", "saliency has no parameter 'sigma'; valid are reduction."),
        ("saliency", {"reduction": "mean"}, "reduction", "reduction: input should be 'max_abs' or 'signed_sum'."),
        ("saliency", {"reduction": None}, "reduction", "reduction: input should be 'max_abs' or 'signed_sum'."),
    ],
)
def test_bad_parameters_are_named(
    subject: Subject, method: str, parameters: dict[str, object], field: str, text: str
) -> None:
    layers = ["2"] if method == "gradcam" else []
    with pytest.raises(BadParameter) as caught:
        explain(subject, INPUTS, [[], []], method=method, layers=layers, parameters=parameters)
    assert str(caught.value) == text
    assert caught.value.field == field


def test_a_number_out_of_bounds_is_answered_with_the_bounds(subject: Subject) -> None:
    with pytest.raises(BadParameter, match="steps: input should be greater than or equal to 1") as caught:
        explain(subject, INPUTS, [[], []], method="integrated_gradients", parameters={"steps": 0})
    assert caught.value.extra == {"minimum": 1, "maximum": 1000}


def test_any_mapping_holds_parameters(subject: Subject) -> None:
    signed = MappingProxyType({"reduction": "signed_sum"})
    (answer,) = explain(subject, INPUTS[:1], [[Target()]], method="saliency", parameters=signed)
    assert answer.attributions[0].raw.min() < 0


def test_the_scores_are_what_the_subject_reads_from_the_module() -> None:
    """A one-logit head: class 1 is +z, class 0 is -z, so their maps are opposite."""
    net = PLAIN.build()

    def scores(x: torch.Tensor) -> torch.Tensor:
        z = net(x)[:, :1]
        return torch.cat([-z, z], dim=1)

    targets = [[Target(0), Target(1)]]
    for method, layers in (("gradcam", ["2"]), ("saliency", [])):
        parameters = {} if layers else {"reduction": "signed_sum"}
        (answer,) = explain(
            Subject(net, scores), PLAIN.pictures(1), targets, method=method, layers=layers, parameters=parameters
        )
        no, yes = answer.attributions
        assert_same(no.raw, -yes.raw)
        assert no.score.value == -yes.score.value


# Predicting


def test_predict_returns_the_scores_and_touches_nothing(subject: Subject) -> None:
    x = INPUTS.clone()
    for row, expected in zip(predict(subject, x), subject.module(INPUTS), strict=True):
        assert isinstance(row, np.ndarray)
        assert row.dtype == np.float32
        assert row.tolist() == expected.tolist()
    assert torch.equal(x, INPUTS)


def test_predict_builds_no_graph_whatever_the_parameters_want(subject: Subject) -> None:
    subject.module.requires_grad_()
    modes: list[bool] = []

    def scores(x: torch.Tensor) -> torch.Tensor:
        modes.append(torch.is_inference_mode_enabled())
        return subject.module(x)

    rows = predict(Subject(subject.module, scores), INPUTS)
    assert [row.tolist() for row in rows if isinstance(row, np.ndarray)] == subject.module(INPUTS).tolist()
    assert modes == [True]


def test_predict_gives_float32_for_half_precision() -> None:
    net = PLAIN.build().bfloat16()
    (row,) = predict(Subject(net, net), PLAIN.pictures(1).bfloat16())
    assert isinstance(row, np.ndarray)
    assert row.dtype == np.float32


def test_predict_fails_one_picture_alone(subject: Subject) -> None:
    x = INPUTS.clone()
    x[0, 0, 0, 0] = torch.nan
    bad, good = predict(subject, x)
    assert isinstance(bad, NonFiniteScores)
    assert isinstance(good, np.ndarray)
    assert good.tolist() == subject.module(INPUTS)[1].tolist()


def test_predict_gives_a_model_that_writes_into_its_input_a_copy() -> None:
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten()).eval()
    x = torch.tensor([[[[-1.0, 2.0]]]])
    (row,) = predict(Subject(net, net), x)
    assert isinstance(row, np.ndarray)
    assert row.tolist() == [0.0, 2.0]
    assert x.flatten().tolist() == [-1.0, 2.0]


def test_what_predict_and_explain_call_predicted_is_the_same(subject: Subject) -> None:
    for row, answer in zip(
        predict(subject, INPUTS),
        explain(subject, INPUTS, [[Target(Rank(k)) for k in range(CLASSES)]] * 2, method="saliency"),
        strict=True,
    ):
        assert isinstance(row, np.ndarray)
        assert [a.score.index for a in answer.attributions] == np.argsort(-row, kind="stable").tolist()


def test_the_last_valid_class_is_named_when_out_of_range(subject: Subject) -> None:
    bad, good = explain(subject, INPUTS, [[Target(CLASSES)], [Target(CLASSES - 1)]], method="saliency")
    assert isinstance(bad, TargetOutOfRange)
    assert bad.extra["maximum"] == CLASSES - 1
    assert isinstance(good, Explanation)
