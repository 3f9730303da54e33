# SPDX-License-Identifier: Apache-2.0
"""What `gpushare runtime configure` writes, before the engines themselves."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from gpushare.engines import config_files, containerd, find, query
from gpushare.engines.config_files import ConfigLocation
from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.system.waiting import wait_until
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


def test_docker_knows_it_after_a_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    with Stack(distribution=HOST) as own:
        for name, value in own.env.items():
            monkeypatch.setenv(name, value)
        others = {"runtimes": {"other": {"path": "runc"}}, "default-runtime": "other"}
        (own.root / "daemon.json").write_text(json.dumps(others))
        own.start_containerd()
        own.start_docker()
        launcher = own.installation.launcher
        place = find("docker").locate(Path("/"), own.root / "daemon.json")
        assert query.query_docker(place) == query.RuntimeReport(True, False, launcher)
        pid = int((own.root / "docker.pid").read_text())
        for default in (None, False, True, None):
            change(place, launcher, default)
            os.kill(pid, signal.SIGHUP)
            wanted = query.RuntimeReport(False, False)
            if default is not None:
                wanted = query.RuntimeReport(True, default, launcher)
            wait_until(partial(_answers, place, wanted))


def _answers(place: ConfigLocation, wanted: query.RuntimeReport) -> bool:
    return query.query_docker(place) == wanted


def change(place: ConfigLocation, launcher: Path, default: bool | None) -> None:
    """Register `launcher`, or for None take the runtime out."""
    changes = (
        config_files.unconfigure(place)
        if default is None
        else config_files.configure(place, launcher, default=default)
    )
    for one in changes:
        one.apply()


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
