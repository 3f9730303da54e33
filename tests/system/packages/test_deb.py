# SPDX-License-Identifier: Apache-2.0
"""The life of the Debian package on a bare Debian: install, use, upgrade, remove, purge."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packages import deb
from packages.artifact import SBOM
from packages.workspace import Workspace

from tests import leftovers

from .machine import NEXT, BareMachine, next_version

pytestmark = pytest.mark.needs("package", "bare12", "bare13")

LICENCE_LINES = 8  # of a licence that is there, or of the reference to Debian's copy of it
SETUP = ("gpushare", "setup", "--simulate", "h200", "--runtime", "podman")
SERVICE = "gpushared.service"
#: dpkg keeps these of a package that is removed and not purged.
KEPT = ("/etc/gpushare", "/etc/gpushare/gpushare.yaml")


def file_of(packages: list[Path], release: deb.DebianRelease) -> Path:
    (found,) = (path for path in packages if f"~deb{release.number}_" in path.name)
    return found


@pytest.fixture(params=deb.RELEASES, ids=lambda release: f"debian{release.number}")
def release(request: pytest.FixtureRequest) -> deb.DebianRelease:
    """Each release of Debian."""
    found = request.param
    assert isinstance(found, deb.DebianRelease)
    return found


@pytest.fixture
def machine(release: deb.DebianRelease) -> Iterator[BareMachine]:
    """A bare machine of the release."""
    folder = leftovers.note(Path(f"/var/tmp/gpushare-{secrets.token_hex(4)}"))
    with BareMachine(release.number, folder) as found:
        yield found
    leftovers.remove(folder, folder.name)


def test_a_package_serves_through_an_upgrade_and_leaves_nothing(
    workspace: Workspace,
    debs: list[Path],
    release: deb.DebianRelease,
    machine: BareMachine,
    tmp_path: Path,
) -> None:
    old = machine.sees(file_of(debs, release))
    new = machine.sees(next_version(workspace, tmp_path / "next", release))
    before = machine.files()
    said = machine.apt("install", str(old))
    assert "nothing is started yet. To set up this machine, run: gpushare setup" in said
    typed = ("_GPUSHARE_COMPLETE=bash_complete", "COMP_WORDS=gpushare set", "COMP_CWORD=1")
    assert "set" in machine.run("env", *typed, "gpushare").stdout
    installed = machine.files()
    assert not [path for path in installed - before if path.startswith(("/etc/systemd", "/opt"))]
    assert "/run/gpushare" not in installed

    # Each module of its environment is compiled for this Python.
    code = "import grpc, yaml; assert yaml.CLoader; print(yaml.__cached__, grpc.__cached__)"
    version = old.name.split("_")[1].split("-")[0]
    python = f"/usr/lib/gpushare/{version}/bin/python3"
    for path in machine.run(python, "-IB", "-c", code).stdout.split():
        machine.run("test", "-f", path)
    machine.run(*SETUP)
    with machine.gpushared():
        machine.serves_through(
            lambda: machine.apt("install", str(new)),
            lambda: machine.apt("remove", "gpushare", check=False),
        )
        if machine.is_booted:
            assert f"gpushare/{NEXT}/bin" in machine.run("systemctl", "status", SERVICE).stdout
    machine.apt("remove", "gpushare")
    assert "added by" not in machine.run("cat", KEPT[1]).stdout
    assert machine.files() - before == set(KEPT)
    machine.apt("purge", "gpushare")
    assert machine.files() - before == set()


def test_what_it_bundles_is_in_its_copyright_file_and_its_bill_of_materials(
    workspace: Workspace, debs: list[Path], release: deb.DebianRelease, tmp_path: Path
) -> None:
    package = file_of(debs, release)
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    (modules,) = tmp_path.glob("usr/lib/gpushare/*/lib/python3*/site-packages")
    bundled = {
        found.metadata["Name"]: found.version for found in distributions(path=[str(modules)])
    }
    assert bundled.pop("gpushare-runtime") == workspace.version
    sbom = json.loads(package.with_name(package.name + SBOM).read_text())
    parts = {part["name"]: part for part in sbom["components"]}
    assert parts.keys() == {*bundled, "musl", "uplot", "zig-compiler-rt"}
    told = (tmp_path / "usr/share/doc/gpushare/copyright").read_text()
    for name, part in parts.items():
        licence = part["licenses"][0]["expression"]
        _, _, paragraph = told.partition(f"Files: {name}\n")
        assert f"Comment: {name} {part['version']} ({licence})\n" in paragraph
        text = paragraph.partition("License: ")[2].partition("\nFiles: ")[0]
        assert len(text.splitlines()) > LICENCE_LINES, name
        assert bundled.get(name, part["version"]) == part["version"]


def test_lintian_has_nothing_to_say(debs: list[Path]) -> None:
    done = subprocess.run(
        ["lintian", "--no-cfg", "--allow-root", "--tag-display-limit=0", *debs],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")
