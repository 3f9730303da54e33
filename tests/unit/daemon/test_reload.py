# SPDX-License-Identifier: Apache-2.0
"""The configuration in effect: the file read again, all or nothing, and labels of the Node."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from gpushare import config as configuration
from gpushare.config import Config, Timing
from gpushare.daemon.lifecycle.driver_loader import DriverLoader, take_over_changed_driver
from gpushare.daemon.node import NoDriver
from gpushare.daemon.operator import reload as module
from gpushare.daemon.operator.reload import (
    InvalidFile,
    LabelsNotAccepted,
    NotReloaded,
    cordon_card,
    node_settings,
    reload_config,
    reset_node_setting,
    set_node_setting,
)
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.views.daemon_status import status_row
from gpushare.quota.errors import QuotaError
from gpushare.quota.node_settings import ALLOWED_MODE, CORDONED, POLICY, RELEASED

from . import fakes
from .fakes import FakeDaemon, FakeDriver
from .operations import entry_of, opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpushare.yaml"


@pytest.fixture
def node(tmp_path: Path, file: Path) -> Iterator[FakeDaemon]:
    write(file, "")
    with fakes.node(tmp_path) as made:
        made.node.config = configuration.load(file)
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
        ("defaults: {memory: 2GiB}", ["defaults", "users"]),
        (
            "audit: {over_quota: observe, gate_bypass: observe}",
            ["audit.gate_bypass", "audit.over_quota", "users"],
        ),
        (
            "timing: {bind_timeout_seconds: 1, reconcile_interval_seconds: 3}",
            ["timing.bind_timeout_seconds", "timing.reconcile_interval_seconds"],
        ),
    ],
)
def test_changed_keys_take_effect_and_are_named(
    node: FakeDaemon, file: Path, text: str, changed: list[str]
) -> None:
    write(file, text)
    assert reload_config(node) == changed
    assert node.node.config == configuration.load(file)
    assert reload_config(node) == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("runtime_mount_namespace: /proc/1/ns/mnt", "mount_namespace"),
        ("timing: {driver_timeout_seconds: 1}", "timing.driver_timeout_seconds"),
    ],
)
def test_a_change_that_needs_a_restart_is_refused_with_all_others(
    node: FakeDaemon, file: Path, text: str, key: str
) -> None:
    before = node.node.config
    write(file, f"{text}\nmax_tenants: 1")
    with pytest.raises(
        NotReloaded, match=rf"{key} requires a restart; no change .* including max_tenants"
    ):
        reload_config(node)
    assert node.node.config is before


def test_an_invalid_file_changes_nothing_and_is_reported_until_it_is_fixed(
    node: FakeDaemon, file: Path
) -> None:
    write(file, "max_tenants: 1\nsystem_reserved: 4G")
    with pytest.raises(
        InvalidFile,
        match=r"the previous configuration remains in effect: .*yaml:5: system_reserved",
    ):
        reload_config(node)
    assert node.node.config.max_tenants == Config().max_tenants
    assert any("was rejected" in told for told in status_row(node)["warnings"])
    write(file, "max_tenants: 1")
    assert reload_config(node) == ["max_tenants"]
    assert status_row(node)["warnings"] == []
    os.utime(file, ns=(1, 1))
    [told] = status_row(node)["warnings"]
    assert told.endswith("sudo gpushare config reload")


def test_each_key_that_takes_a_restart_is_a_key_of_the_file() -> None:
    keys = {module._KEYS.get(part.name, part.name) for part in fields(Config)}
    assert keys | {f"timing.{part.name}" for part in fields(Timing)} >= module.RESTART


QGPU = "node label tke.cloud.tencent.com/qgpu-schedule-policy"


OWN = "node label gpushare.io/wanted-policy"


ACK = "node label ack.node.gpu.schedule"


@contextmanager
def labelled(folder: Path, text: str = "") -> Iterator[FakeDaemon]:
    """A daemon that is started with `text` in its configuration."""
    write(folder / "gpushare.yaml", text)
    driver = FakeDriver(fakes.card(0), fakes.card(1))
    file = configuration.load(folder / "gpushare.yaml")
    with fakes.node(folder, driver, file) as made:
        made.node.config = file.labelled(node_settings(made.node.labels))
        yield made


def policy(made: FakeDaemon, **quota: str) -> str:
    """Return the policy of a new tenant, which is gone again."""
    return entry_of(made, opened(made, memory="1GiB", cores="10", **quota)).policy


def test_it_is_kept_by_the_next_gpushared_while_gpushare_node_is_away(tmp_path: Path) -> None:
    with labelled(tmp_path) as made:
        set_node_setting(POLICY, "burst-share", QGPU, made.node, made.ledger)
        set_node_setting(ALLOWED_MODE, "shared", ACK, made.node, made.ledger)
    with labelled(tmp_path) as after:
        assert policy(after) == "burst-share"
        assert status_row(after)["node_settings"] == {
            POLICY: {"value": "burst-share", "source": QGPU},
            ALLOWED_MODE: {"value": "shared", "source": ACK},
        }
        set_node_setting(POLICY, "fixed-share", OWN, after.node, after.ledger)
        reset_node_setting(ALLOWED_MODE, after.node, after.ledger)
    assert json.loads((tmp_path / "state/node-labels.json").read_text()) == {
        OWN: {POLICY: "fixed-share"}
    }


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (POLICY, "first-come", "node label x=first-come: not a valid value. Write fixed-share, "),
        (ALLOWED_MODE, "on", "not a valid value. Write any, shared or exclusive."),
        ("max_per_request.memory", "1GiB", "cannot set max_per_request.memory. The settings"),
        ("trust.env", "request", "cannot set trust.env. The settings of labels are defaults.pol"),
        (CORDONED, "0", "not a list of UUIDs."),
    ],
)
def test_nothing_else_can_be_set(tmp_path: Path, key: str, value: str, error: str) -> None:
    with labelled(tmp_path) as made:
        before = made.node.config
        with pytest.raises(QuotaError) as refused:
            made.ask("node-setting", key=key, value=value, source="node label x")
        assert error in str(refused.value)
        assert made.node.config is before
        assert not (tmp_path / "state/node-labels.json").exists()


def test_a_label_cannot_lift_a_maximum(tmp_path: Path) -> None:
    text = "max_per_request: {policies: [fixed-share, burst-share]}"
    with labelled(tmp_path, text) as made:
        with pytest.raises(
            QuotaError, match=r"not allowed on this node \(max_per_request.policies, .*yaml:4\)"
        ):
            set_node_setting(POLICY, "best-effort", QGPU, made.node, made.ledger)
        set_node_setting(POLICY, "burst-share", QGPU, made.node, made.ledger)
        write(tmp_path / "gpushare.yaml", "max_per_request: {policies: [fixed-share]}")
        reload_config(made)
        assert policy(made) == "fixed-share"


def test_a_node_can_refuse_its_labels(tmp_path: Path) -> None:
    with labelled(tmp_path) as made:
        set_node_setting(POLICY, "burst-share", QGPU, made.node, made.ledger)
        write(tmp_path / "gpushare.yaml", "kubernetes: {node_labels: false}")
        assert reload_config(made) == ["defaults", "kubernetes.node_labels", "users"]
        assert policy(made) == "fixed-share"
        status = status_row(made)
        assert (status["accepts_node_labels"], status["node_settings"]) == (False, {})
        with pytest.raises(LabelsNotAccepted, match=r"kubernetes\.node_labels is false"):
            set_node_setting(POLICY, "best-effort", QGPU, made.node, made.ledger)
    with labelled(tmp_path, "kubernetes: {node_labels: false}") as after:
        assert policy(after) == "fixed-share"


def test_a_driver_that_is_about_to_be_unloaded_is_let_go_of(tmp_path: Path) -> None:
    source = "node label nvidia.com/gpu.deploy.client=paused-for-driver-upgrade"
    why = f"it is about to be unloaded ({source})"
    with labelled(tmp_path) as made:
        driver = made.driver
        made.ask("node-setting", key=RELEASED, value="yes", source=source)
        assert driver.released == why
        assert {row["schedulable_reason"] for row in made.ask("cards")} == {
            f"driver: the driver cannot be used: {why}"
        }
        with pytest.raises(NoDriver, match="about to be unloaded"):
            take_over_changed_driver(made.node)  # as each start of a container does
        loaded, made.node.driver = made.node.driver, None
        DriverLoader(made).load()  # as a daemon that starts meanwhile
        assert made.node.driver is None
        assert f"about to be unloaded ({source})" in made.node.no_driver_reason
        made.node.driver = loaded
        made.ask("node-setting", key=RELEASED, value="", source="")
        assert driver.released == ""
        assert all(row["is_schedulable"] for row in made.ask("cards"))


def test_hamis_annotation_cordons_cards_and_running_containers_stay(tmp_path: Path) -> None:
    source = "node annotation hami.io/device-cordon"
    with labelled(tmp_path) as made:
        running = opened(made, memory="1GiB", devices="0")
        first, second = (capacity.card.uuid for capacity in made.accounts.capacities())
        cards = f"{first},GPU-that-was-there-before"
        set_node_setting(CORDONED, cards, source, made.node, made.ledger)
        assert [capacity.cordoned for capacity in made.accounts.capacities()] == [source, None]
        assert entry_of(made, opened(made, memory="1GiB")).allocations[0].uuid == second
        with pytest.raises(NoRoom) as refused:
            opened(made, memory="1GiB", devices="0")
        assert f"card 0 is cordoned ({source}); change the {source}" in str(refused.value)
        assert running["key"] in made.ledger.entries
        cordon_card(made.accounts.capacities()[0].card, "fan", made.node, made.ledger)
        reset_node_setting(CORDONED, made.node, made.ledger)
        assert [capacity.cordoned for capacity in made.accounts.capacities()] == ["fan", None]
