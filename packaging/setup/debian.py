# SPDX-License-Identifier: Apache-2.0
"""The root of a Debian 13 with its engines: the second distribution that tests run on.

`BUILD/debian13` is a link to `BUILD/debian13-<digest>`, a directory named by its recipe: a changed
recipe creates another directory, and one in use is never rewritten. debootstrap creates it once. If
this machine runs Debian, it uses the archive of this machine's apt.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import apply

SUITE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGES = (
    "busybox-static",
    "containerd",
    "crun",
    "dbus",  # crun uses it to reach systemd
    "docker-cli",
    "docker-compose",
    "docker.io",
    "podman",
    "procps",  # docker top
    "runc",
    "systemd-sysv",
    "uidmap",  # rootless podman
)
#: Not read by any test.
LEFT_OUT = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
)


def link(build: Path) -> Path:
    """Return the path at which tests find the root."""
    return build / "debian13"


def is_made(build: Path) -> bool:
    """Whether the root of the current recipe exists."""
    return link(build).resolve() == (build / _name()).resolve() and link(build).exists()


def make(build: Path, log: Path) -> None:
    """Create the root, as root; SetupError with the end of debootstrap's output if that fails.

    A rename makes it visible only when it is complete. Roots of earlier recipes are removed.
    """
    done = build / _name()
    if not done.exists():
        apply.say(f"debootstrap {SUITE} with its engines into {done} (takes some minutes, once)")
        draft = build / f".{done.name}"
        _remove(draft)
        apply.run(_command(draft), log)
        for path in LEFT_OUT:
            shutil.rmtree(draft / path, ignore_errors=True)
        draft.rename(done)
    new = build / ".debian13-link"
    new.unlink(missing_ok=True)
    new.symlink_to(done.name)
    new.replace(link(build))
    for old in build.glob("debian13-*"):
        if old != done:
            _remove(old)


def _command(target: Path) -> list[str]:
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    if KEYRING.exists():
        command.append(f"--keyring={KEYRING}")
    return [*command, SUITE, str(target), *_mirror()]


def _mirror() -> list[str]:
    """Return the URL of the Debian archive that apt uses; none on another distribution."""
    if "ID=debian" not in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        return []
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CREATED_BY) $(COMPONENT) $(REPO_URI)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = (line.split(maxsplit=2) for line in listed.splitlines())
    return [
        address
        for kind, component, address in words
        if kind == "Packages" and component == "main" and address.rstrip("/").endswith("/debian")
    ][:1]


def _name() -> str:
    recipe = "\n".join((SUITE, *PACKAGES, *LEFT_OUT))
    return f"debian13-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def _remove(root: Path) -> None:
    """Remove a root, after unmounting what an interrupted debootstrap left mounted in it."""
    mounted = sorted(
        (
            line.split()[4]
            for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
            if line.split()[4].startswith(f"{root}/")
        ),
        reverse=True,
    )
    for point in mounted:
        subprocess.run(["umount", "--lazy", point], check=True)
    if os.path.lexists(root):
        shutil.rmtree(root)
