"""Which networks exist, how they get into memory, how a picture becomes their input.

    spec = Registry(models_dir).get("efficientnet_lite0")
    model = load(spec)
    array, geometry = model.preprocess(pixels)                    # (C, h, w) float32, and the way back
    scores = model.scores(torch.from_numpy(array)[None])          # (1, K), differentiable

Importing this package imports no torch: what needs it is loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from models.catalog import DEFAULT_MODEL
from models.errors import ModelError
from models.preprocess import Box, Geometry, Preprocess
from models.registry import Registry
from models.spec import ModelSpec

if TYPE_CHECKING:
    from models.layers import LayerInfo, LayerTracer, Layout
    from models.loading import LoadedModel, fetch, load, weights_present

__all__ = [
    "DEFAULT_MODEL",
    "Box",
    "Geometry",
    "LayerInfo",
    "LayerTracer",
    "Layout",
    "LoadedModel",
    "ModelError",
    "ModelSpec",
    "Preprocess",
    "Registry",
    "fetch",
    "load",
    "weights_present",
]

_NEEDS_TORCH = {
    "LayerInfo": "models.layers",
    "LayerTracer": "models.layers",
    "Layout": "models.layers",
    "LoadedModel": "models.loading",
    "fetch": "models.loading",
    "load": "models.loading",
    "weights_present": "models.loading",
}


def __getattr__(name: str) -> object:
    if name not in _NEEDS_TORCH:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_NEEDS_TORCH[name]), name)
