"""`POST /v1/explain`, with the real embedded model and real pictures."""

import base64
import io
import json
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from flask.testing import FlaskClient
from numpy.typing import NDArray
from PIL import Image
from werkzeug.test import TestResponse

from app.schemas.answers import ExplainAnswer
from tests.support import PICTURES

URL = "/v1/explain"
CATS = {"tabby": 281, "tiger cat": 282, "Egyptian cat": 285}


def post(client: FlaskClient, picture: bytes, query: str = "", **headers: str) -> TestResponse:
    return client.post(f"{URL}?{query}", data=picture, content_type="application/octet-stream", headers=headers)


def array(response: TestResponse) -> NDArray[np.float32]:
    assert response.status_code == 200, response.text
    return np.load(io.BytesIO(response.data), allow_pickle=False)


def answer(response: TestResponse) -> ExplainAnswer:
    assert response.status_code == 200, response.text
    return ExplainAnswer.model_validate_json(response.data)


def size(data: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(data)).size


def encoded(picture: Image.Image, format_: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format_, **options)
    return buffer.getvalue()


def test_a_bare_upload_gets_the_overlay_as_jpeg_with_the_facts_in_headers(client: FlaskClient, cat: bytes) -> None:
    response = client.put(URL, data=cat)  # curl -T sends PUT and no type
    assert response.status_code == 200
    assert response.content_type == "image/jpeg"
    assert size(response.data) == (451, 300)
    assert response.headers["X-HeatLens-Model"] == "efficientnet_lite0"
    assert response.headers["X-HeatLens-Method"] == "gradcam"
    assert response.headers["X-HeatLens-Layer"] == "bn2"
    assert unquote(response.headers["X-HeatLens-Label"]) in CATS
    assert int(response.headers["X-HeatLens-Target"]) in CATS.values()
    assert float(response.headers["X-HeatLens-Score"]) > 0
    assert response.headers["ETag"]
    assert [part.split(";")[0] for part in response.headers["Server-Timing"].split(", ")] == [
        "decode",
        "queue",
        "model",
        "render",
    ]


def test_the_three_ways_to_ask_give_the_same_answer(client: FlaskClient, cat: bytes) -> None:
    raw = post(client, cat, "target=281&target=285&alpha=0.5&format=npz")
    fields = {"target": ["281", "285"], "alpha": "0.5", "format": "npz"}
    form = client.post(URL, data={"image": (io.BytesIO(cat), "cat.png"), **fields})
    body = {
        "image": {"base64": base64.b64encode(cat).decode()},
        "target": [281, 285],
        "alpha": 0.5,
        "format": "npz",
    }
    as_json = client.post(URL, json=body)
    assert [r.status_code for r in (raw, form, as_json)] == [200, 200, 200]
    maps = [np.load(io.BytesIO(r.data))["maps"] for r in (raw, form, as_json)]
    np.testing.assert_array_equal(maps[0], maps[1])
    np.testing.assert_array_equal(maps[0], maps[2])
    assert maps[0].shape == (2, 300, 451)


def test_the_heat_for_each_of_two_things_lies_on_that_thing(client: FlaskClient) -> None:
    """The cat on the left, an espresso on the right: the reference is where we put them."""
    left = Image.open(PICTURES / "chelsea.png").resize((300, 300))
    right = Image.open(PICTURES / "coffee.png").resize((300, 300))
    both = Image.new("RGB", (600, 300))
    both.paste(left, (0, 0))
    both.paste(right, (300, 0))
    maps = np.load(io.BytesIO(post(client, encoded(both), "target=tabby&target=espresso&format=npz").data))["maps"]
    heat = np.maximum(maps, 0)
    share_left = heat[:, :, :300].sum((1, 2)) / heat.sum((1, 2))
    assert share_left[0] > 0.8  # the cat
    assert share_left[1] < 0.2  # the coffee


