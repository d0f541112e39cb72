"""What an upload may cost, and the two checks that keep it there."""

from dataclasses import dataclass

from app.imaging.errors import EmptyImage, SideTooLong, TooManyBytes, TooManyPixels


@dataclass(frozen=True)
class Limits:
    """The values come from the settings named beside them."""

    max_bytes: int = 20 * 2**20  # HEATLENS_MAX_BODY_BYTES
    max_pixels: int = 100_000_000  # HEATLENS_MAX_IMAGE_PIXELS
    max_side_px: int = 65_535  # HEATLENS_MAX_IMAGE_SIDE_PX


def check_bytes(data: bytes, limits: Limits) -> None:
    """Raise `EmptyImage` or `TooManyBytes`."""
    if not data:
        raise EmptyImage("The picture is empty: no bytes arrived.")
    if len(data) > limits.max_bytes:
        raise TooManyBytes(
            f"The picture has {len(data)} bytes; at most {limits.max_bytes} are allowed (HEATLENS_MAX_BODY_BYTES).",
            limit=limits.max_bytes,
            setting="HEATLENS_MAX_BODY_BYTES",
        )


def check_size(width: int, height: int, limits: Limits, *, what: str = "picture") -> None:
    """Raise `SideTooLong` or `TooManyPixels`. `width` and `height` in px, from a header; nothing decoded yet."""
    if max(width, height) > limits.max_side_px:
        raise SideTooLong(
            f"The {what} is {width} x {height} px; a side may have at most {limits.max_side_px} px "
            "(HEATLENS_MAX_IMAGE_SIDE_PX).",
            limit=limits.max_side_px,
            setting="HEATLENS_MAX_IMAGE_SIDE_PX",
        )
    if width * height > limits.max_pixels:
        raise too_many_pixels(f"The {what} is {width} x {height} = {width * height} px", limits)


def too_many_pixels(finding: str, limits: Limits) -> TooManyPixels:
    """Build the error that names the pixel limit and its setting."""
    return TooManyPixels(
        f"{finding}; at most {limits.max_pixels} px are allowed (HEATLENS_MAX_IMAGE_PIXELS).",
        limit=limits.max_pixels,
        setting="HEATLENS_MAX_IMAGE_PIXELS",
    )
