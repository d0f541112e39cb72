"""A 12-megapixel JPEG in, an overlay of 1024 px out: what a request takes beyond the model's own time, on one core.

The pictures are one photograph enlarged to 4000 x 3000 px, with more and more grain: what a JPEG takes to decode
grows with its bytes, and cameras write one to five megabytes.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import skimage
import torch
from _timing import print_table
from PIL import Image

from app.config import Settings
from app.drawing import draw
from app.imaging import encode, render
from app.imaging.display import display
from app.imaging.placement import place
from app.schemas.options import ExplainOptions
from app.service import Explained, Service

PHOTOGRAPH = Path(skimage.__file__).parent / "data" / "coffee.png"
GRAIN = (0.0, 4.0, 8.0)
"""Standard deviations, in grey levels."""
OPTIONS = ExplainOptions(max_side=1024)
STEPS = ("decode", "preprocess", "place", "resize", "display and render", "encode")


def photograph(grain: float) -> bytes:
    """Return a JPEG of 4000 x 3000 px, quality 90, 4:2:0."""
    pixels = cv2.resize(np.asarray(Image.open(PHOTOGRAPH).convert("RGB")), (4000, 3000), interpolation=cv2.INTER_CUBIC)
    noise = np.random.default_rng(0).normal(0.0, 1.0, pixels.shape) * grain
    file = BytesIO()
    Image.fromarray(np.clip(np.rint(pixels + noise), 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def steps_s(explained: Explained) -> dict[str, float]:
    """Return what each step takes: the first two as the request found them, the others done once more."""
    took: dict[str, float] = {}

    @contextmanager
    def step(name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        took[name] = time.perf_counter() - started

    raw, picture = explained.attributions[0].raw, explained.picture
    size = encode.fit(picture.width, picture.height, OPTIONS.max_side)
    with step("preprocess"):
        explained.model.preprocess(picture.samples, (picture.width, picture.height))
    took["decode"] = explained.timings.decode - took["preprocess"]
    with step("place"):
        placed = place(raw, explained.geometry, size)
    with step("resize"):
        pixels = encode.resize(picture.pixels, size)
    with step("display and render"):
        shown = display(placed, raw, explained.method.display_percentile)
        drawn = render.render(
            pixels,
            shown,
            placed.seen,
            view=OPTIONS.view,
            colormap=OPTIONS.colormap,
            alpha=OPTIONS.alpha,
            legend=OPTIONS.legend,
        )
    with step("encode"):
        encode.encode(drawn, "jpeg")
    return took


def measure(service: Service, grain: float, rounds: int) -> list[str]:
    """Return one row: the whole, then its steps."""
    data = photograph(grain)
    beyond: list[float] = []
    steps: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        explained = service.explain(data, OPTIONS, {})
        draw(explained, OPTIONS, "jpeg")
        beyond.append(time.perf_counter() - started - explained.timings.model)
        steps.append(steps_s(explained))
    each = [[step[name] for step in steps] for name in STEPS]
    return [f"{len(data) / 1e6:.1f} MB", *(f"{statistics.median(s[1:]) * 1000:.1f}" for s in (beyond, *each))]


def main() -> None:
    """Print one row per picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    service = Service(Settings(torch_threads=1))
    service.start()
    print(f"torch {torch.__version__}, one core; ms beyond the model's own time, medians of {options.rounds}\n")
    print_table(["12 megapixels", "all", *STEPS], [measure(service, grain, options.rounds) for grain in GRAIN])
    service.close()


if __name__ == "__main__":
    main()
