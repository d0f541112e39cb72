"""OpenTelemetry, where the operator wants it: HEATLENS_TRACING, and the standard OTEL_* variables for all else."""

from flask import Flask, g, request

from app.config import SettingsError

_ADDRESSES = frozenset({"http.target", "http.url", "url.path", "url.query", "url.full"})
"""What OpenTelemetry calls the parts of a request's URL, in its old words and its new ones."""


def start(app: Flask) -> None:
    """Trace the requests of `app`, from now until the process ends; to be called after the fork, for it has a thread.

    Raises `SettingsError` where the packages are missing.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.flask import FlaskInstrumentor
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import Span, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        msg = f"HEATLENS_TRACING needs packages that are not here ({error}): pip install 'heatlens[otel]'."
        raise SettingsError(msg) from error

    def name_request(span: Span, _environ: object) -> None:
        span.set_attribute("heatlens.request_id", g.request_id)

    def name_route(span: Span | None, _status: str, _headers: object) -> None:
        """Have the route in the place of the URL, which may hold what is secret; it is known only by now."""
        route = request.url_rule.rule if request.url_rule else "unmatched"
        if span is not None:
            if request.url_rule is None:
                span.update_name(route)  # it has the path
            span.set_attributes(dict.fromkeys(_ADDRESSES & (span.attributes or {}).keys(), route))

    own_name = {"service.name": "heatlens"} | dict(OTELResourceDetector().detect().attributes)
    provider = TracerProvider(resource=Resource.create(own_name))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    FlaskInstrumentor().instrument_app(  # type: ignore[no-untyped-call]
        app, tracer_provider=provider, request_hook=name_request, response_hook=name_route
    )
