"""Label Studio's ML backend, asked as Label Studio's `ml/api_connector.py` asks."""

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from label_studio_converter.brush import decode_from_annotation
from numpy.typing import NDArray
from werkzeug.test import TestResponse

from app import create_app
from app.config import Settings
from app.dialects import label_config
from app.dialects.speaking import PICTURE_FAULTS
from app.errors import BadLabelConfig
from app.problems import documented_errors
from app.schemas.answers import ExplainAnswer

CONFIG = """<View>
  <Image name="photo" value="$image"/>
  <BrushLabels name="heat" toName="photo"><Label value="Dog"/><Label value="TIGER CAT"/></BrushLabels>
  <Choices name="class" toName="photo"><Choice value="tiger cat"/><Choice value="tabby"/></Choices>
</View>"""


def brush_config(attributes: str = "") -> str:
    brush = f'<BrushLabels name="b" toName="i" {attributes}><Label value="X"/></BrushLabels>'
    return f'<View><Image name="i" value="$image"/>{brush}</View>'


def ask(client: FlaskClient, path: str, **body: Any) -> Any:
    response = client.post(f"/labelstudio/{path}", json=body)
    assert response.status_code == 200, response.text
    return json.loads(response.data)


def predict(client: FlaskClient, config: str, *references: object) -> list[dict[str, Any]]:
    tasks = [{"id": number, "data": {"image": reference}} for number, reference in enumerate(references)]
    params = {"login": None, "password": None, "context": None}
    body = {"tasks": tasks, "project": "1.1700000000", "label_config": config, "params": params}
    results = ask(client, "predict", **body)["results"]
    assert len(results) == len(tasks)
    return list(results)


