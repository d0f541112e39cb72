"""What is promised of jobs, kept by real processes on real databases that are killed while they work."""

import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from app.cli import SAMPLE
from app.config import Settings
from app.errors import JobsUnavailable
from app.jobs.artifacts import result_key
from tests.app.jobs import crew as crews
from tests.app.jobs.crew import Crew, children, eventually, kill, kill_all, working
from tests.app.jobs.double import DEADLY, HANGS_ONCE, PICTURE_S, SLOW
from tests.app.jobs.postgres import Postgres
from tests.conftest import start_server, stop_server

pytestmark = pytest.mark.server

SHARD = 8
AT_ONCE = 24
"""Pictures that a worker has in hand: three batches of eight."""
TAKEN_UP_WITHIN_S = 30
SUBMITTER = """
from app.config import Settings
from tests.app.jobs.crew import Crew
crew = Crew(Settings())
while True:
    crew.submit([b"a picture"] * 100)
    print("submitted", flush=True)
"""


def pictures(count: int) -> list[bytes]:
    return [f"picture {number}".encode() for number in range(count)]


@pytest.fixture
def file_settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, job_shard_pictures=SHARD)


@pytest.fixture
def server_settings(tmp_path: Path, postgres_url: str) -> Settings:
    return Settings(data_dir=tmp_path, job_shard_pictures=SHARD, database_url=postgres_url)


def test_a_storm_of_kills_beside_a_file_loses_nothing_and_shows_nothing_twice(file_settings: Settings) -> None:
    storm(file_settings, seed=5, kills=["worker"] * 5 + ["supervisor"])


def test_a_storm_of_kills_of_workers_and_of_postgres_loses_nothing_and_shows_nothing_twice(
    server_settings: Settings, postgres: Postgres
) -> None:
    storm(server_settings, seed=6, kills=["worker"] * 3 + ["supervisor"] + ["database"] * 2, postgres=postgres)


def storm(settings: Settings, *, seed: int, kills: list[str], postgres: Postgres | None = None) -> None:
    """Kill at random times after random points of the progress, as far apart as a worker needs to do what it had.

    Until a worker was killed between the making of an artifact and its record, the kills are aimed there.
    """
    chance = random.Random(seed)  # noqa: S311
    chance.shuffle(kills)
    points = [AT_ONCE * (1 + kill) + chance.randrange(AT_ONCE) for kill in range(len(kills))]
    all_pictures = pictures(points[-1] + 2 * AT_ONCE)
    with working(settings, 2) as crew:
        job_id = crew.submit(all_pictures)
        killed: list[int] = []
        lost: set[int] = set()
        for what, point in zip(kills, points, strict=True):
            crew.wait_for(job_id, point)
            time.sleep(chance.uniform(0, 2 * PICTURE_S))
            aim_at = None if lost else job_id
            if worker := strike(crew, what, chance, postgres, aim_at):
                lost |= crew.unrecorded(job_id, worker)
                killed.append(worker)
        crew.finish(job_id)
        crew.require_exactly_once(job_id, all_pictures)
        assert len(killed) == kills.count("worker")
        assert lost, "no kill fell between the making of an artifact and its record"


def strike(crew: Crew, what: str, chance: random.Random, postgres: Postgres | None, aim_at: str | None) -> int | None:
    """Kill something, and return which worker, if it is one: any, or one with something of a job not recorded yet."""
    if what == "database":
        assert postgres is not None
        postgres.kill()
        postgres.start()
        return None
    if what == "supervisor":
        one = chance.choice([process for process in crew.supervisors if process.poll() is None])
        kill(one.pid)
        one.wait()
        crew.start()  # as whatever keeps the service does; its worker sees that it is alone, and goes
        return None
    able: list[int] = []

    def some_are_able() -> bool:
        able[:] = [one for one in workers_of(crew) if aim_at is None or crew.unrecorded(aim_at, one)]
        return bool(able)

    eventually(some_are_able)
    worker = chance.choice(able)
    kill(worker)
    eventually(lambda: worker not in workers_of(crew))
    return worker


def workers_of(crew: Crew) -> list[int]:
    """Those that have begun to work on something, and live."""
    began = {int(line.split()[0]) for line in crew.lines("began")}
    return [worker for process in crew.supervisors for worker in children(process.pid) if worker in began]


