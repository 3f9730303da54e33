# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup --metrics` and `--kubernetes`: units that may do as little as it takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from gpushare.setup import InstallRecord, SetupError
from gpushare.setup.plan import EXPORTER, NODE, OptionalUnit

from .test_setup import setup

OPTIONS = {EXPORTER: ("--metrics",), NODE: ("--kubernetes", "plugin")}


def mode_of(machine: Path) -> str | None:
    loaded = yaml.safe_load((machine / "etc/gpushare/gpushare.yaml").read_text())
    found: str | None = loaded.get("kubernetes", {}).get("mode")
    return found


def test_the_mode_is_configured_and_stays(machine: Path) -> None:
    assert setup(machine).exit_code == 0
    assert mode_of(machine) is None
    assert setup(machine, "--kubernetes", "plugin").exit_code == 0
    assert setup(machine).exit_code == 0
    assert mode_of(machine) == "plugin"
    assert setup(machine, "--kubernetes", "dra").exit_code == 0
    assert mode_of(machine) == "dra"


def test_a_mode_is_not_written_into_a_file_that_was_edited(machine: Path) -> None:
    setup(machine, "--kubernetes", "plugin")
    with (machine / "etc/gpushare/gpushare.yaml").open("a") as mine:
        mine.write("max_tenants: 4\n")
    assert setup(machine, "--kubernetes", "plugin").exit_code == 0
    refused = setup(machine, "--kubernetes", "dra")
    assert refused.exit_code == 1
    assert "another kubernetes.mode. Set it to dra" in " ".join(refused.output.split())
    assert mode_of(machine) == "plugin"


def test_without_the_library_nothing_is_begun(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = setup(machine, *OPTIONS[NODE])
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert f"{sys.executable} -m pip install grpcio protobuf" in said
    assert not (machine / "etc/gpushare").exists()


@pytest.mark.parametrize("prefix", ["/root/venv", "/home/me/venv"])
def test_an_exporter_that_its_user_cannot_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    with pytest.raises(SetupError, match="/opt/gpushare"):
        list(EXPORTER.plan(InstallRecord(Path("/"))))


def settings(unit: OptionalUnit) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.text().splitlines() if "=" in line[1:])


def test_the_exporter_may_speak_to_two_kinds_of_socket_and_do_nothing_else() -> None:
    said = settings(EXPORTER)
    assert said["RestrictAddressFamilies"] == "AF_UNIX AF_INET AF_INET6"
    assert said["CapabilityBoundingSet"] == ""
    assert said["DynamicUser"] == "yes"


def test_gpushare_node_is_root_without_capabilities() -> None:
    """It owns the kubelet's folders and is root to gpushared, and needs no more than that."""
    said = settings(NODE)
    assert said["CapabilityBoundingSet"] == ""
    assert said["ProtectSystem"] == "strict"
    assert said["ReadWritePaths"] == "-/var/lib/kubelet"
    assert "User" not in said
