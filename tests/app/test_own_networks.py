"""What is asked of networks of the operator's own that are odd in one way each."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from app.config import Settings
from app.diagnosing import Diagnostics
from app.errors import LimitExceeded
from app.schemas.diagnostics import ActivationOptions, SensitivityOptions
from app.schemas.options import ExplainOptions
from app.service import Service
from app.tasks import Explain, Payload, Randomise
from explainers import Target, Work
from explainers.errors import TooManySamples
from tests.zoo import Small


class Aliased(Small):
    """Has a second name for its last convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.also = self.second


class RightSided(Small):
    """Answers NaN to pictures that are much brighter on the right."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.mean((1, 2)).chunk(2, dim=1)
        worse = (right.mean(1) > left.mean(1) + 0.3).unsqueeze(1)
        return torch.where(worse, torch.nan, super().forward(x))


@contextmanager
def serving(folder: Path, network: type[Small], keys: str = "", **settings: int) -> Iterator[Service]:
    (folder / "own.toml").write_text(
        f'arch = "python:{__name__}:{network.__name__}"\nweights = "random"\n{keys}\n'
        "[preprocess]\ninput_size = 32\nmean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]\n"
    )
    service = Service(Settings(models_dir=folder, default_model="own", torch_threads=1, load_wait_s=60, **settings))
    service.start()
    try:
        yield service
    finally:
        service.close()


def test_a_layer_is_looked_at_under_each_of_its_names(tmp_path: Path, cat: bytes) -> None:
    with serving(tmp_path, Aliased, 'layer = "also"') as service:
        ask = Diagnostics(service)
        activated = ask.activations([cat], ActivationOptions(layer="also"))
        assert activated.layer == "second"
        assert [layer.name for layer in activated.layers] == ["first", "second", "head"]
        assert ask.sensitivity(cat, SensitivityOptions(layer="also")).layer == "second"
        one, other, default = (
            service.explain(cat, ExplainOptions(layer=named), {}) for named in (["second"], ["also"], [])
        )
        assert one.layers == other.layers == default.layers == ["second"]
        np.testing.assert_array_equal(one.attributions[0].raw, other.attributions[0].raw)


def test_no_name_of_a_layer_leads_past_the_limit_of_its_features(tmp_path: Path, cat: bytes) -> None:
    """Of 32 x 32 pixels, two strides of 2 leave 8 x 8 places of 8 channels: 2048 bytes."""
    with (
        serving(tmp_path, Aliased, max_feature_bytes=2047) as service,
        pytest.raises(LimitExceeded, match=r"2048 bytes .*HEATLENS_MAX_FEATURE_BYTES"),
    ):
        Diagnostics(service).activations([cat], ActivationOptions(layer="also"))


def test_a_map_is_told_though_the_mirrored_picture_has_none(tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(0, 100, (32, 32, 3)).astype(np.uint8)
    levels[:, :16] += 100
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    with serving(tmp_path, RightSided) as service:
        explained = service.explain(file.getvalue(), ExplainOptions(method="saliency", stability=True), {})
    (trust,) = explained.trust
    assert trust.stability is not None
    assert trust.stability.noise is not None
    assert trust.stability.mirror is None
    assert "Whether mirroring the picture changes the map cannot be said" in trust.stability.words


def test_randomisation_keeps_to_the_limits_and_can_be_ended_within_a_stage(tmp_path: Path) -> None:
    """One round of RISE with 20 masks in chunks of 5 has four passes; three layers make three stages."""
    payload = Payload(np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32))
    task = Randomise(Explain.by("rise", [], {"samples": 20}), [[Target(0)]] * 2)
    told: list[tuple[int, int]] = []
    with serving(tmp_path, Small) as service, service.hosts.using("own", timeout_s=60) as host:
        host.owner.wait_until_ready(timeout_s=60)
        with pytest.raises(TooManySamples, match="HEATLENS_MAX_SAMPLES is 19"):
            task.run(host.network, [payload], Work(limit=19, limit_name="HEATLENS_MAX_SAMPLES"))
        task.run(host.network, [payload], Work(chunk=5, on_step=lambda done, total: told.append((done, total))))
    assert told == sorted(told)
    assert set(told) == {(0, 3), (1, 3), (2, 3), (3, 3)}
    assert told.count((1, 3)) > 4
