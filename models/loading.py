"""From a specification to a network in memory that is ready to be explained: strict, safe, frozen, checked once.

Everything that the answer depends on is verified here, so that a request can only fail for its own reasons.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from models import output
from models.architectures import build, default_preprocess, plain
from models.errors import (
    CheckForwardFailed,
    InvalidOutput,
    InvalidWeights,
    ModelError,
    NonFiniteOutput,
    WeightsMismatch,
    WeightsUnavailable,
)
from models.preprocess import Preprocess
from models.spec import (
    EmbeddedWeights,
    FileWeights,
    ModelSpec,
    RandomWeights,
    TorchvisionWeights,
)
from models.weights import (
    checked_sha256,
    embedded_file,
    hash_prefix,
    own_file,
    put_state,
    put_state_by_order,
    read_state,
    torchvision_entry,
    torchvision_file,
)

_SEED = 0
_BUILDING = threading.Lock()


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A network in memory: in eval mode, every parameter frozen, float32, on `device`.

    `weights_sha256` is that of the weights' file, None for random weights. `labels` are as many as the scores.
    Only one thread at a time may call `scores`; `preprocess` and `probabilities` may be called from any thread.
    """

    spec: ModelSpec
    module: nn.Module
    preprocess: Preprocess
    labels: tuple[str, ...]
    weights_sha256: str | None
    device: torch.device
    memory_format: torch.memory_format

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores (N, K) float32 of inputs (N, C, h, w) float32; differentiable.

        They are the logits; a binary head's one logit z becomes the columns (-z, +z). Raises `InvalidOutput`.
        """
        x = x.to(self.device).contiguous(memory_format=self.memory_format)
        return output.scores(output.select(self.module(x), self.spec.output), self.spec.head)

    def probabilities(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probabilities (K,) float64 of one picture's scores (K,); raises `NonFiniteOutput`."""
        return output.probabilities(scores, self.spec.head)


def load(
    spec: ModelSpec,
    *,
    device: str | torch.device = "cpu",
    allow_download: bool = False,
    progress: bool = False,
) -> LoadedModel:
    """Build the network, put its weights into it and run it once.

    `allow_download` lets torchvision's weights come from the network, with a progress bar if `progress`. The
    caller's random numbers are untouched. Raises `ModelError`: see `models.errors`.
    """
    path = _located(spec, allow_download=allow_download, progress=progress)
    with _own_random_numbers():
        module, sha256 = _with_weights(spec, path)
    module = module.float().eval().requires_grad_(requires_grad=False).to(device)
    loaded = LoadedModel(
        spec=spec,
        module=module,
        preprocess=spec.preprocess or default_preprocess(spec, module),
        labels=spec.labels or (),
        weights_sha256=sha256,
        device=torch.device(device),
        memory_format=torch.contiguous_format,
    )
    if _suits_channels_last(loaded):
        try:
            return _checked(_laid_out(loaded, torch.channels_last))
        except CheckForwardFailed:  # networks that reshape activations with `view` may depend on their strides
            if spec.memory_format == "channels_last":
                raise
    return _checked(_laid_out(loaded, torch.contiguous_format))


def fetch(spec: ModelSpec, *, progress: bool = False) -> str | None:
    """Bring the model's weights onto this machine and return the file's SHA-256 (None for random weights).

    Raises `WeightsUnavailable`, `InvalidWeights`.
    """
    path = _located(spec, allow_download=True, progress=progress)
    return None if path is None else _sha256(spec, path)


def require_weights(spec: ModelSpec) -> None:
    """Raise `WeightsUnavailable` (or `InvalidWeights`: not a path) unless the weights are on this machine."""
    _located(spec, allow_download=False, progress=False)


def weights_present(spec: ModelSpec) -> bool:
    """Whether the weights are on this machine; random weights always are."""
    try:
        require_weights(spec)
    except (WeightsUnavailable, InvalidWeights):
        return False
    return True


def _located(spec: ModelSpec, *, allow_download: bool, progress: bool) -> Path | None:
    """Return the path of the weights' file, None for random weights."""
    match spec.weights:
        case EmbeddedWeights():
            return embedded_file()
        case FileWeights():
            return own_file(spec.weights)
        case TorchvisionWeights():
            return torchvision_file(spec.name, spec.weights, allow_download=allow_download, progress=progress)
        case RandomWeights():
            return None


def _sha256(spec: ModelSpec, path: Path) -> str:
    named = hash_prefix(path) if isinstance(spec.weights, TorchvisionWeights) else None
    return checked_sha256(path, spec.sha256 or named)


