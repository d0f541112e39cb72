"""HeatLens from Python: explain pictures, classify them, have many of them done as a job.

    from app.client import HeatLens

    HeatLens("http://127.0.0.1:8000").explain("cat.jpg").save("heat.jpg")

Imports neither torch nor the service: it speaks HTTP. What it does not cover is a request away, see `/docs` of the
server: comparisons, diagnostics, kept pictures, the end of an embed link before its time.

What goes wrong with the server, its address or its answers is a `HeatLensError`; a picture that cannot be read is an
`OSError`, as of `open`: `FileNotFoundError` where there is none.
"""

from app.client.connection import HeatLensError
from app.client.explanation import Explanation
from app.client.heatlens import HeatLens
from app.client.jobs import Job, Jobs

__all__ = ["Explanation", "HeatLens", "HeatLensError", "Job", "Jobs"]
