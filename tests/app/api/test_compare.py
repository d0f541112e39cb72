"""`POST /v1/compare`: two explanations of one picture, and their difference."""

import io
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from scipy.stats import pearsonr, spearmanr
from torch import Tensor, nn
from werkzeug.test import TestResponse

from app import create_app
from app.charts.canvas import turn
from app.config import Settings
from app.schemas.diagnostics import CompareAnswer
from tests import zoo


def compare(client: FlaskClient, picture: bytes, query: str) -> TestResponse:
    return client.put(f"/v1/compare?{query}", data=picture)


def arrays(response: TestResponse) -> dict[str, np.ndarray]:
    assert response.status_code == 200, response.text
    with np.load(io.BytesIO(response.data)) as found:
        return dict(found)


def explained(client: FlaskClient, picture: bytes, query: str) -> np.ndarray:
    response = client.put(f"/v1/explain?format=npy&{query}", data=picture)
    assert response.status_code == 200, response.text
    return np.asarray(np.load(io.BytesIO(response.data)))


def answer(response: TestResponse) -> CompareAnswer:
    assert response.status_code == 200, response.text
    return CompareAnswer.model_validate_json(response.data)


def problem(response: TestResponse, status: int = 422) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return dict(json.loads(response.data))


def test_two_targets_keep_their_unit_and_are_subtracted(client: FlaskClient, cat: bytes) -> None:
    found = arrays(compare(client, cat, "target=281&with_target=285&format=npz"))
    first, second = explained(client, cat, "target=281"), explained(client, cat, "target=285")
    np.testing.assert_array_equal(found["first"], first)
    np.testing.assert_array_equal(found["second"], second)
    np.testing.assert_array_equal(found["difference"], first - second)
    assert not found["difference"][~found["seen"]].any()
    told = answer(compare(client, cat, "target=281&with_target=285&format=json"))
    assert told.difference.unit == "raw"
    assert told.scale is not None
    # The scale is the largest positive value of either raw map, that of the difference the largest or a tenth of it.
    assert told.scale == pytest.approx(max(found["raw_first"].max(), found["raw_second"].max()))
    assert told.difference.scale == pytest.approx(max(np.abs(found["difference"]).max(), told.scale / 10))
    assert (told.difference.min, told.difference.max) == pytest.approx(
        (found["difference"][found["seen"]].min(), found["difference"][found["seen"]].max())
    )


def test_two_methods_are_made_comparable_and_scipy_agrees_on_how_alike_they_are(
    client: FlaskClient, cat: bytes
) -> None:
    query = "with_method=hirescam&max_side=256"
    found = arrays(compare(client, cat, f"{query}&format=npz"))
    first, second = explained(client, cat, "max_side=256"), explained(client, cat, "max_side=256&method=hirescam")
    np.testing.assert_allclose(found["first"], first / np.abs(found["raw_first"]).max(), rtol=1e-5, atol=1e-6)
    assert np.abs(found["second"]).max() <= 1
    told = answer(compare(client, cat, f"{query}&format=json"))
    assert told.difference.unit == "relative"
    assert told.agreement is not None
    both = found["seen"]
    assert told.agreement.correlation == pytest.approx(pearsonr(first[both], second[both])[0], abs=1e-4)
    assert told.agreement.rank_correlation == pytest.approx(spearmanr(first[both], second[both])[0], abs=1e-4)
    hot = [map_[both] >= np.quantile(map_[both], 0.9) for map_ in (first, second)]
    assert told.agreement.overlap == pytest.approx((hot[0] & hot[1]).sum() / (hot[0] | hot[1]).sum(), abs=0.01)
    assert told.agreement.words


def test_two_models_that_look_at_different_parts_are_compared_where_both_look(client: FlaskClient, cat: bytes) -> None:
    told = answer(compare(client, cat, "with_model=small&with_target=0&format=json"))
    assert (told.first.model.name, told.second.model.name) == ("efficientnet_lite0", "small")
    assert told.second.target is not None
    assert told.second.target.label == "ant"
    found = arrays(compare(client, cat, "with_model=small&with_target=0&format=npz"))
    assert 0 < found["seen"].sum() < found["seen"].size


