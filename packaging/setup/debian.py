# SPDX-License-Identifier: Apache-2.0
"""The Debian roots that tests run on, and the one that the interpreter of packages comes from.

`BUILD/<name>` is a link to `BUILD/<name>-<digest>`, a directory named by its recipe: a changed
recipe creates another directory, and one in use is never rewritten. debootstrap creates it once. If
this machine runs Debian, it uses the archive of this machine's apt.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import apply

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ARCHIVE = "http://deb.debian.org/debian"
#: Not read by any test.
LEFT_OUT = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
)


@dataclass(frozen=True)
class Recipe:
    """The parts of a root: the name of its link in BUILD, a release, and packages."""

    name: str
    suite: str
    packages: tuple[str, ...]
    left_out: tuple[str, ...] = LEFT_OUT
    #: debootstrap's script of another suite, for a suite that it may be too old to know.
    script: str = ""

    @property
    def folder(self) -> str:
        """The name of the directory, which changes with the recipe."""
        recipe = "\n".join((self.suite, *self.packages, *self.left_out))
        return f"{self.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


#: The second distribution whose engines are tested.
ENGINES = Recipe(
    "debian13",
    "trixie",
    (
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
    ),
)
#: containerd 2.x, which no released Debian has. Its version changes with Debian's testing suite.
NEWER_CONTAINERD = Recipe(
    "debian14", "forky", ("busybox-static", "containerd", "netbase", "runc"), script="sid"
)
#: The packages of a server without engines, and the dependencies of gpushare's package.
BARE = ("dbus", "python3", "runc", "systemd-sysv")
# : The packages that the rpm and the image are made of (packaging/packages/host_bundle.py), with
# its licences.
SOURCE = Recipe(
    "source12",
    "bookworm",
    ("busybox-static", "python3"),
    tuple(path for path in LEFT_OUT if path != "usr/share/doc"),
)
ROOTS = (
    ENGINES,
    NEWER_CONTAINERD,
    Recipe("bare12", "bookworm", BARE),
    Recipe("bare13", "trixie", BARE),
    Recipe("older11", "bullseye", ("python3",)),  # an image's older glibc
    SOURCE,
)


def link(build: Path, recipe: Recipe) -> Path:
    """Return the path at which tests find the root."""
    return build / recipe.name


def is_made(build: Path, recipe: Recipe) -> bool:
    """Whether the root of the recipe exists."""
    place = link(build, recipe)
    return place.exists() and place.resolve() == (build / recipe.folder).resolve()


def make(build: Path, recipe: Recipe, log: Path) -> None:
    """Create the root, as root; StepError with the end of debootstrap's output if that fails.

    A rename makes it visible only when it is complete. Roots of earlier recipes are removed.
    """
    done = build / recipe.folder
    if not done.exists():
        apply.say(f"debootstrap {recipe.suite} into {done} (takes some minutes, once)")
        draft = build / f".{done.name}"
        _remove(draft)
        apply.run(_command(recipe, draft), log)
        for path in recipe.left_out:
            shutil.rmtree(draft / path, ignore_errors=True)
        draft.rename(done)
    new = build / f".{recipe.name}-link"
    new.unlink(missing_ok=True)
    new.symlink_to(done.name)
    new.replace(link(build, recipe))
    for old in build.glob(f"{recipe.name}-*"):
        if old != done:
            _remove(old)


def _command(recipe: Recipe, target: Path) -> list[str]:
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(recipe.packages)}"]
    if KEYRING.exists():
        command.append(f"--keyring={KEYRING}")
    mirror = _mirror()
    if recipe.script:  # comes after a mirror
        mirror = [*(mirror or [ARCHIVE]), recipe.script]
    return [*command, recipe.suite, str(target), *mirror]


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
