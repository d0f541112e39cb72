"""`/v1/diagnostics/*` over HTTP: what is asked reaches the model, and comes back in every format."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from werkzeug.test import TestResponse

from app.config import Settings
from app.diagnosing import Diagnostics
from app.schemas.answers import PredictAnswer
from app.schemas.diagnostics import ActivationAnswer, ActivationOptions, GradientFlowAnswer, SensitivityAnswer
from app.service import Service
from models.errors import NonFiniteOutput
from tests.support import PICTURES

FLOW, ACTIVATIONS, SENSITIVITY = "gradient-flow", "activations", "sensitivity"


def ask(client: FlaskClient, route: str, picture: bytes, query: str = "") -> TestResponse:
    return client.put(f"/v1/diagnostics/{route}?{query}", data=picture)


def ask_several(client: FlaskClient, route: str, pictures: list[bytes], **fields: Any) -> TestResponse:
    parts = {"image": [(io.BytesIO(picture), "p.png") for picture in pictures], **fields}
    return client.post(f"/v1/diagnostics/{route}", data=parts, content_type="multipart/form-data")


def problem(response: TestResponse, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = json.loads(response.data)
    assert body["code"] == code
    return dict(body)


def arrays(response: TestResponse) -> dict[str, np.ndarray]:
    assert response.status_code == 200, response.text
    with np.load(io.BytesIO(response.data)) as found:
        return dict(found)


def flow(response: TestResponse) -> GradientFlowAnswer:
    assert response.status_code == 200, response.text
    return GradientFlowAnswer.model_validate_json(response.data)


def activity(response: TestResponse) -> ActivationAnswer:
    assert response.status_code == 200, response.text
    return ActivationAnswer.model_validate_json(response.data)


def small(name: str) -> bytes:
    """A picture whose form fits into memory, so that the test client makes no file of it."""
    buffer = io.BytesIO()
    with Image.open(PICTURES / name) as picture:
        picture.convert("RGB").resize((300, 200)).save(buffer, "JPEG")
    return buffer.getvalue()


def white() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), "white").save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def cat() -> bytes:
    return small("chelsea.png")


@pytest.fixture(scope="module")
def coffee() -> bytes:
    return small("coffee.png")


# --- gradient flow


def test_the_embedded_model_is_healthy_and_every_layer_is_listed(client: FlaskClient, cat: bytes) -> None:
    answer = flow(ask(client, FLOW, cat))
    assert answer.verdict.kind == "ok"
    assert answer.verdict.findings == []
    assert answer.layers[0].name == "conv_stem"
    assert answer.layers[-1].name == "classifier"
    assert all(layer.grad_output_norm for layer in answer.layers if layer.type in ("Conv2d", "Linear"))
    weight = next(each for each in answer.layers[0].parameters if each.name == "weight")
    assert weight.shape == [32, 3, 3, 3]
    assert weight.ratio == pytest.approx((weight.gradient_norm or 0) / weight.norm)
    predicted = PredictAnswer.model_validate_json(client.put("/v1/predict", data=cat).data).predictions[0]
    assert answer.objective.classes == [predicted.index]
    assert answer.objective.value == pytest.approx(predicted.score, abs=1e-3)  # the folded network rounds otherwise


def test_with_a_label_the_gradient_is_that_of_the_loss(client: FlaskClient, cat: bytes, coffee: bytes) -> None:
    names = ["tabby", "espresso"]
    answer = flow(ask_several(client, FLOW, [cat, coffee], label=names))
    expected = []
    for picture, name in zip((cat, coffee), names, strict=True):
        found = PredictAnswer.model_validate_json(client.put("/v1/predict?top=1000", data=picture).data).predictions
        expected.append(-math.log(next(each.probability for each in found if each.label == name)))
    assert answer.objective.kind == "cross_entropy"
    assert answer.pictures == 2
    assert answer.objective.value == pytest.approx(sum(expected) / 2, abs=1e-3)
    # d loss / d logit = p - 1 for the label: the classifier's bias gets minus the others' sum, so its norm is below 2.
    bias = next(each for each in answer.layers[-1].parameters if each.name == "bias")
    assert bias.gradient_norm is not None
    assert 0 < bias.gradient_norm < math.sqrt(2)


@pytest.mark.parametrize(("format_", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_chart_is_a_picture(client: FlaskClient, cat: bytes, format_: str, begins: bytes) -> None:
    response = ask(client, FLOW, cat, f"format={format_}")
    assert response.data.startswith(begins)
    assert response.content_type == {"svg": "image/svg+xml", "png": "image/png"}[format_]
    by_header = client.put("/v1/diagnostics/gradient-flow", data=cat, headers={"Accept": response.content_type})
    assert by_header.data.startswith(begins)


def test_a_gradient_leaves_the_model_as_it_was(client: FlaskClient, cat: bytes) -> None:
    host = client.application.extensions["heatlens"].hosts.ready("efficientnet_lite0")
    before = client.put("/v1/explain?format=npy", data=cat).data
    ask(client, FLOW, cat)
    assert not any(p.requires_grad or p.grad is not None for p in host.model.module.parameters())
    assert client.put("/v1/explain?format=npy", data=cat).data == before


def test_a_branch_without_gradient_is_named(client: FlaskClient, cat: bytes) -> None:
    answer = flow(ask(client, FLOW, cat, "model=branch"))
    (finding,) = answer.verdict.findings
    assert (finding.kind, finding.layers) == ("disconnected", ["mask"])
    mask = next(layer for layer in answer.layers if layer.name == "mask")
    assert mask.grad_output_norm is None
    assert all(parameter.gradient_norm is None for parameter in mask.parameters)


def test_a_bright_picture_that_makes_nan_is_told_where(client: FlaskClient) -> None:
    answer = flow(ask(client, FLOW, white(), "model=nan&target=0"))
    assert answer.verdict.kind == "non_finite"
    assert answer.verdict.findings


def test_a_model_that_always_answers_nan_is_told_where(client: FlaskClient, cat: bytes) -> None:
    """Its second layer's weight is damaged: all before it is sound."""
    for query in ("model=always_nan", "model=always_nan&label=2"):
        answer = flow(ask(client, FLOW, cat, query))
        assert answer.verdict.kind == "non_finite"
        assert answer.verdict.findings[0].layers[0] == "second"
        assert answer.objective.value is None
    layers = {layer.name: layer for layer in activity(ask(client, ACTIVATIONS, cat, "model=always_nan")).layers}
    assert layers["first"].nan == 0
    assert layers["second"].nan == 8 * 8  # one of eight channels
    assert layers["head"].nan == 4