@pytest.mark.parametrize("deployment", ["file_settings", "server_settings"])
def test_what_a_worker_had_that_never_returns_is_another_s_within_half_a_minute(
    deployment: str, request: pytest.FixtureRequest
) -> None:
    settings = request.getfixturevalue(deployment).model_copy(update={"job_shard_pictures": 100})
    with working(settings, 2) as crew:
        all_pictures = pictures(600)
        eventually(lambda: crew.log().count("is ready for jobs") == 2)
        job_id = crew.submit(all_pictures)
        eventually(lambda: [status for _, status, _ in crew.workflows()].count("PENDING") == 2)
        kill_all(crew.supervisors[0])
        killed = time.monotonic()
        eventually(lambda: "left undone are queued again" in crew.log())
        assert time.monotonic() - killed < TAKEN_UP_WITHIN_S
        crew.finish(job_id)
        crew.require_exactly_once(job_id, all_pictures)


def test_a_shard_that_kills_its_worker_is_given_up_after_three_runs_and_the_rest_completes(
    file_settings: Settings,
) -> None:
    all_pictures = pictures(4 * SHARD)
    all_pictures[SHARD + 3] = DEADLY
    with working(file_settings, 1) as crew:
        job_id = crew.submit(all_pictures)
        job = crew.finish(job_id)
        items = crew.items(job_id)
        assert job.status == "completed_with_errors"
        assert crew.began()[SHARD + 3] == 3
        failed = [item for item in items if item.status == "failed"]
        assert {item.number for item in failed} <= set(range(SHARD, 2 * SHARD))
        assert SHARD + 3 in {item.number for item in failed}
        assert {item.error["code"] for item in failed if item.error} == {"worker_lost"}
        assert {item.status for item in items if item not in failed} == {"succeeded"}
        assert (job.done, job.failed) == (len(items), len(failed))


def test_a_cancelled_job_stops_within_a_batch_and_its_retry_does_the_rest(file_settings: Settings) -> None:
    settings = file_settings.model_copy(update={"job_shard_pictures": 400})
    with working(settings, 1) as crew:
        all_pictures = pictures(400)
        job_id = crew.submit(all_pictures)
        crew.wait_for(job_id, 2 * SHARD)
        crew.ledger.cancel(job_id)
        begun = sum(crew.began().values())
        quiet(crew)
        assert sum(crew.began().values()) <= begun + AT_ONCE
        done = {item.number for item in crew.items(job_id) if item.status == "succeeded"}
        assert 2 * SHARD <= len(done) < len(all_pictures)
        before = crew.began()
        crew.ledger.retry(job_id)
        crew.finish(job_id)
        crew.require_exactly_once(job_id, all_pictures)
        assert all(crew.began()[number] == before[number] for number in done), "what was done is done again"


def quiet(crew: Crew) -> None:
    """Wait until nothing was begun for five pictures' time."""
    last, since = -1, 0.0
    while time.monotonic() - since < 1:
        if (now := sum(crew.began().values())) != last:
            last, since = now, time.monotonic()
        time.sleep(0.05)


def test_a_worker_that_is_told_to_stop_hands_back_what_it_has_and_it_costs_no_run(file_settings: Settings) -> None:
    settings = file_settings.model_copy(update={"job_shard_pictures": 200})
    all_pictures = pictures(200)
    with working(settings, 1) as crew:
        job_id = crew.submit(all_pictures)
        crew.wait_for(job_id, 10)
        [supervisor] = crew.supervisors
        supervisor.terminate()
        assert supervisor.wait(crews.GRACE_S) == 0
        assert sorted(crew.workflows()) == [("0", "SUCCESS", 1), ("1", "ENQUEUED", 0)]
        crew.start()
        crew.finish(job_id)
        crew.require_exactly_once(job_id, all_pictures)
        assert set(crew.began().values()) == {1}, "a picture was begun that was not finished"


def test_a_slow_step_is_finished_and_kept_by_a_worker_that_is_told_to_stop(server_settings: Settings) -> None:
    with working(server_settings, 1) as crew:
        job_id = crew.submit([SLOW] * SHARD)
        eventually(lambda: sum(crew.began().values()) == SHARD)
        [supervisor] = crew.supervisors
        supervisor.terminate()
        assert supervisor.wait(crews.GRACE_S) == 0
        crew.require_exactly_once(job_id, [SLOW] * SHARD)
        assert crew.workflows() == [("0", "SUCCESS", 1)]


def test_a_restart_of_the_database_is_waited_out(server_settings: Settings, postgres: Postgres) -> None:
    with working(server_settings, 2) as crew:
        all_pictures = pictures(20 * SHARD)
        job_id = crew.submit(all_pictures)
        crew.wait_for(job_id, SHARD)
        workers = [children(process.pid) for process in crew.supervisors]
        postgres.stop()
        with pytest.raises(JobsUnavailable):
            crew.job(job_id)
        time.sleep(6)  # longer than a place is sure without its lock
        postgres.start()
        crew.finish(job_id)
        crew.require_exactly_once(job_id, all_pictures)
        assert [children(process.pid) for process in crew.supervisors] == workers
        assert set(crew.began().values()) == {1}


