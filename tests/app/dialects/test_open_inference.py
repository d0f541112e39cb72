"""The Open Inference Protocol v2: by Triton's own client against a real server, and byte by byte."""

import base64
import io
import json
import struct
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import httpx
import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException
from werkzeug.test import TestResponse

from app.dialects.open_inference import LENGTH_HEADER
from tests.conftest import Server

MODEL = "efficientnet_lite0"
INFER = f"/v2/models/{MODEL}/infer"
SMALL = "/v2/models/small/infer"
OUTPUTS = ["heatmap", "overlay", "label", "probability"]


def answer(response: TestResponse) -> Any:
    assert response.status_code == 200, response.text
    assert response.content_type == "application/json"
    return json.loads(response.data)


def error(response: TestResponse, status: int) -> str:
    assert (response.status_code, response.content_type) == (status, "application/json"), response.text
    body = json.loads(response.data)
    assert list(body) == ["error"]
    return str(body["error"])


def picture(data: bytes, **more: Any) -> dict[str, Any]:
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(data).decode()]}
    return {"inputs": [tensor], **more}


def samples(pixels: np.ndarray, **more: Any) -> dict[str, Any]:
    tensor = {"name": "image", "datatype": "UINT8", "shape": list(pixels.shape), "data": pixels.ravel().tolist()}
    return {"inputs": [{**tensor, **more}]}


PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
GOOD = samples(PIXELS)


# Triton's client


@pytest.fixture
def triton(server: Server) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.url.removeprefix("http://"), network_timeout=60) as client:
        yield client


