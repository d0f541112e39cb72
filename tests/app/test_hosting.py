"""What the owner thread finds out about a model when it loads it."""

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from app.config import Settings
from app.hosting import Host, Hosts, Payload
from explainers import Explanation, Target
from models import Registry


def model(folder: Path, text: str) -> Registry:
    (folder / "m.toml").write_text(f'weights = "random"\n{text}\n')
    return Registry(folder)


def explain(host: Host, layers: list[str]) -> Explanation:
    height, width = host.model.preprocess.input_size
    picture = np.random.default_rng(0).standard_normal((3, height, width)).astype(np.float32)
    payload = Payload(picture, (Target(),))
    return host.explain(payload, method="gradcam", layers=layers, parameters={}, timeout_s=60).result()


@pytest.mark.parametrize(
    ("arch", "layer", "grid"),
    [
        # 224 / 16 = 14 patches; after the last attention only the class token matters, so it is the norm before it
        ("timm:vit_tiny_patch16_224", "blocks.11.norm1", (14, 14)),
        ("torchvision:resnet18", "layer4", (7, 7)),  # 224 / 32
        ("torchvision:squeezenet1_1", "classifier.2", (13, 13)),
    ],
)
def test_the_default_layer_is_found_and_its_map_is_not_empty(
    tmp_path: Path, arch: str, layer: str, grid: tuple[int, int]
) -> None:
    hosts = Hosts(model(tmp_path, f'arch = "{arch}"'), Settings(torch_threads=1))
    host = hosts.ready("m")
    assert host.default_layer == layer
    raw = explain(host, [layer]).attributions[0].raw
    assert raw.shape == grid
    assert raw.any()
    hosts.close()


def test_a_layer_named_in_the_model_file_is_the_default(tmp_path: Path) -> None:
    hosts = Hosts(model(tmp_path, 'arch = "torchvision:resnet18"\nlayer = "layer3"'), Settings(torch_threads=1))
    assert hosts.ready("m").default_layer == "layer3"
    hosts.close()


def test_an_unloaded_model_leaves_the_memory_and_its_thread_ends(models_dir: Path) -> None:
    hosts = Hosts(Registry(models_dir), Settings(torch_threads=1, default_model="small"))
    module = weakref.ref(hosts.ready("binary").model.module)
    before = threading.active_count()
    thread = next(thread for thread in threading.enumerate() if thread.name == "owner-binary")
    assert hosts.unload("binary")
    assert not hosts.unload("binary")
    thread.join(10)
    assert threading.active_count() == before - 1
    gc.collect()
    assert module() is None
    hosts.close()
