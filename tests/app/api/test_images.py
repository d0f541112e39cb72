"""`/v1/images`, and pictures given by their ids."""

import base64
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask.testing import FlaskClient
from PIL import Image

from app import create_app
from app.config import Settings
from app.jobs.database import Database
from app.jobs.tables import kept
from app.schemas.embedding import ImageAnswer
from tests.app.jobs.books import opened


@pytest.fixture(scope="module")
def http(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    settings = Settings(
        models_dir=models_dir, default_model="small", torch_threads=1, data_dir=tmp_path_factory.mktemp("data"),
        image_retention_s=1000, max_body_bytes=2**20, max_kept_images_bytes=4 * 2**20, max_output_side_px=1024,
    )  # fmt: skip
    app = create_app(settings)
    with opened(settings):
        app.extensions["heatlens"].start()
        yield app.test_client()
        app.extensions["heatlens"].close()


def keep(http: FlaskClient, picture: bytes, query: str = "") -> Any:
    answer = http.post(f"/v1/images?{query}", data=picture)
    assert answer.status_code == 201, answer.text
    return answer.json


def end(http: FlaskClient, id_: str) -> None:
    """Have its time be over."""
    database = Database(http.application.extensions["heatlens"].settings)
    with database.write() as connection:
        connection.execute(sa.update(kept).where(kept.c.id == id_).values(expires_at=1.0))
    database.close()


def refused(answer: Any) -> tuple[int, str, str | None]:
    return answer.status_code, answer.json["code"], answer.json.get("field")


def turned() -> bytes:
    """A 48 x 32 JPEG whose EXIF says that it is to be shown upright, 32 x 48, and where it was taken."""
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "hush"
    file = io.BytesIO()
    Image.new("RGB", (48, 32), "red").save(file, "JPEG", exif=exif)
    return file.getvalue()


@pytest.mark.parametrize("way", ["raw", "put", "multipart", "base64"])
def test_a_picture_is_kept_whichever_way_it_comes(http: FlaskClient, cat: bytes, way: str) -> None:
    before = time.time()
    if way == "raw":
        answer = http.post("/v1/images?expires_in_s=60", data=cat, content_type="image/png")
    elif way == "put":  # as `curl -T` sends it
        answer = http.put("/v1/images?expires_in_s=60", data=cat)
    elif way == "multipart":
        answer = http.post("/v1/images", data={"image": (io.BytesIO(cat), "cat.png"), "expires_in_s": "60"})
    else:
        json = {"image": {"base64": base64.b64encode(cat).decode()}, "expires_in_s": 60}
        answer = http.post("/v1/images", json=json)
    assert answer.status_code == 201
    found = ImageAnswer.model_validate_json(answer.data)
    assert (found.width, found.height, found.size_bytes) == (451, 300, len(cat))
    assert before + 60 <= found.expires_at.timestamp() <= time.time() + 60
    assert http.get(answer.headers["Location"]).json == answer.json


def test_its_id_stands_for_the_picture_in_json(http: FlaskClient, cat: bytes) -> None:
    image = {"id": keep(http, cat)["id"]}
    by_id = http.post("/v1/predict", json={"image": image}).json
    by_bytes = http.post("/v1/predict", data=cat).json
    assert by_id is not None
    assert by_bytes is not None
    assert by_id["predictions"] == by_bytes["predictions"]
    explained = http.post("/v1/explain", json={"image": image, "format": "png"})
    assert explained.data == http.put("/v1/explain?format=png", data=cat).data
    two = http.post("/v1/diagnostics/activations", json={"image": [image, image]})
    assert two.status_code == 200
    assert two.json is not None
    assert two.json["pictures"] == 2


def test_a_kept_picture_is_shown_upright_and_without_what_else_its_file_says(http: FlaskClient) -> None:
    kept = keep(http, turned())
    assert (kept["width"], kept["height"]) == (32, 48)
    url = f"/v1/images/{kept['id']}/picture"
    answer = http.get(url)
    assert answer.content_type == "image/jpeg"
    assert b"hush" not in answer.data
    with Image.open(io.BytesIO(answer.data)) as shown:
        assert (shown.format, shown.size, dict(shown.getexif())) == ("JPEG", (32, 48), {})
    with Image.open(io.BytesIO(http.get(f"{url}?max_side=24&format=png").data)) as small:
        assert (small.format, small.size) == ("PNG", (16, 24))
    for known in (answer.headers["ETag"], f"W/{answer.headers['ETag']}"):  # weak: a proxy packed it
        again = http.get(url, headers={"If-None-Match": known})
        assert (again.status_code, again.data) == (304, b"")
    assert refused(http.get(f"{url}?max_side=1025")) == (422, "limit_exceeded", "max_side")


def test_what_is_deleted_over_or_never_was_is_told_in_the_same_words(http: FlaskClient, cat: bytes) -> None:
    deleted, over = keep(http, cat)["id"], keep(http, cat)["id"]
    end(http, over)
    assert http.delete(f"/v1/images/{deleted}").status_code == 204
    answers = set()
    for id_ in (deleted, over, "nothing", "\x00", "x" * 150):
        for answer in (
            http.get(f"/v1/images/{id_}"),
            http.get(f"/v1/images/{id_}/picture"),
            http.delete(f"/v1/images/{id_}"),
            http.post("/v1/explain", json={"image": {"id": id_}}),
        ):
            problem = answer.json
            assert problem is not None
            del problem["request_id"]
            answers.add((answer.status_code, str(problem)))
    ((status, problem),) = answers
    assert status == 404
    assert "unknown_image" in problem


@pytest.mark.parametrize(
    ("query", "body", "expected"),
    [
        ("", b"no picture", (415, "unsupported_image_format", "image")),
        ("", b"", (400, "bad_request_body", "image")),
        ("expires_in_s=1001", None, (422, "limit_exceeded", "expires_in_s")),
        ("expires_in_s=0.9", None, (422, "bad_option", "expires_in_s")),
        ("expires_in_s=inf", None, (422, "bad_option", "expires_in_s")),
        ("model=small", None, (422, "unknown_option", "model")),
    ],
)
def test_what_cannot_be_kept_is_refused(
    http: FlaskClient, cat: bytes, query: str, body: bytes | None, expected: tuple[int, str, str | None]
) -> None:
    assert refused(http.post(f"/v1/images?{query}", data=cat if body is None else body)) == expected


@pytest.mark.parametrize("image", [{"id": 3}, {"id": "a", "base64": "b"}, {}, "a", {"url": "file:///etc/passwd"}])
def test_a_picture_is_named_in_one_of_two_ways(http: FlaskClient, image: object) -> None:
    assert refused(http.post("/v1/explain", json={"image": image})) == (400, "bad_request_body", "image")


def test_ids_bring_in_no_more_than_a_body_may_hold(http: FlaskClient, cat: bytes) -> None:
    """240512 bytes each, of 1 MiB: four fit, five do not."""
    image = {"id": keep(http, cat)["id"]}
    assert len(cat) == 240512
    url = "/v1/diagnostics/activations"
    assert http.post(url, json={"image": 4 * [image]}).status_code == 200
    answer: Any = http.post(url, json={"image": 5 * [image]})
    assert refused(answer) == (413, "image_too_many_bytes", "image")
    assert "The pictures of the request" in answer.json["detail"]
    assert "HEATLENS_MAX_BODY_BYTES" in answer.json["detail"]


@pytest.mark.parametrize(
    ("start", "status"),
    [
        ("data:image/svg+xml;base64,", 201),
        ("data:;base64,", 201),
        ("data:application/octet-stream;base64,", 201),
        ("data:text/html;base64,", 400),
        ("iVBO data:image/png;base64,", 400),
    ],
)
def test_base64_may_begin_as_a_data_url(http: FlaskClient, start: str, status: int) -> None:
    text = base64.b64encode(turned()).decode()
    assert http.post("/v1/images", json={"image": {"base64": start + text}}).status_code == status


def test_a_data_url_is_none_in_the_midst_of_base64(http: FlaskClient) -> None:
    text = base64.b64encode(turned()).decode()
    image = {"base64": f"{text[:8]}data:image/png;base64,{text[8:]}"}
    assert refused(http.post("/v1/images", json={"image": image})) == (400, "bad_request_body", "image.base64")


def test_keeping_is_limited_and_looking_is_not(models_dir: Path, tmp_path: Path, cat: bytes) -> None:
    """And one client has a share: of room for one picture of 240512 bytes and the 4096 that each counts beside."""
    settings = Settings(
        models_dir=models_dir, default_model="small", data_dir=tmp_path, rate_limit="2/hour",
        max_caller_images_bytes=2 * 240512,
    )  # fmt: skip
    app = create_app(settings)
    with opened(settings):
        http = app.test_client()
        url = f"/v1/images/{keep(http, cat)['id']}"
        answer: Any = http.post("/v1/images", data=cat)
        assert refused(answer) == (429, "quota_exceeded", "image")
        assert "HEATLENS_MAX_CALLER_IMAGES_BYTES" in answer.json["detail"]
        assert http.post("/v1/images", data=cat).json["code"] == "rate_limited"  # type: ignore[index]
        assert [http.get(url).status_code for _ in range(3)] == [200] * 3
    app.extensions["heatlens"].close()


def test_without_room_nothing_is_kept(models_dir: Path, tmp_path: Path, cat: bytes) -> None:
    settings = Settings(models_dir=models_dir, default_model="small", data_dir=tmp_path, max_kept_images_bytes=0)
    app = create_app(settings)
    with opened(settings):
        answer = app.test_client().post("/v1/images", data=cat)
    assert refused(answer) == (507, "images_full", "image")
    assert "HEATLENS_MAX_KEPT_IMAGES_BYTES" in answer.json["detail"]
    app.extensions["heatlens"].close()
