"""What this machine has, and what is wrong with how the server is set up."""

import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch
from huggingface_hub.constants import HF_HUB_CACHE

from app.checkup import findings
from app.config import PREFIX, Settings, without_password
from app.machine import memory_bytes
from models import ModelError, Registry
from models.loading import weights_present


def examine(settings: Settings) -> dict[str, Any]:
    """Return the findings, a list, and by section what there is: versions, devices, models, settings."""
    return {
        "findings": [asdict(finding) for finding in findings(settings)],
        "versions": {
            "heatlens": version("heatlens"),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "torchvision", "timm", "pillow", "opencv-python-headless")},
        },
        "devices": _devices(settings),
        "models": _models(settings),
        "settings": {PREFIX + name.upper(): _shown(value) for name, value in settings.model_dump(mode="json").items()},
    }


def _models(settings: Settings) -> dict[str, Any]:
    try:
        registry = Registry(settings.models_dir)
    except (ModelError, OSError):  # it is among the findings; what needs no folder is here all the same
        registry = Registry()
    present = [name for name in registry.names() if weights_present(registry.get(name))]
    return {
        "known": len(registry.names()),
        "with weights here": ", ".join(present),
        "models folder": str(settings.models_dir or "none (HEATLENS_MODELS_DIR)"),
        "torchvision's cache": torch.hub.get_dir(),
        "timm's cache": HF_HUB_CACHE,
    }


def _devices(settings: Settings) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    devices = {"cpu": f"{cores} cores, {memory_bytes() / 2**30:.1f} GiB of memory free"}
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = f"{found.name}, {found.total_memory / 2**30:.1f} GiB of memory"
    workers, threads = settings.worker_count, settings.torch_thread_count
    where = ", ".join(settings.devices)
    devices["serve starts"] = f"workers: {workers}, on {where}, torch threads of each: {threads}"
    return devices


def _shown(value: object) -> object:
    return without_password(value) if isinstance(value, str) else value
