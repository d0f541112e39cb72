"""Sources: patterns of files in folders, in a bucket (moto's server, by s3fs) and on a web server, all real."""

import functools
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config import Settings
from app.errors import SourceNotAllowed, SourceUnreadable
from app.imaging.errors import TooManyBytes
from app.jobs import sources
from app.jobs.names import natural

TREE = [
    "a/1.jpg", "a/2.JPG", "a/10.jpg", "a/b/3.png", "a/b/c/4.jpg", "a/notes.txt", "a/.hidden.jpg", "a/.git/5.jpg",
    "a/Thumbs.db", "10/x.jpg", "9/x.jpg", "top.webp", "secret.key", "a#b%20.jpg",
]  # fmt: skip


def settings(*prefixes: str, **others: Any) -> Settings:
    return Settings(job_sources=prefixes, **others)


def write_tree(root: Path) -> None:
    for name in TREE:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    write_tree(root)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.jpg").write_bytes(b"outside")
    return root


def names(pattern: str, allowed: Settings) -> list[str]:
    return [found.name for found in sources.find(pattern, allowed)]


ALL = ["9/x.jpg", "10/x.jpg", "a/1.jpg", "a/2.JPG", "a/10.jpg", "a/b/3.png", "a/b/c/4.jpg", "a#b%20.jpg", "top.webp"]
PATTERNS = {
    "": ALL,
    "/**": ALL,
    "/a": ["1.jpg", "2.JPG", "10.jpg", "b/3.png", "b/c/4.jpg"],
    "/a/": ["1.jpg", "2.JPG", "10.jpg", "b/3.png", "b/c/4.jpg"],
    "/a/*.jpg": ["1.jpg", "10.jpg"],
    "//a//./*.jpg": ["1.jpg", "10.jpg"],
    "/a/*": ["1.jpg", "2.JPG", "10.jpg", "notes.txt"],
    "/a/**/*.jpg": ["1.jpg", "10.jpg", "b/c/4.jpg"],
    "/**/*.jpg": ["9/x.jpg", "10/x.jpg", "a/1.jpg", "a/10.jpg", "a/b/c/4.jpg", "a#b%20.jpg"],
    "/**/b/**/*.*": ["a/b/3.png", "a/b/c/4.jpg"],
    "/**/**/c/*.jpg": ["a/b/c/4.jpg"],
    "/*/x.jpg": ["9/x.jpg", "10/x.jpg"],
    "/[0-9]/*.jpg": ["9/x.jpg"],
    "/a/*/*.png": ["b/3.png"],
    "/a/1.jpg": ["1.jpg"],
    "/a/notes.txt": ["notes.txt"],
    "/a/none*": [],
}  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_name_files_in_natural_order_below_their_fixed_part(root: Path, pattern: str) -> None:
    allowed = settings(f"file://{root}")
    assert names(f"file://{root}{pattern}", allowed) == PATTERNS[pattern]


def test_what_is_found_is_read_again_by_its_url(root: Path) -> None:
    allowed = settings(f"file://{root}")
    for found in sources.find(f"file://{root}", allowed):
        assert sources.read(found.url, allowed) == found.name.encode()


def test_a_listing_goes_no_further_than_it_is_asked_to(root: Path) -> None:
    """The link that would be refused comes in a folder behind the first two pictures."""
    (root / "a" / "link.jpg").symlink_to(root.parent / "outside" / "x.jpg")
    found = sources.find(f"file://{root}", settings(f"file://{root}"))
    assert [each.name for each in islice(found, 2)] == ["9/x.jpg", "10/x.jpg"]
    with pytest.raises(SourceNotAllowed):
        list(found)


REFUSED = [
    "file:///etc/passwd", "file:///", "file://{root}2/a.jpg", "file://{parent}/*/x.jpg", "file://{root}/../outside/x.jpg",
    "file://{root}/a/../../outside/x.jpg", "file://{root}/%2e%2e/outside/x.jpg", "file://{root}/%2E./outside",
    "file://{root}/..%2foutside/x.jpg", "file:/{root}/a", "file:{root}", "{root}/a", "", "a", "file://localhost{root}/a",
    "file://{root}\\..\\x", "file://{root}/a\0",
    "simplecache::file://{root}/a", "file::file://{root}/a", "zip://*.jpg::file://{root}/a.zip", "dir://{root}/a",
    "http://127.0.0.1/a.jpg", "https://user:secret@example.org/a.jpg", "s3://key:secret@bucket/a.jpg", "s3://bucket/a",
    "memory://a", "ftp://example.org/a", "nonsense://a", "file://{root}/" + "a" * 2000,
]  # fmt: skip


