# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own user-space driver for tests, without a card: the fixture `real_driver` has it.

As root its libraries make nodes in /dev and open a file in /dev/shm. A program that loads them is
started by isolated().
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import nvidia_packages

BUILD = Path(__file__).resolve().parents[1] / "build"
_OWN_DEV = """
mount -t tmpfs -o mode=755 none /mnt
for node in full null random tty urandom zero; do
    : >/mnt/$node
    mount --bind /dev/$node /mnt/$node
done
mkdir /mnt/shm
ln -s /proc/self/fd /mnt/fd
mount --move /mnt /dev
exec "$@"
"""


@dataclass(frozen=True)
class RealDriver:
    """One release, for example 535. 525 has no nvidia-smi."""

    WITHOUT_MPS: ClassVar = frozenset({"470", "525"})
    MISSING: ClassVar = "NVIDIA's driver, which could not be fetched: ./dev real-driver"

    release: str

    @property
    def is_there(self) -> bool:
        """Whether it was fetched."""
        return self.libraries.exists()

    @property
    def libraries(self) -> Path:
        """The folder of libcuda.so.1 and libnvidia-ml.so.1."""
        return nvidia_packages.place(BUILD, self.release) / "lib"

    def program(self, name: str) -> Path:
        """The path of nvidia-smi, nvidia-cuda-mps-control or nvidia-cuda-mps-server."""
        return self.libraries.parent / "bin" / name


def isolated(*command: str | Path) -> list[str]:
    """Return `command` with a /dev of its own, and an empty /dev/shm; it needs root."""
    return ["unshare", "--mount", "sh", "-ec", _OWN_DEV, "sh", *map(str, command)]
