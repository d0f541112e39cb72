"""From a specification to a network in memory that is ready to be explained: strict, safe, frozen, checked once.

Everything that the answer depends on is verified here, so that a request can only fail for its own reasons.
"""

import hashlib
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from models import output
from models.architectures import default_preprocess
from models.coupling import BatchNormWatch, refuse_batch_statistics, refuse_training_mode
from models.errors import CheckForwardFailed, InvalidModelFile, InvalidOutput, ModelError, NonFiniteOutput
from models.normalised import expose_logits
from models.output import ScoreKind
from models.preprocess import Preprocess
from models.sources import fetch as fetch
from models.sources import locate, network
from models.sources import require_weights as require_weights
from models.sources import weights_present as weights_present
from models.spec import ModelSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A network in memory: in eval mode, every parameter frozen, in `dtype`, on `device`.

    `weights_sha256` is that of the weights' file, None for random weights. `code` is an own architecture's file, as far
    as it can be read. `labels` are as many as the scores.
    `score_kind` says what the scores are. `flaw` is why nothing can be made of them, where `load` was to keep such a
    network. Only one thread at a time may call `scores`; `preprocess` and
    `probabilities` may be called from any thread.
    """

    spec: ModelSpec
    module: nn.Module
    preprocess: Preprocess
    labels: tuple[str, ...]
    weights_sha256: str | None
    device: torch.device
    dtype: torch.dtype = torch.float32
    memory_format: torch.memory_format = torch.contiguous_format
    score_kind: ScoreKind = "logits"
    flaw: NonFiniteOutput | None = None
    code: bytes = field(default=b"", repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of specification, weights and an own architecture's file: the same gives the same scores.

        What that file imports is not covered.
        """
        return hashlib.sha256(f"{self.spec.model_dump_json()} {self.weights_sha256} ".encode() + self.code).hexdigest()

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores (N, K) float32 of inputs (N, C, h, w) float32; differentiable.

        They are the logits; a binary head's one logit z becomes the columns (-z, +z). Raises `InvalidOutput`.
        """
        return output.scores(output.logits(self.answer(x), self.score_kind), self.spec.head)

    def answer(self, x: Tensor) -> Tensor:
        """Return the tensor that the specification selects from what the network answers; raises `InvalidOutput`."""
        x = x.to(self.device, self.dtype).contiguous(memory_format=self.memory_format)
        return output.select(self.module(x), self.spec.output)

    def cross_entropy(self, scores: Tensor, classes: Sequence[int]) -> Tensor:
        """Return the usual training loss, a scalar, of scores (N, K) for the true class of each picture."""
        return output.cross_entropy(scores, classes, self.spec.head)

    def probabilities(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probabilities (K,) float64 of one picture's scores (K,); raises `NonFiniteOutput`."""
        return output.probabilities(scores, self.spec.head)


def load(
    spec: ModelSpec,
    *,
    device: str | torch.device = "cpu",
    allow_download: bool = False,
    progress: bool = False,
    allow_non_finite: bool = False,
) -> LoadedModel:
    """Build the network, put its weights into it, watch it once and check it once.

    `allow_download` lets torchvision's and timm's weights come from the network, with a progress bar if `progress`.
    With `allow_non_finite` a network that answers NaN or infinity is kept, to be looked into: its `flaw` says so.
    The caller's random numbers are untouched. Raises `ModelError`: see `models.errors`.
    """
    device = torch.device(device)
    _refuse_half_on_cpu(spec, device)
    path = locate(spec, allow_download=allow_download, progress=progress)
    module, sha256 = network(spec, path)
    module = module.float().eval().requires_grad_(requires_grad=False).to(device)
    refuse_training_mode(module)
    refuse_batch_statistics(module)
    loaded = LoadedModel(
        spec=spec,
        module=module,
        preprocess=spec.preprocess or default_preprocess(spec, module),
        labels=spec.labels or (),
        weights_sha256=sha256,
        device=device,
        code=_code(spec),
    )
    model = _laid_out(_in_its_dtype(_watched(loaded)))
    if model.flaw is not None and not allow_non_finite:
        raise model.flaw
    return model


def _code(spec: ModelSpec) -> bytes:
    """Return the file of an own architecture, whose factory has just been called."""
    kind, name, *_ = spec.arch.split(":")
    return _source(sys.modules[name]) if kind == "python" and name in sys.modules else b""


@cache
def _source(module: ModuleType) -> bytes:
    """Return the file that a module was imported from, read once: what somebody writes into it later does not run."""
    try:
        return bytes(module.__loader__.get_data(module.__file__))  # type: ignore[union-attr] # a zip file's loader too
    except (AttributeError, OSError, TypeError):
        return b""


def _refuse_half_on_cpu(spec: ModelSpec, device: torch.device) -> None:
    if spec.dtype == "float16" and device.type == "cpu":
        choices = ["float32", "bfloat16"]
        msg = (
            f'Model {spec.name!r}: dtype = "float16" is for GPUs, and this is the CPU, where it is slow and overflows; '
            f"choose one of: {', '.join(choices)}."
        )
        raise InvalidModelFile(msg, key="dtype", choices=choices)


