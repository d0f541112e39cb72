"""The files of timm's weights, where timm itself keeps them, and how timm puts them into its networks.

That is the Hugging Face hub's cache (HF_HOME), or torch's (TORCH_HOME) for the few that have nothing but an address.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from torch import nn

from models.errors import WeightsMismatch, WeightsUnavailable
from models.spec import TimmWeights
from models.weights import cached_file, hash_prefix, read_content, torch_cache, torch_cache_path

_FOLDER_PREFIX = "models--"


def cached_sources() -> set[str]:
    """Return all repositories and all file names that the two caches hold, whether timm's or not."""
    repositories = {
        folder.removeprefix(_FOLDER_PREFIX).replace("--", "/", 1)
        for folder in _listed(Path(constants.HF_HUB_CACHE))
        if folder.startswith(_FOLDER_PREFIX)
    }
    return repositories | _listed(torch_cache())


def located(weights: TimmWeights) -> Path | None:
    """Return the path of the weights' file in its cache, None if it is not there. The network is never asked."""
    if weights.url is not None:
        path = torch_cache_path(weights.url)
        return path if path.is_file() else None
    repository, revision = _repository(weights)
    for name in weights.files:
        found = try_to_load_from_cache(repository, name, revision=revision)
        if isinstance(found, str):
            return Path(found)
    return None


def timm_file(model: str, weights: TimmWeights, *, allow_download: bool, progress: bool = False) -> Path:
    """Return the path of the weights of `model` in their cache, downloaded if that is allowed.

    Raises `WeightsUnavailable`, and `ChecksumMismatch` if the download is damaged.
    """
    if weights.url is not None:
        return cached_file(model, weights.url, allow_download=allow_download, progress=progress)
    if path := located(weights):
        return path
    if not allow_download:
        raise _unavailable(model, weights, "are not on this machine")
    try:
        with _progress_bars(shown=progress):
            return _from_hub(weights)
    except Exception as error:  # the hub's client lets pass whatever its HTTP library raises
        raise _unavailable(model, weights, f"could not be downloaded from {constants.ENDPOINT}") from error


def expected_sha256(weights: TimmWeights, path: Path) -> str | None:
    """Return the SHA-256 that the file has by its name in the cache, or its first digits; None if it says nothing."""
    if weights.url is not None:
        return hash_prefix(path)
    blob = os.path.basename(os.readlink(path)) if path.is_symlink() else ""  # the hub names large files so
    return blob if re.fullmatch(r"[0-9a-f]{64}", blob) else None


def timm_network(name: str, path: Path) -> nn.Module:
    """Let timm's own builder load a file: it knows its networks' old names, extra heads and other shapes.

    It is as strict as timm is. The file is first read as tensors only; so does timm, but for a class of arguments.
    Raises `InvalidWeights`, `WeightsMismatch`.
    """
    import timm

    read_content(path, device="meta")
    try:
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": str(path)})
    except (RuntimeError, KeyError, ValueError) as error:
        msg = f"Weights file {path.name!r} does not fit timm's {name!r}; remove it from the cache and fetch it again."
        raise WeightsMismatch(msg, file=path.name) from error


def _from_hub(weights: TimmWeights) -> Path:
    repository, revision = _repository(weights)
    *others, last = weights.files
    for name in others:
        try:
            return Path(hf_hub_download(repository, name, revision=revision))
        except LocalEntryNotFoundError:
            raise  # no answer
        except EntryNotFoundError:
            continue
    return Path(hf_hub_download(repository, last, revision=revision))


def _repository(weights: TimmWeights) -> tuple[str, str | None]:
    """Return the repository and the revision that timm may put after it."""
    repository, _, revision = (weights.repository or "").partition("@")
    return repository, revision or None


def _listed(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.is_dir() else set()


@contextmanager
def _progress_bars(*, shown: bool) -> Iterator[None]:
    """Silence the hub's progress bars inside the `with`, unless they are to be shown."""
    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _unavailable(model: str, weights: TimmWeights, reason: str) -> WeightsUnavailable:
    msg = (
        f"The weights of model {model!r} (repository {weights.repository!r} of the Hugging Face hub) {reason}. On the "
        f"server, with a network, run `heatlens models fetch {model}`; without one, put the repository into the hub's "
        f"cache (HF_HOME)."
    )
    return WeightsUnavailable(msg, model=model, repository=weights.repository, file=weights.files[0])
