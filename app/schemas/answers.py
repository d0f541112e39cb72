"""The JSON answers."""

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


class MapFacts(Answer):
    """What is known of one map."""

    target: ClassScore
    versus: ClassScore | None
    map: MapInfo


class ExplanationAnswer(MapFacts):
    """One map."""

    faithfulness: None = Field(None, description="Not measured.")
    picture: PictureAnswer


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


class ModelDetail(ModelSummary):
    """Answer of `GET /v1/models/{model}`; what is known only after loading is null before."""

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
