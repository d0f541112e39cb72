"""Many clients at once, each with wishes of its own, get what each would have got alone."""

import io
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flask.testing import FlaskClient
from numpy.typing import NDArray

from app import create_app
from app.config import Settings
from tests.support import PICTURES

CLIENTS = 16
WISHES = [
    *(f"method={method}&layer={layer}&target={target}" for method, layer, target in itertools.product(
        ("gradcam", "hirescam", "eigencam"), ("bn2", "blocks.4.2"), ("predicted", "top2", "283"))),
    "method=gradcam&target=281&versus=285", "method=gradcam&target=285&versus=281",
    "method=layercam&layer=bn2&layer=blocks.4.2", "method=saliency", "method=saliency&target=281",
    "method=guided_backprop", "method=fullgrad", "method=smoothgrad&samples=4", "method=rise&samples=16",
]  # fmt: skip


@pytest.fixture(scope="module")
def app() -> Iterator[FlaskClient]:
    app = create_app(Settings(torch_threads=1, result_cache_bytes=0, load_wait_s=60))
    service = app.extensions["heatlens"]
    service.start()
    yield app.test_client()
    service.close()


def arrays(client: FlaskClient, query: str, picture: bytes) -> dict[str, NDArray[np.float32]]:
    response = client.application.test_client().put(f"/v1/explain?format=npz&{query}", data=picture)
    assert response.status_code == 200, response.data
    with np.load(io.BytesIO(response.data)) as found:
        return dict(found)


def test_sixteen_clients_with_different_wishes_get_the_serial_answers(app: FlaskClient) -> None:
    pictures = [(PICTURES / name).read_bytes() for name in ("chelsea.png", "coffee.png")]
    asked = [(query, picture) for query in WISHES for picture in pictures]
    alone = [arrays(app, *one) for one in asked]
    start = threading.Barrier(CLIENTS)

    def client(number: int) -> list[tuple[int, dict[str, NDArray[np.float32]]]]:
        start.wait()
        own = [*range(number, len(asked), CLIENTS), *range(number % 3, 36, 12)]  # the latter are asked by several
        return [(n, arrays(app, *asked[n])) for n in own]

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [answer for answers in pool.map(client, range(CLIENTS)) for answer in answers]
    assert {n for n, _ in answers} == set(range(len(asked)))
    for n, got in answers:
        assert got.keys() == alone[n].keys()
        for name, expected in alone[n].items():
            # The order of sums depends on the size of a batch; all else is the same to the last bit.
            scale = float(np.abs(expected).max())
            np.testing.assert_allclose(got[name], expected, rtol=0, atol=2e-5 * scale, err_msg=f"{asked[n][0]} {name}")
