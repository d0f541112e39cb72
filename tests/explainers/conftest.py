"""No test of this folder may leave a hook on a module, or the grad mode changed."""

from collections.abc import Iterator

import pytest
import torch

from tests.explainers.ledger import Ledger


@pytest.fixture(autouse=True)
def ledger() -> Iterator[Ledger]:
    with Ledger().open() as ledger:
        yield ledger
    assert ledger.left() == []
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """Sums do not depend on how many cores the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
