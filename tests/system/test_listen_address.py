# SPDX-License-Identifier: Apache-2.0
"""Where gpushare's HTTP servers may listen, and which clients need a token."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpushare.listen_address import (
    Address,
    BadAddress,
    is_restricted,
    listen,
)

pytestmark = pytest.mark.gate


def test_a_socket_left_by_another_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    where = Address(path=tmp_path / "metrics.sock")
    first = listen(where)
    assert (tmp_path / "metrics.sock").stat().st_mode & 0o007 == 0
    with pytest.raises(BadAddress, match="in use"):
        listen(where)
    first.close()
    listen(where).close()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadAddress):
        listen(Address(path=tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    del tmp_path
    first = listen(Address(host="127.0.0.1", port=0))
    port = first.getsockname()[1]
    with pytest.raises(BadAddress, match=rf"127.0.0.1:{port}.*in use"):
        listen(Address(host="127.0.0.1", port=port))
    first.close()


@pytest.mark.parametrize(("mode", "restricted"), [(0o666, False), (0o660, True), (0o664, True)])
def test_a_restricted_control_socket_is_detected(
    tmp_path: Path, mode: int, restricted: bool
) -> None:
    path = tmp_path / "control.sock"
    assert not is_restricted(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(str(path))
        path.chmod(mode)
        assert is_restricted(path) is restricted