@pytest.mark.server
def test_the_client_finds_server_and_models(triton: InferenceServerClient) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.get_server_metadata()["version"] == version("heatlens")
    assert triton.is_model_ready(MODEL)
    assert triton.is_model_ready(MODEL, "1")
    assert not triton.is_model_ready("resnet18")
    assert not triton.is_model_ready(MODEL, "2")
    found = triton.get_model_metadata(MODEL, "1")
    assert [output["name"] for output in found["outputs"]] == OUTPUTS
    assert found["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [1]}]
    with pytest.raises(InferenceServerException, match="There is no model 'nothing'"):
        triton.get_model_metadata("nothing")


@pytest.mark.server
@pytest.mark.parametrize("binary", [True, False])
def test_the_client_gets_what_our_own_route_answers(
    triton: InferenceServerClient, server: Server, cat: bytes, binary: bool
) -> None:
    sent = InferInput("image", [1], "BYTES")
    content = cat if binary else base64.b64encode(cat)
    sent.set_data_from_numpy(np.array([content], np.object_), binary_data=binary)
    outputs = [InferRequestedOutput(name, binary_data=binary) for name in OUTPUTS]
    got: InferResult = triton.infer(
        MODEL, [sent], model_version="1", outputs=outputs, request_id="cat-7", parameters={"target": "tabby"}
    )
    assert got.get_response()["id"] == "cat-7"
    assert (got.get_response()["model_name"], got.get_response()["model_version"]) == (MODEL, "1")
    url = f"{server.url}/v1/explain?target=tabby&max_side=512"
    heat = np.load(io.BytesIO(httpx.post(f"{url}&format=npy", content=cat, timeout=60).content))
    np.testing.assert_array_equal(got.as_numpy("heatmap"), heat)
    overlay = got.as_numpy("overlay")[0] if binary else base64.b64decode(got.as_numpy("overlay")[0])
    assert overlay == httpx.post(f"{url}&format=jpeg", content=cat, timeout=60).content
    label = got.as_numpy("label")[0]
    assert label == (b"tabby" if binary else "tabby")
    facts = httpx.post(f"{url}&format=json", content=cat, timeout=60).json()
    probability = facts["explanations"][0]["target"]["probability"]
    assert got.as_numpy("probability") == pytest.approx([probability], rel=1e-6)  # float32


@pytest.mark.server
def test_the_client_may_send_samples_ask_for_one_output_and_is_told_what_is_wrong(
    triton: InferenceServerClient, cat: bytes
) -> None:
    pixels = np.asarray(Image.open(io.BytesIO(cat)).convert("RGB"))
    sent = InferInput("image", [1, *pixels.shape], "UINT8")
    sent.set_data_from_numpy(pixels[None])
    got = triton.infer(MODEL, [sent], outputs=[InferRequestedOutput("label")])
    assert [output["name"] for output in got.get_response()["outputs"]] == ["label"]
    assert got.as_numpy("label")[0].decode() in {"tabby", "tiger cat", "Egyptian cat"}
    unnamed = triton.infer(MODEL, [sent])  # all outputs, binary
    assert unnamed.as_numpy("heatmap").shape == (300, 451)
    with pytest.raises(InferenceServerException, match="did you mean 'method'") as refused:
        triton.infer(MODEL, [sent], parameters={"methd": "lime"})
    assert refused.value.status() == "422"
    with pytest.raises(InferenceServerException, match="There is no output 'heat'"):
        triton.infer(MODEL, [sent], outputs=[InferRequestedOutput("heat")])
    with pytest.raises(InferenceServerException, match="Content-Encoding 'gzip'"):
        triton.infer(MODEL, [sent], request_compression_algorithm="gzip")
    with pytest.raises(InferenceServerException, match=r"1e-06 s \(the request's parameter timeout\)"):
        triton.infer(MODEL, [sent], timeout=1)  # microseconds
    with pytest.raises(InferenceServerException, match="'classification'"):
        triton.infer(MODEL, [sent], outputs=[InferRequestedOutput("label", class_count=2)])
    with pytest.raises(InferenceServerException, match="'priority'"):
        triton.infer(MODEL, [sent], priority=2)


# The protocol


def test_health_and_metadata(client: FlaskClient) -> None:
    assert answer(client.get("/v2/health/live")) == {"live": True}
    assert answer(client.get("/v2/health/ready")) == {"ready": True}
    assert answer(client.get(f"/v2/models/{MODEL}/versions/1/ready")) == {"name": MODEL, "ready": True}
    cold = client.get("/v2/models/resnet18/ready")
    assert (cold.status_code, cold.json) == (503, {"name": "resnet18", "ready": False})
    assert answer(client.get("/v2")) == {
        "name": "heatlens",
        "version": version("heatlens"),
        "extensions": ["binary_tensor_data"],
    }


def test_samples_are_the_picture_of_a_file_whichever_way_they_travel(client: FlaskClient) -> None:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    want = answer(client.post(SMALL, json=picture(file.getvalue())))["outputs"]
    assert [output["name"] for output in want] == OUTPUTS
    assert (want[0]["shape"], len(want[0]["data"])) == ([20, 30], 600)
    nested = samples(PIXELS, data=PIXELS.tolist())
    batch = samples(PIXELS[None])
    for body in (GOOD, nested, batch):
        assert answer(client.post(SMALL, json=body))["outputs"] == want
    header = {"inputs": [{**GOOD["inputs"][0], "parameters": {"binary_data_size": PIXELS.nbytes}}]}
    assert answer(binary(client, header, PIXELS.tobytes()))["outputs"] == want


def test_outputs_are_binary_where_that_is_asked_for_of_all_or_of_one(client: FlaskClient) -> None:
    plain = {output["name"]: output for output in answer(client.post(SMALL, json=GOOD))["outputs"]}
    asked = [
        {"name": "label", "parameters": {"binary_data": False}},
        {"name": "overlay"},
        {"name": "heatmap", "parameters": {"binary_data": True}},
    ]
    response = client.post(SMALL, json={**GOOD, "outputs": asked, "parameters": {"binary_data_output": True}})
    length = int(response.headers[LENGTH_HEADER])
    label, overlay, heatmap = json.loads(response.data[:length])["outputs"]
    assert label == plain["label"]
    sizes = [output["parameters"]["binary_data_size"] for output in (overlay, heatmap)]
    assert length + sum(sizes) == len(response.data)
    jpeg = response.data[length : length + sizes[0]]
    assert struct.unpack("<I", jpeg[:4])[0] == len(jpeg) - 4
    assert [base64.b64encode(jpeg[4:]).decode()] == plain["overlay"]["data"]
    numbers = np.frombuffer(response.data[-sizes[1] :], "<f4")
    np.testing.assert_array_equal(numbers, np.array(plain["heatmap"]["data"], np.float32))
    assert "id" not in json.loads(response.data[:length])


def test_a_map_in_decimal_numbers_is_bounded_a_binary_one_as_everywhere(client: FlaskClient) -> None:
    for parameters, status, part in (
        ({"max_side": 513}, 422, "512"),
        ({"max_side": 5000, "binary_data_output": True}, 422, "HEATLENS_MAX_OUTPUT_SIDE_PX"),
    ):
        assert part in error(client.post(SMALL, json={**GOOD, "parameters": parameters}), status)
    overlay = {**GOOD, "parameters": {"max_side": 513}, "outputs": [{"name": "overlay"}]}
    assert client.post(SMALL, json=overlay).status_code == 200


def tensor(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{**GOOD["inputs"][0], **changes}]}


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({}, 400, "inputs has to be a list of one tensor"),
        ({"inputs": [GOOD["inputs"][0]] * 2}, 400, "inputs has to be a list of one tensor"),
        ({"inputs": [7]}, 400, "inputs has to be a list of one tensor"),
        ({**GOOD, "images": []}, 400, "'images'"),
        (tensor(name="input"), 400, "called 'image'"),
        (tensor(datatype="FP32"), 400, "BYTES or UINT8"),
        (tensor(datatype=["UINT8"]), 400, "BYTES or UINT8"),
        (tensor(shape=None), 400, "shape has to be"),
        (tensor(shape=[20, 30, True]), 400, "shape has to be"),
        (tensor(shape=[20, 30, 0]), 400, "positive"),
        (tensor(shape=[20, 31, 3]), 400, "has 1800 samples, not 1860"),
        (tensor(shape=[2, 10, 30, 3]), 400, "has the shape (2, 10, 30, 3)"),
        (tensor(data=[1.5] * 1800), 400, "whole numbers from 0 to 255"),
        (tensor(data=[256] * 1800), 400, "whole numbers from 0 to 255"),
        (tensor(data=[[1], [1, 2]]), 400, "no regular array"),
        (tensor(data=["1"] * 1800), 400, "array of numbers"),
        (tensor(data=[10**400] * 1800), 400, "whole numbers from 0 to 255"),
        (tensor(data=[True] * 1800), 400, "array of numbers"),
        (tensor(data="1" * 1800), 400, "array of numbers"),
        (tensor(shape=[10**4000, 10**4000]), 400, "2147483647 at most"),
        (tensor(parameters={"binary_data_size": "9" * 5000}), 400, "'" + "9" * 99 + "..., and"),
        (tensor(parameters={"binary_data_size": [[1800]]}), 400, "is list, and"),
        (tensor(parameters={"shared_memory_region": "r"}), 422, "'shared_memory_region'"),
        (tensor(parameters={"binary_data_size": 1800}), 400, "0 bytes follow the JSON"),
        (tensor(parameters=[]), 400, "parameters has to be an object"),
        ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1]}]}, 400, "has no data"),
        ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [2], "data": ["", ""]}]}, 400, "one picture"),
        ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["!"]}]}, 400, "base64"),
        (picture(b"no picture"), 415, "JPEG"),
        ({**GOOD, "id": 7}, 400, "id has to be a string"),
        ({**GOOD, "outputs": [{"name": "logits"}]}, 400, "the outputs are heatmap, overlay, label, probability"),
        ({**GOOD, "outputs": [{}]}, 400, "no output"),
        ({**GOOD, "outputs": {}}, 400, "list of objects"),
        ({**GOOD, "outputs": ""}, 400, "list of objects"),
        ({**GOOD, "outputs": 0}, 400, "list of objects"),
        ({**GOOD, "outputs": [{"name": "label", "parameters": {"classification": 2}}]}, 422, "'classification'"),
        ({**GOOD, "outputs": ["heatmap"]}, 400, "list of objects"),
        ({**GOOD, "outputs": [{"name": "label"}] * 2}, 400, "twice"),
        ({**GOOD, "parameters": {"binary_data_output": 1}}, 400, "true or false"),
        ({**GOOD, "parameters": {"timeout": 0.5}}, 422, "microseconds"),
        ({**GOOD, "parameters": {"timeout": float("nan")}}, 422, "microseconds"),
        ({**GOOD, "parameters": {"timeout": 10**400}}, 422, "microseconds"),
        ({**GOOD, "parameters": {"timeout": 1}}, 504, "the request's parameter timeout"),
        ({**GOOD, "parameters": {"priority": 1}}, 422, "'priority'"),
        ({**GOOD, "parameters": {"faithfulness": True}}, 422, "faithfulness cannot be chosen here"),
        ({**GOOD, "parameters": {"target": "top2"}}, 422, "one target"),
        ({**GOOD, "parameters": {"sequence_id": 3}}, 422, "'sequence_id'"),
        ({**GOOD, "parameters": 3}, 400, "parameters has to be an object"),
    ],
)
def test_a_wrong_request_is_refused_in_the_protocols_shape(
    client: FlaskClient, body: dict[str, Any], status: int, part: str
) -> None:
    assert part in error(client.post(SMALL, json=body), status)


