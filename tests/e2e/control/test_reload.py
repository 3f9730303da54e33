# SPDX-License-Identifier: Apache-2.0
"""The configuration changed under tenants that run: by the command, and by SIGHUP."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpushare.client import Client, Refused
from tests.e2e.waiting import wait_until
from tests.stack import Stack
from tests.stack.bundle import Bundle


@pytest.fixture
def own() -> Iterator[Stack]:
    with Stack() as made:
        made.start_daemon()
        assert Client(made.socket).status()["warnings"] == []
        yield made


def write(stack: Stack, **keys: object) -> None:
    said = {**yaml.safe_load(stack.config.read_text()), **keys}
    said = {key: value for key, value in said.items() if value is not None}
    stack.config.write_text(yaml.safe_dump(said))


def gpushare(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*stack.cli, *words], env=stack.environment, capture_output=True, text=True, check=False
    )


def logged(stack: Stack, event: str) -> list[dict[str, object]]:
    lines = (stack.root / "gpushared.log").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == event]


def refused(stack: Stack, **quota: str) -> str:
    """Return what a container is told that asks for `quota`, "" where it gets it."""
    bundle = Bundle(stack, quota=quota)
    with bundle.run() as tenant:
        try:
            tenant.start()
        except Exception as error:  # noqa: BLE001 - that it does not start is the answer
            return str(error)
    return ""


def test_a_ceiling_holds_from_the_command_on_and_nobody_loses_anything(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "20GiB"})
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        write(own, ceilings={"memory": "10GiB"})
        done = gpushare(own, "config", "reload")
        assert (done.returncode, done.stdout) == (0, "holds now: ceilings, users\n")
        assert "ceilings.memory" in refused(own, memory="15GiB")
        assert tenant.ask("info")["total"] == 20 << 30
        assert gpushare(own, "config", "reload").stdout == "nothing has changed\n"


def test_sighup_reads_it_again_and_a_bad_file_keeps_what_was(own: Stack) -> None:
    assert own.daemon is not None
    wait_until(lambda: bool(logged(own, "daemon-ready")))
    write(own, max_shares="many")
    own.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(logged(own, "config-bad")))
    [told] = [line for line in Client(own.socket).status()["warnings"] if "max_shares" in line]
    assert "what was read before holds" in told
    assert "max_shares" in gpushare(own, "doctor").stdout
    with pytest.raises(Refused, match="max_shares"):
        Client(own.socket).reload()
    write(own, max_shares=3)
    own.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(logged(own, "config-read")))
    assert [card["tenants_max"] for card in Client(own.socket).cards()] == [3]
    assert Client(own.socket).status()["warnings"] == []


def test_the_socket_is_the_readers_groups_from_then_on(own: Stack) -> None:
    write(own, read_group="daemon")
    assert Client(own.socket).reload() == ["read_group"]
    wait_until(lambda: mode(own.socket) == (1, 0o660))
    write(own, read_group=None)
    assert Client(own.socket).reload() == ["read_group"]
    wait_until(lambda: mode(own.socket)[1] == 0o666)


def mode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_gid, stat.S_IMODE(found.st_mode)


def test_what_takes_a_restart_is_said_and_has_exit_status_3(own: Stack) -> None:
    write(own, run_dir="/run/elsewhere", max_shares=2)
    done = gpushare(own, "config", "reload")
    assert done.returncode == 3
    assert "run_dir takes a restart; nothing was taken over, max_shares neither" in done.stderr
    assert [card["tenants_max"] for card in Client(own.socket).cards()] == [16]
