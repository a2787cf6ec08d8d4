"""Which model a body is for that nobody here makes a prompt of."""

from __future__ import annotations

import pytest

from inferway.errors import InvalidRequestError
from inferway.openai_api.unread import read_unread

FORM = b"multipart/form-data; boundary=xx"


def part(head: bytes, value: bytes) -> bytes:
    return b"--xx\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (head, value)


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--xx--\r\n"


MODEL = part(b'name="model"', b"whisper")
FILE = part(b'name="file"; filename="a.wav"\r\nContent-Type: audio/wav', b"RIFF\r\n\r\n\0\xff")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (form(MODEL), FORM),
        (form(FILE, MODEL), FORM),
        (form(MODEL, FILE), b'Multipart/Form-Data; charset=utf-8; Boundary="xx"'),
        (form(part(b"name=model", b"whisper")), FORM),
        (form(part(b'name="model"\r\nContent-Type: text/plain', b"whisper")), FORM),
        (b"\r\n" + form(MODEL), b"multipart/form-data; boundary=xx; charset=utf-8"),
        (form(part(b'filename="a"; name="model"; filename*=utf-8\'\'a', b"whisper")), FORM),
        (form(part(b'name="prompt"', b'name="model"'), MODEL), FORM),
    ],
)
def test_a_form_names_its_model(body: bytes, content_type: bytes) -> None:
    assert read_unread(body, content_type).model == "whisper"


@pytest.mark.parametrize(
    "body",
    [
        form(FILE),
        form(part(b'name="file"; filename="b"', b'\r\nname="model"\r\n\r\nwhisper')),
        form(part(b'name="models"', b"whisper")),
        form(part(b'name="model"', b"")),
        form(part(b'name="model"', b"x" * 2000)),
    ],
)
def test_a_form_may_name_none(body: bytes) -> None:
    assert read_unread(body, FORM).model is None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            form(part(b'name="a"\r\nx: ' + b"a" * 9000, b"1"), MODEL),
            "part 1: .* at most 4096 bytes",
        ),
        (form(*[part(b'name="a"', b"1")] * 1001, MODEL), "over the limit of 1000 parts"),
        (b"preamble\r\n" + form(MODEL), "at the body's start"),
        (form(MODEL) + b"--xx\r\n" + form(MODEL), "part 2: expected nothing behind"),
        (form(MODEL)[:-8], "part 1: expected the boundary behind it"),
        (b"--xx", "part 1: expected a head"),
        (b"--xx \r\n" + MODEL[6:] + b"--xx--", "part 1: expected a head"),
        (b"--xx\n" + MODEL[6:] + b"--xx--", "part 1: expected a head"),
        (form(MODEL, b"--xxx\r\n" + MODEL[6:]), "part 2: expected a head"),
        (b"\r\n", "at the body's start"),
    ],
)
def test_a_form_of_which_not_all_is_known_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"form: .*{says}"):
        read_unread(body, FORM)


@pytest.mark.parametrize(
    "head",
    [
        b"name*=utf-8''vllm%5Fxargs",
        b'name*0="vllm_"; name*1="xargs"',
        b"name=<vllm_xargs>",
        b'name="a"; name="vllm_xargs"',
        b'name="other"\r\nContent-Disposition: form-data; name="vllm_xargs"',
        b'(comment) name="vllm_xargs"',
        b'name=(comment)"vllm_xargs"',
        b'name="vllm\\_xargs"',
        b'filename="a\\"; name="vllm_xargs"; x="',
        b'name="a"\r\n ; name="vllm_xargs"',
        b'name="a\nContent-Disposition: form-data; name=vllm_xargs"',
        b'filename="a"',
        b"",
    ],
)
def test_a_part_that_engines_may_read_otherwise_is_refused(head: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="form: part 2: "):
        read_unread(form(FILE, part(head, b'{"kv_transfer_params": {}}'), MODEL), FORM)


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data",
        b"multipart/form-data; boundary=xx; boundary=yy",
        b'multipart/form-data; boundary="x\\x"',
        b"multipart/form-data; charset=utf-7; boundary=xx",
        b"multipart/form-data; boundary=xx; charset=utf-16",
        b"multipart/form-data; a=b; boundary=xx",
        b"multipart/form-data (comment); boundary=xx",
        b"multipart/form-data; boundary*=utf-8''xx",
        b"text/plain, multipart/form-data; boundary=xx",
        b"multipart/mixed; boundary=xx",
    ],
)
def test_a_content_type_that_engines_may_read_otherwise_is_refused(content_type: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"content-type .*expected multipart"):
        read_unread(form(MODEL), content_type)


@pytest.mark.parametrize(
    "name",
    [
        b'name="vllm_xargs"',
        b"NAME=vllm_xargs",
        b'filename=""; name="vllm_xargs"',
    ],
)
def test_what_a_form_says_below_vllm_xargs_is_known(name: bytes) -> None:
    plain = part(b'name="vllm_xargs"', b'{"a": 1}')
    value = b'{"\\u006bv_transfer_params": "x"}'

    read = read_unread(form(*[FILE] * 70, plain, part(name, value), plain, MODEL), FORM)

    assert read.members.vllm_xargs == {"a": 1, "kv_transfer_params": "x"}
    assert (read.model, read.is_json) == ("whisper", False)


@pytest.mark.parametrize("value", [b"", b"[1]", b'{"a"', b"1"])
def test_what_vllm_refuses_below_vllm_xargs_says_nothing(value: bytes) -> None:
    assert read_unread(form(part(b'name="vllm_xargs"', value)), FORM).members.vllm_xargs is None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_an_object_that_says_it_is_a_form_is_read_as_an_object(encoding: str) -> None:
    body = '{"model": "m", "kv_transfer_params": {"a": 1}}'.encode(encoding)

    read = read_unread(body, FORM)

    assert (read.model, read.is_json) == ("m", True)
    assert read.members.kv_transfer_params == {"a": 1}


def test_a_form_s_model_is_replaced_and_nothing_else() -> None:
    read = read_unread(form(FILE, MODEL), FORM)

    assert read.with_model("large/v3") == form(FILE, part(b'name="model"', b"large/v3"))


@pytest.mark.parametrize(
    "content_type",
    [b"", b"application/json", b"application/json; charset=utf-8", b"application/vnd.x+json"],
)
def test_json_names_its_model(content_type: bytes) -> None:
    read = read_unread(b' {"input": 1, "model": "m"}', content_type)

    assert (read.model, read.is_json) == ("m", True)
    assert read.with_model("n") == b' {"input": 1, "model": "n"}'


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"model": ', "body: not valid JSON"),
        (b"[1]", "body: expected `object`, got `array`"),
        (b'{"model": 1}', "model: expected `str | null`, got `int`"),
    ],
)
def test_what_says_that_it_is_json_must_be_it(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_unread(body, b"application/json")

    assert str(refused.value).startswith(says)


def test_an_object_is_read_whatever_it_says_that_it_is() -> None:
    """Else an engine that does not ask either would read what we have not."""
    body = b'{"model": "m", "kv_transfer_params": {"a": 1}}'

    assert read_unread(body, b"text/plain").members.kv_transfer_params == {"a": 1}
    with pytest.raises(InvalidRequestError):
        read_unread(b"{", b"text/plain")


@pytest.mark.parametrize("body", [b"", b"RIFF\0\xff", b"a=1&model=m"])
def test_the_rest_names_none(body: bytes) -> None:
    assert read_unread(body, b"application/octet-stream").model is None
    assert not read_unread(body, b"application/octet-stream").is_json
