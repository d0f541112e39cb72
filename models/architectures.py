"""Networks by name: torchvision's classifiers, timm's models, the operator's own factories."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from torch import nn

from models import catalog, timm_catalog
from models.errors import UnknownArchitecture, UnsupportedModule, close_matches, did_you_mean
from models.preprocess import Preprocess
from models.spec import ModelSpec

IMAGENET = Preprocess(input_size=(224, 224), resize=(256, 256), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_LOADS_WEIGHTS = frozenset({"weights", "weights_backbone", "pretrained", "checkpoint_path", "pretrained_cfg"})
# Without it torchvision warns that the default will change; the slow initialisation is of no use here.
_OPTIONS = {"googlenet": {"init_weights": False}, "inception_v3": {"init_weights": False}}


def build(spec: ModelSpec) -> nn.Module:
    """Return the network that `spec.arch` names, with its own initial weights and no wrapper around any part.

    Raises `UnknownArchitecture`, `UnsupportedModule`.
    """
    source, _, name = spec.arch.partition(":")
    _refuse_weight_options(spec.arch_options)
    factory = _FACTORIES[source](name)
    try:
        module = factory(**spec.arch_options)
    except (Exception, SystemExit) as error:  # the factory is foreign code
        msg = f"The factory of {spec.arch!r} failed with {type(error).__name__}; check `[arch_options]`."
        raise UnknownArchitecture(msg, arch=spec.arch) from error
    if not isinstance(module, nn.Module):
        msg = f"The factory of {spec.arch!r} returned {type(module).__name__}, not a torch.nn.Module."
        raise UnknownArchitecture(msg, arch=spec.arch)
    return plain(module)


def default_preprocess(spec: ModelSpec, module: nn.Module) -> Preprocess:
    """Return the preprocessing of an architecture whose specification gives none."""
    source, _, name = spec.arch.partition(":")
    if source == "torchvision":
        return catalog.preset(catalog.default_weights(name))
    if source == "timm":
        return timm_catalog.preprocess(getattr(module, "pretrained_cfg", {}))
    return IMAGENET


def plain(module: nn.Module) -> nn.Module:
    """Return `module` without the wrappers of DataParallel and torch.compile, around it or inside it.

    Raises `UnsupportedModule`, naming the part, where hooks or gradients cannot work: TorchScript, quantised
    parts, parameters without a shape yet.
    """
    module = _unwrapped(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if (inner := _unwrapped(child)) is not child:
                setattr(parent, name, inner)
    for name, part in module.named_modules():
        if reason := _unsupported(part):
            msg = (
                f"Part {name or '(root)'!r} of the network is {reason}; hooks and gradients do not work there. "
                f"Load the plain float network."
            )
            raise UnsupportedModule(msg, part=name, type=type(part).__name__)
        if part._compiled_call_impl is not None:  # noqa: SLF001
            part._compiled_call_impl = None  # noqa: SLF001 - undoes nn.Module.compile(): no public inverse
    return module


def _refuse_weight_options(options: Mapping[str, Any]) -> None:
    if refused := sorted(_LOADS_WEIGHTS & options.keys()):
        msg = f"`[arch_options]` may not contain {', '.join(refused)}; weights come from the key `weights` only."
        raise UnknownArchitecture(msg, keys=refused)


def _torchvision_factory(name: str) -> Callable[..., Any]:
    catalog.default_weights(name)  # refuses unknown names
    from torchvision import models

    return lambda **options: models.get_model(name, weights=None, **_OPTIONS.get(name, {}) | options)


def _timm_factory(name: str) -> Callable[..., Any]:
    import timm

    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        close = close_matches(architecture, timm.list_models())
        msg = f"timm has no model {name!r}.{did_you_mean(close)}"
        raise UnknownArchitecture(msg, close_matches=close)
    return lambda **options: timm.create_model(name, pretrained=False, **options)


def _python_factory(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    try:
        factory = getattr(import_module(module_name), attribute, None)
    except (Exception, SystemExit) as error:  # importing runs the operator's code
        absent = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        reason = f"there is no module {absent!r}" if absent else type(error).__name__
        msg = f"Python module {module_name!r} cannot be imported: {reason}."
        raise UnknownArchitecture(msg, module=module_name) from error
    if not callable(factory):
        msg = f"Python module {module_name!r} has no function or class {attribute!r}."
        raise UnknownArchitecture(msg, module=module_name)
    return factory  # type: ignore[no-any-return]


_FACTORIES = {"torchvision": _torchvision_factory, "timm": _timm_factory, "python": _python_factory}


def _unwrapped(module: nn.Module) -> nn.Module:
    while (inner := next(_inside(module), None)) is not None:
        module = inner
    return module


def _inside(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the network inside a wrapper."""
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        yield module.module
    elif type(module).__name__ == "OptimizedModule" and isinstance(module._orig_mod, nn.Module):  # noqa: SLF001
        yield module._orig_mod  # noqa: SLF001 - torch.compile's only way back to the network


def _unsupported(part: nn.Module) -> str | None:
    """Return what `part` is if it cannot be explained."""
    kind = type(part)
    if "ScriptModule" in {base.__name__ for base in kind.__mro__}:
        return f"TorchScript ({kind.__name__})"
    tensors = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
    is_quantised_class = kind.__module__.startswith("torch.") and ".quantized" in kind.__module__
    if any(tensor.is_quantized for tensor in tensors) or (is_quantised_class and kind.__name__ != "FloatFunctional"):
        return f"quantised ({kind.__name__})"
    if any(nn.parameter.is_lazy(tensor) for tensor in tensors):
        return f"not initialised ({kind.__name__})"
    return None
