"""Scores are logits, whether the network ends in a softmax or a sigmoid or not."""

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models import LoadedModel, load
from models.errors import UnsupportedModule
from models.preprocess import Preprocess
from models.spec import ModelSpec, RandomWeights
from tests.models.networks import Tiny
from tests.models.networks_normalised import ENDS

SMALL = Preprocess(input_size=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
X = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def loaded(factory: str, *args: str, **changes: Any) -> LoadedModel:
    options = dict(zip(("end",), args, strict=False)) | changes.pop("options", {})
    return load(
        ModelSpec(
            name="mine",
            arch=f"python:tests.models.networks_normalised:{factory}",
            arch_options=options,
            weights=RandomWeights(),
            preprocess=SMALL,
            **changes,
        )
    )


def input_gradients(model: LoadedModel, index: int) -> Tensor:
    x = X.clone().requires_grad_()
    model.scores(x)[:, index].sum().backward()
    assert x.grad is not None
    return x.grad


def assert_probabilities(model: LoadedModel, expected: Tensor) -> None:
    scores = model.scores(X).detach().numpy()
    np.testing.assert_allclose(model.probabilities(scores), expected.numpy(), rtol=1e-4, atol=1e-6)


# A module at the end is taken out


@pytest.mark.parametrize(
    ("end", "head", "kind"),
    [
        ("Softmax", "softmax", "before the final Softmax"),
        ("Softmax, flat", "softmax", "before the final Softmax"),
        ("LogSoftmax", "softmax", "before the final LogSoftmax"),
        ("Sigmoid", "sigmoid", "before the final Sigmoid"),
    ],
)
def test_a_final_module_is_taken_out(end: str, head: str, kind: str) -> None:
    """Both networks have the same weights, since both are drawn from the same seed."""
    plain, model = loaded("sequential", "nothing", head=head), loaded("sequential", end, head=head)
    assert (plain.score_kind, model.score_kind) == ("logits", kind)
    torch.testing.assert_close(model.scores(X), plain.scores(X), rtol=0, atol=0)
    for index in range(3):
        torch.testing.assert_close(input_gradients(model, index), input_gradients(plain, index), rtol=0, atol=0)
    assert_probabilities(model, plain.scores(X).softmax(1) if head == "softmax" else plain.scores(X).sigmoid())
    assert not any(part.training or part._forward_hooks for part in model.module.modules())


def test_a_final_sigmoid_of_one_logit_is_taken_out() -> None:
    one = {"options": {"classes": 1}, "head": "binary"}
    plain, model = loaded("sequential", "nothing", **one), loaded("sequential", "Sigmoid", **one)
    assert model.score_kind == "before the final Sigmoid"
    torch.testing.assert_close(model.scores(X), plain.scores(X), rtol=0, atol=0)


def test_it_is_taken_out_of_the_selected_output() -> None:
    model = loaded("GivesBoth", output="probabilities")
    assert model.score_kind == "before the final Softmax"
    torch.testing.assert_close(model.scores(X), model.module.get_submodule("tiny")(X))
    assert loaded("GivesBoth", output="embedding").score_kind == "logits"


def test_a_module_under_two_names_is_taken_out_of_both() -> None:
    model = loaded("NamesTwice")
    assert model.score_kind == "before the final Softmax"
    torch.testing.assert_close(model.scores(X), model.module.get_submodule("tiny")(X))
    assert isinstance(model.module.get_submodule("end"), nn.Identity)


@pytest.mark.parametrize("factory", ["Shares", "AsksItsSoftmax", "HidesItsSoftmax"])
def test_a_module_that_is_needed_stays(factory: str) -> None:
    model = loaded(factory)
    assert model.score_kind == "logarithms of the probabilities"
    assert isinstance(model.module.get_submodule("softmax"), nn.Softmax)
    with torch.no_grad():
        assert_probabilities(model, model.module(X))


# A function at the end is computed back


SOFTMAX = ["F.softmax", "F.softmax of -1", "torch.softmax", "Tensor.softmax", "torch.special.softmax", "by hand"]
LOG_SOFTMAX = ["F.log_softmax", "Tensor.log_softmax", "log by hand"]
SIGMOID = ["torch.sigmoid", "Tensor.sigmoid", "Tensor.sigmoid_", "F.sigmoid"]


@pytest.mark.parametrize("end", [*SOFTMAX, *LOG_SOFTMAX])
def test_scores_of_a_functional_softmax_are_the_logits_but_for_one_number(end: str) -> None:
    plain, model = loaded("Ends", "nothing"), loaded("Ends", end)
    assert model.score_kind == ("logarithms of the probabilities" if end in SOFTMAX else "log-probabilities")
    logits = plain.scores(X)
    # log softmax(z)_c = z_c - logsumexp(z), by definition.
    torch.testing.assert_close(model.scores(X), logits - logits.logsumexp(1, keepdim=True), rtol=1e-4, atol=1e-5)
    assert_probabilities(model, logits.softmax(1))


@pytest.mark.parametrize("end", [*SOFTMAX, *LOG_SOFTMAX])
def test_why_this_and_not_that_is_the_same_for_a_functional_softmax(end: str) -> None:
    """In the difference of two scores logsumexp drops out."""
    plain, model = loaded("Ends", "nothing"), loaded("Ends", end)
    expected = input_gradients(plain, 0) - input_gradients(plain, 2)
    found = input_gradients(model, 0) - input_gradients(model, 2)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("end", SIGMOID)
def test_scores_of_a_functional_sigmoid_are_the_logits(end: str) -> None:
    plain, model = loaded("Ends", "nothing", head="sigmoid"), loaded("Ends", end, head="sigmoid")
    assert model.score_kind == "log-odds of the probabilities"
    torch.testing.assert_close(model.scores(X), plain.scores(X), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(input_gradients(model, 1), input_gradients(plain, 1), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("end", ["torch.sigmoid", "sigmoid squeezed"])
def test_one_sigmoid_of_a_binary_head(end: str) -> None:
    one = {"options": {"classes": 1}, "head": "binary"}
    plain, model = loaded("Ends", "nothing", **one), loaded("Ends", end, **one)
    assert model.score_kind == "log-odds of the probabilities"
    torch.testing.assert_close(model.scores(X), plain.scores(X), rtol=1e-4, atol=1e-5)


def test_scores_are_finite_where_float32_rounds_probabilities_away() -> None:
    """exp(-300) is below float32's smallest number, 1 - 1e-7 above all but its last one below 1."""
    softmax = loaded("SelfSure", "F.softmax").scores(X)
    assert softmax.isfinite().all()
    assert softmax.min().item() == pytest.approx(math.log(torch.finfo(torch.float32).tiny))
    sigmoid = loaded("SelfSure", "torch.sigmoid", head="sigmoid").scores(X)
    assert sigmoid.isfinite().all()
    assert sigmoid[:, 0].min() > 15
    assert sigmoid[:, 2].max() < -15


# What is no normalisation is left alone


@pytest.mark.parametrize(
    ("factory", "end", "head"),
    [
        ("Ends", "nothing", "softmax"),
        ("Ends", "half the softmax", "softmax"),
        ("Ends", "torch.sigmoid", "softmax"),  # the numbers that the operator's softmax was trained on
        ("sequential", "Sigmoid", "softmax"),
        ("sequential", "Softmax", "sigmoid"),
    ],
)
def test_other_answers_are_the_scores(factory: str, end: str, head: str) -> None:
    model = loaded(factory, end, head=head)
    assert model.score_kind == "logits"
    torch.testing.assert_close(model.scores(X), model.module(X), rtol=0, atol=0)


def test_numbers_that_add_up_to_one_by_chance_are_the_scores() -> None:
    assert loaded("Constant").score_kind == "logits"


def test_the_log_says_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "models"):
        loaded("Ends", "nothing")
        assert not caplog.messages
        loaded("Ends", "F.softmax")
    assert caplog.messages == ["model mine normalises its answer; the scores are: logarithms of the probabilities"]


def test_the_list_of_ends_is_used() -> None:
    assert set(ENDS) >= {*SOFTMAX, *LOG_SOFTMAX, *SIGMOID}
    assert Tiny().head.out_features == 2


def test_a_softmax_over_the_batch_is_no_normalisation_but_a_reason_to_refuse() -> None:
    with pytest.raises(UnsupportedModule, match="answers a picture by what else is in its batch"):
        loaded("Ends", "softmax of the batch")


def test_a_network_that_does_not_normalise_is_run_four_times_at_loading() -> None:
    """Once to see its answer, twice beside another picture, and once as a check."""
    model = loaded("Counts")
    assert model.module.calls == 4
