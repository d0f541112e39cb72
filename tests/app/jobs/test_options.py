"""What a job can be asked for, and what is refused before it is accepted."""

from typing import Any

import pytest
from flask.testing import FlaskClient
from pydantic import SecretStr

from app.config import Settings
from app.jobs.options import from_json, read_options, to_json
from app.known_errors import KNOWN_ERRORS
from app.schemas.options import ExplainOptions
from app.service import Service

SECRET = SecretStr("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")


@pytest.fixture(scope="module")
def service(client: FlaskClient) -> Service:
    """With the embedded model in memory."""
    found = client.application.extensions["heatlens"]
    assert isinstance(found, Service)
    return found


@pytest.fixture(scope="module")
def unloaded() -> Service:
    """Of a process that has loaded nothing, and is to load nothing for this."""
    return Service(Settings(webhook_secret=SECRET, default_model="resnet50"))


def refused(service: Service, **given: Any) -> Any:
    with pytest.raises(KNOWN_ERRORS) as raised:
        read_options(service, given)
    return raised.value


def test_nothing_need_be_said(unloaded: Service) -> None:
    options, parameters = read_options(unloaded, {"model": "efficientnet_lite0"})
    assert options.artifacts == ["overlay"]
    assert options.picture_format == "jpeg"
    assert (options.name, options.webhook, dict(parameters)) == ("", None, {})


def test_a_job_takes_whatever_an_explanation_takes() -> None:
    from app.jobs.options import JobOptions

    assert JobOptions.model_fields.keys() - ExplainOptions.model_fields.keys() == {"artifacts", "name", "webhook"}
    assert ExplainOptions.model_fields.keys() - JobOptions.model_fields.keys() == {"values"}  # of JSON answers


def test_what_is_stored_is_what_was_given_and_comes_back(service: Service) -> None:
    given = {
        "method": "rise",
        "target": ["tabby", 3],
        "view": "layer",
        "artifacts": ["map", "overlay"],
        "seed": "7",
        "name": "mine",
    }
    asked = read_options(service, given)
    stored = to_json(asked)
    assert stored == {name: value for name, value in given.items() if name != "name"}
    again = from_json(stored)
    assert again.options == asked.options.model_copy(update={"name": ""})
    assert again.parameters == {"seed": "7"}
    assert again.options.picture_format == "png"  # a layer is transparent


def test_one_value_of_a_repeatable_option_may_stand_alone(service: Service) -> None:
    asked = read_options(service, {"target": "tabby", "artifacts": "map"})
    assert (asked.options.target, asked.options.artifacts) == (["tabby"], ["map"])


def test_an_artifact_given_twice_is_made_once(service: Service) -> None:
    assert read_options(service, {"artifacts": ["map", "map"]}).options.artifacts == ["map"]


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        ({"metod": "gradcam"}, "unknown_option", "metod"),
        ({"artifacts": ["overlays"]}, "bad_option", "artifacts"),
        ({"artifacts": []}, "bad_option", "artifacts"),
        ({"format": "npz"}, "bad_option", "format"),
        ({"format": "json"}, "bad_option", "format"),
        ({"view": "layer", "format": "jpeg"}, "bad_option", "format"),
        ({"alpha": 2}, "bad_option", "alpha"),
        ({"name": "n" * 201}, "bad_option", "name"),
        ({"model": "alexnet9"}, "unknown_model", "model"),
        ({"method": "gradcam3"}, "unknown_method", "method"),
        ({"method": "rise", "seed": -1}, "bad_parameter", "seed"),
        ({"method": "gradcam", "seed": 1}, "bad_parameter", "seed"),
        ({"method": "eigencam", "versus": 1}, "versus_not_taken", "versus"),
        ({"max_side": 5000}, "limit_exceeded", "max_side"),
        ({"target": list(range(11))}, "limit_exceeded", "target"),
        ({"layer": ["a", "a"]}, "layer_not_taken", "layer"),
    ],
)
def test_what_shows_without_the_model_is_refused(
    unloaded: Service, given: dict[str, Any], code: str, field: str
) -> None:
    error = refused(unloaded, **{"model": "efficientnet_lite0", **given})
    assert (error.code, error.field) == (code, field)


def test_a_model_without_its_weights_is_refused(unloaded: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.loading.weights_present", lambda spec: False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refused(unloaded, model="vit_b_16").code == "weights_unavailable"
    assert unloaded.hosts.peek("vit_b_16") is None


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        ({"target": ["no such label"]}, "unknown_label", "target"),
        ({"target": ["tabby", 1000]}, "target_out_of_range", "target"),
        ({"target": [-1]}, "target_out_of_range", "target"),
        ({"versus": "no such label"}, "unknown_label", "versus"),
        ({"versus": 1000}, "target_out_of_range", "versus"),
        ({"target": ["top11"]}, "limit_exceeded", "target"),
        ({"layer": ["blocks.99"]}, "unknown_layer", "layer"),
    ],
)
def test_what_the_loaded_model_can_tell_is_refused(
    service: Service, given: dict[str, Any], code: str, field: str
) -> None:
    error = refused(service, **given)
    assert (error.code, error.field) == (code, field)


def test_what_only_the_model_can_tell_passes_while_it_is_not_loaded(unloaded: Service) -> None:
    asked = read_options(unloaded, {"model": "efficientnet_lite0", "target": ["no such label", 1000]})
    assert asked.options.target == ["no such label", 1000]
    assert unloaded.hosts.peek("efficientnet_lite0") is None


def test_a_webhook_needs_a_secret(service: Service) -> None:
    error = refused(service, webhook="https://example.org/hook")
    assert (error.code, error.field) == ("bad_webhook", "webhook")
    assert "HEATLENS_WEBHOOK_SECRET" in str(error)


@pytest.mark.parametrize(
    "webhook",
    [
        "http://example.org/hook",
        "ftp://example.org/",
        "example.org",
        "https://",
        "https://user:word@example.org/",
        "https://example.org:99999/",
        "https://[::1",
        "https://example.org/a\nb",
    ],
)
def test_a_webhook_that_can_never_be_called_is_refused(unloaded: Service, webhook: str) -> None:
    assert refused(unloaded, model="efficientnet_lite0", webhook=webhook).code == "bad_webhook"


def test_http_is_for_private_webhooks() -> None:
    service = Service(Settings(webhook_secret=SECRET, webhook_private=True))
    for url in ("http://10.0.0.1:8080/hook", "https://example.org/hook?job=1"):
        assert read_options(service, {"webhook": url}).options.webhook == url