def data_url(picture: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"


@pytest.fixture(scope="session")
def tiger() -> bytes:
    """The page's sample, 451 x 300: to the embedded model a tiger cat."""
    return Path("app/web/static/cat.jpg").read_bytes()


def test_health_and_setup_wait_for_no_model(models_dir: Path) -> None:
    """The app is made but never started: no model is loaded, or loads."""
    client = create_app(Settings(models_dir=models_dir)).test_client()
    for path in ("/labelstudio", "/labelstudio/", "/labelstudio/health"):
        assert json.loads(client.get(path).data) == {"status": "UP", "model_class": "HeatLens"}
    setup = {"project": "1.17", "hostname": "http://evil.example", "access_token": "t", "extra_params": None}
    default = ask(client, "setup", schema="", **setup)["model_version"]
    assert "efficientnet_lite0 gradcam" in default
    assert json.loads(client.get("/labelstudio/versions").data) == {"versions": [default]}
    assert ask(client, "setup", schema="<View></View>", **setup)["model_version"] == default  # of a new project
    other = brush_config('heatlens_method="occlusion" heatlens_model="small" heatlens_window="0.25"')
    assert ask(client, "setup", schema=other, **setup)["model_version"].endswith("small occlusion window=0.25")
    models = json.loads(client.get("/v1/models").data)["models"]
    assert {model["state"] for model in models} == {"not_loaded"}


def test_heat_is_the_explanation_of_the_picture(client: FlaskClient, tiger: bytes) -> None:
    (found,) = predict(client, CONFIG, data_url(tiger))
    brush, choice = found["result"]
    expected = ExplainAnswer.model_validate_json(client.post("/v1/explain?format=json&values=true", data=tiger).data)
    target = expected.explanations[0].target
    assert (target.label, found["score"], brush["score"]) == ("tiger cat", target.probability, target.probability)
    assert (brush["type"], brush["from_name"], brush["to_name"]) == ("brushlabels", "heat", "photo")
    assert (brush["original_width"], brush["original_height"], brush["image_rotation"]) == (451, 300, 0)
    assert brush["value"]["brushlabels"] == ["TIGER CAT"]  # written as the project writes it
    assert (choice["type"], choice["from_name"], choice["value"]) == ("choices", "class", {"choices": ["tiger cat"]})
    values = expected.explanations[0].values
    assert values is not None
    heat = np.frombuffer(base64.b64decode(values.base64), "<f4").reshape(values.height, values.width)
    shown = np.clip(heat, 0, values.scale) / values.scale
    drawn = strokes(brush)["heat-TIGER CAT-0"] / 255.0
    assert np.unique(drawn).size == 8
    rows = (np.arange(values.height) + 0.5) * 300 / values.height
    columns = (np.arange(values.width) + 0.5) * 451 / values.width
    sampled = drawn[np.ix_(rows.astype(int), columns.astype(int))]
    # half a level of 1/7, and what the map changes within the pixels that a sample is off
    assert np.abs(sampled - shown).max() < 1 / 14 + 0.05


def strokes(*results: dict[str, Any]) -> dict[str, NDArray[np.uint8]]:
    """Decode strokes with Label Studio's own converter, which has a result's value beside its other members."""
    flat = [{**result, **result["value"]} for result in results]
    return dict(decode_from_annotation(results[0]["from_name"], flat))


def test_a_class_that_the_project_does_not_know_is_called_by_its_first_label(client: FlaskClient, tiger: bytes) -> None:
    config = CONFIG.replace("TIGER CAT", "Zebra").replace('Choice value="tiger cat"', 'Choice value="zebra"')
    (found,) = predict(client, config, data_url(tiger))
    assert [result["value"]["brushlabels"] for result in found["result"]] == [["Dog"]]  # and no choice is made up
    assert found["class"] == "tiger cat"


def test_a_brush_with_labels_beside_it_gets_both_for_one_region(client: FlaskClient, tiger: bytes) -> None:
    config = """<View><Image name="i" value="$image"/><Brush name="b" toName="i"/>
      <Labels name="l" toName="i"><Label value="tiger cat"/></Labels></View>"""
    brush, labels = predict(client, config, data_url(tiger))[0]["result"]
    assert (brush["type"], brush["from_name"], set(brush["value"])) == ("brush", "b", {"format", "rle"})
    assert (labels["type"], labels["from_name"], labels["value"]["labels"]) == ("labels", "l", ["tiger cat"])
    assert brush["id"] == labels["id"]
    assert strokes(labels)["l-tiger cat-0"].max() == 255


def test_the_example_is_understood() -> None:
    config = label_config.parse(Path("examples/label-studio/labels.xml").read_text())
    assert (config.key, config.picture, config.options) == ("image", "image", {"method": "gradcam"})
    assert config.brush
    assert config.choices
    assert config.brush.choices == config.choices.choices == ["tabby", "tiger cat", "Egyptian cat"]


def test_options_stand_in_the_configuration(client: FlaskClient, tiger: bytes) -> None:
    config = brush_config('heatlens_target="281" heatlens_method="layercam"')
    (found,) = predict(client, config, data_url(tiger))
    assert found["class"] == "tabby"
    assert found["model_version"].endswith("layercam target=[281]")


def test_nothing_is_drawn_where_nothing_speaks_for_the_class(client: FlaskClient, tiger: bytes) -> None:
    (found,) = predict(client, brush_config('heatlens_model="negative" heatlens_target="0"'), data_url(tiger))
    assert (found["result"], found["error"]["code"]) == ([], "no_positive_evidence")


def test_each_task_has_one_result_and_fails_alone(client: FlaskClient, tiger: bytes) -> None:
    inline = data_url(tiger)
    found = predict(client, CONFIG, inline, data_url(b"no picture"), None, "http://127.0.0.1:1/a.jpg", inline)
    codes = [result.get("error", {}).get("code") for result in found]
    assert codes == [None, "unsupported_image_format", "picture_unavailable", "picture_unavailable", None]
    assert [bool(result["result"]) for result in found] == [True, False, False, False, True]
    assert all(result["model_version"] == found[0]["model_version"] for result in found)
    assert "HEATLENS_LABEL_STUDIO_URL" in found[3]["error"]["detail"]


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        (b"{", 400, "bad_request_body", "not valid JSON"),
        (b"[" * 100_000, 413, "json_too_complex", "nested more than 32 deep"),
        ({"tasks": []}, 422, "bad_option", "label_config"),
        ({"tasks": [{}] * 1001, "label_config": CONFIG}, 422, "bad_option", "1000"),
        ({"tasks": [], "label_config": "<View>"}, 422, "bad_label_config", "not XML"),
        ({"tasks": [], "label_config": "<View/>"}, 422, "bad_label_config", "BrushLabels"),
        ({"tasks": [], "label_config": "<!DOCTYPE a [<!ENTITY b 'c'>]><View>&b;</View>"}, 422, None, "DOCTYPE"),
        ({"tasks": [], "label_config": "<a>" * 200 + "</a>" * 200}, 422, "bad_label_config", "100 deep"),
        ({"tasks": [], "label_config": "\ud800"}, 422, "bad_label_config", "not XML"),
        ({"tasks": [], "label_config": brush_config('heatlens_methd="x"')}, 422, "unknown_option", "'method'"),
        ({"tasks": [], "label_config": brush_config('heatlens_method="x"')}, 422, "unknown_method", "'x'"),
        ({"tasks": [], "label_config": brush_config('heatlens_model="x"')}, 404, "unknown_model", "'x'"),
        ({"tasks": [], "label_config": brush_config('heatlens_target="top3"')}, 422, "bad_option", "one class"),
    ],
)
def test_what_is_wrong_with_all_tasks_is_told_as_label_studio_shows_it(
    client: FlaskClient, body: Any, status: int, code: str | None, words: str
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body)
    response = client.post("/labelstudio/predict", data=data, content_type="application/json")
    answer = json.loads(response.data)
    assert (response.status_code, response.mimetype) == (status, "application/json")
    assert set(answer) == {"error", "code", "request_id"}
    assert code in (None, answer["code"])
    assert words in answer["error"]


