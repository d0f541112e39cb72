"""All results of a job in one stream: complete, well formed, and without holding more than a page."""

import gc
import io
import json
import tracemalloc
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config import Settings
from app.errors import UnknownJob
from app.jobs import results
from app.jobs.artifacts import result_key
from tests.app.jobs.books import FAULT, Book, file_names, opened


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    with opened(Settings(data_dir=tmp_path)) as book:
        yield book


def lines(book: Book, job_id: str) -> list[dict[str, object]]:
    text = b"".join(results.ndjson(book.ledger, book.ledger.job(job_id)))
    return [json.loads(line) for line in text.splitlines()]


def unpacked(pieces: Iterable[bytes]) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.testzip() is None
        assert len(set(archive.namelist())) == len(archive.namelist())
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_line_tells_all_of_a_picture(book: Book) -> None:
    job_id = book.submit(["a/cat.jpg", "b.jpg", "c.jpg"])
    book.succeed(job_id, 0, targets=[2, 0])
    book.fail(job_id, 1)
    good, bad = lines(book, job_id)
    assert (good["name"], good["sha256"], good["label"], good["error"]) == ("a/cat.jpg", "0" * 64, "cat", None)
    found = good["result"]
    assert isinstance(found, dict)
    assert found["predictions"] == [{"index": 2, "label": "cat", "probability": 0.5}]
    assert [row["target"]["index"] for row in found["explanations"]] == [2, 0]
    assert found["explanations"][0]["map"]["no_positive_evidence"] is False
    assert [name for row in found["explanations"] for name in row["artifacts"].values()] == file_names(0, 2)
    assert (bad["number"], bad["error"], bad["result"]) == (1, FAULT, None)
    assert "links" not in good


def test_pages_join_without_gap_or_double(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_PAGE", 3)
    job_id = book.submit([f"{n}.jpg" for n in range(10)])
    book.fail(job_id, *range(10))
    assert [line["number"] for line in lines(book, job_id)] == list(range(10))


def test_the_zip_holds_every_file_under_a_name_that_people_know(book: Book) -> None:
    job_id = book.submit(["a/cat.jpg", "b/cat.jpg", "Ärger.png"])
    book.succeed(job_id, 0, targets=[2, 0])
    book.succeed(job_id, 1, 2)
    files = unpacked(results.archive(book.ledger, book.store, book.ledger.job(job_id)))
    assert list(files) == [
        "results.ndjson",
        "000000-cat.overlay.jpg",
        "000000-cat.map.png",
        "000000-cat.overlay-1.jpg",
        "000000-cat.map-1.png",
        "000001-cat.overlay.jpg",
        "000001-cat.map.png",
        "000002-Ärger.overlay.jpg",
        "000002-Ärger.map.png",
    ]
    assert files["000000-cat.map-1.png"] == b"000000.map-1.png"
    assert len(files["results.ndjson"].splitlines()) == 3


@given(name=st.text(max_size=300))
def test_no_name_leaves_the_folder_or_breaks_a_system(name: str) -> None:
    stem = results.safe_stem(name)
    assert len(PurePosixPath(f"0-{stem}.jpg").parts) == 1
    assert not set(stem) & set('/\\:*?"<>|\0\n\r\t ')
    assert len(stem) <= 60


@pytest.mark.parametrize(
    ("name", "stem"),
    [("../../etc/passwd", "passwd"), ("C:\\x\\y.png", "y"), ("..", ""), ("a b?.jpg", "a_b"), ("x.tar.gz", "x.tar")],
)
def test_names_are_made_harmless(name: str, stem: str) -> None:
    assert results.safe_stem(name) == stem


def test_what_ends_meanwhile_is_in_neither_part(book: Book) -> None:
    job_id = book.submit(["a.jpg", "b.jpg"])
    book.succeed(job_id, 0)
    pieces = results.archive(book.ledger, book.store, book.ledger.job(job_id))
    begun = next(pieces)
    book.succeed(job_id, 1)
    files = unpacked([begun, *pieces])
    assert list(files) == ["results.ndjson", "000000-a.overlay.jpg", "000000-a.map.png"]
    assert len(files["results.ndjson"].splitlines()) == 1


def test_a_file_that_is_gone_is_left_out(book: Book) -> None:
    job_id = book.submit(["a.jpg", "b.jpg"])
    book.succeed(job_id, 0, 1)
    book.store.delete_tree(result_key(job_id, "000000.map.png", 0).rpartition("/")[0])
    book.store.write(result_key(job_id, "000001.map.png", 1), b"map")
    assert list(unpacked(results.archive(book.ledger, book.store, book.ledger.job(job_id)))) == [
        "results.ndjson",
        "000001-b.map.png",
    ]


def test_a_job_that_is_deleted_meanwhile_leaves_no_zip_that_looks_complete(book: Book) -> None:
    job_id = book.submit(["a.jpg"])
    book.succeed(job_id, 0)
    pieces = results.archive(book.ledger, book.store, book.ledger.job(job_id))
    begun = [next(pieces)]
    book.ledger.delete(job_id)
    with pytest.raises(UnknownJob):
        begun.extend(pieces)
    assert not zipfile.is_zipfile(io.BytesIO(b"".join(begun)))


def test_an_empty_job_is_an_empty_zip(book: Book) -> None:
    job_id = book.submit(["a.jpg"])
    assert unpacked(results.archive(book.ledger, book.store, book.ledger.job(job_id))) == {"results.ndjson": b""}


def test_a_large_file_is_read_in_pieces(book: Book) -> None:
    job_id = book.submit(["a.jpg"])
    book.succeed(job_id, 0)
    large = bytes(range(256)) * 2**16  # 16 MiB
    book.store.write(result_key(job_id, "000000.map.png", 0), large)
    pieces = list(results.archive(book.ledger, book.store, book.ledger.job(job_id)))
    assert max(map(len, pieces)) <= 2**16
    assert unpacked(pieces)["000000-a.map.png"] == large


def test_memory_does_not_grow_with_the_job(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays of an entry is its line in the zip's directory; the results themselves would be 2 kB a picture."""
    monkeypatch.setattr(results, "_PAGE", 50)
    small, large = (book.submit([f"{n}.jpg" for n in range(count)]) for count in (200, 1200))
    for job_id, count in ((small, 200), (large, 1200)):
        book.succeed(job_id, *range(count))

    def peak(pieces: Iterable[bytes]) -> int:
        tracemalloc.start()
        for place, _ in enumerate(pieces):
            if place % 200 == 0:  # what nobody holds any more does not count, whenever Python would collect it
                gc.collect()
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    rows = [peak(results.ndjson(book.ledger, book.ledger.job(job_id))) for job_id in (small, small, large)]
    assert rows[2] - rows[1] < 100_000
    zips = [peak(results.archive(book.ledger, book.store, book.ledger.job(job_id))) for job_id in (small, large)]
    assert (zips[1] - zips[0]) / (2 * 1000) < 900  # bytes an entry, of two for each picture
