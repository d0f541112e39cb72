"""Why a model decided so, as a client has it."""

import base64
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.schemas.answers import ExplainAnswer, ExplanationAnswer, Prediction

FORMATS = {
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".png": "png",
    ".webp": "webp",
    ".npy": "npy",
    ".npz": "npz",
}
"""What a file's ending asks for."""

AskAgain = Callable[[int, str, frozenset[str]], bytes]
"""Returns the answer for one class in another format, asked without some of the options."""


class Explanation:
    """One target of an answer. `targets` has all of them, this one included, in the order asked for."""

    def __init__(self, facts: ExplainAnswer, place: int, ask_again: AskAgain) -> None:
        self.facts = facts
        """The whole answer."""
        self.place = place
        """Which of `facts.explanations` this is."""
        self._ask_again = ask_again

    def __repr__(self) -> str:
        return f"<Explanation of {self.label!r}, probability {self.probability:.3f}>"

    @property
    def of_target(self) -> ExplanationAnswer:
        """What the answer says of this target."""
        return self.facts.explanations[self.place]

    @property
    def targets(self) -> "list[Explanation]":
        """One explanation for each target."""
        return [Explanation(self.facts, place, self._ask_again) for place in range(len(self.facts.explanations))]

    @property
    def label(self) -> str:
        """What was explained."""
        return self.of_target.target.label

    @property
    def probability(self) -> float:
        """How probable the model finds it."""
        return self.of_target.target.probability

    @property
    def score(self) -> float:
        """Its score before softmax."""
        return self.of_target.target.score

    @property
    def predictions(self) -> list[Prediction]:
        """The most probable classes, best first."""
        return self.facts.predictions

    @property
    def no_positive_evidence(self) -> bool:
        """Whether nothing in the picture speaks for the target: then the overlay is empty."""
        return self.of_target.map.no_positive_evidence

    @property
    def picture(self) -> bytes:
        """The picture with the heat over it, or what else `view` asked for."""
        return base64.b64decode(self.of_target.picture.base64)

    @cached_property
    def map(self) -> NDArray[np.float32]:
        """The raw signed map laid over the picture, `(H, W)`, longest side at most 256 px.

        0 where the model did not look. `save` with `.npy` writes it at the size of the picture.
        """
        values = self.of_target.values
        if values is None:
            raise ValueError("there is no map in the answer: it was asked for with values=False")
        flat = np.frombuffer(base64.b64decode(values.base64), "<f4").astype(np.float32)
        return flat.reshape(values.height, values.width)

    def save(self, path: str | Path) -> Path:
        """Write what the file's ending asks for, and return the path.

        `.jpg`, `.png`, `.webp`: the picture; `.npy`: the raw map at its size; `.npz`: that and more; `.json`: the
        answer. What the answer does not hold is asked of the server, which explains this target again, and measures
        it again only where the file shows that.
        """
        path = Path(path)
        path.write_bytes(self._as(path.suffix.lower()))
        return path

    def _as(self, suffix: str) -> bytes:
        if suffix == ".json":
            return self.facts.model_dump_json(indent=2).encode()
        if suffix not in FORMATS:
            raise ValueError(f"a file that ends in {suffix!r} is none of {', '.join([*FORMATS, '.json'])}")
        if self.of_target.picture.media_type == f"image/{FORMATS[suffix]}":
            return self.picture
        format_ = FORMATS[suffix]
        return self._ask_again(self.of_target.target.index, format_, self._needless(format_))

    def _needless(self, format_: str) -> frozenset[str]:
        """Return the options that make no difference to a file; to measure takes many runs of the model."""
        if format_ == "npz":  # it holds the figures
            return frozenset({"values"})
        faithfulness = self.of_target.faithfulness
        if format_ != "npy" and faithfulness and faithfulness.verdict == "no_better_than_random":
            return frozenset({"values", "stability"})  # the picture says so
        return frozenset({"values", "stability", "faithfulness"})
