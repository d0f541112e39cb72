"""Keys: who is let in where, walked over every route there is."""

import base64
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import EnvironBuilder, TestResponse

from app import create_app
from app.config import Settings
from app.errors import RateLimited, Unauthorized
from app.jobs.database import Database
from app.keys import Keys
from app.security import ACCESS, Failures, Gate
from tests.app.api.guarded import Guarded, error_code, guarded, routes

PUBLIC = re.compile(
    r"/|/batch|/models|/static/.*|/embed/.*|/docs.*|/openapi\.json|/healthz|/readyz|/ping|/v2/health/(live|ready)"
    r"|/labelstudio(/health)?"
)
"""What needs no key, as the documentation has it: /docs and its document unless HEATLENS_DOCS says otherwise."""
LISTING = re.compile(r"/v1/(methods|models|models/[^/:]+(/layers|/labels)?)")
JOBS = re.compile(r"/v1/jobs(/.*)?")
ADMIN = re.compile(r"/metrics|/v1/models/[^/]+/(load|unload)")
SCOPES = ("explain", "jobs", "admin")


class Unread(io.RawIOBase):
    """A body that must not be looked at."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: object) -> int:
        raise AssertionError("the body was read")


def scopes_of(method: str, path: str) -> set[str]:
    """The scopes that open a route, by its path alone."""
    if path == "/v1/tickets":
        return set(SCOPES)
    if ADMIN.fullmatch(path):
        return {"admin"}
    if JOBS.fullmatch(path):
        return {"jobs"}
    return {"explain", "jobs"} if method == "GET" and LISTING.fullmatch(path) else {"explain"}


@pytest.fixture(scope="module")
def service(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    made = guarded(folder, models_dir=models_dir, default_model="small", model_admin=True, key_failure_limit="")
    made.app.extensions["heatlens_jobs"].database.migrate()
    made.app.extensions["heatlens"].start()
    yield made
    made.app.extensions["heatlens"].close()


def ask(service: Guarded, method: str = "GET", path: str = "/v1/methods", **headers: str) -> TestResponse:
    return service.app.test_client().open(path, method=method, headers=headers)


# The table


def test_each_endpoint_has_one_entry_in_the_table_and_each_entry_an_endpoint(service: Guarded) -> None:
    assert ACCESS.keys() == {rule.endpoint for rule in service.app.url_map.iter_rules()}


def test_without_a_key_nothing_but_the_public_routes_answers_and_no_body_is_read(service: Guarded) -> None:
    client, wrong, refused = service.client(), [], []
    for method, path, _ in routes(service.app):
        sent = {"wsgi.input": Unread(), "CONTENT_LENGTH": "1000000000"} if method in ("POST", "PUT") else {}
        response = client.open(path, method=method, environ_overrides=sent)
        if (response.status_code == 401) is bool(PUBLIC.fullmatch(path)):
            wrong.append((method, path, response.status_code))
        if response.status_code == 401:
            refused.append(response.headers["WWW-Authenticate"])
        response.close()
    assert wrong == []
    assert len(refused) > 50
    assert set(refused) == {'Bearer realm="HeatLens"'}


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_opens_the_routes_of_its_scope_and_no_others(service: Guarded, scope: str) -> None:
    client, wrong, opened = service.client(scope), [], 0
    for method, path, _ in routes(service.app):
        response = client.open(path, method=method)
        code, expected = error_code(response), bool(PUBLIC.fullmatch(path)) or scope in scopes_of(method, path)
        if (response.status_code not in (401, 403)) is not expected:
            wrong.append((method, path, response.status_code, code))
        opened += expected
        response.close()
    assert wrong == []
    assert opened > 20


def test_a_refusal_names_the_scope_that_is_needed_and_those_there_are(service: Guarded) -> None:
    problem = service.client("jobs").post("/v1/explain").json
    assert problem is not None
    assert (problem["status"], problem["code"]) == (403, "forbidden")
    assert (problem["needed"], problem["scopes"]) == (["explain"], ["jobs"])
    assert "scope explain; the one that was sent has jobs" in problem["detail"]


def test_a_key_may_have_several_scopes(service: Guarded) -> None:
    service.make("both", "explain", "admin")
    statuses = [service.client("both").get(path).status_code for path in ("/v2", "/metrics", "/v1/jobs")]
    assert statuses == [200, 200, 403]


# Keys


@pytest.mark.parametrize("way", [{"Authorization": "Bearer {}"}, {"Authorization": "bearer {}"}, {"X-API-Key": "{}"}])
def test_a_key_is_sent_in_either_header(service: Guarded, way: dict[str, str]) -> None:
    headers = {name: value.format(service.texts["explain"]) for name, value in way.items()}
    assert ask(service, **headers).status_code == 200


def test_two_keys_at_once_are_a_mistake_and_the_same_one_twice_is_none(service: Guarded) -> None:
    bearer, other = service.texts["explain"], service.texts["jobs"]
    twice = ask(service, Authorization=f"Bearer {bearer}", **{"X-API-Key": bearer})
    both = ask(service, Authorization=f"Bearer {bearer}", **{"X-API-Key": other})
    assert (twice.status_code, both.status_code) == (200, 400)
    assert bearer not in both.text
    assert other not in both.text


def test_what_a_proxy_sends_beside_a_key_is_no_matter(service: Guarded) -> None:
    basic = "Basic " + base64.b64encode(b"proxy:word").decode()
    assert ask(service, Authorization=basic, **{"X-API-Key": service.texts["explain"]}).status_code == 200
    assert ask(service, Authorization=basic).status_code == 401


def test_what_is_no_key_of_ours_is_a_proxys(service: Guarded) -> None:
    for bearer in ("eyJhbGciOi.e30.c2ln", "HL_x"):
        good = {"Authorization": f"Bearer {bearer}", "X-API-Key": service.texts["explain"]}
        assert ask(service, **good).status_code == 200
        assert ask(service, Authorization=f"Bearer {bearer}").status_code == 401


def test_a_gateways_own_key_is_none_of_ours_either(models_dir: Path, tmp_path: Path) -> None:
    service = guarded(tmp_path, models_dir=models_dir, default_model="small", key_failure_limit="1/hour")
    foreign = {"X-API-Key": "a-gateways"}
    for _ in range(3):  # which is no wrong one, so it is not counted
        assert ask(service, **foreign).status_code == 401
    assert ask(service, Authorization=f"Bearer {service.texts['explain']}", **foreign).status_code == 200


def test_every_wrong_key_gets_the_same_answer(service: Guarded) -> None:
    service.make("over", "explain", lifetime_s=1e-6)
    service.make("revoked", "explain")
    service.keys.revoke("revoked")
    good = service.texts["explain"]
    texts = [service.texts["over"], service.texts["revoked"], good[:-1] + ("A" if good[-1] != "A" else "B")]
    texts += [f"hl_{'x' * 12}_{'y' * 43}", "hl_", "secret", good.upper(), f"{good} {good}", "\xe9", "="]
    answers = [ask(service, Authorization=f"Bearer {text}") for text in texts]
    answers += [ask(service), ask(service, Authorization="Bearer"), ask(service, **{"X-API-Key": ""})]
    bodies = [{**answer.json, "request_id": ""} for answer in answers if answer.json is not None]
    assert {answer.status_code for answer in answers} == {401}
    assert len(bodies) == len(answers)
    assert all(body == bodies[0] for body in bodies)
    assert bodies[0]["code"] == "unauthorized"


def test_label_studio_sends_a_key_as_a_password_and_nobody_else_does(service: Guarded) -> None:
    basic = "Basic " + base64.b64encode(f"any:{service.texts['explain']}".encode()).decode()
    assert ask(service, path="/labelstudio/versions", Authorization=basic).status_code == 200
    assert ask(service, path="/v1/methods", Authorization=basic).status_code == 401


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/models/small:predict", {"error"}),
        ("/v2/models/small/infer", {"error"}),
        ("/predictions/small", {"code", "type", "message"}),
    ],
)
def test_the_dialects_refuse_in_their_own_shape(service: Guarded, path: str, expected: set[str]) -> None:
    for client, status in ((service.client(), 401), (service.client("jobs"), 403)):
        response = client.post(path)
        assert response.status_code == status
        assert response.json is not None
        assert response.json.keys() == expected
        assert response.content_type == "application/json"


def test_a_key_that_is_revoked_is_refused_without_a_restart(models_dir: Path, tmp_path: Path) -> None:
    made = guarded(tmp_path, models_dir=models_dir, default_model="small")
    client = made.client("explain")
    assert client.get("/v1/methods").status_code == 200
    made.app.extensions["heatlens_keys"].revoke("explain")  # in this process: nothing is believed any more
    assert client.get("/v1/methods").status_code == 401
    assert made.client("jobs").get("/v1/methods").status_code == 200


# Settings


@pytest.mark.parametrize("setting", ["open", "key", "off"])
def test_metrics_and_docs_have_settings_of_their_own(tmp_path: Path, setting: str) -> None:
    service = guarded(tmp_path, metrics=setting, docs=setting)
    for path in ("/metrics", "/docs", "/openapi.json", "/docs/errors", "/docs/swagger/css/swagger-ui.css"):
        got = []
        for key in (None, "explain", "admin"):
            response = service.client(key).get(path)
            got.append(response.status_code)
            response.close()
        of_explain = 403 if path == "/metrics" else 200
        expected = {"open": [200, 200, 200], "key": [401, of_explain, 200], "off": [404, 404, 404]}
        assert got == expected[setting], path


def test_without_keys_on_this_machine_everything_is_open(tmp_path: Path) -> None:
    client = create_app(Settings(data_dir=tmp_path)).test_client()
    for path in ("/v1/methods", "/v1/models", "/openapi.json"):
        assert client.get(path).status_code == 200
        assert client.get(path, headers={"Authorization": "Bearer whatever"}).status_code == 200
    assert not list(tmp_path.iterdir())  # and no database was made to find that out


@pytest.mark.parametrize(("insecure", "status"), [(False, 401), (True, 200)])
def test_a_public_address_needs_keys_unless_the_operator_insists(tmp_path: Path, insecure: bool, status: int) -> None:
    client = create_app(Settings(data_dir=tmp_path, host="0.0.0.0", insecure=insecure)).test_client()  # noqa: S104
    assert client.get("/v1/methods").status_code == status
    assert client.get("/healthz").status_code == 200


def test_while_nobody_can_tell_whose_a_key_is_nobody_is_let_in(tmp_path: Path) -> None:
    away = Settings(data_dir=tmp_path, host="0.0.0.0", database_url="postgresql://nobody@127.0.0.1:1/none")  # noqa: S104
    client = create_app(away).test_client()
    response = client.get("/v1/methods", headers={"X-API-Key": f"hl_{'x' * 12}_{'y' * 43}"})
    assert (response.status_code, error_code(response)) == (503, "keys_unavailable")
    assert int(response.headers["Retry-After"]) == 5
    assert [client.get(path).status_code for path in ("/healthz", "/", "/openapi.json")] == [200, 200, 200]


# Wrong keys, again and again


def test_wrong_keys_are_limited_by_address_and_shut_out_nobody_else(tmp_path: Path) -> None:
    service = guarded(tmp_path, key_failure_limit="3/hour")
    client = service.client()

    def wrong(address: str) -> TestResponse:
        headers = {"X-API-Key": f"hl_{'x' * 12}_{'y' * 43}"}
        return client.get("/v1/methods", headers=headers, environ_base={"REMOTE_ADDR": address})

    assert [wrong("192.0.2.1").status_code for _ in range(5)] == [401, 401, 401, 429, 429]
    problem = wrong("192.0.2.1").json
    assert problem is not None
    assert (problem["code"], problem["limit"]) == ("rate_limited", "3 per 1 hour")
    assert "HEATLENS_KEY_FAILURE_LIMIT" in problem["detail"]
    assert wrong("192.0.2.2").status_code == 401
    same_address = {"REMOTE_ADDR": "192.0.2.1"}
    assert service.client("explain").get("/v1/methods", environ_base=same_address).status_code == 200
    assert client.get("/v1/methods", environ_base=same_address).status_code == 401  # none is no wrong one


def test_what_is_no_key_of_ours_is_no_wrong_one(tmp_path: Path) -> None:
    client = guarded(tmp_path, key_failure_limit="1/hour").client()
    asked = [client.get("/v1/methods", headers={"Authorization": "Bearer of-a-proxy"}).status_code for _ in range(5)]
    assert asked == [401] * 5


def test_an_address_beyond_the_limit_has_the_database_asked_for_nothing(tmp_path: Path) -> None:
    made = guarded(tmp_path)
    settings = Settings(data_dir=tmp_path, key_failure_limit="2/hour")
    ticked_s = [1000.0]
    gate = Gate(settings, Keys(settings, Database(settings), ticks=lambda: ticked_s[0]))

    def admitted(text: str, address: str) -> type[Exception] | None:
        ticked_s[0] += 0.2  # so long after the last question, another one would be asked for a key that is not known
        sent = {"X-API-Key": text}
        with made.app.test_request_context("/v1/methods", headers=sent, environ_base={"REMOTE_ADDR": address}):
            try:
                gate.admit()
            except (Unauthorized, RateLimited) as error:
                return type(error)
        return None

    wrong = f"hl_{'x' * 12}_{'y' * 43}"
    assert [admitted(wrong, "192.0.2.1") for _ in range(3)] == [Unauthorized, Unauthorized, RateLimited]
    made.make("late", "explain")
    assert admitted(made.texts["late"], "192.0.2.1") is RateLimited
    assert admitted(made.texts["late"], "192.0.2.2") is None
    assert admitted(made.texts["late"], "192.0.2.1") is None  # it is known now


def test_who_has_to_wait_is_told_what_is_left_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [3600.0 * 500_000]  # when an hour begins
    monkeypatch.setattr(time, "time", lambda: now[0])
    failures = Failures("1/hour")
    failures.count("192.0.2.1")
    for passed_s, left_s in ((0, 3600), (600, 3000), (3599.5, 1)):
        now[0] = 3600.0 * 500_000 + passed_s
        with pytest.raises(RateLimited, match=f"try again in {left_s} s") as refused:
            failures.count("192.0.2.1")
        assert refused.value.extra["retry_after_s"] == left_s


# Other sites


OWN_NAMES = ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000"]


@pytest.fixture(scope="module")
def open_to_site(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    settings = Settings(data_dir=tmp_path_factory.mktemp("open"), cors_origins=("https://review.example.com",))
    return create_app(settings).test_client()


@pytest.mark.parametrize(
    ("method", "site", "origin", "status"),
    [
        ("POST", "cross-site", "https://evil.example", 403),
        ("POST", "cross-site", "https://review.example.com", 400),  # there is no picture
        ("POST", "same-origin", "http://localhost", 400),
        ("POST", "none", None, 400),
        ("POST", None, None, 400),  # a program
        ("POST", None, "http://localhost", 400),  # a browser that says no more
        ("POST", None, "https://review.example.com", 400),
        ("POST", None, "https://evil.example", 403),
        ("POST", None, "http://localhost:8888", 403),  # another's service on this machine
        ("POST", None, "https://localhost", 403),
        ("POST", None, "null", 403),
        ("POST", "cross-site", "null", 403),
        ("POST", "same-site", "http://localhost:8888", 403),
        ("POST", "same-site", None, 403),
        ("POST", "same-site", "https://review.example.com", 400),
        ("POST", "same-origin", "https://behind.a.proxy", 400),  # no page can say so of itself
        ("PUT", "cross-site", None, 403),
        ("DELETE", "same-site", None, 403),
        ("OPTIONS", "cross-site", "https://evil.example", 200),
    ],
)
def test_pages_of_other_sites_change_nothing(
    open_to_site: FlaskClient, method: str, site: str | None, origin: str | None, status: int
) -> None:
    sent = {"Sec-Fetch-Site": site, "Origin": origin}
    headers = {name: value for name, value in sent.items() if value is not None}
    path = "/v1/jobs/nothing" if method == "DELETE" else "/v1/explain"
    assert open_to_site.open(path, method=method, headers=headers).status_code == status


@pytest.mark.parametrize("path", ["/v1/models/unheard/layers", "/v1/models/unheard/labels"])
def test_nor_do_they_have_models_loaded(open_to_site: FlaskClient, path: str) -> None:
    for site, origin, status in (
        ("cross-site", None, 403),
        ("same-site", "http://localhost:8888", 403),
        ("cross-site", "https://review.example.com", 404),  # it may ask, and there is no such model
        ("same-origin", None, 404),
        ("none", None, 404),  # somebody wrote the address
        (None, None, 404),
    ):
        sent = {"Sec-Fetch-Site": site, "Origin": origin}
        headers = {name: value for name, value in sent.items() if value is not None}
        assert open_to_site.get(path, headers=headers).status_code == status, sent
        assert open_to_site.head(path, headers=headers).status_code == status, sent
    assert open_to_site.get("/v1/models/unheard", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 404


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://heat.example:8000", "heat.example:8000", 400),
        ("http://heat.example", "heat.example:80", 400),  # as some proxies have it
        ("http://heat.example:8001", "heat.example:8000", 403),
        ("https://public.example", "10.0.0.1:8000", 400),
        ("http://public.example", "10.0.0.1:8000", 403),
    ],
)
def test_a_page_of_the_servers_own_address_is_none_of_another_site(
    tmp_path: Path, origin: str, host: str, status: int
) -> None:
    settings = Settings(data_dir=tmp_path, host="0.0.0.0", insecure=True, public_url="https://public.example")  # noqa: S104
    answer = create_app(settings).test_client().post("/v1/explain", headers={"Origin": origin, "Host": host})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer {}", "Origin": "http://heat.lan"}, 400),  # no page could add the key
        ({"X-API-Key": "{}", "Origin": "http://heat.lan"}, 400),
        ({"X-API-Key": "{}", "Origin": "http://heat.lan", "Sec-Fetch-Site": "cross-site"}, 403),  # a proxy did
        ({"Authorization": "Bearer of-a-proxy", "Origin": "http://heat.lan"}, 403),
        ({"X-API-Key": "of-a-proxy", "Origin": "http://heat.lan"}, 403),
        ({"Origin": "http://heat.lan"}, 403),
    ],
)
def test_a_key_shows_that_no_page_of_another_site_asks(service: Guarded, headers: dict[str, str], status: int) -> None:
    sent = {name: value.format(service.texts["explain"]) for name, value in headers.items()}
    assert ask(service, "POST", "/v1/explain", **sent).status_code == status


@pytest.mark.parametrize(
    ("settings", "good", "bad"),
    [
        ({}, OWN_NAMES, ["heat.example", "tunnel.example:8000"]),
        (
            {"hosts": ("Tunnel.example", "dotted.example.", "[fd00::1]")},
            [*OWN_NAMES, "tunnel.example", "tunnel.EXAMPLE.:80", "dotted.example", "[fd00::1]:8000"],
            ["heat.example"],
        ),
        ({"public_url": "https://heat.example:8443"}, [*OWN_NAMES, "heat.example"], ["tunnel.example"]),
        ({"trusted_proxies": 1}, ["evil.example"], []),
        ({"trusted_proxies": 1, "public_url": "https://heat.example"}, ["heat.example"], ["tunnel.example"]),
        ({"host": "0.0.0.0", "insecure": True}, ["evil.example"], []),  # noqa: S104
        ({"host": "0.0.0.0", "insecure": True, "hosts": ("heat.example",)}, ["heat.example"], ["tunnel.example"]),  # noqa: S104
    ],
)
def test_without_keys_a_name_that_leads_here_opens_nothing(
    tmp_path: Path, settings: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    """Its owner's page would be of the same site as the server, to the browser of whoever looks at it."""
    client = create_app(Settings(data_dir=tmp_path, **settings)).test_client()
    if bad:
        bad = [
            *bad,
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "a b",
            "x@localhost",
        ]
    for host, status in [(host, 200) for host in good] + [(host, 403) for host in bad]:
        for path in ("/v1/methods", "/v1/models", "/metrics"):
            answer = client.get(path, headers={"Host": host})
            assert answer.status_code == status, (host, path)
            if status == 403:
                assert error_code(answer) == "forbidden"
                assert "HEATLENS_HOSTS" in answer.text
        assert client.get("/healthz", headers={"Host": host}).status_code == 200  # as probes ask, by address
        assert client.post("/v1/explain", headers={"Host": host}).status_code == (400 if status == 200 else 403)