def test_other_errors_have_the_same_shape(client: FlaskClient) -> None:
    assert "error" in json.loads(client.get("/labelstudio/nothing").data)
    assert "error" in json.loads(client.get("/labelstudio/predict").data)  # 405
    large = client.post("/labelstudio/predict", data=b" " * (4 * 2**20 + 1), content_type="application/json")
    assert (large.status_code, json.loads(large.data)["code"]) == (413, "body_too_large")


def test_nothing_is_trained(client: FlaskClient) -> None:
    assert ask(client, "webhook", action="ANNOTATION_CREATED")["status"] == "ignored"
    started = client.post("/labelstudio/webhook", json={"action": "START_TRAINING"})
    assert (started.status_code, client.post("/labelstudio/train", json={}).status_code) == (501, 501)
    assert "trains none" in json.loads(started.data)["error"]


def test_a_server_that_cannot_answer_now_leaves_no_empty_predictions(models_dir: Path, tiger: bytes) -> None:
    """Label Studio keeps what it gets, and asks again after an error only."""
    app = create_app(Settings(models_dir=models_dir, default_model="small", request_timeout_s=0.001))
    response = app.test_client().post(
        "/labelstudio/predict", json={"tasks": [{"data": {"image": data_url(tiger)}}], "label_config": brush_config()}
    )
    assert response.status_code in (503, 504)
    assert "error" in json.loads(response.data)
    app.extensions["heatlens"].close()


@dataclass
class Studio:
    """What a Label Studio has, and what it was asked: paths and tokens."""

    url: str
    files: dict[str, bytes]
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def studio(tiger: bytes) -> Iterator[Studio]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            studio.asked.append((self.path, self.headers["Authorization"]))
            if self.path.startswith("/ls/drip"):
                self._drip()
                return
            if self.path.startswith("/ls/status/"):
                self.send_response(int(self.path.rpartition("/")[2]))
                self.end_headers()
                return
            if self.path.startswith("/ls/moved"):
                self.send_response(302)
                self.send_header("Location", f"{studio.url}/data/cat.jpg")
                self.end_headers()
                return
            found = studio.files.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(found or b"")

        def _drip(self) -> None:
            """Send a header's line again and again, so that there is always news, and never an answer."""
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            with contextlib.suppress(OSError):
                for number in range(400):
                    self.wfile.write(b"X-%d: x\r\n" % number)
                    studio.over.wait(0.05)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/ls"
        studio = Studio(url, {"/ls/data/cat.jpg": tiger, "/ls/data/large": b"\xff\xd8" + b"x" * 2**17})
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield studio
        studio.over.set()
        server.shutdown()
        thread.join()


