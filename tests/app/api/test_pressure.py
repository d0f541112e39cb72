"""A full queue, a deadline, a model that fails to load: each has its own answer, and the service goes on."""

import gc
import io
import json
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from PIL import Image

from app import create_app
from app.config import Settings
from app.engine import Job, Watch
from tests import zoo
from tests.app.test_hosts import sizes


@pytest.fixture
def pressed(models_dir: Path) -> Iterator[FlaskClient]:
    """An app with two places at each model, a short deadline, and memory for `small`, its default, and two like it."""
    names = ("small", "binary", "negative", "nan")
    settings = Settings(
        models_dir=models_dir,
        default_model="small",
        torch_threads=1,
        queue_size=2,
        model_memory_bytes=sum(sizes(models_dir, *names)) - 1,
        request_timeout_s=20,
        load_wait_s=60,
        result_cache_bytes=0,
    )
    app = create_app(settings)
    service = app.extensions["heatlens"]
    service.start()
    yield app.test_client()
    zoo.may_answer.set()
    service.close()


def explain(client: FlaskClient, cat: bytes, model: str) -> tuple[int, dict[str, object], str | None]:
    response = client.put(f"/v1/explain?model={model}&format=json", data=cat)
    return response.status_code, json.loads(response.data), response.headers.get("Retry-After")


def test_a_full_queue_is_503_with_retry_after_and_everyone_accepted_is_answered(
    pressed: FlaskClient, cat: bytes
) -> None:
    app = pressed.application
    assert explain(pressed, cat, "slow")[0] == 200  # loaded
    zoo.may_answer.clear()
    zoo.slow_is_running.clear()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(explain, app.test_client(), cat, "slow")
        assert zoo.slow_is_running.wait(60)
        waiting = pool.submit(explain, app.test_client(), cat, "slow")
        hosts = app.extensions["heatlens"].hosts
        while hosts.inside < 2:
            assert not waiting.done(), waiting.result()
            time.sleep(0.01)
        status, problem, retry_after = explain(pressed, cat, "slow")
        assert (status, problem["code"], problem["limit"]) == (503, "queue_full", 2)
        assert retry_after is not None
        assert int(retry_after) >= 1
        assert explain(pressed, cat, "small")[0] == 200  # another model is not affected
        zoo.may_answer.set()
        assert (running.result()[0], waiting.result()[0]) == (200, 200)


def test_a_late_answer_is_504_and_the_next_request_works(pressed: FlaskClient, cat: bytes) -> None:
    assert explain(pressed, cat, "slow")[0] == 200
    zoo.may_answer.clear()
    status, problem, _ = explain(pressed, cat, "slow")
    assert (status, problem["code"]) == (504, "deadline_exceeded")
    zoo.may_answer.set()
    assert explain(pressed, cat, "slow")[0] == 200


def test_a_long_method_past_its_time_is_504_and_the_next_request_does_not_wait_for_it(
    models_dir: Path, cat: bytes
) -> None:
    # 5000 masks, one at a time, of 20 ms each: had the work not ended with its request, the next one would wait for
    # more than a minute and a half, and have the same end.
    settings = Settings(
        models_dir=models_dir, default_model="sleepy", torch_threads=1, max_chunk_pictures=1, request_timeout_s=8
    )
    app = create_app(settings)
    app.extensions["heatlens"].start()
    client = app.test_client()
    response = client.put("/v1/explain?method=rise&samples=5000", data=cat)
    problem = json.loads(response.data)
    assert (response.status_code, problem["code"], problem["total"]) == (504, "deadline_exceeded", 5000)
    assert 0 < problem["done"] <= 400  # 8 s of 20 ms each
    assert f"{problem['done']} of 5000 steps were done: ask for fewer samples" in problem["detail"]
    assert "HEATLENS_REQUEST_TIMEOUT_S" in problem["detail"]
    for query in ("method=gradcam", "method=rise&samples=3"):
        assert client.put(f"/v1/explain?{query}", data=cat).status_code == 200
    app.extensions["heatlens"].close()


def grey(level: int) -> bytes:
    picture = io.BytesIO()
    Image.new("L", (32, 32), level).save(picture, "PNG")
    return picture.getvalue()