@pytest.mark.parametrize("url", REFUSED)
def test_what_is_not_below_an_allowed_prefix_is_refused_when_listed_and_when_read(root: Path, url: str) -> None:
    allowed = settings(f"file://{root}")
    url = url.replace("{root}", str(root)).replace("{parent}", str(root.parent))
    with pytest.raises(SourceNotAllowed, match="HEATLENS_JOB_SOURCES") as refused:
        sources.find(url, allowed)
    assert refused.value.extra["choices"] == [f"file://{root}"]
    assert refused.value.field == "source"
    with pytest.raises(SourceNotAllowed):
        sources.read(url, allowed)


def test_nothing_is_allowed_unless_the_operator_says_so(root: Path) -> None:
    with pytest.raises(SourceNotAllowed, match="Nothing is allowed"):
        sources.find(f"file://{root}", settings())


def test_odd_letters_in_names_of_files_are_only_letters(root: Path) -> None:
    """Those of a macOS screenshot among them, with its narrow space before PM."""
    odd = [
        "a?b.jpg",
        "axb.jpg",
        "a#c.jpg",
        "a b%2e.jpg",
        "at 3.45\u202fPM.png",
        "\U0001f469\u200d\U0001f467.jpg",
        "é.jpg",
    ]
    for name in odd:
        (root / name).write_bytes(name.encode())
    allowed = settings(f"file://{root}")
    for name in odd:
        (found,) = sources.find(f"file://{root}/{name}", allowed)
        assert sources.read(found.url, allowed) == name.encode()
    assert names(f"file://{root}/a?*.jpg", allowed) == ["a?b.jpg"]


@pytest.mark.parametrize("name", [b"a\nb.jpg", b"a\\b.jpg", b"caf\xe9.jpg"])
def test_a_name_that_no_url_can_have_is_said_and_not_passed_over(root: Path, name: bytes) -> None:
    (Path(os.fsdecode(bytes(root) + b"/" + name))).write_bytes(b"x")
    with pytest.raises(SourceUnreadable, match="another one"):
        names(f"file://{root}", settings(f"file://{root}"))


def test_what_is_allowed_no_more_is_not_read(root: Path) -> None:
    (found,) = sources.find(f"file://{root}/top.webp", settings(f"file://{root}"))
    with pytest.raises(SourceNotAllowed):
        sources.read(found.url, settings(f"file://{root}/a"))


def test_a_prefix_is_taken_literally_and_schemes_are_not_case_sensitive(tmp_path: Path) -> None:
    """`[9]` of the operator's is a folder's name; of the client's it would be a pattern for `9`."""
    for name in ("[9]", "9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpg").write_bytes(name.encode())
    allowed = settings(f"file://{tmp_path}/[9]/")
    (found,) = sources.find(f"FILE://{tmp_path}/[9]/*.jpg", allowed)
    assert sources.read(found.url, allowed) == b"[9]"
    (found,) = sources.find(f"local://{tmp_path}/[9]", allowed)
    assert sources.read(found.url, allowed) == b"[9]"


@pytest.mark.parametrize("pattern", ["", "/**/*.jpg", "/out/*.jpg", "/out", "/link.jpg", "/*.jpg"])
def test_links_out_of_the_root_are_refused_when_listed(tmp_path: Path, root: Path, pattern: str) -> None:
    link = root / ("link.jpg" if pattern.endswith(("link.jpg", "/*.jpg")) and "out" not in pattern else "out")
    link.symlink_to(tmp_path / "outside" / ("x.jpg" if link.suffix else ""))
    with pytest.raises(SourceNotAllowed, match="link"):
        list(sources.find(f"file://{root}{pattern}", settings(f"file://{root}")))


def test_links_out_of_the_root_are_refused_when_read(tmp_path: Path, root: Path) -> None:
    """Somebody puts the link there, or in place of a folder, when the listing is done."""
    allowed = settings(f"file://{root}")
    (found,) = sources.find(f"file://{root}/9/x.jpg", allowed)
    (root / "9" / "x.jpg").unlink()
    (root / "9" / "x.jpg").symlink_to(tmp_path / "outside" / "x.jpg")
    with pytest.raises(SourceNotAllowed, match="link"):
        sources.read(found.url, allowed)
    (root / "9").rename(root / "8")
    (root / "9").symlink_to(tmp_path / "outside")
    with pytest.raises(SourceNotAllowed, match="link"):
        sources.read(found.url, allowed)


