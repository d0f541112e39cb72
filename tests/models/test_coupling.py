"""A batch answers as its pictures do, or the network is refused by name."""

import re
from typing import Any

import pytest
import timm
import torch
from torch import nn

from models import LoadedModel, load
from models.errors import UnsupportedModule
from models.preprocess import Preprocess
from models.spec import ModelSpec, RandomWeights

SMALL = Preprocess(input_size=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)


def loaded(factory: str, **options: Any) -> LoadedModel:
    arch = f"python:tests.models.networks_coupled:{factory}"
    return load(
        ModelSpec(name="mine", arch=arch, arch_options=options, weights=RandomWeights(), preprocess=SMALL),
    )


def assert_pictures_do_not_see_each_other(model: LoadedModel) -> None:
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    alone = torch.cat([model.scores(item[None]) for item in x])
    torch.testing.assert_close(model.scores(x), alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "norm", ["batch", "batch, no weights", "group", "instance", "instance, with statistics", "local"]
)
def test_normalisation_that_knows_one_picture_is_taken(norm: str) -> None:
    assert_pictures_do_not_see_each_other(loaded("with_norm", name=norm))


def test_a_network_left_in_training_mode_is_put_into_eval_mode() -> None:
    model = loaded("training")
    assert not any(part.training for part in model.module.modules())
    norm = model.module.get_submodule("0.norm")
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_mean.tolist() == [0, 0, 0, 0]  # untouched by the forward passes of loading
    assert_pictures_do_not_see_each_other(model)


@pytest.mark.parametrize("factory", ["NormsItsWeights", "NormsEachPicture"])
def test_batch_norm_of_something_else_than_the_batch_is_taken(factory: str) -> None:
    assert_pictures_do_not_see_each_other(loaded(factory))


def test_a_network_that_looks_at_the_batch_by_itself_is_refused() -> None:
    with pytest.raises(UnsupportedModule, match="answers a picture by what else is in its batch"):
        loaded("Contrasts")


def test_a_network_for_one_picture_at_a_time_is_taken() -> None:
    assert loaded("OnePictureOnly").labels == ("class 0", "class 1")


@pytest.mark.parametrize("name", ["dm_nfnet_f0", "resnetv2_50x1_bit", "nf_resnet26"])
def test_timms_networks_that_standardise_their_weights_are_taken(name: str) -> None:
    preprocess = Preprocess(input_size=(64, 64), mean=(0.5,) * 3, std=(0.5,) * 3)
    model = load(ModelSpec(name="mine", arch=f"timm:{name}", weights=RandomWeights(), preprocess=preprocess))
    assert type(model.module).__module__ in (timm.models.nfnet.__name__, timm.models.resnetv2.__name__)


@pytest.mark.parametrize(
    ("factory", "options", "complaint"),
    [
        ("with_norm", {"name": "batch, no statistics"}, "Part 'norm' of the network (BatchNorm2d) has no running stat"),
        ("stubborn", {}, "Part 'norm' of the network (Stubborn) stays in training mode"),
        ("StubbornNetwork", {}, "Part '(root)' of the network (StubbornNetwork) stays in training mode"),
        ("TrainsInForward", {}, "Part '(root)' of the network (TrainsInForward) stays in training mode"),
        # One number per channel: BatchNorm itself raises.
        ("TrainsInForward", {"spatial": False}, "Part '(root)' of the network (TrainsInForward) stays in training"),
        ("TrainsInForward", {"back": True}, "Part 'norm' of the network (BatchNorm2d) answers a picture by what else"),
        ("Functional", {}, "Part '(root)' of the network (Functional) answers a picture by what else"),
    ],
)
def test_what_lets_pictures_see_each_other_is_refused_by_name(
    factory: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UnsupportedModule, match=re.escape(complaint)) as caught:
        loaded(factory, **options)
    assert caught.value.extra["part"] in ("", "norm")
