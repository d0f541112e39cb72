"""Runs a model with every in-place operation replaced by its out-of-place twin."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

_TWINS = {Tensor.add_: Tensor.add, Tensor.sub_: Tensor.sub, Tensor.mul_: Tensor.mul, Tensor.div_: Tensor.div}
_WRITERS = {"__setitem__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__", "__ifloordiv__", "__imod__"}


class OutOfPlace(TorchFunctionMode):
    """Inside the `with`, `inplace=True` is ignored and `a += b` is `a = a + b`.

    Right for models that use the results (`a += b` binds its own). Anything else that writes into a tensor fails
    loudly, so that a reference is never silently in place. `rewritten` counts what was changed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rewritten = 0

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if kwargs.get("inplace"):
            kwargs["inplace"] = False
            self.rewritten += 1
        elif func in _TWINS:  # torch reports `+=` as add_
            func = _TWINS[func]
            self.rewritten += 1
        elif name in _WRITERS or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_"):
            msg = f"{name} writes into its tensor and has no out-of-place twin here"
            raise NotImplementedError(msg)
        return func(*args, **kwargs)
