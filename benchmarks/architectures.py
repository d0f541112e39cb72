"""Which layer each architecture is explained at, and whether its map is of use: torchvision's and timm's families.

Every network is loaded, traced and explained by `app.hosting.Host`, as in the service, with random weights and the
architecture's own input size; a head that begins at zero is drawn anew, for no score would depend on the picture.
"In place" is `_placing`: of four patches of the picture, how many are found again where they are.

    python benchmarks/architectures.py                              # about an hour; goes on where it stopped
    python benchmarks/architectures.py --results /tmp/one.jsonl --only timm:hiera_tiny_224
"""

import argparse
import gc
import json
import re
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import timm
import torch
import torchvision
from _placing import PLACES, answers, found_again
from _timing import print_table
from PIL import Image

from app import hosting
from app.config import Settings
from app.hosting import Host
from app.tasks import Explain, Payload
from explainers import Target
from models import ModelSpec, catalog
from models.spec import RandomWeights

PICTURE = Path(__file__).parents[1] / "app/web/static/cat.jpg"
RESULTS = Path(tempfile.gettempdir()) / "heatlens-architectures.jsonl"
LARGEST = {"torchvision": 150_000_000, "timm": 100_000_000}  # parameters; of a timm family all larger, the smallest
EVERY = 24  # of a timm family's members by size, every so many, from the smallest
CLEAR = 1.25  # times the mean: cells that change no more than that answer to nothing in particular
COLUMNS = ["family", "architecture", "input", "layer", "read as", "grid", "in place", "s", "outcome"]


def main() -> None:
    options = _parser().parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    hosting.load = with_a_head(hosting.load)
    rows = _stored(options.results)
    for arch, family in (dict.fromkeys(options.only, "") or architectures()).items():
        if arch not in rows:
            rows[arch] = {"family": family, "architecture": arch} | examined(arch)
            with options.results.open("a") as file:
                file.write(json.dumps(rows[arch]) + "\n")
            gc.collect()
    _report(list(rows.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="one JSON object per architecture")
    parser.add_argument("--only", nargs="+", default=[], metavar="ARCH", help="such as torchvision:resnet18")
    return parser


def _stored(results):
    lines = results.read_text().splitlines() if results.exists() else []
    return {row["architecture"]: row for row in map(json.loads, lines)}


def architectures():
    """Return {arch: family}: torchvision's classifiers, then every `EVERY`-th of each timm family by size."""
    classifiers = [name for name in catalog.classifiers() if _torchvision_size(name) <= LARGEST["torchvision"]]
    chosen = {f"torchvision:{name}": _word(name) for name in classifiers}
    for family, sizes in timm_families().items():
        ranked = sorted(sizes, key=sizes.get)
        small = [name for name in ranked if sizes[name] <= LARGEST["timm"]] or ranked[:1]
        chosen |= {f"timm:{name}": family for name in small[::EVERY]}
    return chosen


def timm_families():
    """Return {family: {name: parameters}}; a family is a module of timm and the first word of the name."""
    families = defaultdict(dict)
    for module in timm.list_modules():
        for name in timm.list_models(module=module):
            if not name.startswith("test_"):  # the miniatures of timm's own tests
                with torch.device("meta"):
                    network = timm.create_model(name)
                word = _word(name)
                family = module if module.startswith(word) else f"{module}: {word}"
                families[family][name] = sum(parameter.numel() for parameter in network.parameters())
    return families


def _word(name):
    return re.match("[a-z]+", name)[0]


def _torchvision_size(name):
    return torchvision.models.get_model_weights(name).DEFAULT.meta["num_params"]


def with_a_head(load):
    """Return `load` with linear layers that are all zero drawn anew."""

    def loaded(*args, **options):
        model = load(*args, **options)
        for part in model.module.modules():
            if isinstance(part, torch.nn.Linear) and not part.weight.any():
                torch.nn.init.normal_(part.weight, std=0.02)
        return model

    return loaded


def examined(arch):
    """Return a row without its first columns; whatever goes wrong is its outcome."""
    started = time.perf_counter()
    name = re.sub("[^A-Za-z0-9._-]", "-", arch)[:64]
    host = Host(ModelSpec(name=name, arch=arch, weights=RandomWeights()), Settings(torch_threads=1), may_download=False)
    try:
        host.owner.wait_until_ready(timeout_s=None)
        row = _explained(host)
    except Exception as error:  # noqa: BLE001 - the error's text is the result
        row = {"outcome": f"{type(error).__name__}: {error}"}
    host.owner.close(grace_s=60)
    return row | {"s": round(time.perf_counter() - started, 1)}


def _explained(host):
    height, width = host.model.preprocess.input_size
    row = {"input": f"{height}x{width}", "layer": host.default_layer}
    if host.default_layer is None:
        return row | {"outcome": host.why_no_default_layer}
    layout = next(info.layout for info in host.layers if info.name == host.default_layer)
    row |= {"read as": layout.kind, "grid": "x".join(map(str, layout.grid))}
    with Image.open(PICTURE) as picture:
        inputs = host.model.preprocess(np.asarray(picture.convert("RGB")))[0]
    job = host.submit(Explain.by("gradcam", [host.default_layer], {}), Payload(inputs, (Target(),)), timeout_s=600)
    raw = job.result().attributions[0].raw
    told = answers(host.model, host.default_layer, layout.to_grid, torch.from_numpy(inputs))
    return row | {"in place": f"{found_again(told)} of {len(PLACES)}", "outcome": _outcome(raw, layout.grid, told)}


def _outcome(raw, grid, told):
    if raw.shape != grid:
        return f"the map's shape is {raw.shape}"
    if not raw.any():
        return "the map is zero everywhere"
    if np.ptp(raw) <= 1e-6 * np.abs(raw).max():
        return "the map is constant"
    if found_again(told) == len(PLACES):
        return "usable"
    if told.max() < CLEAR:
        return "with random weights the layer's output does not tell which part of the picture was changed"
    return "the map's cells do not lie where the picture's parts are"


def _report(rows):
    rows.sort(key=lambda row: (row["architecture"].startswith("timm:"), row["family"], row["architecture"]))
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, timm {timm.__version__}\n")
    print_table(COLUMNS, [[str(row.get(column) or "") for column in COLUMNS] for row in rows])
    counts = Counter((row["architecture"].partition(":")[0], row["outcome"] == "usable") for row in rows)
    for source in ("torchvision", "timm"):
        print(f"\n{source}: {counts[source, True]} of {counts[source, True] + counts[source, False]} usable")


if __name__ == "__main__":
    main()
