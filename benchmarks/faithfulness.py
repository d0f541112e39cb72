"""Whether maps of the embedded model find what it looks at, on ten of scikit-image's real pictures.

A map beats its control where its margin is above zero; one picture alone carries a verdict only above the noise.
`--misplaced` also judges each map laid at wrong places: such maps know nothing, and
how many of them are called better is how often the verdict is wrong.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import skimage
import torch
from _timing import print_table
from PIL import Image
from torch import Tensor

from app.network import Network
from explainers import Attribution, Explanation, Target, Work
from explainers.faithfulness import Faithfulness, faithfulness
from models.catalog import DEFAULT_MODEL
from models.registry import Registry

PICTURES = Path(skimage.__file__).parent / "data"
TEN = (
    "astronaut.png",
    "camera.png",
    "chelsea.png",
    "clock_motion.png",
    "coffee.png",
    "coins.png",
    "horse.png",
    "motorcycle_left.png",
    "page.png",
    "rocket.jpg",
)
"""Those that show a thing, and have a class that can be argued for; no two of the same thing."""
WRONG_PLACES = ((0.0, 0.5), (0.25, 0.25), (0.5, 0.5), (0.75, 0.25))


def explained(network: Network, picture: Tensor, method: str, samples: int) -> Attribution:
    """Return the map of the predicted class."""
    chosen_layers = [network.default_layer] if method.endswith("cam") and network.default_layer else []
    (answer,) = network.explain(
        picture[None].numpy(),
        [[Target()]],
        method=method,
        layers=chosen_layers,
        parameters={"samples": samples} if method == "rise" else {},
        work=Work(chunk=16),
    )
    assert isinstance(answer, Explanation)
    return answer.attributions[0]


def judged(
    network: Network, picture: Tensor, explanation: Attribution, down: float = 0, across: float = 0
) -> Faithfulness:
    """Judge the map, laid elsewhere by shares of the sides."""
    raw = explanation.raw
    shift = (round(down * raw.shape[0]), round(across * raw.shape[1]))
    raw = np.roll(raw, shift, axis=(0, 1))
    probabilities = network.model.probabilities
    return faithfulness(network.subject, picture, [explanation.score], [raw], probabilities=probabilities)[0]


def table(
    network: Network, names: Sequence[str], methods: Sequence[str], samples: int
) -> dict[str, list[Faithfulness]]:
    """Print one row per picture and return the answers, by method."""
    found: dict[str, list[Faithfulness]] = {method: [] for method in methods}
    rows = []
    for name in names:
        pixels = np.asarray(Image.open(PICTURES / name).convert("RGB"))
        picture = torch.from_numpy(network.model.preprocess(pixels)[0])
        for method in methods:
            explanation = explained(network, picture, method, samples)
            answer = judged(network, picture, explanation)
            found[method].append(answer)
            label = network.model.labels[explanation.score.index]
            rows.append([name, label, method, *figures(answer), answer.verdict.replace("_", " ")])
    columns = ["picture", "class", "method", "p", "- hottest tenth", "- elsewhere", "insertion", "deletion"]
    print_table([*columns, "margin", "noise", "centre", "verdict"], rows)
    return found


def figures(answer: Faithfulness) -> list[str]:
    """The numbers of a row."""
    whole, without = answer.deletion["map"][:2]
    areas = (answer.insertion_area("map"), answer.deletion_area("map"))
    elsewhere = answer.deletion["random"][1]
    signed = (without - whole, elsewhere - whole)
    rest = (answer.margin, answer.noise, answer.gain("centre"))
    return [f"{whole:.2f}", *(f"{x:+.2f}" for x in signed), *(f"{x:.2f}" for x in areas), *(f"{x:+.3f}" for x in rest)]


def summary(found: dict[str, list[Faithfulness]]) -> None:
    """Print one row per method."""
    rows = []
    for method, answers in found.items():
        margins = [answer.margin for answer in answers]
        error = statistics.stdev(margins) / len(margins) ** 0.5 if len(margins) > 1 else float("nan")
        better = sum(answer.is_better for answer in answers)
        best = sum(answer.verdict == "better_than_controls" for answer in answers)
        beaten = sum(margin > 0 for margin in margins)
        counts = (f"{count} of {len(answers)}" for count in (beaten, better, best))
        rows.append([method, *counts, f"{statistics.mean(margins):+.3f} ± {error:.3f}"])
    print_table(["method", "beats random", "beyond noise", "and controls", "mean margin ± its error"], rows)


def wrong(network: Network, names: Sequence[str], methods: Sequence[str], samples: int) -> None:
    """Print how many misplaced maps are called better."""
    rows = []
    for method in methods:
        called: list[bool] = []
        for name in names:
            pixels = np.asarray(Image.open(PICTURES / name).convert("RGB"))
            picture = torch.from_numpy(network.model.preprocess(pixels)[0])
            explanation = explained(network, picture, method, samples)
            answers = [judged(network, picture, explanation, *place) for place in WRONG_PLACES]
            called += [answer.is_better for answer in answers]
        rows.append([method, f"{sum(called)} of {len(called)}"])
    print_table(["method, misplaced", "called better"], rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", nargs="*", default=list(TEN))
    parser.add_argument("--methods", nargs="*", default=["gradcam", "rise"])
    parser.add_argument("--samples", type=int, default=500, help="of RISE")
    parser.add_argument("--misplaced", action="store_true", help="also judge maps at wrong places (slow)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    network = Network(Registry().get(DEFAULT_MODEL), torch.device("cpu"), allow_download=False)
    print(f"{DEFAULT_MODEL}, layer {network.default_layer}, the predicted class\n")
    found = table(network, options.pictures, options.methods, options.samples)
    print()
    summary(found)
    if options.misplaced:
        print()
        wrong(network, options.pictures, options.methods, options.samples)


if __name__ == "__main__":
    main()
