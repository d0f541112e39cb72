"""JSON bodies that are deep, strange or wrong."""

import base64
from collections.abc import Iterator

from tests.app.imaging import files
from tests.corpus.making import Made, Maker

_IMAGE = base64.b64encode(files.png(1, 1, b"\0\7"))

json = Maker("json")
bad, option = json.refusing(400, "bad_request_body"), json.refusing(422, "bad_option")
complex_, unknown = json.refusing(413, "json_too_complex"), json.refusing(422, "unknown_option")


def bodies() -> Iterator[Made]:
    """Yield all of them."""
    yield complex_("deep-lists.json", b"[" * 5000 + b"]" * 5000, "5,000 lists in each other")
    yield complex_("deep-objects.json", b'{"a":' * 2000 + b"1" + b"}" * 2000, "2,000 objects in each other")
    yield complex_("deep-open.json", b"[" * 5000, "5,000 lists that never end")
    yield complex_("deep-option.json", _with(b'"target":' + b"[" * 40 + b"]" * 40), "an option 40 lists deep")
    yield bad(
        "number.json",
        _with(b'"target":' + b"9" * 5000),
        "a number of 5,000 digits, on which Python would spend quadratic time",
    )
    yield option("infinite.json", _with(b'"alpha":Infinity'), "a number that JSON has none of")
    yield option("exponent.json", _with(b'"alpha":1e999'), "a number beyond all that can be counted")
    yield bad("half.json", b'{"image":{"base64":"\\ud800"}}', "half a character")
    yield bad("latin.json", b'{"image":{"base64":"\xe9"}}', "no UTF-8")
    yield bad("base64.json", b'{"image":{"base64":"!!!!"}}', "no base64")
    yield bad("url.json", b'{"image":{"url":"http://169.254.169.254/"}}', "an address in place of a picture")
    yield bad("path.json", b'{"image":{"path":"/etc/passwd"}}', "a path in place of a picture")
    yield json.refusing(404, "unknown_image")(
        "climbs.json", b'{"image":{"id":"../../secrets"}}', "an id that is a path"
    )
    yield json.refusing(404, "unknown_model")(
        "model.json", _with(b'"model":"../../etc/passwd"'), "a model that is a path"
    )
    yield unknown(
        "prototype.json", _with(b'"__proto__":{"admin":true}'), "a member that JavaScript would take for more"
    )
    yield unknown("zero.json", _with(b'"a\\u0000b":1'), "an option with a zero in its name")
    yield bad("twice.json", _with(b'"model":"small","model":"large"'), "a member twice, of which each reader takes one")
    yield option("digits.json", _with(b'"target":' + b"9" * 4000), "a number of 4,000 digits, which is not echoed")
    yield bad("list.json", b"[1,2,3]", "no object")
    yield bad("empty.json", b"", "nothing at all")


def _with(member: bytes) -> bytes:
    return b'{"image":{"base64":"' + _IMAGE + b'"},' + member + b"}"
