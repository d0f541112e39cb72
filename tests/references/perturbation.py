"""Occlusion, RISE, LIME, Kernel SHAP and Shapley value sampling, slow and literal from the papers, in float64.

Nothing here is shared with the methods but the documented rule of the draws (sample i draws from a generator seeded
with seed * 1_000_003 + i), and scikit-image's SLIC with the same settings, for the superpixels.
"""

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from skimage.segmentation import slic
from torch import Tensor, nn

from tests.references.baselines import baseline as baseline_of

Score = Callable[[Tensor], float]
Plane = list[list[float]]


def occlusion(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    window: float = 1 / 7,
    stride: float = 0.5,
    baseline: str = "mean",
) -> Tensor:
    """Return the mean fall of the score over the windows that cover a pixel."""
    y, (height, width) = score_of(model, index, versus), picture.shape[2:]
    side = max(1, round(window * min(height, width)))
    step = max(1, round(stride * side))
    cover, whole = baseline_of(baseline, picture), y(picture)
    falls: list[list[list[float]]] = [[[] for _ in range(width)] for _ in range(height)]
    for top in starts(height, side, step):
        for left in starts(width, side, step):
            x = picture.double().clone()
            x[:, :, top : top + side, left : left + side] = cover[:, :, top : top + side, left : left + side]
            fall = whole - y(x)
            for i in range(top, top + side):
                for j in range(left, left + side):
                    falls[i][j].append(fall)
    return torch.tensor([[sum(f) / len(f) for f in row] for row in falls], dtype=torch.float64)


def starts(length: int, side: int, step: int) -> list[int]:
    """Return where windows begin: step after step while they fit, and one at the very end."""
    places = [place for place in range(0, length, step) if place + side <= length]
    return places if places[-1] + side == length else [*places, length - side]


def rise(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    samples: int = 1000,
    cells: int = 7,
    keep: float = 0.5,
    seed: int = 0,
    baseline: str = "mean",
) -> Tensor:
    """Return the mean of the scores over the masks that show a pixel, minus their mean."""
    y, (height, width) = score_of(model, index, versus), picture.shape[2:]
    masks = [rise_mask(height, width, cells, keep, drawn(seed, i)) for i in range(samples)]
    x, cover = picture.double(), baseline_of(baseline, picture)
    tensors = [torch.tensor(mask, dtype=torch.float64) for mask in masks]
    scores = [y(x * mask + cover * (1 - mask)) for mask in tensors]
    mean = sum(scores) / samples
    saliency = [[0.0] * width for _ in range(height)]
    for i in range(height):
        for j in range(width):
            shown = sum(mask[i][j] for mask in masks)
            if shown > 0:
                pairs = zip(scores, masks, strict=True)
                saliency[i][j] = sum((score - mean) * mask[i][j] for score, mask in pairs) / shown
    return torch.tensor(saliency, dtype=torch.float64)


def rise_mask(height: int, width: int, cells: int, keep: float, numbers: torch.Generator) -> Plane:
    """Return one mask of section 3.2, pixel by pixel."""
    grid = (torch.rand(cells, cells, generator=numbers, dtype=torch.float64) < keep).double().tolist()
    cell_height, cell_width = math.ceil(height / cells), math.ceil(width / cells)
    top = int(torch.randint(cell_height, (), generator=numbers))
    left = int(torch.randint(cell_width, (), generator=numbers))

    def at(i: int, j: int) -> float:
        """Bilinear between the centres of the cells, which are (cells + 1) / cells times as large as a cell."""
        total = 0.0
        for row, a in between((top + i + 0.5) * cells / ((cells + 1) * cell_height) - 0.5, cells):
            for column, b in between((left + j + 0.5) * cells / ((cells + 1) * cell_width) - 0.5, cells):
                total += a * b * grid[row][column]
        return total

    return [[at(i, j) for j in range(width)] for i in range(height)]


def between(place: float, length: int) -> list[tuple[int, float]]:
    """Return the two neighbours of a place on a line of that many points, with their weights."""
    place = min(max(place, 0.0), length - 1.0)
    low = math.floor(place)
    return [(low, 1 - (place - low)), (min(low + 1, length - 1), place - low)]


def lime(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    samples: int = 500,
    segments: int = 50,
    seed: int = 0,
    baseline: str = "mean",
) -> Tensor:
    """Return each superpixel's coefficient: ridge regression as least squares with one more row per coefficient."""
    y, places = score_of(model, index, versus), superpixels(picture, segments)
    cover = baseline_of(baseline, picture)
    count = int(places.max()) + 1
    rows = [[1.0] * count]
    for i in range(1, samples):
        uniform = torch.rand(count, generator=drawn(seed, i), dtype=torch.float64).tolist()
        rows.append([1.0 if number < 0.5 else 0.0 for number in uniform])
    left, right = [], []
    for row in rows:
        cosine = sum(row) / (math.sqrt(sum(row)) * math.sqrt(count)) if sum(row) else 0.0
        root = math.sqrt(math.exp(-((1 - cosine) ** 2) / (2 * 0.25**2)))
        left.append([root, *(root * z for z in row)])
        right.append(root * y(showing(picture, places, row, cover)))
    for j in range(count):
        left.append([0.0, *(1.0 if k == j else 0.0 for k in range(count))])
        right.append(0.0)
    return spread(np.linalg.lstsq(np.array(left), np.array(right), rcond=None)[0][1:], places)