def test_a_parameter_goes_to_the_method_that_takes_it(client: FlaskClient, cat: bytes) -> None:
    query = "model=small&target=0&with_method=rise&samples=20&seed=1&format=json"
    told = answer(compare(client, cat, query))
    assert told.first.parameters is not None
    assert "samples" not in told.first.parameters
    assert told.second.parameters is not None
    assert (told.second.parameters["samples"], told.second.parameters["seed"]) == (20, 1)
    told = answer(compare(client, cat, "model=small&target=0&method=rise&samples=20&with_seed=1&format=json"))
    assert told.first.parameters
    assert told.second.parameters
    assert [side["seed"] for side in (told.first.parameters, told.second.parameters)] == [0, 1]
    assert [side["samples"] for side in (told.first.parameters, told.second.parameters)] == [20, 20]


def test_two_layers_are_two_maps(client: FlaskClient, cat: bytes) -> None:
    told = answer(compare(client, cat, "layer=blocks.4.2&with_layer=blocks.2.1&format=json"))
    assert (told.first.layers, told.second.layers) == (["blocks.4.2"], ["blocks.2.1"])
    assert told.difference.unit == "relative"


@pytest.mark.parametrize("format_", ["jpeg", "png", "webp"])
def test_the_picture_has_three_parts(client: FlaskClient, cat: bytes, format_: str) -> None:
    response = compare(client, cat, f"with_method=hirescam&max_side=200&format={format_}")
    with Image.open(io.BytesIO(response.data)) as picture:
        assert picture.format == format_.upper()
        assert 600 < picture.width < 620  # three and two gaps
    by_default = compare(client, cat, "with_method=hirescam")
    assert by_default.content_type == "image/jpeg"


def test_features_of_one_layer_in_two_models_of_one_kind(client: FlaskClient, cat: bytes) -> None:
    """`slow` is a network of the same kind and seed as `small`: nothing differs. Another layer of it does."""
    same = arrays(compare(client, cat, "of=features&model=small&with_model=sleepy&layer=second&format=npz"))
    np.testing.assert_allclose(same["raw"], 0, atol=1e-6)
    told = answer(compare(client, cat, "of=features&model=small&with_model=sleepy&layer=second&format=json"))
    assert told.of == "features"
    assert told.agreement is None
    assert told.difference.max == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("", "bad_option", "with_method"),
        ("of=features", "bad_option", "with_layer"),
        ("of=features&layer=bn1&with_layer=blocks.2.1", "not_comparable", "with_layer"),
        ("of=features&layer=bn1&with_layer=bn2&samples=3", "bad_option", "samples"),
        ("of=features&with_layer=bn2", "bad_option", "with_layer"),
        ("of=features&with_layer=bn1&with_method=nonsense", "bad_option", "with_method"),
        ("of=features&with_layer=bn1&target=predicted", "bad_option", "target"),
        ("of=features&with_layer=bn1&scale=raw", "bad_option", "scale"),
        ("of=features&with_model=small", "bad_option", "with_model"),
        ("with_method=nothing", "unknown_method", "with_method"),
        ("with_model=small&with_target=dog", "unknown_label", "with_target"),
        ("with_model=small&target=dog", "unknown_label", "target"),
        ("method=nothing&with_method=rise", "unknown_method", "method"),
        ("with_layer=nowhere", "unknown_layer", "with_layer"),
        ("of=features&layer=bn1&with_layer=nowhere", "unknown_layer", "with_layer"),
        ("layer=nowhere&with_layer=bn1", "unknown_layer", "layer"),
        ("with_target=100000", "target_out_of_range", "with_target"),
        ("with_model=efficientnet_lite0", "bad_option", "with_model"),
        ("of=features&with_model=efficientnet_lite0", "bad_option", "with_layer"),
        ("method=rise&with_seed=0", "bad_option", "with_seed"),
        ("with_colour=red", "unknown_option", "with_colour"),
        ("with_method=rise&with_samples=0", "bad_parameter", "with_samples"),
        ("with_method=rise&samples=0", "bad_parameter", "samples"),
        ("target=1&target=2&with_target=3", "bad_option", "target"),
        ("target=top2&with_target=3", "bad_option", "target"),
        ("target=3&with_target=top2", "bad_option", "with_target"),
        ("with_target=281&max_side=99999", "limit_exceeded", "max_side"),
    ],
)
def test_what_cannot_be_compared_is_named(client: FlaskClient, cat: bytes, query: str, code: str, field: str) -> None:
    found = problem(compare(client, cat, query))
    assert (found["code"], found["field"]) == (code, field)


