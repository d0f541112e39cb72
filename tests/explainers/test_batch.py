import pytest
import torch
from torch import Tensor, nn

from explainers import Subject, Target, explain
from explainers.batch import Batch, at_least_float32
from explainers.errors import LayerNotSpatial
from tests.explainers.nets import PLAIN, Head, Tokens, pictures, seeded, tokens_to_grid


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_becomes_float32_and_the_rest_stays(given: torch.dtype, expected: torch.dtype) -> None:
    tensor = torch.tensor([1.5], dtype=given)
    assert at_least_float32(tensor).dtype == expected
    assert at_least_float32(tensor).item() == 1.5


def test_a_model_that_writes_into_its_input_gets_a_copy() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2).mean(dim=(2, 3))

    net = Writes()
    x = torch.ones(1, 3, 4, 4)
    scores = Batch(Subject(net, net), x, [[Target(0)]]).score(x).scores
    assert scores.tolist() == [[2.0, 2.0, 2.0]]
    assert (x == 1).all()


@pytest.mark.parametrize(("layer", "shape"), [("5.fc", "(1, 5)"), ("5", "(1, 5)")])
def test_a_layer_without_spatial_axes_is_named_with_its_shape(layer: str, shape: str) -> None:
    net = PLAIN.build()
    with pytest.raises(LayerNotSpatial) as caught:
        explain(Subject(net, net), PLAIN.pictures(1), [[Target(0)]], method="gradcam", layers=[layer])
    assert caught.value.field == "layer"
    assert f"Layer {layer!r} returns shape {shape}" in str(caught.value)


def test_tokens_need_a_grid() -> None:
    net = seeded(Tokens())
    subject = Subject(net, net)
    x = pictures(1, 9, 7)
    with pytest.raises(LayerNotSpatial, match=r"'norm1' returns shape \(1, 7, 8\)"):
        explain(subject, x, [[Target(0)]], method="gradcam", layers=["norm1"])
    (answer,) = explain(
        subject, x, [[Target(0)]], method="gradcam", layers=["norm1"], to_grid={"norm1": tokens_to_grid}
    )
    assert answer.attributions[0].raw.shape == (3, 2)


class Mirrored(nn.Module):
    """Looks at each picture and at its mirror image, as one batch of twice the size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), Head(4)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.stack([x, x.flip(3)], dim=1).flatten(0, 1)  # picture, mirror image, picture, mirror image
        return self.head(self.conv(both).relu()).unflatten(0, (len(x), 2)).sum(dim=1)


def test_a_layer_with_several_rows_per_picture_is_refused_not_mixed_up() -> None:
    net = seeded(Mirrored())
    with pytest.raises(LayerNotSpatial, match="'conv' returns 4 rows for 2 pictures") as caught:
        explain(Subject(net, net), pictures(2, 9, 7), [[Target(0)]] * 2, method="gradcam", layers=["conv"])
    assert caught.value.field == "layer"
