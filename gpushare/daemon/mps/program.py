# SPDX-License-Identifier: Apache-2.0
"""`nvidia-cuda-mps-control` of one card: how it is started, and how commands are sent to it.

One control daemon per card: a server with several cards refuses new clients on all of them after a
fault on one. Sources: Multi-Process Service manual, release 615, "Legacy MPS v2 Interface", "MPS v3
Interface", "Environment Variables".
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from gpushare.daemon.mps.model import MpsError

#: How long a command may take. One that ends a client waits for the client's work: TERMINATE.
COMMAND_SECONDS: Final = 10.0
TERMINATE_SECONDS: Final = 30.0

#: The longest path of a socket, with the byte that ends it: unix(7). A control daemon whose paths
#: are longer does not start, and does not say why.
_SOCKET_PATH: Final = 108
_PROTOCOL3_DRIVER: Final = 615
_STATIC_CUDA: Final = 13010

Protocol = Literal[2, 3]


def protocol_of(driver_version: str) -> Protocol:
    """Return the newest protocol of a driver, 2 where the version cannot be read.

    Protocol 3 is of driver 615, which is CUDA 13.4. ("MPS v3 Interface")
    """
    major = re.match(r"[0-9]+", driver_version)
    return 3 if major and int(major[0]) >= _PROTOCOL3_DRIVER else 2


def has_static_partitions(cuda_version: int) -> bool:
    """Whether a driver has static partitions, by its CUDA version as cuDriverGetVersion returns it.

    From CUDA 13.1 (driver 590) on; cards of compute capability 8.0 and higher. A control daemon of
    12.x does not know the option. ("Using Static SM Partitioning"; the version: reported by others)
    """
    return cuda_version >= _STATIC_CUDA


@dataclass(frozen=True)
class ControlProgram:
    """One control daemon: the program, its folders, its card and its mode.

    pipe_folder and log_folder are its own: they exist, and only gpushared can write to them.
    static starts protocol 2 with static partitions, in which EVERY client needs one; protocol 3
    needs no option for them. multiuser: one server for all users; it must run as root, and faults
    cross users. env: what the program needs beside MPS's own variables (PATH, libraries, a
    simulated device).
    """

    program: Path
    pipe_folder: Path
    log_folder: Path
    uuid: str
    protocol: Protocol = 2
    static: bool = False
    multiuser: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """Return the command line of the daemon, in the foreground."""
        options = ["-f"]
        if self.protocol == 3:
            options += ["-p", "3", *(["-m"] if self.multiuser else [])]
        else:
            options += ["-S"] if self.static else []
            options += ["-multiuser-server"] if self.multiuser else []
        return [str(self.program), *options]

    def environment(self) -> dict[str, str]:
        """Return the environment of the daemon, and of commands to it.

        The variable for the protocol takes precedence over the option, so both are given.
        """
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            **self.env,
            "CUDA_VISIBLE_DEVICES": self.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_folder),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_folder),
            "CUDA_MPS_PROTOCOL_VERSION": str(self.protocol),
        }

    def check_path(self, folder: Path) -> None:
        """Refuse a folder whose socket `control` would have too long a path; MpsError."""
        path = folder / "control"
        if len(str(path).encode()) >= _SOCKET_PATH:
            raise MpsError(
                f"{path}: a socket's path has at most {_SOCKET_PATH - 1} bytes. Use a shorter "
                "state directory."
            )

    def run(self, *arguments: str, commands: str = "", seconds: float = COMMAND_SECONDS) -> str:
        """Return what the program prints, without blanks at the ends; MpsError.

        It is given `arguments` (protocol 3), or `commands` on its standard input (protocol 2).
        """
        what = " ".join(arguments) or commands
        try:
            done = subprocess.run(
                [str(self.program), *arguments],
                input=f"{commands}\n" if commands else "",
                env=self.environment(),
                cwd="/",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MpsError(f"{what}: no answer within {seconds:g} s") from error
        except OSError as error:
            raise MpsError(f"{self.program}: {error.strerror}") from error
        if done.returncode:
            said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
            raise MpsError(f"{what}: {said}")
        return done.stdout.strip()


def size_in_bytes(text: str) -> int:
    """Return the bytes of a limit as the control daemon prints it; MpsError for anything else."""
    found = re.fullmatch(r"([0-9]+)([KMG])B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise MpsError(f"{text!r} is not a size with K, M or G")
    return int(found[1]) << {"K": 10, "M": 20, "G": 30}[found[2].upper()]
