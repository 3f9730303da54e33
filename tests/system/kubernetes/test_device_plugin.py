# SPDX-License-Identifier: Apache-2.0
"""The device plugin and a kubelet: registration, restarts, a socket that vanishes, allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.client import Client, RequestRefused
from gpushare.errors import UserError
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.cards import SchedulableCard
from gpushare.kubernetes.kubelet.device_plugin import RETRY_SECONDS, DevicePlugin
from gpushare.kubernetes.kubelet.memory_units import REFUSED_SECONDS, memory_resource
from tests.stack.kubelet import Admitted, StandInKubelet
from tests.stack.kubelet.service import PluginError
from tests.system.waiting import wait_until
from tests.unit.kubernetes.gpushared import Clock

pytestmark = pytest.mark.gate

GIB = 1 << 30
A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
RESOURCE = "gpushare.io/memory-gib"


class Allocations(Client):
    """gpushared's folders; `refusal` is what it answers instead."""

    refusal = ""
    placement = ""

    def status(self) -> Any:
        return {"default_placement": self.placement}

    def allocation(self, card: str, memory_bytes: int) -> str:
        if self.refusal:
            raise RequestRefused(self.refusal)
        return f"/run/gpushare/allocations/{card}/{memory_bytes}"


@pytest.fixture
def kubelet(folder: Path) -> Iterator[StandInKubelet]:
    with StandInKubelet(folder) as made:
        yield made


@pytest.fixture
def source() -> Allocations:
    return Allocations()


Make = Callable[..., DevicePlugin]


@pytest.fixture
def make(folder: Path, clock: Clock, source: Allocations) -> Iterator[Make]:
    made: list[DevicePlugin] = []

    def one(**options: str) -> DevicePlugin:
        plugins = folder / "device-plugins"
        plugin = DevicePlugin(plugins, memory_resource(**options), source, StatusLog(), clock)
        made.append(plugin)
        return plugin

    yield one
    for plugin in made:
        plugin.close()


@pytest.fixture
def plugin(make: Make) -> DevicePlugin:
    made = make()
    made.update(cards(4, 4))
    return made


def cards(first: int, second: int) -> tuple[SchedulableCard, ...]:
    """Return two cards of 4 GiB, of which the scheduler may have so much."""
    return tuple(
        SchedulableCard(uuid, 4 * GIB, gib * GIB, "", 0) for uuid, gib in ((A, first), (B, second))
    )


def registered(plugin: DevicePlugin, kubelet: StandInKubelet, count: int = 1) -> None:
    plugin.step()
    assert len(kubelet.registrations) == count
    wait_until(lambda: kubelet.capacity(RESOURCE) > 0)


def test_memory_that_may_not_be_scheduled_is_told_at_once(
    plugin: DevicePlugin, kubelet: StandInKubelet
) -> None:
    registered(plugin, kubelet)
    assert kubelet.registrations[0]["endpoint"] == "gpushare-memory-gib.sock"
    assert kubelet.capacity(RESOURCE) == kubelet.allocatable(RESOURCE) == 8
    plugin.step()
    assert len(kubelet.registrations) == 1
    plugin.update(cards(1, 4))
    wait_until(lambda: kubelet.allocatable(RESOURCE) == 5)
    assert kubelet.capacity(RESOURCE) == 8
    lists = kubelet.endpoints[RESOURCE].lists
    plugin.update(cards(1, 4))
    plugin.update(cards(4, 4))
    wait_until(lambda: kubelet.allocatable(RESOURCE) == 8)
    assert kubelet.endpoints[RESOURCE].lists == lists + 1


