"""`/v1/embed-links` and `/embed`: what a link shows, to whom, for how long, and nothing else."""

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask.testing import FlaskClient
from PIL import Image

from app import create_app
from app.api import embed
from app.config import Settings
from app.embedding import Link
from app.jobs.rows import Outcome
from app.jobs.shelf import Kept
from app.jobs.tables import jobs, kept
from app.schemas.embedding import EmbedAnswer, EmbedFacts
from app.signing import Signer
from tests.app.jobs.books import Book, opened, result

SITE = "https://review.example.com"
FILES = ["image", "picture", "heat"]
WAYS = ["", "/image", "/picture", "/heat"]


@dataclass
class Place:
    book: Book
    http: FlaskClient

    def link(self, **asked: Any) -> Any:
        answer = self.http.post("/v1/embed-links", json=asked)
        assert answer.status_code == 201, answer.text
        return answer.json

    def get(self, link: Any, way: str = "", **options: Any) -> Any:
        return self.http.get(f"/embed/{link['token']}{way}", **options)

    def end(self, link: Any) -> None:
        """Have its time be over."""
        link_id = json.loads(_payload(link))[0]
        with self.book.ledger.database.write() as connection:
            connection.execute(sa.update(kept).where(kept.c.id == link_id).values(expires_at=1.0))

    def rows(self) -> int:
        with self.book.ledger.database.read() as connection:
            return int(connection.scalar(sa.select(sa.func.count()).select_from(kept)) or 0)

    def job(self, cat: bytes, versus: Any = None) -> str:
        """A job of one picture, explained for the classes 2 and 1."""
        job_id = self.book.submit(["cat.png"])
        self.book.store.write("cat.png", cat)
        found = result(0, (2, 1))
        for explanation in found["explanations"]:
            explanation["versus"] = versus
        self.book.ledger.record(job_id, [Outcome(0, sha256=hashlib.sha256(cat).hexdigest(), result=found)])
        stored = io.BytesIO()
        Image.new("RGB", (7, 5), "green").save(stored, "JPEG")
        for name in ("000000.overlay.jpg", "000000.overlay-1.jpg"):
            self.book.store.write(f"{job_id}/results/000/{name}", stored.getvalue())
        return job_id