@pytest.mark.parametrize("route", ["explain", "predict", "explain?format=json&target=nothing"])
def test_what_needs_scores_is_refused_for_such_a_model(client: FlaskClient, cat: bytes, route: str) -> None:
    parts = f"/v1/{route}{'&' if '?' in route else '?'}model=always_nan"
    for _ in range(2):  # loading it, and once it is there
        found = problem(client.put(parts, data=cat), 500, "non_finite_output")
        assert "'always_nan' answers NaN or infinity" in found["detail"]
    body = json.loads(client.get("/v1/models/always_nan").data)
    assert (body["state"], body["default_layer"]) == ("ready", None)
    refused = problem(ask(client, SENSITIVITY, cat, "model=always_nan"), 422, "no_default_layer")
    assert "it answers NaN or infinity" in refused["detail"]


def test_such_a_model_is_none_to_start_with(models_dir: Path) -> None:
    service = Service(Settings(models_dir=models_dir, default_model="always_nan", torch_threads=1))
    try:
        with pytest.raises(NonFiniteOutput, match="answers NaN or infinity"):
            service.start()
    finally:
        service.close()


def test_the_predicted_class_of_a_picture_without_scores_is_no_reason_to_fail(client: FlaskClient) -> None:
    answer = flow(ask(client, FLOW, white(), "model=nan"))
    assert answer.verdict.kind == "non_finite"
    assert answer.objective.classes == [0]


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("target=1&label=1", "bad_option", "label"),
        ("target=1&target=2", "bad_option", "target"),
        ("label=1000", "target_out_of_range", "label"),
        ("target=caat", "unknown_label", "target"),
        ("format=npz", "bad_option", "format"),
        ("layer=bn1", "unknown_option", "layer"),
        ("model=small&target=0&target=1", "bad_option", "target"),
    ],
)
def test_what_is_wrong_is_named(client: FlaskClient, cat: bytes, query: str, code: str, field: str) -> None:
    assert problem(ask(client, FLOW, cat, query), 422, code)["field"] == field


