"""captum's Lime, KernelShap and ShapleyValueSampling: the same numbers for the same coalitions, and why not theirs."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from captum._utils.models.linear_model import SkLearnLinearModel
from captum.attr import KernelShap, Lime, ShapleyValueSampling
from torch import Tensor, nn

from explainers import Subject, Target, explain
from explainers.superpixels import Permutations, Samples, _independent, _paired, superpixels
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import PLAIN, pictures
from tests.explainers.odd_nets import Call
from tests.explainers.torchvision_nets import build

SEGMENTS = 9


def ours(method: str, net: nn.Module, x: Tensor, samples: int) -> Tensor:
    parameters = {"samples": samples, "segments": SEGMENTS, "baseline": "black"}
    (answer,) = explain(Subject(net, net), x, [[Target(3)]], method=method, parameters=parameters)
    return torch.from_numpy(answer.attributions[0].raw)


def cut(x: Tensor) -> tuple[Tensor, int]:
    """Return the superpixels as captum wants them, and their number."""
    places = superpixels(x[0], SEGMENTS)
    return places[None, None], int(places.max()) + 1


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return build("resnet18").float()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return pictures(1, 64, 64).float()


# The same numbers


def test_lime(net: nn.Module, x: Tensor) -> None:
    places, count = cut(x)
    coalitions = iter(_independent(Samples(samples=40), count)[:, None].long())

    def similarity(_x: Tensor, _changed: Tensor, z: Tensor, **_options: object) -> Tensor:
        return torch.exp(-((1 - z.double().mean().sqrt()) ** 2) / (2 * 0.25**2))

    peer = Lime(
        net,
        interpretable_model=SkLearnLinearModel(sklearn_module="linear_model.Ridge", alpha=1.0),
        similarity_func=similarity,
        perturb_func=lambda _x, **_options: next(coalitions),
    )
    theirs = peer.attribute(x, target=3, feature_mask=places, n_samples=40, perturbations_per_eval=8)
    assert_same(ours("lime", net, x, 40), theirs[0, 0], 1e-5)


def test_kernel_shap(net: nn.Module, x: Tensor) -> None:
    # captum has weights of a million in place of the constraint, and fits in float32, in which their squares are
    # rounded to 1e-7 of a million squared: its coefficients are good for three digits or so.
    places, count = cut(x)

    def coalitions(_x: Tensor, **_options: object) -> Iterator[Tensor]:
        yield torch.ones(1, count, dtype=torch.long)
        yield from _paired(Samples(samples=40), count)[:, None].long()

    peer = KernelShap(net)
    peer.perturb_func = coalitions
    theirs = peer.attribute(x, target=3, feature_mask=places, n_samples=42, perturbations_per_eval=8)
    assert_same(ours("kernel_shap", net, x, 40), theirs[0, 0], 1e-2)


def test_shapley_sampling(net: nn.Module, x: Tensor) -> None:
    places, count = cut(x)
    peer = ShapleyValueSampling(net)
    peer.permutation_generator = lambda _count, _samples: [
        torch.randperm(count, generator=torch.Generator().manual_seed(i)).tolist() for i in range(4)
    ]
    theirs = peer.attribute(x, target=3, feature_mask=places, n_samples=4, perturbations_per_eval=8)
    assert_same(ours("shapley_sampling", net, x, 4), theirs[0, 0], 1e-5)


# Why not theirs


@pytest.mark.parametrize("peer", [Lime, KernelShap, ShapleyValueSampling])
def test_captum_answers_a_float64_model_in_float32(peer: type) -> None:
    x = pictures(1, 12, 10)
    theirs = peer(lambda x: x.sum(dim=(1, 2, 3))).attribute(x, feature_mask=superpixels(x[0], 4)[None, None])
    assert theirs.dtype == torch.float32


@pytest.mark.parametrize(("peer", "method"), [(Lime, "lime"), (KernelShap, "kernel_shap")])
@pytest.mark.parametrize(("height", "captum_finds_it"), [(0.0, True), (1e8, False)])
def test_captum_loses_small_differences_of_high_scores(
    peer: type, method: str, height: float, captum_finds_it: bool
) -> None:
    # float32 has 24 bits: near 1e8 its numbers are 8 apart, and what one superpixel adds is less than that.
    x = pictures(1, 12, 10)
    places = superpixels(x[0], 4)
    own = float((x * (places == 0)).sum())
    assert abs(own) < 8

    def score(x: Tensor) -> Tensor:
        return height + x.sum(dim=(1, 2, 3))

    theirs = peer(score).attribute(x, feature_mask=places[None, None], n_samples=100)
    assert (abs(float(theirs[0, 0][places == 0][0]) - own) < 0.1 * abs(own)) == captum_finds_it
    model = Call(lambda x: score(x)[:, None])
    (ours,) = maps(Subject(model, model), method, x, [[Target(0)]], samples=4000, segments=4, baseline="black")
    assert abs(float(ours[0][places == 0][0]) - own) < 0.01 * abs(own)


def test_captum_has_no_kernel_shap_of_one_superpixel() -> None:
    x = pictures(1, 12, 10)
    # A ValueError where torch.distributions looks at its arguments, which libraries switch off for the whole process.
    with pytest.raises((ValueError, RuntimeError), match=r"found invalid values|contains either `inf`, `nan`"):
        KernelShap(lambda x: x.sum(dim=(1, 2, 3))).attribute(x, feature_mask=torch.zeros(1, 1, 12, 10).long())


@pytest.mark.parametrize("peer", [Lime, KernelShap])
def test_captum_takes_one_target_at_a_time(peer: type) -> None:
    x = pictures(1, 12, 10)
    several = peer(lambda x: x.sum(dim=(2, 3)))
    with pytest.raises(AssertionError, match="one output per perturbed input"):
        several.attribute(x, feature_mask=superpixels(x[0], 4)[None, None])


@pytest.mark.parametrize("peer", [Lime, KernelShap, ShapleyValueSampling])
def test_captum_draws_from_everybody_s_random_numbers(peer: type) -> None:
    x = pictures(1, 12, 10)
    before = torch.get_rng_state()
    peer(lambda x: x.sum(dim=(1, 2, 3))).attribute(x, feature_mask=superpixels(x[0], 4)[None, None], n_samples=3)
    assert not torch.equal(torch.get_rng_state(), before)


def test_captum_brings_matplotlib_along_and_ours_only_what_is_needed() -> None:
    code = """
import sys, torch
show = lambda: print(*sorted({"matplotlib", "skimage", "sklearn"} & set(sys.modules)), sep=",")
from explainers import Subject, Target, explain
show()
explain(Subject(torch.nn.Flatten(), torch.nn.Flatten()), torch.rand(1, 1, 9, 7), [[Target(0)]], method="lime")
show()
import captum.attr
show()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "skimage", "matplotlib,skimage"]


def test_permutations_are_those_of_the_generators() -> None:
    """What the comparison with captum above takes for granted: order i is drawn from `generator(0, i)`."""
    net, x = PLAIN.build(), PLAIN.pictures(1)
    places = superpixels(x[0], 4)
    order = torch.randperm(int(places.max()) + 1, generator=torch.Generator().manual_seed(0)).tolist()
    black, first = torch.zeros_like(x), x * (places == order[0])
    rise = float((net(first) - net(black))[0, 0])
    (map_,) = maps(Subject(net, net), "shapley_sampling", x, [[Target(0)]], samples=1, segments=4, baseline="black")
    assert float(map_[0][places == order[0]][0]) == pytest.approx(rise, rel=1e-9)
    assert Permutations().samples == 10
