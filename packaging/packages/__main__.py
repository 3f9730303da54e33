# SPDX-License-Identifier: Apache-2.0
"""`./dev package [KIND...]`: build packages into build/dist, with checksums and SBOMs.

Without a KIND, all kinds are built. A kind whose inputs have not changed is not built again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from . import chart, deb, image, krew, rpm, sdist, wheel
from .artifact import SBOM, Artifact, write_checksums
from .workspace import PackageError, Workspace

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class PackageKind:
    """A kind of package: the function that builds it, and the names of its files."""

    make: Callable[[Workspace], list[Artifact]]
    pattern: str
    everything: bool = False  # contains the tests and documents too


KINDS: Final = {
    "sdist": PackageKind(sdist.make, "*.tar.gz", everything=True),
    "wheel": PackageKind(wheel.make, "*.whl"),
    "deb": PackageKind(deb.make, "*.deb"),
    "rpm": PackageKind(rpm.make, "*.rpm"),
    "image": PackageKind(image.make, "*.oci.tar"),
    "chart": PackageKind(chart.make, "*.tgz"),
    "krew": PackageKind(krew.make, "kubectl-gpushare-*.zip"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Build the requested kinds; return the exit status."""
    parser = argparse.ArgumentParser(prog="./dev package", description="Build packages.")
    parser.add_argument("kind", nargs="*", metavar="KIND", help=f"one of {', '.join(KINDS)}")
    wanted = parser.parse_args(argv).kind or list(KINDS)
    for name in wanted:
        if name not in KINDS:
            parser.error(f"no kind of package {name!r}. Use one of {', '.join(KINDS)}")
    try:
        workspace = Workspace.of(ROOT, ROOT / "build")
        for path in build(workspace, wanted):
            print(path)
    except PackageError as error:
        print(f"./dev package: {error}", file=sys.stderr)
        return 1
    return 0


def build(workspace: Workspace, names: Sequence[str]) -> list[Path]:
    """Build the kinds that are not up to date; return the packages of all `names`."""
    workspace.dist.mkdir(parents=True, exist_ok=True)
    for name in names:
        kind = KINDS[name]
        stamp = workspace.stamp(name)
        inputs = workspace.inputs(everything=kind.everything)
        if _is_fresh(stamp, inputs) and _files(workspace, kind):
            continue
        for path in _files(workspace, kind):
            path.unlink()
            path.with_name(path.name + SBOM).unlink(missing_ok=True)
        for artifact in kind.make(workspace):
            artifact.path.chmod(0o644)
            artifact.write_sbom(workspace.version, workspace.epoch)
        stamp.write_text(inputs, encoding="utf-8")
    write_checksums(workspace.dist)
    return [path for name in names for path in _files(workspace, KINDS[name])]


def _is_fresh(stamp: Path, inputs: str) -> bool:
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == inputs


def _files(workspace: Workspace, kind: PackageKind) -> list[Path]:
    return sorted(workspace.dist.glob(kind.pattern))


if __name__ == "__main__":
    sys.exit(main())
