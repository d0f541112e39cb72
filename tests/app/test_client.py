"""The Python client, against a real server."""

import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image

from app.client import HeatLens, HeatLensError
from app.client.connection import LONGEST_WAIT_S, Connection
from app.client.uploads import Form
from app.schemas.answers import MethodList
from app.schemas.jobs import JobAnswer, JobLinks, Progress
from tests.conftest import Server

CAT = Path("app/web/static/cat.jpg").absolute()


@pytest.fixture
def lens(server: Server) -> Iterator[HeatLens]:
    with HeatLens(server.url) as lens:
        yield lens


def test_it_needs_neither_torch_nor_the_service() -> None:
    code = """if True:
        import sys, app.client
        loaded = {"torch", "flask", "cv2", "models", "explainers", "app.service"} & set(sys.modules)
        sys.exit(f"imported {loaded}" if loaded else 0)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.server
def test_explain(lens: HeatLens, tmp_path: Path) -> None:
    found = lens.explain(CAT, target=["predicted", 281], max_side=200)
    first, second = found.targets
    assert [found.label, first.label, second.label] == ["tiger cat", "tiger cat", "tabby"]
    assert found.label == found.predictions[0].label == lens.predict(CAT).predictions[0].label
    assert found.probability == pytest.approx(found.predictions[0].probability)
    # the sample is 451 x 300; 200 px wide it is 133 px high
    assert (found.map.shape, found.map.dtype) == ((133, 200), np.float32)
    whole = second.save(tmp_path / "tabby.npy")  # at the size of the answer, which here is that of `map` too
    assert np.allclose(np.load(whole), second.map)
    assert not np.allclose(second.map, first.map)
    sizes = {}
    for name in ("a.jpg", "a.png", "a.webp"):
        with Image.open(second.save(tmp_path / name)) as picture:
            sizes[name] = (picture.format, picture.size)
    assert sizes == {"a.jpg": ("JPEG", (200, 133)), "a.png": ("PNG", (200, 133)), "a.webp": ("WEBP", (200, 133))}
    assert (tmp_path / "a.jpg").read_bytes() == second.picture
    assert json.loads(found.save(tmp_path / "a.json").read_text())["explanations"][1]["target"]["index"] == 281
    with np.load(second.save(tmp_path / "a.npz")) as arrays:
        assert arrays["targets"].tolist() == [281]
    with pytest.raises(ValueError, match=r"'\.gif' is none of \.jpg"):
        found.save(tmp_path / "a.gif")


@pytest.mark.server
def test_a_picture_may_be_bytes_and_options_are_those_of_the_service(lens: HeatLens) -> None:
    found = lens.explain(CAT.read_bytes(), method="occlusion", window=0.5, stride=1.0, versus="tabby", values=False)
    assert found.facts.method.parameters["window"] == 0.5
    assert found.of_target.versus is not None
    assert found.of_target.versus.label == "tabby"
    with pytest.raises(ValueError, match="values=False"):
        _ = found.map
    assert {method.name for method in lens.methods()} >= {"gradcam", "occlusion"}
    assert [model.name for model in lens.models() if model.default] == ["efficientnet_lite0"]


@pytest.mark.server
def test_links_for_other_pages(lens: HeatLens) -> None:
    links = lens.embed(CAT, target="tabby", max_side=64, lifetime_s=600)
    with Image.open(io.BytesIO(httpx2.get(links.urls.image, timeout=60).raise_for_status().content)) as picture:
        assert max(picture.size) == 64
    assert "tabby" in links.tags.img
    with pytest.raises(HeatLensError, match="one target") as caught:
        lens.embed(CAT, target=["tabby", 285])
    assert caught.value.field == "target"
    with pytest.raises(FileNotFoundError):
        lens.embed("nowhere.jpg")


@pytest.mark.server
def test_what_the_server_refuses_is_one_kind_of_error(lens: HeatLens) -> None:
    with pytest.raises(HeatLensError, match="did you mean 'gradcam'") as caught:
        lens.explain(CAT, method="gradcm")
    error = caught.value
    assert (error.code, error.status, error.field) == ("unknown_method", 422, "method")
    assert error.request_id
    assert "gradcam" in error.facts["close_matches"]
    with pytest.raises(HeatLensError) as caught:
        lens.explain(b"no picture")
    assert (caught.value.code, caught.value.status) == ("unsupported_image_format", 415)
    with pytest.raises(HeatLensError) as caught:
        lens.jobs.get("nothing")
    assert (caught.value.code, caught.value.status) == ("unknown_job", 404)
    with pytest.raises(TypeError, match="the ending of the file"):
        lens.explain(CAT, format="png")


@pytest.mark.server
def test_a_job_from_files_to_results(lens: HeatLens, tmp_path: Path) -> None:
    strange = tmp_path / 'a "b" ü\\.jpg'
    strange.write_bytes(CAT.read_bytes())
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    job = lens.jobs.create([CAT, strange, tmp_path / "bad.jpg"], name="mine", target=["top2"], max_side=64)
    seen: list[int] = []
    job.wait(lambda facts: seen.append(facts.progress.done), poll_s=0.2, timeout_s=120)
    assert (job.status, job.facts.name, seen[-1]) == ("completed_with_errors", "mine", 3)
    assert job.facts.options == {"target": ["top2"], "max_side": 64}
    assert seen == sorted(seen)
    items = list(job.items())
    assert [item.name for item in items] == ["cat.jpg", 'a "b" ü\\.jpg', "bad.jpg"]
    assert [item.label for item in job.items(status="succeeded")] == ["tiger cat"] * 2
    assert items[2].error is not None
    with Image.open(io.BytesIO(job.overlay(1, target=1))) as picture:
        assert max(picture.size) == 64
    with zipfile.ZipFile(job.download(tmp_path / "out.zip")) as archive:
        assert archive.testzip() is None
        assert len([name for name in archive.namelist() if name.endswith(".jpg")]) == 2 * 2
    assert len(job.download(tmp_path / "out.ndjson").read_text().splitlines()) == 3
    links = lens.embed(job=job.id, item=1, target=1)
    assert httpx2.get(links.urls.image, timeout=60).raise_for_status().content == job.overlay(1, target=1)
    assert job.id in [other.id for other in lens.jobs]
    job.delete()
    with pytest.raises(HeatLensError, match="unknown_job"):
        job.refresh()
    archived = lens.jobs.create(archive=_zip(tmp_path))
    assert archived.facts.progress.total == 2
    archived.cancel()
    archived.delete()


def _zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "in.zip", "w") as archive:
        for name in ("1.jpg", "2.jpg"):
            archive.write(CAT, name)
    return folder / "in.zip"


def test_what_is_no_job_is_not_sent(tmp_path: Path) -> None:
    lens = HeatLens("http://127.0.0.1:1")
    with pytest.raises(TypeError, match="one of pictures, archive and source"):
        lens.jobs.create([CAT], archive=CAT)
    with pytest.raises(OSError, match="is no file"):
        lens.jobs.create([tmp_path])
    with pytest.raises(FileNotFoundError):
        lens.jobs.create([tmp_path / "none.jpg"])


def test_a_form_is_as_long_as_it_says_and_holds_one_open_file(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jpg" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * (number * 300_000))
    form = Form([("image", path) for path in paths])
    before, most, length = _open_files(), 0, 0
    for piece in form.pieces():
        length, most = length + len(piece), max(most, _open_files())
        assert len(piece) <= 2**18
    assert (str(length), most) == (form.headers["Content-Length"], before + 1)
    paths[2].write_bytes(b"short")
    with pytest.raises(OSError, match="became shorter"):
        list(form.pieces())


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def answering(
    *answers: tuple[int, dict[str, str], bytes], paths: list[str] | None = None
) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives these answers in turn; lends its address, and the bodies it was sent; notes the paths."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if paths is not None:
                paths.append(self.path)
            bodies.append(self.rfile.read(int(self.headers["Content-Length"] or 0)))
            status, headers, body = answers[min(len(bodies), len(answers)) - 1]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", bodies
        server.shutdown()
        thread.join()


NOT_READY = (503, {"Retry-After": "7"}, b'{"code": "not_ready", "detail": "It loads."}')
EMPTY = (200, {}, b'{"methods": [], "of_a_later_version": 1}')


def asked(url: str, tries: int) -> tuple[list[float], Callable[[], MethodList]]:
    waits: list[float] = []
    connection = Connection(url, timeout_s=10, tries=tries, sleep=waits.append)
    pieces = [b"a", b"b"]  # a body that is streamed, and so made again for each try

    def ask() -> MethodList:
        found = connection.read(MethodList, "POST", "/", body=lambda: iter(pieces), headers={"Content-Length": "2"})
        connection.close()
        return found

    return waits, ask


def test_a_busy_server_is_asked_again_when_it_says() -> None:
    with answering(NOT_READY, NOT_READY, EMPTY) as (url, bodies):
        waits, ask = asked(url, tries=3)
        assert ask().methods == []
    assert (waits, bodies) == ([7.0, 7.0], [b"ab"] * 3)


@pytest.mark.parametrize(
    ("answer", "tries", "waits"),
    [
        (NOT_READY, 3, [7.0, 7.0]),
        ((503, {"Retry-After": str(LONGEST_WAIT_S + 1)}, NOT_READY[2]), 3, []),
        ((503, {}, NOT_READY[2]), 3, []),
        ((503, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, NOT_READY[2]), 2, [1.0]),
        ((503, {"Retry-After": "-1"}, NOT_READY[2]), 2, []),
        ((504, {"Retry-After": "7"}, NOT_READY[2]), 3, []),
    ],
)
def test_patience_has_an_end(answer: tuple[int, dict[str, str], bytes], tries: int, waits: list[float]) -> None:
    with answering(answer) as (url, _):
        waited, ask = asked(url, tries)
        with pytest.raises(HeatLensError, match="It loads") as caught:
            ask()
    assert (waited, caught.value.code, caught.value.status) == (waits, "not_ready", answer[0])


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ((502, {}, b"<html>Bad gateway"), 502),
        ((500, {}, b"[]"), 500),
        ((302, {"Location": "/elsewhere"}, b""), 302),
        ((200, {}, b"<html>Welcome"), None),
        ((200, {}, b'{"models": []}'), None),
        ((200, {}, b"[" * 100_000), None),
        ((200, {"Content-Encoding": "gzip"}, b"not packed"), None),
        ((500, {}, b"[" * 100_000), 500),
        ((500, {}, b'{"code": 5, "detail": "It broke."}'), 500),
        ((500, {}, b'{"code": "internal", "detail": null}'), 500),
        ((500, {}, b'{"code": "internal", "detail": "It broke.", "field": ["a"]}'), 500),
        ((500, {}, b'{"code": "internal", "detail": "It broke.", "request_id": {}}'), 500),
    ],
)
def test_what_is_no_heatlens_is_told_so(answer: tuple[int, dict[str, str], bytes], status: int | None) -> None:
    with answering(answer) as (url, _), HeatLens(url) as lens:
        with pytest.raises(HeatLensError) as caught:
            lens.methods()
        assert (caught.value.code, caught.value.status) == ("bad_answer", status)
        assert url in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://h:port", "http://\0", "http://\ud800/", "nowhere", "ftp://h", "http://a..b", ""]
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(HeatLensError) as caught:
        HeatLens(url).methods()
    assert (caught.value.code, caught.value.status) == ("unreachable", None)


def test_a_file_is_asked_for_without_what_it_does_not_show(client: FlaskClient, cat: bytes, tmp_path: Path) -> None:
    query = "format=json&model=small&values=true&faithfulness=true&stability=true"
    facts = json.loads(client.put(f"/v1/explain?{query}", data=cat).data)
    paths: list[str] = []
    verdicts = ("better_than_random", "no_better_than_random")
    for verdict in verdicts:
        facts["explanations"][0]["faithfulness"]["verdict"] = verdict
        answer = (200, {}, json.dumps(facts).encode())
        with answering(answer, paths=paths) as (url, _), HeatLens(url) as lens:
            found = lens.explain(cat, model="small", faithfulness=True, stability=True)
            for kind in ("npy", "png", "npz"):
                found.save(tmp_path / f"a.{kind}")
    measured = [_names(path) & {"faithfulness", "stability", "values"} for path in paths]
    both = {"faithfulness", "stability"}
    assert measured == [
        *(both | {"values"}, set(), set(), both),
        *(both | {"values"}, set(), {"faithfulness"}, both),  # the picture has a note of it
    ]
    assert all("model" in _names(path) for path in paths)


def _names(path: str) -> set[str]:
    return set(parse_qs(urlsplit(path).query))


def test_who_waits_for_a_job_is_told_what_changed() -> None:
    links = dict.fromkeys(JobLinks.model_fields, "/")
    waits = JobAnswer.model_validate(
        {"id": "j", "name": "", "status": "running", "waiting_for": None, "rate_per_s": None, "eta_s": None,
         "progress": {"total": 2, "done": 0, "failed": 0}, "created_at": 0, "started_at": None, "finished_at": None,
         "size_bytes": 0, "options": {}, "links": links},
    )  # fmt: skip
    begun = waits.model_copy(update={"progress": Progress(total=2, done=1, failed=0)})
    over = begun.model_copy(update={"status": "succeeded", "progress": Progress(total=2, done=2, failed=0)})
    states = [waits, waits, begun, begun, begun, over]
    with answering(*((200, {}, state.model_dump_json().encode()) for state in [waits, *states])) as (url, _):
        seen: list[int] = []
        with HeatLens(url) as lens:
            lens.jobs.get("j").wait(lambda facts: seen.append(facts.progress.done), poll_s=0)
    assert seen == [0, 1, 2]


def test_no_server_at_all() -> None:
    with (
        HeatLens("http://127.0.0.1:1/") as lens,
        pytest.raises(HeatLensError, match=r"127\.0\.0\.1:1 did not") as caught,
    ):
        lens.methods()
    assert (caught.value.code, caught.value.status) == ("unreachable", None)
