"""Options and answers of `/v1/diagnostics/*` and `/v1/compare`."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.schemas.answers import Answer, ClassScore, ImageInfo, MapInfo, ModelRef, PictureAnswer, Timings
from app.schemas.options import MOST, ClassName, Colormap, DrawingOptions, Format, Name, QuestionOptions

FlowFormat = Literal["json", "svg", "png"]
ActivationFormat = Literal["json", "svg", "png", "jpeg", "webp", "npz"]
Classes = list[ClassName]


def _the_only(value: object) -> object:
    """Return the one element of a list: elsewhere `layer` may be given several times."""
    if not isinstance(value, list):
        return value
    if len(value) > 1:
        raise PydanticCustomError("one_layer", f"one layer is looked at, and {len(value)} were given")
    return value[0] if value else None


OneName = Annotated[Name | None, BeforeValidator(_the_only)]

_MODEL = Field(None, description="Model name, see `/v1/models`; absent: the server's default model.")


class FlowOptions(BaseModel):
    """Options of `POST /v1/diagnostics/gradient-flow`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Name | None = _MODEL
    target: Classes = Field(
        [],
        max_length=100,
        fail_fast=True,
        description="The class whose score the gradient is of, `predicted` where nothing is said: one for all "
        "pictures, or one for each.",
    )
    label: Classes = Field(
        [],
        max_length=100,
        fail_fast=True,
        description="The true class, in place of `target`: the gradient is that of the training loss, cross-entropy. "
        "One for all pictures, or one for each.",
    )
    format: FlowFormat | None = Field(
        None, description="json, or the chart as svg or png; absent: decided by the `Accept` header, else JSON."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.target and self.label:
            msg = "target (a score) and label (a loss) are two different questions; give one of them"
            raise PydanticCustomError("target_and_label", msg, {"field": "label"})
        return self


class ActivationOptions(BaseModel):
    """Options of `POST /v1/diagnostics/activations`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Name | None = _MODEL
    layer: OneName = Field(
        None,
        description="A layer whose own numbers are wanted, see `/v1/models/{model}/layers`: its feature maps as "
        "picture (png, jpeg, webp) or arrays (npz), its embedding in the JSON. Absent: statistics of all layers.",
    )
    colormap: Colormap = Field("inferno", description="Colours of the feature maps.")
    max_side: int = Field(1024, ge=16, le=MOST, description="Longest side of the picture of feature maps, in pixels.")
    format: ActivationFormat | None = Field(
        None,
        description="Without `layer` json, or a chart as svg or png; with it json, npz, or the feature maps of the "
        "first picture as png, jpeg or webp. Absent: decided by the `Accept` header, else JSON.",
    )


class SensitivityOptions(DrawingOptions):
    """Options of `POST /v1/diagnostics/sensitivity`."""

    model: Name | None = _MODEL
    layer: OneName = Field(None, description="The layer, see `/v1/models/{model}/layers`; absent: the model's default.")
    channel: int | None = Field(
        None, ge=0, le=MOST, description="The layer's channel, from 0; absent: the mean over all."
    )
    row: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="The row of the layer's grid, from 0, with `column`; absent: the mean over all places.",
    )
    column: int | None = Field(None, ge=0, le=MOST, description="The column of the layer's grid, from 0, with `row`.")
    reduction: Literal["max_abs", "signed_sum"] = Field(
        "max_abs",
        description="How the gradient's colour channels become one map; max_abs: the largest absolute value; "
        "signed_sum: their sum, with sign.",
    )


class CompareOptions(QuestionOptions):
    """Options of `POST /v1/compare`.

    `with_NAME` is what the second side has in place of the option, or of the method's parameter, NAME; in all else it
    is like the first.
    """

    target: Classes = Field(
        ["predicted"], min_length=1, max_length=1, fail_fast=True, description="What to explain: one class."
    )
    with_model: Name | None = Field(None, description="The second side's model.")
    with_method: Name | None = Field(None, description="The second side's method.")
    with_target: ClassName | None = Field(None, description="The second side's target.")
    with_versus: ClassName | None = Field(None, description="The second side's versus.")
    with_layer: list[Name] = Field([], max_length=100, fail_fast=True, description="The second side's layers.")
    of: Literal["maps", "features"] = Field(
        "maps",
        description="maps: the two explanations; features: what one layer of each model answers, its difference as a "
        "map (two models of one architecture, or layers with as many channels), without method, target or scale.",
    )
    scale: Literal["auto", "raw", "relative"] = Field(
        "auto",
        description="raw: both maps in their own unit; relative: each divided by its largest absolute value (of "
        "pixel-fine methods, by the 99th percentile of those that are not 0); auto: raw where model, method and "
        "layers are the same.",
    )
    view: Literal["overlay", "heatmap"] = Field("overlay", description="Over the picture, or the colours alone.")
    colormap: Colormap = Field("inferno", description="Colours of the two maps; the difference is red and blue.")
    alpha: float = Field(0.7, ge=0, le=1, allow_inf_nan=False, description="Opacity of the heat where it is strongest.")
    max_side: int = Field(512, ge=16, le=MOST, description="Longest side of each of the three pictures, in pixels.")
    format: Format | None = Field(
        None,
        description="json with all numbers; jpeg, png or webp: first, second and difference side by side; npz: the "
        "maps; npy: the difference. Absent: decided by the `Accept` header, else JPEG.",
    )


class ParameterFlow(Answer):
    """A parameter of a layer and its gradient; norms are L2, over the finite values."""

    name: str
    shape: list[int]
    norm: float
    gradient_norm: float | None = Field(description="null: no gradient arrives.")
    ratio: float | None = Field(description="The gradient's norm divided by the parameter's.")
    zero_fraction: float | None
    nan: int
    inf: int


class LayerFlow(Answer):
    """One call of a layer that has no layers inside, in the order in which they ran."""

    name: str
    type: str
    call: int = Field(description="Which of the layer's calls, from 1.")
    calls: int
    grad_output_norm: float | None = Field(description="L2, in float32, of the finite values. null: none arrives.")
    grad_input_norm: float | None = Field(
        description="Of what this call passes back. null: none, or not to be told apart."
    )
    parameters: list[ParameterFlow] = Field(description="At the layer's last call, for all its calls together.")
    zero_fraction: float | None = Field(description="Of the gradient at the output.")
    nan: int = Field(description="How many values of the gradients at output and input are NaN.")
    inf: int
    decay: float | None = Field(
        description="The gradient's norm here divided by that at the layer that ran next: below 1 where it shrinks on "
        "its way back."
    )
    output_norm: float | None = Field(description="Of what the layer answered, L2, of the finite values.")
    output_nan: int
    output_inf: int


VerdictKind = Literal["ok", "vanishing", "exploding", "dead", "disconnected", "non_finite"]


class FlowFinding(Answer):
    """What is wrong, where, and why that is said."""

    kind: VerdictKind
    layers: list[str]
    reason: str


class FlowVerdict(Answer):
    """The worst that was found, and all of it."""

    kind: VerdictKind
    findings: list[FlowFinding]
    notes: list[str] = Field([], description="What looks strange and is no illness, in full sentences.")


class Objective(Answer):
    """What the gradient is of."""

    kind: Literal["score", "cross_entropy"]
    value: float | None = Field(
        description="The pictures' scores added up, in logits, or their mean loss, in nats; null: not finite."
    )
    classes: list[int] = Field(description="Of each picture, the class.")


class GradientFlowAnswer(Answer):
    """Answer of `POST /v1/diagnostics/gradient-flow`."""

    request_id: str = ""
    model: ModelRef
    pictures: int
    objective: Objective
    layers: list[LayerFlow]
    parameters: list[ParameterFlow] = Field(
        description="Of no listed layer, by full name: position embeddings, a normalisation with its activation inside."
    )
    verdict: FlowVerdict
    timings_s: Timings


class LayerActivation(Answer):
    """What one call of a layer answered to all pictures; the numbers are of the finite values."""

    name: str
    type: str
    call: int
    calls: int
    shape: list[int] | None = Field(description="With the pictures as first axis; null: not one tensor.")
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    zero_fraction: float | None
    saturated_fraction: float | None = Field(
        description="How many values lie at the bounds of a bounded activation; null for all other layers."
    )
    dead_channels: int | None = Field(description="Channels that are zero everywhere, in all pictures.")
    channels: int | None
    nan: int
    inf: int


class Embeddings(Answer):
    """The pictures as vectors: the layer's channels, averaged over the places."""

    layer: str
    vectors: list[list[float | None]] | None = Field(
        description="A number that is not finite is null; null altogether: see `missing`."
    )
    similarity: list[list[float | None]] | None = Field(
        description="The cosine of the angle between each two of them; null where one is not finite."
    )
    missing: str | None = Field(
        None, description="Why there are none: in windows or heads no row belongs to one picture; or NaN."
    )


class ActivationAnswer(Answer):
    """Answer of `POST /v1/diagnostics/activations`."""

    request_id: str = ""
    model: ModelRef
    pictures: int
    layers: list[LayerActivation]
    embeddings: Embeddings | None = Field(description="Where a layer was named.")
    timings_s: Timings


class UnitInfo(Answer):
    """The part of a layer that was asked about; null: the mean over all."""

    layer: str
    channel: int | None
    row: int | None
    column: int | None
    value: float = Field(description="What the layer answers there, the mean of what was chosen.")


class SensitivityAnswer(Answer):
    """Answer of `POST /v1/diagnostics/sensitivity` with `format=json`."""

    request_id: str = ""
    model: ModelRef
    unit: UnitInfo
    reduction: str
    image: ImageInfo
    map: MapInfo
    picture: PictureAnswer
    timings_s: Timings


class Side(Answer):
    """One of the two that are compared."""

    model: ModelRef
    method: str | None
    parameters: dict[str, object] | None
    layers: list[str]
    target: ClassScore | None
    versus: ClassScore | None
    map: MapInfo | None = Field(
        description="The map in the unit of the comparison (`difference.unit`); only `completeness_gap` stays in "
        "logits. null for features."
    )
    divisor: float | None = Field(
        description="What the method's own map was divided by to come into that unit: 1 where it is raw. null for "
        "features."
    )
    picture: PictureAnswer | None


class ComparisonInfo(Answer):
    """How much two maps agree, where both models looked."""

    correlation: float | None = Field(description="Pearson's; null where a map is the same everywhere.")
    rank_correlation: float | None = Field(description="Spearman's; null where a map is the same everywhere.")
    overlap: float = Field(description="Of the two hottest regions, the part that is common to both: 0 to 1.")
    top: float = Field(description="How much of the picture the hottest region is.")
    words: str


class DifferenceInfo(Answer):
    """First minus second."""

    unit: Literal["raw", "relative", "features"]
    scale: float = Field(
        description="The difference that is drawn at full colour: the largest, or a tenth of the maps' scale."
    )
    min: float
    max: float
    mean: float
    picture: PictureAnswer


class CompareAnswer(Answer):
    """Answer of `POST /v1/compare` with `format=json`."""

    request_id: str = ""
    of: Literal["maps", "features"]
    image: ImageInfo
    first: Side
    second: Side
    scale: float | None = Field(description="The value that is drawn at full heat in both maps; null for features.")
    agreement: ComparisonInfo | None = Field(description="null for features.")
    difference: DifferenceInfo
    timings_s: Timings
