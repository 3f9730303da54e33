# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from .driver import Driver


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'"\\u0026\\u003c\\u003e"', "&<>"),
        (b'"\\u00e9\\u20ac\\ud83d\\ude00"', "\u00e9\u20ac\U0001f600"),
        (b'"\\ud83d x \\ude00"', "\ufffd x \ufffd"),
        (b'"\\ud83d\\u0041"', "\ufffdA"),
        (b'"\\"\\\\\\/\\b\\f\\n\\r\\t"', '"\\/\b\f\n\r\t'),
        (b" [ ] ", []),
        (b"{}", {}),
        (b"[1,-2,0,true,false,null,9007199254740992]", [1, -2, 0, True, False, None, 2**53]),
        (b"[1.5,1e3,12345678901234567,-0.0,2]", [None, None, None, None, 2]),  # echoed when whole
        (b'{"a":{"b":[{"c":"d"}]},"e":""}', {"a": {"b": [{"c": "d"}]}, "e": ""}),
        ('"\u00fc"'.encode(), "\u00fc"),
    ],
)
def test_a_document_is_read(driver: Driver, text: bytes, value: Any) -> None:
    assert driver.echo(text) == value


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"{", b"[", b'"', b'"\\', b'"\\u', b'"\\u12', b'"\\u12x4"', b'"\\x41"',
        b'"\\\0"', b"tru", b"nul", b"nan", b"NaN", b"-", b"-a", b"+1", b"01", b"1.", b".5", b"1e",
        b"1e+", b"[1,]", b"[,1]", b"[1 2]", b"[1}", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{"a":1]',
        b"{1:2}", b'{"a" 1}', b"{,}", b"[]]", b"{} {}", b"1 1", b'"a\nb"', b'"a\0b"', b"\0",
        b"\xef\xbb\xbf{}", b"'a'",
    ],
)  # fmt: skip
def test_malformed_json_is_an_error(driver: Driver, text: bytes) -> None:
    with pytest.raises(ValueError, match="error"):
        driver.echo(text)


def test_nesting_is_bounded(driver: Driver) -> None:
    assert driver.echo(b"[" * 64 + b"]" * 64)
    with pytest.raises(ValueError, match="error"):
        driver.echo(b"[" * 65 + b"]" * 65)
    with pytest.raises(ValueError, match="error"):
        driver.echo(b'{"a":' * 1_000_000)


def test_bytes_that_are_no_utf8_are_written_as_the_replacement_character(driver: Driver) -> None:
    for bad in (b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
        assert set(driver.echo(b'"' + bad + b'"')) == {"\ufffd"}
