"""What the service decides by itself."""

import io

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image

from app.imaging.decode import decode
from app.imaging.limits import Limits
from app.schemas.options import ExplainOptions, PredictOptions
from app.service import Service
from tests.support import PICTURES


@pytest.fixture(scope="module")
def service(client: FlaskClient) -> Service:
    found = client.application.extensions["heatlens"]
    assert isinstance(found, Service)
    return found


def photograph(name: str) -> bytes:
    """A 12-megapixel JPEG with grain, so that there is detail to lose."""
    with Image.open(PICTURES / name) as small:
        large = np.asarray(small.convert("RGB").resize((4000, 3000), Image.Resampling.LANCZOS), np.int16)
    grain = np.random.default_rng(0).integers(-12, 13, (3000, 4000, 1))
    buffer = io.BytesIO()
    Image.fromarray((large + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["chelsea.png", "astronaut.png"])
def test_a_large_jpeg_is_decoded_reduced_and_the_model_hardly_sees_it(service: Service, name: str) -> None:
    data = photograph(name)
    seen = service.predict(data, PredictOptions())
    assert seen.picture.pixels.shape == (750, 1000, 3)  # a quarter
    assert (seen.picture.width, seen.picture.height) == (4000, 3000)
    full = decode(data, Limits())
    assert full.pixels.shape == (3000, 4000, 3)
    model = seen.model
    reduced_input, geometry = model.preprocess(seen.picture.pixels, (4000, 3000))
    full_input, full_geometry = model.preprocess(full.pixels, (4000, 3000))
    assert geometry == full_geometry
    grey_level = 1 / 255 / 0.5  # the model's std is 0.5
    assert np.abs(reduced_input - full_input).mean() < grey_level / 2
    import torch

    with torch.inference_mode():
        full_scores = model.scores(torch.from_numpy(full_input)[None])[0]
    assert seen.most_probable(1) == [int(full_scores.argmax())]


def test_predict_and_explain_give_the_same_scores(service: Service) -> None:
    data = photograph("coffee.png")
    predicted = service.predict(data, PredictOptions())
    for max_side in (64, 1024, 4096):
        explained = service.explain(data, ExplainOptions(max_side=max_side), {})
        np.testing.assert_array_equal(predicted.scores, explained.scores)
    assert explained.picture.pixels.shape == (3000, 4000, 3)  # the largest answer is drawn on all the pixels


def test_a_picture_that_waits_has_no_more_pixels_than_its_answer(service: Service) -> None:
    buffer = io.BytesIO()
    Image.open(PICTURES / "coffee.png").resize((1500, 1000)).save(buffer, "PNG")  # which is never decoded reduced
    explained = service.explain(buffer.getvalue(), ExplainOptions(max_side=300), {})
    assert explained.picture.pixels.shape == (200, 300, 3)
    assert (explained.picture.width, explained.picture.height) == (1500, 1000)
