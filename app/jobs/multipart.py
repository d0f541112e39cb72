"""A multipart form as it comes in: one part after the other, nothing kept. No Flask."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.sansio.multipart import NEED_DATA, Data, Event, Field, File, MultipartDecoder, State

from app.errors import BadRequestBody

_FEED_BYTES = 2**16
_BUFFER_BYTES = 2 * _FEED_BYTES
"""What the decoder may hold: what is fed to it, and a beginning of a boundary. Only headers can be longer."""
_PADDING_BYTES = 100
"""White space behind a boundary that is waited for."""


@dataclass(frozen=True)
class Part:
    """A part of a form; a field has no file name. What of `data` is not read by the time of the next part is lost."""

    name: str
    filename: str | None
    data: Iterator[bytes]


def parts(chunks: Iterable[bytes], boundary: str) -> Iterator[Part]:
    """Return the parts of a body, whose end is that of the last boundary. Raises `BadRequestBody`."""
    events = _events(chunks, boundary.encode())
    for event in events:
        if isinstance(event, (Field, File)):
            name = event.name or ""  # the decoder promises a string, and gives what it finds
            data = _data(events)
            yield Part(name, event.filename if isinstance(event, File) else None, data)
            for _ in data:  # whatever was left
                pass


def _data(events: Iterator[Event]) -> Iterator[bytes]:
    for event in events:
        if isinstance(event, Data):
            if event.data:
                yield event.data
            if not event.more_data:
                return


def _events(chunks: Iterable[bytes], boundary: bytes) -> Iterator[Event]:
    decoder = MultipartDecoder(boundary, _BUFFER_BYTES)
    pieces = _pieces(chunks)
    try:
        while decoder.state not in (State.EPILOGUE, State.COMPLETE):
            event = decoder.next_event()
            if event is NEED_DATA:
                _feed(decoder, pieces)
            else:
                yield event
    except RequestEntityTooLarge as error:
        raise BadRequestBody("The multipart body has a part whose headers do not end.") from error
    except ValueError as error:  # also for what is no UTF-8
        raise BadRequestBody("The multipart body ends too early, or has parts that cannot be read.") from error


def _feed(decoder: MultipartDecoder, pieces: Iterator[bytes]) -> None:
    """Give the decoder more, up to where no boundary is cut behind its name.

    There Werkzeug 3.1 takes half of the line break before it for data (pallets/werkzeug#3285).
    """
    decoder.receive_data(next(pieces, None))
    while not decoder.complete and _is_cut(decoder.buffer, b"--" + decoder.boundary):
        decoder.receive_data(next(pieces, None))


def _is_cut(buffer: bytearray, delimiter: bytes) -> bool:
    start = buffer.rfind(delimiter)
    behind = bytes(buffer[start + len(delimiter) :]) if start >= 0 else b""
    return 0 < len(behind) <= _PADDING_BYTES and (behind == b"-" or not behind.strip(b" \t"))


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), _FEED_BYTES):
            yield chunk[start : start + _FEED_BYTES]
