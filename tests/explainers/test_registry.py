import inspect
from importlib import import_module

import pytest

from explainers import get, names
from explainers.errors import UnknownMethod
from explainers.registry import Method
from tests.explainers.checks import parameter_sets


def test_the_promised_methods_are_there() -> None:
    promised = """
        gradcam gradcam++ hirescam xgradcam layercam eigencam eigengradcam fullgrad scorecam ablationcam finercam
        saliency input_x_gradient smoothgrad vargrad integrated_gradients gradient_shap guided_backprop deconvnet
        guided_gradcam occlusion rise lime kernel_shap shapley_sampling attention_rollout grad_rollout legrad
    """
    assert set(promised.split()) <= set(names())
    assert names() == sorted(names())


@pytest.mark.parametrize("name", names())
def test_every_method_has_a_literal_twin(name: str) -> None:
    module = import_module(f"tests.references.{get(name).family}")
    source = inspect.getsource(module)
    assert callable(getattr(module, name.replace("+", "_plus")))
    assert "explainers" not in source.replace("tests.explainers", ""), "a twin is written from the paper alone"


@pytest.mark.parametrize("name", names())
def test_every_method_says_what_people_need_to_choose_it(name: str) -> None:
    method = get(name)
    assert isinstance(method, Method)
    assert method.name == name
    for text in (method.summary, method.weakness, method.sanity):
        assert text.endswith(".")
    assert method.sanity.startswith(("Passes", "Fails", "Not"))
    assert method.cost
    assert method.paper.startswith("https://")
    if "arxiv.org" in method.paper:
        assert method.paper.removeprefix("https://arxiv.org/abs/") in (inspect.getdoc(method.run) or "")
    assert method.max_layers >= 0
    assert 0 < method.display_percentile <= 100


@pytest.mark.parametrize("name", names())
def test_every_methods_parameters_have_defaults_and_refuse_the_unknown(name: str) -> None:
    parameters = get(name).parameters
    assert parameters.model_config.get("extra") == "forbid"
    assert parameters.model_config.get("frozen")
    parameters()  # every parameter has a default
    for chosen in parameter_sets(name):
        assert parameters.model_validate(chosen).model_dump().items() >= chosen.items()
    schema = parameters.model_json_schema()
    assert schema["additionalProperties"] is False
    assert all("description" in described for described in schema.get("properties", {}).values())


@pytest.mark.parametrize(
    ("wrong", "close"), [("grad-cam", "gradcam"), ("GradCAM", "gradcam"), ("salience", "saliency")]
)
def test_an_unknown_method_is_named_with_close_matches(wrong: str, close: str) -> None:
    with pytest.raises(UnknownMethod) as caught:
        get(wrong)
    assert caught.value.field == "method"
    assert caught.value.extra["choices"] == names()
    assert caught.value.extra["close_matches"][0] == close  # type: ignore[index]
    assert str(caught.value).startswith(f"There is no method {wrong!r}; did you mean {close!r}")


def test_an_unknown_method_like_none_is_answered_with_all() -> None:
    with pytest.raises(UnknownMethod) as caught:
        get("zzzzzz")
    assert all(name in str(caught.value) for name in names())
