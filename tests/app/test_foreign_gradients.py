"""From a model file to the map: what the author of a network did to its gradients and features counts."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import explainers
from app.config import Settings
from app.hosting import Host
from app.hosts import Hosts
from app.tasks import Explain, Payload
from explainers import Target
from models import Registry
from tests.explainers import foreign_nets as nets
from tests.explainers.checks import assert_same, few, snapshot, twin

FILE = """
arch = "python:tests.explainers.foreign_nets:{name}"
weights = "random"
layer = "layer"
preprocess = {{ input_size = 32, mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }}
"""
NAMES = [build.__name__ for build in nets.FOREIGN]
METHODS = ("gradcam", "hirescam", "gradcam++", "saliency", "integrated_gradients", "guided_gradcam")
CLASS = 2


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("models")
    for name in (*NAMES, "plain", "rarely_clipped"):
        (folder / f"{name}.toml").write_text(FILE.format(name=name))
    settings = Settings(torch_threads=1, default_model="plain", model_memory_bytes=2**33, max_chunk_pictures=1)
    hosts = Hosts(Registry(folder), settings)
    yield hosts
    hosts.close(grace_s=60)


def parameters_of(method: str) -> dict[str, object]:
    """Few samples; the twins know nothing of the preprocessing, and so not what a black pixel is."""
    return few(method) | ({"baseline": "mean"} if method == "integrated_gradients" else {})


def picture(scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(0).standard_normal((3, 32, 32))).astype(np.float32)


def raw(host: Host, method: str, scale: float = 1.0) -> np.ndarray:
    chosen = explainers.get(method)
    layers = ["layer"] if chosen.max_layers else []
    payload = Payload(picture(scale), (Target(CLASS),))
    job = host.submit(Explain.by(method, layers, parameters_of(method)), payload, timeout_s=60)
    return job.result().attributions[0].raw


def literally(host: Host, method: str, scale: float = 1.0) -> torch.Tensor:
    """The twin of the network that the file names, run as a whole with plain autograd."""
    options = {"layer": "layer"} if explainers.get(method).max_layers else {}
    inputs = torch.from_numpy(picture(scale))[None]
    return twin(method, host.model.module, inputs, CLASS, **options, **parameters_of(method))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [*NAMES, "plain"])
def test_maps_are_those_of_plain_autograd(hosts: Hosts, name: str, method: str) -> None:
    host = hosts.ready(name)
    before = snapshot(host.model.module)
    assert_same(raw(host, method), literally(host, method), 2e-4)
    assert snapshot(host.model.module) == before


def test_a_function_that_acts_on_few_gradients_is_not_lost_on_the_quick_way(hosts: Hosts) -> None:
    """The check at loading sees no picture that it acts on, and fx does not see the function at all."""
    host, method = hosts.ready("rarely_clipped"), "hirescam"
    assert_same(raw(host, method, 0.1), literally(host, method, 0.1), 2e-4)
    assert_same(raw(host, method, 300.0), literally(host, method, 300.0), 2e-4)
    unclipped = nets.rarely_clipped().double()
    unclipped.behind = nets.unchanged
    inputs = torch.from_numpy(picture(300.0))[None]
    other = twin(method, unclipped, inputs, CLASS, layer="layer")
    assert (other - literally(host, method, 300.0)).abs().max() > 0.1 * other.abs().max()


def test_a_network_without_them_has_its_quick_way(hosts: Hosts) -> None:
    assert hosts.ready("plain").network.scorer is not hosts.ready("plain").network.subject
    assert hosts.ready("rarely_clipped").network.scorer is hosts.ready("rarely_clipped").network.subject
