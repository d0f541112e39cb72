"""Pictures that come as numbers, on their way to what every other picture is: bytes of a file."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import BadRequestBody
from app.imaging.encode import npy

_SHAPES = "(height, width, 3), or as many planes as the model takes"
_AXES = 4
"""Those of a picture, and one for a batch."""
_TOP = 255


def from_lists(rows: object, field: str) -> bytes:
    """Return nested lists as `.npy` file: whole numbers are samples from 0 to 255, others from 0 to 1.

    Whether a number is whole is decided by how it is written: 1.0 is not. `field` names the lists in the error.
    """
    flat, shape = _flattened(rows, field)
    samples = _whole(flat) if set(map(type, flat)) == {int} else _fractions(flat)
    if samples is None:
        msg = f"{field}: whole numbers have to be from 0 to 255, and if any has a fraction (1.0 too), all from 0 to 1."
        raise BadRequestBody(msg, field=field)
    return from_array(samples.reshape(shape), field)


def from_array(array: NDArray[np.uint8], field: str) -> bytes:
    """Return samples as `.npy` file; a leading axis of length 1, as of a batch, is dropped."""
    if array.ndim == 4 and array.shape[0] == 1:
        array = array[0]
    if array.ndim not in (2, 3):
        msg = f"{field} has the shape {array.shape}; it has to be one picture of shape {_SHAPES}."
        raise BadRequestBody(msg, field=field)
    return npy(array)


def samples_of(rows: object, field: str) -> NDArray[np.uint8]:
    """Return nested lists of whole numbers from 0 to 255 as one row."""
    flat, _ = _flattened(rows, field)
    samples = _whole(flat) if set(map(type, flat)) == {int} else None
    if samples is None:
        raise BadRequestBody(f"{field} has to be whole numbers from 0 to 255.", field=field)
    return samples


def _whole(flat: Sequence[int]) -> NDArray[np.uint8] | None:
    """Return whole numbers as samples, or None where one is beyond their range."""
    return np.fromiter(flat, np.uint8, len(flat)) if min(flat) >= 0 and max(flat) <= _TOP else None


def _fractions(flat: Sequence[float]) -> NDArray[np.uint8] | None:
    if not (min(flat) >= 0 and max(flat) <= 1):
        return None  # here already, since NumPy knows no whole number as large as JSON does
    numbers = np.fromiter(flat, np.float64, len(flat))
    return None if np.isnan(numbers).any() else np.rint(numbers * _TOP).astype(np.uint8)


def _flattened(rows: object, field: str) -> tuple[list[Any], list[int]]:
    """Return the numbers of nested lists, and their shape.

    NumPy sees none of it before: of lists of strings, of lists and of other things it makes arrays that are many times
    larger than the body that they came in.
    """
    flat: list[Any] = [rows]
    shape: list[int] = []
    while flat and type(flat[0]) is list:
        if len(shape) == _AXES:
            raise BadRequestBody(f"{field} is nested more than {_AXES} deep.", field=field)
        if set(map(type, flat)) != {list} or len(lengths := set(map(len, flat))) > 1:
            raise BadRequestBody(f"{field} is no regular array: its rows differ in length.", field=field)
        shape += lengths
        if 0 in lengths:
            break
        flat = list(chain.from_iterable(flat))
    if not shape or not flat or not set(map(type, flat)) <= {int, float}:
        raise BadRequestBody(f"{field} has to be an array of numbers of shape {_SHAPES}.", field=field)
    return flat, shape