def test_more_pictures_than_allowed_are_refused(client: FlaskClient, cat: bytes) -> None:
    found = problem(ask_several(client, FLOW, [cat] * 17), 422, "limit_exceeded")
    assert found["limit"] == 16
    assert "HEATLENS_MAX_DIAGNOSTIC_PICTURES" in found["detail"]
    found = problem(ask_several(client, ACTIVATIONS, [cat] * 2, model="single"), 422, "limit_exceeded")
    assert found["limit"] == 1


def test_several_pictures_go_to_no_route_for_one(client: FlaskClient, cat: bytes) -> None:
    found = problem(ask_several(client, SENSITIVITY, [cat] * 2), 400, "bad_request_body")
    assert found["field"] == "image"


# --- activations


def test_all_layers_are_measured_over_all_pictures(client: FlaskClient, cat: bytes, coffee: bytes) -> None:
    answer = activity(ask_several(client, ACTIVATIONS, [cat, coffee]))
    assert answer.pictures == 2
    assert answer.embeddings is None
    names = [layer.name for layer in answer.layers]
    assert (names[0], names[-1]) == ("conv_stem", "classifier")
    stem = answer.layers[0]
    assert stem.shape == [2, 32, 112, 112]
    assert stem.min is not None
    assert stem.max is not None
    assert stem.mean is not None
    assert stem.min < stem.mean < stem.max
    logits = answer.layers[-1]
    tops = [
        PredictAnswer.model_validate_json(client.put("/v1/predict", data=picture).data).predictions[0].score
        for picture in (cat, coffee)
    ]
    assert logits.max == pytest.approx(max(tops), abs=1e-3)


def test_one_layer_gives_its_numbers(client: FlaskClient, cat: bytes, coffee: bytes) -> None:
    found = arrays(ask_several(client, ACTIVATIONS, [cat, coffee, cat], layer="blocks.2.1", format="npz"))
    assert found["features"].shape == (3, 40, 28, 28)
    assert "grid" not in found  # it is the features themselves
    np.testing.assert_allclose(found["embeddings"], found["features"].mean((2, 3)), rtol=1e-5)
    unit = found["embeddings"] / np.linalg.norm(found["embeddings"], axis=1, keepdims=True)
    np.testing.assert_allclose(found["similarity"], unit @ unit.T, atol=1e-5)
    assert found["similarity"][0, 2] == pytest.approx(1, abs=1e-5)  # the same picture
    answer = activity(ask_several(client, ACTIVATIONS, [cat, coffee, cat], layer="blocks.2.1"))
    assert answer.embeddings is not None
    np.testing.assert_allclose(np.array(answer.embeddings.vectors, float), found["embeddings"], rtol=1e-5)
    np.testing.assert_allclose(np.array(answer.embeddings.similarity, float), found["similarity"], atol=1e-6)


@pytest.mark.parametrize("layer", ["window", "query"])
def test_a_layer_whose_rows_are_no_pictures_has_no_embeddings(client: FlaskClient, cat: bytes, layer: str) -> None:
    for pictures in ([cat], [cat, cat]):
        query = {"model": "windows", "layer": layer}
        answer = activity(ask_several(client, ACTIVATIONS, pictures, **query))
        assert answer.embeddings is not None
        assert (answer.embeddings.vectors, answer.embeddings.similarity) == (None, None)
        assert "no vector per picture" in (answer.embeddings.missing or "")
        found = arrays(ask_several(client, ACTIVATIONS, pictures, **query, format="npz"))
        assert sorted(found) == ["features"]
        assert found["features"].shape == (
            (4 * len(pictures), 64, 6) if layer == "window" else (len(pictures), 2, 256, 3)
        )


