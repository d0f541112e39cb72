"""Weights files: strict, and never executed."""

import hashlib
import http.server
import os
import pickle
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from models import Registry, fetch, load, weights_present
from models.errors import ChecksumMismatch, InvalidWeights, WeightsMismatch, WeightsUnavailable
from models.spec import ModelSpec
from models.weights import cached_file, checked_sha256, hash_prefix, put_state, put_state_by_order, read_state
from tests.models.networks import Tiny

State = dict[str, Tensor]


@pytest.fixture
def state() -> State:
    torch.manual_seed(3)
    return Tiny().state_dict()


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def assert_holds(module: nn.Module, state: State) -> None:
    own = module.state_dict()
    assert list(own) == list(state)
    for name, tensor in state.items():
        torch.testing.assert_close(own[name], tensor, rtol=0, atol=0)


# What may be in a file


@pytest.mark.parametrize("suffix", [".pth", ".pt"])
@pytest.mark.parametrize("nest", ["plain", "state_dict", "model", "model_state_dict"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_a_checkpoint_plain_or_nested_wrapped_or_not(
    tmp_path: Path, state: State, suffix: str, nest: str, prefix: str
) -> None:
    content: object = prefixed(state, prefix)
    if nest != "plain":
        content = {"epoch": 3, nest: content, "optimizer": {"lr": 0.1}}
    path = tmp_path / f"a{suffix}"
    torch.save(content, path)
    module = Tiny()
    put_state(module, read_state(path), path.name)
    assert_holds(module, state)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_safetensors(tmp_path: Path, state: State, prefix: str) -> None:
    path = tmp_path / "a.safetensors"
    save_file(prefixed(state, prefix), path)
    module = Tiny()
    put_state(module, read_state(path), path.name)
    assert_holds(module, state)


def test_the_old_format_of_torch_save(tmp_path: Path, state: State) -> None:
    path = tmp_path / "a.pth"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    assert list(read_state(path)) == list(state)


def test_a_prefix_that_the_network_itself_has_is_kept() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = Tiny()

    torch.manual_seed(4)
    other = Holder().state_dict()
    holder = Holder()
    put_state(holder, other, "a.pth")
    assert_holds(holder, other)
    put_state(holder, prefixed(other, "module."), "a.pth")
    assert_holds(holder, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_the_networks(state: State, dtype: torch.dtype) -> None:
    module = Tiny()
    put_state(module, {name: tensor.to(dtype) for name, tensor in state.items()}, "a.pth")
    for name, tensor in module.state_dict().items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, state[name].to(dtype).float(), rtol=0, atol=0)


def test_batch_norms_of_old_files_do_not_count_batches() -> None:
    network = nn.BatchNorm2d(2)
    state = network.state_dict()
    del state["num_batches_tracked"]
    state["running_mean"] = torch.tensor([3.0, 4.0])
    put_state(network, state, "a.pth")
    assert network.running_mean is not None
    assert network.running_mean.tolist() == [3, 4]


# What may not


def test_differences_are_listed(state: State) -> None:
    del state["conv.bias"]
    state["extra.weight"] = torch.zeros(1)
    state["head.weight"] = torch.zeros(5, 4)
    with pytest.raises(WeightsMismatch) as caught:
        put_state(Tiny(), state, "a.pth")
    text = str(caught.value)
    assert "1 missing (conv.bias)" in text
    assert "1 unexpected (extra.weight)" in text
    assert "1 of another shape (head.weight: (5, 4) in the file, (2, 4) in the network)" in text
    assert "num_classes" in text
    assert caught.value.extra["missing"] == ["conv.bias"]


def test_of_many_differences_a_few_are_listed() -> None:
    with pytest.raises(WeightsMismatch) as caught:
        put_state(Tiny(), {f"layer{index}": torch.zeros(1) for index in range(1000)}, "a.pth")
    assert "1000 unexpected (layer0, layer1, layer2, ...)" in str(caught.value)
    assert "4 missing (conv.weight, conv.bias, head.weight, ...)" in str(caught.value)


def test_a_mismatch_changes_nothing(state: State) -> None:
    module = Tiny()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state["head.weight"] = torch.zeros(5, 4)
    with pytest.raises(WeightsMismatch):
        put_state(module, state, "a.pth")
    assert_holds(module, before)


def test_integers_do_not_become_weights(state: State) -> None:
    state["head.weight"] = state["head.weight"].to(torch.int8)
    with pytest.raises(WeightsMismatch, match=r"\(2, 4\) integer in the file, \(2, 4\) in the network"):
        put_state(Tiny(), state, "a.pth")


def test_weights_by_order_must_be_as_many_and_of_the_same_shapes(state: State) -> None:
    module = Tiny()
    renamed = {f"p{index}": tensor for index, tensor in enumerate(state.values())}
    put_state_by_order(module, renamed, "a.pth")
    assert_holds(module, state)
    with pytest.raises(WeightsMismatch, match="has 3 tensors; the network has 4"):
        put_state_by_order(module, dict(list(renamed.items())[:3]), "a.pth")
    with pytest.raises(WeightsMismatch, match="of another shape"):
        put_state_by_order(module, dict(reversed(renamed.items())), "a.pth")


class Payload:
    """Creates a folder when unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_code_in_a_checkpoint_is_never_executed(
    tmp_path: Path, state: State, save: Callable[[object, Path], object], device: str
) -> None:
    path = tmp_path / "a.pth"
    save({"state_dict": state, "hyper_parameters": Payload(tmp_path / "executed")}, path)
    with pytest.raises(InvalidWeights, match=r"'a\.pth'") as caught:
        read_state(path, device=device)
    assert not (tmp_path / "executed").exists()
    assert str(tmp_path) not in str(caught.value)


def test_a_pickled_model_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    torch.save(Tiny(), path)
    with pytest.raises(InvalidWeights, match=r"pickled model.*torch.save\(model.state_dict\(\)"):
        read_state(path)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"PK\x03\x04", b"\x80\x02", pickle.dumps([1, 2]), b"\x00" * 100], ids=repr
)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(InvalidWeights, match="Weights file 'a"):
        read_state(path)


def header_of(text: str | bytes, *, said: int | None = None, behind: bytes = b"") -> bytes:
    """A safetensors file: the length of its header, which is JSON, and the numbers."""
    header = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(header) if said is None else said) + header + behind


BOMBS = {
    "header of 16 EiB": header_of("{}", said=2**64 - 1),
    "header of 4 GiB": header_of("{}", said=2**32),
    "deep header": header_of("[" * 100_000),
    "no JSON": header_of(b"\xff" * 64),
    "numbers beyond the file": header_of('{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'),
    "a shape of 2^126 numbers": header_of(
        f'{{"a": {{"dtype": "F32", "shape": [{2**63 - 1}, {2**63 - 1}], "data_offsets": [0, 4]}}}}', behind=bytes(4)
    ),
    "shape and bytes that differ": header_of(
        '{"a": {"dtype": "F32", "shape": [1000000], "data_offsets": [0, 4]}}', behind=bytes(4)
    ),
    "numbers of two tensors in one place": header_of(
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
        '"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        behind=bytes(4),
    ),
    "backwards": header_of('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}', behind=bytes(4)),
    "a type that there is none of": header_of(
        '{"a": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}}', behind=bytes(4)
    ),
}


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS.keys())
def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidWeights, match=r"Weights file 'a\.safetensors' is not a readable safetensors file"):
        read_state(path)


def test_a_pickle_in_the_clothes_of_safetensors_is_never_executed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    torch.save({"a": Payload(tmp_path / "executed")}, path)
    with pytest.raises(InvalidWeights, match="is not a readable safetensors file"):
        read_state(path)
    assert not (tmp_path / "executed").exists()


def test_code_in_the_old_format_of_torch_save_is_never_executed(tmp_path: Path, state: State) -> None:
    path = tmp_path / "a.pt"
    content = {"state_dict": state, "hyper_parameters": Payload(tmp_path / "executed")}
    torch.save(content, path, _use_new_zipfile_serialization=False)
    with pytest.raises(InvalidWeights, match="never executed"):
        read_state(path)
    assert not (tmp_path / "executed").exists()


def test_a_truncated_file_is_named(tmp_path: Path, state: State) -> None:
    path = tmp_path / "a.pth"
    torch.save(state, path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InvalidWeights, match="damaged"):
        read_state(path)


@pytest.mark.parametrize(
    "content", [{"epoch": 3}, {1: torch.zeros(3)}, torch.zeros(3), [torch.zeros(3)], {"state_dict": {"a": "b"}}]
)
def test_a_file_without_a_state_dict_is_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "a.pth"
    torch.save(content, path)
    with pytest.raises(InvalidWeights, match="holds no state dict"):
        read_state(path)


def test_the_checksum_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(b"abc")
    # FIPS 180-2, appendix B.1: the SHA-256 of "abc".
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert checked_sha256(path) == checked_sha256(path, expected) == checked_sha256(path, expected[:8]) == expected
    with pytest.raises(ChecksumMismatch, match="nothing was loaded"):
        checked_sha256(path, "0" * 64)
    with pytest.raises(InvalidWeights, match=f"'{tmp_path.name}' cannot be read: Is a directory"):
        checked_sha256(tmp_path)


# torchvision's weights


def test_every_torchvision_file_carries_digits_of_its_checksum() -> None:
    for name in torchvision.models.list_models(module=torchvision.models):
        url = torchvision.models.get_model_weights(name).DEFAULT.url
        prefix = hash_prefix(Path(url))
        assert prefix is not None
        assert len(prefix) in (8, 10)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of torch.hub."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def publish(content: object, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put `content` into torch's cache as if it were the file that torchvision offers for squeezenet1_1."""
    path = cache / "new.pth"
    torch.save(content, path)
    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    entry = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
    monkeypatch.setattr(entry.value, "url", f"http://127.0.0.1:9/squeezenet1_1-{digits}.pth")
    return path.rename(cache / f"squeezenet1_1-{digits}.pth")


@pytest.fixture
def published(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.manual_seed(5)
    return publish(torchvision.models.squeezenet1_1(weights=None).state_dict(), cache, monkeypatch)


def squeezenet() -> ModelSpec:
    return Registry().get("squeezenet1_1")


def test_cached_weights_are_loaded(published: Path) -> None:
    assert weights_present(squeezenet())
    model = load(squeezenet())
    assert model.weights_sha256 == hashlib.sha256(published.read_bytes()).hexdigest()
    for name, tensor in torch.load(published, weights_only=True).items():
        torch.testing.assert_close(model.module.state_dict()[name], tensor, rtol=0, atol=0)


def test_cached_weights_of_another_content_are_refused(published: Path) -> None:
    state = torch.load(published, weights_only=True)
    state["classifier.1.bias"] += 1
    torch.save(state, published)
    with pytest.raises(ChecksumMismatch, match="nothing was loaded"):
        load(squeezenet())


def test_code_in_cached_weights_is_never_executed(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish({"classifier.1.bias": Payload(tmp_path / "executed")}, cache, monkeypatch)
    with pytest.raises(InvalidWeights, match="never executed"):
        load(squeezenet())
    assert not (tmp_path / "executed").exists()


def test_cached_weights_of_another_network_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = publish(Tiny().state_dict(), cache, monkeypatch)
    with pytest.raises(WeightsMismatch, match="does not fit torchvision's 'squeezenet1_1'") as caught:
        load(squeezenet())
    assert caught.value.extra["file"] == path.name


@pytest.mark.usefixtures("cache")
def test_missing_weights_say_what_to_do() -> None:
    assert not weights_present(squeezenet())
    with pytest.raises(WeightsUnavailable) as caught:
        load(squeezenet())
    text = str(caught.value)
    assert "'squeezenet1_1-b8a52dc0.pth'" in text  # torchvision's own file name
    assert "`heatlens models fetch squeezenet1_1`" in text
    assert "TORCH_HOME" in text


def test_without_a_network_a_download_says_what_to_do(published: Path) -> None:
    published.unlink()  # nothing listens on port 9
    with pytest.raises(WeightsUnavailable, match=r"could not be downloaded from 127\.0\.0\.1") as caught:
        load(squeezenet(), allow_download=True)
    assert isinstance(caught.value.__cause__, OSError)
    assert not list(published.parent.iterdir())


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder without a word."""

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a web server and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = http.server.HTTPServer(("127.0.0.1", 0), lambda *args: Quiet(*args, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_lands_in_the_cache(
    published: Path, host: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = host
    content = published.read_bytes()
    published.rename(folder / published.name)
    entry = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
    monkeypatch.setattr(entry.value, "url", f"{address}/{published.name}")
    assert fetch(squeezenet()) == hashlib.sha256(content).hexdigest()
    assert published.read_bytes() == content
    published.unlink()
    (folder / published.name).write_bytes(content[:-1])
    with pytest.raises(ChecksumMismatch, match="is damaged"):
        fetch(squeezenet())
    (folder / published.name).unlink()
    with pytest.raises(WeightsUnavailable, match="could not be downloaded"):
        fetch(squeezenet())
    assert not list(published.parent.iterdir())


def test_a_cached_file_needs_no_download(published: Path) -> None:
    url = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.url
    assert cached_file("squeezenet1_1", url, allow_download=False) == published
