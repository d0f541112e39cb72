"""torchvision's networks with seeded random weights and ten classes, built without their slow initialisation."""

import torch
import torchvision
from torch import nn

from tests.explainers.nets import seeded


def build(name: str, *, seed: int = 0) -> nn.Module:
    """Return the network in float64, eval, frozen."""
    with torch.device("meta"):
        module = torchvision.models.get_model(name, weights=None, num_classes=10)
        if name.startswith("vgg"):  # 120 million parameters, 98 % of them behind every layer of interest
            module.classifier = nn.Linear(512 * 7 * 7, 10)
    return seeded(module.to_empty(device="cpu"), seed)
