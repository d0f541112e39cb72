"""timm's weights: files in its caches, the same scores, real downloads."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from models import Registry, catalog, fetch, load, timm_catalog, weights_present
from models.errors import ChecksumMismatch, InvalidWeights, WeightsMismatch, WeightsUnavailable
from models.spec import TimmWeights
from tests.models.networks import Tiny

SMALL = "mobilenetv3_small_050.lamb_in1k"
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two empty caches; the Hugging Face hub's is returned."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(hub: Path, name: str, save: Callable[[Path], object], file: str = "model.safetensors") -> Path:
    """Save a file of the repository `timm/NAME` as huggingface_hub lays it out, and return its path."""
    repository = hub / f"models--timm--{name}"
    path = repository / "snapshots" / REVISION / file
    path.parent.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    save(path)
    return path


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(3)
    return timm.create_model(SMALL).eval()


@pytest.fixture
def cached(hub: Path, network: nn.Module) -> Path:
    return put(hub, SMALL, lambda path: save_file(network.state_dict(), path))


# Listing


def test_only_what_is_cached_is_listed(cached: Path) -> None:
    before = Registry().names()
    assert [name for name in before if name.startswith("timm/")] == [f"timm/{SMALL}"]
    cached.unlink()
    assert [name for name in Registry().names() if name.startswith("timm/")] == []


def test_with_empty_caches_listing_does_not_import_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    timm_catalog._published.cache_clear()
    monkeypatch.setitem(sys.modules, "timm", None)  # importing it would now raise
    assert Registry().names() == list(catalog.names())


# Loading


def test_a_cached_file_gives_timms_scores(cached: Path, network: nn.Module, cat_pixels: NDArray[np.uint8]) -> None:
    spec = Registry().get(f"timm/{SMALL}")
    assert weights_present(spec)
    model = load(spec)
    assert model.weights_sha256 == hashlib.sha256(cached.read_bytes()).hexdigest() == fetch(spec)
    assert model.labels[285] == "Egyptian cat"
    x = torch.from_numpy(model.preprocess(cat_pixels)[0])[None]
    with torch.no_grad():
        torch.testing.assert_close(model.scores(x), network(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", timm.list_pretrained("test_*"))
def test_each_family_loads_through_timms_own_loader(hub: Path, name: str) -> None:
    """timm's small networks for tests, one of each family."""
    torch.manual_seed(5)
    network = timm.create_model(name).eval()
    put(hub, name, lambda path: save_file(network.state_dict(), path))
    model = load(Registry().get(f"timm/{name}"))
    assert len(model.labels) == 1000
    x = torch.rand(1, 3, *model.preprocess.input_size)
    with torch.no_grad():
        torch.testing.assert_close(model.scores(x), network(x), rtol=1e-3, atol=1e-5)


def test_the_name_without_a_tag_finds_the_same_file(cached: Path) -> None:
    assert fetch(Registry().get("timm/mobilenetv3_small_050")) == hashlib.sha256(cached.read_bytes()).hexdigest()


def test_a_pickled_file_is_read_where_there_is_no_other(hub: Path, network: nn.Module) -> None:
    put(hub, SMALL, lambda path: torch.save(network.state_dict(), path), "pytorch_model.bin")
    model = load(Registry().get(f"timm/{SMALL}"))
    torch.testing.assert_close(model.module.state_dict()["classifier.bias"], network.state_dict()["classifier.bias"])


def test_timms_own_filter_translates_old_names(hub: Path) -> None:
    """`checkpoint_filter_fn` of convnext takes the names of the original code."""
    name = "test_convnext.r160_in1k"
    torch.manual_seed(4)
    network = timm.create_model(name).eval()
    original = network.state_dict()
    for new, old in [("head.norm.", "norm."), ("head.fc.", "head."), ("conv_dw", "dwconv"), ("mlp.fc", "pwconv")]:
        original = {key.replace(new, old): value for key, value in original.items()}
    assert original.keys() != network.state_dict().keys()
    put(hub, name, lambda path: torch.save({"model": original}, path), "pytorch_model.bin")
    x = torch.rand(1, 3, 160, 160)
    with torch.no_grad():
        torch.testing.assert_close(load(Registry().get(f"timm/{name}")).scores(x), network(x), rtol=1e-4, atol=1e-6)


def test_a_link_named_by_another_checksum_is_refused(cached: Path) -> None:
    """The hub keeps a file as a blob named by its SHA-256, and a link to it in the snapshot."""
    right = hashlib.sha256(cached.read_bytes()).hexdigest()
    blobs = cached.parents[2] / "blobs"
    blobs.mkdir()
    cached.rename(blobs / right)
    cached.symlink_to(blobs / right)
    assert load(Registry().get(f"timm/{SMALL}")).weights_sha256 == right
    (blobs / right).write_bytes((blobs / right).read_bytes() + b"\0")
    with pytest.raises(ChecksumMismatch, match="nothing was loaded"):
        load(Registry().get(f"timm/{SMALL}"))