def test_json_says_everything_and_validates_against_its_schema(client: FlaskClient, cat: bytes) -> None:
    got = answer(post(client, cat, "target=predicted&target=tiger cat&format=json&view=layer"))
    assert {p.label: p.index for p in got.predictions[:3]} == CATS
    assert sum(p.probability for p in got.predictions) <= 1
    assert got.model.weights == "loaded"
    assert got.model.weights_sha256 is not None
    assert got.model.weights_sha256.startswith("57934424")  # the hash that the file's own name ends with
    assert got.layers == ["bn2"]
    # Preprocessing resizes 451 x 300 to 384 x 256 (torchvision truncates 384.85) and crops 224 from the middle.
    seen = got.image.seen
    assert (got.image.width, got.image.height) == (451, 300)
    assert seen.bottom - seen.top == pytest.approx(262.5)
    assert seen.right - seen.left == pytest.approx(224 * 451 / 384)
    first, second = got.explanations
    assert (first.target.index, second.target.label) == (got.predictions[0].index, "tiger cat")
    assert (first.map.width, first.map.height) == (7, 7)
    assert first.map.min <= first.map.mean <= first.map.max
    assert not first.map.no_positive_evidence
    assert first.picture.media_type == "image/png"
    layer = Image.open(io.BytesIO(base64.b64decode(first.picture.base64)))
    assert (layer.mode, layer.size) == ("RGBA", (451, 300))


def test_the_array_is_signed_lies_in_the_displayed_frame_and_is_zero_where_nobody_looked(
    client: FlaskClient, cat: bytes
) -> None:
    values = array(post(client, cat, "target=285&versus=281&format=npy"))
    assert (values.dtype, values.shape) == (np.float32, (300, 451))
    assert values.min() < 0 < values.max()
    left = (451 - 262.5) / 2
    assert np.all(values[:, : int(left) - 1] == 0)
    assert np.all(values[: int((300 - 262.5) / 2) - 1] == 0)
    assert np.count_nonzero(values[20:280, 96:354]) > 0.99 * 260 * 258


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "image/jpeg"),
        ("image/png", "image/png"),
        ("image/*", "image/jpeg"),
        ("image/avif,image/webp,*/*;q=0.8", "image/webp"),
        ("application/json", "application/json"),
        ("application/json;charset=utf-8", "application/json"),
        ("application/x-npy", "application/x-npy"),
        ("text/html,application/json;q=0.5", "application/json"),
        ("image/png; q=0.1, application/json; q=0.9", "application/json"),
        ("image/png ; Q=0.1, application/json; charset=utf-8; q=0.9", "application/json"),
        ("image/jpeg; q=0, image/png;q=0.5", "image/png"),
        ('application/json; title="a, b; c"; q=0.1, image/png; q=0.2', "image/png"),
    ],
)
def test_the_accept_header_decides_where_format_does_not(
    client: FlaskClient, cat: bytes, accept: str, content_type: str
) -> None:
    assert post(client, cat, Accept=accept).content_type == content_type
    assert post(client, cat, "format=png", Accept=accept).content_type == "image/png"


def test_an_unacceptable_accept_names_what_can_be_made(client: FlaskClient, cat: bytes) -> None:
    response = post(client, cat, Accept="text/html")
    assert response.status_code == 406
    assert response.json is not None
    assert response.json["choices"] == [
        "image/jpeg",
        "image/png",
        "image/webp",
        "application/x-npy",
        "application/x-npz",
        "application/json",
    ]


def test_versus_is_the_difference_of_the_two_maps(client: FlaskClient, cat: bytes) -> None:
    one = array(post(client, cat, "target=285&format=npy"))
    other = array(post(client, cat, "target=281&format=npy"))
    difference = array(post(client, cat, "target=285&versus=tabby&format=npy"))
    np.testing.assert_allclose(difference, one - other, atol=1e-5 * np.abs(one).max())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_is_applied_once_so_picture_and_map_agree(client: FlaskClient, cat: bytes, orientation: int) -> None:
    upright = Image.open(io.BytesIO(cat)).convert("RGB")
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,  # stored turned by 90 degrees counter-clockwise, shown clockwise
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = post(client, encoded(stored, exif=exif), "target=285&format=npy")
    np.testing.assert_array_equal(array(turned), array(post(client, cat, "target=285&format=npy")))


