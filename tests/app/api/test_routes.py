"""The other routes."""

import io
import json
import re

import pytest
from flask.testing import FlaskClient
from openapi_spec_validator import OpenAPIV31SpecValidator
from PIL import Image

from app import create_app
from app.config import Settings
from app.problems import documented_errors
from app.schemas.answers import LabelList, LayerList, ModelDetail, ModelList, PredictAnswer

_DOCUMENTED = (
    "/v1",
    "/v2",
    "/ping",
    "/predictions",
    "/explanations",
    "/labelstudio/",
    "/healthz",
    "/readyz",
    "/metrics",
)


def test_models_lists_the_default_first(client: FlaskClient) -> None:
    rows = ModelList.model_validate_json(client.get("/v1/models").data).models
    assert (rows[0].name, rows[0].default, rows[0].state, rows[0].weights) == (
        "efficientnet_lite0",
        True,
        "ready",
        "present",
    )
    by_name = {row.name: row for row in rows}
    assert by_name["small"].weights == "random"
    assert by_name["resnet50"].weights == "missing"
    assert len(rows) == len(by_name) > 80  # torchvision's 80, the default, the zoo


def test_a_model_before_and_after_loading(client: FlaskClient) -> None:
    before = ModelDetail.model_validate_json(client.get("/v1/models/resnet18").data)
    assert (before.state, before.architecture, before.classes) == ("not_loaded", "torchvision:resnet18", None)
    ready = ModelDetail.model_validate_json(client.get("/v1/models/efficientnet_lite0").data)
    assert (ready.input_size, ready.classes, ready.default_layer, ready.device) == ([224, 224], 1000, "bn2", "cpu")


def test_layers_are_in_order_and_the_default_is_among_them(client: FlaskClient) -> None:
    listing = LayerList.model_validate_json(client.get("/v1/models/small/layers").data)
    # 32 x 32 input, two convolutions with stride 2; the ReLUs are functions, not layers
    assert [(row.name, row.shape, row.spatial) for row in listing.layers] == [
        ("first", [1, 6, 16, 16], True),
        ("second", [1, 8, 8, 8], True),
        ("head", [1, 4], False),
    ]
    assert listing.default == "second"


def test_labels_are_searched_whatever_the_case(client: FlaskClient) -> None:
    found = LabelList.model_validate_json(client.get("/v1/models/efficientnet_lite0/labels?query=EGYPT").data)
    assert [(label.index, label.label) for label in found.labels] == [(285, "Egyptian cat")]
    first = LabelList.model_validate_json(client.get("/v1/models/efficientnet_lite0/labels?limit=2").data)
    assert (first.total, len(first.labels)) == (1000, 2)


def test_predict(client: FlaskClient, cat: bytes) -> None:
    answer = PredictAnswer.model_validate_json(client.put("/v1/predict?top=3", data=cat).data)
    assert {row.label for row in answer.predictions} == {"Egyptian cat", "tabby", "tiger cat"}
    assert [row.probability for row in answer.predictions] == sorted(
        (row.probability for row in answer.predictions), reverse=True
    )


@pytest.mark.parametrize(
    ("url", "status", "code", "field"),
    [
        ("/v1/models/nothing", 404, "unknown_model", "model"),
        ("/v1/models/nothing/layers", 404, "unknown_model", "model"),
        ("/v1/models/../../etc/passwd", 404, "unknown_model", "model"),
        ("/v1/models/small/labels?limit=0", 422, "bad_option", "limit"),
        ("/v1/models/small/labels?q=a", 422, "bad_option", "q"),
        ("/v1/nothing", 404, "not_found", None),
        ("/v1/explain", 405, "method_not_allowed", None),
    ],
)
def test_wrong_addresses_are_problems(client: FlaskClient, url: str, status: int, code: str, field: str | None) -> None:
    response = client.get(url)
    problem = json.loads(response.data)
    assert (response.status_code, problem["code"], problem.get("field")) == (status, code, field)
    assert response.content_type == "application/problem+json"


