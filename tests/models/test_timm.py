"""timm as a source of models: names, labels, and the picture as timm prepares it."""

import numpy as np
import pytest
import timm
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError
from timm.data import create_transform, resolve_model_data_config

from models import Registry, timm_catalog
from models.errors import UnknownModel
from models.spec import ModelSpec, RandomWeights, TimmWeights

# Names


def test_every_model_of_timm_with_weights_has_a_specification() -> None:
    names = timm_catalog.names()
    assert len(names) > 1500
    for name in names:
        spec = Registry().get(name)
        assert spec.name == name
        assert spec.arch == f"timm:{name.removeprefix('timm/')}"
        assert isinstance(spec.weights, TimmWeights)
        assert spec.preprocess is not None


def test_without_a_tag_it_is_timms_default() -> None:
    spec = Registry().get("timm/resnet18")
    assert spec.name == "timm/resnet18"  # as asked for
    assert spec.arch == "timm:resnet18." + timm.get_pretrained_cfg("resnet18").tag
    assert spec.licence == "apache-2.0"
    assert "a1_in1k" in str(spec.description)


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("timm/resnet18.a1_in2k", "timm/resnet18.a1_in1k"),
        ("timm/efficientnet_b0.ra_in1", "timm/efficientnet_b0.ra_in1k"),
        ("vit_small_patch16_224.dino", "timm/vit_small_patch16_224.dino"),  # the prefix forgotten
        ("vit_small_patch16_224", "timm/vit_small_patch16_224"),
    ],
)
def test_an_unknown_name_gets_close_matches(name: str, close: str) -> None:
    with pytest.raises(UnknownModel, match="There is no model") as caught:
        Registry().get(name)
    assert close in caught.value.extra["close_matches"]  # type: ignore[operator]


@pytest.mark.parametrize(
    "name",
    [
        "timm/",
        "timm/../../etc/passwd",
        "timm/resnet18\n",
        "timm/resnet18.",
        "timm/timm/resnet18",
        "timm/hf-hub:timm/resnet18",
        "timm/vit_base_patch14_dinov3",  # no such architecture
        "timm/convnextv2_small",  # an architecture without weights
        "timm/tv_resnet34",  # timm's old name of resnet34.tv_in1k
        "timm/" + "x" * 100_000,
    ],
)
def test_what_has_no_weights_is_unknown(name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        Registry().get(name)
    assert len(str(caught.value)) < 400


def test_of_slashes_a_name_may_have_the_one_behind_timm() -> None:
    assert ModelSpec(name="timm/a", arch="timm:resnet18", weights=RandomWeights()).name == "timm/a"
    for name in ("a/b", "timm/a/b", "timm/", "/a"):
        with pytest.raises(ValidationError, match="should match pattern"):
            ModelSpec(name=name, arch="timm:resnet18", weights=RandomWeights())


# Labels


def test_imagenet_classes_are_spelt_as_torchvision_spells_them() -> None:
    labels = Registry().get("timm/resnet18.a1_in1k").labels
    assert labels == Registry().get("resnet18").labels
    assert labels is not None
    assert labels[285] == "Egyptian cat"


@pytest.mark.parametrize(
    ("name", "subset"),
    [
        ("timm/beit_base_patch16_224.in22k_ft_in22k", "imagenet-22k"),
        ("timm/coatnet_rmlp_1_rw2_224.sw_in12k", "imagenet-12k"),
        ("timm/resnetv2_152x2_bit.goog_in21k", "imagenet-21k-goog"),
        ("timm/focalnet_large_fl3.ms_in22k", "imagenet-22k-ms"),
    ],
)
def test_other_label_sets_are_timms_descriptions(name: str, subset: str) -> None:
    from timm.data import ImageNetInfo

    spec = Registry().get(name)
    assert spec.labels == tuple(ImageNetInfo(subset).label_descriptions())
    assert subset in str(spec.description)


def test_what_has_no_known_classes_says_so() -> None:
    clip = Registry().get("timm/convnext_base.clip_laion2b")  # 640 numbers of a joint space with text
    assert clip.labels is None
    assert "640 outputs without names" in str(clip.description)
    features = Registry().get("timm/vit_small_patch14_dinov2.lvd142m")
    assert features.labels is None
    assert "no classifier" in str(features.description)


# The picture as timm prepares it


@pytest.mark.parametrize(
    "name",
    [
        "timm/resnet18.a1_in1k",  # bicubic, crop_pct 0.95
        "timm/tf_efficientnet_b0.ns_jft_in1k",
        "timm/vit_base_patch16_clip_384.laion2b_ft_in1k",  # squash
        "timm/beit_base_patch16_384.in22k_ft_in22k_in1k",
        "timm/inception_v3.tv_in1k",  # 299, bilinear
        "timm/legacy_seresnet18.in1k",
        "timm/test_vit.r160_in1k",
    ],
)
def test_pictures_are_prepared_as_timm_does(
    name: str, cat_pixels: NDArray[np.uint8], coffee_pixels: NDArray[np.uint8]
) -> None:
    config = timm.get_pretrained_cfg(name.removeprefix("timm/"))
    transform = create_transform(**resolve_model_data_config(None, pretrained_cfg=config.to_dict()), is_training=False)
    preprocess = Registry().get(name).preprocess
    assert preprocess is not None
    for pixels in (cat_pixels, coffee_pixels):
        array, _ = preprocess(pixels)
        np.testing.assert_allclose(array, transform(Image.fromarray(pixels)).numpy(), rtol=0, atol=1e-6)


def test_every_crop_mode_and_interpolation_of_timm_is_prepared_as_timm_does(cat_pixels: NDArray[np.uint8]) -> None:
    """One model of each combination that occurs."""
    kinds: dict[object, str] = {}
    for name in timm.list_pretrained():
        config = timm.get_pretrained_cfg(name)
        square = config.input_size[1] == config.input_size[2]
        kinds.setdefault((config.crop_mode, config.interpolation, round(config.crop_pct, 3), square), name)
    assert len(kinds) > 10
    for name in kinds.values():
        data = resolve_model_data_config(None, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        expected = create_transform(**data, is_training=False)(Image.fromarray(cat_pixels)).numpy()
        preprocess = Registry().get(f"timm/{name}").preprocess
        assert preprocess is not None
        np.testing.assert_allclose(preprocess(cat_pixels)[0], expected, rtol=0, atol=1e-6, err_msg=name)