def test_features_that_are_not_finite_are_given_as_they_are(client: FlaskClient, cat: bytes) -> None:
    query = {"model": "nan_inside", "layer": "second"}
    found = arrays(ask_several(client, ACTIVATIONS, [cat, white(), cat], **query, format="npz"))
    np.testing.assert_array_equal(np.isnan(found["features"]).all((1, 2, 3)), [False, True, False])
    expected = np.array([[1, np.nan, 1], [np.nan] * 3, [1, np.nan, 1]])
    np.testing.assert_allclose(found["similarity"], expected, atol=1e-5)
    answer = activity(ask_several(client, ACTIVATIONS, [cat, white(), cat], **query))
    assert answer.embeddings is not None
    assert answer.embeddings.similarity is not None
    assert answer.embeddings.similarity[1] == [None] * 3
    assert answer.embeddings.similarity[0][2] == pytest.approx(1, abs=1e-5)
    assert answer.embeddings.vectors is not None
    assert answer.embeddings.vectors[1] == [None] * 8
    assert "to picture 2" in (answer.embeddings.missing or "")
    refused = problem(ask(client, ACTIVATIONS, white(), "model=nan_inside&layer=second&format=png"), 422, "bad_option")
    assert refused["choices"] == ["json", "npz"]


def test_a_feature_picture_may_not_be_larger_than_allowed(client: FlaskClient, cat: bytes) -> None:
    found = problem(ask(client, ACTIVATIONS, cat, "layer=blocks.2.1&format=png&max_side=100000"), 422, "limit_exceeded")
    assert found["field"] == "max_side"


def test_arrays_take_no_second_forward_pass(client: FlaskClient, cat: bytes) -> None:
    diagnostics = Diagnostics(client.application.extensions["heatlens"])
    options = ActivationOptions(model="small", layer="second")
    assert diagnostics.activations([cat], options, measured=False).layers == ()
    assert [layer.name for layer in diagnostics.activations([cat], options).layers] == ["first", "second", "head"]
    ran = 'heatlens_model_seconds_count{method="activations",model="small"}'
    before = _number_of(client, ran)
    arrays(ask(client, ACTIVATIONS, cat, "model=small&layer=second&format=npz"))
    assert _number_of(client, ran) == before
    activity(ask(client, ACTIVATIONS, cat, "model=small&layer=second"))
    assert _number_of(client, ran) == before + 1


def _number_of(client: FlaskClient, name: str) -> float:
    page = client.application.extensions["heatlens"].metrics.page().decode()
    return next((float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name)), 0.0)


@pytest.mark.parametrize("format_", ["png", "jpeg", "webp"])
def test_feature_maps_are_drawn(client: FlaskClient, cat: bytes, format_: str) -> None:
    response = ask(client, ACTIVATIONS, cat, f"layer=blocks.2.1&format={format_}&max_side=400")
    with Image.open(io.BytesIO(response.data)) as picture:
        assert picture.format == format_.upper()
        assert max(picture.size) <= 400


def test_a_layer_without_places_has_numbers_but_no_picture(client: FlaskClient, cat: bytes) -> None:
    found = arrays(ask(client, ACTIVATIONS, cat, "layer=classifier&format=npz"))
    assert "grid" not in found
    assert found["features"].shape == (1, 1000)
    refused = problem(ask(client, ACTIVATIONS, cat, "layer=classifier&format=png"), 422, "bad_option")
    assert refused["choices"] == ["json", "npz"]


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("format=npz", "bad_option", "format"),
        ("format=jpeg", "bad_option", "format"),
        ("layer=bn1&format=svg", "bad_option", "format"),
        ("layer=blocks.2.11", "unknown_layer", "layer"),
        ("layer=", None, None),
    ],
)
def test_what_a_layer_cannot_give_is_named(
    client: FlaskClient, cat: bytes, query: str, code: str | None, field: str | None
) -> None:
    response = ask(client, ACTIVATIONS, cat, query)
    if code is None:
        assert activity(response).embeddings is None  # an empty field is one that was left out
    else:
        assert problem(response, 422, code)["field"] == field


def test_features_beyond_the_limit_are_refused_before_they_are_made(client: FlaskClient, cat: bytes) -> None:
    service = client.application.extensions["heatlens"]
    before = service.settings
    service.settings = before.model_copy(update={"max_feature_bytes": 4 * 40 * 28 * 28 - 1})
    try:
        found = problem(ask(client, ACTIVATIONS, cat, "layer=blocks.2.1&format=npz"), 422, "limit_exceeded")
    finally:
        service.settings = before
    assert "HEATLENS_MAX_FEATURE_BYTES" in found["detail"]


