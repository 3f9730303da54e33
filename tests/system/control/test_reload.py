# SPDX-License-Identifier: Apache-2.0
"""The configuration changed under tenants that run: by the command, and by SIGHUP."""

from __future__ import annotations

import signal

import yaml

from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until


def write(stack: Stack, **keys: object) -> None:
    stack.config.write_text(yaml.safe_dump({**yaml.safe_load(stack.config.read_text()), **keys}))


def logged(stack: Stack, event: str) -> bool:
    return any(line["event"] == event for line in stack.events())


def test_a_maximum_holds_from_the_command_on_and_nothing_is_lost(own: Stack) -> None:
    with Bundle(own, quota={"memory": "20GiB"}).started() as tenant:
        write(own, max_per_request={"memory": "10GiB"})
        assert own.gpushare("config", "reload").stdout == "changed: max_per_request, users\n"
        refused = Bundle(own, quota={"memory": "15GiB"}).refusal()
        assert "max_per_request.memory" in refused
        assert tenant.ask("info")["total"] == 20 << 30


def test_sighup_reloads_the_configuration_and_an_invalid_one_is_not_applied(own: Stack) -> None:
    assert own.daemon is not None
    wait_until(lambda: logged(own, "daemon-ready"))
    write(own, max_tenants="many")
    own.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: logged(own, "config-rejected"))
    [told] = [line for line in own.client.status()["warnings"] if "max_tenants" in line]
    assert "the previous configuration remains in effect" in told
    write(own, max_tenants=3)
    own.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: logged(own, "config-reloaded"))
    assert [card["max_tenants"] for card in own.client.cards()] == [3]
    assert own.client.status()["warnings"] == []
