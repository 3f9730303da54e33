# SPDX-License-Identifier: Apache-2.0
"""The helm chart, whose source is `packaging/helm/gpushare`."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Final

from .artifact import Artifact
from .workspace import Workspace

NAME: Final = "gpushare"
SOURCE: Final = Path("packaging/helm") / NAME
# : The files that templates read, beside the chart's own files. helm reads nothing outside of a
# chart.
_READ_BY_TEMPLATES: Final = ("configs/prometheus/*.yaml", "configs/grafana/*.json")
_SCHEMA: Final = "values.schema.json"
_VERSION: Final = re.compile(r"(?m)^(version|appVersion): \S+$")


def make(workspace: Workspace) -> list[Artifact]:
    """Build the archive that `helm install` reads."""
    place = workspace.dist / f"{NAME}-{workspace.version}.tgz"
    with (
        place.open("wb") as file,
        # Without a name in its header.
        gzip.GzipFile("", "wb", fileobj=file, mtime=workspace.epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in files(workspace).items():
            member = tarfile.TarInfo(f"{NAME}/{name}")
            member.size = len(content)
            member.mtime = workspace.epoch
            archive.addfile(member, io.BytesIO(content))
    return [Artifact(place, ())]


def unpack(workspace: Workspace, folder: Path) -> None:
    """Write the chart's files into `folder`, which `helm template` can read then."""
    for name, content in files(workspace).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def files(workspace: Workspace) -> dict[str, bytes]:
    """Return the contents by name: Chart.yaml, with the version of gpushare, is the first."""
    source = workspace.root / SOURCE
    chart = (source / "Chart.yaml").read_text(encoding="utf-8")
    chart_files = {"Chart.yaml": _VERSION.sub(rf"\1: {workspace.version}", chart).encode()}
    for top, pattern in (
        (source, "**/*"),
        *((workspace.root, name) for name in _READ_BY_TEMPLATES),
    ):
        for path in sorted(top.glob(pattern)):
            if path.is_file():
                chart_files.setdefault(str(path.relative_to(top)), path.read_bytes())
    chart_files[_SCHEMA] = _with_configuration(chart_files[_SCHEMA], workspace)
    return chart_files | {"LICENSE": (workspace.root / "LICENSE").read_bytes()}


def _with_configuration(schema: bytes, workspace: Workspace) -> bytes:
    """Return the schema of the values with that of gpushare.yaml in it, as helm 3 can read it."""
    loaded = json.loads(schema)
    keys = json.loads((workspace.root / "configs/gpushare.schema.json").read_bytes())
    del keys["$schema"], keys["$id"]
    loaded["$defs"] |= keys.pop("$defs")
    loaded["properties"]["configuration"].setdefault("allOf", []).append(keys)
    return json.dumps(loaded, indent=2).encode()
