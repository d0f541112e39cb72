"""How the gradient fares on its way back through the layers."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from explainers.diagnostics.answer import Finding, GradientFlow, Kind, LayerFlow, ParameterGradient, Verdict
from explainers.diagnostics.evidence import Evidence
from explainers.diagnostics.measure import Size, is_finite, size_of
from explainers.diagnostics.recording import Call, Recorder
from explainers.diagnostics.verdict import judge
from explainers.errors import ExplainError, NotConnected, UnhookableModel
from explainers.subject import Subject
from explainers.targets import Target, resolve

__all__ = [
    "Finding",
    "GradientFlow",
    "Kind",
    "LayerFlow",
    "Objective",
    "ParameterGradient",
    "Verdict",
    "gradient_flow",
    "score_objective",
]

Objective = Callable[[Tensor], Tensor]
"""From the scores `(N, K)` float32 to the scalar whose gradient is looked at."""


def gradient_flow(subject: Subject, inputs: Tensor, objective: Objective) -> GradientFlow:
    """Run the model forward and backward once and return what happened at every layer, in the order of execution.

    `inputs` is `(N, C, H, W)` on the model's device; the pictures are looked at together. Parameters are made to
    require gradients for the time of the call; `.grad` is never touched. Hooks of the model's own see and change the
    gradients as always, and what they make of them is what is told.

    NaN and infinity are not refused but named in the verdict. Raises `NotConnected` where the objective has no
    gradient at all, `UnhookableModel` where no module is seen to run, or checkpoints of the reentrant kind forbid it.
    """
    parameters = {name: p for name, p in subject.module.named_parameters() if p.is_floating_point() or p.is_complex()}
    with (
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        _differentiable(list(parameters.values())),
        Recorder() as recorder,
    ):
        leaf = inputs.detach().clone().requires_grad_()
        with recorder.forward(subject.module):
            scores = subject.scores(leaf.clone())
        value = objective(scores)
        found = _gradients(value, [leaf, *parameters.values()])
        gradients = dict(zip(parameters, found[1:], strict=True))
        held, loose = _parameters(subject.module, recorder.calls, parameters, gradients)
    if not recorder.calls:
        msg = "No layer was seen to run: a compiled or traced model runs without Python hooks; load the original one."
        raise UnhookableModel(msg)
    evidence = Evidence(recorder.calls, held, loose, is_finite(scores), is_finite(value))
    return GradientFlow(float(value.detach()), tuple(_layers(evidence)), judge(evidence), loose)


def score_objective(targets: Sequence[Target]) -> Objective:
    """Return the sum of the pictures' explained scores, with one target for each picture.

    Scores may be NaN: the verdict says why. The objective raises `TargetOutOfRange`, `VersusEqualsTarget`, and
    `ExplainError` for another number of pictures.
    """

    def objective(scores: Tensor) -> Tensor:
        if len(targets) != len(scores):
            msg = f"{len(scores)} pictures came with {len(targets)} targets; each picture needs its own."
            raise ExplainError(msg)
        total = scores.new_zeros(())
        for target, row, plain in zip(targets, scores, scores.detach().float().cpu(), strict=True):
            chosen = resolve(target, plain)
            total = total + row[chosen.index]
            if chosen.versus is not None:
                total = total - row[chosen.versus]
        return total

    return objective


@contextmanager
def _differentiable(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let all parameters require gradients, and put back exactly what was."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _gradients(value: Tensor, sources: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the gradient of the objective with respect to each source, None where it does not depend on it."""
    msg = "The objective has no gradient: the model cuts it off (no_grad, detach) before the scores."
    if not value.requires_grad:
        raise NotConnected(msg)
    try:
        found = torch.autograd.grad(value, sources, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        msg = (
            "The model recomputes parts of itself by torch.utils.checkpoint with use_reentrant=True, which hides their "
            "gradients; build it with use_reentrant=False, or without checkpoints."
        )
        raise UnhookableModel(msg) from error
    if all(gradient is None for gradient in found):
        raise NotConnected(msg)
    return found


def _parameters(
    module: nn.Module,
    calls: Sequence[Call],
    parameters: Mapping[str, nn.Parameter],
    gradients: Mapping[str, Tensor | None],
) -> tuple[dict[str, tuple[ParameterGradient, ...]], tuple[ParameterGradient, ...]]:
    """Return the parameters by the layer that holds them, and those that no layer holds.

    A layer holds its own and those of modules inside it that never ran themselves: `nn.MultiheadAttention` uses the
    weights of its projection without calling it. A parameter that two layers share is told of both.
    """
    by_identity = {id(p): _parameter(p, gradients[name]) for name, p in parameters.items()}
    ran = {call.name: call.module for call in calls}
    held: dict[str, tuple[ParameterGradient, ...]] = {}
    seen: set[int] = set()
    for layer, owner in ran.items():
        own = [(name, p) for name, p in owner.named_parameters() if id(p) in by_identity]
        held[layer] = tuple(by_identity[id(p)](name) for name, p in own)
        seen.update(id(p) for _, p in own)
    return held, tuple(by_identity[id(p)](name) for name, p in parameters.items() if id(p) not in seen)


def _parameter(parameter: nn.Parameter, gradient: Tensor | None) -> Callable[[str], ParameterGradient]:
    """Measure a parameter; what is returned gives it the name that it has in a layer."""
    own = size_of(parameter)
    size = None if gradient is None else size_of(gradient, count_zeros=True)

    def named(name: str) -> ParameterGradient:
        return ParameterGradient(
            name=name,
            shape=tuple(parameter.shape),
            norm=own.norm,
            gradient_norm=None if size is None else size.norm,
            ratio=None if size is None or not own.norm else size.norm / own.norm,
            zero_fraction=None if size is None else size.zero_fraction,
            nan=0 if size is None else size.nan,
            inf=0 if size is None else size.inf,
        )

    return named


def _layers(evidence: Evidence) -> Iterator[LayerFlow]:
    totals = Counter(call.module for call in evidence.calls)
    for call, decay in zip(evidence.calls, _decays(evidence.calls), strict=True):
        arrived, passed, output = call.gradient_output, call.gradient_input, call.output
        sizes = [size for size in (arrived, passed) if size is not None]
        yield LayerFlow(
            name=call.name,
            type=type(call.module).__name__,
            call=call.number,
            calls=totals[call.module],
            grad_output_norm=_norm(arrived),
            grad_input_norm=_norm(passed),
            parameters=tuple(evidence.parameters[call.name]) if call.number == totals[call.module] else (),
            zero_fraction=None if arrived is None else arrived.zero_fraction,
            nan=sum(size.nan for size in sizes),
            inf=sum(size.inf for size in sizes),
            decay=decay,
            output_norm=_norm(output),
            output_nan=0 if output is None else output.nan,
            output_inf=0 if output is None else output.inf,
        )


def _decays(calls: Sequence[Call]) -> list[float | None]:
    """Return, for each call, its gradient's norm divided by the next one's that has a gradient."""
    decays: list[float | None] = []
    behind: float | None = None
    for call in reversed(calls):
        norm = _norm(call.gradient_output)
        decays.append(norm / behind if norm is not None and behind else None)
        behind = behind if norm is None else norm
    return decays[::-1]


def _norm(size: Size | None) -> float | None:
    return None if size is None else size.norm