def test_pictures_come_from_the_configured_label_studio_alone(studio: Studio, models_dir: Path) -> None:
    own = {"label_studio_url": studio.url, "label_studio_token": "secret"}
    settings = Settings(models_dir=models_dir, default_model="small", max_body_bytes=2**17, load_wait_s=60, **own)
    app = create_app(settings)
    app.extensions["heatlens"].start()
    host = studio.url.removesuffix("/ls")
    good = ["/data/cat.jpg", "/ls/data/cat.jpg", f"{studio.url}/data/cat.jpg", "data/cat.jpg"]
    elsewhere = [
        f"{host}/data/cat.jpg",
        f"{host}/lsx/data/cat.jpg",
        f"{studio.url}/../data/cat.jpg",
        f"{studio.url}/%2e%2e/data/cat.jpg",
        f"{studio.url}/..%5c/data/cat.jpg",
        studio.url.replace("127.0.0.1", "localhost") + "/data/cat.jpg",
        studio.url.replace("http", "https") + "/data/cat.jpg",
        studio.url.replace("//", "//user:word@") + "/data/cat.jpg",
        "http://169.254.169.254/latest/meta-data",
        "//169.254.169.254/ls/x",
        "file:///etc/passwd",
        "http://[",
        "http://127.0.0.1:99999/ls/data/cat.jpg",
        "/\ud800",
        "/data/\0",
        "s3://bucket/cat.jpg",
    ]
    troubles = {
        "/data/none.jpg": "404",
        "/moved": "redirects are not followed",
        "/data/large": "HEATLENS_MAX_BODY_BYTES",
    }
    config = brush_config('heatlens_method="saliency"')  # whose maps are nowhere negative, so there is something drawn
    found = predict(app.test_client(), config, *good, *elsewhere, *troubles)
    app.extensions["heatlens"].close()
    errors = [result.get("error") for result in found]
    assert errors[: len(good)] == [None] * len(good)
    assert all(result["result"] for result in found[: len(good)])
    refused = errors[len(good) : len(good) + len(elsewhere)]
    assert [error["code"] for error in refused] == ["picture_unavailable"] * len(elsewhere)
    for error, words in zip(errors[-len(troubles) :], troubles.values(), strict=True):
        assert words in error["detail"]
    expected = ["/ls/data/cat.jpg"] * 4 + ["/ls/data/none.jpg", "/ls/moved", "/ls/data/large"]
    assert studio.asked == [(path, "Token secret") for path in expected]  # and nothing else was asked of it


@pytest.fixture
def of_studio(studio: Studio, models_dir: Path) -> Iterator[FlaskClient]:
    """A client of an app that fetches pictures from the studio."""
    settings = Settings(models_dir=models_dir, default_model="small", load_wait_s=60, label_studio_url=studio.url)
    app = create_app(settings)
    app.extensions["heatlens"].start()
    yield app.test_client()
    app.extensions["heatlens"].close()


def refusal(response: TestResponse) -> tuple[int, str, str]:
    """Return status, code and words of what refuses a whole request."""
    body = json.loads(response.data)
    assert "results" not in body
    return response.status_code, body["code"], body["error"]


