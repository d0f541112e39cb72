"""Small seeded transformers: timm's, torchvision's, torch's, and some that are refused."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torchvision
from timm.models.cait import Cait
from timm.models.deit import VisionTransformerDistilled
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import ParallelThingsBlock, VisionTransformer
from torch import Tensor, nn

from explainers.batch import ToGrid
from tests.explainers.nets import CLASSES, pictures, seeded

SMALL = {"img_size": (24, 16), "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": CLASSES}
"""3 x 2 patches."""


def vit(*, fused: bool = True, **options: Any) -> nn.Module:
    """Return timm's, with torch's fused attention or with attention written out."""
    return _timm(VisionTransformer, fused, options)


def distilled(*, fused: bool = True) -> nn.Module:
    """Return a DeiT with a class and a distillation token; the score is the mean of what two heads say."""
    return _timm(VisionTransformerDistilled, fused, {})


def _timm(kind: Callable[..., nn.Module], fused: bool, options: dict[str, Any]) -> nn.Module:
    net = kind(**{**SMALL, **options})
    for module in net.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    return seeded(net)


class Encoder(nn.Module):
    """torch's own encoder layers; the mean of all tokens feeds the head."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.patch = nn.Conv2d(3, 16, 8, stride=8)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2)
        if self.batch_first:
            return self.head(self.encoder(tokens.transpose(1, 2)).mean(dim=1))
        return self.head(self.encoder(tokens.permute(2, 0, 1)).mean(dim=0))


class Block(nn.Module):
    """Attention of one head with all weights 1, of which `spoil` may change the outcome in place."""

    def __init__(self, width: int, *, spoil: bool) -> None:
        super().__init__()
        self.qk, self.spoil = nn.Linear(width, 2 * width), spoil

    def forward(self, tokens: Tensor) -> Tensor:
        q, k = self.qk(tokens).chunk(2, dim=-1)
        attention = torch.softmax(q @ k.transpose(1, 2), -1)
        out = attention @ tokens
        if self.spoil:
            attention.mul_(0)
        return tokens + out


class Plain(nn.Module):
    """Blocks in a loop; `between` stands between two of them, `head` takes the tokens and the number of pictures."""

    def __init__(
        self,
        *,
        spoil: bool = False,
        between: Callable[[Tensor], Tensor] | None = None,
        head: Callable[[Tensor, int], Tensor] = lambda tokens, _: tokens.mean(dim=1),
    ) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 6, 8, stride=8)
        self.blocks = nn.ModuleList([Block(6, spoil=spoil) for _ in range(2)])
        self.between, self.pool, self.head = between, head, nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
            if self.between is not None:
                tokens = self.between(tokens)
        return self.head(self.pool(tokens, len(x)))


@dataclass(frozen=True)
class Net:
    """A transformer, its grid of patches, the number of tokens before them and of attentions."""

    name: str
    build: Callable[[], nn.Module]
    literal: Callable[[], nn.Module] | None = None
    """The same with attention written out, for the literal twins."""
    prefix: int = 1
    grid: tuple[int, int] = (3, 2)
    depth: int = 3

    @property
    def token_grids(self) -> dict[int, ToGrid]:
        """Return how its tokens lie in the picture."""
        return {self.prefix + self.grid[0] * self.grid[1]: self.to_grid}

    def to_grid(self, tokens: Tensor) -> Tensor:
        """`(N, prefix + h * w, C)` to `(N, C, h, w)`."""
        return tokens[:, self.prefix :].transpose(1, 2).reshape(len(tokens), -1, *self.grid)

    def pictures(self, count: int, *, seed: int = 0) -> Tensor:
        """Return pictures of the size that it takes."""
        return pictures(count, 8 * self.grid[0], 8 * self.grid[1], seed=seed)


def _net(name: str, options: dict[str, Any], prefix: int = 1) -> Net:
    return Net(name, lambda: vit(**options), lambda: vit(fused=False, **options), prefix)


def _torchvision() -> nn.Module:
    return seeded(torchvision.models.VisionTransformer(24, 8, 2, 2, 16, 32, num_classes=CLASSES))


NETS = (
    _net("timm", {}),
    _net("registers", {"reg_tokens": 2}, 3),
    _net("mean", {"class_token": False, "global_pool": "avg"}, 0),
    _net("mean of the patches", {"global_pool": "avg"}),
    Net("distilled", distilled, lambda: distilled(fused=False), 2),
    Net("torchvision", _torchvision, grid=(3, 3), depth=2),
    Net("encoder", lambda: seeded(Encoder()), prefix=0, depth=2),
    Net("plain", lambda: seeded(Plain()), lambda: seeded(Plain()), prefix=0, depth=2),
)
TIMM = NETS[0]


@dataclass(frozen=True)
class Refused:
    """A network that the attention methods (or some) cannot explain, and what the answer says."""

    build: Callable[[], nn.Module]
    match: str
    size: tuple[int, int] = (24, 16)
    token_grids: dict[int, ToGrid] = field(default_factory=lambda: {6: NETS[2].to_grid, 7: TIMM.to_grid})


REFUSED = {
    "windows": Refused(
        lambda: seeded(
            SwinTransformer(32, 4, embed_dim=8, depths=(2, 2), num_heads=(2, 2), window_size=4, num_classes=CLASSES)
        ),
        "not always look from all tokens at all tokens",
        (32, 32),
    ),
    "class attention": Refused(
        lambda: seeded(Cait(24, 8, embed_dim=16, depth=2, num_heads=2, num_classes=CLASSES)),
        r"\(2, 2, 1, 10\)",
        (24, 24),
    ),
    "stages": Refused(lambda: seeded(Plain(between=lambda tokens: tokens[:, :4])), r"\(2, 1, 4, 4\), \(2, 1, 6, 6\)"),
    "pooling by attention": Refused(lambda: vit(global_pool="map", class_token=False), r"\(2, 2, 1, 6\)"),
    "no attention": Refused(
        lambda: seeded(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))),
        "no attention that can be seen",
    ),
    "unknown tokens": Refused(vit, "How the model's 7 tokens lie in the picture", token_grids={}),
}
REFUSED_BY_LEGRAD = {
    "side by side": Refused(lambda: vit(block_fn=ParallelThingsBlock), "no chain of modules"),
    "tokens first": Refused(lambda: seeded(Encoder(batch_first=False)), "no chain of modules"),
    "something between": Refused(lambda: seeded(Plain(between=lambda tokens: tokens * 2)), "no chain of modules"),
    "a head that counts": Refused(
        lambda: seeded(Plain(head=lambda tokens, count: tokens.reshape(count, 6, 6).mean(dim=1))), "more rows than"
    ),
    "a head that drops": Refused(
        lambda: seeded(Plain(head=lambda tokens, n: tokens[:n].mean(dim=1))), "more rows than"
    ),
}
