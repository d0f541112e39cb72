"""Attribution: tensors in, maps out. No HTTP, no files, no model names.

subject = Subject(module, scores=module)
(cat,) = explain(subject, inputs, [[Target()]], method="gradcam", layers=["layer4"])
cat.attributions[0].raw     # (h, w) float32, signed
"""

from explainers import cam as _cam  # noqa: F401 - registers itself
from explainers import eigencam as _eigencam  # noqa: F401 - registers itself
from explainers import finercam as _finercam  # noqa: F401 - registers itself
from explainers import fullgrad as _fullgrad  # noqa: F401 - registers itself
from explainers import guided as _guided  # noqa: F401 - registers itself
from explainers import integrated_gradients as _integrated_gradients  # noqa: F401 - registers itself
from explainers import legrad as _legrad  # noqa: F401 - registers itself
from explainers import occlusion as _occlusion  # noqa: F401 - registers itself
from explainers import rise as _rise  # noqa: F401 - registers itself
from explainers import rollout as _rollout  # noqa: F401 - registers itself
from explainers import saliency as _saliency  # noqa: F401 - registers itself
from explainers import scorecam as _scorecam  # noqa: F401 - registers itself
from explainers import smoothgrad as _smoothgrad  # noqa: F401 - registers itself
from explainers import superpixels as _superpixels  # noqa: F401 - registers itself
from explainers.errors import ExplainError
from explainers.explain import Attribution, Explanation, check_parameters, explain, predict
from explainers.registry import Method, get, names
from explainers.subject import Subject
from explainers.targets import Rank, Score, Target
from explainers.work import Work

__all__ = [
    "Attribution",
    "ExplainError",
    "Explanation",
    "Method",
    "Rank",
    "Score",
    "Subject",
    "Target",
    "Work",
    "check_parameters",
    "explain",
    "get",
    "names",
    "predict",
]
