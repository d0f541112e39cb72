"""Whatever comes in as options, forms, tensors or configurations: an answer, or an error that is documented."""

import io
import json
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from app import create_app
from app.config import Settings
from app.dialects import label_config
from app.dialects.open_inference import LENGTH_HEADER
from app.errors import BadLabelConfig, BadRequestBody
from app.jobs.multipart import parts
from app.problems import documented_errors
from app.schemas.options import ExplainOptions
from tests.app.imaging import files

CODES = {error.code: error.status for error in documented_errors()}
PICTURE = files.save(files.flat(200, 40, 40), "PNG")
FUZZ = settings(max_examples=60, deadline=None)

TEXT = st.text(max_size=30) | st.sampled_from(
    ["0", "-1", "1e999", "nan", "true", "small", "top3", "../x", "\x00", "é" * 250]
)
NAME = st.sampled_from([*ExplainOptions.model_fields, "steps", "samples", "sigma", "size", "seed"]) | st.text(
    max_size=8
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAME, inner, max_size=4),
    max_leaves=12,
)


def assert_known(response: TestResponse) -> None:
    """An answer that is good, or a problem that the table of errors has, with its own status."""
    if response.status_code < 400:
        return
    problem = json.loads(response.data)
    assert CODES[problem["code"]] == response.status_code, problem
    assert response.status_code < 500, problem


@given(options=st.dictionaries(NAME, TEXT, max_size=4))
@FUZZ
def test_options_in_a_query(client: FlaskClient, options: dict[str, str]) -> None:
    assert_known(client.post("/v1/explain", query_string={"model": "small"} | options, data=PICTURE))


@given(options=st.dictionaries(NAME, TEXT, max_size=4))
@FUZZ
def test_options_in_a_form(client: FlaskClient, options: dict[str, str]) -> None:
    fields: dict[str, Any] = {"model": "small"} | options | {"image": (io.BytesIO(PICTURE), "a.png")}
    assert_known(client.post("/v1/explain", data=fields, content_type="multipart/form-data"))


@given(body=st.dictionaries(st.sampled_from(["image", "target", "layer", "versus", "alpha", "max_side"]) | NAME, JSON))
@FUZZ
def test_options_in_json(client: FlaskClient, body: dict[str, Any]) -> None:
    assert_known(
        client.post("/v1/explain", data=json.dumps({"model": "small"} | body), content_type="application/json")
    )


TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("image") | JSON,
        "datatype": st.sampled_from(["BYTES", "UINT8", "FP32"]) | JSON,
        "shape": st.lists(st.integers(-1, 4), max_size=5) | JSON,
        "data": st.lists(st.integers(-1, 256), max_size=48) | JSON,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 60) | JSON}) | JSON,
    },
)


@given(
    tensor=TENSOR,
    more=st.dictionaries(st.sampled_from(["id", "outputs", "parameters"]), JSON),
    behind=st.binary(max_size=60),
    off=st.integers(-2, 2),
)
@settings(max_examples=150, deadline=None)
def test_tensors_of_the_open_inference_protocol(
    client: FlaskClient, tensor: dict[str, Any], more: dict[str, Any], behind: bytes, off: int
) -> None:
    """Its errors have no code, so that the status alone tells."""
    header = json.dumps({"inputs": [tensor], **more}).encode()
    headers = {LENGTH_HEADER: str(len(header) + off)}
    response = client.post("/v2/models/small/infer", data=header + behind, headers=headers)
    assert response.status_code in {200, 400, 413, 415, 422}, response.text


@given(inner=st.text(alphabet='<>/="& abcViewImgBrushLbl!?-\x00é', max_size=120))
@settings(max_examples=300, deadline=None)
def test_labelling_configurations(inner: str) -> None:
    for text in (
        inner,
        f"<View>{inner}</View>",
        f'<View><Image name="i" value="$v"/><Brush toName="i" {inner}/></View>',
    ):
        with suppress(BadLabelConfig):
            found = label_config.parse(text)
            assert found.brush or found.choices


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=6))
@settings(max_examples=300, deadline=None)
def test_forms_in_any_pieces(data: bytes, cuts: list[int]) -> None:
    honest = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + data + b"\r\n--b--\r\n"
    at = [0, *sorted(cuts), len(honest)]
    pieces = [honest[start:end] for start, end in pairwise(at)]
    if b"\r\n--b" not in b"\r\n" + data:
        assert [b"".join(part.data) for part in parts(pieces, "b")] == [data]
    for broken in ([data], [b"--b\r\n" + data], [honest[: len(honest) // 2]]):
        with suppress(BadRequestBody):
            for part in parts(broken, "b"):
                b"".join(part.data)


def test_more_layers_than_the_operator_allows_are_named(models_dir: Path) -> None:

    app = create_app(Settings(models_dir=models_dir, default_model="small", max_layers=1, torch_threads=1))
    response = app.test_client().post("/v1/explain?layer=first&layer=second", data=PICTURE)
    problem = json.loads(response.data)
    assert (response.status_code, problem["code"], problem["field"], problem["limit"]) == (
        422,
        "limit_exceeded",
        "layer",
        1,
    )
    assert "HEATLENS_MAX_LAYERS" in problem["detail"]