def test_a_program_that_names_no_host_is_no_browser(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path))
    with app.request_context({**EnvironBuilder("/v1/methods").get_environ(), "HTTP_HOST": ""}):
        assert app.full_dispatch_request().status_code == 200


def test_with_keys_the_name_is_no_matter(service: Guarded) -> None:
    assert service.client("explain").get("/v1/methods", headers={"Host": "any.example"}).status_code == 200


def test_a_path_with_two_slashes_is_none(service: Guarded) -> None:
    answer = service.client("explain").get("/v1//methods")
    assert (answer.status_code, error_code(answer)) == (404, "not_found")


def test_reading_by_a_link_from_another_site_is_no_change(open_to_site: FlaskClient) -> None:
    assert open_to_site.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


# The document


def test_the_document_says_what_key_each_operation_needs(service: Guarded) -> None:
    document = service.client().get("/openapi.json").json
    assert document is not None
    wrong = []
    for path, operations in document["paths"].items():
        sample = re.sub(r"\{\w+\}", "small", path)
        for method, operation in operations.items():
            said = {scope for one in operation["security"] for scopes in one.values() for scope in scopes}
            public = bool(PUBLIC.fullmatch(sample))
            needed = set() if public or path == "/v1/tickets" else scopes_of(method.upper(), sample)
            if said != needed or bool(operation["security"]) is public or ("401" in operation["responses"]) is public:
                wrong.append((method, path, operation["security"]))
    assert wrong == []
    schemes = document["components"]["securitySchemes"]
    assert {name for one in document["paths"]["/v1/explain"]["post"]["security"] for name in one} == schemes.keys()


def test_the_document_asks_for_no_key_where_none_is_needed(open_to_site: FlaskClient) -> None:
    document = open_to_site.get("/openapi.json").json
    assert document is not None
    assert not any("security" in operation for path in document["paths"].values() for operation in path.values())


@pytest.mark.parametrize("path", ["/v1/models/small:predict", "/v1/models/small:explain", "/v2/models/small/infer"])
def test_a_path_that_takes_post_alone_offers_no_more(service: Guarded, path: str) -> None:
    assert ask(service, "OPTIONS", path).allow == {"POST", "OPTIONS"}
