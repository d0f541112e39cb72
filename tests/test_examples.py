"""The examples for nginx, systemd and Kubernetes are right: a real nginx before a real server, and files that fit."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app import gunicorn_conf
from app.config import Settings, load_settings
from app.keys import SCOPES
from tests.conftest import start_server, stop_server
from tests.support import require

EXAMPLES = Path(__file__).parents[1] / "examples"
CONFIG = (EXAMPLES / "nginx" / "heatlens.conf").read_text()
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
MAIN = """
user root;  # else, of root's, its workers are nobody, who cannot keep a body in this folder; of others' it says nothing
daemon off;
pid {folder}/pid;
error_log {folder}/start.log;
events {{}}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/heatlens.conf;
}}
"""


@dataclass(frozen=True)
class Front:
    """nginx before a server."""

    url: str
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "heatlens.log").read_text()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    require(NGINX is not None, "nginx, from Debian's package nginx-light")
    folder = tmp_path_factory.mktemp("nginx")
    port = _free_port()
    url = f"https://127.0.0.1:{port}"
    options = {"trusted_proxies": "1", "public_url": url, "log_level": "warning", "rate_limit": "3/day"}
    server = start_server(workers="1", torch_threads="1", job_workers="1", data_dir=str(folder / "data"), **options)
    try:
        process = _start_nginx(folder, port, server.url)
        yield Front(url, folder)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        stop_server(server)


def _start_nginx(folder: Path, port: int, upstream: str) -> "subprocess.Popen[bytes]":
    certificate, key = folder / "heat.pem", folder / "heat.key"
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -days 1 -keyout {key} -out {certificate}"
    subprocess.run(made.split(), check=True, capture_output=True)
    changes = {
        "server 127.0.0.1:8000;": f"server {upstream.removeprefix('http://')};",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
        "/etc/ssl/heat.example.com.pem": str(certificate),
        "/etc/ssl/private/heat.example.com.key": str(key),
        "/var/log/nginx/": f"{folder}/",
        "client_max_body_size 20m;": "client_max_body_size 1m;",
    }
    text = CONFIG
    for here, there in changes.items():
        assert here in text
        text = text.replace(here, there)
    (folder / "heatlens.conf").write_text(text)
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-e", f"{folder}/start.log", "-p", str(folder), "-c", f"{folder}/nginx.conf"])
    ends = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process
        except ConnectionRefusedError:
            assert process.poll() is None, (folder / "start.log").read_text()
            assert time.monotonic() < ends
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def visitor(front: Front) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=front.url, verify=False, timeout=120) as client:  # noqa: S501 - its own certificate
        yield client


@pytest.mark.server
def test_a_job_goes_through_from_its_upload_to_its_results(visitor: httpx.Client, cat: bytes) -> None:
    bulk = os.urandom(2 * 2**20)  # more than nginx lets through elsewhere
    files = [("image", ("cat.png", cat)), ("image", ("noise.png", bulk))]
    path = f"/v1/jobs/{visitor.post('/v1/jobs', files=files).json()['id']}"
    seen = []
    with visitor.stream("GET", f"{path}/events") as events:
        assert events.headers["Content-Type"].startswith("text/event-stream")
        for line in events.iter_lines():
            seen.append(line)
            if line == "event: end":
                break
    assert any(line.startswith("data:") for line in seen)
    assert visitor.get(f"{path}/results.zip").content.startswith(b"PK")


@pytest.mark.server
def test_clients_are_told_apart_and_cannot_lie_about_it(visitor: httpx.Client, cat: bytes) -> None:
    """The limit of 3 a day counts for the address that nginx sees, whatever the request says; jobs count too."""
    for claimed in ("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"):
        last = visitor.post("/v1/predict", content=cat, headers={"X-Forwarded-For": claimed})
    assert last.status_code == 429
    (job,) = visitor.get("/v1/jobs").json()["jobs"] or [None]
    assert job is not None


@pytest.mark.server
def test_what_is_too_large_stops_at_nginx_and_metrics_are_not_shown(visitor: httpx.Client) -> None:
    assert visitor.post("/v1/explain", content=bytes(2 * 2**20)).status_code == 413
    assert visitor.get("/metrics").status_code == 404
    assert visitor.get("/readyz").json()["status"] == "ready"


@pytest.mark.server
def test_nothing_that_opens_something_is_logged(front: Front, visitor: httpx.Client) -> None:
    visitor.get("/embed/a-token-that-opens")
    visitor.get("/v1/jobs/some/results.zip?ticket=a-ticket-that-opens")
    ends = time.monotonic() + 30
    while "/embed/..." not in front.log or "/v1/jobs/some/results.zip " not in front.log:
        assert time.monotonic() < ends, front.log
        time.sleep(0.05)
    assert "that-opens" not in front.log
    assert "that-opens" not in (front.folder / "heatlens-error.log").read_text()


def test_nginx_waits_as_long_and_takes_as_much_as_the_server() -> None:
    for size, setting in re.findall(r"client_max_body_size (\d+[mg]);\s*# (HEATLENS_\w+)", CONFIG):
        assert _bytes(size) == _default(setting)
    upload = CONFIG.split("location = /v1/jobs {")[1].split("}")[0]
    assert (
        _bytes(upload.split("client_max_body_size ")[1].split(";")[0]) == Settings.model_fields["max_job_bytes"].default
    )
    assert int(CONFIG.split("proxy_read_timeout ")[1].split("s;")[0]) > _default("HEATLENS_REQUEST_TIMEOUT_S")
    for seconds, setting in re.findall(r"timeout (\d+)s;\s*# (HEATLENS_\w+)", CONFIG):
        assert float(seconds) == _default(setting)
    assert "keepalive_timeout" not in CONFIG
    assert gunicorn_conf.keepalive > 60  # for which nginx keeps what it does not use, unless told otherwise


def _bytes(size: str) -> int:
    return int(size[:-1]) * {"m": 2**20, "g": 2**30}[size[-1]]


def _default(variable: str) -> Any:
    return Settings.model_fields[variable.removeprefix("HEATLENS_").lower()].default


def _documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text()))


MANIFESTS = [*_documents("heatlens.yaml"), *_documents("first-key.yaml")]
PODS: dict[str, dict[str, Any]] = {
    each["metadata"]["name"]: each["spec"]["template"]["spec"]
    for each in MANIFESTS
    if "template" in each.get("spec", {})
}


def test_what_kubernetes_sets_are_settings_that_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    (plain,) = (each["data"] for each in MANIFESTS if each["kind"] == "ConfigMap")
    text = (EXAMPLES / "kubernetes" / "heatlens.yaml").read_text()
    secret = dict(re.findall(r"--from-literal=(HEATLENS_\w+)=['\"]?(.*?)['\"]? ", text))
    made = {"HEATLENS_EMBED_SECRETS": "e" * 32, "HEATLENS_WEBHOOK_SECRET": "whsec_" + "c2Vj" * 11}
    assert secret.keys() == {"HEATLENS_DATABASE_URL", *made}
    for variable, value in {**plain, **secret, **made}.items():
        monkeypatch.setenv(variable, value)
    settings = load_settings()
    assert settings.job_workers == 0
    assert settings.database_url.startswith("postgresql://heatlens:")
    assert settings.embed_secrets


@pytest.mark.parametrize("name", PODS)
def test_pods_run_locked_down(name: str) -> None:
    pod = PODS[name]
    assert pod["enableServiceLinks"] is False  # else HEATLENS_PORT=tcp://...
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = re.search(r"^USER (\d+):", (EXAMPLES.parent / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert pod["securityContext"]["runAsUser"] == int(user[1])
    (container,) = pod["containers"]
    locked = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == locked
    assert container["args"][0] in {"serve", "worker", "keys"}
    if name != "first-key":  # which writes to the database alone
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/tmp"}  # noqa: S108


def test_a_pod_has_longer_to_end_than_its_server_takes() -> None:
    pod = PODS["heatlens"]
    pause_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause_s + _default("HEATLENS_GRACEFUL_TIMEOUT_S")


def test_probes_ask_routes_that_need_no_key_and_the_service_finds_its_pods() -> None:
    (container,) = PODS["heatlens"]["containers"]
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert [probe["path"] for probe in probes.values()] == ["/readyz", "/readyz", "/healthz"]
    (port,) = container["ports"]
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    (service,) = (each["spec"] for each in MANIFESTS if each["kind"] == "Service")
    (web,) = (each for each in MANIFESTS if each["metadata"]["name"] == "heatlens" and each["kind"] == "Deployment")
    assert (
        service["selector"] == web["spec"]["selector"]["matchLabels"] == web["spec"]["template"]["metadata"]["labels"]
    )
    assert service["ports"][0]["targetPort"] == port["name"]


def test_the_key_command_of_the_manifest_is_one() -> None:
    (container,) = PODS["first-key"]["containers"]
    _, create, name, option, scopes = container["args"]
    assert (create, option) == ("create", "--scope")
    assert set(scopes.split(",")) <= set(SCOPES)
    assert re.fullmatch("[A-Za-z0-9._-]+", name)


UNIT = EXAMPLES / "systemd" / "heatlens.service"


def _directives(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_unit_sets_what_are_settings_and_stops_after_the_server_has(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = dict(pair.split("=", 1) for line in _directives("Environment") for pair in line.split())
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    settings = load_settings()
    (state,), (stop_s,), (files,) = map(_directives, ("StateDirectory", "TimeoutStopSec", "LimitNOFILE"))
    assert settings.data_dir == Path("/var/lib") / state
    assert all(Path(value).is_relative_to(settings.data_dir) for value in variables.values())
    assert int(stop_s) > settings.graceful_timeout_s + gunicorn_conf._ENDING_S
    assert int(files) > 200 + 4 * settings.threads


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    require(shutil.which("systemd-analyze") is not None, "systemd-analyze, from Debian's package systemd")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/heatlens/.venv/bin/heatlens", shutil.which("true") or ""))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
