"""Kept pictures and embed links: what is asked, and the JSON answers."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.schemas.answers import Answer
from app.schemas.options import MOST, Colormap, QuestionOptions

PictureFormat = Literal["jpeg", "png"]


class ImageOptions(BaseModel):
    """Options of `POST /v1/images`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    expires_in_s: float | None = Field(
        None,
        ge=1,
        allow_inf_nan=False,
        description="How long the picture is kept, in seconds; absent: as long as the server keeps any.",
    )


class LinkPath(BaseModel):
    """The link in the path."""

    token: str = Field(max_length=1000, description="Token of the link, as `POST /v1/embed-links` answered it.")


class ImagePath(BaseModel):
    """The picture in the path."""

    id: str = Field(max_length=200, description="Id of the picture, as `POST /v1/images` answered it.")


class ShownQuery(BaseModel, extra="forbid"):
    """Options of `GET /v1/images/{id}/picture`."""

    max_side: int = Field(1024, ge=16, le=MOST, description="Longest side, in pixels; pictures are never enlarged.")
    format: PictureFormat = Field("jpeg", description="Format of the answer.")


class EmbedOptions(QuestionOptions):
    """Options of `POST /v1/embed-links`. A method's own parameters are given beside them, see `/v1/methods`."""

    colormap: Colormap = Field("inferno", description="Colours of the heat, perceptually ordered.")
    alpha: float = Field(0.7, ge=0, le=1, allow_inf_nan=False, description="Opacity of the heat where it is strongest.")
    max_side: int = Field(
        1024, ge=16, le=MOST, description="Longest side of what is shown, in pixels; pictures are never enlarged."
    )
    lifetime_s: float | None = Field(
        None,
        ge=1,
        allow_inf_nan=False,
        description="How long the link lives, in seconds, and no longer than the kept picture that it is of; absent: "
        "a day.",
    )
    job: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Instead of a picture: the job of which `item` is a picture. What it was asked is asked again, "
        "unless options say otherwise, and `target` is the place of one of its targets, from 0.",
    )
    item: int | None = Field(None, ge=0, lt=2**31, description="Number of the picture in the job.")


class ImageAnswer(Answer):
    """Answer of `POST /v1/images` and `GET /v1/images/{id}`."""

    id: str = Field(description='Goes where a picture goes: {"image": {"id": "..."}}. Who has it may see the picture.')
    expires_at: datetime
    width: int = Field(description="Width as displayed, in pixels.")
    height: int = Field(description="Height as displayed, in pixels.")
    size_bytes: int


class EmbedUrls(Answer):
    """Where a link leads."""

    frame: str = Field(description="A page for an <iframe>: picture, heat, and control over its opacity.")
    image: str = Field(description="The picture with its heat, for an <img>.")
    picture: str = Field(description="The picture alone.")
    heat: str = Field(description="The heat alone, PNG with a transparent ground.")


class EmbedTags(Answer):
    """HTML to paste into a page."""

    img: str
    frame: str
    component: str


class EmbedTarget(Answer):
    """The class that is explained."""

    index: int
    label: str
    probability: float


class EmbedAnswer(Answer):
    """Answer of `POST /v1/embed-links`."""

    token: str = Field(description="Stands in the addresses; `DELETE /v1/embed-links/{token}` ends the link.")
    expires_at: datetime = Field(description="When the link ends, if nothing ends it before.")
    model: str
    method: str
    target: EmbedTarget
    versus: str | None = Field(description="Label of the class that the target is compared with.")
    width: int = Field(description="Width of what is shown, in pixels.")
    height: int = Field(description="Height of what is shown, in pixels.")
    urls: EmbedUrls
    tags: EmbedTags


class EmbedFacts(BaseModel):
    """What a link tells of the picture that it shows, as it is stored; `extra` is for what a later version adds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str
    method: str
    target: int
    label: str
    probability: float
    versus: str | None
    width: int
    height: int
    image_width: int
    image_height: int
    image_type: str
    colormap: Colormap
    alpha: float
    class_specific: bool
    no_positive_evidence: bool
    fails_randomisation: bool
    not_seen: bool
