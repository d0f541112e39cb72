"""The same again: found instead of computed, or known to the client already. Real models, real pictures."""

import base64
import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from flask import Flask
from flask.testing import FlaskClient
from PIL import Image
from safetensors.torch import save_file
from werkzeug.test import TestResponse

from app import create_app
from app.config import Settings
from app.schemas.answers import ExplainAnswer
from app.service import Explained
from explainers import get, registry
from explainers.batch import Batch, Maps
from tests import zoo
from tests.conftest import Server

URL = "/v1/explain"
FORMATS = ["jpeg", "png", "webp", "npy", "npz", "json"]
NOTHING_SPENT = {"decode": 0, "queue": 0, "model": 0, "render": 0}


def started(models_dir: Path, **settings: object) -> Flask:
    app = create_app(Settings(models_dir=models_dir, default_model="small", torch_threads=1, **settings))
    app.extensions["heatlens"].start()
    return app


@pytest.fixture
def app(models_dir: Path) -> Iterator[Flask]:
    """An app with an empty cache and a small model, which is ready."""
    app = started(models_dir)
    yield app
    zoo.may_answer.set()
    app.extensions["heatlens"].close()


@pytest.fixture
def small(app: Flask) -> FlaskClient:
    return app.test_client()


def ask(client: FlaskClient, picture: bytes, query: str = "", **headers: str) -> TestResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.put(f"{URL}?{query}", data=picture, headers=named)


def is_hit(response: TestResponse) -> bool:
    assert response.status_code == 200, response.text
    return response.headers["Server-Timing"].startswith("cache;desc=hit, ")


def tag(response: TestResponse) -> str:
    assert response.status_code == 200, response.text
    return response.headers["ETag"]


# Found


@pytest.mark.parametrize("format_", FORMATS)
def test_what_is_found_is_what_was_computed_byte_for_byte(small: FlaskClient, cat: bytes, format_: str) -> None:
    first, second = (ask(small, cat, f"format={format_}", X_Request_Id="one") for _ in range(2))
    assert (is_hit(first), is_hit(second)) == (False, True)
    own = ("Server-Timing", "Content-Length")  # of JSON, which holds the timings
    assert [pair for pair in first.headers if pair[0] not in own] == [p for p in second.headers if p[0] not in own]
    if format_ == "json":
        one, other = (ExplainAnswer.model_validate_json(r.data).model_dump() for r in (first, second))
        assert other["timings_s"] == NOTHING_SPENT
        assert one["timings_s"]["model"] > 0
        assert one | {"timings_s": None} == other | {"timings_s": None}
        assert [*json.loads(first.data)] == [*json.loads(second.data)]
    else:
        assert first.data == second.data


def test_each_json_answer_has_the_id_of_its_own_request(small: FlaskClient, cat: bytes) -> None:
    ids = []
    for asked in ("first", "second"):
        response = ask(small, cat, "format=json", X_Request_Id=asked)
        ids.append((json.loads(response.data)["request_id"], response.headers["X-Request-Id"]))
    assert ids == [("first", "first"), ("second", "second")]
    assert is_hit(response)


def test_a_hit_takes_no_place_in_the_queue_and_decodes_nothing(app: Flask, cat: bytes) -> None:
    """The model is busy and all decoders are taken: only what needs neither is answered."""
    client, service = app.test_client(), app.extensions["heatlens"]
    expected = ask(client, cat, "model=slow")
    zoo.may_answer.clear()
    zoo.slow_is_running.clear()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, app.test_client(), cat, "model=slow&target=1")
        assert zoo.slow_is_running.wait(10)
        with ExitStack() as stack:
            while service.viewer._decoding.acquire(blocking=False):
                stack.callback(service.viewer._decoding.release)
            hit = ask(client, cat, "model=slow")
            not_modified = ask(client, cat, "model=slow", If_None_Match=tag(expected))
        assert not running.done()
        zoo.may_answer.set()
        assert running.result().status_code == 200
    assert is_hit(hit)
    assert hit.data == expected.data
    assert not_modified.status_code == 304


