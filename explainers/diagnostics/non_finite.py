"""Where NaN or infinity begins."""

import torch

from explainers.diagnostics.answer import Finding
from explainers.diagnostics.evidence import Evidence, counted, named
from explainers.diagnostics.recording import Call


def find_non_finite(evidence: Evidence) -> list[Finding]:
    """Name the first layer with NaN or infinity in its output, or else, on the way back, in its gradients.

    What is behind it (in the backward pass: before it) shows them too as a rule, so only the first one says anything.
    """
    finding = _in_outputs(evidence) or _behind_the_layers(evidence) or _in_gradients(evidence)
    return [] if finding is None else [finding]


def _in_outputs(evidence: Evidence) -> Finding | None:
    sick = [(call, call.output) for call in evidence.calls if call.output is not None and not call.output.finite]
    if not sick:
        return None
    first, size = sick[0]
    bad = _bad_parameters(first)
    if bad:
        cause = f"its own {' and '.join(bad)} hold such numbers"
    elif first.fed_finite:
        cause = "all that went in is finite"
    else:
        cause = "so does what went in: they come from the picture, or from code between the layers"
    reason = f"The output of {named(first, evidence)} holds {counted(size)}, and {cause}."
    if len(sick) > 1:
        reason += f" So do the outputs of {len(sick) - 1} calls behind it."
    return Finding("non_finite", (first.name,), reason)


def _bad_parameters(call: Call) -> list[str]:
    tensors = [*call.module.named_parameters(), *call.module.named_buffers()]
    return [name for name, tensor in tensors if not bool(torch.isfinite(tensor).all())]


def _behind_the_layers(evidence: Evidence) -> Finding | None:
    if evidence.scores_finite and evidence.objective_finite:
        return None
    what = "The objective is" if evidence.scores_finite else "The scores are"
    last = evidence.calls[-1]
    reason = (
        f"{what} NaN or infinite although the output of every layer is finite: it happens behind "
        f"{named(last, evidence)}, the last layer."
    )
    return Finding("non_finite", (last.name,), reason)


def _in_gradients(evidence: Evidence) -> Finding | None:
    for call in reversed(evidence.calls):
        arrived, passed = call.gradient_output, call.gradient_input
        who = named(call, evidence)
        if arrived is not None and not arrived.finite:
            reason = f"The gradient that arrives at the output of {who} holds {counted(arrived)}: it was finite behind"
            reason += " the layers that ran later, so it breaks in the code between them and this one."
        elif passed is not None and not passed.finite:
            reason = f"The gradient that {who} passes back holds {counted(passed)}, and the one that arrives is finite:"
            reason += " the slope of this layer is not finite where its input lies, or the number format overflows."
        elif bad := [p.name for p in evidence.parameters[call.name] if p.nan or p.inf]:
            reason = f"The gradient of {who}'s {' and '.join(bad)} is not finite although the layer's others are."
        else:
            continue
        return Finding("non_finite", (call.name,), reason + " All outputs of the forward pass are finite.")
    return None
