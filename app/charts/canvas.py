"""What all charts are drawn on: one figure at a time, in the colours of the page, the same bytes for the same facts."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from io import BytesIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ChartFormat = Literal["svg", "png"]
MEDIA_TYPES: Mapping[ChartFormat, str] = MappingProxyType({"svg": "image/svg+xml", "png": "image/png"})

INK, SOFT, LINE, GROUND = "#231a2e", "#655b70", "#ddd5dd", "#ffffff"
"""As in the page's style sheet, where it is light."""
MAP, RANDOM, CENTRE, EDGE = "#d0570b", "#8a8392", "#2b7fc0", "#12926c"
"""Of lines and marks: told apart by the colour-blind, and seen on light and dark grounds."""
WRONG = "#c62f4b"

_DPI = 110
_LONGEST_PX = 60_000
"""Of a picture's side; libpng and its readers take no more than 2^16 for granted."""
_STYLE: Mapping[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # matplotlib's own, which it always has
    "font.size": 8.0,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a layer's name is a dollar sign
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": LINE,
    "xtick.labelcolor": SOFT,
    "ytick.color": LINE,
    "ytick.labelcolor": SOFT,
    "legend.frameon": False,
    "figure.facecolor": GROUND,
    "axes.facecolor": "none",
    "svg.fonttype": "none",  # words stay words: they can be searched, copied, and read aloud
    "svg.hashsalt": "heatlens",  # else ids are random
}
_NOT_OF_A_FIGURE = frozenset({"backend", "backend_fallback", "interactive", "toolbar", "timezone", "webagg.port"})
_one_at_a_time = threading.RLock()
"""matplotlib's settings are of the whole process. Reentrant, so that who has its `turn` can draw."""


@contextmanager
def turn(timeout_s: float) -> Iterator[None]:
    """Wait until nobody else draws a chart, and keep it so; raises `TimeoutError` when the seconds are over."""
    if not _one_at_a_time.acquire(timeout=timeout_s):
        raise TimeoutError("other charts are being drawn")
    try:
        yield
    finally:
        _one_at_a_time.release()


def chart(size_in: tuple[float, float], format_: ChartFormat, paint: "Callable[[Figure], None]") -> bytes:
    """Return the figure of that size, (width, height) in inches, that `paint` fills; from any thread."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = {**_defaults(), **_STYLE}
    with _one_at_a_time, mpl.rc_context(style):
        figure = Figure(figsize=size_in)
        paint(figure)
        buffer = BytesIO()
        dpi = min(_DPI, _LONGEST_PX / max(size_in))
        figure.savefig(buffer, format=format_, dpi=dpi, metadata={"Date": None} if format_ == "svg" else None)
        return buffer.getvalue()


def inline_svg(svg: bytes, *, label: str) -> str:
    """Return a chart as it stands inside of an HTML page: of the page's own colours, with a name for screen readers.

    The page's style sheet has to define `--ink`, `--soft` and `--line`.
    """
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    for colour, name in ((INK, "ink"), (SOFT, "soft"), (LINE, "line")):
        text = text.replace(colour, f"var(--{name})")
    text = text.replace(f"fill: {GROUND}", "fill: none", 1)  # the ground, which is the first thing that is painted
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def plain(name: str, most: int) -> str:
    """Return a name in what every font has, shortened in the middle to `most` characters."""
    text = name.encode("ascii", "backslashreplace").decode()
    if len(text) <= most:
        return text
    behind = 2 * most // 3
    return f"{text[: most - behind - 1]}…{text[-behind:]}"


def _defaults() -> dict[str, Any]:
    """Return matplotlib's own settings, whatever a file of whoever runs this says."""
    import matplotlib as mpl

    return {name: value for name, value in mpl.rcParamsDefault.items() if name not in _NOT_OF_A_FIGURE}
