"""The transformers that matter, small and with seeded weights, for model files to name; 64 x 64 input."""

import torchvision
from timm.models.deit import VisionTransformerDistilled
from timm.models.maxxvit import MaxxVit, MaxxVitCfg, MaxxVitTransformerCfg
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

from tests.explainers.nets import seeded

_VIT = {"img_size": 64, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}
_SWIN = {"img_size": 64, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4, "num_classes": 5}
_TV_SWIN = {"patch_size": [4, 4], "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}


def vit() -> nn.Module:
    return seeded(VisionTransformer(**_VIT)).float()


def deit() -> nn.Module:
    return seeded(VisionTransformerDistilled(**_VIT)).float()


def swin() -> nn.Module:
    return seeded(SwinTransformer(**_SWIN)).float()


def swin_v2() -> nn.Module:
    return seeded(SwinTransformerV2(**_SWIN)).float()


def maxvit() -> nn.Module:
    attention = MaxxVitTransformerCfg(dim_head=8, window_size=(4, 4), grid_size=(4, 4))
    config = MaxxVitCfg(
        embed_dim=(16, 24), depths=(1, 1), block_type=("M", "M"), stem_width=8, transformer_cfg=attention
    )
    return seeded(MaxxVit(config, img_size=64, num_classes=5)).float()


def torchvision_vit() -> nn.Module:
    return seeded(torchvision.models.VisionTransformer(64, 8, 3, 2, 16, 32, num_classes=5)).float()


def torchvision_swin() -> nn.Module:
    return seeded(torchvision.models.SwinTransformer(**_TV_SWIN, num_classes=5)).float()


def torchvision_swin_v2() -> nn.Module:
    v2 = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
    return seeded(torchvision.models.SwinTransformer(**_TV_SWIN, **v2, num_classes=5)).float()


def torchvision_maxvit() -> nn.Module:
    return seeded(
        torchvision.models.MaxVit(
            input_size=(64, 64),
            stem_channels=8,
            partition_size=4,
            block_channels=[16, 24],
            block_layers=[1, 1],
            head_dim=8,
            stochastic_depth_prob=0.0,
            num_classes=5,
        )
    ).float()