def test_clients_at_once_get_what_they_asked_for(app: Flask, cat: bytes) -> None:
    """Each of four targets is asked for by four clients at the same moment, by some of them before it is there."""
    expected = {index: ask(app.test_client(), cat, f"target={index}&format=npy&alpha=0.1").data for index in range(4)}
    assert len(set(expected.values())) == 4
    barrier = threading.Barrier(16)

    def work(index: int) -> tuple[int, bytes, str]:
        barrier.wait(10)
        response = ask(app.test_client(), cat, f"target={index % 4}&format=npy")
        return index % 4, response.data, tag(response)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(work, range(16)))
    for index, content, _ in answers:
        np.testing.assert_allclose(
            np.load(io.BytesIO(content)), np.load(io.BytesIO(expected[index])), rtol=1e-5, atol=1e-7
        )
    assert len({(index, tag_) for index, _, tag_ in answers}) == 4


def test_the_bound_in_bytes_holds(models_dir: Path, cat: bytes) -> None:
    app = started(models_dir, result_cache_bytes=300_000)
    client = app.test_client()
    picture = len(ask(client, cat, "format=png").data)
    assert 100_000 < picture < 299_000  # one fits, so that the second makes the first go
    assert is_hit(ask(client, cat, "format=png"))
    assert not is_hit(ask(client, cat, "format=png&target=1"))
    assert is_hit(ask(client, cat, "format=png&target=1"))
    assert not is_hit(ask(client, cat, "format=png"))
    page = app.extensions["heatlens"].metrics.page().decode()
    (size,) = [line.split()[1] for line in page.splitlines() if line.startswith("heatlens_result_cache_bytes ")]
    assert picture < float(size) <= 300_000
    app.extensions["heatlens"].close()


def test_zero_bytes_switch_it_off_and_leave_the_tags(models_dir: Path, cat: bytes) -> None:
    app = started(models_dir, result_cache_bytes=0)
    client = app.test_client()
    first, second = ask(client, cat), ask(client, cat)
    assert (is_hit(first), is_hit(second)) == (False, False)
    assert ask(client, cat, If_None_Match=tag(first)).status_code == 304
    app.extensions["heatlens"].close()


def test_what_fails_is_not_kept(small: FlaskClient) -> None:
    white = io.BytesIO()
    Image.new("L", (32, 32), 255).save(white, "PNG")
    for _ in range(2):
        problem = ask(small, white.getvalue(), "model=broken").json
        assert problem is not None
        assert problem["code"] == "model_failed"


# Told apart


def test_whatever_changes_the_answer_changes_the_tag(small: FlaskClient, cat: bytes) -> None:
    for model in ("small", "binary"):
        assert ask(small, cat, f"model={model}").status_code == 200  # loaded
    other = io.BytesIO()
    Image.open(io.BytesIO(cat)).save(other, "PNG", compress_level=1)  # the same pixels in other bytes
    queries = [
        *("", "model=binary", "method=layercam", "method=saliency", "method=smoothgrad&samples=2"),
        *("method=smoothgrad&samples=3", "method=smoothgrad&samples=2&seed=1", "target=1", "target=2"),
        *("target=1&versus=2", "target=1&versus=0", "layer=first", "layer=first&layer=second"),
        *("layer=first&layer=second&fusion=maximum", "view=heatmap", "colormap=magma", "alpha=0.5", "legend=true"),
        *("max_side=200", "format=png", "format=npz", "format=json", "target=1&target=2&format=npz"),
    ]
    tags = [tag(ask(small, cat, query)) for query in queries] + [tag(ask(small, other.getvalue()))]
    assert len(set(tags)) == len(tags)


