"""What is kept of a picture, by the real service and the embedded model."""

import io
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image

from app import hosting
from app.config import Settings
from app.drawing import Drawing
from app.engine import Job, NotReady
from app.jobs import explaining
from app.jobs.explaining import Explained, ServiceExplain, worker_settings
from app.jobs.options import Asked, JobOptions
from app.network import Network
from app.schemas.answers import Facts, MapFacts
from app.service import Service


@pytest.fixture(scope="module")
def service(client: FlaskClient) -> Service:
    found = client.application.extensions["heatlens"]
    assert isinstance(found, Service)
    return found


class Unmoved:
    """Lets the work go on."""

    def __call__(self, job: Job[Any, Any], /) -> None: ...

    def loading(self) -> None: ...


def explain(service: Service, picture: bytes, *, number: int = 12, **options: object) -> Explained:
    asked = Asked(JobOptions.model_validate(options), {})
    return ServiceExplain(service)(picture, asked, number, Unmoved())


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_the_overlay_is_the_one_of_the_service(service: Service, cat: bytes) -> None:
    kept = explain(service, cat)
    assert list(kept.artifacts) == ["000012.overlay.jpg"]
    picture = opened(kept.artifacts["000012.overlay.jpg"])
    assert (picture.format, picture.size) == ("JPEG", (451, 300))
    options = JobOptions()
    by_itself = Drawing(service.explain(cat, options, {}), options).drawn("jpeg").content
    assert kept.artifacts["000012.overlay.jpg"] == by_itself


def test_the_facts_are_those_of_the_service_with_the_names_of_the_artifacts(service: Service, cat: bytes) -> None:
    result = dict(explain(service, cat, artifacts=["overlay", "map", "arrays"]).result)
    (explanation,) = result.pop("explanations")
    assert result.pop("artifacts") == {"arrays": "000012.npz"}
    assert explanation.pop("artifacts") == {"overlay": "000012.overlay.jpg", "map": "000012.map.png"}
    facts, options = Facts.model_validate(result), JobOptions()
    drawing = Drawing(service.explain(cat, options, {}), options)
    assert facts == drawing.facts()
    assert [MapFacts.model_validate(explanation)] == drawing.map_facts()
    assert facts.predictions[0].label == MapFacts.model_validate(explanation).target.label  # it is what is explained


def test_the_map_is_the_display_map_in_gray(service: Service, cat: bytes) -> None:
    kept = explain(service, cat, artifacts=["map", "arrays"], max_side=100)
    gray = opened(kept.artifacts["000012.map.png"])
    assert (gray.format, gray.mode, gray.size) == ("PNG", "L", (100, 67))
    arrays = np.load(io.BytesIO(kept.artifacts["000012.npz"]))
    raw, placed = arrays["raw"][0], arrays["maps"][0]
    expected = np.clip(placed / raw.max(), 0, 1) * 255  # the display map, from its definition
    assert kept.result["explanations"][0]["map"]["normalisation"] == "positive/p100"
    assert np.abs(np.asarray(gray, float) - expected).max() <= 0.51


def test_several_targets_have_artifacts_each(service: Service, cat: bytes) -> None:
    kept = explain(service, cat, number=1234567, target=["top3"], artifacts=["map", "overlay", "arrays"], format="webp")
    of_each = [explanation["artifacts"] for explanation in kept.result["explanations"]]
    assert of_each == [{"overlay": f"1234567.overlay{k}.webp", "map": f"1234567.map{k}.png"} for k in ("", "-1", "-2")]
    assert {name for names in of_each for name in names.values()} | {"1234567.npz"} == kept.artifacts.keys()
    assert {opened(kept.artifacts[names["overlay"]]).format for names in of_each} == {"WEBP"}
    maps = [kept.artifacts[names["map"]] for names in of_each]
    assert len(set(maps)) == 3
    assert np.load(io.BytesIO(kept.artifacts["1234567.npz"]))["maps"].shape == (3, 300, 451)


def test_a_layer_is_png(service: Service, cat: bytes) -> None:
    kept = explain(service, cat, view="layer")
    layer = opened(kept.artifacts["000012.overlay.png"])
    assert (layer.format, layer.mode) == ("PNG", "RGBA")


def test_what_the_watch_raises_ends_the_work(service: Service, cat: bytes) -> None:
    with pytest.raises(GoneError):
        ServiceExplain(service)(cat, Asked(JobOptions(method="rise"), {}), 0, Leaving())


class GoneError(Exception):
    pass


class Leaving(Unmoved):
    def __call__(self, job: Job[Any, Any], /) -> None:
        raise GoneError


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Service, threading.Event]]:
    """A service whose model is loaded once the event is set."""
    go = threading.Event()

    def load(*args: Any, **more: Any) -> Network:
        assert go.wait(60)
        return Network(*args, **more)

    monkeypatch.setattr(hosting, "Network", load)
    monkeypatch.setattr(explaining, "_LOAD_LOOK_S", 0.01)
    service = Service(worker_settings(Settings(device="cpu", torch_threads=1)))
    yield service, go
    go.set()
    service.close()


def test_while_the_model_is_loaded_the_watch_is_told(slow: tuple[Service, threading.Event], cat: bytes) -> None:
    service, go = slow
    told: list[str] = []

    class Counting(Unmoved):
        def loading(self) -> None:
            told.append(service.hosts.get("efficientnet_lite0").owner.state)
            if len(told) == 3:
                go.set()

    explained = ServiceExplain(service)(cat, Asked(JobOptions(), {}), 0, Counting())
    assert list(explained.artifacts) == ["000000.overlay.jpg"]
    assert told[:3] == ["loading"] * 3


def test_a_load_that_takes_far_too_long_is_an_error_of_each_picture(
    slow: tuple[Service, threading.Event], cat: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = slow
    monkeypatch.setattr(explaining, "_LONGEST_LOAD_S", 0.05)
    explain = ServiceExplain(service)
    for _ in range(2):
        with pytest.raises(NotReady):
            explain(cat, Asked(JobOptions(), {}), 0, Unmoved())


def test_a_worker_is_in_no_hurry_and_turns_nobody_away() -> None:
    settings = Settings(method_timeouts_s={"rise": 1}, request_timeout_s=1, queue_size=1, queue_total=2)
    own = worker_settings(settings)
    assert min(own.request_timeout_s, own.load_wait_s) > 10 * 365 * 24 * 3600 / 4  # years
    assert own.method_timeouts_s == {}
    assert min(own.queue_size, own.queue_total) >= 3 * 1024  # three batches of the largest size that can be set
    assert own.batch_size == 8
    assert worker_settings(Settings(batch_size=5)).batch_size == 5
    assert worker_settings(Settings(device="cuda:0")).batch_size == 32