@pytest.mark.parametrize("query", ["with_samples=0&with_method=rise", "with_target=dog&with_model=small"])
def test_the_words_name_what_was_written_too(client: FlaskClient, cat: bytes, query: str) -> None:
    found = problem(compare(client, cat, query))
    assert found["detail"].startswith(f"{query.split('=')[0]}:")


@pytest.mark.parametrize("query", ["with_model=smal", "of=features&layer=bn1&with_model=smal"])
def test_an_unknown_second_model_is_named(client: FlaskClient, cat: bytes, query: str) -> None:
    found = problem(compare(client, cat, query), 404)
    assert (found["code"], found["field"]) == ("unknown_model", "with_model")


@pytest.mark.parametrize("query", ["target=top2&with_target=3", "with_target=top2"])
def test_several_targets_are_refused_before_anything_runs(client: FlaskClient, query: str) -> None:
    assert problem(compare(client, b"no picture", query))["code"] == "bad_option"


def test_each_sides_map_is_told_in_the_unit_of_the_comparison(client: FlaskClient, cat: bytes) -> None:
    query = "model=small&method=saliency&with_method=gradcam&target=1"
    told = answer(compare(client, cat, f"{query}&format=json"))
    found = arrays(compare(client, cat, f"{query}&format=npz"))
    sizes = np.abs(found["raw_first"])
    expected = np.percentile(sizes[sizes > 0], 99), np.abs(found["raw_second"]).max()
    for side, raw, divisor in zip((told.first, told.second), ("raw_first", "raw_second"), expected, strict=True):
        assert side.map is not None
        assert side.divisor == pytest.approx(divisor, rel=1e-2)
        np.testing.assert_allclose(
            [side.map.min, side.map.max, side.map.mean],
            np.array([found[raw].min(), found[raw].max(), found[raw].mean()]) / side.divisor,
            rtol=1e-4,
        )
    plain = answer(compare(client, cat, "target=281&with_target=285&format=json"))
    assert (plain.first.divisor, plain.second.divisor) == (1, 1)


def test_answers_say_who_gave_them_and_how_long_drawing_took(client: FlaskClient, cat: bytes) -> None:
    query = "with_model=small&with_target=0"
    picture = compare(client, cat, query)
    assert picture.headers["X-HeatLens-Model"] == "efficientnet_lite0"
    assert picture.headers["X-HeatLens-With-Model"] == "small"
    parts = dict(part.split(";dur=") for part in picture.headers["Server-Timing"].split(", "))
    assert sorted(parts) == ["decode", "model", "queue", "render"]
    assert float(parts["render"]) > 0
    for of in ("of=maps&target=1&with_target=0", "of=features&with_model=sleepy&layer=second"):
        assert answer(compare(client, cat, f"model=small&{of}&format=json")).timings_s.render > 0
    for kind in ("gradient-flow?format=svg", "activations?format=png", "sensitivity?channel=0&layer=second"):
        joint = "&" if "?" in kind else "?"
        response = client.put(f"/v1/diagnostics/{kind}{joint}model=small", data=cat)
        assert response.headers["X-HeatLens-Model"] == "small"
        assert "render;dur=" in response.headers["Server-Timing"]
        assert "X-HeatLens-With-Model" not in response.headers
    told = client.put("/v1/diagnostics/gradient-flow?model=small&format=json", data=cat).json
    assert told is not None
    assert told["timings_s"]["render"] > 0


