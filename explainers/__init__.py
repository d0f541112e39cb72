"""Attribution: tensors in, maps out. No HTTP, no files, no model names.

subject = Subject(module, scores=module)
(cat,) = explain(subject, inputs, [[Target()]], method="gradcam", layers=["layer4"])
cat.attributions[0].raw     # (h, w) float32, signed
"""

from explainers import gradcam as _gradcam  # noqa: F401 - registers itself
from explainers import saliency as _saliency  # noqa: F401 - registers itself
from explainers.errors import ExplainError
from explainers.explain import Attribution, Explanation, check_parameters, explain, predict
from explainers.registry import Method, get, names
from explainers.subject import Subject
from explainers.targets import Rank, Score, Target

__all__ = [
    "Attribution",
    "ExplainError",
    "Explanation",
    "Method",
    "Rank",
    "Score",
    "Subject",
    "Target",
    "check_parameters",
    "explain",
    "get",
    "names",
    "predict",
]
