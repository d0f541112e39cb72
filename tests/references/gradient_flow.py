"""Gradient flow written down literally: torch's own full-backward hooks, and one gradient at a time.

Only for networks without in-place operations whose parameters are to be differentiated already.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def flow(net: nn.Module, x: Tensor, objective: Callable[[Tensor], Tensor]) -> list[dict[str, Any]]:
    """Return per call of a module without parts, in the order of execution: name, gradients at output and input."""
    calls: list[dict[str, Any]] = []
    of_module: dict[nn.Module, list[dict[str, Any]]] = {}
    handles = []

    def ran(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _args: Any, output: Any) -> None:
            calls.append({"name": name, "output": None, "input": None, "answer": output.detach().clone()})
            of_module.setdefault(module, []).append(calls[-1])

        return hook

    def back(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        call = of_module[module].pop()  # the last call comes back first
        call["output"] = grad_output[0].clone()
        call["input"] = None if grad_input[0] is None else grad_input[0].clone()

    for name, module in net.named_modules():
        if not list(module.children()):
            handles += [module.register_forward_hook(ran(name)), module.register_full_backward_hook(back)]
    leaf = x.clone().requires_grad_()
    try:
        torch.autograd.grad(objective(net(leaf)), [leaf, *net.parameters()], allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def parameter_gradients(net: nn.Module, x: Tensor, objective: Callable[[Tensor], Tensor]) -> dict[str, Tensor | None]:
    """Return the gradient of each parameter, by `.grad` of a network that has none yet."""
    objective(net(x)).backward()
    return {name: parameter.grad for name, parameter in net.named_parameters()}
