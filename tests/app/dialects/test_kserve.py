"""KServe's protocol v1, and the manifest of the example."""

import base64
import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from flask.testing import FlaskClient
from PIL import Image
from werkzeug.test import TestResponse

from app.config import Settings

URL = "/v1/models/efficientnet_lite0"
SMALL = "/v1/models/small"
EXAMPLE = Path(__file__).parents[3] / "examples/kserve/heatlens.yaml"


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def answer(response: TestResponse) -> Any:
    assert response.status_code == 200, response.text
    assert response.content_type == "application/json"
    return json.loads(response.data)


def error(response: TestResponse, status: int) -> str:
    assert (response.status_code, response.content_type) == (status, "application/json"), response.text
    body = json.loads(response.data)
    assert list(body) == ["error"]
    return str(body["error"])


def test_a_model_says_whether_it_is_ready(client: FlaskClient) -> None:
    ready, cold = (answer(client.get(f"/v1/models/{name}")) for name in ("efficientnet_lite0", "resnet18"))
    assert (ready["name"], ready["ready"]) == ("efficientnet_lite0", True)
    assert (cold["name"], cold["ready"]) == ("resnet18", False)


def test_predictions_are_those_of_our_own_route(client: FlaskClient, cat: bytes) -> None:
    body = {"instances": [{"image": b64(cat)}, {"image_bytes": b64(cat)}, b64(cat)], "parameters": {"top": 3}}
    got = answer(client.post(f"{URL}:predict", json=body))["predictions"]
    ours = answer(client.put("/v1/predict?top=3", data=cat))["predictions"]
    want = [{name: row[name] for name in ("index", "label", "probability")} for row in ours]
    assert got == [want] * 3


def test_explanations_are_those_of_our_own_route(client: FlaskClient, cat: bytes) -> None:
    parameters = {"target": "tabby", "versus": 285, "alpha": 0.5}
    body = {"instances": [{"image": b64(cat)}] * 2, "parameters": parameters}
    got = answer(client.post(f"{URL}:explain", json=body))
    assert len(got["predictions"]) == len(got["explanations"]) == 2
    query = "target=tabby&versus=285&alpha=0.5&max_side=256"
    values = np.load(io.BytesIO(client.post(f"/v1/explain?{query}&format=npy", data=cat).data))
    picture = client.post(f"/v1/explain?{query}&format=jpeg", data=cat).data
    facts = answer(client.post(f"/v1/explain?{query}&format=json", data=cat))
    for predictions, explanation in zip(got["predictions"], got["explanations"], strict=True):
        assert predictions == facts["predictions"]
        assert explanation["target"] == facts["explanations"][0]["target"]
        assert explanation["map"] == facts["explanations"][0]["map"]
        np.testing.assert_array_equal(np.array(explanation["heatmap"], np.float32), values)
        assert base64.b64decode(explanation["picture"]["b64"]) == picture


def test_arrays_are_pictures_too_whole_numbers_to_255_or_fractions_to_1(client: FlaskClient) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    fractions = (pixels / 255).tolist()  # 255 * (n / 255) rounds to n for every n
    instances = [b64(file.getvalue()), pixels.tolist(), {"image": pixels.tolist()}, fractions, [pixels.tolist()]]
    got = answer(client.post(f"{SMALL}:explain", json={"instances": instances, "parameters": {"view": "heatmap"}}))
    first = got["explanations"][0]
    assert np.shape(first["heatmap"]) == (20, 30)
    assert got["explanations"] == [first] * 5
    assert answer(client.post(f"{SMALL}:predict", json={"instances": instances}))["predictions"] == got["predictions"]


