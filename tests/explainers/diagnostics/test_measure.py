"""The size of a tensor: against exact sums in Python, over the whole range of each number format."""

import math

import pytest
import torch
from torch import Tensor

from explainers.diagnostics.measure import Size, is_finite, size_of


def exact(values: Tensor) -> float:
    """The norm, scaled by a power of two so that nothing is lost, and added up without rounding."""
    numbers = values.flatten().tolist()
    scale = 2.0 ** (math.frexp(max(map(abs, numbers), default=1))[1] - 1)
    return math.sqrt(math.fsum((number / scale) ** 2 for number in numbers)) * scale


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("part", ["smallest", "small", "one", "large", "largest"])
def test_the_norm_over_the_whole_range(dtype: torch.dtype, part: str) -> None:
    info = torch.finfo(dtype)
    scale = {
        "smallest": info.smallest_normal * info.eps,  # one step above zero
        "small": info.smallest_normal * 3,
        "one": 1.0,
        "large": info.max / 64,
        "largest": info.max,
    }[part]
    signs = torch.tensor([1.0, -1.0, 0.5, 0.0, 1.0], dtype=torch.float64)
    values = (signs * scale).to(dtype)
    size = size_of(values, count_zeros=True)
    expected = exact(values)
    assert size.norm == pytest.approx(expected, rel=1e-6) if math.isfinite(expected) else size.norm == math.inf
    assert (size.count, size.zeros) == (5, int((values == 0).sum()))
    assert size.finite


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (1, 64, 80, 80), (700, 1001)])
def test_the_norm_of_many_numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    values[values.abs() < 0.1] = 0
    layouts = [values, values.transpose(0, -1)]
    if values.dim() == 4:
        layouts.append(values.contiguous(memory_format=torch.channels_last))
    for layout in layouts:
        size = size_of(layout, count_zeros=True)
        assert size.norm == pytest.approx(exact(values), rel=5e-5)
        assert size.zero_fraction == float((values == 0).double().mean())


def test_millions_of_equal_numbers() -> None:
    """Added up one after the other in float32, the sum would stop growing."""
    values = (torch.rand(1, 2**8, 1, 1, generator=torch.Generator().manual_seed(0)) + 0.5).expand(1, 2**8, 2**6, 2**8)
    assert size_of(values).norm == pytest.approx(exact(values[..., :1, :1]) * 2**7, rel=5e-5)


def test_special_numbers_are_counted_and_left_out() -> None:
    values = torch.tensor([3.0, math.nan, -math.inf, 4.0, math.inf, -0.0, 0.0, math.nan])
    size = size_of(values, count_zeros=True)
    assert size == Size(norm=5.0, count=8, zeros=2, nan=2, inf=2)
    assert size.zero_fraction == 0.25
    assert not size.finite
    assert size_of(values[[1, 2]]) == Size(norm=0.0, count=2, zeros=0, nan=1, inf=1)
    assert not is_finite(values)
    assert not is_finite(values[:2])
    assert not is_finite(values[[0, 2]])


def test_large_finite_numbers_are_finite() -> None:
    """Their squares are not."""
    values = torch.full((10,), 3e38)
    assert is_finite(values)
    assert size_of(values) == Size(norm=pytest.approx(3e38 * math.sqrt(10), rel=1e-6), count=10)


def test_nothing() -> None:
    size = size_of(torch.empty(0, 3), count_zeros=True)
    assert size == Size(norm=0.0, count=0, zeros=0)
    assert size.zero_fraction is None


def test_sparse_and_complex_tensors() -> None:
    places, values = torch.tensor([[0, 0]]), torch.tensor([1.0, 3.0])  # one place, twice
    sparse = torch.sparse_coo_tensor(places, values, (4,), check_invariants=True)
    assert size_of(sparse, count_zeros=True) == Size(norm=4.0, count=4, zeros=3)
    assert size_of(torch.tensor([3 + 4j]).conj()).norm == 5
    assert size_of(torch.tensor([3 + 4j, 1]).conj().imag, count_zeros=True) == Size(norm=4.0, count=2, zeros=1)
    assert not is_finite(torch.tensor([complex(0, math.nan)]))


def test_sizes_add_up_as_if_the_tensors_were_one() -> None:
    first, second = torch.tensor([3.0, 0.0]), torch.tensor([4.0, math.nan, math.inf])
    whole = size_of(torch.cat([first, second]), count_zeros=True)
    assert size_of(first, count_zeros=True) + size_of(second, count_zeros=True) == whole
    assert whole == Size(norm=5.0, count=5, zeros=1, nan=1, inf=1)


def test_the_tensor_is_not_touched() -> None:
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    size_of(values, count_zeros=True)
    assert values._version == 0
    assert values.grad is None
