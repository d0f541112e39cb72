"""Tensors of the Open Inference Protocol v2: in JSON, or behind it as binary data."""

import base64
import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.api.bodies import from_base64, json_object
from app.dialects.pixels import from_array, samples_of
from app.dialects.speaking import only_parameters, said
from app.errors import BadRequestBody

INPUT = "image"
_KINDS = ("BYTES", "UINT8")
_LENGTH_TEXT = re.compile(r"[0-9]{1,12}")
_LONGEST_SIDE = 2**31 - 1
_LENGTH = struct.Struct("<I")
"""What stands before each element of a BYTES tensor in binary data."""


@dataclass(frozen=True)
class Sent:
    """A body taken apart: its JSON object, and the binary data behind that."""

    header: Mapping[str, Any]
    binary: bytes


def take_apart(body: bytes, header_length: str | None) -> Sent:
    """Take a body apart; `header_length` is what the client says of the JSON's length, None where all of it is JSON."""
    if header_length is None:
        return Sent(json_object(body), b"")
    if not _LENGTH_TEXT.fullmatch(header_length) or int(header_length) > len(body):
        msg = f"Inference-Header-Content-Length has to be the length of the JSON, at most the body's {len(body)} bytes."
        raise BadRequestBody(msg, field="Inference-Header-Content-Length")
    end = int(header_length)
    return Sent(json_object(body[:end]), body[end:])


def read_picture(sent: Sent) -> bytes:
    """Return the picture that the only input is: a file's bytes, or samples."""
    inputs = sent.header.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise BadRequestBody(f"inputs has to be a list of one tensor, {INPUT!r}.", field="inputs")
    tensor: dict[str, Any] = inputs[0]
    if tensor.get("name") != INPUT:
        raise BadRequestBody(f"The input is called {INPUT!r}.", field="inputs", choices=[INPUT])
    if tensor.get("datatype") not in _KINDS:
        raise BadRequestBody(f"The datatype of {INPUT!r} has to be BYTES or UINT8.", field=INPUT, choices=list(_KINDS))
    shape = _shape(tensor.get("shape"))
    binary = _binary(tensor, sent.binary)
    if tensor["datatype"] == "BYTES":
        return _file(tensor, shape, binary)
    samples = samples_of(_data(tensor), f"data of {INPUT!r}") if binary is None else np.frombuffer(binary, np.uint8)
    if samples.size != math.prod(shape):
        msg = f"{INPUT!r} of shape {shape} has {samples.size} samples, not {math.prod(shape)}."
        raise BadRequestBody(msg, field=INPUT)
    return from_array(samples.reshape(shape), INPUT)


def _shape(shape: object) -> list[int]:
    if not isinstance(shape, list) or not 1 <= len(shape) <= 4 or not all(type(side) is int for side in shape):
        raise BadRequestBody("shape has to be a list of one to four whole numbers.", field="shape")
    if min(shape) < 1 or max(shape) > _LONGEST_SIDE:
        raise BadRequestBody(f"The sides of shape have to be positive, {_LONGEST_SIDE} at most.", field="shape")
    return shape


def _binary(tensor: Mapping[str, Any], binary: bytes) -> bytes | None:
    """Return the input's binary data, or None where it is in the JSON."""
    parameters = _parameters(tensor)
    only_parameters(parameters, ("binary_data_size",), f"The input {INPUT!r}")
    size = parameters.get("binary_data_size")
    if size is None and not binary:
        return None
    if type(size) is not int or size != len(binary):
        msg = f"binary_data_size of {INPUT!r} is {said(size)}, and {len(binary)} bytes follow the JSON."
        raise BadRequestBody(msg, field="binary_data_size")
    return binary


def _file(tensor: Mapping[str, Any], shape: list[int], binary: bytes | None) -> bytes:
    if math.prod(shape) != 1:
        raise BadRequestBody(f"{INPUT!r} of datatype BYTES has to be one picture, of shape [1].", field=INPUT)
    if binary is None:
        data = _data(tensor)
        while isinstance(data, list) and len(data) == 1:
            data = data[0]
        return from_base64(data, INPUT)
    if len(binary) < _LENGTH.size or _LENGTH.unpack_from(binary)[0] != len(binary) - _LENGTH.size:
        msg = f"The binary data of {INPUT!r} has to be the picture's length, in four bytes, and the picture."
        raise BadRequestBody(msg, field=INPUT)
    return binary[_LENGTH.size :]


def _data(tensor: Mapping[str, Any]) -> Any:
    if "data" not in tensor:
        raise BadRequestBody(f"{INPUT!r} has no data: neither in the JSON, nor as binary data behind it.", field=INPUT)
    return tensor["data"]


def _parameters(tensor: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = tensor.get("parameters", {})
    if not isinstance(parameters, dict):
        raise BadRequestBody("parameters has to be an object.", field="parameters")
    return parameters


@dataclass(frozen=True)
class Wanted:
    """An output that is asked for, and whether it is to be binary."""

    name: str
    binary: bool


def wanted(header: Mapping[str, Any], able: Sequence[str]) -> list[Wanted]:
    """Return the outputs that are asked for, all where none is named."""
    binary = _flag(_parameters(header), "binary_data_output", default=False)
    outputs = header.get("outputs", [])
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise BadRequestBody("outputs has to be a list of objects.", field="outputs")
    outputs = outputs or [{"name": name} for name in able]
    if unknown := [output.get("name") for output in outputs if output.get("name") not in able]:
        msg = f"There is no output {said(unknown[0])}; the outputs are {', '.join(able)}."
        raise BadRequestBody(msg, field="outputs", choices=list(able))
    if len({output["name"] for output in outputs}) < len(outputs):
        raise BadRequestBody("An output is asked for twice.", field="outputs")
    for each in outputs:
        only_parameters(_parameters(each), ("binary_data",), f"The output {each['name']!r}")
    return [Wanted(each["name"], _flag(_parameters(each), "binary_data", default=binary)) for each in outputs]


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise BadRequestBody(f"{name} has to be true or false.", field=name)
    return value


Value = NDArray[np.float32] | bytes | str
"""What an output holds: FP32 numbers, or one element of BYTES, which JSON has as text, or in base64."""


def put_together(header: Mapping[str, Any], outputs: Sequence[tuple[Wanted, Value]]) -> tuple[bytes, int | None]:
    """Return a body, and the length of its JSON where binary data follows."""
    described, binaries = [], []
    for want, value in outputs:
        known = {"name": want.name, **_kind(value)}
        if want.binary:
            binaries.append(_as_binary(value))
            described.append(known | {"parameters": {"binary_data_size": len(binaries[-1])}})
        else:
            described.append(known | {"data": _as_data(value)})
    text = json.dumps({**header, "outputs": described}).encode()
    return b"".join([text, *binaries]), len(text) if binaries else None


def _kind(value: Value) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        return {"datatype": "FP32", "shape": list(value.shape)}
    return {"datatype": "BYTES", "shape": [1]}


def _as_data(value: Value) -> list[Any]:
    if isinstance(value, np.ndarray):
        return list(value.ravel().tolist())
    return [value if isinstance(value, str) else base64.b64encode(value).decode()]


def _as_binary(value: Value) -> bytes:
    if isinstance(value, np.ndarray):
        return value.astype("<f4").tobytes()
    data = value.encode() if isinstance(value, str) else value
    return _LENGTH.pack(len(data)) + data