def test_links_within_what_is_allowed_are_followed_and_never_in_circles(tmp_path: Path, root: Path) -> None:
    (tmp_path / "outside" / "up").symlink_to(root / "9")
    (root / "9" / "there").symlink_to(tmp_path / "outside")
    (root / "9" / "self").symlink_to(root / "9")
    (root / "9" / "same.jpg").symlink_to(root / "9" / "x.jpg")
    allowed = settings(f"file://{root}", f"file://{tmp_path}/outside")
    assert names(f"file://{root}/9", allowed) == ["same.jpg", "there/x.jpg", "x.jpg"]


def test_a_root_that_is_a_link_itself_is_where_it_leads(tmp_path: Path, root: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    allowed = settings(f"file://{tmp_path}/alias")
    (found,) = sources.find(f"file://{tmp_path}/alias/top.webp", allowed)
    assert sources.read(found.url, allowed) == b"top.webp"


@pytest.mark.parametrize("pattern", ["/none", "/none/*.jpg", "/top.webp/*.jpg"])
def test_where_nothing_is_nothing_can_be_listed(root: Path, pattern: str) -> None:
    with pytest.raises(SourceUnreadable, match=r"(nothing is there|Not a directory)"):
        list(sources.find(f"file://{root}{pattern}", settings(f"file://{root}")))


def test_what_is_no_file_or_too_large_is_not_read(root: Path) -> None:
    allowed = settings(f"file://{root}", max_body_bytes=2000)
    os.mkfifo(root / "pipe.jpg")
    (root / "fits.jpg").write_bytes(bytes(2000))
    (root / "large.jpg").write_bytes(bytes(2001))
    assert len(sources.read(f"file://{root}/fits.jpg", allowed)) == 2000
    with pytest.raises(TooManyBytes, match="2000"):
        sources.read(f"file://{root}/large.jpg", allowed)
    with pytest.raises(SourceUnreadable, match="no file"):
        sources.read(f"file://{root}/pipe.jpg", allowed)
    for name in ("gone.jpg", "a", ""):
        with pytest.raises(SourceUnreadable):
            sources.read(f"file://{root}/{name}", allowed)


@given(st.text(st.sampled_from("./%2eE\\a*?#:@[]"), max_size=40))
def test_no_spelling_leads_out(spelling: str) -> None:
    """Whatever is let through names, by its own text, what is below the prefix."""
    allowed = settings("file:///data/pictures")
    for read in (sources.find, sources.read):
        for url in (f"file:///data/pictures/{spelling}", f"file:///data/{spelling}", spelling):
            try:
                read(url, allowed)
            except SourceNotAllowed:
                continue
            except SourceUnreadable:  # there is no such folder
                pass
            assert os.path.normpath(url.partition("://")[2]).startswith("/data/pictures")


@given(st.lists(st.tuples(st.sampled_from(["", "a", "B"]), st.integers(0, 200)), max_size=8))
def test_natural_order_is_that_of_the_numbers(parts: list[tuple[str, int]]) -> None:
    shuffled = [f"{word}{number}.jpg" for word, number in parts]
    expected = [
        f"{word}{number}.jpg"
        for word, number in sorted(parts, key=lambda part: (part[0] != "", part[0].lower(), part[1]))
    ]
    assert [name.lower() for name in sorted(shuffled, key=natural)] == [name.lower() for name in expected]


# A bucket.

ANYBODY = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The address of an S3 server with the tree in a bucket."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        url = f"http://127.0.0.1:{port}"
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **ANYBODY)
        client.create_bucket(Bucket="bucket")
        client.create_bucket(Bucket="secret")
        client.put_object(Bucket="secret", Key="x.jpg", Body=b"secret")
        for name in TREE:
            client.put_object(Bucket="bucket", Key=f"pictures/{name}", Body=name.encode())
        client.put_object(Bucket="bucket", Key="pictures/a/", Body=b"")  # how some tools make a folder
        client.put_object(Bucket="bucket", Key="pictures2/x.jpg", Body=b"not allowed")
        client.put_object(Bucket="bucket", Key="odd/..%2f::file:///etc/passwd.jpg", Body=b"only a name")
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
            continue
        return
    pytest.fail("the S3 server did not start")


