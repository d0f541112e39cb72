"""The way back: from the input to the displayed picture, on pictures of every shape."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.preprocess import Geometry, Preprocess

SIDES = st.integers(1, 5000)
ANY_PIXELS = np.zeros((2, 2, 3), np.uint8)  # geometry depends on the frame only


def preprocess(**options: object) -> Preprocess:
    return Preprocess.model_validate({"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)} | options)


@st.composite
def preprocesses(draw: st.DrawFn) -> Preprocess:
    sizes = st.tuples(st.integers(1, 64), st.integers(1, 64))
    fit = draw(st.sampled_from(["crop", "squash", "pad"]))
    return preprocess(input_size=draw(sizes), resize=draw(sizes | st.none()), fit=fit)


def geometry_of(made_by: Preprocess, width: int, height: int) -> Geometry:
    _, geometry = made_by(ANY_PIXELS, (width, height))
    return geometry


def test_the_worked_example_of_a_cat() -> None:
    # chelsea is 451x300. The short side 300 -> 256, the long one int(256 * 451 / 300) = int(384.85) = 384.
    # The crop begins at round((384 - 224) / 2) = 80 and round((256 - 224) / 2) = 16.
    geometry = geometry_of(preprocess(input_size=224, resize=256), 451, 300)
    assert geometry.frame == (451, 300)
    assert geometry.input == (224, 224)
    assert geometry.scale == (384 / 451, 256 / 300)
    assert geometry.offset == (-80, -16)
    # So the network saw 80 / 384 * 451 = 93.96 to (80 + 224) / 384 * 451 = 357.04 of the width.
    assert geometry.seen == pytest.approx((80 * 451 / 384, 16 * 300 / 256, 304 * 451 / 384, 240 * 300 / 256))


def test_a_padded_picture_is_seen_whole() -> None:
    # 400x100 into 64x64: ratio 400 / 64, so 64x16, 24 rows of padding above and below.
    geometry = geometry_of(preprocess(input_size=64, fit="pad"), 400, 100)
    assert geometry.offset == (0, 24)
    assert geometry.seen == pytest.approx((0, 0, 400, 100))
    assert geometry.to_frame(0, 24) == (0, 0)
    assert geometry.to_frame(64, 40) == (400, 100)


def test_one_pixel_is_seen_in_part() -> None:
    # 1x1 -> 256x256, cropped by 16 on each side: 16 / 256 of the pixel's width is out of sight.
    geometry = geometry_of(preprocess(input_size=224, resize=256), 1, 1)
    assert geometry.seen == (0.0625, 0.0625, 0.9375, 0.9375)


def test_of_a_900_to_1_picture_only_the_middle_is_seen() -> None:
    # 900x1 -> 230400x256; the crop of 224 columns is 224 / 256 = 0.875 pixels wide, around x = 450.
    geometry = geometry_of(preprocess(input_size=224, resize=256), 900, 1)
    assert geometry.seen == pytest.approx((450 - 0.4375, 0.0625, 450 + 0.4375, 0.9375))


@settings(max_examples=100, deadline=None)
@given(preprocesses(), SIDES, SIDES, st.floats(0, 1), st.floats(0, 1))
def test_there_and_back_is_the_same_place(made_by: Preprocess, width: int, height: int, u: float, v: float) -> None:
    geometry = geometry_of(made_by, width, height)
    x, y = u * width, v * height
    there = geometry.scale[0] * x + geometry.offset[0], geometry.scale[1] * y + geometry.offset[1]
    assert geometry.to_frame(*there) == pytest.approx((x, y), rel=1e-9, abs=1e-9 * max(width, height))


@settings(max_examples=100, deadline=None)
@given(preprocesses(), SIDES, SIDES)
def test_what_is_seen_lies_in_the_frame_and_around_its_middle(made_by: Preprocess, width: int, height: int) -> None:
    geometry = geometry_of(made_by, width, height)
    seen = geometry.seen
    assert 0 <= seen.left < seen.right <= width
    assert 0 <= seen.top < seen.bottom <= height
    # Crop and padding are centred to half a pixel of the input.
    assert abs((seen.left + seen.right) / 2 - width / 2) <= 0.5001 / geometry.scale[0]
    assert abs((seen.top + seen.bottom) / 2 - height / 2) <= 0.5001 / geometry.scale[1]


@settings(max_examples=100, deadline=None)
@given(preprocesses(), SIDES, SIDES)
def test_only_squash_distorts(made_by: Preprocess, width: int, height: int) -> None:
    scale_x, scale_y = geometry_of(made_by, width, height).scale
    if made_by.fit == "squash":
        rows, columns = made_by.resize or made_by.input_size
        assert (scale_x, scale_y) == (columns / width, rows / height)
    else:  # each side was rounded to a whole pixel, and is at least one
        assert abs(scale_x - scale_y) <= 1 / width + 1 / height


@settings(max_examples=100, deadline=None)
@given(preprocesses(), SIDES, SIDES)
def test_the_whole_input_shows_picture_unless_padded(made_by: Preprocess, width: int, height: int) -> None:
    geometry = geometry_of(made_by, width, height)
    corners = [geometry.to_frame(0, 0), geometry.to_frame(*geometry.input)]
    inside = all(-1e-6 <= x <= width + 1e-6 and -1e-6 <= y <= height + 1e-6 for x, y in corners)
    resized = geometry.scale[0] * width, geometry.scale[1] * height
    assert inside == all(side >= size - 1e-6 for side, size in zip(resized, geometry.input, strict=True))


def dotted(width: int, height: int, x: int, y: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a black picture with a white rectangle whose centre is x + w / 2, y + h / 2."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[y : y + size[1], x : x + size[0]] = 255
    return pixels


DOT_CASES = [
    ({"input_size": 64, "resize": 80}, 451, 300),
    ({"input_size": 64, "resize": 80}, 300, 451),
    ({"input_size": 64, "resize": 64}, 1000, 60),
    ({"input_size": 96, "resize": 100}, 30, 23),
    ({"input_size": (48, 96), "fit": "squash"}, 200, 333),
    ({"input_size": 64, "fit": "pad"}, 400, 90),
    ({"input_size": 64, "fit": "pad"}, 33, 401),
    ({"input_size": 64, "resize": 256}, 900, 2),
    ({"input_size": 224, "resize": 256}, 3, 1800),
]


@pytest.mark.parametrize(("options", "width", "height"), DOT_CASES)
@pytest.mark.parametrize("where", [(0.5, 0.5), (0.3, 0.6), (0.72, 0.38)])
def test_a_bright_dot_is_found_where_it_was_drawn(
    options: dict[str, object], width: int, height: int, where: tuple[float, float]
) -> None:
    made_by = preprocess(**options)
    seen = geometry_of(made_by, width, height).seen
    # As large as two pixels of the input, so that 8 bits suffice, and at least one pixel of the picture.
    scale = geometry_of(made_by, width, height).scale
    size = tuple(max(1, round(2 / factor)) for factor in scale)
    x = int(seen.left + where[0] * (seen.right - seen.left))
    y = int(seen.top + where[1] * (seen.bottom - seen.top))
    x, y = min(x, width - size[0]), min(y, height - size[1])
    array, geometry = made_by(dotted(width, height, x, y, size))  # type: ignore[arg-type]
    light = array[0]
    columns, rows = np.arange(light.shape[1]) + 0.5, np.arange(light.shape[0]) + 0.5
    centre = (light.sum(0) @ columns) / light.sum(), (light.sum(1) @ rows) / light.sum()
    found = geometry.to_frame(*centre)
    # Where the dot is cut off by the edge of what is seen, its visible part counts.
    expected_x = (max(x, seen.left) + min(x + size[0], seen.right)) / 2
    expected_y = (max(y, seen.top) + min(y + size[1], seen.bottom)) / 2
    # To a tenth of a pixel of the input, or of the picture where that is magnified.
    assert abs(found[0] - expected_x) <= 0.1 * max(1, 1 / scale[0])
    assert abs(found[1] - expected_y) <= 0.1 * max(1, 1 / scale[1])