def _with_weights(spec: ModelSpec, path: Path | None) -> tuple[nn.Module, str | None]:
    """Return the network with its weights, and the SHA-256 of their file."""
    if path is None:
        return build(spec), None
    sha256 = _sha256(spec, path)  # before the file is parsed
    if isinstance(spec.weights, TorchvisionWeights):
        return _torchvision_network(spec, spec.weights, path), sha256
    module = build(spec)
    put = put_state_by_order if isinstance(spec.weights, EmbeddedWeights) else put_state
    put(module, read_state(path), path.name)
    return module, sha256


def _torchvision_network(spec: ModelSpec, weights: TorchvisionWeights, path: Path) -> nn.Module:
    """Let torchvision's own builder load its weights: it knows their input sizes, extra heads and old names.

    It would unpickle anything, so the file is first read as tensors only.
    """
    from torchvision import models

    read_state(path, device="meta")
    try:
        entry = torchvision_entry(weights)
        module = models.get_model(spec.arch.removeprefix("torchvision:"), weights=entry, progress=False)
    except RuntimeError as error:
        msg = f"Weights file {path.name!r} does not fit torchvision's {spec.name!r}; remove it and fetch it again."
        raise WeightsMismatch(msg, file=path.name) from error
    return plain(module)


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


def _suits_channels_last(model: LoadedModel) -> bool:
    """Whether to try channels_last: as specified, else on the CPU for networks with several 2-D convolutions.

    Measured by benchmarks/layout.py: convolutional networks gain, transformers do not change.
    """
    wish = model.spec.memory_format
    convolutions = sum(isinstance(part, nn.Conv2d) for part in model.module.modules())
    # A transformer's only one cuts the picture into patches, and it loses a little.
    return wish == "channels_last" or (wish == "auto" and model.device.type == "cpu" and convolutions > 1)


def _laid_out(model: LoadedModel, memory_format: torch.memory_format) -> LoadedModel:
    convert_conv2d_weight_memory_format(model.module, memory_format)
    return replace(model, memory_format=memory_format)


def _checked(model: LoadedModel) -> LoadedModel:
    """Run one forward pass and return the model with its labels.

    Raises `CheckForwardFailed`, `InvalidOutput`, `NonFiniteOutput`.
    """
    scores = _check_forward(model)
    if scores.shape[0] != 1:
        msg = f"The network of {model.spec.name!r} answers one picture with {scores.shape[0]} rows of scores."
        raise InvalidOutput(msg, shape=list(scores.shape))
    if not scores.isfinite().all():
        msg = f"The network of {model.spec.name!r} answers NaN or infinity; its weights are damaged or unsuitable."
        raise NonFiniteOutput(msg)
    count = scores.shape[1]
    labels = model.labels or tuple(f"class {index}" for index in range(count))
    if len(labels) != count:
        msg = f"Model {model.spec.name!r} has {len(labels)} labels, but its network has {count} outputs."
        raise InvalidOutput(msg, labels=len(labels), outputs=count)
    return replace(model, labels=labels)


def _check_forward(model: LoadedModel) -> Tensor:
    """Return the scores of one made-up input. Not in inference mode: what a network caches must stay usable."""
    shape = (1, model.preprocess.channels, *model.preprocess.input_size)
    x = torch.linspace(-1, 1, math.prod(shape)).reshape(shape)
    try:
        with torch.no_grad():
            return model.scores(x)
    except (ModelError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:  # the network is foreign code
        msg = (
            f"The network of {model.spec.name!r} does not accept an input of shape {shape}: it raised "
            f"{type(error).__name__}. {_channel_hint(model) or 'Check `[preprocess]` (input_size, channels).'}"
        )
        raise CheckForwardFailed(msg, shape=list(shape)) from error


def _channel_hint(model: LoadedModel) -> str | None:
    """Say so if the first convolution wants another number of channels than the preprocessing makes."""
    first = next((part for part in model.module.modules() if isinstance(part, nn.Conv2d)), None)
    if first is None or first.in_channels == model.preprocess.channels:
        return None
    wanted = f"Its first convolution takes {first.in_channels} channel(s), the preprocessing makes "
    wanted += f"{model.preprocess.channels}."
    if first.in_channels not in (1, 3):
        return f"{wanted} Only networks for 1 or 3 channels are supported."
    return f"{wanted} Set channels = {first.in_channels} with mean and std in `[preprocess]`."