def test_the_same_said_otherwise_has_the_same_tag(small: FlaskClient, cat: bytes) -> None:
    expected = tag(ask(small, cat, "target=1&format=png"))
    for query in (
        "target=bee&format=png",
        "target=1&format=png&model=small",
        "target=1&format=png&method=gradcam&layer=second&alpha=0.70",
    ):
        assert tag(ask(small, cat, query)) == expected
    assert tag(ask(small, cat, "target=1", Accept="image/png")) == expected
    form = small.post(URL, data={"image": (io.BytesIO(cat), "cat.png"), "target": "1", "format": "png"})
    assert tag(form) == expected
    body = {"image": {"base64": base64.b64encode(cat).decode()}, "target": 1, "format": "png"}
    assert tag(small.post(URL, json=body)) == expected


def test_a_tag_outlives_the_process(small: FlaskClient, models_dir: Path, cat: bytes) -> None:
    known = tag(ask(small, cat))
    other = started(models_dir)
    response = ask(other.test_client(), cat, If_None_Match=known)
    other.extensions["heatlens"].close()
    assert response.status_code == 304


MINE = "model=mine&target=0&format=npy"


@dataclass(frozen=True)
class Mine:
    """An app with a model `mine` whose weights' file can be exchanged while it runs."""

    folder: Path
    app: Flask

    def exchange(self, seed: int) -> None:
        write_weights(self.folder, seed)
        assert self.app.extensions["heatlens"].hosts.unload("mine")


def write_weights(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    save_file(zoo.Small().state_dict(), folder / "mine.safetensors")


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Mine]:
    zoo.write_model_files(tmp_path)
    text = (tmp_path / "small.toml").read_text()
    (tmp_path / "mine.toml").write_text(text.replace('weights = "random"', 'weights = "mine.safetensors"'))
    write_weights(tmp_path, seed=1)
    app = started(tmp_path)
    yield Mine(tmp_path, app)
    app.extensions["heatlens"].close()


def test_other_weights_under_the_same_name_are_another_model(mine: Mine, cat: bytes) -> None:
    client = mine.app.test_client()
    old = [ask(client, cat, MINE) for _ in range(2)]
    assert is_hit(old[1])
    mine.exchange(seed=2)
    unloaded = ask(client, cat, MINE, If_None_Match=tag(old[0]))
    assert not is_hit(unloaded)  # 200, although the tag was right once
    new = ask(client, cat, MINE)
    assert is_hit(new)
    assert new.data == unloaded.data != old[0].data
    assert tag(new) == tag(unloaded) != tag(old[0])
    assert ask(client, cat, MINE, If_None_Match=tag(old[0])).status_code == 200


