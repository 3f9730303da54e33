# SPDX-License-Identifier: Apache-2.0
"""Gets NVIDIA's user-space driver, which tests compare with the simulator, in several releases.

Debian distributes it in its non-free and contrib sections. Whoever runs the tests downloads it,
with its licences, into BUILD/real-driver, where no loader finds it; nothing installs it. It is not
free software: nothing of it may enter this repository or a package of gpushare.
"""

from __future__ import annotations

import hashlib
import platform
import re
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

import apply
import debian_package

POOL = debian_package.POOL
PINS = Path(__file__).with_name("nvidia_packages.txt")
_LIBRARY = re.compile(r"(lib(cuda|nvidia-ml)\.so)\.\d+\.\d+(\.\d+)?")
_PROGRAM = re.compile(r"nvidia-(smi|modprobe|cuda-mps-(control|server))")


def releases(pins: Path = PINS) -> dict[str, dict[str, str]]:
    """Return the releases: of each the packages below the pool, with their SHA-256."""
    found: dict[str, dict[str, str]] = {}
    for line in pins.read_text(encoding="ascii").splitlines():
        if not line.startswith("#"):
            release, package, sha256 = line.split()
            found.setdefault(release, {})[package] = sha256
    return found


#: What the gate fetches. All are fetched for `./dev test --all`.
GATE = "535"


def place(build: Path, release: str) -> Path:
    """Return the folder of a release: lib/ and bin/ are in it. Its name changes with the pins."""
    digest = hashlib.sha256(" ".join(releases()[release].values()).encode()).hexdigest()
    return build / "real-driver" / f"{release}-{digest[:12]}"


def make(build: Path, release: str, pool: str = POOL) -> None:
    """Download and unpack one release; StepError where that fails."""
    if platform.machine() != "x86_64":
        raise apply.StepError(f"NVIDIA's driver {release}: only for x86_64")
    target = place(build, release)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=target.parent) as name:
        draft = Path(name, release)
        for package, sha256 in releases()[release].items():
            _unpack(debian_package.download(pool + package, sha256), package, draft)
        if not target.exists():  # by another run
            draft.replace(target)


def _unpack(package: bytes, name: str, folder: Path) -> None:
    with debian_package.files(package) as archive:
        for member in archive:
            if member.isfile() and (to := _destination(member, name)):
                content = archive.extractfile(member)
                assert content is not None
                (folder / to).parent.mkdir(parents=True, exist_ok=True)
                (folder / to).write_bytes(content.read())
                (folder / to).chmod(member.mode)


def _destination(member: tarfile.TarInfo, package: str) -> str | None:
    file = PurePosixPath(member.name).name
    if library := _LIBRARY.fullmatch(file):
        return f"lib/{library[1]}.1"
    if _PROGRAM.fullmatch(file) and member.mode & 0o100:
        return f"bin/{file}"
    return f"copyright/{PurePosixPath(package).stem}" if file == "copyright" else None
