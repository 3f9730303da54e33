# SPDX-License-Identifier: Apache-2.0
"""Beside NVIDIA's GPU operator 25.10: each leaves the other's entries alone, in both orders.

Its toolkit adds a drop-in with its own handlers only, and an import of its folder to config.toml,
which it writes anew without comments. With containerd 1.x, that drop-in replaces the CRI section.
Source: pkg/config/engine/containerd/config_drop_in.go of nvidia-container-toolkit 1.18.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from gpushare.engines import toml_text
from gpushare.engines.containerd import plugin_key

from . import machine

MAIN = Path("etc/containerd/config.toml")
FOLDER = Path("etc/containerd/conf.d")
IMPORT = f"/{FOLDER}/*.toml"
TOOLKIT = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
HANDLERS = {"nvidia": TOOLKIT, "nvidia-cdi": f"{TOOLKIT}.cdi", "nvidia-legacy": f"{TOOLKIT}.legacy"}
#: As `containerd config default` begins, of 1.7 and of 2.x.
ORIGINALS = {
    2: """\
# The site's own.
version = 2

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true
""",
    3: """\
# The site's own.
version = 3

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    SystemdCgroup = true
""",
}


@dataclass(frozen=True)
class OperatorNode:
    """A node whose containerd both configure."""

    root: Path
    version: int

    def install_operator(self) -> None:
        content = self.read(MAIN)
        content["imports"] = [IMPORT]
        self.write(MAIN, content)
        self.write(FOLDER / "99-nvidia.toml", self.drop_in())

    def remove_operator(self) -> None:
        (self.root / FOLDER / "99-nvidia.toml").unlink()
        content = self.read(MAIN)
        del content["imports"]
        self.write(MAIN, content)

    def drop_in(self) -> dict[str, Any]:
        """What the toolkit writes."""
        options = {"SystemdCgroup": True}
        runtimes: dict[str, Any] = {
            name: {
                "runtime_type": "io.containerd.runc.v2",
                "options": {"BinaryName": program, **options},
            }
            for name, program in HANDLERS.items()
        }
        if self.version == 2:
            runtimes["runc"] = {"runtime_type": "io.containerd.runc.v2", "options": options}
        found: dict[str, Any] = {"version": self.version}
        toml_text.table_at(found, plugin_key(found))["runtimes"] = runtimes
        return found

    def install_gpushare(self) -> None:
        machine.configure("containerd", self.root, default=False)

    def remove_gpushare(self) -> None:
        machine.unconfigure("containerd", self.root)

    def read(self, path: Path) -> dict[str, Any]:
        return toml_text.parse((self.root / path).read_text())

    def write(self, path: Path, content: dict[str, Any]) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(tomlkit.dumps(content))

    def handlers(self) -> dict[str, Any]:
        """Return the handlers that containerd finds, by name."""
        found = _runtimes(self.read(MAIN))
        for file in sorted((self.root / FOLDER).glob("*.toml")):
            more = _runtimes(toml_text.parse(file.read_text()))
            found = {**found, **more} if self.version >= 3 else more or found
        return found


def _runtimes(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = toml_text.table_at(content, plugin_key(content)).get("runtimes", {})
    return found


@pytest.fixture(params=sorted(ORIGINALS))
def node(request: pytest.FixtureRequest, tmp_path: Path) -> OperatorNode:
    made = OperatorNode(tmp_path, request.param)
    (tmp_path / MAIN).parent.mkdir(parents=True)
    (tmp_path / MAIN).write_text(ORIGINALS[made.version])
    return made


def test_gpushare_comes_and_goes_while_the_operator_stays(node: OperatorNode) -> None:
    node.install_operator()
    before, handlers = machine.files(node.root), node.handlers()
    node.install_gpushare()
    assert node.handlers().keys() == {*HANDLERS, "runc", "gpushare"}
    assert {name: node.handlers()[name] for name in handlers} == handlers
    node.remove_gpushare()
    assert machine.files(node.root) == before


def test_the_operator_comes_and_goes_while_gpushare_stays(node: OperatorNode) -> None:
    node.install_gpushare()
    assert "gpushare" in node.handlers()
    node.install_operator()
    node.install_gpushare()  # as each start of the DaemonSet's pod does
    assert node.handlers().keys() == {*HANDLERS, "runc", "gpushare"}
    node.remove_operator()
    node.install_gpushare()
    assert node.handlers().keys() == {"runc", "gpushare"}
    node.remove_gpushare()
    assert node.read(MAIN) == toml_text.parse(ORIGINALS[node.version])
    assert list(machine.files(node.root)) == [str(MAIN)]
