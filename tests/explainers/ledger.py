"""Remembers every hook that is registered on a module, and says which are still there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

_REGISTRATIONS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)


class Ledger:
    """Holds the modules, too: a hook left on a module that dies with its test is still a hook left."""

    def __init__(self) -> None:
        self._entries: list[tuple[nn.Module, str, RemovableHandle]] = []

    @contextmanager
    def open(self) -> Iterator["Ledger"]:
        """Inside the `with`, all registrations on any module are written down."""
        originals = {name: getattr(nn.Module, name) for name in _REGISTRATIONS}
        try:
            for name, original in originals.items():
                setattr(nn.Module, name, self._recording(name, original))
            yield self
        finally:
            for name, original in originals.items():
                setattr(nn.Module, name, original)

    @property
    def registered(self) -> int:
        """How many hooks were registered so far."""
        return len(self._entries)

    def left(self) -> list[str]:
        """Return one line for each hook that was registered and not removed."""
        return [
            f"{type(module).__name__}: {name}"
            for module, name, handle in self._entries
            if handle.id in (handle.hooks_dict_ref() or {})
        ]

    def _recording(self, name: str, original: Callable[..., RemovableHandle]) -> Callable[..., RemovableHandle]:
        @wraps(original)
        def register(module: nn.Module, *args: Any, **kwargs: Any) -> RemovableHandle:
            handle = original(module, *args, **kwargs)
            self._entries.append((module, name, handle))
            return handle

        return register
