"""Pictures that every test of this folder may use."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from skimage import data


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cat_pixels() -> NDArray[np.uint8]:
    return data.chelsea()


@pytest.fixture(scope="session")
def coffee_pixels() -> NDArray[np.uint8]:
    return data.coffee()
