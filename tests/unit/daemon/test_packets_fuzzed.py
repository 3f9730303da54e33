# SPDX-License-Identifier: Apache-2.0
"""Bytes that claim to be a request to the daemon."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare import protocol
from gpushare.daemon.service.control_server import decode_request
from gpushare.protocol.operations import MalformedRequest
from tests.properties import any_text

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), any_text(20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(any_text(8), inner, max_size=4),
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=4096), json_values.map(lambda v: json.dumps(v).encode())))
@example(b'{"a": 1, "a": 2}')
@example(b'{"a": NaN}')
@example(b'{"a": 1e999}')
@example(b'{"a": "\\ud800"}')
@example(b'{"\\udfff": {"a": ["\\ud83d\\ude00\\ude00"]}}')
@example(b"[" * 4000)
@example(b'{"a": ' + b"9" * 4000 + b"}")
def test_a_packet_is_one_object_or_refused(packet: bytes) -> None:
    try:
        decoded: dict[str, Any] = decode_request(packet)
    except MalformedRequest:
        return
    assert isinstance(decoded, dict)
    # What was read can be written again: nothing in it that JSON cannot say.
    assert protocol.decode(protocol.encode(decoded, limit=1 << 20)) == decoded
    json.dumps(decoded, ensure_ascii=False).encode()
