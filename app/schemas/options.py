"""The options of a request, whichever way they travel: query, form fields, JSON, command line."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
MOST = 10**9
"""No number that is counted with is larger. Longer ones would be echoed by who finds them too large, all digits."""
ClassName = Annotated[StrictInt, Field(ge=-MOST, le=MOST)] | Name
"""A class index, a label, or for targets `predicted` and `top<n>`."""

View = Literal["overlay", "heatmap", "side_by_side", "layer"]
Format = Literal["jpeg", "png", "webp", "npy", "npz", "json"]
Colormap = Literal["inferno", "magma", "plasma", "viridis", "cividis", "turbo"]


class PredictOptions(BaseModel):
    """Options of `POST /v1/predict`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Name | None = Field(None, description="Model name, see `/v1/models`; absent: the server's default model.")
    top: int = Field(5, ge=1, le=1000, description="How many classes to list, most probable first.")


class QuestionOptions(BaseModel):
    """What is asked of a picture."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Name | None = Field(None, description="Model name, see `/v1/models`; absent: the server's default model.")
    method: Name = Field("gradcam", description="Method name, see `/v1/methods`.")
    target: list[ClassName] = Field(
        ["predicted"],
        min_length=1,
        max_length=100,
        fail_fast=True,
        description="What to explain, repeatable: a class index, a label, `predicted`, or `top<n>` (the n best).",
    )
    versus: ClassName | None = Field(
        None,
        description="Why this and not that: explain the target's score minus the score of this class "
        "(index, label or `predicted`).",
    )
    layer: list[Name] = Field(
        [],
        max_length=100,
        fail_fast=True,
        description="Target layer, see `/v1/models/{model}/layers`; absent: the model's default. Repeatable: methods "
        "that take several (`max_layers` in `/v1/methods`) fuse them into one map.",
    )


class DrawingOptions(BaseModel):
    """How a map is shown."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    view: View = Field(
        "overlay",
        description="overlay: heat over the picture; heatmap: the heat alone; side_by_side: picture and overlay; "
        "layer: the heat on a transparent ground, for clients with their own opacity control (PNG or WebP).",
    )
    colormap: Colormap = Field("inferno", description="Colours of the heat, perceptually ordered.")
    alpha: float = Field(0.7, ge=0, le=1, allow_inf_nan=False, description="Opacity of the heat where it is strongest.")
    legend: bool = Field(False, description="Whether to draw a legend below the picture.")
    max_side: int = Field(
        1024, ge=16, le=MOST, description="Longest side of the answer, in pixels; pictures are never enlarged."
    )
    format: Format | None = Field(
        None, description="Format of the answer; absent: decided by the `Accept` header, else JPEG."
    )

    @model_validator(mode="after")
    def _transparency(self) -> Self:
        if self.view == "layer" and self.format == "jpeg":
            msg = "view=layer needs transparency, which JPEG has not; ask for png or webp"
            raise PydanticCustomError("format_without_transparency", msg, {"field": "format"})
        return self


class MapOptions(DrawingOptions, QuestionOptions):
    """What is asked of a picture, how its maps are shown, and what is measured of them."""

    faithfulness: bool = Field(
        False,
        description="Whether to measure how the probability follows the map when parts are taken away, beside the same "
        "shape elsewhere, the centre and the edge; about 90 runs of the model for one target, 70 for each further one.",
    )
    stability: bool = Field(
        False,
        description="Whether to measure how much the map changes under a little noise and when the picture is "
        "mirrored; the method runs three times more.",
    )


class ExplainOptions(MapOptions):
    """Options of `POST /v1/explain`. A method's own parameters are given beside them, see `/v1/methods`."""

    values: bool = Field(
        False,
        description="Whether JSON answers hold the raw signed map too, laid over the picture, for clients that draw it "
        "or read values from it.",
    )