def test_a_label_studio_that_lets_nobody_in_fails_the_whole_request(of_studio: FlaskClient, studio: Studio) -> None:
    def fetched(path: str) -> tuple[int, str, str]:
        tasks = [{"data": {"image": reference}} for reference in ("/data/cat.jpg", path)]
        body = {"tasks": tasks, "label_config": brush_config()}
        return refusal(of_studio.post("/labelstudio/predict", json=body))

    for status in (401, 403, 429, 500, 503):
        got = fetched(f"/status/{status}")
        assert got[:2] == (502, "label_studio_unavailable")
        assert f"answered {status}" in got[2]
    assert "HEATLENS_LABEL_STUDIO_TOKEN" in fetched("/status/401")[2]
    assert predict(of_studio, brush_config(), "/status/410")[0]["error"]["code"] == "picture_unavailable"


def test_a_label_studio_that_is_away_fails_the_whole_request(models_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    client = create_app(Settings(models_dir=models_dir, default_model="small", label_studio_url=url)).test_client()
    body = {"tasks": [{"data": {"image": "/a.jpg"}}], "label_config": brush_config()}
    assert refusal(client.post("/labelstudio/predict", json=body))[:2] == (502, "label_studio_unavailable")


def test_headers_that_never_end_do_not_outlast_the_request(of_studio: FlaskClient) -> None:
    body = {"tasks": [{"data": {"image": "/drip"}}], "label_config": brush_config()}
    started = time.perf_counter()
    response = of_studio.post("/labelstudio/predict", json=body, headers={"X-Request-Deadline-S": "0.5"})
    took_s = time.perf_counter() - started
    assert refusal(response)[:2] == (504, "deadline_exceeded")
    assert 0.5 <= took_s < 12  # they would go on for 20 s


@pytest.mark.parametrize(
    ("attributes", "code", "words"),
    [
        ('heatlens_target="zebra crossing"', "unknown_label", "no class"),
        ('heatlens_target="1000"', "target_out_of_range", "1000"),
        ('heatlens_layer="nowhere"', "unknown_layer", "'nowhere'"),
        ('heatlens_target=""', "bad_option", "heatlens_target is empty"),
        ('heatlens_method="saliency" heatlens_layer="blocks"', "layer_not_taken", "saliency"),
    ],
)
def test_what_can_be_for_no_picture_is_refused_at_setup_and_of_no_task(
    client: FlaskClient, tiger: bytes, attributes: str, code: str, words: str
) -> None:
    config = brush_config(attributes)
    setup = refusal(client.post("/labelstudio/setup", json={"schema": config}))
    tasks = [{"data": {"image": data_url(tiger)}}]
    asked = refusal(client.post("/labelstudio/predict", json={"tasks": tasks, "label_config": config}))
    assert setup[:2] == asked[:2] == (422, code)
    assert words in setup[2]


def test_the_faults_of_one_picture_are_known_errors() -> None:
    assert {error.code for error in documented_errors()} >= PICTURE_FAULTS


def test_large_configurations_are_refused_and_many_pictures_take_one_pass() -> None:
    with pytest.raises(BadLabelConfig, match="limit is 1048576"):
        label_config.parse("<View>" + " " * 2**20 + "</View>")
    with pytest.raises(BadLabelConfig, match="more than 10000 tags"):
        label_config.parse("<View>" + "<a/>" * 10_000 + "</View>")
    pictures = "".join(f'<Image name="i{n}" value="$i{n}"/>' for n in range(4_000))
    others = "".join(f'<Rating name="r{n}" toName="i{n % 7}"/>' for n in range(4_000))
    wanted = '<BrushLabels name="b" toName="i3999"><Label value="X"/></BrushLabels>'
    started = time.process_time()
    config = label_config.parse(f"<View>{pictures}{others}{wanted}</View>")
    assert (config.picture, config.key) == ("i3999", "i3999")
    assert time.process_time() - started < 0.6  # 16 million pairs of picture and tag take longer


def test_half_a_character_and_bad_base64_are_that_tasks_fault(client: FlaskClient, tiger: bytes) -> None:
    found = predict(client, CONFIG, "/\ud800", "data:image/png;base64,!", data_url(tiger))
    assert [result.get("error", {}).get("code") for result in found] == ["picture_unavailable"] * 2 + [None]
    assert "HEATLENS_LABEL_STUDIO_URL is not set" in found[0]["error"]["detail"]
