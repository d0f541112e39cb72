"""What a labelling configuration of Label Studio says: which picture is labelled, with what, and how it is called."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.parsers import expat  # declarations, the dangerous part of XML, are refused

from app.errors import BadLabelConfig

_OPTIONS = "heatlens_"
"""How an attribute begins that is an option; a project may have other backends with attributes of their own."""
_NESTED = 100
_CHARACTERS = 2**20
_TAGS = 10_000


@dataclass
class Control:
    """A tag that names things: `kind` in lower case, `choices` the values below it."""

    kind: str
    name: str
    picture: str
    choices: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    def choice(self, label: str) -> str | None:
        """Return the one of its values that a class is called, whatever the case."""
        return next((choice for choice in self.choices if choice.casefold() == label.casefold()), None)


@dataclass(frozen=True)
class LabelConfig:
    """The tags of one picture. `brush` draws; `labels` names what was drawn, where the brush does not do so itself."""

    key: str
    """Where a task's data has the picture."""
    picture: str
    """What the picture's tag is called."""
    brush: Control | None
    labels: Control | None
    choices: Control | None

    @property
    def options(self) -> dict[str, str]:
        """What the tags ask of the explanation, as in `heatlens_method="layercam"`; the brush has the last word."""
        found: dict[str, str] = {}
        for control in (self.choices, self.labels, self.brush):
            found |= control.options if control else {}
        return found


def parse(text: str) -> LabelConfig:
    """Read a configuration. Raises `BadLabelConfig` for one that is not XML or that we have nothing to say to."""
    pictures, controls = _tags(text)
    for name, key in pictures.items():
        of_picture = controls.get(name, [])
        brush = _first(of_picture, "brushlabels") or _first(of_picture, "brush")
        labels = _first(of_picture, "labels") if brush and brush.kind == "brush" else None
        if brush and brush.kind == "brush" and not labels:
            brush = None  # nothing says what it draws
        choices = _first(of_picture, "choices")
        if brush or choices:
            return LabelConfig(key, name, brush, labels, choices)
    msg = "The labelling configuration has no <BrushLabels> (nor <Brush> and <Labels>, nor <Choices>) for an <Image>."
    raise BadLabelConfig(msg)


def _first(controls: list[Control], kind: str) -> Control | None:
    return next(
        (control for control in controls if control.kind == kind and (control.choices or kind == "brush")), None
    )


def _tags(text: str) -> tuple[Mapping[str, str], Mapping[str, list[Control]]]:
    """Return the pictures, key by name, and the controls of each by the picture's name, in their order."""
    if len(text) > _CHARACTERS:
        msg = f"The labelling configuration has {len(text)} characters; the limit is {_CHARACTERS}."
        raise BadLabelConfig(msg, limit=_CHARACTERS)
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = reader.refuse
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, ValueError) as error:  # ValueError: half characters
        raise BadLabelConfig(f"The labelling configuration is not XML: {error}.") from error
    return reader.pictures, reader.controls


class _Reader:
    """Collects what the parser finds."""

    def __init__(self) -> None:
        self.pictures: dict[str, str] = {}
        self.controls: dict[str, list[Control]] = {}
        self._tags = 0
        self._open: list[Control | None] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self._open) >= _NESTED:
            raise BadLabelConfig(f"The labelling configuration is nested more than {_NESTED} deep.")
        self._tags += 1
        if self._tags > _TAGS:
            raise BadLabelConfig(f"The labelling configuration has more than {_TAGS} tags.", limit=_TAGS)
        kind, control = tag.lower(), None
        if kind == "image":
            self.pictures[attributes.get("name", "")] = attributes.get("value", "").removeprefix("$")
        elif "toName" in attributes:
            control = Control(kind, attributes.get("name", ""), attributes["toName"], options=_options(attributes))
            self.controls.setdefault(control.picture, []).append(control)
        elif kind in ("label", "choice") and "value" in attributes:
            around = next((control for control in reversed(self._open) if control), None)
            if around:
                around.choices.append(attributes["value"])
        self._open.append(control)

    def end(self, _tag: str) -> None:
        self._open.pop()

    def refuse(self, *_: object) -> None:
        raise BadLabelConfig("The labelling configuration has a DOCTYPE, which is not read.")


def _options(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(_OPTIONS): value for name, value in attributes.items() if name.startswith(_OPTIONS)}
