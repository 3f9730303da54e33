# SPDX-License-Identifier: Apache-2.0
"""Bytes that claim to be a message of a tenant's process, or a request to the daemon."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from typing import Any, Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare import abi, protocol
from gpushare.daemon.pages.process_watch import TenantSocket

FIELDS: Final = st.integers(min_value=0, max_value=2**32 - 1)
messages = st.builds(
    lambda kind, level, pid, length, text: abi.MESSAGE_HEADER.pack(kind, level, pid, length) + text,
    st.one_of(st.integers(min_value=0, max_value=4), FIELDS),
    st.one_of(st.integers(min_value=0, max_value=8), FIELDS),
    FIELDS,
    st.one_of(st.integers(min_value=0, max_value=1100), FIELDS),
    st.binary(max_size=1100),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(messages, st.binary(min_size=1, max_size=1200)), max_size=8))
def test_no_message_ends_the_daemon_or_another_connection(packets: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        tenant = TenantSocket.listen("0" * 16, directory)
        try:
            with _connected(folder) as hostile, _connected(folder) as good:
                for packet in packets:
                    with contextlib.suppress(OSError):  # it may be closed to us by now
                        hostile.send(packet)
                    _hear_all(tenant)
                good.send(abi.MESSAGE_HEADER.pack(abi.MESSAGE_HELLO, 6, 7, 0))
                assert _hear_all(tenant) >= 1
        finally:
            tenant.close()
            os.close(directory)


def _connected(folder: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(f"{folder}/{abi.SOCKET_NAME}")
    return made


def _hear_all(tenant: TenantSocket) -> int:
    """Receive what is there, once a connection; return how many connections remain."""
    while tenant.accept() is not None:
        pass
    return sum(tenant.receive(connection, 0.0) for connection in tuple(tenant.connections))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=4096), json_values.map(lambda v: json.dumps(v).encode())))
@example(b'{"a": 1, "a": 2}')
@example(b'{"a": NaN}')
@example(b'{"a": 1e999}')
@example(b"[" * 4000)
@example(b'{"a": ' + b"9" * 4000 + b"}")
def test_a_packet_is_one_object_or_refused(packet: bytes) -> None:
    try:
        decoded: dict[str, Any] = protocol.decode(packet)
    except protocol.ProtocolError:
        return
    assert isinstance(decoded, dict)
    # What was read can be written again: nothing in it that JSON cannot say.
    assert protocol.decode(protocol.encode(decoded, limit=1 << 20)) == decoded
