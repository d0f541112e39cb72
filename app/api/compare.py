"""`/v1/compare`."""

from collections.abc import Mapping
from typing import Any

from flask import Response
from flask_openapi3 import APIBlueprint, Tag

from app.api.answering import add_route, answered, chosen_format, patience
from app.api.documents import PROBLEMS, operation_id
from app.api.requests import read_picture
from app.comparing import Comparisons
from app.comparison_answers import FeaturesDrawing, MapsDrawing
from app.drawing import MEDIA_TYPES
from app.schemas.checking import check
from app.schemas.diagnostics import CompareAnswer, CompareOptions
from app.service import Service


def blueprint(service: Service) -> APIBlueprint:
    """Return the route."""
    api = APIBlueprint(
        "compare",
        __name__,
        url_prefix="/v1",
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="diagnostics")],
        abp_responses=PROBLEMS,
    )
    comparisons = Comparisons(service)
    of_methods = service.catalogue.parameter_schemas()
    of_both = of_methods | {f"with_{name}": schema for name, schema in of_methods.items()}

    def compare() -> Response:
        """Set two explanations of one picture beside each other on one scale, with their difference."""
        picture, raw = read_picture()
        options, parameters = check(CompareOptions, raw, parameters=of_both)
        format_ = chosen_format(options.format, tuple(MEDIA_TYPES))
        drawing = _drawing(comparisons, picture, options, parameters)
        return answered(format_, drawing.models, drawing.timings, drawing.answer, lambda: drawing.binary(format_))

    add_route(api, "/compare", compare, CompareOptions, CompareAnswer, tuple(MEDIA_TYPES), parameters=of_both)
    return api


def _drawing(
    comparisons: Comparisons, picture: bytes, options: CompareOptions, parameters: Mapping[str, Any]
) -> MapsDrawing | FeaturesDrawing:
    if options.of == "maps":
        return MapsDrawing(comparisons.maps(picture, options, parameters, **patience()), options)
    return FeaturesDrawing(comparisons.features(picture, options, parameters, **patience()), options)
