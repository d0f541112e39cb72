"""Models of other kinds over HTTP: timm's by name, arrays of several planes, a final softmax, bfloat16."""

from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pytest
import timm
import torch
from flask.testing import FlaskClient
from huggingface_hub import constants
from numpy.typing import NDArray
from safetensors.torch import save_file

from app import create_app
from app.config import Settings

TIMM = "mobilenetv3_small_050.lamb_in1k"
FOUR = """
arch = "python:tests.models.networks:Tiny"
arch_options = { channels = 4 }
weights = "random"
preprocess = { input_size = 16, channels = 4, mean = [0.5, 0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5, 0.5] }
"""
ENDING = """
arch = "python:tests.models.networks_normalised:sequential"
arch_options = {{ end = "{end}" }}
dtype = "{dtype}"
weights = "random"
preprocess = {{ input_size = 16, mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5] }}
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    folder, hub = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("hub")
    (folder / "four.toml").write_text(FOUR)
    (folder / "plain.toml").write_text(ENDING.format(end="nothing", dtype="float32"))
    (folder / "softmax.toml").write_text(ENDING.format(end="Softmax", dtype="float32"))
    (folder / "log_softmax.toml").write_text(ENDING.format(end="LogSoftmax", dtype="float32"))
    (folder / "bfloat16.toml").write_text(ENDING.format(end="Softmax", dtype="bfloat16"))
    snapshot = hub / f"models--timm--{TIMM}" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (hub / f"models--timm--{TIMM}" / "refs").mkdir()
    (hub / f"models--timm--{TIMM}" / "refs" / "main").write_text("1")
    torch.manual_seed(0)
    save_file(timm.create_model(TIMM).state_dict(), snapshot / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_CACHE", str(hub))
        app = create_app(Settings(models_dir=folder, default_model="four", torch_threads=1))
        yield app.test_client()
        app.extensions["heatlens"].close()


def npy(*shape: int) -> bytes:
    stream = BytesIO()
    np.save(stream, np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    return stream.getvalue()


def test_a_model_of_timm_is_listed_described_and_explained(client: FlaskClient, cat: bytes) -> None:
    names = [row["name"] for row in client.get("/v1/models").json["models"]]  # type: ignore[index]
    assert [name for name in names if name.startswith("timm/")] == [f"timm/{TIMM}"]
    answer = client.post("/v1/explain", data=cat, query_string={"model": f"timm/{TIMM}", "format": "json"})
    assert answer.status_code == 200, answer.json
    detail = client.get(f"/v1/models/timm/{TIMM}").json
    assert detail is not None
    assert (detail["classes"], detail["licence"], detail["scores"]) == (1000, "apache-2.0", "logits")
    labels = client.get(f"/v1/models/timm/{TIMM}/labels?query=tabby").json
    assert labels is not None
    assert labels["labels"] == [{"index": 281, "label": "tabby"}]


def test_a_client_downloads_nothing(client: FlaskClient, cat: bytes) -> None:
    answer = client.post("/v1/explain?model=timm/resnet18", data=cat)
    assert (answer.status_code, answer.json["code"]) == (503, "weights_unavailable")  # type: ignore[index]
    answer = client.post("/v1/explain?model=timm/resnet1", data=cat)
    assert (answer.status_code, answer.json["code"]) == (404, "unknown_model")  # type: ignore[index]


def test_an_array_is_explained_with_all_its_planes_and_shown_with_three(client: FlaskClient) -> None:
    answer = client.post("/v1/explain?format=json", data=npy(20, 30, 4))
    assert answer.status_code == 200, answer.json
    assert answer.json is not None
    assert (answer.json["image"]["width"], answer.json["image"]["height"]) == (30, 20)
    picture = client.post("/v1/explain", data=npy(20, 30, 4))
    assert picture.headers["Content-Type"] == "image/jpeg"


def test_a_picture_for_a_model_of_four_channels_is_refused(client: FlaskClient, cat: bytes) -> None:
    for data, given in [(cat, "a picture has 3"), (npy(4, 4, 5), "this array has 5"), (npy(4, 4), "a picture has 3")]:
        answer = client.post("/v1/explain", data=data)
        assert answer.status_code == 422
        assert answer.json is not None
        assert (answer.json["code"], answer.json["field"]) == ("wrong_channels", "image")
        assert given in answer.json["detail"]


def raw_map(client: FlaskClient, cat: bytes, **options: str) -> NDArray[np.float32]:
    answer = client.post("/v1/explain", data=cat, query_string={"format": "npy", **options})
    assert answer.status_code == 200, answer.json
    return np.load(BytesIO(answer.data))  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["gradcam", "saliency"])
@pytest.mark.parametrize("target", ["0", "1", "2"])
def test_maps_of_a_network_that_ends_in_a_softmax_are_those_of_the_network_without(
    client: FlaskClient, cat: bytes, method: str, target: str
) -> None:
    expected = raw_map(client, cat, model="plain", method=method, target=target)
    assert expected.any()
    for model in ("softmax", "log_softmax"):
        np.testing.assert_array_equal(raw_map(client, cat, model=model, method=method, target=target), expected)


def test_what_the_scores_are_is_said(client: FlaskClient, cat: bytes) -> None:
    before = client.get("/v1/models/bfloat16").json
    assert before is not None
    assert (before["scores"], before["dtype"]) == (None, "bfloat16")
    answer = client.post("/v1/predict", data=cat, query_string={"model": "bfloat16"}).json
    assert answer is not None
    scores = np.array([row["score"] for row in answer["predictions"]])
    probabilities = [row["probability"] for row in answer["predictions"]]
    np.testing.assert_allclose(np.exp(scores) / np.exp(scores).sum(), probabilities, rtol=1e-5)
    detail = client.get("/v1/models/bfloat16").json
    assert detail is not None
    assert detail["scores"] == "before the final Softmax"


@pytest.mark.parametrize("method", ["gradcam", "saliency"])
def test_maps_of_half_precision_are_float32(client: FlaskClient, cat: bytes, method: str) -> None:
    found = raw_map(client, cat, model="bfloat16", method=method)
    assert found.dtype == np.float32
    exact = raw_map(client, cat, model="softmax", method=method)
    assert np.corrcoef(found.ravel(), exact.ravel())[0, 1] > 0.98
