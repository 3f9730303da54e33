# SPDX-License-Identifier: Apache-2.0
"""The configuration read again: all that changed, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gpushare import config as configuration
from gpushare.config import Config, Timing
from gpushare.daemon.control import reload as module
from gpushare.daemon.control.reload import NotReloaded, reload
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import NoRoom
from gpushare.daemon.views.rows import status_row
from gpushare.quota import QuotaError, Terms

from . import fakes
from .fakes import GIB
from .operations import opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpushare.yaml"


@pytest.fixture
def node(tmp_path: Path, file: Path) -> Iterator[Node]:
    write(file, "")
    with fakes.node(tmp_path) as made:
        made.config = configuration.load(file)
        yield made


def write(file: Path, text: str) -> None:
    """Write the file with what the node has, and `text`."""
    folder = file.parent
    own = {"run_dir": folder / "run", "state_dir": folder / "state", "libraries": folder / "lib"}
    lines = "".join(f"{key}: {path}\n" for key, path in own.items())
    file.write_text(lines + text)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", []),
        ("reserve: 1GiB", ["reserve"]),
        ("max_shares: 1", ["max_shares"]),
        ("defaults: {memory: 2GiB}", ["defaults", "users"]),
        ("ceilings: {cores: 50}\ntrust: {env: ignore}", ["ceilings", "trust", "users"]),
        ("audit: {over: observe, compute: observe}", ["audit.compute", "audit.over", "users"]),
        ("audit: {unknown: kill}", ["audit.unknown"]),
        ("users: {ceilings: {memory: 1GiB}}", ["users"]),
        ('namespaces: {"dev-*": {ceilings: {memory: 1GiB}}}', ["namespaces"]),
        ("allow_uninterposed: true", ["allow_uninterposed"]),
        ("engines: {docker: {sockets: [/run/other.sock]}}", ["engines.docker.sockets"]),
        (
            "timing: {bind: 1, sample: 0.5, reconcile: 3}",
            ["timing.bind", "timing.reconcile", "timing.sample"],
        ),
    ],
)
def test_what_changed_holds_and_is_named(
    node: Node, file: Path, text: str, changed: list[str]
) -> None:
    write(file, text)
    assert reload(node) == changed
    assert node.config == configuration.load(file)
    assert reload(node) == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("mount_namespace: /proc/1/ns/mnt", "mount_namespace"),
        ("driver: {cdi: /x.yaml}", "driver.cdi"),
        ("history: {days: 1}", "history.days"),
        ("history: {most: 1MiB}", "history.most"),
        ("timing: {driver: 1}", "timing.driver"),
        ("timing: {foreign_half_life: 1}", "timing.foreign_half_life"),
    ],
)
def test_what_takes_a_restart_is_refused_with_all_beside_it(
    node: Node, file: Path, text: str, key: str
) -> None:
    before = node.config
    write(file, f"{text}\nmax_shares: 1")
    with pytest.raises(NotReloaded, match=rf"{key} takes a restart; nothing .* max_shares neither"):
        reload(node)
    assert node.config is before


def test_another_folder_takes_a_restart(node: Node, file: Path) -> None:
    file.write_text("")
    with pytest.raises(NotReloaded, match="libraries, run_dir, state_dir takes a restart: "):
        reload(node)


def test_a_file_that_is_not_right_changes_nothing_and_is_told_until_it_is(
    node: Node, file: Path
) -> None:
    write(file, "max_shares: 1\nreserve: 4G")
    with pytest.raises(NotReloaded, match=r"what was read before holds: .*yaml:5: reserve"):
        reload(node)
    assert node.config.max_shares == Config().max_shares
    assert any("was not taken over" in told for told in status_row(node)["warnings"])
    write(file, "max_shares: 1")
    assert reload(node) == ["max_shares"]
    assert not any("taken over" in told for told in status_row(node)["warnings"])


def test_a_file_that_was_written_and_not_read_is_told(node: Node, file: Path) -> None:
    os.utime(file, ns=(1, 1))
    told = status_row(node)["warnings"]
    assert any(warning.endswith("sudo gpushare config reload") for warning in told)
    reload(node)
    assert status_row(node)["warnings"] == []


def test_who_asks_from_now_on_is_held_to_it_and_who_has_keeps(node: Node, file: Path) -> None:
    tenant = opened(node, memory="100GiB")
    write(file, "ceilings: {memory: 10GiB}\nreserve: 60GiB\nmax_shares: 2")
    reload(node)
    assert node.ledger.entries[tenant["key"]].holdings[0].memory_bytes == 100 * GIB
    with pytest.raises(QuotaError, match="ceiling"):
        opened(node, memory="20GiB")
    with pytest.raises(NoRoom):
        opened(node, memory="10GiB")
    write(file, "reserve: 0B")
    reload(node)
    opened(node, memory="20GiB")


def test_the_readers_group_is_told_to_the_socket(node: Node, file: Path) -> None:
    told: list[int | None] = []
    node.regroup = told.append
    write(file, "read_group: daemon")
    reload(node)
    reload(node)
    write(file, "")
    reload(node)
    assert told == [1, None]
    write(file, "read_group: no-such-group")
    with pytest.raises(NotReloaded, match="there is no group no-such-group"):
        reload(node)
    assert told == [1, None]


def test_every_key_either_holds_at_once_or_takes_a_restart() -> None:
    """Who adds one says which."""
    known = {*module.LIVE, *module.RESTART, "terms", "timing", "file", "written_ns"}
    assert known == {part.name for part in fields(Config)}
    assert module.LIVE.keys() & module.RESTART.keys() == set()
    assert module.LIVE_TERMS.keys() == {part.name for part in fields(Terms)}
    assert {part.name for part in fields(Timing)} == module.LIVE_TIMING | module.RESTART_TIMING
    assert not module.LIVE_TIMING & module.RESTART_TIMING


def test_a_file_that_comes_later_is_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon was started without one."""
    found = node.config.file
    assert found is not None
    node.config = replace(node.config, file=None, written_ns=0)
    write(found, "max_shares: 3")
    monkeypatch.setattr(configuration, "DEFAULT_FILE", found)
    assert reload(node) == ["max_shares"]
    assert node.config.file == found
