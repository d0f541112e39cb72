"""Which methods and which pictures a command is to look at."""

from collections.abc import Sequence
from pathlib import Path

from app.cli.console import fail


def methods_of(names: Sequence[str]) -> list[str]:
    """Return the methods that are meant, each once, `all` for every one; an unknown one is wrong use."""
    import explainers
    from app.known_errors import KNOWN_ERRORS

    if "all" in names:
        return explainers.names()
    try:
        return list(dict.fromkeys(explainers.get(name).name for name in names))
    except KNOWN_ERRORS as error:
        fail(str(error), code=2)


def pictures_of(folder: Path, limit: int | None, seed: int) -> list[str]:
    """Return the names of the pictures below a folder, as people sort them; of more than `limit` a random choice."""
    import numpy as np

    from app.jobs.names import is_litter, is_picture, natural

    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = sorted((name for name in files if is_picture(name) and not is_litter(name)), key=natural)
    if not names:
        fail(f"{folder} has no pictures.", code=2)
    if limit is None or limit >= len(names):
        return names
    chosen = np.random.default_rng(seed).choice(len(names), limit, replace=False)
    return [names[place] for place in sorted(chosen.tolist())]


def read(images: Sequence[Path]) -> list[bytes]:
    """Return the files' contents; what cannot be read is said, and is 1."""
    try:
        return [image.read_bytes() for image in images]
    except OSError as error:
        fail(str(error), code=1)
