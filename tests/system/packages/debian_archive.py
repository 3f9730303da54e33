# SPDX-License-Identifier: Apache-2.0
"""Fetches packages of a Debian release with apt, which verifies their signatures."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from packages.workspace import Workspace, run

KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR: Final = "http://deb.debian.org/debian"


def fetch(workspace: Workspace, suite: str, package: str) -> Path:
    """Return `package` of the release `suite`; it is downloaded once.

    apt's lists and options are those of this machine, but the lists of releases are kept apart.
    """
    folder = workspace.cache / "debian" / suite
    archives = sorted(folder.glob(f"{package}_*.deb"))
    if archives:
        return archives[-1]
    (folder / "lists/partial").mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    source = f"deb [signed-by={KEYRING}] {_mirror()} {suite} main\n"
    (folder / "sources.list").write_text(source, encoding="utf-8")
    apt = [
        "apt-get",
        "-o",
        "Acquire::Languages=none",
        "-o",
        "Dir::Etc::SourceParts=none",
        "-o",
        "APT::Sandbox::User=root",  # its own user cannot write here
        f"-o=Dir::Etc::SourceList={folder}/sources.list",
        f"-o=Dir::State::Lists={folder}/lists",
        f"-o=Dir::State::Status={folder}/status",
        f"-o=Dir::Cache={folder}/apt",
    ]
    run([*apt, "update"], cwd=folder, env=workspace.environment())
    run([*apt, "download", package], cwd=folder, env=workspace.environment())
    return max(folder.glob(f"{package}_*.deb"))


def _mirror() -> str:
    """Return the URL of the archive that this machine uses, if it runs Debian."""
    if "ID=debian" not in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        return MIRROR
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CREATED_BY) $(COMPONENT) $(REPO_URI)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = (line.split(maxsplit=2) for line in listed.splitlines())
    addresses = [
        address
        for kind, component, address in words
        if kind == "Packages" and component == "main" and address.rstrip("/").endswith("/debian")
    ]
    return addresses[0] if addresses else MIRROR
