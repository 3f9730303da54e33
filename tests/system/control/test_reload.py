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

from gpushare.client import Client, RequestRefused
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until


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
    """Return the refusal of a container that requests `quota`, "" if it gets it."""
    bundle = Bundle(stack, quota=quota)
    with bundle.run() as tenant:
        try:
            tenant.start()
        except Exception as error:  # noqa: BLE001 - that it does not start is the answer
            return str(error)
    return ""


def test_a_maximum_holds_from_the_command_on_and_nothing_is_lost(own: Stack) -> None:
    bundle = Bundle(own, quota={"memory": "20GiB"})
    with bundle.run() as tenant:
        assert tenant.start()["code"] == 0
        write(own, max_per_request={"memory": "10GiB"})
        done = gpushare(own, "config", "reload")
        assert (done.returncode, done.stdout) == (0, "changed: max_per_request, users\n")
        assert "max_per_request.memory" in refused(own, memory="15GiB")
        assert tenant.ask("info")["total"] == 20 << 30
        assert gpushare(own, "config", "reload").stdout == "nothing has changed\n"


def test_sighup_reloads_the_configuration_and_an_invalid_one_is_not_applied(own: Stack) -> None:
    assert own.daemon is not None
    wait_until(lambda: bool(logged(own, "daemon-ready")))
    write(own, max_tenants="many")
    own.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(logged(own, "config-rejected")))
    [told] = [line for line in Client(own.socket).status()["warnings"] if "max_tenants" in line]
    assert "the previous configuration remains in effect" in told
    assert "max_tenants" in gpushare(own, "doctor").stdout
    with pytest.raises(RequestRefused, match="max_tenants"):
        Client(own.socket).reload()
    write(own, max_tenants=3)
    own.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(logged(own, "config-reloaded")))
    assert [card["max_tenants"] for card in Client(own.socket).cards()] == [3]
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


def test_a_key_that_requires_a_restart_is_reported_with_exit_status_3(own: Stack) -> None:
    write(own, run_dir="/run/elsewhere", max_tenants=2)
    done = gpushare(own, "config", "reload")
    assert done.returncode == 3
    assert "run_dir requires a restart; no change was applied, including max_tenants" in done.stderr
    assert [card["max_tenants"] for card in Client(own.socket).cards()] == [16]


def test_a_profile_holds_for_a_container_and_ls_counts_what_fits(own: Stack) -> None:
    write(own, profiles={"half": {"equal": 2}, "small": {"memory": "8GiB", "cores": 10}})
    assert gpushare(own, "config", "reload").returncode == 0
    [card] = Client(own.socket).cards()
    with Bundle(own, quota={"profile": "half"}).run() as tenant:
        assert tenant.start()["code"] == 0
        [row] = Client(own.socket).tenants()
        assert row["quota"]["profile"] == "half env"
        total = int(tenant.ask("info")["total"])
        assert total == row["cards"][0]["quota_bytes"] == card["memory_bytes"] // 2
        shown = json.loads(gpushare(own, "ls", "--profiles", "--json").stdout)
        assert [(one["name"], one["fits"]) for one in shown] == [("half", 1), ("small", 5)]
        assert "half" in gpushare(own, "ls").stdout
        done = gpushare(own, "set", row["key"], "--profile", "small")
        assert "profile small (was half, env)" in done.stdout, done.stderr
        assert int(tenant.ask("info")["total"]) == 8 << 30
    assert "not a profile of this node. Did you mean small?" in refused(own, profile="smell")
