"""A full queue, a deadline, a model that fails to load: each has its own answer, and the service goes on."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from app import create_app
from app.config import Settings
from tests import zoo


@pytest.fixture
def pressed(models_dir: Path) -> Iterator[FlaskClient]:
    """An app with one place in the queue, a short deadline, `small` as default, and room for two models beside it."""
    settings = Settings(
        models_dir=models_dir,
        default_model="small",
        torch_threads=1,
        queue_size=1,
        max_loaded_models=2,
        request_timeout_s=5,
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
        zoo.slow_is_running.wait(10)
        waiting = pool.submit(explain, app.test_client(), cat, "slow")
        owner = app.extensions["heatlens"].hosts.peek("slow").owner
        while owner.waiting == 0:
            assert not waiting.done(), waiting.result()
        status, problem, retry_after = explain(pressed, cat, "slow")
        assert (status, problem["code"], problem["limit"]) == (503, "queue_full", 1)
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