@pytest.fixture(scope="module")
def place(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    options = {"embed_origins": (SITE,), "embed_retention_s": 7000, "load_wait_s": 60, "trusted_proxies": 1}
    with started(models_dir, tmp_path_factory.mktemp("data"), **options) as place:
        yield place


@contextmanager
def started(models_dir: Path, data_dir: Path, **options: Any) -> Iterator[Place]:
    settings = Settings(models_dir=models_dir, default_model="small", torch_threads=1, data_dir=data_dir, **options)
    app = create_app(settings)
    with opened(settings) as book:
        app.extensions["heatlens"].start()
        yield Place(book, app.test_client())
        app.extensions["heatlens"].close()


def sent(cat: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(cat).decode()}


def test_a_link_shows_what_explain_would_answer(place: Place, cat: bytes) -> None:
    link = place.link(image=sent(cat), target=1, alpha=0.5, colormap="viridis", max_side=200)
    EmbedAnswer.model_validate(link)
    asked = "/v1/explain?target=1&colormap=viridis&max_side=200"
    image, picture, heat = (place.get(link, f"/{name}") for name in FILES)
    assert image.data == place.http.put(f"{asked}&alpha=0.5&format=jpeg", data=cat).data
    assert heat.data == place.http.put(f"{asked}&alpha=1&view=layer&format=png", data=cat).data
    with Image.open(io.BytesIO(picture.data)) as shown:
        assert (shown.format, shown.size) == ("JPEG", (200, 133))
    frame = place.get(link)
    assert frame.content_type == "text/html; charset=utf-8"
    assert 'id="opacity" min="0" max="100" value="50"' in frame.text
    assert "#440154" in frame.text  # where viridis begins, by its authors' table


@pytest.mark.parametrize("way", ["raw", "put", "multipart", "id"])
def test_the_picture_may_come_in_every_way(place: Place, cat: bytes, way: str) -> None:
    if way == "raw":
        answer = place.http.post("/v1/embed-links?method=saliency&target=1", data=cat)
    elif way == "put":  # as `curl -T` sends it
        answer = place.http.put("/v1/embed-links?method=saliency&target=1", data=cat)
    elif way == "multipart":
        form = {"image": (io.BytesIO(cat), "cat.png"), "method": "saliency", "target": "1"}
        answer = place.http.post("/v1/embed-links", data=form)
    else:
        image = {"id": place.http.post("/v1/images", data=cat).json["id"]}  # type: ignore[index]
        answer = place.http.post("/v1/embed-links", json={"image": image, "method": "saliency", "target": [1]})
    assert answer.status_code == 201, answer.text
    expected = place.http.put("/v1/explain?method=saliency&target=1&format=jpeg", data=cat)
    assert place.get(answer.json, "/image").data == expected.data


def test_what_a_link_shows_cannot_be_changed_by_its_url(place: Place, cat: bytes) -> None:
    link = place.link(image=sent(cat))
    for way in WAYS:
        plain, changed = place.get(link, way), place.get(link, f"{way}?target=1&alpha=0&max_side=16&format=npz&id=a")
        assert plain.data == changed.data


def test_pages_of_listed_sites_may_show_it_without_cookies_and_without_telling(place: Place, cat: bytes) -> None:
    link = place.link(image=sent(cat), lifetime_s=5000)
    for way in WAYS:
        answer = place.get(link, way)
        assert answer.status_code == 200
        policy = answer.headers["Content-Security-Policy"]
        assert f"frame-ancestors 'self' {SITE}" in policy
        assert "unsafe" not in policy
        assert "X-Frame-Options" not in answer.headers
        assert "Set-Cookie" not in answer.headers
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        head = place.http.head(f"/embed/{link['token']}{way}")
        assert (head.status_code, head.data) == (200, b"")
        assert head.content_length == answer.content_length
    script = place.http.get("/embed/heat-lens.js")
    assert script.headers["Access-Control-Allow-Origin"] == "*"
    assert script.mimetype == "text/javascript"
    script.close()
    assert place.http.get("/").headers["X-Frame-Options"] == "DENY"


def test_pictures_are_cached_by_the_reader_alone_and_never_beyond_the_link(place: Place, cat: bytes) -> None:
    long, short = place.link(image=sent(cat), lifetime_s=5000), place.link(image=sent(cat), lifetime_s=100)
    for name in FILES:
        answer = place.get(long, f"/{name}")
        assert answer.headers["Cache-Control"] == "private, max-age=3600"
        again = place.get(long, f"/{name}", headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status_code, again.data) == (304, b"")
        assert again.headers["ETag"] == answer.headers["ETag"]
        weak = {"If-None-Match": f"W/{answer.headers['ETag']}"}
        assert place.get(long, f"/{name}", headers=weak).status_code == 304
        private, age = place.get(short, f"/{name}").headers["Cache-Control"].split(", max-age=")
        assert private == "private"
        assert 0 < int(age) <= 100
    tags = {place.get(link, f"/{name}").headers["ETag"] for link in (long, short) for name in FILES}
    assert len(tags) == 6


def test_forged_over_and_gone_are_told_in_the_same_words(place: Place, cat: bytes) -> None:
    image = {"id": place.http.post("/v1/images", data=cat).json["id"]}  # type: ignore[index]
    job_id = place.job(cat)
    of_image, of_job = place.link(image=image), place.link(job=job_id, item=0)
    good = place.link(image=sent(cat))
    over, revoked = place.link(image=sent(cat)), place.link(image=sent(cat))
    place.end(over)
    foreign = Signer(place.book.settings.model_copy(update={"data_dir": place.book.settings.data_dir / "other"}))
    link_id, expires_at = json.loads(_payload(good))
    unknown = Signer(place.book.settings).sign("x" * 22, expires_at)
    assert place.get(of_image).status_code == place.get(of_job).status_code == 200
    place.http.delete(f"/v1/images/{image['id']}")
    place.http.delete(f"/v1/jobs/{job_id}")
    assert place.http.delete(f"/v1/embed-links/{revoked['token']}").status_code == 204
    tokens = [
        revoked["token"], of_image["token"], of_job["token"], over["token"], foreign.sign(link_id, expires_at), unknown,
        good["token"][:-2], "nothing", "a.b.c", "%00",
    ]  # fmt: skip
    for way in WAYS:
        found = set()
        for token in tokens:
            answer = place.http.get(f"/embed/{token}{way}")
            told = answer.text if way == "" else str({**answer.json, "request_id": ""})  # type: ignore[dict-item]
            headers = {name: value for name, value in answer.headers.items() if name != "X-Request-Id"}
            found.add((answer.status_code, told, str(headers)))
        ((status, told, _),) = found
        assert status == 404
        assert "This link is not valid, or its time is over, or what it showed was deleted." in told


def test_a_token_names_nothing_that_opens_more_than_the_link(place: Place, cat: bytes) -> None:
    image_id = place.http.post("/v1/images", data=cat).json["id"]  # type: ignore[index]
    job_id = place.job(cat)
    for link in (place.link(image={"id": image_id}), place.link(job=job_id, item=0)):
        payload = _payload(link)
        told = [payload, *(place.get(link, way).text for way in ("",)), str(place.get(link, "/heat").headers)]
        assert not any(secret in text for secret in (image_id, job_id) for text in told)
        link_id = json.loads(payload)[0]
        for path in (f"/v1/images/{link_id}", f"/v1/images/{link_id}/picture", f"/v1/jobs/{link_id}"):
            assert place.http.get(path).status_code == 404
        assert place.http.delete(f"/v1/images/{link_id}").status_code == 404
        assert place.get(link, "/image").status_code == 200


def test_a_picture_of_a_job_is_shown_as_the_job_drew_it(place: Place, cat: bytes) -> None:
    job_id = place.job(cat)
    link = place.link(job=job_id, item=0, target=1)
    with Image.open(io.BytesIO(place.get(link, "/image").data)) as shown:
        assert shown.size == (7, 5)  # the one that was stored
    assert 'width="7" height="5"' in link["tags"]["img"]
    layer = place.http.put("/v1/explain?target=1&view=layer&alpha=1&format=png", data=cat)
    assert place.get(link, "/heat").data == layer.data
    other = place.link(job=job_id, item=0, method="saliency")
    assert place.get(other, "/image").data == place.http.put("/v1/explain?method=saliency&target=2", data=cat).data
    by_query = place.http.post(f"/v1/embed-links?job={job_id}&item=0&target=1")
    form = {"job": job_id, "item": "0", "target": "1"}
    by_form = place.http.post("/v1/embed-links", data=form, content_type="multipart/form-data")
    for answer in (by_query, by_form):
        assert answer.status_code == 201, answer.text
        assert answer.json["target"] == link["target"]  # type: ignore[index]


def test_a_jobs_versus_is_left_out_where_a_method_takes_none(place: Place, cat: bytes) -> None:
    job_id = place.job(cat, versus={"index": 0, "label": "ant", "score": 0.5, "probability": 0.1})
    label = place.link(image=sent(cat), target=0)["target"]["label"]
    assert place.link(job=job_id, item=0, method="saliency")["versus"] == label
    assert place.link(job=job_id, item=0, method="eigencam")["versus"] is None
    answer: Any = place.http.post("/v1/embed-links", json={"job": job_id, "item": 0, "method": "eigencam", "versus": 1})
    assert answer.json["code"] == "versus_not_taken"


def test_with_another_model_a_jobs_classes_are_told_by_their_labels(
    models_dir: Path, tmp_path: Path, cat: bytes
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    small = (models_dir / "small.toml").read_text()
    (folder / "small.toml").write_text(small)
    # The job's layer, `second`, is none of this network; its classes are in another order.
    other = 'arch = "torchvision:resnet18"\narch_options = {num_classes = 3}\nlabels = ["cat", "ant", "dog"]\n'
    (folder / "other.toml").write_text(other + 'weights = "random"\n' + small[small.index("[preprocess]") :])
    with started(folder, tmp_path / "data", load_wait_s=60) as place:
        job_id = place.job(cat, versus={"index": 0, "label": "ant", "score": 0.5, "probability": 0.1})
        with place.book.ledger.database.write() as connection:
            connection.execute(sa.update(jobs).values(options={"method": "gradcam", "layer": ["second"]}))
        same = place.link(job=job_id, item=0, model="small")
        target = same["target"]
        assert (target["index"], target["label"], same["versus"]) == (2, "Bee", "ant")  # that index, whatever its label
        moved = place.link(job=job_id, item=0, model="other")
        assert (moved["model"], moved["target"]["index"], moved["target"]["label"]) == ("other", 0, "cat")
        assert moved["versus"] == "ant"
        answer: Any = place.http.post("/v1/embed-links", json={"job": job_id, "item": 0, "target": 1, "model": "other"})
        assert (answer.status_code, answer.json["code"]) == (422, "unknown_label")  # a bee


def test_a_picture_that_changed_since_is_not_shown_as_the_jobs(place: Place, cat: bytes) -> None:
    job_id = place.job(cat)
    place.book.store.write("cat.png", cat + b"\0")
    answer: Any = place.http.post("/v1/embed-links", json={"job": job_id, "item": 0})
    assert (answer.status_code, answer.json["code"], answer.json["field"]) == (422, "source_unreadable", "item")
    assert "has changed since" in answer.json["detail"]


def test_a_picture_that_waits_is_asked_for_later(place: Place) -> None:
    answer: Any = place.http.post("/v1/embed-links", json={"job": place.book.submit(["cat.png"]), "item": 0})
    assert (answer.status_code, answer.json["code"], answer.json["field"]) == (409, "job_state", "item")


def test_the_answer_says_what_is_shown_and_until_when(place: Place, cat: bytes) -> None:
    kept_ = place.http.post("/v1/images?expires_in_s=100", data=cat).json
    assert kept_ is not None
    link = place.link(image={"id": kept_["id"]}, target=1, versus=0, max_side=200)
    explained: Any = place.http.put("/v1/explain?target=1&format=json", data=cat).json
    target = explained["explanations"][0]["target"]
    assert link["target"] == {name: target[name] for name in ("index", "label", "probability")}
    assert (link["model"], link["method"], link["width"], link["height"]) == ("small", "gradcam", 200, 133)
    assert link["versus"] == place.link(image=sent(cat), target=0)["target"]["label"]
    assert link["expires_at"] == kept_["expires_at"].partition(".")[0] + "Z"  # asked for a day


@pytest.mark.parametrize("host", ["a b", "", "x@y", "evil/x", "h:99999", "h:", 'h"><script>', "[::1", "h#x", "h?x"])
def test_a_host_that_makes_no_address_is_refused_before_anything_is_kept(place: Place, cat: bytes, host: str) -> None:
    before = place.rows()
    answer: Any = place.http.post("/v1/embed-links", data=cat, headers={"Host": host})
    assert (answer.status_code, answer.json["code"], answer.json["field"]) == (400, "bad_request_body", "Host")
    assert place.rows() == before


@pytest.mark.parametrize("host", ["heat.example", "127.0.0.1:8000", "[::1]:8000", "heat_lens-1"])
def test_links_lead_to_where_they_were_asked_for(place: Place, cat: bytes, host: str) -> None:
    link: Any = place.http.post("/v1/embed-links", data=cat, headers={"Host": host}).json
    assert link["urls"]["frame"] == f"http://{host}/embed/{link['token']}"


def test_links_lead_to_the_public_address_if_there_is_one(models_dir: Path, tmp_path: Path, cat: bytes) -> None:
    with started(models_dir, tmp_path, public_url="https://heat.example.com") as place:
        link: Any = place.http.post("/v1/embed-links", data=cat, headers={"Host": "127.0.0.1:9"}).json
        addresses = [*link["urls"].values(), link["tags"]["component"].split('src="')[1]]
        assert all(address.startswith("https://heat.example.com/embed/") for address in addresses)
        assert "127.0.0.1" not in str(link)


def test_without_a_secret_readers_are_told_nothing_of_the_disk(models_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "embed.secret").mkdir()
    with started(models_dir, tmp_path) as place:
        for way in WAYS:
            answer = place.http.get(f"/embed/x{way}")
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert "The secret that signs embed links cannot be read" in answer.text
            assert str(tmp_path) not in answer.text
        assert 'role="alert"' in place.http.get("/embed/x").text


def test_the_frame_needs_nothing_beside_embed(place: Place, cat: bytes) -> None:
    token = place.link(image=sent(cat))["token"]
    addresses: list[str] = []
    for _, attributes in _parsed(place.http.get(f"/embed/{token}").text):
        addresses += [attributes[name] or "" for name in ("href", "src") if name in attributes]
    assert len(addresses) == 5  # icon, style, script, picture, heat
    for address in addresses:
        assert address.startswith("/embed/")
        with place.http.get(address) as answer:
            assert answer.status_code == 200


def test_revoking_takes_no_token_that_is_not_good(place: Place, cat: bytes) -> None:
    link = place.link(image=sent(cat))
    for token in (link["token"] + "x", "nothing"):
        assert place.http.delete(f"/v1/embed-links/{token}").json["code"] == "unknown_link"  # type: ignore[index]
    assert place.get(link).status_code == 200
    assert place.http.delete(f"/v1/embed-links/{link['token']}").status_code == 204
    again: Any = place.http.delete(f"/v1/embed-links/{link['token']}")
    assert (again.status_code, again.json["code"]) == (404, "unknown_link")


def test_a_limit_is_named_as_it_was_given(place: Place, cat: bytes) -> None:
    answer: Any = place.http.post("/v1/embed-links?lifetime_s=100000000", data=cat)
    assert "lifetime_s is 100000000, the limit is 7000 (HEATLENS_EMBED_RETENTION_S)" in answer.json["detail"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, (400, "bad_request_body", "image")),
        ({"target": "top3"}, (422, "bad_option", "target")),
        ({"target": [0, 1]}, (422, "bad_option", "target")),
        ({"lifetime_s": 7001}, (422, "limit_exceeded", "lifetime_s")),
        ({"lifetime_s": 0.9}, (422, "bad_option", "lifetime_s")),
        ({"view": "layer"}, (422, "unknown_option", "view")),
        ({"item": 0}, (400, "bad_request_body", "job")),
        ({"job": "0" * 32}, (400, "bad_request_body", "item")),
        ({"job": "0" * 32, "item": 0}, (404, "unknown_job", None)),
        ({"job": "JOB", "item": 1}, (404, "unknown_item", None)),
        ({"job": "JOB", "item": 0, "target": 2}, (404, "unknown_item", "target")),
        ({"job": "JOB", "item": 0, "image": {}}, (400, "bad_request_body", "image")),
    ],
)
def test_what_cannot_be_linked_is_refused(
    place: Place, cat: bytes, asked: dict[str, Any], expected: tuple[int, str, str | None]
) -> None:
    if asked.get("job") == "JOB":
        asked = asked | {"job": place.job(cat)}
    if asked.keys() & {"target", "lifetime_s", "view"} and "job" not in asked:
        asked = asked | {"image": sent(cat)}
    answer = place.http.post("/v1/embed-links", json=asked)
    assert answer.json is not None
    assert (answer.status_code, answer.json["code"], answer.json.get("field")) == expected


