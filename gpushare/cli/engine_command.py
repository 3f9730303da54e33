# SPDX-License-Identifier: Apache-2.0
"""What `docker run ARGS` requests, read from its arguments; so of podman and nerdctl.

Only options before the image are the engine's; what follows it is the container's command. To find
the image it has to be known which options have no value: those are listed here, and an option that
is not has one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.errors import ErrorCode, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The variable in which a container shows its ticket.
TICKET_VARIABLE: Final = "GPUSHARE_TICKET"
_ENGINES: Final = frozenset({"docker", "podman", "nerdctl"})
_RUN: Final = ("run", "container run")
#: Options of `run` without a value, of all three engines.
_FLAGS: Final = frozenset(
    {
        *("--detach", "--disable-content-trust", "--help", "--init", "--interactive"),
        *("--no-healthcheck", "--oom-kill-disable", "--privileged", "--publish-all", "--quiet"),
        *("--read-only", "--rm", "--sig-proxy", "--tty", "--use-api-socket"),
        *("--env-host", "--http-proxy", "--no-hosts", "--no-hostname", "--passwd", "--replace"),
        *("--read-only-tmpfs", "--rmi", "--rootfs", "--tls-verify", "--unsetenv-all"),
    }
)
_SHORT_FLAGS: Final = frozenset("ditPq")
#: Options before `run` without a value.
_GLOBAL_FLAGS: Final = frozenset(
    {"-D", "--debug", "--tls", "--tlsverify", "--remote", "-r", "--debug-full", "--experimental"}
)
_CDI: Final = "nvidia.com/gpu="


@dataclass
class EngineRequest:
    """What an engine's command requests; `place` is where an option of `run` can be added."""

    place: int
    variables: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cards: str = ""
    name: str = ""

    def source(self) -> dict[str, object]:
        """Return what gpushared reads of it."""
        return {
            "quota": {},
            "variables": self.variables,
            "annotations": self.annotations,
            "cards": self.cards,
        }


def engine_request(argv: Sequence[str]) -> EngineRequest | None:
    """Return what an engine's `run` in `argv` requests; None where it is another command.

    UserError: a file of variables cannot be read.
    """
    if Path(argv[0]).name not in _ENGINES:
        return None
    place = _after_run(argv)
    if place is None:
        return None
    found = EngineRequest(place)
    devices: list[str] = []
    for option, value in _options(argv[place:]):
        if option in {"-e", "--env"}:
            _put_variable(value, found.variables)
        elif option == "--env-file":
            for line in _lines(value):
                _put_variable(line, found.variables)
        elif option == "--annotation":
            name, _, text = value.partition("=")
            found.annotations[name] = text
        elif option == "--gpus":
            found.cards = value
        elif option == "--device" and value.startswith(_CDI):
            devices.append(value.removeprefix(_CDI))
        elif option == "--name":
            found.name = value
    if devices and not found.cards:
        found.cards = "all" if "all" in devices else f"device={','.join(devices)}"
    # Only these are read; a request to gpushared has a limited length.
    wanted = ("GPUSHARE_", "NVIDIA_VISIBLE_DEVICES", "ALIYUN_", "VOLCANO_", "CUDA_", "HAMI_")
    found.variables = {
        name: text for name, text in found.variables.items() if name.startswith(wanted)
    }
    return found


def with_ticket(argv: Sequence[str], place: int) -> tuple[str, ...]:
    """Return the command with the variable of its ticket, whose value is in the environment.

    So no other user sees the value among the arguments of the command.
    """
    return (*argv[:place], "--env", TICKET_VARIABLE, *argv[place:])


def _after_run(argv: Sequence[str]) -> int | None:
    """Return the index after `run` or `container run`; None where that is not the command."""
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        at += 1 if "=" in argv[at] or argv[at] in _GLOBAL_FLAGS else 2
    for words in _RUN:
        length = len(words.split())
        if " ".join(argv[at : at + length]) == words:
            return at + length
    return None


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option before the image, and its value."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            return
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if equals:
                yield name, value
                continue
            if name in _FLAGS:
                continue
        else:
            letters = word[1:].lstrip("".join(_SHORT_FLAGS))
            if not letters:
                continue
            name, value = f"-{letters[0]}", letters[1:].removeprefix("=")
            if value:
                yield name, value
                continue
        if at < len(words):
            yield name, words[at]
            at += 1


def _put_variable(text: str, variables: dict[str, str]) -> None:
    """Note NAME=VALUE, or NAME with the value that it has here, as engines do."""
    name, equals, value = text.partition("=")
    if equals:
        variables[name] = value
    elif name in os.environ:
        variables[name] = os.environ[name]


def _lines(file: str) -> list[str]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        message = f"--env-file {file}: {why}"
        raise UserError(message, code=ErrorCode.NOT_FOUND, key="--env-file", value=file) from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
