# SPDX-License-Identifier: Apache-2.0
"""The configuration changed under tenants that run: by the command, and by SIGHUP."""

from __future__ import annotations

import signal

import yaml

from gpushare.errors import ExitStatus
from tests.stack import Stack
from tests.system.waiting import wait_until


def write(stack: Stack, **keys: object) -> None:
    stack.config.write_text(yaml.safe_dump({**yaml.safe_load(stack.config.read_text()), **keys}))


def logged(stack: Stack, event: str) -> bool:
    return any(line["event"] == event for line in stack.events())


def statuses(stack: Stack) -> list[int]:
    """What `config check` and `config reload` of the file end with."""
    commands = (("config", "check"), ("config", "reload"))
    return [stack.gpushare(*words, check=False).returncode for words in commands]


def test_sighup_reloads_the_configuration_and_an_invalid_one_is_not_applied(own: Stack) -> None:
    assert own.daemon is not None
    wait_until(lambda: logged(own, "daemon-ready"))
    write(own, max_tenants="many")
    own.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: logged(own, "config-rejected"))
    [told] = [line for line in own.client.status()["warnings"] if "max_tenants" in line]
    assert "the previous configuration remains in effect" in told
    assert statuses(own) == [ExitStatus.ERROR, ExitStatus.ERROR]
    write(own, max_tenants=3, history={"retention_days": 1})
    assert statuses(own) == [ExitStatus.SUCCESS, ExitStatus.REFUSED]  # it requires a restart
    write(own, history={})
    own.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: logged(own, "config-reloaded"))
    assert [card["max_tenants"] for card in own.client.cards()] == [3]
    assert own.client.status()["warnings"] == []
