"""What is counted, and how Prometheus reads it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from flask import Flask
from prometheus_client.parser import text_string_to_metric_families

from app import create_app, telemetry
from app.config import Settings
from app.metrics import Metrics


def values(page: bytes) -> dict[str, float]:
    """Return each series, written as Prometheus writes it with sorted labels, with its value."""
    return {
        sample.name + "".join(f" {name}={label}" for name, label in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_a_batch_counts_once_and_each_of_its_pictures_waited() -> None:
    metrics = Metrics()
    metrics.ran("net", "gradcam", [0.002, 0.2, 0.3], run_s=0.03)
    metrics.ran("net", "predict", [0.0], run_s=0.02)
    found = values(metrics.page())
    assert found["heatlens_queue_seconds_count model=net"] == 4
    assert found["heatlens_queue_seconds_sum model=net"] == pytest.approx(0.502)
    assert found["heatlens_queue_seconds_bucket le=0.1 model=net"] == 2
    assert found["heatlens_batch_size_sum model=net"] == 4
    assert [found[f"heatlens_batch_size_bucket le={size} model=net"] for size in ("1.0", "2.0", "4.0")] == [1, 1, 2]
    assert found["heatlens_model_seconds_sum method=gradcam model=net"] == pytest.approx(0.03)
    assert found["heatlens_model_seconds_count method=predict model=net"] == 1


def test_what_comes_and_goes() -> None:
    metrics = Metrics()
    metrics.entered("net")
    metrics.entered("net")
    metrics.left("net")
    metrics.loaded("net", 100)
    metrics.loaded("other", 40)
    metrics.unloaded("net")
    metrics.cache_bytes(7)
    metrics.gpu_memory(3, 5)
    found = values(metrics.page())
    assert found["heatlens_pending model=net"] == 1
    assert found["heatlens_loaded_models"] == 1
    assert found["heatlens_loaded_model_bytes model=net"] == 0
    assert found["heatlens_loaded_model_bytes model=other"] == 40
    assert found["heatlens_result_cache_bytes"] == 7
    assert (found["heatlens_gpu_memory_bytes kind=allocated"], found["heatlens_gpu_memory_bytes kind=reserved"]) == (
        3,
        5,
    )


def test_the_cache_has_its_zeros_from_the_start() -> None:
    metrics = Metrics()
    metrics.cache(True)
    found = values(metrics.page())
    assert found["heatlens_result_cache_lookups_total result=hit"] == 1
    assert found["heatlens_result_cache_lookups_total result=miss"] == 0


def test_a_client_makes_no_labels() -> None:
    """Neither paths nor invented methods become labels: each would be a series for ever."""
    app, metrics = Flask(__name__), Metrics()
    telemetry.register(app, metrics)
    app.add_url_rule("/models/<path:model>", "model", lambda model: model)
    client = app.test_client()
    for path in ("/models/one", "/models/two", "/wp-login.php"):
        client.get(path)
    client.open("/models/one", method="BREW")
    found = {name: value for name, value in values(metrics.page()).items() if "requests_total" in name}
    assert found == {
        "heatlens_requests_total method=GET route=/models/<path:model> status=200": 2,
        "heatlens_requests_total method=GET route=unmatched status=404": 1,
        "heatlens_requests_total method=other route=unmatched status=405": 1,
    }


def test_the_page_is_prometheus_text_and_documented(models_dir: Path) -> None:
    app = create_app(Settings(models_dir=models_dir, default_model="small"))
    client = app.test_client()
    client.get("/healthz")
    answer = client.get("/metrics")
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert values(answer.data)["heatlens_requests_total method=GET route=/healthz status=200"] == 1
    document = client.get("/openapi.json").get_json()
    assert list(document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]
    app.extensions["heatlens"].close()


def test_two_apps_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.problem("queue_full")
    assert values(one.page())["heatlens_problems_total code=queue_full"] == 1
    assert "queue_full" not in other.page().decode()


def test_of_a_dead_worker_the_counts_stay_and_the_gauges_go(tmp_path: Path) -> None:
    folder = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    dead = _python(
        "import os; from app.metrics import Metrics; metrics = Metrics();"
        "metrics.entered('net'); metrics.problem('queue_full'); print(os.getpid())",
        folder,
    )
    page = "import sys; from app.metrics import Metrics; sys.stdout.buffer.write(Metrics().page())"
    found = values(_python(page, folder))
    assert found["heatlens_pending model=net"] == found["heatlens_problems_total code=queue_full"] == 1
    worker = f"from types import SimpleNamespace; worker = SimpleNamespace(pid={int(dead)});"
    _python(f"{worker} from app import gunicorn_conf; gunicorn_conf.child_exit(None, worker)", folder)
    found = values(_python(page, folder))
    assert found["heatlens_problems_total code=queue_full"] == 1
    assert "heatlens_pending model=net" not in found


def _python(code: str, variables: dict[str, str]) -> bytes:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, check=True
    ).stdout


def test_files_that_are_foreign_or_half_written_take_nothing_from_the_rest(tmp_path: Path) -> None:
    count = """
from app.metrics import Metrics
metrics = Metrics()
metrics.problem("queue_full")
metrics.entered("net")
"""
    read = f"""
import sys
from pathlib import Path
from prometheus_client.mmap_dict import MmapedDict
from app.metrics import Metrics
folder = Path({str(tmp_path)!r})
(folder / "counter_1.db").write_bytes(b"")  # as it is for a moment when it is made
(folder / "histogram_2.db").write_bytes(bytes([255, 255, 0, 0]) + bytes(60))  # of which the rest is missing
(folder / "gauge_livesum_3.db").write_bytes(bytes([32, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0]) + b"no json!" + bytes(99))
(folder / "counter_4.db").mkdir()
(folder / "notes.db").write_bytes(b"somebody else's")
(folder / "gauge_all_5.db").write_bytes(b"somebody else's")
sys.stdout.buffer.write(Metrics().page())
"""
    folder = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    run = [sys.executable, "-c"]
    subprocess.run([*run, count], env=os.environ | folder, check=True)
    found = subprocess.run([*run, read], env=os.environ | folder, check=True, capture_output=True)
    numbers = values(found.stdout)
    assert numbers["heatlens_problems_total code=queue_full"] == 1
    assert numbers["heatlens_pending model=net"] == 1
    for name in ("counter_1.db", "histogram_2.db", "gauge_livesum_3.db", "counter_4.db"):
        assert name in found.stderr.decode()
    assert "notes.db" not in found.stderr.decode()
