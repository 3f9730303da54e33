# SPDX-License-Identifier: Apache-2.0
"""What `gpushare runtime configure` writes, before the engines themselves."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from gpushare.engines import containerd, find
from tests.stack import Stack
from tests.unit.engines import machine

WITHOUT_CRI = "containerd-docker-ce"
#: The machine's is a containerd 1, which reads no file of version 3. What k3s, k0s and others make
#: of a template is in tests/unit/engines/machines.
CONTAINERDS = [
    name for name in machine.NAMES if name.startswith("containerd-") and "-v3" not in name
]


@pytest.fixture
def folder(stage: Stack) -> Iterator[Path]:
    """A folder that the engines see too."""
    made = stage.root / "machine"
    made.mkdir()
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("name", CONTAINERDS)
def test_containerd_accepts_the_file_and_keeps_its_own_settings(
    stage: Stack, name: str, folder: Path
) -> None:
    root = machine.make(name, folder)
    before = dump(stage, main_file(root), root)
    machine.configure(name, root, default=machine.may_be_default(name))
    after = dump(stage, main_file(root), root)
    section, had = containerd.cri_section(after), containerd.cri_section(before)
    if name == WITHOUT_CRI:  # it is read and comes to nothing, as the user is told
        assert after == before
        return
    handler = section["runtimes"].pop("gpushare")
    assert handler["options"]["BinaryName"] == str(machine.LAUNCHER)
    for key in ("pod_annotations", "container_annotations"):
        assert "gpushare.io/*" in handler[key]
    default = containerd.default_handler(had)
    for key in ("base_runtime_spec", "snapshotter"):
        assert handler.get(key, "") == default.get(key, "")
    options = default.get("options", {})
    assert bool(handler["options"].get("SystemdCgroup")) == bool(options.get("SystemdCgroup"))
    if machine.may_be_default(name):
        assert section.pop("default_runtime_name") == "gpushare"
        had.pop("default_runtime_name", None)
    assert said(section) == said(had)


def said(found: Any) -> Any:
    """Return `found` without what says as much as nothing: what is empty, and 1.7's only mode."""
    if not isinstance(found, dict):
        return found
    kept = {key: said(value) for key, value in found.items()}
    return {key: value for key, value in kept.items() if value and value != "podsandbox"}


def main_file(root: Path) -> Path:
    """Return the file that the machine's containerd would be started with."""
    place = find("containerd").locate(root, None)
    assert place.main is not None
    return place.main


def dump(stage: Stack, main: Path, root: Path) -> dict[str, Any]:
    """Return what the distribution's containerd makes of a machine's files."""
    if not main.exists():
        main.parent.mkdir(parents=True, exist_ok=True)
        main.write_text("version = 2\n")
    for path in root.rglob("*.toml"):
        path.write_text(re.sub(r'"/(etc|run|var)/', rf'"{root}/\1/', path.read_text()))
    done = subprocess.run(
        stage.argv("containerd", "--config", str(main), "config", "dump"),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = tomlkit.parse(done.stdout.replace(f"{root}/", "/")).unwrap()
    for path in root.rglob("*.toml"):
        path.write_text(path.read_text().replace(f"{root}/", "/"))
    return found
