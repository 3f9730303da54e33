# SPDX-License-Identifier: Apache-2.0
"""Where gpushare's HTTP servers may listen, and which clients need a token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpushare import listen_address
from gpushare.listen_address import (
    BadAddress,
    parse_address,
    refuse_open,
)

DEFAULT = "127.0.0.1:10418"
TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "shown", "local"),
    [
        (DEFAULT, "127.0.0.1:10418", True),
        ("localhost:1", "127.0.0.1:1", True),
        ("[::1]:1", "[::1]:1", True),
        ("unix:/run/x.sock", "unix:/run/x.sock", True),
        ("0.0.0.0:1", "0.0.0.0:1", False),
        ("[::]:1", "[::]:1", False),
        ("10.0.0.7:65535", "10.0.0.7:65535", False),
        ("[::ffff:10.0.0.7]:1", "[::ffff:10.0.0.7]:1", False),
    ],
)
def test_only_loopback_and_sockets_are_this_machines(text: str, shown: str, local: bool) -> None:
    found = parse_address(text, DEFAULT)
    assert (str(found), found.is_local) == (shown, local)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9100",
        "127.0.0.1",
        "example.org:1",
        "127.0.0.1:65536",
        "127.1:1",
        "[::1:1",
        "unix:run.sock",
        "http://127.0.0.1:1",
    ],
)
def test_an_invalid_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadAddress, match="Use"):
        parse_address(text, DEFAULT)


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "10.0.0.7:1"])
def test_remote_clients_need_a_token(text: str) -> None:
    with pytest.raises(BadAddress, match="Add a token"):
        refuse_open(parse_address(text, DEFAULT), "Add a token.", is_protected=False)
    refuse_open(parse_address(text, DEFAULT), "", is_protected=True)
    refuse_open(parse_address(DEFAULT, DEFAULT), "", is_protected=False)


def written(folder: Path, content: str, mode: int = 0o640) -> Path:
    file = folder / "token"
    file.write_text(content)
    file.chmod(mode)
    return file


def test_the_token_is_the_files_single_word(tmp_path: Path) -> None:
    wanted = listen_address.read_token(written(tmp_path, f"{TOKEN}\n"))
    for shown in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
        assert listen_address.is_authorized({"authorization": shown}, wanted)
    through_a_proxy = {"x-gpushare-token": TOKEN}
    assert listen_address.is_authorized(through_a_proxy, wanted)
    assert not listen_address.is_authorized(
        {**through_a_proxy, "authorization": "Bearer x"}, wanted
    )
    assert not listen_address.is_authorized({"x-gpushare-token": TOKEN[:-1]}, wanted)
    for shown in ("", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"):
        assert not listen_address.is_authorized({"authorization": shown}, wanted)


@pytest.mark.parametrize("content", ["", "short", "two words that are long", "ü" * 20, "x" * 5000])
def test_a_weak_token_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(listen_address.BadToken, match="openssl rand -hex 32"):
        listen_address.read_token(written(tmp_path, content))


def test_a_world_readable_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(listen_address.BadToken, match="chmod 640"):
        listen_address.read_token(written(tmp_path, TOKEN, 0o644))
    with pytest.raises(listen_address.BadToken, match=os.strerror(2)):
        listen_address.read_token(tmp_path / "none")
