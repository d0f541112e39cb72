"""What the owner thread finds out about a model when it loads it."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from app.config import Settings
from app.engine import ShuttingDown
from app.errors import DeviceUnavailable, ModelFailed, ModelTooLarge
from app.hosting import Host
from app.hosts import Hosts
from app.metrics import Metrics
from app.network import Network
from app.tasks import Explain, Payload
from explainers import Explanation, Target
from explainers.errors import LayerNotSpatial, UnknownLayer
from models import ModelError, Registry
from tests import zoo
from tests.app.test_hosts import sizes


def model(folder: Path, text: str) -> Registry:
    (folder / "m.toml").write_text(f'weights = "random"\n{text}\n')
    return Registry(folder)


RISE: dict[str, object] = {"samples": 20}


def explain(host: Host, layers: list[str]) -> Explanation:
    height, width = host.model.preprocess.input_size
    picture = np.random.default_rng(0).standard_normal((3, height, width)).astype(np.float32)
    payload = Payload(picture, (Target(),))
    return host.submit(Explain.by("gradcam", layers, {}), payload, timeout_s=60).result()


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
    assert host.network.default_layer == layer
    raw = explain(host, [layer]).attributions[0].raw
    assert raw.shape == grid
    assert raw.any()
    hosts.close(grace_s=60)


def test_a_branch_that_the_score_does_not_depend_on_is_passed_over(models_dir: Path) -> None:
    hosts = Hosts(Registry(models_dir), Settings(torch_threads=1))
    assert hosts.ready("branch").network.default_layer == "second"
    hosts.close(grace_s=60)


def test_a_network_that_takes_one_picture_at_a_time_is_loaded_and_explained(models_dir: Path) -> None:
    hosts = Hosts(Registry(models_dir), Settings(torch_threads=1))
    host = hosts.ready("single")
    assert host.network.default_layer is not None
    assert explain(host, [host.network.default_layer]).attributions[0].raw.any()
    picture = np.random.default_rng(0).standard_normal((3, 32, 32)).astype(np.float32)
    job = host.submit(Explain.by("rise", [], RISE), Payload(picture, (Target(),)), timeout_s=60)
    assert job.result().attributions[0].raw.any()
    hosts.close(grace_s=60)


def test_a_network_without_a_derivative_is_explained_by_what_needs_none(models_dir: Path) -> None:
    hosts = Hosts(Registry(models_dir), Settings(torch_threads=1))
    host = hosts.ready("no_derivative")
    assert host.network.default_layer is None
    assert (
        host.network.why_no_default_layer
        == "its scores have no gradient with respect to the picture; its head may be all zero"
    )
    payload = Payload(np.random.default_rng(0).standard_normal((3, 32, 32)).astype(np.float32), (Target(),))
    assert host.submit(Explain.by("rise", [], RISE), payload, timeout_s=60).result().attributions[0].raw.any()
    with pytest.raises(
        ModelFailed, match="Running model 'no_derivative' raised RuntimeError; the server's log says where"
    ):
        host.submit(Explain.by("saliency", [], {}), payload, timeout_s=60).result()
    hosts.close(grace_s=60)


def test_a_layer_without_a_grid_is_refused_and_a_misspelt_default_stops_the_load(tmp_path: Path) -> None:
    # maxvit's partition folds windows into the channels' place: four axes, but no picture
    hosts = Hosts(model(tmp_path, 'arch = "timm:maxvit_rmlp_pico_rw_256"'), Settings(torch_threads=1))
    host = hosts.ready("m")
    flat = next(
        layer for layer in host.network.layers if layer.layout is None and layer.shape and len(layer.shape) == 4
    )
    with pytest.raises(LayerNotSpatial, match="no spatial grid was found"):
        explain(host, [flat.name])
    hosts.close(grace_s=60)
    hosts = Hosts(model(tmp_path, 'arch = "torchvision:resnet18"\nlayer = "layer44"'), Settings(torch_threads=1))
    with pytest.raises(UnknownLayer, match="layer4"):
        hosts.ready("m")
    hosts.close(grace_s=60)


def test_a_failed_load_is_remembered_for_a_while_and_costs_no_loaded_model(models_dir: Path, tmp_path: Path) -> None:
    for file in models_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "broken.toml").write_text('arch = "torchvision:resnet18"\nweights = "broken.pth"')
    (tmp_path / "broken.pth").write_bytes(b"not weights")
    hosts = Hosts(
        Registry(tmp_path),
        Settings(torch_threads=1, default_model="small", model_memory_bytes=sum(sizes(models_dir, "small", "binary"))),
    )
    good = hosts.ready("binary")
    with pytest.raises(ModelError):
        hosts.ready("broken")
    broken = hosts.peek("broken")
    with pytest.raises(ModelError):
        hosts.ready("broken")
    assert hosts.peek("broken") is broken
    assert hosts.ready("binary") is good
    hosts.close(grace_s=60)
    with pytest.raises(ShuttingDown):
        hosts.get("binary")


def test_a_layer_named_in_the_model_file_is_the_default(tmp_path: Path) -> None:
    hosts = Hosts(model(tmp_path, 'arch = "torchvision:resnet18"\nlayer = "layer3"'), Settings(torch_threads=1))
    assert hosts.ready("m").network.default_layer == "layer3"
    hosts.close(grace_s=60)


@pytest.mark.parametrize("name", ["binary", "slow"])  # with a quick way, and without
def test_an_unloaded_model_leaves_the_memory_and_its_thread_ends(models_dir: Path, name: str) -> None:
    metrics = Metrics()
    hosts = Hosts(Registry(models_dir), Settings(torch_threads=1, default_model="small"), metrics)
    before = set(threading.enumerate())
    host = hosts.ready(name)
    module = weakref.ref(host.model.module)
    (thread,) = set(threading.enumerate()) - before
    assert b"heatlens_loaded_models 1.0" in metrics.page()
    gc.disable()  # freed when it goes, and not because the collector happened to come by
    try:
        assert hosts.unload(name)
        assert not hosts.unload(name)
        thread.join(10)
        assert not thread.is_alive()
        assert module() is None
    finally:
        gc.enable()
    with pytest.raises(ShuttingDown, match="was unloaded"):
        _ = host.model
    assert b"heatlens_loaded_models 0.0" in metrics.page()
    hosts.close(grace_s=60)


def test_a_model_that_is_too_large_leaves_the_memory(models_dir: Path) -> None:
    settings = Settings(torch_threads=1, default_model="small", model_memory_bytes=1)
    hosts = Hosts(Registry(models_dir), settings)
    before = {id(found) for found in gc.get_objects() if type(found) is Network}
    gc.disable()  # freed when it is refused, and not because the collector happened to come by
    try:
        with pytest.raises(ModelTooLarge):
            hosts.ready("binary")
        refused = hosts.peek("binary")
        assert refused is not None
        refused.owner._thread.join(60)
        assert {id(found) for found in gc.get_objects() if type(found) is Network} <= before
    finally:
        gc.enable()
    hosts.close(grace_s=60)


def test_a_failed_load_is_tried_again_some_time_after_it_failed(
    models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(Registry(models_dir), Settings(torch_threads=1, default_model="small", device="cuda:7"))
    for retry_s, is_the_same in ((1000.0, True), (0.0, False)):
        with pytest.raises(DeviceUnavailable, match="HEATLENS_DEVICE is cuda:7"):
            hosts.ready("small")
        failed = hosts.peek("small")
        assert failed is not None
        failed.owner._thread.join(10)
        monkeypatch.setattr("app.hosting._RETRY_FAILED_S", retry_s)
        assert (hosts.get("small") is failed) == is_the_same
    hosts.close(grace_s=60)


def test_gauges_know_nothing_of_models_that_never_came(models_dir: Path) -> None:
    metrics = Metrics()
    hosts = Hosts(Registry(models_dir), Settings(torch_threads=1, default_model="small"), metrics)
    with pytest.raises(ModelError):
        hosts.ready("quits")
    zoo.may_load.clear()
    loading = hosts.get("slow_to_load")
    assert hosts.unload("quits")
    assert hosts.unload("slow_to_load")
    zoo.may_load.set()
    loading.owner._thread.join(10)
    assert b"heatlens_loaded_models 0.0" in metrics.page()
    assert b'heatlens_loaded_model_bytes{model="slow_to_load"} 0.0' in metrics.page()
    hosts.close(grace_s=60)


def test_an_operators_network_is_found_in_the_working_directory_by_whatever_process(
    tmp_path: Path,
) -> None:
    """Workers for jobs are started with `-P`, which keeps that folder off the path."""
    (tmp_path / "of_mine.py").write_text("from tests.zoo import Small\n")
    (tmp_path / "explainers.py").write_text("raise SystemExit('this is not ours')\n")
    numbers = "input_size = 32, mean = [0, 0, 0], std = [1, 1, 1]"
    names = 'arch = "python:of_mine:Small"\nlabels = ["a", "b", "c", "d"]'
    model(tmp_path, f"{names}\npreprocess = {{ {numbers} }}")
    code = (
        "from app.config import Settings\nfrom app.hosts import Hosts\nfrom models import Registry\n"
        "from pathlib import Path\nhosts = Hosts(Registry(Path('.')), Settings(torch_threads=1))\n"
        "print(hosts.ready('m').model.labels)\nhosts.close(grace_s=60)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    said = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert "'a', 'b', 'c', 'd'" in said.stdout
