"""The numbers of the input: those of torchvision and timm, to the last bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError

from models import catalog
from models.errors import WrongChannels
from models.preprocess import Preprocess
from tests.references import preprocess as reference

SHAPES = [
    (1, 1),
    (1, 2),
    (2, 1),
    (300, 451),
    (451, 300),
    (256, 256),
    (224, 224),
    (37, 801),
    (801, 37),
    (3, 40),
    (640, 479),
]


def noise(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(height * 10_000 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def imagenet(**changes: object) -> Preprocess:
    return Preprocess.model_validate(
        {"input_size": 224, "resize": 256, "mean": reference.MEAN, "std": reference.STD} | changes
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (232, 224), (224, 224), (342, 299), (64, 96)])
def test_crop_is_the_torchvision_preset(shape: tuple[int, int], interpolation: str, resize: int, crop: int) -> None:
    pixels = noise(*shape)
    expected = reference.torchvision_preset(pixels, resize=resize, crop=crop, interpolation=interpolation)
    array, _ = imagenet(input_size=crop, resize=resize, interpolation=interpolation)(pixels)
    assert array.dtype == np.float32
    assert array.shape == (3, crop, crop)
    np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 80), st.integers(1, 80))
def test_crop_is_the_torchvision_preset_at_any_size(height: int, width: int, resize: int, crop: int) -> None:
    pixels = noise(height, width)
    expected = reference.torchvision_preset(pixels, resize=resize, crop=crop)
    array, _ = imagenet(input_size=crop, resize=resize)(pixels)
    np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", catalog.classifiers())
def test_every_catalogued_classifier_is_preprocessed_as_torchvision_says(
    name: str, cat_pixels: NDArray[np.uint8]
) -> None:
    expected = catalog.default_weights(name).transforms()(Image.fromarray(cat_pixels)).numpy()
    preprocess = catalog.spec(name).preprocess
    assert preprocess is not None
    array, _ = preprocess(cat_pixels)
    np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (300, 451), (451, 300), (37, 801), (500, 500)])
@pytest.mark.parametrize(("fit", "crop_mode"), [("crop", "center"), ("squash", "squash"), ("pad", "border")])
@pytest.mark.parametrize("size", [(224, 224), (96, 160)])
@pytest.mark.parametrize(("interpolation", "crop_pct"), [("bicubic", 0.875), ("bilinear", 0.95), ("lanczos", 1.0)])
def test_each_fit_is_timms_crop_mode(
    shape: tuple[int, int], fit: str, crop_mode: str, size: tuple[int, int], interpolation: str, crop_pct: float
) -> None:
    pixels = noise(*shape)
    expected = reference.timm_eval(
        pixels, size=size, crop_pct=crop_pct, crop_mode=crop_mode, interpolation=interpolation
    )
    resize = tuple(int(side / crop_pct) for side in size)
    array, _ = imagenet(input_size=size, resize=resize, fit=fit, interpolation=interpolation)(pixels)
    np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)


def test_squash_without_a_crop_is_torchvisions_resize_to_both_sides(cat_pixels: NDArray[np.uint8]) -> None:
    expected = reference.torchvision_squash(cat_pixels, resize=(96, 160))
    array, _ = imagenet(input_size=(96, 160), resize=None, fit="squash")(cat_pixels)
    np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)


def test_one_channel_is_luma(cat_pixels: NDArray[np.uint8]) -> None:
    expected = reference.torchvision_gray(cat_pixels, resize=80, crop=64, mean=0.4, std=0.3)
    array, _ = Preprocess(input_size=(64, 64), resize=(80, 80), mean=(0.4,), std=(0.3,), channels=1)(cat_pixels)
    assert array.shape == (1, 64, 64)
    np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)


def test_luma_weighs_the_colours_as_itu_r_601_2_does() -> None:
    # 0.299 R + 0.587 G + 0.114 B of pure red is 0.299 * 255 = 76.2, of pure green 149.7, of pure blue 29.1.
    pixels = np.array([[[255, 0, 0]], [[0, 255, 0]], [[0, 0, 255]]], np.uint8)
    preprocess = Preprocess(input_size=(3, 1), fit="squash", mean=(0.0,), std=(1.0,), channels=1)
    array, _ = preprocess(pixels)
    np.testing.assert_allclose(array.ravel() * 255, [76, 150, 29], atol=1e-4)


@pytest.mark.parametrize(("height", "width"), [(40, 3000), (3000, 40), (2, 1800), (1, 900), (900, 1)])
def test_a_long_picture_is_the_crop_of_the_resized_one_but_for_rounding(height: int, width: int) -> None:
    # Smooth, as photographs are: a step of one 8-bit level in the first pass may become two after the second.
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 // width, y * 255 // height, 128 + 100 * np.sin(x / 90 + y / 90)], -1).astype(np.uint8)
    expected = reference.torchvision_preset(pixels, resize=256, crop=224)
    array, _ = imagenet()(pixels)
    levels = np.abs(array - expected) * np.array(reference.STD)[:, None, None] * 255
    assert levels.max() < 2.001
    assert levels.mean() < 0.05


def test_a_long_picture_never_becomes_a_giant(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    resize = Image.Image.resize

    def watched(image: Image.Image, size: tuple[int, int], *args: object) -> Image.Image:
        sizes.append(size[0] * size[1])
        return resize(image, size, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Image.Image, "resize", watched)
    imagenet()(noise(1, 65_535))
    imagenet()(noise(900, 1))
    assert max(sizes) <= 4_000_000


def test_padding_has_the_mean_colour_or_the_given_one() -> None:
    # A 2:1 picture in a square: the upper and lower quarter are padding. 255 * 0.485 = 123.7 -> level 124.
    white = np.full((10, 20, 3), 255, np.uint8)
    array, _ = imagenet(input_size=32, resize=32, fit="pad")(white)
    np.testing.assert_allclose(array[0, :8], (124 / 255 - 0.485) / 0.229, atol=1e-6)
    np.testing.assert_allclose(array[0, 8:24], (1 - 0.485) / 0.229, atol=1e-6)
    array, _ = imagenet(input_size=32, resize=32, fit="pad", fill=(255, 0, 0))(white)
    np.testing.assert_allclose(array[1, 24:], -0.456 / 0.224, atol=1e-6)


@pytest.mark.parametrize("frame", [(902, 600), (451, 300)])
def test_a_reduced_decode_gives_nearly_the_input_of_the_whole(
    cat_pixels: NDArray[np.uint8], frame: tuple[int, int]
) -> None:
    whole = np.asarray(Image.fromarray(cat_pixels).resize(frame, Image.Resampling.BICUBIC))
    expected, geometry = imagenet()(whole)
    array, reduced_geometry = imagenet()(cat_pixels, frame)
    assert reduced_geometry == geometry
    assert np.abs(array - expected).mean() < 0.03  # of a standard deviation


def test_the_input_is_not_shared_with_the_picture(cat_pixels: NDArray[np.uint8]) -> None:
    before = cat_pixels.copy()
    array, _ = imagenet(input_size=(300, 451), fit="squash", resize=None)(cat_pixels)
    array[:] = 0
    np.testing.assert_array_equal(cat_pixels, before)


def test_it_feeds_torch_without_a_copy(cat_pixels: NDArray[np.uint8]) -> None:
    array, _ = imagenet()(cat_pixels)
    assert torch.from_numpy(array).is_contiguous()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"mean": (0.5,)}, "mean has 1 numbers"),
        ({"std": (0.5, 0.5, 0.0)}, "greater than 0"),
        ({"mean": (0.5, 0.5, float("nan"))}, "finite"),
        ({"channels": 4}, "mean has 3 numbers; with channels = 4 it needs 4"),
        ({"channels": 33}, "less than or equal to 32"),
        ({"channels": 0}, "greater than or equal to 1"),
        ({"input_size": 0}, "greater than or equal to 1"),
        ({"resize": 5000}, "less than or equal to 4096"),
        ({"interpolation": "cubic"}, "'bicubic'"),
        ({"fit": "letterbox"}, "'pad'"),
        ({"fill": (0, 0, 256)}, "less than or equal to 255"),
        ({"crop_pct": 0.9}, "Extra inputs"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        imagenet(**changes)


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8), np.zeros((4, 4, 0), np.uint8)],
)
def test_other_arrays_are_refused(pixels: NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match=r"must be \(H, W, 3\) uint8"):
        imagenet()(pixels)


# Arrays for networks with another number of channels


def planes(count: int, **changes: object) -> Preprocess:
    return imagenet(channels=count, mean=np.linspace(0.1, 0.9, count), std=np.linspace(0.2, 0.4, count), **changes)


@pytest.mark.parametrize("shape", [(1, 1), (300, 451), (37, 801), (2, 1800)])
@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize("count", [2, 4, 7])
def test_each_plane_is_a_gray_picture(shape: tuple[int, int], fit: str, count: int) -> None:
    """What a network for one channel would get of a gray picture with the same mean, std and fill."""
    array = np.random.default_rng(count).integers(0, 256, (*shape, count), dtype=np.uint8)
    many = planes(count, input_size=64, resize=80, fit=fit)
    found, geometry = many(array)
    assert found.shape == (count, 64, 64)
    for plane in range(count):
        gray = imagenet(input_size=64, resize=80, fit=fit, channels=1, mean=(many.mean[plane],), std=(many.std[plane],))
        expected, gray_geometry = gray(np.repeat(array[..., plane, None], 3, axis=2))
        assert geometry == gray_geometry
        np.testing.assert_array_equal(found[plane], expected[0])


def test_one_plane_is_a_gray_picture(cat_pixels: NDArray[np.uint8]) -> None:
    luma = np.asarray(Image.fromarray(cat_pixels).convert("L"))[..., None]
    preprocess = imagenet(channels=1, mean=(0.4,), std=(0.3,))
    np.testing.assert_array_equal(preprocess(luma)[0], preprocess(cat_pixels)[0])


def test_32_channels_are_possible() -> None:
    array, _ = planes(32, input_size=8, resize=8)(np.full((8, 8, 32), 255, np.uint8))
    # (255 / 255 - mean) / std of the last plane: (1 - 0.9) / 0.4.
    np.testing.assert_allclose(array[31], 0.25, rtol=1e-5)


@pytest.mark.parametrize(
    ("preprocess", "given", "complaint"),
    [
        (planes(4), 3, r"channels = 4, and a picture has 3 \(RGB\); send an array \(H, W, 4\) uint8, as \.npy"),
        (planes(2), 3, "channels = 2, and a picture has 3"),
        (planes(4), 5, "channels = 4, and this array has 5; send an array"),
        (imagenet(), 4, "channels = 3, and this array has 4; send a picture"),
        (imagenet(channels=1, mean=(0.0,), std=(1.0,)), 2, "channels = 1, and this array has 2; send a picture"),
    ],
)
def test_another_number_of_channels_is_named(preprocess: Preprocess, given: int, complaint: str) -> None:
    with pytest.raises(WrongChannels, match=complaint) as caught:
        preprocess(np.zeros((4, 4, given), np.uint8))
    assert caught.value.field == "image"
    assert caught.value.extra == {"channels": preprocess.channels, "given": given}
