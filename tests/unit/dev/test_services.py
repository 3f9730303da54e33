# SPDX-License-Identifier: Apache-2.0
"""Installing packages starts nothing, enables nothing, and leaves the machine's policy alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import services


def identity(path: Path) -> tuple[int, int, int, bytes]:
    status = path.stat()
    return status.st_ino, status.st_mode, status.st_mtime_ns, path.read_bytes()


def test_a_service_start_is_denied_within_the_block(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with services.none_started(policy):
        assert subprocess.run([policy, "docker", "start"], check=False).returncode == 101
    assert not policy.exists()
    assert not list(tmp_path.iterdir())


def test_the_machines_own_policy_is_the_same_file_afterwards(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 104\n")
    policy.chmod(0o750)
    before = identity(policy)
    with services.none_started(policy):
        assert "exit 101" in policy.read_text()
    assert identity(policy) == before
    assert [path.name for path in tmp_path.iterdir()] == ["policy-rc.d"]


def test_a_policy_that_is_a_link_stays_a_link(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.symlink_to("/bin/true")
    with services.none_started(policy):
        assert not policy.is_symlink()
    assert policy.readlink() == Path("/bin/true")


def test_a_failed_installation_restores_the_policy_too(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("mine")
    with pytest.raises(OSError, match="disk full"), services.none_started(policy):
        raise OSError("disk full")
    assert policy.read_text() == "mine"


@pytest.mark.parametrize("own", [None, "#!/bin/sh\nexit 0\n"])
def test_the_next_setup_repairs_a_killed_one(tmp_path: Path, own: str | None) -> None:
    policy = tmp_path / "policy-rc.d"
    if own is not None:
        policy.write_text(own)
    killed = (
        "import os, pathlib, sys, services\n"
        "with services.none_started(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", killed, policy], cwd=Path(services.__file__).parent, check=False
    )
    assert child.returncode == -9
    assert services.MARK in policy.read_text()
    with services.none_started(policy):
        pass
    assert (policy.read_text() if policy.exists() else None) == own


def test_only_services_that_the_block_enabled_are_disabled(tmp_path: Path) -> None:
    wants = tmp_path / "systemd" / "system" / "multi-user.target.wants"
    runlevel = tmp_path / "rc2.d"
    wants.mkdir(parents=True)
    runlevel.mkdir()
    (wants / "ssh.service").symlink_to("/lib/systemd/system/ssh.service")
    undone: list[Path] = []
    with services.none_enabled(tmp_path, undone.append):
        (wants / "docker.service").symlink_to("/lib/systemd/system/docker.service")
        (runlevel / "S01docker").symlink_to("../init.d/docker")
        (runlevel / "K01docker").symlink_to("../init.d/docker")
    assert sorted(undone) == [runlevel / "S01docker", wants / "docker.service"]
