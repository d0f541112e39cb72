"""Makes the corpus anew: `python -m tests.corpus.generate`. Nothing in it is random.

What is compressed may differ a little from one version of a library to the next, and means the same.
"""

import json
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from tests.corpus import FOLDER, MANIFEST
from tests.corpus.archives import archives
from tests.corpus.bodies import bodies
from tests.corpus.making import Made
from tests.corpus.pictures import pictures

_HEAD = """# Hostile files

Made by `python -m tests.corpus.generate`; `manifest.json` says the same as this table. tests/app/test_corpus.py sends
each to a real server: a picture and a JSON body to `/v1/explain`, an archive to `/v1/jobs`. None of them holds anything
that would do harm if it were run.

| file | bytes | what it is | answer |
|---|---:|---|---|
"""


def every() -> list[Made]:
    """Return all files."""
    made = list(chain(pictures(), archives(), bodies()))
    names = [file.about.name for file in made]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two files are called {min(twice)}")
    return made


def main() -> None:
    """Write the files, the manifest and the table."""
    made = every()
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.iterdir():
        path.unlink()
    for file in made:
        (FOLDER / file.about.name).write_bytes(file.data)
    MANIFEST.write_text(json.dumps([asdict(file.about) for file in made], indent=1) + "\n")
    rows = [
        f"| {file.about.name} | {len(file.data)} | {file.about.why} | {file.about.status} {file.about.code or ''} |\n"
        for file in made
    ]
    Path(__file__).with_name("README.md").write_text(_HEAD + "".join(rows))


if __name__ == "__main__":
    main()
