# SPDX-License-Identifier: Apache-2.0
"""What `./dev package` builds again, and what it calls the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from packages import __main__ as program
from packages import sdist, wheel
from packages.artifact import CHECKSUMS, SBOM, Artifact, BundledPart
from packages.workspace import PackageError, Workspace

PART = BundledPart("tomlkit", "1.0", "MIT", sha256="0" * 64)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A small source tree in git."""
    root = tmp_path / "source"
    for name in ("gpushare/__init__.py", "tests/test_a.py"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text('__version__ = "1.2.3"\n')
    subprocess.run(["git", "init", "--quiet", root], check=True)
    return Workspace(root, tmp_path / "build", 1_700_000_000)


@pytest.fixture
def built(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What stands in for a compiler: the architectures that were built."""
    made: list[str] = []

    def make_one(_: Workspace, architecture: str) -> Path:
        made.append(architecture)
        place = workspace.scratch(f"wheel-{architecture}") / f"done/a-{architecture}.whl"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(architecture)
        return place

    monkeypatch.setattr(wheel, "make_one", make_one)
    return made


def test_a_wheel_is_built_again_if_its_source_changes_but_not_for_a_test(
    workspace: Workspace, built: list[str]
) -> None:
    wheel.up_to_date(workspace, "x86_64")
    (workspace.root / "tests/test_a.py").write_text("# new\n")
    wheel.up_to_date(workspace, "x86_64")
    assert built == ["x86_64"]
    (workspace.root / "gpushare/__init__.py").write_text('__version__ = "1.2.4"\n')
    found = wheel.up_to_date(workspace, "x86_64")
    assert built == ["x86_64", "x86_64"]
    assert found.read_text() == "x86_64"


def test_all_packages_have_a_checksum_and_a_bill_of_materials(
    workspace: Workspace, built: list[str]
) -> None:
    found = program.build(workspace, ["wheel"])
    assert built == list(wheel.ARCHITECTURES)
    assert program.build(workspace, ["wheel"]) == found
    assert built == list(wheel.ARCHITECTURES)
    told = (workspace.dist / CHECKSUMS).read_text().splitlines()
    names = sorted(name for path in found for name in (path.name, path.name + SBOM))
    assert [line.split()[1] for line in told] == names


def test_a_bill_of_materials_depends_on_nothing_but_the_package(workspace: Workspace) -> None:
    workspace.dist.mkdir(parents=True)
    path = workspace.dist / "a.deb"
    path.write_text("content")
    first = Artifact(path, [PART]).write_sbom("1.2.3", workspace.epoch).read_text()
    assert Artifact(path, [PART]).write_sbom("1.2.3", workspace.epoch).read_text() == first
    bom = json.loads(first)
    assert bom["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")
    (part,) = bom["components"]
    assert part["purl"] == "pkg:pypi/tomlkit@1.0"
    assert part["licenses"][0]["expression"] == "MIT"


def test_a_tree_without_git_needs_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(PackageError, match="Set SOURCE_DATE_EPOCH"):
        Workspace.of(tmp_path, tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "5")
    assert Workspace.of(tmp_path, tmp_path).epoch == 5


def test_an_unknown_kind_is_refused_with_those_that_exist(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(["msi"])
    assert "no kind of package 'msi'. Use one of sdist, wheel, deb" in capsys.readouterr().err
    assert program.KINDS["sdist"].make is sdist.make
