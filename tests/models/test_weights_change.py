"""A weights' file that somebody writes while it is read: what is loaded is what the checksum is of, or nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from models import sources
from models.errors import InvalidWeights
from models.folder import read_folder
from models.loading import load
from tests import zoo

PREPROCESS = "[preprocess]\ninput_size = 32\nmean = [0.0, 0.0, 0.0]\nstd = [1.0, 1.0, 1.0]\n"


def write(file: Path, seed: int) -> None:
    torch.manual_seed(seed)
    save_file(zoo.Small().state_dict(), file)


def replace(file: Path) -> None:
    """As careful people do: the old file stays as it is for who has it open."""
    write(file.with_suffix(".new"), seed=2)
    file.with_suffix(".new").rename(file)


def overwrite(file: Path) -> None:
    """As `cp` does, with as many bytes in the same file."""
    other = file.with_suffix(".new")
    write(other, seed=2)
    file.write_bytes(other.read_bytes())


@pytest.mark.parametrize("change", [replace, overwrite])
def test_a_file_that_changes_after_it_was_hashed_is_not_loaded(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.safetensors"
    write(file, seed=1)
    (tmp_path / "own.toml").write_text('arch = "python:tests.zoo:Small"\nweights = "own.safetensors"\n' + PREPROCESS)
    spec = read_folder(tmp_path)["own"]
    untouched = load(spec)
    hashed = sources.checked_sha256

    def hash_then_change(path: Path, expected: str | None = None) -> str:
        found = hashed(path, expected)
        change(path)
        return found

    monkeypatch.setattr(sources, "checked_sha256", hash_then_change)
    with pytest.raises(InvalidWeights, match=r"'own\.safetensors' was written while it was read"):
        load(spec)
    monkeypatch.undo()
    assert load(spec).weights_sha256 != untouched.weights_sha256
