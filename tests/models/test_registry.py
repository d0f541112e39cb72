"""Names to specifications."""

import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torchvision
from pydantic import ValidationError
from timm.data.config import resolve_model_data_config

from models import DEFAULT_MODEL, ModelSpec, Registry, catalog
from models.errors import InvalidModelFile, UnknownArchitecture, UnknownModel
from models.spec import RandomWeights, TorchvisionWeights


def test_the_default_comes_first_then_the_operators_then_every_torchvision_classifier(tmp_path: Path) -> None:
    (tmp_path / "zebra.toml").write_text('arch = "timm:resnet18"\nweights = "random"\n')
    names = Registry(tmp_path).names()
    assert names == ["efficientnet_lite0", "zebra", *torchvision.models.list_models(module=torchvision.models)]


def test_a_torchvision_classifier_is_described_by_its_best_weights() -> None:
    spec = Registry().get("resnet50")
    weights = torchvision.models.ResNet50_Weights.DEFAULT
    assert spec.arch == "torchvision:resnet50"
    assert spec.weights == TorchvisionWeights(entry="ResNet50_Weights.IMAGENET1K_V2")
    assert spec.labels == tuple(weights.meta["categories"])
    assert spec.parameter_count == 25_557_032  # torchvision's documentation of resnet50
    assert spec.head == "softmax"


@pytest.mark.parametrize("name", catalog.names())
def test_every_built_in_model_has_a_specification(name: str) -> None:
    spec = Registry().get(name)
    assert spec.name == name
    assert spec.preprocess is not None
    assert spec.licence
    assert spec.labels is not None
    assert len(spec.labels) == 1000  # ImageNet-1k


def test_weights_with_a_licence_of_their_own_say_so() -> None:
    assert "SWAG" in str(Registry().get("vit_h_14").licence)


def test_the_defaults_preprocessing_is_timms_data_config() -> None:
    config = resolve_model_data_config(timm.create_model("tf_efficientnet_lite0"))
    preprocess = Registry().get(DEFAULT_MODEL).preprocess
    assert preprocess is not None
    assert (3, *preprocess.input_size) == config["input_size"]
    assert preprocess.resize == (int(224 / config["crop_pct"]),) * 2
    assert preprocess.interpolation == config["interpolation"]
    assert (preprocess.mean, preprocess.std) == (config["mean"], config["std"])
    assert config["crop_mode"] == "center"


@pytest.mark.parametrize(
    ("name", "close"), [("resnet5O", "resnet50"), ("EfficientNet-Lite0", "efficientnet_lite0"), ("vgg", "vgg16")]
)
def test_an_unknown_name_gets_close_matches(name: str, close: str) -> None:
    with pytest.raises(UnknownModel, match="There is no model") as caught:
        Registry().get(name)
    assert close in caught.value.extra["close_matches"]  # type: ignore[operator]


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "x" * 100_000, "resnet50\n"])
def test_a_hostile_name_is_merely_unknown(name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        Registry().get(name)
    assert len(str(caught.value)) < 300


def test_a_built_in_name_may_not_be_redefined(tmp_path: Path) -> None:
    (tmp_path / "resnet50.toml").write_text('arch = "timm:resnet18"\nweights = "random"\n')
    with pytest.raises(InvalidModelFile, match="may not redefine the built-in model 'resnet50'"):
        Registry(tmp_path)


def test_an_unknown_classifier_gets_close_matches() -> None:
    with pytest.raises(UnknownArchitecture, match="Did you mean 'resnet50'"):
        catalog.default_weights("resnet_50")
    with pytest.raises(UnknownArchitecture):  # in torchvision, but no image classifier
        catalog.default_weights("maskrcnn_resnet50_fpn")


def test_a_specification_is_frozen_and_refuses_the_unknown() -> None:
    spec = ModelSpec(name="a", arch="timm:resnet18", weights=RandomWeights())
    with pytest.raises(ValidationError, match="frozen"):
        spec.name = "b"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        ModelSpec.model_validate({"name": "a", "arch": "timm:a", "weights": {"kind": "random"}, "lable": 1})


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, models, models.registry, models.preprocess;"
        "print(sorted({'torch', 'torchvision', 'timm', 'flask'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_package_has_no_other_names() -> None:
    import models

    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = models.lode
    assert all(hasattr(models, name) for name in models.__all__)
