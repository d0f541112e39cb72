"""What a worker runs its models on."""

import os

import torch

from app.config import SLOT, Settings
from app.errors import DeviceUnavailable
from app.machine import memory_bytes


def own_device(settings: Settings) -> torch.device:
    """Return this process's device, or raise `DeviceUnavailable`. Touches CUDA."""
    devices = settings.devices
    wanted = torch.device(devices[int(os.environ.get(SLOT, 0)) % len(devices)])
    found = torch.cuda.device_count() if wanted.type == "cuda" and torch.cuda.is_available() else 0
    if wanted.type == "cpu" or (wanted.index or 0) < found:
        return wanted
    if settings.device == "auto":
        return torch.device("cpu")
    msg = f"HEATLENS_DEVICE is {settings.device}, but torch finds {found or 'no'} GPU here; set it to auto or cpu."
    raise DeviceUnavailable(msg)


def model_memory_bytes(settings: Settings, device: torch.device) -> int:
    """Return how much memory the models of this process may take together."""
    if settings.model_memory_bytes:
        return settings.model_memory_bytes
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory) // 2
    return memory_bytes() // (2 * settings.worker_count)


def answers(device: torch.device) -> bool:
    """Whether a device still works: after a failed assertion or a fault, CUDA refuses everything to a process."""
    try:
        return bool(torch.ones(1, device=device).add(1).item() == 2)
    except RuntimeError:
        return False