class Payload:
    """Creates a folder when unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_code_in_a_cached_file_is_never_executed(hub: Path, tmp_path: Path) -> None:
    put(hub, SMALL, lambda path: torch.save({"a": Payload(tmp_path / "executed")}, path), "pytorch_model.bin")
    with pytest.raises(InvalidWeights, match="never executed"):
        load(Registry().get(f"timm/{SMALL}"))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("classes", [None, 5])
def test_another_networks_file_is_refused(hub: Path, classes: int | None) -> None:
    other = Tiny() if classes is None else timm.create_model(SMALL, num_classes=classes)
    put(hub, SMALL, lambda path: save_file(other.state_dict(), path))
    with pytest.raises(WeightsMismatch, match=f"does not fit timm's '{SMALL}'"):
        load(Registry().get(f"timm/{SMALL}"))


def test_a_damaged_file_is_named(hub: Path) -> None:
    put(hub, SMALL, lambda path: path.write_bytes(b"nonsense"))
    with pytest.raises(InvalidWeights, match=r"'model\.safetensors' is not a readable"):
        load(Registry().get(f"timm/{SMALL}"))


def test_absent_weights_say_what_to_do() -> None:
    spec = Registry().get(f"timm/{SMALL}")
    assert not weights_present(spec)
    with pytest.raises(WeightsUnavailable, match=f"`heatlens models fetch timm/{SMALL}`") as caught:
        load(spec)
    assert "HF_HOME" in str(caught.value)


# The few with nothing but an address


def test_a_file_in_torchs_cache_is_found(tmp_path: Path) -> None:
    name = "legacy_seresnet18.in1k"
    spec = Registry().get(f"timm/{name}")
    assert isinstance(spec.weights, TimmWeights)
    assert spec.weights.repository is None
    with pytest.raises(WeightsUnavailable, match=r"'seresnet18-4bb0ce65\.pth'.*TORCH_HOME"):
        load(spec)
    path = tmp_path / "torch" / "hub" / "checkpoints" / "seresnet18-4bb0ce65.pth"
    path.parent.mkdir(parents=True)
    torch.save(timm.create_model(name).state_dict(), path)
    assert f"timm/{name}" in Registry().names()
    with pytest.raises(ChecksumMismatch, match="nothing was loaded"):  # its name promises another content
        load(spec)


# A real download, from a server that speaks as much of the hub's protocol as the client needs


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves `/REPOSITORY/resolve/main/FILE` from `files`; HEAD tells commit, hash and size."""

    files: dict[str, bytes] = {}  # noqa: RUF012 - one server per test
    sent = 1.0  # of each body

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        content = self.files.get(self.path)
        self.send_response(200 if content is not None else 404)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
            content = b""
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content[: int(self.sent * len(content))])

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    Hub.files = {}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


FETCH = """
import json, sys
from models import Registry, fetch, load, weights_present
spec = Registry().get(sys.argv[1])
before = weights_present(spec)
sha256 = fetch(spec)
print(json.dumps([before, sha256, load(spec).weights_sha256, spec.name in Registry().names()]))
"""


def test_a_real_download(endpoint: str, tmp_path: Path, network: nn.Module) -> None:
    """In a process of its own: the hub's client reads its settings when it is imported."""
    save_file(network.state_dict(), tmp_path / "a.safetensors")
    content = (tmp_path / "a.safetensors").read_bytes()
    Hub.files[f"/timm/{SMALL}/resolve/main/model.safetensors"] = content
    sha256 = hashlib.sha256(content).hexdigest()
    home = str(tmp_path / "home")
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": home, "TORCH_HOME": home, "OMP_NUM_THREADS": "1"}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", FETCH, f"timm/{SMALL}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [False, sha256, sha256, True]
    assert "%" not in done.stderr  # no progress bar unless asked for


@pytest.fixture
def served(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server, as the hub that this process knows."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    return endpoint


@pytest.mark.usefixtures("served")
def test_where_there_are_no_safetensors_the_pickled_file_is_fetched(tmp_path: Path, network: nn.Module) -> None:
    torch.save(network.state_dict(), tmp_path / "a.bin")
    content = (tmp_path / "a.bin").read_bytes()
    Hub.files[f"/timm/{SMALL}/resolve/main/pytorch_model.bin"] = content
    spec = Registry().get(f"timm/{SMALL}")
    model = load(spec, allow_download=True)
    assert model.weights_sha256 == hashlib.sha256(content).hexdigest()
    assert weights_present(spec)


def test_a_download_that_fails_says_what_to_do(served: str) -> None:
    spec = Registry().get(f"timm/{SMALL}")  # the server has no such file
    with pytest.raises(WeightsUnavailable, match=f"could not be downloaded from {served}") as caught:
        load(spec, allow_download=True)
    assert "`heatlens models fetch" in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.usefixtures("served")
def test_a_download_that_breaks_off_leaves_nothing(network: nn.Module, tmp_path: Path, hub: Path) -> None:
    save_file(network.state_dict(), tmp_path / "a.safetensors")
    Hub.files[f"/timm/{SMALL}/resolve/main/model.safetensors"] = (tmp_path / "a.safetensors").read_bytes()
    Hub.sent = 0.5
    try:
        with pytest.raises(WeightsUnavailable, match="could not be downloaded"):
            load(Registry().get(f"timm/{SMALL}"), allow_download=True)
    finally:
        Hub.sent = 1.0
    assert not list(hub.glob("*/snapshots/*/*"))
