# SPDX-License-Identifier: Apache-2.0
"""`nvidia-cuda-mps-control` of the simulated driver: it is the control daemon, or commands one."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TextIO

from gpushare.simulator.mps_configuration import apply_configuration
from gpushare.simulator.mps_control import PRIVILEGED, MpsControlDaemon
from gpushare.simulator.mps_server import PIPE_ENV
from gpushare.simulator.mps_settings import MpsCommandError, MpsDevices
from gpushare.simulator.mps_state import MpsMode

LOG_ENV: Final = "CUDA_MPS_LOG_DIRECTORY"
_PROTOCOL_ENV: Final = "CUDA_MPS_PROTOCOL_VERSION"
_PIPE_DEFAULT: Final = "/tmp/nvidia-mps"  # noqa: S108 - the manual's, "CUDA_MPS_PIPE_DIRECTORY"
_PIPE_ROOT: Final = "/run/nvidia-mps"  # of protocol 3
_LOG_DEFAULT: Final = "/var/log/nvidia-mps"
_PROTOCOL3_DRIVER: Final = 615
_STATIC_CUDA: Final = 13010
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Options:
    """The command line."""

    daemon: str = ""  # -d, -f
    mode: MpsMode = field(default_factory=MpsMode)
    configuration: Path | None = None
    quits: bool = False
    command: tuple[str, ...] = ()


def parse(arguments: list[str], devices: MpsDevices) -> Options:
    """Return the options that the driver's version has; MpsCommandError for others."""
    read, words = Options(), iter(arguments)
    new = devices.driver_major >= _PROTOCOL3_DRIVER
    for word in words:
        if word in ("-d", "--daemon", "-f", "--foreground"):
            read = replace(read, daemon=word.lstrip("-")[0])
        elif word in ("-multiuser-server", "-M", "--multiuser") or (new and word == "-m"):
            read = replace(read, mode=replace(read.mode, multiuser=True))
        elif word in ("-S", "--static-partitioning") and devices.cuda_version >= _STATIC_CUDA:
            read = replace(read, mode=replace(read.mode, static=True))
        elif new and word in ("-p", "--protocol"):
            read = replace(read, mode=replace(read.mode, protocol=_protocol(next(words, ""))))
        elif new and word in ("-a", "--apply"):
            read = replace(read, configuration=Path(next(words, "")))
        elif new and word in ("-q", "--quit"):
            read = replace(read, quits=True)
        elif new and not word.startswith("-"):
            return replace(read, command=(word, *words))
        else:
            raise MpsCommandError(f"{word}: unknown option")
    named = os.environ.get(_PROTOCOL_ENV) if new else None
    if named is not None:
        read = replace(read, mode=replace(read.mode, protocol=_protocol(named)))
    if read.mode.static and read.mode.protocol == 3:
        raise MpsCommandError("-S: of protocol 2; protocol 3 has the module sm-partition")
    return read


def _protocol(word: str) -> int:
    if word not in ("2", "3"):
        raise MpsCommandError(f"{word}: not a protocol")
    return int(word)


def send(pipes: Path, messages: Iterator[str], printed: TextIO, failed: TextIO) -> int:
    """Send commands to the running daemon and print the replies; return the exit status."""
    privileged = pipes / PRIVILEGED
    path = privileged if privileged.exists() else pipes / "control"
    for message in messages:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(str(path))
                connection.send(message.encode())
                answer = connection.recv(_MOST_BYTES).decode()
        except OSError:
            failed.write("Cannot find MPS control daemon process\n")
            return 1
        status, _, text = answer.partition("\n")
        if text:
            (failed if status != "0" else printed).write(f"{text}\n")
        if status != "0":
            return 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run `nvidia-cuda-mps-control`: the daemon with -d or -f, else commands to it."""
    try:
        devices = MpsDevices.visible()
        options = parse(sys.argv[1:] if arguments is None else arguments, devices)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    root = options.mode.protocol == 3 and os.geteuid() == 0
    pipes = Path(os.environ.get(PIPE_ENV, _PIPE_ROOT if root else _PIPE_DEFAULT))
    if not options.daemon:
        messages = (f"command\n{line}" for line in sys.stdin)
        if options.quits:
            messages = (message for message in ("arguments\n-q",))
        elif options.command:
            messages = (message for message in ("arguments\n" + "\0".join(options.command),))
        return send(pipes, messages, sys.stdout, sys.stderr)
    logs = Path(os.environ.get(LOG_ENV, _LOG_DEFAULT))
    try:
        control = MpsControlDaemon(pipes, logs, options.mode, devices)
        if options.configuration is not None and options.mode.protocol == 3:
            _apply(control, options.configuration)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if options.daemon == "d" and os.fork() > 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    control.run()
    return 0


def _apply(control: MpsControlDaemon, path: Path) -> None:
    import tomlkit  # noqa: PLC0415 - commands need none of it

    text = path.read_text(encoding="utf-8")
    apply_configuration(control, tomlkit.parse(text).unwrap())


if __name__ == "__main__":
    sys.exit(main())
