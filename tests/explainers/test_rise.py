import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explainers import Subject, Target, explain
from explainers.errors import BadParameter
from explainers.rise import Parameters, _Masks
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import PLAIN, pictures
from tests.explainers.odd_nets import Call
from tests.explainers.torchvision_nets import build
from tests.references.perturbation import drawn, rise_mask


def masks(height: int, width: int, count: int, **parameters: object) -> Tensor:
    like = torch.zeros(1, 1, height, width, dtype=torch.float64)
    return _Masks(like, Parameters.model_validate(parameters))(range(count))


# Masks


@pytest.mark.parametrize(("height", "width"), [(1, 1), (9, 7), (5, 28), (64, 33)])
@pytest.mark.parametrize("cells", [2, 7])
def test_masks_are_the_paper_s_pixel_by_pixel(height: int, width: int, cells: int) -> None:
    actual = masks(height, width, 3, cells=cells, seed=5)
    for i in range(3):
        literal = torch.tensor(rise_mask(height, width, cells, 0.5, drawn(5, i)), dtype=torch.float64)
        assert (actual[i] - literal).abs().max() < 1e-12


def test_masks_are_cut_from_what_torch_interpolates() -> None:
    # 30 / 7 is 4.3, so that cells have 5 px, and the masks 8 * 5 = 40 px before they are cut.
    for i, mask in enumerate(masks(30, 30, 5)):
        numbers = drawn(0, i)
        grid = (torch.rand(7, 7, generator=numbers, dtype=torch.float64) < 0.5).double()
        top, left = (int(torch.randint(5, (), generator=numbers)) for _ in range(2))
        large = F.interpolate(grid[None, None], size=(40, 40), mode="bilinear", align_corners=False)[0, 0]
        assert (mask - large[top : top + 30, left : left + 30]).abs().max() < 1e-12


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
def test_each_pixel_is_shown_with_the_probability_asked_for(keep: float) -> None:
    # Each value is a mean, with fixed weights, of cells of variance keep * (1 - keep): its own variance is at most
    # that. Five standard errors of 4000 masks.
    many = masks(12, 10, 4000, keep=keep)
    assert many.min() >= 0
    assert many.max() <= 1 + 1e-12
    assert (many.mean(dim=0) - keep).abs().max() < 5 * math.sqrt(keep * (1 - keep) / 4000)


def test_another_seed_draws_other_masks() -> None:
    assert torch.equal(masks(9, 7, 4, seed=3), masks(9, 7, 4, seed=3))
    assert (masks(9, 7, 4, seed=3) - masks(9, 7, 4, seed=4)).abs().amax(dim=(1, 2)).min() > 0.1


# Maps


def test_the_paper_s_map_is_ours_up_to_its_normalisation_and_the_mean_score() -> None:
    """Equation 6, as in the authors' code: S = sum of y_i * M_i / (samples * keep), on x * M_i.

    Ours is (sum of y_i * M_i - mean of y * sum of M_i) / sum of M_i = S * samples * keep / sum of M_i - mean of y.
    """
    net, x, samples, keep = PLAIN.build(), PLAIN.pictures(1), 50, 0.4
    drawn_masks = masks(9, 7, samples, keep=keep)
    scores = net(x * drawn_masks[:, None])[:, 2]
    paper = (scores @ drawn_masks.reshape(samples, -1)).reshape(9, 7) / samples / keep
    options = {"samples": samples, "keep": keep, "baseline": "black"}
    (ours,) = maps(Subject(net, net), "rise", x, [[Target(2)]], **options)
    assert_same(ours[0], paper * (samples * keep / drawn_masks.sum(dim=0)) - scores.mean())


def one_pixel() -> nn.Module:
    """The score of class 0 is one pixel, that of class 1 its negative, that of class 2 always 7."""
    return Call(lambda x: torch.stack([x[:, 0, 12, 30], -x[:, 0, 12, 30], 0 * x[:, 0, 0, 0] + 7], dim=1))


def test_the_only_pixel_that_counts_stands_out_with_its_sign() -> None:
    # y_i is the mask at that pixel itself: nothing goes with it more closely. At the other end of the picture, more
    # than a cell of 6 px away, the masks are independent of it: values near 0, by 1 / sqrt(2000) = 0.02 or so.
    net, x = one_pixel(), torch.ones(1, 1, 40, 40, dtype=torch.float64)
    targets = [[Target(0), Target(1), Target(2), Target(0, versus=1)]]
    own, opposite, constant, difference = maps(Subject(net, net), "rise", x, targets, samples=2000, baseline="black")
    assert divmod(int(own.argmax()), 40) == (12, 30)
    assert own[0, 12, 30] > 0.1
    assert own[0, 30:, :10].abs().max() < 0.05
    assert_same(opposite, -own)
    assert constant.abs().max() < 1e-12
    assert_same(difference, 2 * own)


def test_what_no_mask_shows_is_zero() -> None:
    net, x = PLAIN.build(), PLAIN.pictures(1)
    shown = masks(9, 7, 2, keep=0.05).sum(dim=0)
    (map_,) = maps(Subject(net, net), "rise", x, [[Target(0)]], samples=2, keep=0.05)
    assert (shown == 0).any()
    assert map_[0][shown == 0].abs().max() == 0
    assert map_.isfinite().all()


def test_the_seed_is_what_decides() -> None:
    net, x = PLAIN.build(), PLAIN.pictures(1)
    first, again, other = (
        maps(Subject(net, net), "rise", x, [[Target(0)]], samples=20, seed=seed)[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 0.1 * first.abs().max()


def test_the_authors_code_written_out_agrees_on_a_network() -> None:
    """All masks at once, one matrix product, as there; up to the normalisation of the test above."""
    net, x = build("resnet18").float(), pictures(1, 64, 64).float()
    many = masks(64, 64, 48).float()
    scores = net(x * many[:, None])[:, 3]
    expected = ((scores - scores.mean()) @ many.reshape(48, -1)).reshape(64, 64) / many.sum(dim=0)
    (answer,) = explain(
        Subject(net, net), x, [[Target(3)]], method="rise", parameters={"samples": 48, "baseline": "black"}
    )
    assert_same(answer.attributions[0].raw, expected, 1e-5)


@pytest.mark.parametrize(
    ("name", "value"), [("samples", 1), ("cells", 1), ("cells", 65), ("keep", 0.0), ("keep", 1.0), ("seed", 2**31)]
)
def test_parameters_out_of_bounds_are_refused(name: str, value: float) -> None:
    net = PLAIN.build()
    with pytest.raises(BadParameter) as caught:
        explain(Subject(net, net), PLAIN.pictures(1), [[Target(0)]], method="rise", parameters={name: value})
    assert caught.value.field == name
