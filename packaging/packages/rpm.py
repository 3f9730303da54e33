# SPDX-License-Identifier: Apache-2.0
"""The rpm: one for every distribution, because it carries the Python of the host bundle.

Its spec file is `packaging/rpm/gpushare.spec`.
"""

from __future__ import annotations

import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from . import deb, host_bundle, manual, selinux, wheel
from .artifact import Artifact
from .workspace import Workspace, run

_PACKAGER: Final = "The gpushare developers <gpushare@packages.invalid>"
_ZSH: Final = Path("usr/share/zsh/vendor-completions")
_SPEC: Final = Path("packaging/rpm/gpushare.spec")
#: Settings against what rpmbuild takes from this machine or the clock, and changes in files.
_MACROS: Final = {
    "_binary_payload": "w10.zstdio",
    "_build_id_links": "none",
    "_buildhost": "localhost",
    "__os_install_post": "%{nil}",
    "clamp_mtime_to_source_date_epoch": "1",
    "debug_package": "%{nil}",
    "source_date_epoch_from_changelog": "0",
    "use_source_date_epoch_as_buildtime": "1",
    "_datadir": "/usr/share",
}


def make(workspace: Workspace) -> list[Artifact]:
    """Build the rpm."""
    return [make_from(workspace, wheel.up_to_date(workspace, host_bundle.ARCHITECTURE))]


def make_from(workspace: Workspace, own: Path) -> Artifact:
    """Build the rpm from the wheel `own`."""
    folder = workspace.scratch("rpm")
    shutil.rmtree(folder, ignore_errors=True)
    stage = folder / "stage"
    bundle = host_bundle.make(workspace, stage, own)
    deb.add_links(stage, bundle.place)
    manual.write_pages(workspace, stage)
    manual.write_completions(stage)
    (stage / _ZSH).rename(stage / _ZSH.with_name("site-functions"))
    for source, target in (
        ("configs/gpushare.yaml", deb.CONFIGURATION),
        ("CHANGELOG.md", "usr/share/doc/gpushare/CHANGELOG.md"),
        ("LICENSE", "usr/share/licenses/gpushare/LICENSE"),
    ):
        (stage / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(workspace.root / source, stage / target)
    selinux.compile_module(workspace, stage / "usr/share/selinux/packages/gpushare.pp")
    deb.fix_modes(stage, host_bundle.PROGRAMS)
    licences = sorted({part.licence for part in bundle.parts} | {"Apache-2.0"})
    expression = " AND ".join(f"({licence})" if " " in licence else licence for licence in licences)
    date = datetime.fromtimestamp(workspace.epoch, timezone.utc)
    macros = _MACROS | {
        "_rpmdir": str(folder),
        "_topdir": str(folder / "build"),
        "date": f"{date:%a %b %d %Y}",
        "licence": expression,
        "packager": _PACKAGER,
        "stage": str(stage),
        "version": workspace.version,
    }
    defined = [word for name, value in macros.items() for word in ("-D", f"{name} {value}")]
    run(
        ["rpmbuild", "--quiet", "--target", host_bundle.ARCHITECTURE, *defined, "-bb", _SPEC],
        cwd=workspace.root,
        env=workspace.environment(),
    )
    (built,) = folder.glob(f"{host_bundle.ARCHITECTURE}/*.rpm")
    place = workspace.dist / built.name
    built.rename(place)
    return Artifact(place, bundle.parts)
