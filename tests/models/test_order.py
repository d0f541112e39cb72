"""Whether a grid is in order is seen in what two pictures and their mixes give."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from models.layers import LayerInfo, Layout
from models.order import OrderCheck, mixes, share_in_place


def test_the_mixes_are_halves_of_the_two_pictures() -> None:
    a, b, across, down = mixes(3, (6, 8))
    assert a.shape == (3, 6, 8)
    assert not a.eq(b).any()
    assert across[:, :, :4].equal(a[:, :, :4])
    assert across[:, :, 4:].equal(b[:, :, 4:])
    assert down[:, :3].equal(a[:, :3])
    assert down[:, 3:].equal(b[:, 3:])
    assert mixes(3, (6, 8)).equal(mixes(3, (6, 8)))


def scrambled(grid: Tensor) -> Tensor:
    """The cells in units of 2 x 2, one unit after the other, as Hiera keeps them."""
    n, c, h, w = grid.shape
    units = grid.reshape(n, c, h // 2, 2, w // 2, 2).transpose(3, 4)
    return units.reshape(n, c, h, w)


# A cell is the picture's own, so that it is exactly what its own half's picture has there, or what another place has.
# Rows and columns swapped: half of the cells of a half come from the other half of the mix. Mirrored: all of them.
# In units: two of a unit row's four fill a row of 8 cells, so that even rows hold what lies left and odd
# rows what lies right: half of the cells are right across, and all of them down.
@pytest.mark.parametrize(
    ("change", "share"),
    [
        (lambda grid: grid, 1.0),
        (lambda grid: grid + 1000 * grid.mean((2, 3), keepdim=True), 1.0),  # what all cells know, far above the rest
        (lambda grid: grid.mT, 0.5),
        (lambda grid: grid.flip(3), 0.0),
        (lambda grid: grid.flip(2), 0.0),
        (scrambled, 0.5),
        (lambda grid: grid.mean((2, 3), keepdim=True).expand_as(grid) * 0, 0.0),  # the same for all pictures
        (lambda grid: grid * torch.nan, 0.0),
        (lambda grid: grid[:, :, :1, :1], 1.0),  # one cell has no order
        (lambda grid: grid[:, :, :7, :7], 1.0),  # the middle row and column count for neither half
    ],
)
def test_the_share_of_cells_in_place(change, share: float) -> None:  # type: ignore[no-untyped-def]
    assert share_in_place(change(mixes(3, (8, 8)))) == share


class Tokens(nn.Module):
    """Patches of 2 x 2 pixels, as tokens in the given order."""

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pixel_unshuffle(x, 2).flatten(2).transpose(1, 2)[:, self.order]


@pytest.mark.parametrize(
    ("order", "passes"),
    [(range(16), True), ([column + 4 * row for column in range(4) for row in range(4)], False)],
)
def test_tokens_pass_if_they_are_in_rows(order: Sequence[int], passes: bool) -> None:
    info = LayerInfo("tokens", "Tokens", (1, 16, 12), 1, Layout("tokens", (4, 4)))
    check = OrderCheck([info])
    module = Tokens(torch.tensor(list(order)))
    check("tokens", module, module(mixes(3, (8, 8))))
    assert check.passes("tokens") is passes


def test_tokens_that_are_out_of_order_lose_their_layout_and_maps_keep_it() -> None:
    tokens = LayerInfo("tokens", "Tokens", (1, 16, 12), 1, Layout("tokens", (4, 4)))
    turned = LayerInfo("map", "Conv2d", (1, 3, 8, 8), 1, Layout("channels_first", (8, 8)))
    flat = LayerInfo("flat", "Linear", (1, 3), 1, None)
    check = OrderCheck([tokens, turned, flat])
    pictures = mixes(3, (8, 8))
    check("tokens", nn.Identity(), Tokens(torch.arange(15, -1, -1))(pictures))
    check("map", nn.Identity(), pictures.mT)
    check("flat", nn.Identity(), pictures.mean((2, 3)))
    assert [check.passes(name) for name in ("tokens", "map", "flat")] == [False, True, False]
    assert check.layers == [replace(tokens, layout=None), turned, flat]


def test_one_layer_in_order_speaks_for_all_of_as_many_tokens() -> None:
    tokens = LayerInfo("tokens", "Tokens", (1, 16, 12), 1, Layout("tokens", (4, 4)))
    mixed = replace(tokens, name="mixed")
    check = OrderCheck([tokens, mixed])
    pictures = mixes(3, (8, 8))
    check("tokens", nn.Identity(), Tokens(torch.arange(16))(pictures))
    check("mixed", nn.Identity(), Tokens(torch.arange(15, -1, -1))(pictures))
    assert [check.passes(name) for name in ("tokens", "mixed")] == [True, False]
    assert check.layers == [tokens, mixed]


def test_what_was_not_seen_or_is_not_one_row_per_picture_does_not_pass() -> None:
    layout = Layout("channels_first", (4, 4))
    check = OrderCheck([LayerInfo(name, "Conv2d", (1, 3, 4, 4), 1, layout) for name in ("windows", "never", "pair")])
    pictures = mixes(3, (8, 8))
    windows = pictures.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(16, 3, 4, 4)
    check("windows", nn.Identity(), windows)
    check("pair", nn.Identity(), (pictures, None))
    check("unknown", nn.Identity(), pictures)
    assert not any(map(check.passes, ("windows", "never", "pair", "unknown")))


def test_where_nothing_was_seen_nothing_is_refuted() -> None:
    tokens = LayerInfo("tokens", "Tokens", (1, 16, 12), 1, Layout("tokens", (4, 4)))
    check = OrderCheck([tokens])
    assert check.passes("tokens")
    assert check.layers == [tokens]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype: torch.dtype) -> None:
    assert share_in_place((mixes(3, (8, 8)) * 1000).to(dtype)) == 1.0
