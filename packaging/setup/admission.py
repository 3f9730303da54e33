# SPDX-License-Identifier: Apache-2.0
"""Builds tools/admission, which decides requests with Kubernetes' own admission plugins.

Debian's unstable release has those as a library, with the compiler. The packages are downloaded and
unpacked below BUILD, and removed again after the build, with its cache: two minutes, once. Nothing
is installed, and the program is static.

If Debian has newer versions by now, replace the lines of admission_packages.txt: golang-go,
golang-k8s-apiserver-dev, golang-k8s-api-dev, golang-k8s-client-go-dev, and those that they need.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from pathlib import Path

import apply
import debian_package

SOURCE = Path(__file__).resolve().parents[2] / "tools/admission"
PINS = Path(__file__).with_name("admission_packages.txt")
POOL = debian_package.POOL + "main/g/"
PROGRAM = "gpushare-admission"


def link(build: Path) -> Path:
    """Return the path at which tests find the program."""
    return build / "tools/usr/local/bin" / PROGRAM


def is_made(build: Path) -> bool:
    """Whether the program of these sources is there."""
    place = link(build)
    return place.is_file() and place.resolve() == _program(build).resolve()


def make(build: Path, log: Path) -> None:
    """Build the program; StepError if that fails."""
    if platform.machine() != "x86_64":
        raise apply.StepError(f"{PROGRAM}: is built on x86_64 only")
    apply.say(
        f"{PROGRAM}: Kubernetes' admission plugins, from Debian sid (takes two minutes, once)"
    )
    program = _program(build)
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".admission-", dir=build) as name:
        root = Path(name)
        for line in PINS.read_text(encoding="ascii").splitlines():
            package, sha256 = line.split()
            with debian_package.files(debian_package.download(POOL + package, sha256)) as archive:
                archive.extractall(root)
        (compiler,) = root.glob("usr/lib/go-*/bin/go")
        made = root / PROGRAM
        settings = {
            "GOROOT": compiler.parents[1],
            "GOPATH": root / "usr/share/gocode",
            "GOCACHE": root / "cache",
            "GO111MODULE": "off",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
        }
        words = ["env", *(f"{key}={value}" for key, value in settings.items()), str(compiler)]
        words += ["build", "-trimpath", "-ldflags=-s -w", "-o", str(made), "."]
        apply.run(words, log, cwd=SOURCE)
        for old in program.parent.glob(f"{PROGRAM}-*"):
            old.unlink()
        made.replace(program)
    place = link(build)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(os.path.relpath(program, place.parent))


def _program(build: Path) -> Path:
    content = b"".join(path.read_bytes() for path in (PINS, *sorted(SOURCE.glob("*.go"))))
    return build / f"tools/{PROGRAM}-{hashlib.sha256(content).hexdigest()[:12]}"
