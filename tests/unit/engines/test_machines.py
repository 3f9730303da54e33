# SPDX-License-Identifier: Apache-2.0
"""Each distribution's files before, after, and after the undo; and that containerd takes them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from gpushare.engines import clusters, containerd, imports, registration
from gpushare.engines.engine import find

from . import machine

CONTAINERDS = [name for name in machine.NAMES if machine.engine_of(name) == "containerd"]
WITHOUT_CRI = "containerd-docker-ce"
VALUES = {"RUNTIME": "runc", "RUNTIME_TYPE": "io.containerd.runc.v2", "SNAPSHOTTER": "overlayfs"}


def registered(name: str) -> dict[str, str]:
    return machine.files(machine.MACHINES / name / "after")


@pytest.mark.parametrize("name", machine.NAMES)
def test_what_a_distribution_has_becomes_what_it_needs(name: str, tmp_path: Path) -> None:
    before = machine.files(machine.make(name, tmp_path))
    machine.configure(name, tmp_path, default=machine.may_be_default(name))
    assert machine.files(tmp_path) == before | registered(name)


@pytest.mark.parametrize("name", machine.NAMES)
def test_a_second_time_changes_nothing(name: str, tmp_path: Path) -> None:
    machine.make(name, tmp_path)
    machine.configure(name, tmp_path, default=machine.may_be_default(name))
    after = machine.files(tmp_path)
    machine.configure(name, tmp_path, default=machine.may_be_default(name))
    machine.configure(name, tmp_path, default=False)
    assert machine.files(tmp_path) == after


@pytest.mark.parametrize("name", machine.NAMES)
@pytest.mark.parametrize("default", [False, True])
def test_undone_nothing_is_left(name: str, default: bool, tmp_path: Path) -> None:
    before = machine.files(machine.make(name, tmp_path))
    machine.configure(name, tmp_path, default=default and machine.may_be_default(name))
    assert machine.files(tmp_path) != before
    machine.unconfigure(name, tmp_path)
    assert machine.files(tmp_path) == before
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".before-gpushare")]


@pytest.mark.parametrize("name", CONTAINERDS)
def test_containerd_takes_it_and_keeps_what_it_had(name: str, tmp_path: Path) -> None:
    root = machine.make(name, tmp_path / "machine")
    before = dump(main_file(name, root), root)
    if before is None:  # a file of containerd 2: what this one's `config dump` would say
        before = merged(main_file(name, root), root)
    machine.configure(name, root, default=machine.may_be_default(name))
    main = main_file(name, root)
    after = dump(main, root) or merged(main, root)
    section, had = containerd.section_of(after), containerd.section_of(before)
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


def test_where_cri_is_off_it_is_said(tmp_path: Path) -> None:
    place = find("containerd").place(machine.make(WITHOUT_CRI, tmp_path), None)
    (change,) = registration.configure(place, machine.LAUNCHER, default=False)
    assert "the CRI plugin is disabled here" in change.remarks[0]


def said(found: Any) -> Any:
    """Return `found` without what says as much as nothing: a first handler's options are empty."""
    if not isinstance(found, dict):
        return found
    return {key: value for key, value in ((k, said(v)) for k, v in found.items()) if value}


def main_file(name: str, root: Path) -> Path:
    """Return the file that the machine's containerd would be started with, written as it is."""
    place = find("containerd").place(root, None)
    assert place.main is not None
    if name.startswith(("k3s", "rke2")):
        return rendered(place.main, place.path)
    if name == "microk8s":
        said = place.path.read_text()
        text = re.sub(r"\$\{(\w+)\}", lambda match: VALUES.get(match[1], "/nowhere"), said)
        place.main.write_text(text)
    if name == "k0s":  # RFC 7396: what k0s makes of its defaults and of a drop-in that names CRI
        generated = root / "run/k0s/containerd-cri.toml"
        files = [clusters.parsed(generated), clusters.parsed(place.path)]
        generated.write_text(tomlkit.dumps(imports.merged(files, deep=True)))
    return place.main


def rendered(generated: Path, template: Path) -> Path:
    """Return the file that k3s makes of a template, of nothing the base."""
    text = template.read_text() if template.exists() else '{{ template "base" . }}'
    text = re.sub(r"\{\{-? if .*?\{\{-? end \}\}", "", text, flags=re.DOTALL)
    target = generated.with_name("rendered.toml")
    target.write_text(text.replace('{{ template "base" . }}', generated.read_text()))
    return target


def dump(main: Path, root: Path) -> dict[str, object] | None:
    """Return what the real containerd makes of a machine's files; None for those of a newer one."""
    if not main.exists():
        main.write_text("version = 2\n")
    if re.search(r"^version = 3", main.read_text(), re.MULTILINE):
        return None
    for path in root.rglob("*.toml"):
        path.write_text(re.sub(r'"/(etc|run|var)/', rf'"{root}/\1/', path.read_text()))
    done = subprocess.run(
        ["containerd", "--config", str(main), "config", "dump"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = tomlkit.parse(done.stdout.replace(f"{root}/", "/")).unwrap()
    for path in root.rglob("*.toml"):
        path.write_text(path.read_text().replace(f"{root}/", "/"))
    return found


def merged(main: Path, root: Path) -> dict[str, object]:
    return imports.merged(list(imports.read(root, main).values()), deep=True)