@pytest.mark.parametrize("level", [255, 200])  # the GPU's error, the CPU's
@pytest.mark.parametrize("method", ["gradcam", "saliency", "rise"])
def test_a_picture_for_which_memory_runs_out_is_503_and_leaves_nothing_behind(
    pressed: FlaskClient, cat: bytes, method: str, level: int
) -> None:
    url = f"/v1/explain?model=large&method={method}"
    expected = pressed.put(f"{url}&format=npy", data=cat)
    assert expected.status_code == 200
    large = grey(level)
    zoo.unfinished.clear()
    gc.collect()
    gc.disable()  # freed because nothing refers to it, and not because the collector found a cycle
    try:
        problem = pressed.put(url, data=large).json
        assert problem is not None
        assert (problem["status"], problem["code"]) == (503, "out_of_memory")
        assert "HEATLENS_MAX_CHUNK_PICTURES" in problem["detail"]
        assert zoo.unfinished
        assert not any(activations() is not None for activations in zoo.unfinished)
    finally:
        gc.enable()
    assert pressed.put(f"{url}&format=npy", data=cat).data == expected.data


def test_scores_for_which_memory_runs_out_are_503_too(pressed: FlaskClient) -> None:
    problem = pressed.put("/v1/predict?model=large", data=grey(255)).json
    assert problem is not None
    assert (problem["status"], problem["code"]) == (503, "out_of_memory")
    assert "HEATLENS" not in problem["detail"]  # no option helps


def test_an_error_of_the_model_does_not_keep_the_job_alive(
    pressed: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Picture, input and job go with the answer, be the error a known one or not."""
    jobs: list[weakref.ref[object]] = []
    result = Job.result

    def noted(job: Job[object, object], watch: Watch | None = None) -> object:
        jobs.append(weakref.ref(job))
        return result(job, watch)

    monkeypatch.setattr(Job, "result", noted)
    picture = grey(255)
    assert pressed.put("/v1/explain?model=broken", data=grey(0)).status_code == 200
    gc.collect()
    gc.disable()
    try:
        assert pressed.put("/v1/explain?model=large", data=picture).status_code == 503
        assert pressed.put("/v1/explain?model=nan", data=picture).status_code == 500
        assert pressed.put("/v1/explain?model=broken", data=picture).status_code == 500
        assert pressed.put("/v1/explain?layer=none", data=picture).status_code == 422
        assert explain(pressed, picture, "small")[0] == 200  # the owners have turned to other work
        deadline = time.monotonic() + 60
        while any(job() is not None for job in jobs):
            assert time.monotonic() < deadline, jobs
            time.sleep(0.01)
    finally:
        gc.enable()
    assert len(jobs) == 6


def test_a_factory_that_calls_sys_exit_ends_nothing(pressed: FlaskClient, cat: bytes) -> None:
    for _ in range(2):
        status, problem, _ = explain(pressed, cat, "quits")
        assert (status, problem["code"]) == (500, "unknown_architecture")
    assert explain(pressed, cat, "small")[0] == 200


def ready(client: FlaskClient) -> set[str]:
    rows = json.loads(client.get("/v1/models").data)["models"]
    return {row["name"] for row in rows if row["state"] == "ready"}


def test_the_model_unused_for_longest_makes_room_and_those_of_the_start_stay(pressed: FlaskClient, cat: bytes) -> None:
    for model in ("binary", "negative", "binary", "nan"):  # binary is used again, so negative goes
        assert explain(pressed, cat, model)[0] == 200
    assert ready(pressed) == {"small", "binary", "nan"}
    assert explain(pressed, cat, "negative")[0] == 200  # and comes back when asked for
    assert ready(pressed) == {"small", "nan", "negative"}


def test_missing_weights_say_what_to_do_and_cost_no_loaded_model(pressed: FlaskClient, cat: bytes) -> None:
    for model in ("binary", "negative"):
        assert explain(pressed, cat, model)[0] == 200
    for model in ("resnet152", "resnet101", "resnet152"):
        status, problem, _ = explain(pressed, cat, model)
        assert (status, problem["code"]) == (503, "weights_unavailable")
        assert f"heatlens models fetch {model}" in str(problem["detail"])
    assert ready(pressed) == {"small", "binary", "negative"}
