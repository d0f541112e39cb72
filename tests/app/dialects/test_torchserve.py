"""TorchServe's inference API."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import create_app
from app.config import Settings

MODEL = "efficientnet_lite0"


def answer(response: TestResponse) -> Any:
    assert response.status_code == 200, response.text
    assert response.content_type == "application/json"
    return json.loads(response.data)


def error(response: TestResponse) -> tuple[int, str, str]:
    """Return code, type and message, which have to be all there is."""
    assert response.content_type == "application/json"
    body = json.loads(response.data)
    assert set(body) == {"code", "type", "message"}
    assert body["code"] == response.status_code
    return body["code"], body["type"], body["message"]


def test_ping_is_healthy_once_the_models_are_ready(client: FlaskClient, models_dir: object) -> None:
    assert answer(client.get("/ping")) == {"status": "Healthy"}
    cold = create_app(Settings(models_dir=models_dir, default_model="small")).test_client().get("/ping")
    assert (cold.status_code, cold.json) == (503, {"status": "Unhealthy"})


@pytest.mark.parametrize("version", ["", "/1.0", "/1"])
def test_predictions_are_five_labels_with_their_probabilities(client: FlaskClient, cat: bytes, version: str) -> None:
    got = answer(client.put(f"/predictions/{MODEL}{version}", data=cat))  # as `curl -T` of TorchServe's examples
    ours = answer(client.put("/v1/predict", data=cat))["predictions"]
    assert list(got.items()) == [(row["label"], row["probability"]) for row in ours]
    assert len(got) == 5


def test_the_picture_may_be_the_part_data_of_a_form_with_the_options_beside_it(client: FlaskClient, cat: bytes) -> None:
    form = client.post(f"/explanations/{MODEL}?method=saliency", data={"data": (io.BytesIO(cat), "c"), "target": "285"})
    raw = client.post(f"/explanations/{MODEL}?method=saliency&target=285", data=cat)
    assert answer(form) == answer(raw)


def test_the_part_may_be_called_body_and_a_packed_form_is_refused(client: FlaskClient, cat: bytes) -> None:
    url = f"/predictions/{MODEL}"
    assert answer(client.post(url, data={"body": (io.BytesIO(cat), "c")})) == answer(client.post(url, data=cat))
    packed = client.post(url, data={"data": (io.BytesIO(cat), "c")}, headers={"Content-Encoding": "gzip"})
    assert error(packed)[0] == 415
    other = error(client.post(url, data={"image": (io.BytesIO(cat), "c")}))
    assert other[2] == "The picture has to be in the part 'data' of the form, alone; the form has 'image'."


def test_an_explanation_is_the_raw_signed_map_of_the_predicted_class_as_rows(client: FlaskClient, cat: bytes) -> None:
    rows = answer(client.post(f"/explanations/{MODEL}/1.0", data=cat))
    ours = np.load(io.BytesIO(client.post("/v1/explain?format=npy&max_side=256&target=predicted", data=cat).data))
    np.testing.assert_array_equal(np.array(rows, np.float32), ours)
    assert (len(rows), len(rows[0])) == (170, 256)  # 300 * 256 / 451 = 170.3
    other = answer(client.post(f"/explanations/{MODEL}?target=espresso&max_side=16", data=cat))
    assert (len(other), len(other[0])) == (11, 16)  # 300 * 16 / 451 = 10.6


def test_classes_that_share_a_label_are_all_there(tmp_path: Path, cat: bytes) -> None:
    birds = 'arch = "python:tests.zoo:Small"\nlabels = ["crane", "ant", "crane", "crane"]\nweights = "random"\n'
    preprocess = "[preprocess]\ninput_size = 32\nmean = [0.0, 0.0, 0.0]\nstd = [1.0, 1.0, 1.0]\n"
    (tmp_path / "birds.toml").write_text(birds + preprocess)
    app = create_app(Settings(models_dir=tmp_path, default_model="birds", torch_threads=1, load_wait_s=60))
    got = answer(app.test_client().put("/predictions/birds", data=cat))
    rows = answer(app.test_client().put("/v1/predict", data=cat))["predictions"]
    app.extensions["heatlens"].close()
    cranes = [row["index"] for row in rows if row["label"] == "crane"]  # the most probable first
    assert {name for name in got if name != "ant"} == {"crane", *(f"crane ({index})" for index in cranes[1:])}
    assert list(got.values()) == [row["probability"] for row in rows]


@pytest.mark.parametrize(
    ("path", "code", "type_", "part"),
    [
        ("/predictions/nothing", 404, "ModelNotFoundException", "'nothing'"),
        (f"/predictions/{MODEL}/2.0", 404, "ModelVersionNotFoundException", "no version '2.0'"),
        ("/predictions", 404, "ResourceNotFoundException", "not found"),
        (f"/explanations/{MODEL}?targett=1", 422, "BadRequestException", "did you mean 'target'"),
        (f"/explanations/{MODEL}?target=egyptian+catt", 422, "BadRequestException", "'Egyptian cat'"),
        (f"/explanations/{MODEL}?target=top3", 422, "BadRequestException", "one target"),
        (f"/explanations/{MODEL}?target=1&target=2", 422, "BadRequestException", "one target"),
        (f"/explanations/{MODEL}?max_side=513", 422, "BadRequestException", "512"),
        (f"/explanations/{MODEL}?format=png", 422, "BadRequestException", "format cannot be chosen here"),
        (f"/explanations/{MODEL}?model=small", 422, "BadRequestException", "model cannot be chosen here"),
        (f"/predictions/{MODEL}?model=small", 422, "BadRequestException", "model cannot be chosen here"),
    ],
)
def test_errors_have_its_shape(client: FlaskClient, cat: bytes, path: str, code: int, type_: str, part: str) -> None:
    got = error(client.post(path, data=cat))
    assert got[:2] == (code, type_)
    assert part in got[2]


def test_errors_of_the_request_itself_have_its_shape_too(client: FlaskClient, cat: bytes) -> None:
    url = f"/explanations/{MODEL}"
    wrong = client.get(url)
    assert error(wrong)[:2] == (405, "MethodNotAllowedException")
    assert "POST" in wrong.headers["Allow"]
    large = error(client.post(url, data=bytes(5 * 2**20)))
    assert large[0] == 413
    assert "HEATLENS_MAX_BODY_BYTES" in large[2]
    assert error(client.post(url, data=b"no picture"))[0] == 415
    assert error(client.post(url))[0] == 400
    late = error(client.post(url, data=cat, headers={"X-Request-Deadline-S": "0.000001"}))
    assert late[:2] == (504, "InternalServerException")
    for data in ({"image": (io.BytesIO(cat), "c")}, {"data": (io.BytesIO(b""), "c")}, {"target": "1"}):
        form = error(client.post(url, data=data, content_type="multipart/form-data"))
        assert form[0] == 400
        assert "'data'" in form[2]
    assert client.get("/nowhere").content_type == "application/problem+json"  # other paths stay as they are


def test_its_pictures_count_for_the_rate_limit_of_all() -> None:
    limited = create_app(Settings(torch_threads=1, rate_limit="3/hour")).test_client()
    paths = ["/v1/explain", f"/predictions/{MODEL}", f"/v1/models/{MODEL}:explain", f"/v2/models/{MODEL}/infer"]
    assert [limited.post(path).status_code for path in (*paths[1:], paths[0])] == [400, 400, 400, 429]
    shapes = [limited.post(path) for path in paths[1:]]
    assert [response.status_code for response in shapes] == [429] * 3
    assert all(int(response.headers["Retry-After"]) > 0 for response in shapes)
    assert [set(json.loads(response.data)) for response in shapes] == [
        {"code", "type", "message"},
        {"error"},
        {"error"},
    ]