WRONG = [
    ({"b64": "!"}, 400, "b64 is not valid base64"),
    ({"b64": 7}, 400, "b64 has to be base64"),
    ({"image": {"b64": ""}}, 422, ""),
    ({"image": {"url": "http://example.com"}}, 400, 'image has to be {"b64": "..."}'),
    ({"image": b64(b"no picture")}, 415, "JPEG"),
    ({"picture": {"b64": ""}}, 400, '{"image": {"b64": "..."}}'),
    ("cat.jpg", 400, '{"image": {"b64": "..."}}'),
    ([[[1, 2, 3]], [[1, 2, 3], [1, 2, 3]]], 400, "differ in length"),
    ([], 400, "array of numbers"),
    ([[["a", "b", "c"]]], 400, "array of numbers"),
    ([[[True, False, True]]], 400, "array of numbers"),
    ([[[10**40, 0, 0]]], 400, "from 0 to 255"),
    ([[[10**400, 0, 0.5]]], 400, "all from 0 to 1"),
    ([[[0, 0.5, float("nan")]]], 400, "all from 0 to 1"),
    ([[[None, 1, 2]]], 400, "array of numbers"),
    ([[[{}, 1, 2]]], 400, "array of numbers"),
    ([[1, [2]]], 400, "array of numbers"),
    ([[[1], 2]], 400, "differ in length"),
    ([[[[[1]]]]], 400, "nested more than 4 deep"),
    ([[[0, 0, 256]]], 400, "from 0 to 255"),
    ([[[0, 0, -1]]], 400, "from 0 to 255"),
    ([[[0.5, 0, 1.5]]], 400, "all from 0 to 1"),
    ([[[float("nan"), 0, 0.5]]], 400, "all from 0 to 1"),
    ([1, 2, 3], 400, "shape (3,)"),
    ([[[[1]]], [[[2]]]], 400, "shape (2, 1, 1, 1)"),
    ([[[1] * 33]], 422, "planes"),
]


@pytest.mark.parametrize("verb", ["predict", "explain"])
def test_a_wrong_instance_is_named_by_its_place(client: FlaskClient, cat: bytes, verb: str) -> None:
    good = [[[9, 9, 9]] * 2] * 2
    for instance, status, part in WRONG:
        body = json.dumps({"instances": [good, instance, good]})
        said = error(client.post(f"{SMALL}:{verb}", data=body, content_type="application/json"), status)
        assert said.startswith("instances[1]: "), instance
        assert part in said, instance
    assert answer(client.post(f"{SMALL}:{verb}", json={"instances": [good]}))["predictions"]


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b"{", 400, "not valid JSON"),
        (b"[1]", 400, "an object"),
        (b"{}", 400, "instances has to be a list"),
        (b'{"instances": []}', 400, "instances has to be a list"),
        (b'{"instances": {"b64": ""}}', 400, "instances has to be a list"),
        (b'{"inputs": []}', 400, "'inputs'"),
        (b'{"instances": [[[9]]], "parameters": []}', 400, "parameters has to be an object"),
        (b'{"instances": [[[9]]], "parameters": {"methd": "lime"}}', 422, "did you mean 'method'?"),
        (b'{"instances": [[[9]]], "parameters": {"target": ["top2"]}}', 422, "one target"),
        (b'{"instances": [[[9]]], "parameters": {"model": "small"}}', 422, "model cannot be chosen here"),
        (b'{"instances": [[[9]]], "parameters": {"max_side": 1024}}', 422, "512"),
        (json.dumps({"instances": [[[9]]] * 17}).encode(), 422, "16 (HEATLENS_MAX_DIAGNOSTIC_PICTURES)"),
        (bytes(5 * 2**20), 413, "HEATLENS_MAX_BODY_BYTES"),
    ],
)
def test_a_wrong_request_is_refused_as_kserve_does(client: FlaskClient, body: bytes, status: int, part: str) -> None:
    said = error(client.post(f"{SMALL}:explain", data=body), status)
    assert part in said
    assert "instances[" not in said


def test_lists_that_are_no_numbers_cost_no_more_than_they_are_long(client: FlaskClient) -> None:
    """Of strings, NumPy makes an array in which each is as long as the longest: here some 80 GB."""
    long, many = "x" * 200_000, ["y"] * 100_000
    tracemalloc.start()
    try:
        for instance in ([long, *many], [[[long, *many]]], [[[0], [long]], *([[[0], [1]]] * 10_000)]):
            body = {"instances": [instance]}
            assert "array of numbers" in error(client.post(f"{SMALL}:predict", json=body), 400)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2**25  # a few copies of the body, of half a megabyte, and a pointer for each element


