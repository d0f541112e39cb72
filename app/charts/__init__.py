"""Charts of what was measured, as SVG or PNG.

matplotlib draws them, through its `Figure` alone: `pyplot`, which keeps every figure for ever, is never imported.
matplotlib promises nothing about threads: its settings, font caches and text layouts are of the whole process. So one
chart is drawn at a time (see `app.charts.canvas`). It is imported with the first chart, as it takes its time.
"""

from app.charts.activations import activations_chart as activations_chart
from app.charts.canvas import MEDIA_TYPES as MEDIA_TYPES
from app.charts.canvas import ChartFormat as ChartFormat
from app.charts.canvas import inline_svg as inline_svg
from app.charts.curves import Band as Band
from app.charts.curves import Curves as Curves
from app.charts.curves import curves_chart as curves_chart
from app.charts.flow import gradient_flow_chart as gradient_flow_chart
from app.charts.margins import Margins as Margins
from app.charts.margins import margins_chart as margins_chart