def test_making_links_counts_as_explaining_and_looking_at_them_does_not(
    models_dir: Path, tmp_path: Path, cat: bytes
) -> None:
    with started(models_dir, tmp_path, rate_limit="1/hour") as place:
        link = place.link(image=sent(cat))
        assert place.http.post("/v1/embed-links", data=cat).status_code == 429
        assert [place.get(link, way).status_code for way in WAYS * 3] == [200] * 12


def test_tags_hold_a_label_whatever_is_in_it() -> None:
    nasty = "\"><script>alert('1')</script>&"
    facts = EmbedFacts(
        model="small", method="gradcam", target=0, label=nasty, probability=0.5, versus=None, width=4, height=3,
        image_width=4, image_height=3, image_type="image/jpeg", colormap="inferno", alpha=0.7, class_specific=True,
        no_positive_evidence=True, fails_randomisation=True, not_seen=False,
    )  # fmt: skip
    tags = embed._answer("http://heat.example", "TOKEN", Link(Kept("id", "me", {}, 1, 2e9, None), facts)).tags
    words = f"Where small looked for {nasty}"
    frame = "http://heat.example/embed/TOKEN"
    assert _parsed(tags.img) == [("img", {"src": f"{frame}/image", "alt": words, "width": "4", "height": "3"})]
    ((name, attributes),) = _parsed(tags.frame)
    assert (name, attributes["src"], attributes["title"]) == ("iframe", frame, words)
    assert _parsed(tags.component) == [
        ("script", {"type": "module", "src": "http://heat.example/embed/heat-lens.js"}),
        ("heat-lens", {"src": frame, "opacity": "0.7", "alt": words}),
    ]


def _payload(link: Any) -> str:
    text = link["token"].split(".")[0]
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def _parsed(tags: str) -> list[tuple[str, dict[str, str | None]]]:
    found: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))  # type: ignore[method-assign]
    parser.feed(tags)
    return found