@pytest.mark.parametrize("shape", [(1, 1), (900, 1), (1, 900), (2000, 3)])
@pytest.mark.parametrize("method", ["gradcam", "saliency"])
def test_extreme_shapes_are_explained(client: FlaskClient, shape: tuple[int, int], method: str) -> None:
    picture = encoded(Image.new("RGB", shape, (90, 60, 200)))
    for view in ("overlay", "heatmap", "side_by_side", "layer"):
        response = post(client, picture, f"method={method}&view={view}&legend=true&format=png")
        assert response.status_code == 200, response.text
    values = array(post(client, picture, f"method={method}&format=npy"))
    scale = min(1, 1024 / max(shape))
    assert values.shape == (max(1, round(scale * shape[1])), max(1, round(scale * shape[0])))


def test_max_side_bounds_the_answer_and_never_enlarges(client: FlaskClient, cat: bytes) -> None:
    assert size(post(client, cat, "max_side=100").data) == (100, 67)  # 300 * 100 / 451 = 66.5
    assert size(post(client, cat, "max_side=4000").data) == (451, 300)


def test_a_map_without_positive_evidence_is_flagged_and_drawn_empty(client: FlaskClient, cat: bytes) -> None:
    got = answer(post(client, cat, "model=negative&target=0&format=json"))
    (explanation,) = got.explanations
    assert explanation.map.no_positive_evidence
    assert explanation.map.max <= 0


def test_a_binary_head_has_two_classes_with_opposite_scores(client: FlaskClient, cat: bytes) -> None:
    got = answer(post(client, cat, "model=binary&target=ill&target=healthy&format=json"))
    ill, healthy = (explanation.target for explanation in got.explanations)
    assert ill.score == -healthy.score
    assert ill.probability + healthy.probability == pytest.approx(1)
    assert ill.probability == pytest.approx(1 / (1 + np.exp(-ill.score)))
    assert got.model.weights == "random"
    assert got.model.weights_sha256 is None


def test_top_n_is_as_many_as_the_model_has(client: FlaskClient, cat: bytes) -> None:
    got = answer(post(client, cat, "model=small&target=top9&format=json"))
    assert len(got.explanations) == 4
    assert [e.target.index for e in got.explanations] == [p.index for p in got.predictions]


BAD_OPTIONS = [
    ("model=efficientnet_lite", 404, "unknown_model", "model"),
    ("method=grad-cam", 422, "unknown_method", "method"),
    ("layer=bn22", 422, "unknown_layer", "layer"),
    ("layer=classifier", 422, "layer_not_spatial", "layer"),
    ("layer=bn1&layer=bn1", 422, "layer_not_taken", "layer"),
    ("method=saliency&layer=bn2", 422, "layer_not_taken", "layer"),
    ("target=1000", 422, "target_out_of_range", "target"),
    ("target=-1", 422, "target_out_of_range", "target"),
    ("target=egyptian catt", 422, "unknown_label", "target"),
    ("target=top11", 422, "limit_exceeded", "target"),
    ("versus=285&target=285", 422, "versus_equals_target", "versus"),
    ("versus=1000", 422, "target_out_of_range", "versus"),
    ("alpha=1.5", 422, "bad_option", "alpha"),
    ("alpha=nan", 422, "bad_option", "alpha"),
    ("alpha=0.5&alpha=0.6", 422, "bad_option", "alpha"),
    ("view=overlays", 422, "bad_option", "view"),
    ("colormap=jet", 422, "bad_option", "colormap"),
    ("max_side=15", 422, "bad_option", "max_side"),
    ("max_side=5000", 422, "limit_exceeded", "max_side"),
    ("format=gif", 422, "bad_option", "format"),
    ("format=jpeg&view=layer", 422, "bad_option", "format"),
    ("target=top2&format=png", 422, "bad_option", "format"),
    ("colourmap=inferno", 422, "unknown_option", "colourmap"),
    ("reduction=max_abs", 422, "bad_parameter", "reduction"),
    ("method=rise&samples=1", 422, "bad_parameter", "samples"),
    ("method=rise&samples=5001", 422, "too_many_samples", "samples"),
    ("method=rise&layer=bn2", 422, "layer_not_taken", "layer"),
    ("method=attention_rollout", 422, "method_not_applicable", "method"),
    ("method=eigencam&versus=281", 422, "versus_not_taken", "versus"),
    ("method=saliency&reduction=mean", 422, "bad_parameter", "reduction"),
    ("model=small&target=BEE", 422, "unknown_label", "target"),
]


