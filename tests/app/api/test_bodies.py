"""Malformed, oversized, empty, truncated and hostile bodies: a 4xx that says what is wrong, and nothing more."""

import base64
import io
import json

import pytest
from flask.testing import FlaskClient

URL = "/v1/explain"
JPEG_START = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"

NAMELESS = b"--b\r\nContent-Disposition: form-data; \r\n\r\nx\r\n--b--\r\n"

BODIES: list[tuple[str, bytes, str, int, str]] = [
    ("nothing", b"", "image/png", 400, "bad_request_body"),
    ("text", b"hello", "image/png", 415, "unsupported_image_format"),
    ("page", b"<html><script>alert(1)</script></html>", "image/jpeg", 415, "unsupported_image_format"),
    ("svg", b'<svg xmlns="http://www.w3.org/2000/svg"/>', "image/svg+xml", 415, "unsupported_image_format"),
    ("start of a JPEG", JPEG_START, "image/jpeg", 422, "corrupt_image"),
    ("other type", b"hello", "text/plain", 415, "unsupported_media_type"),
    ("no JSON", b"{", "application/json", 400, "bad_request_body"),
    ("deep JSON", b"[" * 100_000, "application/json", 413, "json_too_complex"),
    ("UTF-16", '{"top": 1}'.encode("utf-16"), "application/json", 400, "bad_request_body"),
    ("fields", b"top=5&model=small", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    ("a list", b"[]", "application/json", 400, "bad_request_body"),
    ("no image", b"{}", "application/json", 400, "bad_request_body"),
    ("image as text", b'{"image": "x"}', "application/json", 400, "bad_request_body"),
    ("image by URL", b'{"image": {"url": "http://127.0.0.1/"}}', "application/json", 400, "bad_request_body"),
    ("field without a name", NAMELESS, "multipart/form-data; boundary=b", 400, "bad_request_body"),
    ("no base64", b'{"image": {"base64": "a$"}}', "application/json", 400, "bad_request_body"),
    ("beyond ASCII", '{"image": {"base64": "é"}}'.encode(), "application/json", 400, "bad_request_body"),
    ("not UTF-8", b'{"image": "\xff"}', "application/json", 400, "bad_request_body"),
    ("long number", b'{"target": ' + b"9" * 5000 + b"}", "application/json", 400, "bad_request_body"),
]


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"), [b[1:] for b in BODIES], ids=[b[0] for b in BODIES]
)
def test_bad_bodies(client: FlaskClient, cat: bytes, body: bytes, content_type: str, status: int, code: str) -> None:
    response = client.post(URL, data=body, content_type=content_type)
    problem = json.loads(response.data)
    assert (response.status_code, problem["code"]) == (status, code)
    assert response.content_type == "application/problem+json"
    assert "/" not in problem["detail"].replace("image/*", "").replace("text/plain", "")  # no path of the server
    assert client.put(URL, data=cat).status_code == 200


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.3, 0.9, 0.999])
def test_truncated_pictures(client: FlaskClient, cat: bytes, share: float) -> None:
    response = client.post(URL, data=cat[: int(len(cat) * share)], content_type="image/png")
    assert response.status_code in (415, 422)


def test_a_body_beyond_the_limit_names_it(client: FlaskClient) -> None:
    response = client.post(URL, data=bytes(4 * 2**20 + 1), content_type="image/png")
    problem = json.loads(response.data)
    assert (response.status_code, problem["code"], problem["limit"]) == (413, "body_too_large", 4 * 2**20)
    assert "HEATLENS_MAX_BODY_BYTES" in problem["detail"]


def test_a_form_without_or_with_too_many_pictures(client: FlaskClient, cat: bytes) -> None:
    none = client.post(URL, data={"target": "predicted"}, content_type="multipart/form-data")
    assert (none.status_code, json.loads(none.data)["field"]) == (400, "image")
    two = client.post(URL, data={"image": [(io.BytesIO(cat), "a"), (io.BytesIO(cat), "b")]})
    assert "send one picture per request" in json.loads(two.data)["detail"]
    other = client.post(URL, data={"picture": (io.BytesIO(cat), "a")})
    assert "the picture's part is called 'image'" in json.loads(other.data)["detail"]


def test_an_option_in_query_and_body_is_ambiguous(client: FlaskClient, cat: bytes) -> None:
    response = client.post(f"{URL}?alpha=0.5", data={"image": (io.BytesIO(cat), "a"), "alpha": "0.6"})
    assert (response.status_code, json.loads(response.data)["field"]) == (422, "alpha")


def test_a_content_encoding_is_named(client: FlaskClient, cat: bytes) -> None:
    response = client.put(URL, data=cat, headers={"Content-Encoding": "gzip"})
    problem = json.loads(response.data)
    assert (response.status_code, problem["code"], problem["field"]) == (
        415,
        "unsupported_media_type",
        "Content-Encoding",
    )


@pytest.mark.parametrize("targets", [["top9999"] * 20_000, [None] * 100_000, ["0"] * 11])
def test_many_targets_cost_nothing(client: FlaskClient, cat: bytes, targets: list[object]) -> None:
    body = {"image": {"base64": base64.b64encode(cat).decode()}, "target": targets}
    response = client.post(URL, json=body)
    assert (response.status_code, json.loads(response.data)["field"]) == (422, "target")
    assert len(response.data) < 1000


def test_an_empty_field_of_a_form_is_one_that_was_left_out(client: FlaskClient, cat: bytes) -> None:
    fields = {"model": "", "target": "", "versus": "", "layer": "", "alpha": ""}
    response = client.post(URL, data={"image": (io.BytesIO(cat), "cat.png"), **fields})
    assert response.status_code == 200


def test_a_data_url_is_understood(client: FlaskClient, cat: bytes) -> None:
    text = "data:image/png;base64," + base64.b64encode(cat).decode()
    assert client.post(URL, json={"image": {"base64": text}}).status_code == 200


@pytest.mark.parametrize("value", [True, 1.5, {"a": 1}, ["x"], "x" * 201, [None]])
def test_json_values_of_the_wrong_type_are_named(client: FlaskClient, cat: bytes, value: object) -> None:
    body = {"image": {"base64": base64.b64encode(cat).decode()}, "versus": value}
    response = client.post(URL, json=body)
    assert (response.status_code, json.loads(response.data)["field"]) == (422, "versus")


def test_a_harmless_request_id_is_kept_and_a_hostile_one_replaced(client: FlaskClient) -> None:
    assert client.get("/healthz", headers={"X-Request-Id": "abc-1.2_3"}).headers["X-Request-Id"] == "abc-1.2_3"
    for hostile in ("a" * 65, "a b", "<script>", "ä"):
        assert client.get("/healthz", headers={"X-Request-Id": hostile}).headers["X-Request-Id"] != hostile
