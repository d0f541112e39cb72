"""The operator's models folder: one TOML file per model becomes one specification. No torch here.

arch = "timm:resnet18"
weights = "scratches.safetensors"        # a file in the folder, or "random" to try an architecture
labels = ["fine", "scratched"]           # or "labels.txt", one per line
[arch_options]
num_classes = 2
"""

import tomllib
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.errors import InvalidModelFile, close_matches, did_you_mean
from models.preprocess import Preprocess
from models.spec import (
    LONGEST_LABEL,
    NAME_PATTERN,
    Arch,
    Dtype,
    FileWeights,
    Head,
    Label,
    MemoryFormat,
    ModelSpec,
    Name,
    RandomWeights,
    Sha256,
    is_name,
)

WEIGHTS_SUFFIXES = (".safetensors", ".pth", ".pt")
_RANDOM = "random"
_ENCODING = "utf-8-sig"
"""UTF-8, whether or not an editor has put its mark in front."""


class _ModelFile(BaseModel):
    """The keys of a model's TOML file; see `ModelSpec` for their meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arch: Arch
    weights: str
    name: Name | None = None
    arch_options: dict[str, Any] = Field(default_factory=dict)
    sha256: Sha256 | None = None
    head: Head = "softmax"
    output: int | str | None = None
    labels: tuple[Label, ...] | str | None = None
    preprocess: Preprocess | None = None
    layer: str | None = None
    memory_format: MemoryFormat = "auto"
    dtype: Dtype = "float32"
    licence: str | None = None
    description: str | None = None


def read_folder(folder: Path) -> dict[str, ModelSpec]:
    """Return the specifications of all `*.toml` files in `folder`, by model name.

    Raises `InvalidModelFile` for the first file, by name, that is wrong.
    """
    if not folder.is_dir():
        msg = f"The models folder {folder.name!r} does not exist or is no folder."
        raise InvalidModelFile(msg, file=folder.name)
    specs: dict[str, ModelSpec] = {}
    files: dict[str, str] = {}
    for path in sorted(folder.glob("[!.]*.toml")):
        _require_inside(path)
        spec = read_file(path)
        if spec.name in specs:
            _refuse(path, "name", f"the name {spec.name!r} is already taken by {files[spec.name]!r}")
        specs[spec.name], files[spec.name] = spec, path.name
    return specs


def read_file(path: Path) -> ModelSpec:
    """Return the specification in one TOML file; raises `InvalidModelFile`."""
    try:
        keys = tomllib.loads(path.read_text(encoding=_ENCODING))
    except (OSError, ValueError) as error:
        reason = "is not readable" if isinstance(error, OSError) else f"is not valid TOML: {error}"
        msg = f"Model file {path.name!r} {reason}."
        raise InvalidModelFile(msg, file=path.name, key=None) from error
    try:
        file = _ModelFile.model_validate(keys)
    except ValidationError as error:
        raise _explain(path, error) from error
    return _specification(path, file)


def _require_inside(path: Path) -> None:
    """Raise `InvalidModelFile` for a link that leads out of the folder: who may write there decides what is loaded."""
    try:
        inside(path.parent, path.name)
    except ValueError as error:
        msg = f"Model file {path.name!r} {error}."
        raise InvalidModelFile(msg, file=path.name, key=None) from error


def inside(folder: Path, name: str) -> Path:
    """Return the path of the file `name` in `folder`; raises `ValueError` if it lies elsewhere."""
    parts = PurePosixPath(name)
    if not name or parts.is_absolute() or ".." in parts.parts or "\x00" in name:
        msg = "must name a file inside the models folder: relative, without '..'"
        raise ValueError(msg)
    path = folder / parts
    if not path.resolve().is_relative_to(folder.resolve()):
        msg = "must be a file inside the models folder, not a link that leads out of it"
        raise ValueError(msg)
    return path


def _specification(path: Path, file: _ModelFile) -> ModelSpec:
    name = file.name or path.stem
    if not is_name(name):
        _refuse(path, "name", f"the file's name gives no valid model name; set `name` ({NAME_PATTERN})")
    given = file.model_dump(include={"arch", "arch_options", "sha256", "head", "output"})
    given |= file.model_dump(include={"layer", "memory_format", "dtype", "licence", "description"})
    return ModelSpec(
        name=name,
        weights=_weights(path, file),
        labels=_labels(path, file.labels),
        preprocess=file.preprocess,
        **given,
    )


def _weights(path: Path, file: _ModelFile) -> FileWeights | RandomWeights:
    if file.weights == _RANDOM:
        if file.sha256 is not None:
            _refuse(path, "sha256", "random weights have no checksum; remove the key")
        return RandomWeights()
    if not file.weights.endswith(WEIGHTS_SUFFIXES):
        _refuse(path, "weights", f'must be a file ending in {", ".join(WEIGHTS_SUFFIXES)}, or "{_RANDOM}"')
    try:
        inside(path.parent, file.weights)
    except ValueError as error:
        _refuse(path, "weights", str(error), error)
    return FileWeights(name=file.weights, folder=path.parent)


def _labels(path: Path, labels: tuple[str, ...] | str | None) -> tuple[str, ...] | None:
    if labels is None:
        return None
    if not labels:
        _refuse(path, "labels", "there is none; leave the key out for class 0, class 1 and so on")
    return _labels_of_file(path, labels) if isinstance(labels, str) else labels


def _labels_of_file(path: Path, file: str) -> tuple[str, ...]:
    text = _text(path, file).rstrip("\n")
    names = tuple(line.strip() for line in text.split("\n"))  # there are more characters that `splitlines` splits at
    if not text.strip():
        _refuse(path, "labels", f"the file {file!r} is empty; one label per line")
    for number, name in enumerate(names, 1):
        if not name:
            _refuse(path, "labels", f"line {number} of {file!r} is empty; one label per line")
        if len(name) > LONGEST_LABEL:
            _refuse(path, "labels", f"line {number} of {file!r} has more than {LONGEST_LABEL} characters")
    return names


def _text(path: Path, file: str) -> str:
    try:
        return inside(path.parent, file).read_text(encoding=_ENCODING)
    except OSError as error:
        _refuse(path, "labels", f"the file {file!r} cannot be read", error)
    except UnicodeDecodeError as error:
        _refuse(path, "labels", f"the file {file!r} is not UTF-8 text", error)
    except ValueError as error:
        _refuse(path, "labels", str(error), error)


def _explain(path: Path, error: ValidationError) -> InvalidModelFile:
    """Turn pydantic's first complaint into a sentence that names the key and the choices."""
    first = error.errors(include_url=False)[0]
    table = Preprocess if first["loc"][0] == "preprocess" and len(first["loc"]) > 1 else _ModelFile
    depth = 2 if table is Preprocess else 1
    key = ".".join(map(str, first["loc"][:depth]))
    choices = list(table.model_fields)
    if first["type"] == "extra_forbidden":
        close = close_matches(str(first["loc"][-1]), choices)
        msg = f"Model file {path.name!r} has the unknown key {key!r}.{did_you_mean(close)}"
        return InvalidModelFile(msg, file=path.name, key=key, close_matches=close, choices=choices)
    if first["type"] == "missing":
        msg = f"Model file {path.name!r} lacks the key {key!r}."
        return InvalidModelFile(msg, file=path.name, key=key)
    msg = f"Model file {path.name!r}, key {key!r}: {first['msg'].removeprefix('Value error, ')}."
    return InvalidModelFile(msg, file=path.name, key=key)


def _refuse(path: Path, key: str, reason: str, cause: Exception | None = None) -> NoReturn:
    msg = f"Model file {path.name!r}, key {key!r}: {reason}."
    raise InvalidModelFile(msg, file=path.name, key=key) from cause