def test_the_numbers_of_one_answer_are_bounded(client: FlaskClient) -> None:
    body = {"instances": [[[9]]] * 5, "parameters": {"max_side": 512}}
    said = error(client.post(f"{SMALL}:explain", json=body), 422)
    assert "1310720 numbers" in said  # 5 * 512 * 512
    assert "limit is 1048576" in said
    assert "instances[" not in said


def test_what_is_no_instances_fault_names_none(client: FlaskClient, cat: bytes) -> None:
    for parameters, part in (({"target": "zebra crossing"}, "no class"), ({"layer": "nowhere"}, "'nowhere'")):
        said = error(client.post(f"{SMALL}:explain", json={"instances": [b64(cat)], "parameters": parameters}), 422)
        assert part in said
        assert "instances[" not in said
    late = client.post(f"{SMALL}:predict", json={"instances": [b64(cat)]}, headers={"X-Request-Deadline-S": "0.000001"})
    assert "instances[" not in error(late, 504)
    unknown = client.post("/v1/models/nothing:predict", json={"instances": [b64(cat)]})
    assert "instances[" not in error(unknown, 404)


def test_only_post_asks_and_only_version_1_is_there(client: FlaskClient) -> None:
    for verb in ("predict", "explain"):
        wrong = client.get(f"{SMALL}:{verb}")
        assert "method" in error(wrong, 405)
        assert "POST" in wrong.headers["Allow"]
        assert error(client.post(f"{SMALL}:{verb}/"), 405)
        old = client.post(f"{SMALL}/versions/2:{verb}", json={"instances": [[[9]]]})
        assert error(old, 404) == "Model 'small' has no version '2'; its only version is 1."
    said = error(client.post(f"{SMALL}:predict", json={"instances": [[[9]]], "parameters": {"tpo": 3}}), 422)
    assert said.endswith("valid is top.")


def test_errors_of_the_model_and_of_time_have_the_shape(client: FlaskClient) -> None:
    body = {"instances": [[[9]]]}
    assert "'nothing'" in error(client.post("/v1/models/nothing:predict", json=body), 404)
    for verb in ("predict", "explain"):
        late = client.post(f"{SMALL}:{verb}", json=body, headers={"X-Request-Deadline-S": "0.000001"})
        assert "X-Request-Deadline-S" in error(late, 504)
        packed = client.post(f"{SMALL}:{verb}", data=b"", headers={"Content-Encoding": "gzip"})
        assert "'gzip'" in error(packed, 415)


def test_the_manifest_has_settings_that_exist() -> None:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    for part in ("predictor", "explainer"):
        spec = manifest["spec"][part]
        assert spec["enableServiceLinks"] is False
        (container,) = spec["containers"]
        names = [variable["name"] for variable in container["env"]]
        assert {name.removeprefix("HEATLENS_").lower() for name in names} <= Settings.model_fields.keys()


@pytest.mark.server
def test_the_manifests_container_starts_with_what_kserve_appends_and_explains(tmp_path: Path, cat: bytes) -> None:
    (container,) = yaml.safe_load(EXAMPLE.read_text())["spec"]["explainer"]["containers"]
    appended = ["--model_name", "cats", "--predictor_host", "cats-predictor.default", "--http_port", "8080"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEATLENS_")}
    environment |= {variable["name"]: variable["value"] for variable in container["env"]}
    environment |= {"HEATLENS_PORT": "0", "HEATLENS_LOG_FORMAT": "text", "HEATLENS_DATA_DIR": str(tmp_path)}
    environment |= {"HEATLENS_WORKERS": "1", "HEATLENS_TORCH_THREADS": "1"}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [*container["command"], *appended]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            assert run.stdout is not None
            found = next(filter(None, (re.search(r"(http://\S+)/v1/explain", line) for line in run.stdout)))
            body = json.dumps({"instances": [{"image": b64(cat)}]}).encode()
            response = httpx.post(f"{found[1]}{URL}:explain", content=body, timeout=60)
            (explanation,) = response.json()["explanations"]
            assert explanation["target"]["label"] in {"tabby", "tiger cat", "Egyptian cat"}
        finally:
            run.terminate()
