"""The OpenAPI document against a live server: whatever it allows, and what it does not, gets an answer that it has."""

from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks as openapi

from tests.conftest import Server, start_server, stop_server

_ON_PURPOSE = (501, 503)
"""That nothing is trained here, as Label Studio asks, and what a server says that is asked for more than it can do."""
_CHECKS = [
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
]
_EXAMPLES = 2


@pytest.fixture(scope="module")
def small_server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model answers in milliseconds."""
    running = start_server(
        workers="1",
        torch_threads="1",
        log_level="error",
        default_model="small",
        models_dir=str(models_dir),
        max_diagnostic_pictures="2",
        max_samples="64",
        data_dir=str(tmp_path_factory.mktemp("contract")),
    )
    yield running
    said = stop_server(running)
    assert "unexpected error" not in said


@pytest.mark.server
def test_every_answer_is_in_the_document(small_server: Server) -> None:
    """Per operation a few requests that the document allows, and as many that it does not."""
    document = schemathesis.openapi.from_url(f"{small_server.url}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) > 40
    wrong = {
        f"{operation.label}, {mode.value}": said
        for operation in operations
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        if (said := fault(operation, mode))
    }
    assert not wrong, "\n".join(f"{name}: {said}" for name, said in wrong.items())


def fault(operation: APIOperation, mode: GenerationMode) -> str | None:
    """Say what an answer has that the document has not; None: all were as it says."""

    @settings(
        max_examples=_EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        report_multiple_bugs=False,
    )
    @given(case=operation.as_strategy(mode))
    def ask(case: schemathesis.Case) -> None:
        response = case.call(timeout=120)
        assert response.status_code < 500 or response.status_code in _ON_PURPOSE, response.content[:300]
        case.validate_response(response, checks=_CHECKS)

    try:
        ask()
    except (Unsatisfiable, SkipTest):  # there is nothing that the document does not allow
        return None
    except (AssertionError, FailureGroup) as error:
        inner = error.exceptions[0] if isinstance(error, FailureGroup) else error
        return f"{type(inner).__name__}: {inner}"[:600]
    return None
