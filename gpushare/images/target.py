# SPDX-License-Identifier: Apache-2.0
"""What was found under a name; and a bundle, a root directory or a running container, opened."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.errors import ErrorCode, UserError
from gpushare.oci import spec
from gpushare.oci.spec import SpecError

_MOST_BYTES: Final = 1 << 20  # of a process's environment or command line


class NotFound(UserError):
    """The image, container or directory does not exist or cannot be opened."""

    code = ErrorCode.NOT_FOUND


@dataclass(frozen=True)
class ImageTarget:
    """An image or a container. `root_fd` is open as long as the block of `find`.

    `kind` is what it is, in words. `root_fd` None: its files could not be reached, and `note` says
    why; then only what it declares is known.
    """

    kind: str
    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    root_fd: int | None = None
    note: str = ""


def variables_of(env: Sequence[str] | None) -> dict[str, str]:
    """Return `NAME=VALUE` strings by name; the last one of a name counts."""
    split = (entry.partition("=") for entry in env or ())
    return {name: value for name, _, value in split}


@contextmanager
def open_directory(path: Path) -> Iterator[ImageTarget]:
    """Open a bundle or a root; NotFound."""
    with open_root(path) as fd:
        if not (path / spec.CONFIG).is_file():
            note = "without a config.json the environment of its image is unknown"
            yield ImageTarget("root directory", str(path), root_fd=fd, note=note)
            return
        try:
            loaded = spec.load(fd)
            below = path / loaded.root
        except SpecError as error:
            raise NotFound(f"{path}: {error}") from error
        declared = loaded.at("process", "args")
        args = (
            tuple(arg for arg in declared if isinstance(arg, str))
            if isinstance(declared, list)
            else ()
        )
        with open_root(below) as root_fd:
            yield ImageTarget("bundle", str(path), loaded.variables, args, root_fd)


@contextmanager
def open_root(path: Path | str) -> Iterator[int]:
    """Open a directory, whose path is the caller's own word; NotFound."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        hint = ". Use sudo." if isinstance(error, PermissionError) else ""
        raise NotFound(f"{path}: {error.strerror}{hint}") from error
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_container(
    name: str, pid: int, variables: Mapping[str, str] | None = None, args: tuple[str, ...] = ()
) -> Iterator[ImageTarget]:
    """Open the root of process `pid`; NotFound.

    `variables` and `args` are those that an engine reports; without them the process's own count.
    """
    with open_root(f"/proc/{pid}/root") as fd:
        if variables is None:
            variables = variables_of(_process_strings(pid, "environ"))
            args = tuple(_process_strings(pid, "cmdline"))
        yield ImageTarget("container", name, variables, args, fd)


def _process_strings(pid: int, name: str) -> list[str]:
    try:
        with Path(f"/proc/{pid}/{name}").open("rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError:
        return []
    return [os.fsdecode(part) for part in data.split(b"\0") if part]
