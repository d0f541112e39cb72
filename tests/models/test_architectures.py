"""Networks by name, and those that cannot be explained."""

import re
import warnings

import pytest
import torch
from torch import nn

from models.architectures import IMAGENET, build, default_preprocess, plain
from models.errors import UnknownArchitecture, UnsupportedModule
from models.preprocess import Preprocess
from models.spec import ModelSpec, RandomWeights
from tests.models import networks
from tests.models.networks import Tiny


def spec(arch: str, **options: object) -> ModelSpec:
    return ModelSpec(name="mine", arch=arch, arch_options=options, weights=RandomWeights())


@pytest.mark.parametrize(
    ("arch", "options", "head"),
    [
        ("torchvision:squeezenet1_1", {"num_classes": 7}, "classifier.1"),
        ("torchvision:googlenet", {"num_classes": 7}, "fc"),
        ("timm:mobilenetv3_small_050", {"num_classes": 7}, "classifier"),
        ("timm:mobilenetv3_small_050.lamb_in1k", {"num_classes": 7}, "classifier"),
        ("python:tests.models.networks:Tiny", {"classes": 7}, "head"),
    ],
)
def test_options_reach_the_factory(arch: str, options: dict[str, object], head: str) -> None:
    weight = build(spec(arch, **options)).get_submodule(head).weight
    assert isinstance(weight, torch.Tensor)
    assert weight.shape[0] == 7


@pytest.mark.parametrize(
    ("arch", "complaint"),
    [
        ("torchvision:resnet5", "torchvision has no image classifier 'resnet5'. Did you mean 'resnet50'"),
        ("torchvision:fcn_resnet50", "torchvision has no image classifier"),
        ("timm:resnet18d_", "timm has no model 'resnet18d_'. Did you mean 'resnet18d'"),
        ("python:tests.models.nothing:Tiny", "there is no module 'tests.models.nothing'"),
        ("python:tests.models.networks:Tinny", "has no function or class 'Tinny'"),
        ("python:tests.models.networks:NOT_CALLABLE", "has no function or class 'NOT_CALLABLE'"),
        ("python:tests.models.networks:fails", "failed with FileNotFoundError"),
        ("python:tests.models.networks:no_network", "returned dict, not a torch.nn.Module"),
    ],
)
def test_what_cannot_be_built_is_named(arch: str, complaint: str) -> None:
    with pytest.raises(UnknownArchitecture, match=re.escape(complaint)) as caught:
        build(spec(arch))
    assert "/srv/secret" not in str(caught.value)


def test_a_wrong_option_is_reported_with_its_cause_chained() -> None:
    with pytest.raises(UnknownArchitecture, match="failed with TypeError") as caught:
        build(spec("torchvision:squeezenet1_1", clases=3))
    assert "clases" in str(caught.value.__cause__)


@pytest.mark.parametrize("option", ["pretrained", "weights", "checkpoint_path", "pretrained_cfg", "weights_backbone"])
def test_options_may_not_bring_weights(option: str) -> None:
    with pytest.raises(UnknownArchitecture, match=f"may not contain {option}"):
        build(spec("timm:mobilenetv3_small_050", **{option: True}))


def test_wrappers_are_taken_off() -> None:
    assert type(build(spec("python:tests.models.networks:wrapped_for_many_devices"))) is Tiny
    network = build(spec("python:tests.models.networks:compiled"))
    assert list(network.state_dict()) == list(Tiny().state_dict())
    assert [type(part) for part in network.modules()] == [Tiny, nn.Conv2d, nn.Linear]
    assert all(part._compiled_call_impl is None for part in network.modules())


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return nn.Sequential(torch.jit.trace(Tiny(), torch.zeros(1, 3, 8, 8)))


def compiled_to_torchscript() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(Tiny())


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so is this kind of quantisation
        return nn.Sequential(nn.Flatten(), torch.ao.nn.quantized.dynamic.Linear(4, 2))


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        (scripted, "Part '0' of the network is TorchScript (TopLevelTracedModule)"),
        (quantised, "Part '1' of the network is quantised (Linear)"),
        (networks.lazy, "Part '1' of the network is not initialised (LazyLinear)"),
        (compiled_to_torchscript, "Part '(root)' of the network is TorchScript (RecursiveScriptModule)"),
        (lambda: nn.DataParallel(compiled_to_torchscript()), "Part '(root)' of the network is TorchScript"),
        (lambda: scripted()[0], "Part '(root)' of the network is TorchScript"),  # type: ignore[index]
    ],
)
def test_what_hooks_cannot_see_into_is_refused_by_name(network: object, complaint: str) -> None:
    assert callable(network)
    with pytest.raises(UnsupportedModule, match=re.escape(complaint)):
        plain(network())


def test_a_float_network_with_marks_for_quantisation_is_taken() -> None:
    network = nn.Sequential(Tiny(), torch.ao.nn.quantized.FloatFunctional())
    assert plain(network) is network


def test_each_source_has_its_default_preprocessing() -> None:
    network = Tiny()
    # torchvision's documentation of EfficientNet-B1's IMAGENET1K_V2: resize_size=[255], bilinear, crop_size=[240].
    assert default_preprocess(spec("torchvision:efficientnet_b1"), network) == Preprocess(
        input_size=(240, 240), resize=(255, 255), mean=IMAGENET.mean, std=IMAGENET.std
    )
    assert default_preprocess(spec("python:tests.models.networks:Tiny"), network) == IMAGENET


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # int(224 / 0.9) = 248
        ({"crop_pct": 0.9, "interpolation": "bicubic"}, {"resize": (248, 248), "interpolation": "bicubic"}),
        ({"crop_pct": 1.0, "crop_mode": "border"}, {"resize": (224, 224), "fit": "pad"}),
        ({"crop_pct": 0.875, "crop_mode": "squash"}, {"resize": (256, 256), "fit": "squash"}),
        ({"crop_pct": 0.5, "input_size": (3, 64, 32)}, {"input_size": (64, 32), "resize": (128, 64)}),
        ({"crop_pct": 1.0, "mean": (0.5, 0.5, 0.5)}, {"resize": (224, 224), "mean": (0.5, 0.5, 0.5)}),
    ],
)
def test_a_timm_network_brings_its_own_preprocessing(config: dict[str, object], expected: dict[str, object]) -> None:
    network = Tiny()
    network.pretrained_cfg = {"interpolation": "bilinear"} | config  # type: ignore[assignment]
    base = {"input_size": 224, "mean": IMAGENET.mean, "std": IMAGENET.std}
    assert default_preprocess(spec("timm:resnet18"), network) == Preprocess.model_validate(base | expected)
