import pytest
import torch
from captum.attr import Occlusion
from torch import Tensor, nn

from explainers import Subject, Target, Work, explain
from explainers.errors import BadParameter
from explainers.occlusion import _windows
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import pictures
from tests.explainers.odd_nets import Call
from tests.explainers.torchvision_nets import build
from tests.references.perturbation import starts

# Closed forms


def pixels_plus_corner() -> nn.Module:
    """Class 0: the sum of all pixels; class 1: the pixel at the top left."""
    return Call(lambda x: torch.stack([x.sum(dim=(1, 2, 3)), x[:, 0, 0, 0]], dim=1))


def row(*values: float) -> Tensor:
    """One picture of one channel, two rows of these pixels."""
    return torch.tensor(values, dtype=torch.float64).expand(1, 1, 2, len(values)).contiguous()


def test_a_linear_score_falls_by_what_the_window_hides() -> None:
    # Windows of 2 x 2 px (window 1 of the shorter side 2), one beside the other, hide 2 * (1 + 2) and 2 * (4 + 8).
    net = pixels_plus_corner()
    (map_,) = maps(Subject(net, net), "occlusion", row(1, 2, 4, 8), [[Target(0)]], window=1, stride=1, baseline="black")
    assert map_.tolist() == [[[6.0, 6.0, 24.0, 24.0]] * 2]


def test_a_pixel_shows_the_mean_of_its_windows() -> None:
    # One step is one pixel: windows over (0, 1), (1, 2) and (2, 3) hide 6, 12 and 24; pixel 1 is in the first two.
    net = pixels_plus_corner()
    options = {"window": 1, "stride": 0.5, "baseline": "black"}
    (map_,) = maps(Subject(net, net), "occlusion", row(1, 2, 4, 8), [[Target(0)]], **options)
    assert map_.tolist() == [[[6.0, 9.0, 18.0, 24.0]] * 2]


def test_the_last_window_is_whole_and_flush_with_the_border() -> None:
    # Windows over (0, 1), (2, 3) and, moved back, (3, 4) hide 2 * 3, 2 * 12 and 2 * 24; pixel 3 is in the last two.
    net = pixels_plus_corner()
    options = {"window": 1, "stride": 1, "baseline": "black"}
    (map_,) = maps(Subject(net, net), "occlusion", row(1, 2, 4, 8, 16), [[Target(0)]], **options)
    assert map_.tolist() == [[[6.0, 6.0, 24.0, 36.0, 48.0]] * 2]


def test_versus_and_black_of_the_subject() -> None:
    # Black is 1: a window hides what lies above it. Class 0 minus class 1 counts the corner not at all:
    # 2 * (0 + 1) - 0 in the first window, the corner being black itself, and 2 * (3 + 7) in the second.
    net = pixels_plus_corner()
    subject, options = Subject(net, net, black=(1.0,)), {"window": 1, "stride": 1, "baseline": "black"}
    (map_,) = maps(subject, "occlusion", row(1, 2, 4, 8), [[Target(0, versus=1)]], **options)
    assert map_.tolist() == [[[2.0, 2.0, 20.0, 20.0]] * 2]


def test_a_picture_in_its_mean_colour_loses_nothing() -> None:
    net = pixels_plus_corner()
    (map_,) = maps(Subject(net, net), "occlusion", torch.full((1, 1, 9, 7), 0.5).double(), [[Target(0)]])
    assert map_.abs().max() == 0


# Windows


@pytest.mark.parametrize("length", [28, 29, 224])
@pytest.mark.parametrize(("side", "step"), [(1, 1), (2, 1), (5, 2), (5, 5), (28, 5), (28, 28)])
def test_windows_are_whole_and_reach_both_borders(length: int, side: int, step: int) -> None:
    windows = _windows(length, side, step)
    assert [int(window.nonzero()[0]) for window in windows] == starts(length, side, step)
    assert windows.sum(dim=1).tolist() == [side] * len(windows)
    assert windows.any(dim=0).all()


@pytest.mark.parametrize("side", [28, 224, 350])
def test_a_small_picture_has_as_many_places_as_a_large_one(side: int) -> None:
    # Windows of 1/7 in steps of half of that: 13 to a side, whatever the size.
    totals: list[int] = []
    net = pixels_plus_corner()
    work = Work(on_step=lambda _done, total: totals.append(total))
    explain(Subject(net, net), torch.zeros(1, 1, side, side), [[Target(0)]], method="occlusion", work=work)
    assert set(totals) == {13 * 13}


@pytest.mark.parametrize(
    ("name", "value"), [("window", 0.01), ("window", 1.1), ("stride", 0), ("stride", 1.5), ("window", float("nan"))]
)
def test_windows_out_of_bounds_are_refused(name: str, value: float) -> None:
    net = pixels_plus_corner()
    with pytest.raises(BadParameter) as caught:
        explain(Subject(net, net), row(1, 2), [[Target(0)]], method="occlusion", parameters={name: value})
    assert caught.value.field == name


# captum


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_captum_agrees_where_the_windows_are_the_same(name: str) -> None:
    # Windows of 16 px in steps of 8 fit into 64 px without a rest. Falls are differences of float32 scores.
    net = build(name).float()
    x = pictures(1, 64, 64).float()
    captum = Occlusion(net).attribute(
        x, (3, 16, 16), strides=(3, 8, 8), target=3, baselines=0, perturbations_per_eval=16
    )
    (answer,) = explain(
        Subject(net, net), x, [[Target(3)]], method="occlusion", parameters={"window": 0.25, "baseline": "black"}
    )
    assert_same(answer.attributions[0].raw, captum[0, 0], 1e-5)


def test_captum_cuts_the_last_window_off_at_the_border() -> None:
    """In a picture of equal pixels whose sum is the score, each pixel counts as much as any other.

    Windows of 2 px in steps of 2 along 5 px: captum's third one is 1 px wide and its fall half of the others', so
    that the border looks half as important. Ours are all 2 px wide: 2 * 2 pixels of 1 each are lost everywhere.
    """
    net, x = pixels_plus_corner(), row(1, 1, 1, 1, 1)
    captum = Occlusion(net).attribute(x, (1, 2, 2), strides=(1, 2, 2), target=0)
    assert captum[0, 0].tolist() == [[4.0, 4.0, 4.0, 4.0, 2.0]] * 2
    (ours,) = maps(Subject(net, net), "occlusion", x, [[Target(0)]], window=1, stride=1, baseline="black")
    assert ours.tolist() == [[[4.0] * 5] * 2]