@pytest.mark.parametrize(("query", "status", "code", "field"), BAD_OPTIONS)
def test_bad_options_are_named(client: FlaskClient, cat: bytes, query: str, status: int, code: str, field: str) -> None:
    response = post(client, cat, query)
    assert response.content_type == "application/problem+json"
    problem = json.loads(response.data)
    assert (response.status_code, problem["code"], problem["field"]) == (status, code, field)
    assert problem["request_id"] == response.headers["X-Request-Id"]
    assert problem["detail"].endswith((".", "?"))
    assert client.put(URL, data=cat).status_code == 200  # the next request works


def test_errors_name_close_matches_limits_and_choices(client: FlaskClient, cat: bytes) -> None:
    def problem(query: str) -> dict[str, Any]:
        return json.loads(post(client, cat, query).data)

    assert problem("colourmap=inferno")["close_matches"][0] == "colormap"
    assert problem("method=grad-cam")["close_matches"][0] == "gradcam"
    assert {"gradcam", "rise"} <= set(problem("method=grad-cam")["choices"])
    strange = problem("method=rise&steps=20")
    assert "rise has no parameter 'steps'; valid are baseline, cells, keep, samples, seed" in str(strange["detail"])
    assert problem("method=rise&samples=5001")["limit"] == 5000
    assert "HEATLENS_MAX_SAMPLES is 5000" in str(problem("method=rise&samples=5001")["detail"])
    assert problem("layer=bn22")["close_matches"][:2] == ["bn2", "bn1"]
    assert problem("target=egyptian catt")["close_matches"][0] == "Egyptian cat"
    assert problem("target=cat")["close_matches"] == ["tiger cat", "Persian cat", "Siamese cat"]
    assert problem("target=1000")["maximum"] == 999
    assert problem("max_side=5000")["limit"] == 4096
    assert "HEATLENS_MAX_TARGETS" in str(problem("target=top11")["detail"])
    assert problem("model=small&target=BEE")["choices"] == [1, 2]
    assert "'inferno'" in str(problem("colormap=jet")["detail"])


def test_nan_from_the_model_is_an_error_of_that_picture_only(client: FlaskClient, cat: bytes) -> None:
    white = encoded(Image.new("RGB", (40, 40), "white"))
    for format_ in ("jpeg", "json", "npy"):
        response = post(client, white, f"model=nan&format={format_}")
        assert (response.status_code, json.loads(response.data)["code"]) == (500, "non_finite_scores")
    assert post(client, cat, "model=nan").status_code == 200


def test_values_are_the_placed_raw_map_at_a_small_size(client: FlaskClient, cat: bytes) -> None:
    asked = "max_side=200&target=tabby"
    answer = json.loads(client.put(f"/v1/explain?format=json&values=true&{asked}", data=cat).data)
    values = answer["explanations"][0]["values"]
    found = np.frombuffer(base64.b64decode(values["base64"]), "<f4").reshape(values["height"], values["width"])
    # `npy` is the same map at the same size, by another way out
    placed = np.load(io.BytesIO(client.put(f"/v1/explain?format=npy&{asked}", data=cat).data))
    np.testing.assert_allclose(found, placed, rtol=1e-5, atol=1e-7)
    # full heat is one of the raw map's positive values, of which Grad-CAM takes the largest
    assert values["scale"] == pytest.approx(answer["explanations"][0]["map"]["max"])
    large = json.loads(client.put("/v1/explain?format=json&values=true", data=cat).data)["explanations"][0]["values"]
    assert max(large["width"], large["height"]) == 256
    assert json.loads(client.put("/v1/explain?format=json", data=cat).data)["explanations"][0]["values"] is None
