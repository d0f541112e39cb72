"""The JSON answers."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base of the answers: closed, and never NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings", allow_inf_nan=False)


class ModelRef(Answer):
    """Which model answered."""

    name: str
    weights_sha256: str | None = Field(description="Hash of the weights file; null where the weights are random.")
    weights: Literal["loaded", "random"] = Field(description="random: made up for trying an architecture, not trained.")


class MethodRef(Answer):
    """Which method answered, with all its parameters."""

    name: str
    parameters: dict[str, Any]
    class_specific: bool = Field(description="false: the map is the same for every target.")
    fails_randomisation: bool = Field(
        False,
        description="Whether its maps stay much the same when the model's weights are made up, as is known of the "
        "method, or was measured with this model: then they show the picture, not what was learnt.",
    )


class Seen(Answer):
    """The part of the picture that the model looked at, in the picture's pixels (edges, may be fractional)."""

    left: float
    top: float
    right: float
    bottom: float


class ImageInfo(Answer):
    """The picture as displayed: after EXIF orientation, before any scaling."""

    width: int
    height: int
    seen: Seen


class Prediction(Answer):
    """A class and its probability."""

    index: int
    label: str
    probability: float


class ClassScore(Answer):
    """A class and its score before softmax."""

    index: int
    label: str
    score: float
    probability: float


class MapInfo(Answer):
    """The raw signed map in numbers, and how it became the display map."""

    min: float
    max: float
    mean: float
    width: int = Field(description="Columns of the raw map, before it was laid over the picture.")
    height: int = Field(description="Rows of the raw map, before it was laid over the picture.")
    no_positive_evidence: bool = Field(description="Nothing in the map speaks for the target; the overlay is empty.")
    normalisation: str = Field(description="How the raw map became the display map in [0, 1].")
    completeness_gap: float | None = Field(
        description="Where the map's values should add up to a difference of scores: by how much they do not, in "
        "logits. null: the method promises no sum."
    )


class PictureAnswer(Answer):
    """A drawn picture."""

    media_type: str
    width: int
    height: int
    base64: str


Trusted = Literal["better_than_controls", "better_than_random", "inconclusive", "no_better_than_random"]


class Areas(Answer):
    """One figure for the map and for each control; random: the map's own shape at other places, in the mean."""

    map: float
    random: float
    centre: float
    edge: float


class Curves(Answer):
    """The probability at each of the fractions, for the map and for each control."""

    map: list[float]
    random: list[float]
    centre: list[float]
    edge: list[float]


class FaithfulnessInfo(Answer):
    """How the probability of what was explained follows the map, beside controls on the same picture."""

    verdict: Trusted = Field(
        description="better_than_controls: the map finds what counts, better than its own shape laid elsewhere, the "
        "centre and the edge; better_than_random: but not clearly better than the centre or the edge; inconclusive: "
        "better than elsewhere, by no more than chance may do; no_better_than_random: do not read it."
    )
    words: str = Field(description="The same for people.")
    insertion: Areas = Field(
        description="Area under the probability when more and more of the picture is shown, hottest first; 0 to 1."
    )
    deletion: Areas = Field(
        description="Area under the probability when more and more of it is taken away, hottest first; 0 to 1, low is "
        "good."
    )
    margin: float = Field(description="Insertion minus deletion of the map, minus the same of its shape elsewhere.")
    threshold: float = Field(description="The lead from which on the verdict calls one order better than another.")
    fractions: list[float] = Field(description="The shares of the picture that are shown or taken away.")
    insertion_curves: Curves
    deletion_curves: Curves
    substrates: list[str] = Field(description="What is seen where the picture is not; the figures are their mean.")
    runs: int = Field(description="How many pictures went through the model for it.")


class StabilityInfo(Answer):
    """How much of the map's order of places stays; 1: all of it, 0: nothing, null: a map is the same everywhere."""

    noise: float | None = Field(description="Rank correlation with the maps of slightly noisy copies of the picture.")
    mirror: float | None = Field(description="Rank correlation with the map of the mirrored picture, mirrored back.")
    words: str = Field(description="The same for people.")


class MapFacts(Answer):
    """What is known of one map."""

    target: ClassScore
    versus: ClassScore | None
    map: MapInfo
    faithfulness: FaithfulnessInfo | None = Field(None, description="null: not asked for, so not measured.")
    stability: StabilityInfo | None = Field(None, description="null: not asked for, so not measured.")


class ValuesAnswer(Answer):
    """The raw signed map where it lies on the displayed picture, 0 where the model did not look."""

    width: int = Field(description="Columns: of an answer whose longest side is 256 px, or less.")
    height: int
    scale: float = Field(description="The value that is drawn at full heat; 0: nothing speaks for the target.")
    base64: str = Field(description="float32, little-endian, row by row.")


class ExplanationAnswer(MapFacts):
    """One map."""

    picture: PictureAnswer
    values: ValuesAnswer | None = Field(None, description="null: not asked for.")


