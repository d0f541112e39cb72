"""The time of one request."""

import time

from app.clock import Clock


def test_laps_follow_each_other_and_what_is_left_never_falls_below_zero() -> None:
    before = time.perf_counter()
    clock = Clock(1e-6, "HEATLENS_REQUEST_TIMEOUT_S")
    first, second = clock.lap(), clock.lap()
    assert first >= 0
    assert second >= 0
    assert first + second <= time.perf_counter() - before
    while time.perf_counter() < before + 1e-3:
        pass
    assert clock.remaining_s == 0
    assert clock.limit == "1e-06 s (HEATLENS_REQUEST_TIMEOUT_S)"
    assert 59 < Clock(60, "x").remaining_s <= 60
