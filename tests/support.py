"""What several tests need."""

import os
from pathlib import Path

import pytest
import skimage

PICTURES = Path(skimage.__file__).parent / "data"
"""scikit-image's pictures, shipped in its wheel."""

CHROMIUM = Path("/usr/bin/chromium")


def require(condition: bool, reason: str) -> None:
    """Skip the test where something is missing, but fail in CI, where nothing may be missing."""
    if condition:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing in CI: {reason}")
    pytest.skip(reason)
