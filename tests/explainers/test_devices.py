"""Half precision on any device, and the GPU where there is one."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from explainers import Explanation, Subject, Target, explain, names
from tests.explainers.checks import applies, few, looks_at
from tests.explainers.nets import CASES, Case

APPLICABLE = [
    pytest.param(method, next(case for case in CASES if applies(method, case)), id=method) for method in names()
]
each_method = pytest.mark.parametrize(("method", "case"), APPLICABLE)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def explained(method: str, case: Case, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[np.ndarray]:
    net = copy.deepcopy(case.build()).to(device, dtype)
    subject = Subject(net, lambda inputs: net(inputs.to(dtype)).float())
    options: dict[str, Any] = {"method": method, "parameters": few(method), **looks_at(method, case)}
    answers = explain(subject, case.pictures(2).float().to(device), [[Target(0)], [Target(1, versus=2)]], **options)
    assert all(isinstance(answer, Explanation) for answer in answers), answers
    raws = [answer.attributions[0].raw for answer in answers if isinstance(answer, Explanation)]
    assert all(raw.dtype == np.float32 for raw in raws)
    return raws


@pytest.fixture(autouse=True)
def _exact_convolutions() -> Iterator[None]:
    """TF32 has 10 bits of mantissa, and cuDNN's convolutions use it unless told otherwise."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


@each_method
def test_a_bfloat16_model_gives_float32_maps_like_those_of_float32(method: str, case: Case) -> None:
    # 8 significant bits, so no map is exact; but it is the same map.
    half = explained(method, case, dtype=torch.bfloat16)
    for low, high in zip(half, explained(method, case), strict=True):
        assert correlation(low, high) > 0.9


@pytest.mark.cuda
@needs_gpu
@each_method
def test_the_gpus_maps_are_the_cpus(method: str, case: Case) -> None:
    # float32 without TF32: the same sums in another order. Methods that divide by small numbers are worse conditioned.
    tolerance = 1e-2 if method in ("gradcam++", "xgradcam", "eigengradcam") else 1e-3
    for there, here in zip(explained(method, case, device="cuda"), explained(method, case), strict=True):
        assert np.abs(there - here).max() <= tolerance * np.abs(here).max()


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_method
def test_half_precision_on_the_gpu_gives_the_same_maps(method: str, case: Case, dtype: torch.dtype) -> None:
    for there, here in zip(explained(method, case, device="cuda", dtype=dtype), explained(method, case), strict=True):
        assert correlation(there, here) > 0.9
