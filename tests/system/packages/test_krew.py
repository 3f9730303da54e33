# SPDX-License-Identifier: Apache-2.0
"""The archive for krew: one program of its own."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packages.artifact import SBOM

from tests.stack.api_server import StandInApiServer
from tests.stack.kubectl import Kubectl, put_node

pytestmark = pytest.mark.needs("package", "kubectl")


def installed(archive: Path, folder: Path) -> dict[str, Any]:
    """Do what krew does with the archive and the manifest; return the manifest."""
    manifest: dict[str, Any] = yaml.safe_load(archive.with_name("gpushare.yaml").read_text())
    (platform,) = manifest["spec"]["platforms"]
    assert archive.name == platform["uri"].rpartition("/")[2]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            place = Path(packed.extract(member, folder))
            place.chmod(member.external_attr >> 16 & 0o777)
    assert (folder / platform["bin"]).is_file()
    assert (folder / "LICENSE").is_file()
    return manifest


def test_it_runs_beside_kubectl_with_nothing_but_python(plugin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    manifest = installed(plugin, folder)
    assert manifest["metadata"]["name"] == "gpushare"
    bom = json.loads(plugin.with_name(plugin.name + SBOM).read_text())
    assert [part["name"] for part in bom["components"]] == ["click"]
    with StandInApiServer().running() as cluster:
        put_node(cluster, "gpu-1", "plugin", labels={"gpu.count": "1", "gpu.product": "H200"})
        kubectl = Kubectl(tmp_path, cluster)
        kubectl.programs = folder
        # Without the modules of this environment, and of the source tree.
        done = kubectl.run("gpushare", "ls", PYTHONNOUSERSITE="1", PYTHONPATH="")
        version = kubectl.run("gpushare", "--version").stdout
    assert done.stdout.splitlines()[1].split()[:3] == ["gpu-1", "0", "H200"]
    assert done.returncode == 4
    assert f"v{version.split()[-1]}" == manifest["spec"]["version"]