def test_loading_by_http_is_off_by_default(client: FlaskClient) -> None:
    response = client.post("/v1/models/small/load")
    assert (response.status_code, json.loads(response.data)["code"]) == (403, "admin_disabled")
    assert "HEATLENS_MODEL_ADMIN" in json.loads(response.data)["detail"]


def test_loading_by_http_where_allowed(models_dir: object) -> None:
    app = create_app(Settings(models_dir=models_dir, default_model="small", model_admin=True))
    client = app.test_client()
    for action, state in (("load", "ready"), ("unload", "not_loaded"), ("load", "ready")):
        response = client.post(f"/v1/models/binary/{action}")
        assert ModelDetail.model_validate_json(response.data).state == state
    app.extensions["heatlens"].close()


def test_ready_only_when_the_models_of_the_start_are(models_dir: object) -> None:
    app = create_app(Settings(models_dir=models_dir, default_model="small", models=("binary",)))
    client = app.test_client()
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200
    service = app.extensions["heatlens"]
    service.start()
    response = client.get("/readyz")
    assert (response.status_code, json.loads(response.data)["models"]) == (200, {"small": "ready", "binary": "ready"})
    service.close()


def test_the_openapi_document_is_valid_and_names_every_route(client: FlaskClient) -> None:
    document = json.loads(client.get("/openapi.json").data)
    OpenAPIV31SpecValidator(document).validate()
    assert document["openapi"].startswith("3.1")
    rules = {
        re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        for rule in client.application.url_map.iter_rules()
        if rule.rule.startswith(_DOCUMENTED) and "_version" not in rule.rule  # a model has one version
    }
    assert set(document["paths"]) == rules
    operation = document["paths"]["/v1/explain"]["post"]
    assert set(operation["requestBody"]["content"]) == {
        "image/*",
        "application/octet-stream",
        "multipart/form-data",
        "application/json",
    }
    names = {parameter["name"] for parameter in operation["parameters"]}
    assert {"model", "method", "target", "alpha", "reduction"} <= names
    assert "image/jpeg" in operation["responses"]["200"]["content"]
    # A client that fills in what the document offers must not send the defaults of methods that it did not ask for.
    assert not any("default" in parameter["schema"] for parameter in operation["parameters"])
    identifiers = [o["operationId"] for path in document["paths"].values() for o in path.values()]
    assert "explain" in identifiers
    assert len(identifiers) == len(set(identifiers))


def test_every_answer_carries_the_security_headers(client: FlaskClient) -> None:
    for url in ("/", "/docs", "/v1/models", "/nothing", "/static/cat.jpg"):
        with client.get(url) as response:
            headers = response.headers
        assert headers["X-Content-Type-Options"] == "nosniff", url
        assert headers["Referrer-Policy"] == "no-referrer", url
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"], url


def test_every_error_code_is_documented_once(client: FlaskClient) -> None:
    codes = [error.code for error in documented_errors()]
    assert len(codes) == len(set(codes))
    page = client.get("/docs/errors").text
    assert all(f'id="{code}"' in page for code in codes)
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "PNG")
    field = b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\n' + b"x" * 600_000 + b"\r\n--b--\r\n"
    answers = [
        client.put("/v1/explain?alpha=2", data=picture.getvalue()),
        client.put("/v1/explain", data=b"x"),
        client.get("/nowhere"),
        client.delete("/v1/models"),
        client.post("/v1/explain", data={f"f{n}": "1" for n in range(200)}, content_type="multipart/form-data"),
        client.post("/v1/explain", data=field, content_type="multipart/form-data; boundary=b"),
        client.post("/v1/explain", data=bytes(5 * 2**20)),
    ]
    found = [json.loads(answer.data)["type"] for answer in answers]
    assert len(set(found)) == 6
    assert all(f'id="{type_.removeprefix("/docs/errors#")}"' in page for type_ in found)