def test_a_container_gets_a_folder_of_its_part(
    plugin: DevicePlugin, kubelet: StandInKubelet
) -> None:
    registered(plugin, kubelet)
    first = kubelet.admit(RESOURCE, 3)
    assert first.response["mounts"] == [
        {
            "container_path": "/run/gpushare/allocation",
            "host_path": f"/run/gpushare/allocations/{A}/{3 * GIB}",
            "read_only": True,
        }
    ]
    # The next goes where it fits, the one after fills the first card up.
    assert {device.partition(".")[0] for device in kubelet.admit(RESOURCE, 2).devices} == {B}
    assert kubelet.admit(RESOURCE, 1).devices == {f"{A}.3"}
    first.release()
    assert kubelet.admit(RESOURCE, 3).devices == first.devices


def test_parts_of_several_cards_are_refused_with_the_reason(
    plugin: DevicePlugin, kubelet: StandInKubelet
) -> None:
    registered(plugin, kubelet)
    kubelet.admit(RESOURCE, 3)
    kubelet.admit(RESOURCE, 3)
    with pytest.raises(PluginError, match="no card has 2 units left for another container: the la"):
        kubelet.admit(RESOURCE, 2)
    # A kubelet that asks for no preference is told at Allocate.
    kubelet.endpoints[RESOURCE].takes_preferences = False
    kubelet.used[RESOURCE] = {f"{A}.{number}" for number in range(3)}
    with pytest.raises(PluginError, match=r"gpushare\.io/memory-gib: no card of this node has 4"):
        kubelet.admit(RESOURCE, 4)


def test_a_kubelet_that_restarts_is_registered_with_again(
    plugin: DevicePlugin, kubelet: StandInKubelet
) -> None:
    registered(plugin, kubelet)
    kubelet.admit(RESOURCE, 3)
    kubelet.restart()
    assert kubelet.capacity(RESOURCE) == 0
    registered(plugin, kubelet, 2)
    assert kubelet.capacity(RESOURCE) == 8
    with pytest.raises(PluginError, match="Insufficient"):
        kubelet.admit(RESOURCE, 6)


