"""Transformers from the model file to the answer: every CAM and attention method on every kind of them."""

import io
from collections.abc import Iterator

import numpy as np
import pytest
from flask.testing import FlaskClient

import explainers
from app import create_app
from app.config import Settings
from app.hosting import Host
from app.hosts import Hosts
from app.tasks import Explain, Payload
from explainers import Target
from explainers.errors import MethodNotApplicable
from models import Registry

CAMS = [name for name in explainers.names() if explainers.get(name).family == "cam"]
ATTENTION = [name for name in explainers.names() if explainers.get(name).family == "attention"]
LOOKS_AT_ALL_TOKENS = ("vit", "deit", "torchvision_vit")
OTHERS = ("swin", "swin_v2", "maxvit", "torchvision_swin", "torchvision_swin_v2", "torchvision_maxvit")
FILE = """
arch = "python:tests.app.transformer_nets:{name}"
weights = "random"
preprocess = {{ input_size = 64, mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }}
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("models")
    for name in (*LOOKS_AT_ALL_TOKENS, *OTHERS):
        (folder / f"{name}.toml").write_text(FILE.format(name=name))
    hosts = Hosts(Registry(folder), Settings(torch_threads=1, default_model="vit", model_memory_bytes=2**33))
    yield hosts
    hosts.close(grace_s=60)


def raw(host: Host, method: str) -> np.ndarray:
    layers = [] if explainers.get(method).max_layers == 0 else [host.network.default_layer]
    picture = np.random.default_rng(0).standard_normal((3, 64, 64)).astype(np.float32)
    job = host.submit(Explain.by(method, layers, {}), Payload(picture, (Target(),)), timeout_s=60)
    return job.result().attributions[0].raw


def assert_says_something(map_: np.ndarray, size: int) -> None:
    assert map_.shape == (size, size)
    assert np.isfinite(map_).all()
    assert np.ptp(map_) > 0.01 * np.abs(map_).max()


@pytest.mark.parametrize("name", [*LOOKS_AT_ALL_TOKENS, *OTHERS])
def test_every_cam_explains_every_transformer(hosts: Hosts, name: str) -> None:
    # A ViT: 64 / 8. Swin and MaxViT: 64 / 4, halved once.
    host = hosts.ready(name)
    for method in CAMS:
        assert_says_something(raw(host, method), 64 if method == "fullgrad" else 8)


@pytest.mark.parametrize("name", LOOKS_AT_ALL_TOKENS)
def test_every_attention_method_explains_transformers_of_one_grid(hosts: Hosts, name: str) -> None:
    host = hosts.ready(name)
    for method in ATTENTION:
        assert_says_something(raw(host, method), 8)


@pytest.mark.parametrize("name", OTHERS)
def test_attention_methods_refuse_windows(hosts: Hosts, name: str) -> None:
    host = hosts.ready(name)
    for method in ATTENTION:
        with pytest.raises(MethodNotApplicable, match=r"all tokens at all tokens.*gradcam"):
            raw(host, method)


@pytest.fixture(scope="module")
def vit_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "vit.toml").write_text('arch = "timm:vit_tiny_patch16_224"\nweights = "random"\n')
    app = create_app(Settings(models_dir=folder, default_model="vit", torch_threads=1))
    yield app.test_client()
    app.extensions["heatlens"].close()


@pytest.mark.parametrize("method", ATTENTION)
def test_attention_methods_over_http(vit_client: FlaskClient, client: FlaskClient, cat: bytes, method: str) -> None:
    answer = vit_client.post(f"/v1/explain?method={method}&format=npy", data=cat, content_type="image/png")
    assert answer.status_code == 200, answer.text
    map_ = np.load(io.BytesIO(answer.data))
    assert map_.shape == (300, 451)
    assert np.ptp(map_[np.isfinite(map_)]) > 0
    refusal = client.post(f"/v1/explain?method={method}", data=cat, content_type="image/png")
    assert (refusal.status_code, refusal.json["code"]) == (422, "method_not_applicable")
    assert "no attention that can be seen" in refusal.json["detail"]
