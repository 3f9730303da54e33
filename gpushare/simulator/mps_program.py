# SPDX-License-Identifier: Apache-2.0
"""`nvidia-cuda-mps-control` of the simulated driver: it is the control daemon, or commands one."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TextIO

from gpushare.simulator.mps_control import PRIVILEGED, MpsControlDaemon
from gpushare.simulator.mps_settings import MpsCommandError, MpsDevices
from gpushare.simulator.mps_state import PIPE_ENV

LOG_ENV: Final = "CUDA_MPS_LOG_DIRECTORY"
_PIPE_DEFAULT: Final = "/tmp/nvidia-mps"  # noqa: S108 - the manual's, "CUDA_MPS_PIPE_DIRECTORY"
_LOG_DEFAULT: Final = "/var/log/nvidia-mps"
_MOST_BYTES: Final = 1 << 20
_DAEMON: Final = ("-d", "--daemon", "-f", "--foreground")
_MULTIUSER: Final = ("-multiuser-server", "-M", "--multiuser")


def send(pipes: Path, commands: Iterable[str], printed: TextIO, failed: TextIO) -> int:
    """Send commands to the running daemon and print the replies; return the exit status."""
    privileged = pipes / PRIVILEGED
    path = privileged if privileged.exists() else pipes / "control"
    for command in commands:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(str(path))
                connection.send(command.encode())
                answer = connection.recv(_MOST_BYTES).decode()
        except OSError:
            answer = ""
        if not answer:
            failed.write("Cannot find MPS control daemon process\n")
            return 1
        printed.write(answer.removeprefix("\n"))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run `nvidia-cuda-mps-control`: the daemon with -d or -f, else commands to it."""
    words = sys.argv[1:] if arguments is None else arguments
    pipes = Path(os.environ.get(PIPE_ENV, _PIPE_DEFAULT))
    try:
        for word in words:
            if word not in (*_DAEMON, *_MULTIUSER):
                raise MpsCommandError(f"{word}: unknown option")
        modes = [word.lstrip("-")[0] for word in words if word in _DAEMON]
        if not modes:
            return send(pipes, sys.stdin, sys.stdout, sys.stderr)
        logs = Path(os.environ.get(LOG_ENV, _LOG_DEFAULT))
        multiuser = any(word in _MULTIUSER for word in words)
        control = MpsControlDaemon(pipes, logs, MpsDevices.visible(), multiuser=multiuser)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if modes[-1] == "d" and os.fork() > 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    control.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
