"""Headers that every answer has, whatever it is, and those for pages of other sites."""

from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from app import create_app
from app.config import Settings
from tests.app.api.guarded import guarded, routes
from tests.app.jobs.books import opened

SITE, OTHER_SITE = "https://review.example.com", "https://evil.example"
ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def missing(
    client: FlaskClient, method: str, path: str, *, statuses: set[int] | None = None, **asked: Any
) -> list[tuple[str, str, int, str]]:
    """What an answer should have and has not."""
    response = client.open(path, method=method, **asked)
    if statuses is not None:
        statuses.add(response.status_code)
    found = {name for name, value in ALWAYS.items() if response.headers.get(name) == value}
    lacking = ALWAYS.keys() - found
    policy = response.headers.get("Content-Security-Policy", "")
    if "default-src 'none'" not in policy or "frame-ancestors" not in policy or "base-uri 'none'" not in policy:
        lacking |= {"Content-Security-Policy"}
    if "'unsafe-inline'" in policy and path != "/docs":
        lacking |= {"Content-Security-Policy"}
    if "camera=()" not in response.headers.get("Permissions-Policy", ""):
        lacking |= {"Permissions-Policy"}
    if len(response.headers.get("X-Request-Id", "")) != 32:
        lacking |= {"X-Request-Id"}
    if response.headers.get("X-Frame-Options") != "DENY" and "frame-ancestors 'self'" not in policy:
        lacking |= {"X-Frame-Options"}
    response.close()
    return [(method, path, response.status_code, name) for name in sorted(lacking)]


@pytest.mark.parametrize("with_keys", [False, True])
def test_every_route_has_them_for_every_method(tmp_path: Path, with_keys: bool) -> None:
    app = guarded(tmp_path, load_wait_s=0.01).app if with_keys else create_app(Settings(data_dir=tmp_path))
    client = app.test_client()
    statuses: set[int] = set()
    asked = [(method, path) for method, path, _ in routes(app)]
    paths = {path for _, path in asked}
    asked += [(method, path) for path in paths for method in ("OPTIONS", "HEAD", "TRACE", "PATCH")]
    asked += [("GET", "/nothing"), ("GET", "/static/nothing"), ("POST", "/"), ("GET", "/labelstudio/")]
    lacking = []
    for method, path in asked:
        lacking += missing(client, method, path, statuses=statuses)
    assert lacking == []
    assert {200, 404, 405} | ({401} if with_keys else {400}) <= statuses


def test_answers_that_are_streams_or_nothing_new_have_them_too(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    client = create_app(settings).test_client()
    with opened(settings) as book:
        job = book.submit(["a.png"])
        book.succeed(job, 0)
        for way in ("events", "results.ndjson", "results.zip", "items/0/overlay"):
            assert missing(client, "GET", f"/v1/jobs/{job}/{way}") == []
        tag = client.get(f"/v1/jobs/{job}/items/0/overlay").headers["ETag"]
        asked: dict[str, Any] = {"headers": {"If-None-Match": tag}}
        assert client.get(f"/v1/jobs/{job}/items/0/overlay", **asked).status_code == 304
        assert missing(client, "GET", f"/v1/jobs/{job}/items/0/overlay", **asked) == []


def test_what_was_answered_to_a_key_is_kept_by_nobody_on_the_way(tmp_path: Path) -> None:
    service = guarded(tmp_path)
    assert service.client("explain").get("/v1/methods").headers["Cache-Control"] == "private, no-cache"
    assert service.client().get("/v1/methods").headers["Cache-Control"] == "no-store"


# Other sites


@pytest.fixture(scope="module")
def open_to_site(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    origins = (SITE, "http://[::1]:3000")
    return guarded(tmp_path_factory.mktemp("site"), cors_origins=origins).client("explain")


@pytest.mark.parametrize("origin", [SITE, "http://[::1]:3000"])
@pytest.mark.parametrize(("path", "status"), [("/v1/methods", 200), ("/v1/jobs", 403), ("/v1/nothing", 404)])
def test_sites_that_the_operator_names_may_read_every_answer(
    open_to_site: FlaskClient, origin: str, path: str, status: int
) -> None:
    response = open_to_site.get(path, headers={"Origin": origin})
    assert response.status_code == status
    assert response.headers.getlist("Access-Control-Allow-Origin") == [origin]
    assert "Access-Control-Allow-Credentials" not in response.headers
    exposed = response.headers["Access-Control-Expose-Headers"]
    assert {"X-Request-Id", "ETag", "Location", "Retry-After", "X-HeatLens-Method"} <= set(exposed.split(", "))
    assert response.headers.getlist("Vary").count("Origin") + response.headers["Vary"].count(", Origin") == 1


@pytest.mark.parametrize(
    "origin",
    [
        OTHER_SITE,
        f"{SITE}.evil.example",
        f"{SITE}:8443",
        "https://reviewXexample.com",
        "http://review.example.com",
        "null",
    ],
)
def test_others_may_not(open_to_site: FlaskClient, origin: str) -> None:
    for method in ("GET", "OPTIONS"):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        response = open_to_site.open("/v1/methods", method=method, headers=asked)
        assert not [name for name, _ in response.headers if name.startswith("Access-Control")]
        assert response.headers["Vary"] == "Origin"  # or a cache would answer one with what was another's


def test_a_browser_asks_first_and_needs_no_key_for_that(open_to_site: FlaskClient) -> None:
    asked = {
        "Origin": SITE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key,x-api-key,cookie,x-odd",
    }
    response = open_to_site.application.test_client().options("/v1/jobs", headers=asked)
    assert response.status_code == 200
    allowed = response.headers["Access-Control-Allow-Headers"].lower().split(", ")
    assert sorted(allowed) == ["authorization", "content-type", "idempotency-key", "x-api-key"]
    assert {"GET", "POST", "PUT", "DELETE"} <= set(response.headers["Access-Control-Allow-Methods"].split(", "))
    assert int(response.headers["Access-Control-Max-Age"]) > 0


@pytest.mark.parametrize("path", ["/", "/metrics", "/openapi.json", "/predictions/small", "/v2"])
def test_what_is_not_below_v1_is_for_no_other_site(open_to_site: FlaskClient, path: str) -> None:
    assert "Access-Control-Allow-Origin" not in open_to_site.get(path, headers={"Origin": SITE}).headers


def test_without_the_setting_no_site_may(tmp_path: Path) -> None:
    client = create_app(Settings(data_dir=tmp_path)).test_client()
    response = client.get("/v1/methods", headers={"Origin": SITE})
    assert not [name for name, _ in response.headers if name.startswith("Access-Control")]
