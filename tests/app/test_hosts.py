"""Models under pressure: memory that runs out, a device that is lost, loading, and room for another."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from app import devices
from app.config import Settings
from app.engine import DeviceLost, Job, NotReady, QueueFull
from app.errors import ModelFailed, ModelTooLarge
from app.hosting import Host
from app.hosts import Hosts
from app.tasks import Explain, Payload
from explainers import Explanation, Target
from models import Registry
from tests import zoo


@pytest.fixture
def settings(models_dir: Path) -> Settings:
    return Settings(models_dir=models_dir, torch_threads=1, default_model="small", load_wait_s=60)


@pytest.fixture
def hosts(settings: Settings) -> Iterator[Hosts]:
    hosts = Hosts(Registry(settings.models_dir), settings)
    yield hosts
    zoo.may_answer.set()
    zoo.may_load.set()
    hosts.close(grace_s=60)


def picture(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random((3, 32, 32)).astype(np.float32) * 0.5


BRIGHT = np.full((3, 32, 32), 0.95, np.float32)
BRIGHTEST = np.ones((3, 32, 32), np.float32)


def ask(host: Host, inputs: NDArray[np.float32], target: int = 0, method: str = "gradcam") -> Job[Payload, Explanation]:
    layers = ["second"] if method == "gradcam" else []
    return host.submit(Explain.by(method, layers, {}), Payload(inputs, (Target(target),)), timeout_s=60)


def gathered(host: Host, jobs: list[tuple[NDArray[np.float32], int]]) -> list[Job[Payload, Explanation]]:
    """Submit all while the host is busy with another picture, so that they run together."""
    zoo.may_answer.clear()
    zoo.slow_is_running.clear()
    first = ask(host, picture(99))
    assert zoo.slow_is_running.wait(10)
    zoo.batches.clear()
    waiting = [ask(host, inputs, target) for inputs, target in jobs]
    zoo.may_answer.set()
    first.result()
    return waiting


def assert_same(explanation: Explanation, expected: Explanation) -> None:
    """Equal but for the order of sums, which depends on the size of a batch."""
    np.testing.assert_allclose(explanation.scores, expected.scores, rtol=1e-5, atol=1e-6)
    for got, wanted in zip(explanation.attributions, expected.attributions, strict=True):
        assert got.score.index == wanted.score.index
        scale = np.abs(wanted.raw).max()
        np.testing.assert_allclose(got.raw, wanted.raw, rtol=0, atol=1e-5 * scale)


def test_a_poisonous_picture_in_a_batch_of_eight_gives_seven_right_answers_and_one_error(hosts: Hosts) -> None:
    host = hosts.ready("poisonable")
    pictures = [BRIGHT if n == 5 else picture(n) for n in range(8)]
    alone = {n: ask(host, pictures[n], n % 4).result() for n in range(8) if n != 5}
    jobs = gathered(host, [(inputs, n % 4) for n, inputs in enumerate(pictures)])
    for n, job in enumerate(jobs):
        if n == 5:
            with pytest.raises(ModelFailed, match="raised KeyError"):
                job.result()
        else:
            assert_same(job.result(), alone[n])
    assert zoo.batches[0] == 8


def test_a_bad_target_in_a_batch_fails_alone_and_costs_no_second_run(hosts: Hosts) -> None:
    host = hosts.ready("poisonable")
    jobs = gathered(host, [(picture(n), 4 if n == 2 else n % 4) for n in range(4)])
    with pytest.raises(Exception, match="valid are 0 to 3"):
        jobs[2].result()
    assert [jobs[n].result().attributions[0].score.index for n in (0, 1, 3)] == [0, 1, 3]
    assert zoo.batches == [4]


def test_a_batch_beyond_the_memory_is_halved_and_what_fitted_is_remembered(hosts: Hosts) -> None:
    host = hosts.ready("crowded")
    alone = [ask(host, picture(n)).result() for n in range(6)]
    for expected_batches in ([6, 3, 3], [3, 3]):  # the second time the six are not even tried
        jobs = gathered(host, [(picture(n), 0) for n in range(6)])
        for job, expected in zip(jobs, alone, strict=True):
            assert_same(job.result(), expected)
        assert zoo.batches == expected_batches


def test_a_method_that_fills_the_device_alone_is_not_batched(hosts: Hosts) -> None:
    host = hosts.ready("poisonable")
    zoo.may_answer.clear()
    zoo.slow_is_running.clear()
    first = ask(host, picture(0))
    assert zoo.slow_is_running.wait(10)
    jobs = [ask(host, picture(n), method="smoothgrad") for n in range(2)]
    zoo.batches.clear()
    zoo.may_answer.set()
    first.result()
    for job in jobs:
        job.result()
    # Per picture its clean score, and 25 noisy copies in chunks of 8: never both pictures' together.
    assert zoo.batches == [1, 8, 8, 8, 1] * 2


def test_a_lost_device_is_told_to_all_and_only_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[threading.Thread] = []
    hosts = Hosts(Registry(settings.models_dir), settings, on_lost=lambda: lost.append(threading.current_thread()))
    other, faulty = hosts.ready("small"), hosts.ready("loses_device")
    monkeypatch.setattr(devices, "answers", devices.answers)  # put back what the network is about to break
    with pytest.raises(DeviceLost, match="The device cpu failed and the server is being restarted") as error:
        ask(faulty, BRIGHTEST).result()
    assert error.value.extra == {"retry_after_s": 10}
    assert (other.owner.state, faulty.owner.state) == ("failed", "failed")
    for name in ("small", "loses_device", "binary"):
        with pytest.raises(DeviceLost):
            hosts.get(name)
    with pytest.raises(DeviceLost):
        ask(other, picture(0))
    assert len(lost) == 1
    assert lost[0].name == "owner-loses_device"
    hosts.close(grace_s=60)


def test_a_device_that_is_lost_while_a_model_loads_is_noticed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    hosts = Hosts(Registry(settings.models_dir), settings, on_lost=lambda: lost.append(1))
    ready = hosts.ready("small")
    monkeypatch.setattr(devices, "answers", lambda _device: False)
    with pytest.raises(DeviceLost):
        hosts.ready("binary")
    assert (lost, ready.owner.state) == ([1], "failed")
    hosts.close(grace_s=60)


def test_a_failed_assertion_after_which_the_device_still_answers_is_the_requests_own_error(hosts: Hosts) -> None:
    host = hosts.ready("loses_device")
    with pytest.raises(ModelFailed, match="raised AcceleratorError"):
        ask(host, BRIGHT).result()
    assert ask(host, picture(0)).result().attributions[0].raw.any()


def test_a_model_is_loaded_once_however_many_ask_and_they_are_told_to_come_again(models_dir: Path) -> None:
    settings = Settings(models_dir=models_dir, torch_threads=1, default_model="small", load_wait_s=0, queue_size=4)
    hosts = Hosts(Registry(models_dir), settings)
    zoo.loads.clear()
    zoo.may_load.clear()

    def ask_for_it(_n: int) -> int | str:
        try:
            with hosts.using("slow_to_load", timeout_s=60):
                return "served"
        except NotReady as error:
            retry_after_s = error.extra["retry_after_s"]
            assert isinstance(retry_after_s, int)
            return retry_after_s

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ask_for_it, range(20))) == {5}
    assert hosts.inside == 0
    zoo.may_load.set()
    hosts.ready("slow_to_load")
    assert ask_for_it(0) == "served"
    assert len(zoo.loads) == 1
    hosts.close(grace_s=60)


def test_places_are_bounded_for_each_model_and_in_total(models_dir: Path) -> None:
    settings = Settings(
        models_dir=models_dir, torch_threads=1, default_model="small", load_wait_s=60, queue_size=2, queue_total=3
    )
    hosts = Hosts(Registry(models_dir), settings)
    with hosts.using("small", timeout_s=60), hosts.using("small", timeout_s=60):
        with pytest.raises(QueueFull, match="HEATLENS_QUEUE_SIZE"), hosts.using("small", timeout_s=60):
            pass
        with (
            hosts.using("binary", timeout_s=60),
            pytest.raises(QueueFull, match="HEATLENS_QUEUE_TOTAL"),
            hosts.using("binary", timeout_s=60),
        ):
            pass
    assert hosts.inside == 0
    hosts.close(grace_s=60)


def sizes(models_dir: Path, *names: str) -> list[int]:
    """What models take in memory: folded and packed copies depend on the machine."""
    hosts = Hosts(Registry(models_dir), Settings(models_dir=models_dir, torch_threads=1, default_model="small"))
    found = [hosts.ready(name).size_bytes for name in names]
    hosts.close(grace_s=60)
    return found


def test_a_models_size_is_that_of_its_numbers_and_of_the_copies(models_dir: Path) -> None:
    convolutions, head = 3 * 6 * 9 + 6 + 6 * 8 * 9 + 8, 8 * 4 + 4
    (size,) = sizes(models_dir, "small")
    assert 4 * (convolutions + head) <= size <= 4 * (2 * convolutions + head)


def test_a_model_beside_which_the_pinned_ones_do_not_fit_is_refused_with_the_numbers(models_dir: Path) -> None:
    small, binary, negative = sizes(models_dir, "small", "binary", "negative")
    limit = small + binary - 1
    assert negative < binary
    settings = Settings(models_dir=models_dir, torch_threads=1, default_model="small", model_memory_bytes=limit)
    hosts = Hosts(Registry(models_dir), settings)
    hosts.ready("small")
    assert hosts.ready("negative").size_bytes == negative
    for _ in range(3):
        with pytest.raises(
            ModelTooLarge, match=rf"takes {binary} bytes.*{small}.*{limit} \(HEATLENS_MODEL_MEMORY_BYTES"
        ):
            hosts.ready("binary")
    refused = hosts.peek("binary")
    assert refused is not None
    assert (refused.owner.state, refused.size_bytes) == ("failed", 0)  # remembered for a while, not loaded again
    kept = hosts.peek("negative")
    assert kept is not None
    assert kept.owner.state == "ready"  # nobody went for a model that could not stay
    hosts.close(grace_s=60)


def test_a_model_that_a_request_is_at_is_not_unloaded(models_dir: Path) -> None:
    limit = sum(sizes(models_dir, "small", "nan"))  # `slow` is not larger
    settings = Settings(models_dir=models_dir, torch_threads=1, default_model="small", model_memory_bytes=limit)
    hosts = Hosts(Registry(models_dir), settings)
    hosts.ready("small")
    hosts.ready("slow")
    with hosts.using("slow", timeout_s=60):
        hosts.ready("nan")  # beyond the limit, but nobody can go
        assert hosts.peek("slow") is not None
    hosts.ready("nan")
    assert hosts.peek("slow") is None
    hosts.close(grace_s=60)
