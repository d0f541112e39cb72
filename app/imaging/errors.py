"""What can be wrong with a picture, in words that are safe to show to a client.

No class here knows an HTTP status. Texts are fixed: they carry our limits and the picture's size, never the text of
a parser's exception, a path or a piece of the upload.
"""

from typing import ClassVar


class ImageError(Exception):
    """Base of all errors of `app.imaging`.

    `code` is a stable snake_case word, `field` the option at fault, `extra` holds JSON-able facts
    (`limit`, `setting`, `choices` ...). `str(error)` is a full sentence.
    """

    code: ClassVar[str] = "image_error"
    field: ClassVar[str | None] = "image"

    def __init__(self, detail: str, **extra: object) -> None:
        """Keep the sentence and the facts."""
        super().__init__(detail)
        self.detail = detail
        self.extra = extra


class EmptyImage(ImageError):
    """No bytes at all."""

    code = "empty_image"


class TooManyBytes(ImageError):
    """The file is larger than `HEATLENS_MAX_BODY_BYTES`."""

    code = "image_too_many_bytes"


class TooManyPixels(ImageError):
    """The header announces more pixels than `HEATLENS_MAX_IMAGE_PIXELS`."""

    code = "image_too_many_pixels"


class SideTooLong(ImageError):
    """The header announces a side longer than `HEATLENS_MAX_IMAGE_SIDE_PX`."""

    code = "image_side_too_long"


class UnknownFormat(ImageError):
    """The content is none of the formats on the list."""

    code = "unsupported_image_format"


class UnsupportedPixels(ImageError):
    """A known format in a variant that has no agreed meaning as RGB, or that costs too much to decode."""

    code = "unsupported_image_pixels"


class CorruptImage(ImageError):
    """A known format, but damaged, truncated or in a variant that cannot be decoded."""

    code = "corrupt_image"


class UnsupportedOutput(ImageError):
    """The asked-for output format cannot hold the picture."""

    code = "unsupported_output"
    field = "format"