def test_what_triton_sends_where_nothing_is_asked_for_is_taken(client: FlaskClient) -> None:
    usual = {"priority": 0, "sequence_id": 0, "sequence_start": False, "sequence_end": False, "timeout": 60_000_000}
    body = {**GOOD, "parameters": usual, "outputs": []}
    assert [output["name"] for output in answer(client.post(SMALL, json=body))["outputs"]] == OUTPUTS


def binary(client: FlaskClient, header: Any, data: bytes, length: object = None) -> TestResponse:
    text = json.dumps(header).encode()
    headers = {LENGTH_HEADER: str(len(text) if length is None else length)}
    return client.post(SMALL, data=text + data, headers=headers)


def test_wrong_binary_data_is_refused(client: FlaskClient) -> None:
    one = {"name": "image", "datatype": "BYTES", "shape": [1]}
    short = {"inputs": [{**one, "parameters": {"binary_data_size": 6}}]}
    for length in ("-1", "x", "9" * 30, "0" * 5000, "\u0664", "99999"):
        assert LENGTH_HEADER in error(binary(client, short, b"\x02\0\0\0ab", length.encode().decode("latin-1")), 400)
    assert "not valid JSON" in error(binary(client, short, b"\x02\0\0\0ab", 5), 400)
    assert "4 bytes follow" in error(binary(client, short, b"abcd"), 400)
    assert "four bytes" in error(binary(client, short, b"\x03\0\0\0ab"), 400)
    assert "four bytes" in error(
        binary(client, {"inputs": [{**one, "parameters": {"binary_data_size": 1}}]}, b"a"), 400
    )
    assert "is None, and 6 bytes" in error(binary(client, {"inputs": [one]}, b"\x02\0\0\0ab"), 400)
    assert error(binary(client, short, b"\x02\0\0\0ab"), 415)  # well put, but no picture


def test_what_flask_refuses_has_the_shape_too(client: FlaskClient) -> None:
    assert "not found" in error(client.post("/v2/repository/models/small/load"), 404)
    assert "method" in error(client.put(INFER), 405)
    assert "HEATLENS_MAX_BODY_BYTES" in error(client.post(INFER, data=bytes(5 * 2**20)), 413)
    assert "'nothing'" in error(client.post("/v2/models/nothing/infer", json=GOOD), 404)
    for response in (
        client.post(f"/v2/models/{MODEL}/versions/2/infer", json=GOOD),
        client.get(f"/v2/models/{MODEL}/versions/2"),
        client.get(f"/v2/models/{MODEL}/versions/2/ready"),
    ):
        assert "has no version '2'" in error(response, 404)
    for path in (INFER, f"/v2/models/{MODEL}/versions/1/infer"):
        wrong = client.get(path)
        assert "method" in error(wrong, 405)
        assert "POST" in wrong.headers["Allow"]
    late = client.post(SMALL, json=GOOD, headers={"X-Request-Deadline-S": "0.000001"})
    assert "X-Request-Deadline-S" in error(late, 504)