# --- sensitivity


def test_a_logit_of_the_last_layer_is_what_saliency_explains(client: FlaskClient, cat: bytes) -> None:
    unit = arrays(ask(client, SENSITIVITY, cat, "layer=classifier&channel=285&format=npz"))
    saliency = arrays(client.put("/v1/explain?method=saliency&target=285&format=npz", data=cat))
    np.testing.assert_allclose(unit["raw"], saliency["raw"][0], rtol=1e-3, atol=1e-6)
    answer = SensitivityAnswer.model_validate_json(
        ask(client, SENSITIVITY, cat, "layer=classifier&channel=285&format=json").data
    )
    assert answer.unit.value == pytest.approx(saliency["scores"][0], abs=1e-3)


def test_a_place_is_sensitive_to_its_own_part_of_the_picture(client: FlaskClient, cat: bytes) -> None:
    """Two 3 x 3 convolutions of stride 2: cell (1, 6) of 8 x 8 sees rows 1 to 7 and columns 21 to 27 of 32."""
    found = arrays(ask(client, SENSITIVITY, cat, "model=small&layer=second&channel=0&row=1&column=6&format=npz"))["raw"]
    rows, columns = np.nonzero(found)
    assert rows.size > 0
    assert (rows.min() >= 1, rows.max() <= 7, columns.min() >= 21, columns.max() <= 27) == (True,) * 4


@pytest.mark.parametrize("format_", ["jpeg", "png", "webp", "npy"])
def test_every_format_of_a_map_can_be_had(client: FlaskClient, cat: bytes, format_: str) -> None:
    response = ask(client, SENSITIVITY, cat, f"channel=0&format={format_}")
    assert response.status_code == 200, response.text
    if format_ == "npy":
        assert np.load(io.BytesIO(response.data)).shape == (200, 300)
    else:
        with Image.open(io.BytesIO(response.data)) as picture:
            assert picture.size == (300, 200)


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("row=1", "bad_parameter", "column"),
        ("channel=1280", "bad_parameter", "channel"),
        ("row=7&column=0", "bad_parameter", "row"),
        ("layer=classifier&row=0&column=0", "bad_parameter", "row"),
        ("layer=nowhere", "unknown_layer", "layer"),
        ("channel=-1", "bad_option", "channel"),
        ("max_side=100000", "limit_exceeded", "max_side"),
        ("view=layer&format=jpeg", "bad_option", "format"),
    ],
)
def test_a_unit_that_is_not_there_is_named(client: FlaskClient, cat: bytes, query: str, code: str, field: str) -> None:
    assert problem(ask(client, SENSITIVITY, cat, query), 422, code)["field"] == field


def test_a_block_with_layers_inside_has_numbers_too(client: FlaskClient, cat: bytes) -> None:
    answer = activity(ask(client, ACTIVATIONS, cat, "layer=blocks.2.1"))
    (block,) = answer.layers
    assert (block.name, block.shape) == ("blocks.2.1", [1, 40, 28, 28])
    found = arrays(ask(client, ACTIVATIONS, cat, "layer=blocks.2.1&format=npz"))
    assert block.mean == pytest.approx(float(found["features"].mean()), abs=1e-5)


def test_more_pictures_than_the_memory_has_room_for_are_refused(client: FlaskClient, cat: bytes) -> None:
    """`small` answers with 6 x 16 x 16 and 8 x 8 x 8 numbers, its head with 4, and so does the whole."""
    service = client.application.extensions["heatlens"]
    before = service.settings
    each = 4 * (6 * 16 * 16 + 8 * 8 * 8 + 4)
    for limit, allowed in ((2 * each - 1, 1), (2 * each, 2)):
        service.settings = before.model_copy(update={"max_activation_bytes": limit})
        try:
            answers = {n: ask_several(client, FLOW, [cat] * n, model="small").status_code for n in (1, 2, 3)}
        finally:
            service.settings = before
        assert answers == {n: 200 if n <= allowed else 422 for n in (1, 2, 3)}
