"""A worker like all others, except that its pictures are explained by a test double.

    python benchmarks/_stub.py        # reads HEATLENS_*, as `heatlens worker` does

What is left is what jobs cost by themselves: engine, database, store.
"""

from typing import Any

from app.config import Settings, load_settings
from app.engine import Watch
from app.jobs.explaining import Explained
from app.jobs.options import Asked
from app.jobs.worker import run_worker

_SEEN = {"left": 0.0, "top": 0.0, "right": 224.0, "bottom": 224.0}
_RESULT: dict[str, Any] = {
    "model": {"name": "stub", "weights_sha256": None, "weights": "random"},
    "method": {"name": "gradcam", "parameters": {}, "class_specific": True},
    "layers": ["bn2"],
    "image": {"width": 224, "height": 224, "seen": _SEEN},
    "predictions": [{"index": place, "label": f"label {place}", "probability": 0.2} for place in range(5)],
    "artifacts": {},
}
_MAP: dict[str, Any] = {
    "min": -0.5,
    "max": 1.5,
    "mean": 0.1,
    "width": 7,
    "height": 7,
    "no_positive_evidence": False,
    "normalisation": "positive/p100",
    "completeness_gap": None,
}


class AtOnce:
    """Explains any bytes in no time: a result of the usual size, and an artifact of a few bytes."""

    def __call__(self, picture: bytes, asked: Asked, number: int, watch: Watch) -> Explained:
        """Return what a real picture's result looks like."""
        name = f"{number:06d}.overlay.jpg"
        target = {"index": number % 1000, "label": f"label {number % 1000}", "score": 7.5, "probability": 0.2}
        explanation = {"target": target, "versus": None, "map": _MAP, "artifacts": {"overlay": name}}
        return Explained(_RESULT | {"explanations": [explanation]}, {name: b"overlay"})


def at_once(settings: Settings) -> AtOnce:
    """Make the double for a worker."""
    return AtOnce()


if __name__ == "__main__":
    run_worker(load_settings(), at_once)