def test_a_refused_registration_is_tried_again_and_said_once(
    plugin: DevicePlugin,
    kubelet: StandInKubelet,
    clock: Clock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kubelet.refusal = "unsupported version"
    for _ in range(3):
        plugin.step()
        clock.now += RETRY_SECONDS
    assert len(kubelet.registrations) == 3
    assert capsys.readouterr().err.count("unsupported version") == 1
    kubelet.refusal = ""
    registered(plugin, kubelet, 4)


def test_a_name_that_another_plugin_has_is_refused(
    plugin: DevicePlugin, kubelet: StandInKubelet
) -> None:
    kubelet.write_checkpoint({RESOURCE: ["GPU-5f3c-_-0"], "nvidia.com/gpu": ["GPU-5f3c"]})
    with pytest.raises(UserError, match=r"another device plugin .* \(device GPU-5f3c-_-0 in"):
        plugin.step()
    assert kubelet.registrations == []


def asked_again(plugin: DevicePlugin, *more: SchedulableCard) -> None:
    """Have gpushared answer anew, and the kubelet too."""
    plugin.update(tuple(more) or cards(4, 4))


def test_a_card_without_a_free_tenant_has_nothing_for_the_scheduler(
    plugin: DevicePlugin, kubelet: StandInKubelet
) -> None:
    registered(plugin, kubelet)
    two = tuple(replace(card, max_tenants=2) for card in cards(4, 4))
    asked_again(plugin, *two)
    # The kubelet admits all of them before gpushared knows of the first.
    pods = [kubelet.admit(RESOURCE, 1) for _ in range(4)]
    on = [{device.partition(".")[0] for device in pod.devices} for pod in pods]
    assert on == [{A}, {A}, {B}, {B}]
    wait_until(lambda: kubelet.available(RESOURCE) == 0)
    assert kubelet.allocatable(RESOURCE) == 4
    asked_again(plugin, *two)
    pods[0].release()
    asked_again(plugin, *two)
    wait_until(lambda: kubelet.available(RESOURCE) == 3)


def test_a_card_that_grows_while_it_has_nothing_free_is_listed_anew(
    plugin: DevicePlugin, kubelet: StandInKubelet
) -> None:
    registered(plugin, kubelet)
    asked_again(plugin, *cards(0, 0))
    wait_until(lambda: kubelet.allocatable(RESOURCE) == 0)
    asked_again(plugin, *(replace(card, memory_bytes=5 * GIB) for card in cards(0, 0)))
    wait_until(lambda: kubelet.capacity(RESOURCE) == 10)


def test_ids_of_a_plugin_that_had_the_name_before_are_no_units(
    plugin: DevicePlugin, kubelet: StandInKubelet
) -> None:
    registered(plugin, kubelet)
    kubelet.containers.append(Admitted(kubelet, RESOURCE, {"GPU-5f3c-_-0"}, {}))
    first, second = cards(4, 4)
    asked_again(plugin, replace(first, cores_left=0), second)
    wait_until(lambda: kubelet.allocatable(RESOURCE) == 4)


def test_the_node_s_placement_selects_the_card(
    plugin: DevicePlugin, kubelet: StandInKubelet, source: Allocations
) -> None:
    registered(plugin, kubelet)
    source.placement = "spread"
    on = [kubelet.admit(RESOURCE, 1).devices.pop().partition(".")[0] for _ in range(4)]
    assert on == [A, B, A, B]


def test_a_pod_that_no_card_has_room_for_fails_once_and_waits(
    plugin: DevicePlugin, kubelet: StandInKubelet, clock: Clock
) -> None:
    registered(plugin, kubelet)
    small, large = kubelet.admit(RESOURCE, 1), kubelet.admit(RESOURCE, 2)
    assert {device.partition(".")[0] for device in small.devices | large.devices} == {A}
    asked_again(plugin)
    middle = kubelet.admit(RESOURCE, 2)  # 1 of A, 2 of B
    with pytest.raises(PluginError, match="the largest part is 2"):
        kubelet.admit(RESOURCE, 3)
    wait_until(lambda: kubelet.available(RESOURCE) == 2)
    assert kubelet.replace_failed(RESOURCE, 3, 40) == 0
    # Memory is released: the largest part is another one.
    middle.release()
    asked_again(plugin)
    wait_until(lambda: kubelet.available(RESOURCE) == 4)
    assert kubelet.replace_failed(RESOURCE, 3, 40) == 0
    assert len(kubelet.containers) == 3
    # A pod may still wait, or not: after a minute, everything is offered again.
    clock.now += REFUSED_SECONDS
    asked_again(plugin)
    wait_until(lambda: kubelet.available(RESOURCE) == 2)
    with pytest.raises(PluginError, match="the largest part is 1"):
        kubelet.admit(RESOURCE, 2)
    wait_until(lambda: kubelet.available(RESOURCE) == 1)


def test_after_a_reboot_the_pods_of_a_controller_are_admitted_again(
    plugin: DevicePlugin, kubelet: StandInKubelet
) -> None:
    registered(plugin, kubelet)
    first, second = cards(4, 4)
    pods = [kubelet.admit(RESOURCE, 2) for _ in range(3)]
    asked_again(plugin, replace(first, cores_left=0), second)
    wait_until(lambda: kubelet.available(RESOURCE) == 2)
    assert kubelet.reboot() == pods
    asked_again(plugin, replace(first, cores_left=0), second)
    registered(plugin, kubelet, 2)
    # What was in use of the card without compute is neither in use nor offered.
    assert kubelet.available(RESOURCE) == kubelet.allocatable(RESOURCE) == 4
    assert kubelet.replace_failed(RESOURCE, 2, 1) == 0


def test_a_kubelet_that_lists_no_containers_counts_full_cards(
    plugin: DevicePlugin, kubelet: StandInKubelet
) -> None:
    kubelet.pod_resources.unlink()
    registered(plugin, kubelet)
    first, second = cards(4, 4)
    asked_again(plugin, replace(first, cores_left=0), second)
    assert kubelet.allocatable(RESOURCE) == 8
    assert {device.partition(".")[0] for device in kubelet.admit(RESOURCE, 1).devices} == {B}