def kernel_shap(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    samples: int = 500,
    segments: int = 50,
    seed: int = 0,
    baseline: str = "mean",
) -> Tensor:
    """Return the least squares solution over the coalitions, next to equal shares where there are several."""
    y, places = score_of(model, index, versus), superpixels(picture, segments)
    cover = baseline_of(baseline, picture)
    count = int(places.max()) + 1
    none, whole = y(showing(picture, places, [0.0] * count, cover)), y(picture)
    share = (whole - none) / count
    if count == 1:
        return spread([share], places)
    rows: list[list[float]] = []
    for i in range(math.ceil(samples / 2)):
        numbers = drawn(seed, i)
        kernel = [math.comb(count, k) * shapley_kernel(count, k) for k in range(1, count)]
        size = 1 + int(torch.multinomial(torch.tensor(kernel, dtype=torch.float64), 1, generator=numbers))
        chosen = torch.randperm(count, generator=numbers).tolist()[:size]
        rows.append([1.0 if j in chosen else 0.0 for j in range(count)])
        rows.append([0.0 if j in chosen else 1.0 for j in range(count)])
    left, right = [], []
    for row in rows[:samples]:
        left.append([z - sum(row) / count for z in row])
        right.append(y(showing(picture, places, row, cover)) - none - share * sum(row))
    return spread(share + np.linalg.lstsq(np.array(left), np.array(right), rcond=1e-8)[0], places)


def shapley_kernel(count: int, size: int) -> float:
    """Return the Shapley kernel of one coalition of that size: theorem 2."""
    return (count - 1) / (math.comb(count, size) * size * (count - size))


def shapley_sampling(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    samples: int = 10,
    segments: int = 50,
    seed: int = 0,
    baseline: str = "mean",
) -> Tensor:
    """Return each superpixel's mean rise of the score when it is uncovered, over random orders."""
    y, places = score_of(model, index, versus), superpixels(picture, segments)
    cover = baseline_of(baseline, picture)
    count = int(places.max()) + 1
    phi = [0.0] * count
    for i in range(samples):
        row = [0.0] * count
        before = y(showing(picture, places, row, cover))
        for j in torch.randperm(count, generator=drawn(seed, i)).tolist():
            row[j] = 1.0
            after = y(showing(picture, places, row, cover))
            phi[j] += (after - before) / samples
            before = after
    return spread(phi, places)


def score_of(model: nn.Module, index: int, versus: int | None) -> Score:
    """Return the explained score as a function of one picture."""
    model = copy.deepcopy(model).double().eval()

    def score(picture: Tensor) -> float:
        with torch.no_grad():
            scores: list[float] = model(picture.double().clone())[0].tolist()
        return scores[index] if versus is None else scores[index] - scores[versus]

    return score


def drawn(seed: int, sample: int) -> torch.Generator:
    """Return the random numbers of one sample."""
    return torch.Generator().manual_seed(seed * 1_000_003 + sample)


def superpixels(picture: Tensor, segments: int) -> NDArray[np.int64]:
    """Return the number of the superpixel of each pixel `(H, W)`."""
    pixels = picture[0].double().permute(1, 2, 0).numpy()
    scaled = (pixels - pixels.min()) / ((pixels.max() - pixels.min()) or 1.0)
    compactness = 0.17 * math.sqrt(picture.shape[1])
    labels = slic(scaled, n_segments=segments, compactness=compactness, sigma=1, convert2lab=False, channel_axis=-1)
    numbers = sorted(set(labels.flatten().tolist()))
    return np.array([[numbers.index(label) for label in row] for row in labels.tolist()])


def showing(picture: Tensor, places: NDArray[np.int64], row: Sequence[float], cover: Tensor) -> Tensor:
    """Return the picture with only those superpixels that `row` has 1 for, the cover elsewhere."""
    x = picture.double().clone()
    for i, line in enumerate(places.tolist()):
        for j, place in enumerate(line):
            if not row[place]:
                x[:, :, i, j] = cover[:, :, i, j]
    return x


def spread(phi: Sequence[float] | NDArray[np.float64], places: NDArray[np.int64]) -> Tensor:
    """Return the map `(H, W)`: each pixel has its superpixel's value."""
    return torch.tensor([[float(phi[place]) for place in line] for line in places.tolist()], dtype=torch.float64)
