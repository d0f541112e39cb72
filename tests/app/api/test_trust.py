"""How far to trust a map, as the answers tell it."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from scipy.stats import spearmanr
from werkzeug.test import TestResponse

from app.schemas.answers import ExplainAnswer, PredictAnswer
from tests.support import PICTURES

ORDERS = ("map", "random", "centre", "edge")


def explain(client: FlaskClient, picture: bytes, query: str) -> TestResponse:
    response = client.put(f"/v1/explain?{query}", data=picture)
    assert response.status_code == 200, response.text
    return response


def answer(response: TestResponse) -> ExplainAnswer:
    return ExplainAnswer.model_validate_json(response.data)


def test_nothing_is_measured_unless_asked_for(client: FlaskClient, cat: bytes) -> None:
    body = json.loads(explain(client, cat, "format=json").data)
    assert body["explanations"][0]["faithfulness"] is None
    assert body["explanations"][0]["stability"] is None
    assert "X-HeatLens-Faithfulness" not in explain(client, cat, "format=png").headers


def test_faithfulness_is_measured_for_each_target_beside_controls(client: FlaskClient, cat: bytes) -> None:
    found = answer(explain(client, cat, "format=json&faithfulness=true&target=top2"))
    predicted = PredictAnswer.model_validate_json(client.put("/v1/predict", data=cat).data).predictions
    for explanation, expected in zip(found.explanations, predicted, strict=False):
        faithfulness = explanation.faithfulness
        assert faithfulness is not None
        for order in ORDERS:
            insertion = getattr(faithfulness.insertion_curves, order)
            deletion = getattr(faithfulness.deletion_curves, order)
            assert deletion[0] == pytest.approx(expected.probability, abs=1e-4)  # nothing is taken away yet
            assert insertion[-1] == pytest.approx(expected.probability, abs=1e-4)
            assert insertion[0] == pytest.approx(deletion[-1], abs=1e-6)  # nothing is left
            for curve, area in ((insertion, faithfulness.insertion), (deletion, faithfulness.deletion)):
                assert getattr(area, order) == pytest.approx(np.trapezoid(curve, faithfulness.fractions))
        assert faithfulness.words
    (one,) = answer(explain(client, cat, "format=json&faithfulness=true")).explanations
    assert one.faithfulness is not None
    assert one.faithfulness.runs <= 96  # 12 batches of 8
    assert one.faithfulness.verdict != "no_better_than_random"


def test_the_verdict_comes_with_the_picture_and_changes_its_tag(client: FlaskClient, cat: bytes) -> None:
    plain = explain(client, cat, "format=png")
    measured = explain(client, cat, "format=png&faithfulness=true")
    assert measured.headers["X-HeatLens-Faithfulness"] in ("inconclusive", "better_than_random", "better_than_controls")
    assert measured.data == plain.data
    assert measured.headers["ETag"] != plain.headers["ETag"]


def test_a_map_that_finds_nothing_says_so_on_the_picture(client: FlaskClient, cat: bytes) -> None:
    """The channel of this network is the same wherever the picture is, as all of it is one colour."""
    gray = io.BytesIO()
    Image.new("RGB", (200, 200), (120, 120, 120)).save(gray, "PNG")
    query = "model=negative&target=0&versus=1&format=png"
    plain = explain(client, gray.getvalue(), query)
    measured = explain(client, gray.getvalue(), f"{query}&faithfulness=true")
    assert measured.headers["X-HeatLens-Faithfulness"] == "no_better_than_random"
    with Image.open(io.BytesIO(plain.data)) as one, Image.open(io.BytesIO(measured.data)) as other:
        differs = np.any(np.asarray(one) != np.asarray(other), axis=2)
    rows, _ = np.nonzero(differs)
    assert rows.size > 0
    assert rows.max() < 50  # the label, at the top


def test_stability_is_the_rank_correlation_with_the_mirrored_pictures_map(client: FlaskClient) -> None:
    """A picture of 256 x 256 is only cropped, evenly, so that its mirrored copy is the mirrored input."""
    with Image.open(PICTURES / "astronaut.png") as picture:
        square = picture.convert("RGB").crop((60, 0, 316, 256))
    straight, mirrored = io.BytesIO(), io.BytesIO()
    square.save(straight, "PNG")
    square.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(mirrored, "PNG")
    found = answer(explain(client, straight.getvalue(), "format=json&stability=true"))
    (explanation,) = found.explanations
    assert explanation.stability is not None
    maps = []
    for picture_bytes in (straight.getvalue(), mirrored.getvalue()):
        response = explain(client, picture_bytes, f"format=npz&target={explanation.target.index}")
        with np.load(io.BytesIO(response.data)) as arrays:
            maps.append(arrays["raw"][0])
    expected = spearmanr(maps[0].ravel(), maps[1][:, ::-1].ravel())[0]
    assert explanation.stability.mirror == pytest.approx(expected, abs=1e-3)
    assert explanation.stability.noise is not None
    assert 0.5 < explanation.stability.noise <= 1
    assert explanation.faithfulness is None


def test_what_was_measured_comes_with_pictures_and_arrays_too(client: FlaskClient, cat: bytes) -> None:
    query = "model=small&target=0&target=1&faithfulness=true&stability=true"
    told = answer(explain(client, cat, f"{query}&format=json")).explanations
    with np.load(io.BytesIO(explain(client, cat, f"{query}&format=npz").data)) as arrays:
        for row, explanation in enumerate(told):
            assert explanation.faithfulness is not None
            assert explanation.stability is not None
            assert arrays["faithfulness_margin"][row] == pytest.approx(explanation.faithfulness.margin)
            assert arrays["faithfulness_threshold"][row] == pytest.approx(explanation.faithfulness.threshold)
            assert arrays["stability"][row].tolist() == pytest.approx(
                [explanation.stability.noise, explanation.stability.mirror]
            )
    headers = explain(client, cat, "model=small&target=0&stability=true&format=png").headers
    assert told[0].stability is not None
    first = f"noise={told[0].stability.noise:.3f}, mirror={told[0].stability.mirror:.3f}"
    assert headers["X-HeatLens-Stability"] == first


def test_the_limit_on_runs_holds_for_measuring_too(models_dir: Path, cat: bytes) -> None:
    from app import create_app
    from app.config import Settings

    app = create_app(Settings(models_dir=models_dir, torch_threads=1, max_samples=20, default_model="small"))
    service = app.extensions["heatlens"]
    service.start()
    try:
        response = app.test_client().put("/v1/explain?faithfulness=true", data=cat)
        assert response.status_code == 422
        body = json.loads(response.data)
        assert (body["code"], body["field"]) == ("too_many_samples", "faithfulness")
        assert "HEATLENS_MAX_SAMPLES" in body["detail"]
        assert app.test_client().put("/v1/explain", data=cat).status_code == 200
    finally:
        service.close()