@pytest.fixture
def s3(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in {
        "AWS_ENDPOINT_URL": bucket,
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return settings("s3://bucket/pictures", max_body_bytes=2000)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_mean_the_same_in_a_bucket(s3: Settings, pattern: str) -> None:
    assert names(f"s3://bucket/pictures{pattern}", s3) == PATTERNS[pattern]


def test_what_is_found_in_a_bucket_is_read_and_what_is_new_is_seen(s3: Settings, bucket: str) -> None:
    for found in sources.find("s3://bucket/pictures/**/*.jpg", s3):
        assert sources.read(found.url, s3) == found.name.encode()
    client = boto3.client("s3", endpoint_url=bucket)
    client.put_object(Bucket="bucket", Key="pictures/new/empty.jpg", Body=b"")
    client.put_object(Bucket="bucket", Key="pictures/new/large.jpg", Body=bytes(2001))
    assert names("s3://bucket/pictures/new", s3) == ["empty.jpg", "large.jpg"]
    assert sources.read("s3://bucket/pictures/new/empty.jpg", s3) == b""
    with pytest.raises(TooManyBytes):
        sources.read("s3://bucket/pictures/new/large.jpg", s3)
    for name in ("empty.jpg", "large.jpg"):
        client.delete_object(Bucket="bucket", Key=f"pictures/new/{name}")


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/", "s3://bucket/pictures2/x.jpg", "s3://bucket/pict*/x.jpg", "s3://secret/x.jpg",
            "s3://*/x.jpg", "s3://bucket/pictures/../pictures2/x.jpg", "s3a://bucket/pictures/top.webp"],
)  # fmt: skip
def test_other_parts_of_a_bucket_are_refused(s3: Settings, url: str) -> None:
    with pytest.raises(SourceNotAllowed):
        sources.find(url, s3)
    with pytest.raises(SourceNotAllowed):
        sources.read(url, s3)


@pytest.mark.parametrize(
    "url", ["s3://bucket/pictures/*.jp?", "s3://bucket/pictures/a?x=1", "s3://bucket/pictures/a#b"]
)
def test_a_query_and_a_fragment_are_refused(s3: Settings, url: str) -> None:
    with pytest.raises(SourceNotAllowed, match="neither query nor fragment"):
        sources.find(url, s3)


@pytest.mark.parametrize(
    "url", ["s3://bucket/pictures/none", "s3://bucket/pictures/none.jpg", "s3://bucket/pictures/none/*"]
)
def test_what_is_not_in_the_bucket_is_unreadable(s3: Settings, url: str) -> None:
    with pytest.raises(SourceUnreadable, match="nothing is there"):
        list(sources.find(url, s3))
    with pytest.raises(SourceUnreadable):
        sources.read(url, s3)


def test_a_name_in_a_bucket_is_no_chain_of_urls(s3: Settings) -> None:
    """Whoever may write there could else have the server read its own files."""
    allowed = settings("s3://bucket/odd")
    found = list(sources.find("s3://bucket/odd/**", allowed))
    assert all(b"root:" not in sources.read(each.url, allowed) for each in found)


def test_a_file_system_that_is_not_installed_is_an_error_and_not_a_crash() -> None:
    allowed = Settings().model_copy(update={"job_sources": ("gs://bucket/pictures",)})  # as `heatlens batch` has it
    with pytest.raises(SourceUnreadable, match="gcsfs"):  # HeatLens does not bring it along
        list(sources.find("gs://bucket/pictures/*.jpg", allowed))


# A web server.


class _Redirecting(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/pictures/away"):
            self.send_response(302)
            self.send_header("Location", "/secret.key")
            self.end_headers()
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *args: object) -> None:
        """Keep still."""


@pytest.fixture
def web(root: Path) -> Iterator[str]:
    (root.parent / "secret.key").write_bytes(b"secret")
    handler = functools.partial(_Redirecting, directory=str(root.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_web_server_is_read_where_the_operator_allows_it_and_redirects_are_not_followed(web: str) -> None:
    allowed = settings(f"{web}/pictures")
    (found,) = sources.find(f"{web}/pictures/top.webp", allowed)
    assert sources.read(found.url, allowed) == b"top.webp"
    for url in (f"{web}/secret.key", f"{web}/pictures/..%2fsecret.key", f"{web}/pictures/%2e%2e/secret.key"):
        with pytest.raises(SourceNotAllowed):
            sources.read(url, allowed)
    try:
        data = sources.read(f"{web}/pictures/away.jpg", allowed)
    except SourceUnreadable:
        return
    assert b"secret" not in data