def test_workers_that_start_while_the_database_is_away_wait_for_it(
    server_settings: Settings, postgres: Postgres
) -> None:
    with working(server_settings, 0) as crew:
        job_id = crew.submit(pictures(SHARD))
        postgres.stop()
        try:
            crew.start()
            eventually(lambda: "does not answer" in crew.log())
        finally:
            postgres.start()
        crew.finish(job_id)
        crew.require_exactly_once(job_id, pictures(SHARD))


def test_a_worker_that_hangs_is_killed_even_if_it_does_so_at_once_and_its_shard_taken_up(
    file_settings: Settings,
) -> None:
    all_pictures = [HANGS_ONCE, *pictures(SHARD - 1)]
    with working(file_settings, 0) as crew:
        job_id = crew.submit(all_pictures)
        supervisor = crew.start(stall_s=5)
        eventually(lambda: crew.began()[0])
        [worker] = children(supervisor.pid)
        crew.finish(job_id)
        crew.require_exactly_once(job_id, all_pictures)
        assert f"the worker {worker} did nothing for too long" in crew.log()
        assert crew.began()[0] == 2


def test_who_submits_and_is_killed_leaves_whole_jobs_only(file_settings: Settings) -> None:
    settings = Settings(data_dir=file_settings.data_dir, job_shard_pictures=1, max_job_items=100)
    crew = Crew(settings)
    command, surroundings = [sys.executable, "-c", SUBMITTER], crews.environment(settings, crew.traces)
    with subprocess.Popen(command, env=surroundings, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        time.sleep(random.Random(7).uniform(0, 0.3))  # noqa: S311
        process.kill()
    jobs = crew.ledger.jobs(limit=1000)
    assert len(jobs) >= 3
    assert {(job.total, job.status) for job in jobs} == {(100, "queued")}
    assert [(status, runs) for _, status, runs in crew.workflows()] == [("ENQUEUED", 0)] * 100 * len(jobs)
    crew.close()


def test_one_command_explains_jobs_beside_requests_whatever_of_it_is_killed(file_settings: Settings) -> None:
    """With the embedded model; and when the first process is killed, nothing of it is left."""
    photo = SAMPLE.read_bytes()
    settings = file_settings
    server = start_server(
        job_workers="1", workers="1", torch_threads="1", data_dir=str(settings.data_dir), job_shard_pictures=str(SHARD)
    )
    crew, master = Crew(settings), server.process.pid
    try:
        job_id = crew.submit([photo] * 5 * SHARD)
        crew.wait_for(job_id, 3)
        [first] = worker_of(master)
        kill(first)
        [web] = set(children(master)) - set(supervisors_of(master))
        kill(web)
        crew.wait_for(job_id, 2 * SHARD)
        os.kill(master, signal.SIGHUP)
        [supervisor] = supervisors_of(master)
        kill(supervisor)
        crew.wait_for(job_id, 4 * SHARD)
        assert [supervisor] != supervisors_of(master)
        crew.finish(job_id)
        for item in crew.items(job_id):
            assert item.status == "succeeded", item.error
            assert item.result is not None
            assert "cat" in item.result["predictions"][0]["label"]
            name = item.result["explanations"][0]["artifacts"]["overlay"]
            with Image.open(io.BytesIO(crew.store.read(result_key(job_id, name, item.number)))) as overlay:
                overlay.load()
        all_processes = [master, *children(master), *worker_of(master)]
        kill(master)
        server.process.wait()
        eventually(lambda: not any(Path(f"/proc/{process_id}").exists() for process_id in all_processes))
    finally:
        kill(master)
        server.process.communicate()
        crew.close()


def supervisors_of(master: int) -> list[int]:
    return [child for child in children(master) if "app.jobs.supervisor" in Path(f"/proc/{child}/cmdline").read_text()]


def worker_of(master: int) -> list[int]:
    return [worker for supervisor in supervisors_of(master) for worker in children(supervisor)]


def test_a_server_that_is_stopped_stops_who_works_on_jobs(file_settings: Settings) -> None:
    server = start_server(job_workers="1", workers="1", torch_threads="1", data_dir=str(file_settings.data_dir))
    master = server.process.pid
    eventually(lambda: "local:0.lock" in {file.name for file in file_settings.data_dir.glob("locks/*")})
    all_processes = [master, *children(master), *worker_of(master)]
    assert len(all_processes) == 4
    stop_server(server)
    assert not any(Path(f"/proc/{process_id}").exists() for process_id in all_processes)
