"""From a specification to its weights' file, and from both to a network that holds them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from models.architectures import build, plain
from models.errors import InvalidWeights, WeightsMismatch, WeightsUnavailable
from models.spec import EmbeddedWeights, FileWeights, ModelSpec, RandomWeights, TimmWeights, TorchvisionWeights
from models.timm_weights import expected_sha256, timm_file, timm_network
from models.weights import (
    cached_file,
    checked_sha256,
    embedded_file,
    hash_prefix,
    own_file,
    put_state,
    put_state_by_order,
    read_state,
    torchvision_entry,
    unreadable,
)

_SEED = 0
_BUILDING = threading.Lock()


def fetch(spec: ModelSpec, *, progress: bool = False) -> str | None:
    """Bring the model's weights onto this machine and return the file's SHA-256 (None for random weights).

    Raises `WeightsUnavailable`, `InvalidWeights`.
    """
    path = locate(spec, allow_download=True, progress=progress)
    return None if path is None else _sha256(spec, path)


def require_weights(spec: ModelSpec) -> None:
    """Raise `WeightsUnavailable` (or `InvalidWeights`: not a path) unless the weights are on this machine."""
    locate(spec, allow_download=False)


def weights_present(spec: ModelSpec) -> bool:
    """Whether the weights are on this machine; random weights always are."""
    try:
        require_weights(spec)
    except (WeightsUnavailable, InvalidWeights):
        return False
    return True


def locate(spec: ModelSpec, *, allow_download: bool, progress: bool = False) -> Path | None:
    """Return the path of the weights' file, None for random weights.

    Raises `WeightsUnavailable`, and `InvalidWeights` if it is not a path or the download is damaged.
    """
    match spec.weights:
        case EmbeddedWeights():
            return embedded_file()
        case FileWeights():
            return own_file(spec.weights)
        case TorchvisionWeights():
            url = torchvision_entry(spec.weights).url
            return cached_file(spec.name, url, allow_download=allow_download, progress=progress)
        case TimmWeights():
            return timm_file(spec.name, spec.weights, allow_download=allow_download, progress=progress)
        case RandomWeights():
            return None


def network(spec: ModelSpec, path: Path | None) -> tuple[nn.Module, str | None]:
    """Return the network with the weights at `path`, and the file's SHA-256 (None for random weights).

    The caller's random numbers are untouched. Raises `UnknownArchitecture`, `UnsupportedModule`, `InvalidWeights`.
    """
    with _own_random_numbers():
        if path is None:
            return build(spec), None
        before = _identity(path)
        sha256 = _sha256(spec, path)  # before the file is parsed
        module = _with_weights(spec, path)
        if _identity(path) != before:
            msg = f"Weights file {path.name!r} was written while it was read; nothing was loaded. Try again."
            raise InvalidWeights(msg, file=path.name)
        return module, sha256


def _identity(path: Path) -> tuple[int, ...]:
    """Return what is another for another file in its place, and for this one once somebody writes in it."""
    try:
        found = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _sha256(spec: ModelSpec, path: Path) -> str:
    expected = spec.sha256
    match spec.weights:
        case TorchvisionWeights():
            expected = expected or hash_prefix(path)
        case TimmWeights():
            expected = expected or expected_sha256(spec.weights, path)
    return checked_sha256(path, expected)


def _with_weights(spec: ModelSpec, path: Path) -> nn.Module:
    match spec.weights:
        case TorchvisionWeights():
            return plain(_torchvision_network(spec, spec.weights, path))
        case TimmWeights():
            return plain(timm_network(spec.arch.removeprefix("timm:"), path))
    module = build(spec)
    put = put_state_by_order if isinstance(spec.weights, EmbeddedWeights) else put_state
    put(module, read_state(path), path.name)
    return module


def _torchvision_network(spec: ModelSpec, weights: TorchvisionWeights, path: Path) -> nn.Module:
    """Let torchvision's own builder load its weights: it knows their input sizes, extra heads and old names.

    It would unpickle anything, so the file is first read as tensors only.
    """
    from torchvision import models

    read_state(path, device="meta")
    try:
        entry = torchvision_entry(weights)
        module: nn.Module = models.get_model(spec.arch.removeprefix("torchvision:"), weights=entry, progress=False)
    except RuntimeError as error:
        msg = f"Weights file {path.name!r} does not fit torchvision's {spec.name!r}; remove it and fetch it again."
        raise WeightsMismatch(msg, file=path.name) from error
    return module


@contextmanager
def _own_default_dtype() -> Iterator[None]:
    dtype = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Draw from a fixed seed inside the `with`; the CPU generator and the default dtype are as before afterwards.

    Both are the whole process's, so only one model at a time is built.
    """
    with _BUILDING, _own_default_dtype(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        yield
