# SPDX-License-Identifier: Apache-2.0
"""The root file system of an older release of this machine's distribution: an older glibc.

Fetched with apt from the mirror that the machine uses, into folders of its own (the machine's lists
and packages are not touched), unpacked without running anything of it, and kept under build/.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "build" / "older-release"
#: The oldest release that the mirrors of a distribution still carry, and its Python.
RELEASES = {"debian": ("bullseye", "python3.9"), "ubuntu": ("focal", "python3.8")}
PACKAGES = ("libc6", "libc-bin", "libffi7", "zlib1g", "libexpat1")


class Unavailable(RuntimeError):
    """This machine has no apt, or its mirror no older release."""


def older_release() -> Path:
    """Return the unpacked root; fetched once."""
    done = ROOT / "done"
    if not done.exists():
        for last in (False, False, True):
            shutil.rmtree(ROOT, ignore_errors=True)
            (ROOT / "archives").mkdir(parents=True)
            try:
                _fetch(ROOT)
            except Unavailable:
                # A mirror that is being updated says no for a moment.
                if last:
                    raise
            else:
                break
        for package in sorted((ROOT / "archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(ROOT / "root")], check=True)
        done.touch()
    return ROOT / "root"


def python() -> str:
    """Return the path of its Python, in it."""
    return f"/usr/bin/{RELEASES[_distribution()][1]}"


def _fetch(root: Path) -> None:
    release, interpreter = RELEASES[_distribution()]
    packages = (
        *PACKAGES,
        f"{interpreter}-minimal",
        f"lib{interpreter}-minimal",
        f"lib{interpreter}-stdlib",
    )
    (root / "status").touch()
    (root / "lists" / "partial").mkdir(parents=True)
    (root / "sources.list").write_text(f"deb {_mirror()} {release} main\n")
    options = {
        "Dir::Etc::SourceList": "sources.list",
        "Dir::Etc::SourceParts": "none",
        "Dir::State::Lists": "lists",
        "Dir::State::Status": "status",
        "Dir::Cache": "cache",
    }
    flags = [word for key, value in options.items() for word in ("-o", f"{key}={root / value}")]
    # apt's own user needs a place in /tmp: none where only root may still write, as on a full disk.
    flags += ["-o", "APT::Sandbox::User=root"]
    apt(["apt-get", *flags, "-o", "Acquire::Languages=none", "update"], root)
    apt(["apt-get", *flags, "download", *packages], root / "archives")


def apt(argv: list[str], folder: Path) -> None:
    """Run apt in `folder`; Unavailable with what it says."""
    done = subprocess.run(argv, check=False, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{argv[0]} {argv[-1]}: {done.stderr.strip()}")


def _mirror() -> str:
    """Return the address of the main archive from which this machine gets its packages."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CREATED_BY) $(COMPONENT) $(REPO_URI)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for line in listed.splitlines():
        kind, component, address = line.split(maxsplit=2)
        if kind == "Packages" and component == "main" and "security" not in address:
            return address
    raise Unavailable(f"apt has no archive to fetch from on this {platform.machine()} machine")


def _distribution() -> str:
    fields = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    name = fields.get("ID", "").strip('"')
    if name not in RELEASES:
        raise Unavailable(f"no older release is known of {name or 'this distribution'}")
    return name
