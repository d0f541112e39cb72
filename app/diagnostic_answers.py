"""What was found inside a model as JSON, arrays, pictures or charts."""

import math

import numpy as np
from numpy.typing import NDArray

from app import charts
from app.diagnosing import Activated, Flowed, Sensed
from app.errors import BadOption
from app.facts import image_info, map_info, model_ref, spent
from app.imaging import encode
from app.imaging.tiles import tiles
from app.laying import Canvas, Laid, picture_answer
from app.schemas import diagnostics as schemas
from app.schemas.diagnostics import ActivationOptions, SensitivityOptions
from app.tasks import Features

_SENSITIVITY_PERCENTILE = 99.0
"""As that of the input gradients among the methods: single pixels stick out."""


def flow_answer(flowed: Flowed) -> schemas.GradientFlowAnswer:
    """Tell how the gradient flowed."""
    flow = flowed.flow
    return schemas.GradientFlowAnswer(
        model=model_ref(flowed.model),
        pictures=len(flowed.classes),
        objective=schemas.Objective(
            kind="cross_entropy" if flowed.is_loss else "score",
            value=flow.objective if math.isfinite(flow.objective) else None,
            classes=flowed.classes,
        ),
        layers=[schemas.LayerFlow.model_validate(layer, from_attributes=True) for layer in flow.layers],
        parameters=[schemas.ParameterFlow.model_validate(own, from_attributes=True) for own in flow.parameters],
        verdict=schemas.FlowVerdict.model_validate(flow.verdict, from_attributes=True),
        timings_s=spent(flowed.timings),
    )


def flow_chart(flowed: Flowed, format_: charts.ChartFormat) -> bytes:
    """Draw how the gradient flowed."""
    return charts.gradient_flow_chart(flowed.flow, format_)


def activation_answer(activated: Activated) -> schemas.ActivationAnswer:
    """Tell what the layers answered; of a named layer its row and its embeddings."""
    layers = activated.layers
    embeddings = None
    if activated.layer is not None and activated.features is not None:
        layers = [layer for layer in layers if layer.name == activated.layer]
        embeddings = schemas.Embeddings(
            layer=activated.layer,
            vectors=_rows(activated.features.embeddings),
            similarity=_rows(activated.features.similarity),
            missing=activated.features.missing,
        )
    return schemas.ActivationAnswer(
        model=model_ref(activated.model),
        pictures=len(activated.views),
        layers=[schemas.LayerActivation.model_validate(layer, from_attributes=True) for layer in layers],
        embeddings=embeddings,
        timings_s=spent(activated.timings),
    )


def activation_chart(activated: Activated, format_: charts.ChartFormat) -> bytes:
    """Draw what the layers answered."""
    return charts.activations_chart(activated.layers, format_)


def feature_picture(features: Features, options: ActivationOptions, format_: str) -> bytes:
    """Draw the first picture's feature maps of the named layer, as many as have room."""
    if features.grid is None:
        msg = f"Layer {options.layer!r} has no spatial axes to draw; ask for format json or npz."
        raise BadOption(msg, field="format", choices=["json", "npz"])
    grid = features.grid[0]
    if not np.isfinite(grid).all():
        msg = f"Layer {options.layer!r} answers NaN or infinity, which has no colour; ask for format json or npz."
        raise BadOption(msg, field="format", choices=["json", "npz"])
    pixels = tiles(grid, colormap=options.colormap, max_side_px=options.max_side, signed=bool(grid.min() < 0))
    return encode.encode(pixels, format_)


def feature_arrays(features: Features) -> bytes:
    """Return all that the named layer answered."""
    arrays: dict[str, NDArray[np.generic] | None] = {
        "features": features.values,
        "embeddings": features.embeddings,
        "similarity": features.similarity,
        "grid": None if _is_itself(features.grid, features.values) else features.grid,
    }
    return encode.npz({name: array for name, array in arrays.items() if array is not None})


def _is_itself(grid: NDArray[np.float32] | None, values: NDArray[np.float32]) -> bool:
    return grid is not None and grid.shape == values.shape and np.array_equal(grid, values, equal_nan=True)


def _rows(array: NDArray[np.float32] | None) -> list[list[float | None]] | None:
    """Return a matrix as JSON has it, where only finite numbers are numbers."""
    if array is None:
        return None
    return [[value if math.isfinite(value) else None for value in row] for row in array.tolist()]


class SensitivityDrawing:
    """What a unit is sensitive to, laid over the picture."""

    def __init__(self, sensed: Sensed, options: SensitivityOptions) -> None:
        self._sensed = sensed
        self._options = options
        self._canvas = Canvas(sensed.view.picture, sensed.view.geometry, options.max_side)
        self._laid: Laid = self._canvas.lay(sensed.found.raw, _SENSITIVITY_PERCENTILE)

    def answer(self) -> schemas.SensitivityAnswer:
        """Tell the unit's value and map."""
        sensed, unit = self._sensed, self._sensed.unit
        return schemas.SensitivityAnswer(
            model=model_ref(sensed.model),
            unit=schemas.UnitInfo(
                layer=sensed.layer, channel=unit.channel, row=unit.row, column=unit.column, value=sensed.found.value
            ),
            reduction=self._options.reduction,
            image=image_info(sensed.view),
            map=map_info(self._laid),
            picture=picture_answer(self._painted()),
            timings_s=spent(sensed.timings),
        )

    def binary(self, format_: str) -> bytes:
        """Return the picture, or the raw map in the displayed frame (npy) and as it was (npz)."""
        placed = self._laid.placed
        if format_ == "npy":
            return encode.npy(placed.values)
        if format_ == "npz":
            return encode.npz({"map": placed.values, "raw": self._laid.raw, "seen": placed.seen})
        return encode.encode(self._painted(), format_)

    def _painted(self) -> NDArray[np.uint8]:
        return self._canvas.paint(self._laid, self._options)