class Timings(Answer):
    """Where the time went, in seconds. `decode` includes preprocessing; `queue` includes loading the model.

    All are 0 for an answer that was there already.
    """

    decode: float
    queue: float
    model: float
    render: float


class Facts(Answer):
    """What is known of a picture that was explained."""

    model: ModelRef
    method: MethodRef
    layers: list[str]
    image: ImageInfo
    predictions: list[Prediction]


class ExplainFacts(Facts):
    """What everybody is answered who asks the same."""

    explanations: list[ExplanationAnswer]


class ExplainAnswer(ExplainFacts):
    """Answer of `POST /v1/explain` with `format=json`."""

    request_id: str
    timings_s: Timings


class PredictAnswer(Answer):
    """Answer of `POST /v1/predict`."""

    request_id: str
    model: ModelRef
    image: ImageInfo
    predictions: list[ClassScore]
    timings_s: Timings


class ModelSummary(Answer):
    """A model that the server knows."""

    name: str
    default: bool
    state: Literal["not_loaded", "loading", "ready", "failed", "closed"] = Field(
        description="Where it stands in the worker that answers; each worker loads models for itself."
    )
    device: str | None = Field(description="Where it is loaded; null where it is not.")
    size_bytes: int | None = Field(description="Memory of its parameters and buffers; null where it is not loaded.")
    weights: Literal["present", "missing", "random"] = Field(
        description="missing: the operator has not fetched them; a request for this model is refused."
    )
    description: str
    licence: str | None


class ModelList(Answer):
    """Answer of `GET /v1/models`."""

    models: list[ModelSummary]


class SanityInfo(Answer):
    """What becomes of a method's maps when the model's weights are made up, from the scores downwards."""

    verdict: Literal["passes", "fails", "undecided"]
    words: str
    pictures: int
    measured_at: datetime


class ModelDetail(ModelSummary):
    """Answer of `GET /v1/models/{model}`; what is known only after loading is null before."""

    ready: bool = Field(description="Whether it answers at once; KServe's clients look here.")
    architecture: str
    head: str
    scores: str | None = Field(
        description="What the scores are: logits, or what stands before a final Softmax, or computed from the answer."
    )
    dtype: str = Field(description="What the network computes in.")
    input_size: list[int] | None = Field(description="Height and width of the model's input, in pixels.")
    classes: int | None
    default_layer: str | None
    weights_sha256: str | None
    sanity: dict[str, SanityInfo] = Field(
        description="By method, what `heatlens diagnose randomisation` found; empty before loading."
    )


class LayerRow(Answer):
    """A layer that ran, in order of completion."""

    name: str
    type: str
    shape: list[int] | None = Field(description="Shape of its output for one picture; null if it is not a tensor.")
    calls: int
    spatial: bool = Field(description="Whether it can be a target layer of the CAM family.")


class LayerList(Answer):
    """Answer of `GET /v1/models/{model}/layers`."""

    model: str
    default: str | None
    layers: list[LayerRow]


class Label(Answer):
    """A class of a model."""

    index: int
    label: str


class LabelList(Answer):
    """Answer of `GET /v1/models/{model}/labels`."""

    model: str
    total: int = Field(description="Labels that match, of which the first `limit` are listed.")
    labels: list[Label]


class MethodInfo(Answer):
    """An explanation method."""

    name: str
    family: Literal["cam", "gradient", "perturbation", "attention"]
    summary: str = Field(description="What it is good for.")
    weakness: str
    sanity: str = Field(
        description="Whether the map changes when the model's weights are randomised (Adebayo et al. 2018)."
    )
    fails_randomisation: bool = Field(description="Whether it does not: what the map shows is not what was learnt.")
    paper: str
    cost: str
    cost_class: Literal["low", "medium", "high"] = Field(
        description="low: a few runs of the model; medium: tens of them; high: hundreds or thousands."
    )
    class_specific: bool = Field(description="Whether the map depends on the target; if not, it takes no `versus`.")
    uses_gradients: bool
    needs_layer: bool
    max_layers: int = Field(description="How many layers it takes; several are fused into one map. 0: none.")
    seeded: bool = Field(description="Whether it draws random numbers, from its parameter `seed`.")
    parameters: dict[str, Any] = Field(description="JSON Schema of the method's own parameters.")


class MethodList(Answer):
    """Answer of `GET /v1/methods`."""

    methods: list[MethodInfo]


class Health(Answer):
    """Answer of `GET /healthz` and `GET /readyz`."""

    status: Literal["ok", "ready", "not_ready"]
    models: dict[str, str] = Field({}, description="State of each model that is loaded at start.")


class Problem(BaseModel):
    """RFC 9457 problem details; `code` is stable, and further members say more (`limit`, `choices`, ...)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = Field(description="Address of this error's description.")
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    field: str | None = Field(None, description="The option at fault.")