def _watched(model: LoadedModel) -> LoadedModel:
    """Watch the network answer: refuse what couples pictures, and take a final softmax or sigmoid away."""
    inputs = _made_up(model)

    def answer(x: Tensor) -> Tensor:
        with _in_own_words(model), torch.no_grad():
            return model.answer(x)

    with BatchNormWatch() as batch_norms:
        kind = expose_logits(model.module, answer, model.spec.head, inputs)
    refuse_training_mode(model.module)
    batch_norms.refuse_coupling(model.module, answer, *inputs)
    if kind != "logits":
        _log.info("model %s normalises its answer; the scores are: %s", model.spec.name, kind)
    return replace(model, score_kind=kind)


def _in_its_dtype(model: LoadedModel) -> LoadedModel:
    dtype: torch.dtype = getattr(torch, model.spec.dtype)
    return replace(model, module=model.module.to(dtype), dtype=dtype)


def _laid_out(model: LoadedModel) -> LoadedModel:
    """Return the model in the memory layout that suits it, checked."""
    if _suits_channels_last(model):
        try:
            return _checked(_as(model, torch.channels_last))
        except CheckForwardFailed:  # networks that reshape activations with `view` may depend on their strides
            if model.spec.memory_format == "channels_last":
                raise
    return _checked(_as(model, torch.contiguous_format))


def _suits_channels_last(model: LoadedModel) -> bool:
    """Whether to try channels_last: as specified, else on the CPU for networks with several 2-D convolutions.

    Measured by benchmarks/layout.py: convolutional networks gain, transformers do not change.
    """
    wish = model.spec.memory_format
    convolutions = sum(isinstance(part, nn.Conv2d) for part in model.module.modules())
    # A transformer's only one cuts the picture into patches, and it loses a little.
    return wish == "channels_last" or (wish == "auto" and model.device.type == "cpu" and convolutions > 1)


def _as(model: LoadedModel, memory_format: torch.memory_format) -> LoadedModel:
    convert_conv2d_weight_memory_format(model.module, memory_format)
    return replace(model, memory_format=memory_format)


def _checked(model: LoadedModel) -> LoadedModel:
    """Run one forward pass and return the model with its labels, and its flaw if it has one.

    Raises `CheckForwardFailed`, `InvalidOutput`.
    """
    with _in_own_words(model), torch.no_grad():  # not in inference mode: what a network caches must stay usable
        scores = model.scores(_made_up(model)[0])
    if scores.shape[0] != 1:
        msg = f"The network of {model.spec.name!r} answers one picture with {scores.shape[0]} rows of scores."
        raise InvalidOutput(msg, shape=list(scores.shape))
    flaw = None
    if not scores.isfinite().all():
        msg = f"The network of {model.spec.name!r} answers NaN or infinity; its weights are damaged or unsuitable."
        flaw = NonFiniteOutput(msg)
    count = scores.shape[1]
    labels = model.labels or tuple(f"class {index}" for index in range(count))
    if len(labels) != count:
        msg = f"Model {model.spec.name!r} has {len(labels)} labels, but its network has {count} outputs."
        raise InvalidOutput(msg, labels=len(labels), outputs=count)
    return replace(model, labels=labels, flaw=flaw)


def _made_up(model: LoadedModel) -> tuple[Tensor, Tensor]:
    """Return two different inputs (1, C, h, w)."""
    shape = (1, model.preprocess.channels, *model.preprocess.input_size)
    ramp = torch.linspace(-1, 1, math.prod(shape)).reshape(shape)
    return ramp, torch.randn(shape, generator=torch.Generator().manual_seed(0))


@contextmanager
def _in_own_words(model: LoadedModel) -> Iterator[None]:
    """Turn whatever the network raises inside the `with` into `CheckForwardFailed`: it is foreign code."""
    try:
        yield
    except (ModelError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (Exception, SystemExit) as error:
        refuse_training_mode(model.module)  # a BatchNorm in training mode refuses single numbers
        shape = [1, model.preprocess.channels, *model.preprocess.input_size]
        msg = (
            f"The network of {model.spec.name!r} does not accept an input of shape {tuple(shape)}: it raised "
            f"{type(error).__name__}. {_hint(model)}"
        )
        raise CheckForwardFailed(msg, shape=shape) from error


def _hint(model: LoadedModel) -> str:
    """Say what to change: the channels if the first convolution wants another number, else what is left."""
    first = next((part for part in model.module.modules() if isinstance(part, nn.Conv2d)), None)
    if first is not None and first.in_channels != model.preprocess.channels:
        return (
            f"Its first convolution takes {first.in_channels} channel(s), the preprocessing makes "
            f"{model.preprocess.channels}. Set channels = {first.in_channels} with mean and std in `[preprocess]`."
        )
    if model.dtype != torch.float32:
        return 'It accepted it in float32: set dtype = "float32".'
    return "Check `[preprocess]` (input_size, channels)."
