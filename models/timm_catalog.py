"""timm's own models, `timm/NAME` with or without a tag: which there are, and what each of them is.

timm's own registry is the list; it is asked on first use, for it takes torch to ask.
"""

from functools import cache, lru_cache
from typing import Any, Literal

from models import catalog
from models.errors import UnknownModel, close_matches, did_you_mean
from models.preprocess import Preprocess
from models.spec import TIMM_PREFIX, ModelSpec, TimmWeights

_FITS: dict[str, Literal["crop", "squash", "pad"]] = {"center": "crop", "squash": "squash", "border": "pad"}
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # in timm's own order


@cache
def names() -> tuple[str, ...]:
    """Return the names of all models with weights, each with its tag; some 1800."""
    import timm

    return tuple(TIMM_PREFIX + name for name in timm.list_pretrained())


def cached_names() -> list[str]:
    """Return the names of those whose weights are on this machine.

    Two folders of caches are listed; only if they hold anything is timm imported, and only for what they hold is a
    file looked for.
    """
    from models.timm_weights import cached_sources, located

    sources = cached_sources()
    if not sources:
        return []
    return [name for name, weights in _published() if weights.source in sources and located(weights)]


def is_known(name: str) -> bool:
    """Whether `timm/NAME`, with or without a tag, names a model with weights."""
    return _config(name) is not None


@lru_cache(maxsize=256)
def spec(name: str) -> ModelSpec:
    """Return the specification of `timm/NAME`; without a tag it is timm's default one.

    Raises `UnknownModel` with close matches.
    """
    config = _config(name)
    if config is None:
        close = close_matches(name[:100], names())
        msg = f"There is no model {name[:100]!r}.{did_you_mean(close)}"
        raise UnknownModel(msg, close_matches=close)
    full_name = f"{config.architecture}.{config.tag}" if config.tag else config.architecture
    labels, classes = _labels(config.num_classes)
    return ModelSpec(
        name=name,
        arch=f"timm:{full_name}",
        weights=_weights(config),
        labels=labels,
        preprocess=preprocess(config.to_dict()),
        licence=config.license,
        description=config.description or f"timm's {full_name}: {classes}.",
    )


def preprocess(config: dict[str, Any]) -> Preprocess:
    """Return the preprocessing of a pretrained configuration: timm's evaluation transform."""
    from timm.data.config import resolve_data_config

    data = resolve_data_config(pretrained_cfg=config)  # type: ignore[no-untyped-call]
    channels, height, width = data["input_size"]
    return Preprocess(
        input_size=(height, width),
        resize=(int(height / data["crop_pct"]), int(width / data["crop_pct"])),
        fit=_FITS[data["crop_mode"]],
        interpolation=data["interpolation"],
        channels=channels,
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
    )


def _config(name: str) -> Any:
    """Return timm's `PretrainedCfg` of a name, None if there is no such model or no weights for it."""
    import timm

    try:
        config = timm.get_pretrained_cfg(name.removeprefix(TIMM_PREFIX))
    except RuntimeError:  # the architecture is known, the tag is not
        return None
    return config if config is not None and config.has_weights else None


@cache
def _published() -> tuple[tuple[str, TimmWeights], ...]:
    """Return all names with their weights."""
    return tuple((name, _weights(_config(name))) for name in names())


def _weights(config: Any) -> TimmWeights:
    """Return where timm would load a configuration's weights from: the hub if it can, else the address."""
    if config.hf_hub_id is None:
        return TimmWeights(url=config.url)
    files = (config.hf_hub_filename,) if config.hf_hub_filename else _HUB_FILES
    return TimmWeights(repository=config.hf_hub_id, files=files)


@cache
def _labels(count: int) -> tuple[tuple[str, ...] | None, str]:
    """Return the names of `count` classes if timm knows a label set of that size, and what the classes are.

    ImageNet-1k's are spelt as torchvision spells them.
    """
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": count})
    if count == 0:
        return None, "no classifier; its outputs are features"
    if subset is None:
        return None, f"{count} outputs without names"
    if subset == "imagenet-1k":
        return catalog.imagenet_labels(), f"the {count} classes of {subset}"
    return tuple(ImageNetInfo(subset).label_descriptions()), f"the {count} classes of {subset}"
