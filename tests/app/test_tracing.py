"""Tracing, with a receiver of our own."""

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from flask import Flask
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app import tracing
from app.config import SettingsError
from tests.conftest import start_server, stop_server


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """The address of an OTLP receiver, and what it receives."""
    received: list[ExportTraceServiceRequest] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


@pytest.mark.server
def test_requests_are_traced_and_name_their_log_lines(
    receiver: tuple[str, list[ExportTraceServiceRequest]], models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, received = receiver
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    options = {"workers": "1", "torch_threads": "1", "models_dir": str(models_dir), "default_model": "small"}
    server = start_server(tracing="true", log_level="debug", **options)
    httpx.get(f"{server.url}/v1/models/small", headers={"X-Request-Id": "abc"}, timeout=60)
    for path in ("embed/hush", "embed/hush/image?hush", "v1/images/hush", "hush"):
        assert httpx.get(f"{server.url}/{path}", timeout=60).status_code == 404
    written = server.greeting + stop_server(server)
    resources = [resource for request in received for resource in request.resource_spans]
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    span, *secret = sorted(spans, key=lambda span: span.start_time_unix_nano)
    assert len(secret) == 4
    assert not any("hush" in str(span) for span in spans)
    assert "/embed/<token>/image" in str(secret[1])
    assert "hush" not in written
    assert written.count("route=/embed/<token>") == 2
    assert span.name == "GET /v1/models/<path:model>"
    attributes = {attribute.key: attribute.value for attribute in span.attributes}
    assert attributes["heatlens.request_id"].string_value == "abc"
    names = {pair.key: pair.value.string_value for pair in resources[0].resource.attributes}
    assert names["service.name"] == "heatlens"


def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.flask", None)
    with pytest.raises(SettingsError, match=r"HEATLENS_TRACING .*pip install 'heatlens\[otel\]'"):
        tracing.start(Flask(__name__))
