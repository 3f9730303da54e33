# SPDX-License-Identifier: Apache-2.0
"""The configuration read again: all that changed, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from gpushare import config as configuration
from gpushare.config import Config, Timing
from gpushare.daemon.operator import reload as module
from gpushare.daemon.operator.reload import NotReloaded, reload_config
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.service.node_operations import status_row
from gpushare.daemon.state import DaemonState
from gpushare.quota.errors import QuotaError
from gpushare.quota.request_policy import RequestPolicy

from . import fakes
from .fakes import GIB
from .operations import opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpushare.yaml"


@pytest.fixture
def node(tmp_path: Path, file: Path) -> Iterator[DaemonState]:
    write(file, "")
    with fakes.node(tmp_path) as made:
        made.config = configuration.load(file)
        yield made


def write(file: Path, text: str) -> None:
    """Write the file with what the node has, and `text`."""
    folder = file.parent
    own = {"run_dir": folder / "run", "state_dir": folder / "state", "library_dir": folder / "lib"}
    lines = "".join(f"{key}: {path}\n" for key, path in own.items())
    file.write_text(lines + text)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("system_reserved: 1GiB", ["system_reserved"]),
        ("defaults: {memory: 2GiB}", ["defaults", "users"]),
        (
            "audit: {over_quota: observe, gate_bypass: observe}",
            ["audit.gate_bypass", "audit.over_quota", "users"],
        ),
        ('namespaces: {"dev-*": {max_per_request: {memory: 1GiB}}}', ["namespaces"]),
        ("kubernetes: {mode: plugin, node: gpu-7}", ["kubernetes.mode", "kubernetes.node"]),
        (
            "timing: {bind_timeout_seconds: 1, reconcile_interval_seconds: 3}",
            ["timing.bind_timeout_seconds", "timing.reconcile_interval_seconds"],
        ),
    ],
)
def test_changed_keys_take_effect_and_are_named(
    node: DaemonState, file: Path, text: str, changed: list[str]
) -> None:
    write(file, text)
    assert reload_config(node) == changed
    assert node.config == configuration.load(file)
    assert reload_config(node) == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("runtime_mount_namespace: /proc/1/ns/mnt", "mount_namespace"),
        ("history: {retention_days: 1}", "history.retention_days"),
        ("timing: {non_tenant_half_life_seconds: 1}", "timing.non_tenant_half_life_seconds"),
    ],
)
def test_a_change_that_needs_a_restart_is_refused_with_all_others(
    node: DaemonState, file: Path, text: str, key: str
) -> None:
    before = node.config
    write(file, f"{text}\nmax_tenants: 1")
    with pytest.raises(
        NotReloaded, match=rf"{key} requires a restart; no change .* including max_tenants"
    ):
        reload_config(node)
    assert node.config is before


def test_an_invalid_file_changes_nothing_and_is_reported_until_it_is_fixed(
    node: DaemonState, file: Path
) -> None:
    write(file, "max_tenants: 1\nsystem_reserved: 4G")
    with pytest.raises(
        NotReloaded,
        match=r"the previous configuration remains in effect: .*yaml:5: system_reserved",
    ):
        reload_config(node)
    assert node.config.max_tenants == Config().max_tenants
    assert any("was rejected" in told for told in status_row(node)["warnings"])
    write(file, "max_tenants: 1")
    assert reload_config(node) == ["max_tenants"]
    assert not any("taken over" in told for told in status_row(node)["warnings"])


def test_a_file_that_was_not_reloaded_is_reported(node: DaemonState, file: Path) -> None:
    os.utime(file, ns=(1, 1))
    told = status_row(node)["warnings"]
    assert any(warning.endswith("sudo gpushare config reload") for warning in told)
    reload_config(node)
    assert status_row(node)["warnings"] == []


def test_a_new_limit_applies_to_later_requests_and_not_to_running_tenants(
    node: DaemonState, file: Path
) -> None:
    tenant = opened(node, memory="100GiB")
    write(file, "max_per_request: {memory: 10GiB}\nsystem_reserved: 60GiB\nmax_tenants: 2")
    reload_config(node)
    assert node.ledger.entries[tenant["key"]].allocations[0].memory_bytes == 100 * GIB
    with pytest.raises(QuotaError, match="exceeds the maximum"):
        opened(node, memory="20GiB")
    with pytest.raises(NoRoom):
        opened(node, memory="10GiB")
    write(file, "system_reserved: 0B")
    reload_config(node)
    opened(node, memory="20GiB")


def test_a_changed_read_group_reaches_the_socket(node: DaemonState, file: Path) -> None:
    told: list[int | None] = []
    node.regroup = told.append
    write(file, "read_group: daemon")
    reload_config(node)
    reload_config(node)
    write(file, "")
    reload_config(node)
    assert told == [1, None]
    write(file, "read_group: no-such-group")
    with pytest.raises(NotReloaded, match="there is no group no-such-group"):
        reload_config(node)
    assert told == [1, None]


def test_every_key_either_holds_at_once_or_takes_a_restart() -> None:
    """A test that adds one names it."""
    known = {*module.LIVE, *module.RESTART, "terms", "timing", "file", "written_ns"}
    known |= {"node_settings", "of_file"}  # of labels, beside the file
    assert known == {part.name for part in fields(Config)}
    assert module.LIVE.keys() & module.RESTART.keys() == set()
    assert module.LIVE_TERMS.keys() == {part.name for part in fields(RequestPolicy)}
    assert {part.name for part in fields(Timing)} == module.LIVE_TIMING | module.RESTART_TIMING
    assert not module.LIVE_TIMING & module.RESTART_TIMING