class Corner(nn.Module):
    """Looks at 2 x 2 pixels of 32 x 32: its gradient is 0 at all others."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 2 * 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x[:, :, 16:18, 16:18].flatten(1))
        return scores


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    """An app whose operator allows little."""
    folder = tmp_path_factory.mktemp("limited")
    zoo.write_model_files(folder)
    text = (folder / "small.toml").read_text().replace("tests.zoo:Small", f"{__name__}:Corner")
    (folder / "corner.toml").write_text(text)
    settings = Settings(
        models_dir=folder,
        default_model="sleepy",
        torch_threads=1,
        max_chunk_pictures=1,
        max_feature_bytes=1000,
        request_timeout_s=15,
        method_timeouts_s={"rise": 8, "occlusion": 0.5},
    )
    app = create_app(settings)
    app.extensions["heatlens"].start()
    yield app.test_client()
    app.extensions["heatlens"].close()


def test_a_map_with_next_to_nothing_but_zeros_has_a_scale(limited: FlaskClient, cat: bytes) -> None:
    query = "model=corner&method=saliency&target=0&with_target=1&scale=relative"
    told = answer(compare(limited, cat, f"{query}&format=json"))
    found = arrays(compare(limited, cat, f"{query}&format=npz"))
    for side, name in ((told.first, "raw_first"), (told.second, "raw_second")):
        sizes = np.abs(found[name])
        assert 0 < np.count_nonzero(sizes) < 0.01 * sizes.size
        assert side.divisor == pytest.approx(np.percentile(sizes[sizes > 0], 99, method="lower"))


@pytest.mark.parametrize(
    ("query", "field"),
    [("layer=first&with_layer=second", "layer"), ("layer=head&with_layer=second", "with_layer")],
)
def test_features_are_limited(limited: FlaskClient, cat: bytes, query: str, field: str) -> None:
    found = problem(compare(limited, cat, f"of=features&model=small&{query}"))
    assert (found["code"], found["field"]) == ("limit_exceeded", field)
    assert "HEATLENS_MAX_FEATURE_BYTES" in found["detail"]


# 200 masks of 20 ms each, 4 s at least, for the first, and 5000 for the second: that is more than is left, whoever set
# the limit, and a second side with all of its own time would end 4 s after it.
@pytest.mark.parametrize(
    ("query", "deadline", "limit"),
    [
        ("method=rise&samples=200&with_samples=5000", None, "8 s (HEATLENS_METHOD_TIMEOUTS_S)"),
        ("method=rise&samples=200&with_samples=5000", "6", "6 s (X-Request-Deadline-S)"),
        ("method=gradcam&with_method=rise&samples=5000", None, "8 s (HEATLENS_METHOD_TIMEOUTS_S)"),
        ("method=gradcam&with_method=occlusion", None, "0.5 s (HEATLENS_METHOD_TIMEOUTS_S)"),
    ],
)
def test_both_sides_have_the_time_of_one_request(
    limited: FlaskClient, cat: bytes, query: str, deadline: str | None, limit: str
) -> None:
    headers = {} if deadline is None else {"X-Request-Deadline-S": deadline}
    started = time.perf_counter()
    response = limited.put(f"/v1/compare?target=1&{query}", data=cat, headers=headers)
    spent = time.perf_counter() - started
    assert response.status_code == 504, response.text
    assert response.json is not None
    assert limit in response.json["detail"]
    assert spent < float(limit.split()[0]) + 3


def test_a_chart_waits_for_others_no_longer_than_the_request_may_take(limited: FlaskClient, cat: bytes) -> None:
    holding, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with turn(60):
            holding.set()
            may_end.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    try:
        assert holding.wait(10)
        url, headers = "/v1/diagnostics/activations?model=small&format=svg", {"X-Request-Deadline-S": "8"}
        response = limited.put(url, data=cat, headers=headers)
    finally:
        may_end.set()
        other.join()
    assert response.status_code == 504
    assert response.json is not None
    assert response.json["code"] == "deadline_exceeded"
    assert "8 s (X-Request-Deadline-S): other charts" in response.json["detail"]
    assert limited.put(url, data=cat).status_code == 200


@pytest.mark.parametrize("query", ["method=eigencam&with_target=0", "target=281&with_target=tabby"])
def test_two_names_of_one_map_are_not_compared(client: FlaskClient, cat: bytes, query: str) -> None:
    found = problem(compare(client, cat, query))
    assert (found["code"], found["field"]) == ("bad_option", "with_target")
    assert "the same map" in found["detail"]
