import numpy as np
import pytest
import torch
from torch import nn

from explainers import Subject, Target, explain
from explainers.cam import fuse
from explainers.errors import LayerNotTaken
from tests.explainers.checks import assert_same, maps, snapshot
from tests.explainers.nets import pictures
from tests.explainers.odd_nets import Head, sequential
from tests.references.cam import bilinear

CAMS = ("gradcam", "gradcam++", "hirescam", "xgradcam", "layercam", "eigencam", "eigengradcam", "finercam")
CAMS += ("scorecam", "ablationcam")


def two_grids() -> nn.Module:
    """Layer "0" has 9 x 7 cells, layer "3" has 4 x 3."""
    return sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        Head(4),
    )


def test_by_hand() -> None:
    # Divided by 4 and by 2: (1/2, -1) and (1/2, 1); mean (1/2, 0), maximum (1/2, 1). The sign stays.
    one, other = torch.tensor([[[2.0, -4.0]]]), torch.tensor([[[1.0, 2.0]]])
    assert fuse([one, other], "mean").tolist() == [[[0.5, 0.0]]]
    assert fuse([one, other], "maximum").tolist() == [[[0.5, 1.0]]]


def test_one_map_stays_as_it_is() -> None:
    one = torch.tensor([[[2.0, -4.0]]])
    assert fuse([one], "maximum") is one


def test_a_map_of_zeros_adds_nothing_and_is_not_divided_by_zero() -> None:
    zero, other = torch.zeros(1, 1, 2), torch.tensor([[[1.0, -2.0]]])
    assert fuse([zero, other], "mean").tolist() == [[[0.25, -0.5]]]
    assert fuse([zero, zero], "maximum").tolist() == [[[0.0, 0.0]]]


def test_pictures_are_scaled_each_by_itself() -> None:
    one = torch.tensor([[[2.0, 1.0]], [[200.0, 100.0]]])
    assert fuse([one, one], "mean").tolist() == [[[1.0, 0.5]]] * 2


def scaled(map_: np.ndarray) -> np.ndarray:
    return map_ / (np.abs(map_).max() or 1.0)


@pytest.mark.parametrize("fusion", ["mean", "maximum"])
@pytest.mark.parametrize("method", CAMS)
def test_layers_of_two_grids_meet_in_the_finer_one(method: str, fusion: str) -> None:
    net, x, targets = two_grids(), pictures(2, 9, 7), [[Target(0), Target(1)], [Target(2)]]
    subject = Subject(net, net)
    before = snapshot(net)
    for layers in (["0", "3"], ["3", "0"]):
        fused = maps(subject, method, x, targets, layers, fusion=fusion)
        fine, coarse = (maps(subject, method, x, targets, [layer]) for layer in ("0", "3"))
        for n, k in ((0, 0), (0, 1), (1, 0)):
            large, small = fine[k][n].numpy(), coarse[k][n].numpy()
            assert (large.shape, small.shape) == ((9, 7), (4, 3))
            small, large = bilinear(scaled(small), 9, 7), scaled(large)
            assert_same(fused[k][n], (large + small) / 2 if fusion == "mean" else np.maximum(large, small))
        assert snapshot(net) == before


def test_the_layers_of_an_inplace_network_are_told_apart_on_every_call() -> None:
    net, x = two_grids(), pictures(1, 9, 7)
    subject = Subject(net, net)
    first, second, third = (maps(subject, "gradcam", x, [[Target(0)]], ["0", "1", "3", "4"])[0] for _ in range(3))
    assert torch.equal(second, third)
    assert_same(first, second)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "takes one to 8 layers; 0 were given"),
        (["0"] * 9, "takes one to 8 layers; 9 were given"),
        (["0", "3", "0"], "given twice: '0', '3', '0'"),
    ],
)
def test_a_wrong_number_of_layers_is_named(layers: list[str], message: str) -> None:
    net = two_grids()
    with pytest.raises(LayerNotTaken, match=message):
        explain(Subject(net, net), pictures(1, 9, 7), [[Target(0)]], method="layercam", layers=layers)
