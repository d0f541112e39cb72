"""Preprocessing done by those who defined it: torchvision's and timm's evaluation transforms on PIL pictures."""

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data.transforms_factory import transforms_imagenet_eval
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F
from torchvision.transforms._presets import ImageClassification

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def torchvision_preset(
    pixels: NDArray[np.uint8], *, resize: int, crop: int, interpolation: str = "bilinear"
) -> NDArray[np.float32]:
    """Return torchvision's classification preset of (H, W, 3) uint8 as (3, h, w) float32."""
    transform = ImageClassification(crop_size=crop, resize_size=resize, interpolation=InterpolationMode(interpolation))
    return transform(Image.fromarray(pixels)).numpy()


def torchvision_squash(pixels: NDArray[np.uint8], *, resize: tuple[int, int]) -> NDArray[np.float32]:
    """Return the picture stretched to `resize` (height, width), without a crop."""
    return _normalised(F.resize(Image.fromarray(pixels), list(resize)))


def torchvision_gray(
    pixels: NDArray[np.uint8], *, resize: int, crop: int, mean: float, std: float
) -> NDArray[np.float32]:
    """Return luma, resized and cropped, as (1, h, w) float32."""
    image = F.center_crop(F.resize(F.rgb_to_grayscale(Image.fromarray(pixels)), [resize]), [crop])
    return F.normalize(F.to_tensor(image), [mean], [std]).numpy()


def timm_eval(
    pixels: NDArray[np.uint8], *, size: tuple[int, int], crop_pct: float, crop_mode: str, interpolation: str
) -> NDArray[np.float32]:
    """Return timm's evaluation transform of (H, W, 3) uint8 as (3, h, w) float32."""
    transform = transforms_imagenet_eval(
        img_size=size, crop_pct=crop_pct, crop_mode=crop_mode, interpolation=interpolation, mean=MEAN, std=STD
    )
    return transform(Image.fromarray(pixels)).numpy()


def _normalised(image: Image.Image) -> NDArray[np.float32]:
    return F.normalize(F.pil_to_tensor(image).to(torch.float32) / 255, list(MEAN), list(STD)).numpy()