def test_an_answer_is_kept_for_the_weights_that_gave_it(
    mine: Mine, cat: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are exchanged after the cache was asked and before the model is: the answer is the new one's."""
    client, service = mine.app.test_client(), mine.app.extensions["heatlens"]
    assert ask(client, cat, "model=mine").status_code == 200  # loaded
    explain = service.explain

    def exchange_and_explain(*args: object, **more: object) -> Explained:
        mine.exchange(seed=2)
        return explain(*args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(service, "explain", exchange_and_explain)
        new = ask(client, cat, MINE)
    assert is_hit(ask(client, cat, MINE))
    mine.exchange(seed=1)
    old = [ask(client, cat, MINE) for _ in range(2)]
    assert [is_hit(each) for each in old] == [False, True]
    assert old[0].data == old[1].data != new.data
    assert tag(old[0]) == tag(old[1]) != tag(new)


def test_a_model_file_that_has_changed_at_a_restart_is_another_model(tmp_path: Path, cat: bytes) -> None:
    zoo.write_model_files(tmp_path)
    old = started(tmp_path)
    known = tag(ask(old.test_client(), cat, "format=json"))
    old.extensions["heatlens"].close()
    file = tmp_path / "small.toml"
    file.write_text(file.read_text().replace('"ant"', '"wasp"'))
    new = started(tmp_path)
    response = ask(new.test_client(), cat, "format=json", If_None_Match=known)
    assert "wasp" in response.text
    assert tag(response) != known
    new.extensions["heatlens"].close()


def test_a_method_that_is_not_repeatable_is_run_each_time_and_has_no_tag(
    small: FlaskClient, cat: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = get("saliency")

    def run(batch: Batch, parameters: object) -> Maps:
        found = honest.run(batch, parameters)
        return replace(found, rounds=[round_ + torch.rand(round_.shape) for round_ in found.rounds])

    monkeypatch.setitem(registry._METHODS, "dice", replace(honest, name="dice", run=run, repeatable=False))
    first, second = (ask(small, cat, "method=dice&format=npy", If_None_Match="*") for _ in range(2))
    assert (is_hit(first), is_hit(second)) == (False, False)
    assert first.data != second.data
    assert "ETag" not in first.headers


# Known to the client


@pytest.mark.parametrize("format_", FORMATS)
def test_what_the_client_has_is_not_sent_again(small: FlaskClient, cat: bytes, format_: str) -> None:
    full = ask(small, cat, f"format={format_}")
    assert tag(full).startswith('W/"' if format_ == "json" else '"')
    response = ask(small, cat, f"format={format_}", If_None_Match=tag(full), X_Request_Id="mine")
    assert (response.status_code, response.data) == (304, b"")
    assert "Content-Type" not in response.headers
    for name in ("ETag", "Vary", "Cache-Control"):  # RFC 9110, 15.4.5: as the 200 would have it
        assert response.headers[name] == full.headers[name]
    assert response.headers["X-Request-Id"] == "mine"


def test_tags_are_compared_weakly_and_in_lists(small: FlaskClient, cat: bytes) -> None:
    mine = tag(ask(small, cat))
    assert ask(small, cat, If_None_Match=f"W/{mine}").status_code == 304
    assert ask(small, cat, If_None_Match=f'"other", {mine}').status_code == 304


@pytest.mark.parametrize("tags", ["*", '"other"', 'W/"other"', "None", "", "nonsense, \x01"])
def test_what_names_no_answer_is_answered(small: FlaskClient, cat: bytes, tags: str) -> None:
    assert ask(small, cat, If_None_Match=tags).status_code == 200


def test_an_answer_in_another_format_is_another_one(small: FlaskClient, cat: bytes) -> None:
    known = tag(ask(small, cat, Accept="image/png"))
    response = ask(small, cat, If_None_Match=known, Accept="image/webp")
    assert (response.status_code, response.content_type, response.headers["Vary"]) == (200, "image/webp", "Accept")


@pytest.mark.parametrize(
    ("query", "headers", "code"),
    [
        ("alpha=2", {}, "bad_option"),
        ("alhpa=0.5", {}, "unknown_option"),
        ("samples=5", {}, "bad_parameter"),
        ("target=dog", {}, "unknown_label"),
        ("max_side=5000", {}, "limit_exceeded"),
        ("method=eigencam&versus=1", {}, "versus_not_taken"),
        ("", {"X_Request_Deadline_S": "soon"}, "bad_option"),
        ("", {"Accept": "text/html"}, "not_acceptable"),
    ],
)
def test_options_are_checked_first(
    small: FlaskClient, cat: bytes, query: str, headers: dict[str, str], code: str
) -> None:
    known = tag(ask(small, cat))
    problem = ask(small, cat, query, If_None_Match=known, **headers).json
    assert problem is not None
    assert problem["code"] == code


@pytest.mark.server
def test_a_real_server_finds_it_and_leaves_out_what_the_client_has(server: Server, cat: bytes) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        first, second = (client.put(f"{URL}?alpha=0.321", content=cat) for _ in range(2))
        third = client.put(f"{URL}?alpha=0.321", content=cat, headers={"If-None-Match": first.headers["ETag"]})
        fourth = client.get("/healthz")  # on the same connection: nothing of the 304 is left in it
    assert [response.status_code for response in (first, second, third, fourth)] == [200, 200, 304, 200]
    assert "cache;desc=hit" in second.headers["Server-Timing"]
    assert first.content == second.content
    assert third.content == b""
