# SPDX-License-Identifier: Apache-2.0
"""Open an image, a container, a bundle or a root directory to look into it, never to run it.

A name that begins with / or . is a path: a directory with a config.json is a bundle, any other a
root. Any other name is a running container or an image of docker or podman, in this order.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpushare.errors import ErrorCode, UserError
from gpushare.oci import spec
from gpushare.oci.spec import SpecError


@contextmanager
def open_image(name: str, pid: int = 0) -> Iterator[ImageTarget]:
    """Open what `name` is; NotFound. `pid` is its first process, where that is known already."""
    if not name:
        raise NotFound("no name. Name an image, a container or a path.")
    opened: AbstractContextManager[ImageTarget]
    if pid:
        opened = open_container(name, pid)
    elif name.startswith(("/", ".")):
        if Path(name).is_file():
            raise NotFound(f"{name}: a file. Load the image into docker or podman, and name it.")
        opened = open_directory(Path(name))
    else:
        opened = _by_engine(name)
    with opened as target:
        yield target


def _by_engine(name: str) -> AbstractContextManager[ImageTarget]:
    engines = installed_engines()
    if not engines:
        raise NotFound(
            f"{name}: neither docker nor podman is installed. Name a path, for example ./rootfs."
        )
    reasons = []
    for engine in engines:
        try:
            inspected = engine.container(name) or engine.image(name)
        except NotFound as error:
            reasons.append(str(error))
            continue
        if inspected is None:
            reasons.append(f"{engine.name} has no image or container of that name")
        elif inspected.pid:
            return open_container(name, inspected.pid, inspected.variables, inspected.args)
        else:
            return engine.opened(inspected)
    raise NotFound(
        f"{name}: {'; '.join(reasons)}. Pull the image, or name a path, for example ./rootfs."
    )


# --- what was found under a name; and a bundle, a root directory or a running container, opened ---

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


# --- images and containers of docker and podman, which their own programs describe ---
#
# The files are the engine's layers, which the kernel combines in a mount that is attached nowhere:
# only its descriptor leads to it, and nothing is left to unmount. That takes root.
# Source: fsopen(2), fsconfig(2), fsmount(2); Linux, filesystems/overlayfs.rst.

# The same on every architecture (asm-generic/unistd.h).
_SYS_FSOPEN: Final = 430
_SYS_FSCONFIG: Final = 431
_SYS_FSMOUNT: Final = 432
_CLOEXEC: Final = 1
_SET_STRING: Final = 1
_CREATE: Final = 6
_READ_ONLY: Final = 0x1 | 0x2 | 0x4 | 0x8  # MOUNT_ATTR_RDONLY, NOSUID, NODEV, NOEXEC
_LONGEST_STRING: Final = 255

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


_ANSWER_SECONDS: Final = 60.0
_PROGRAMS: Final = ("docker", "podman")
_UNKNOWN: Final = ("no such", "not known", "no container with name")


@contextmanager
def open_layers(layers: Sequence[Path]) -> Iterator[int]:
    """Open the tree that `layers`, the topmost first, make; OSError where that cannot be."""
    if not layers:
        raise OSError(errno.ENOENT, "its engine reports no layers")
    if len(layers) == 1:
        fd = os.open(layers[0], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        fd = _mount(layers)
    try:
        yield fd
    finally:
        os.close(fd)


def _mount(layers: Sequence[Path]) -> int:
    context = _syscall(_SYS_FSOPEN, ctypes.c_char_p(b"overlay"), ctypes.c_uint(_CLOEXEC))
    try:
        try:
            for layer in layers:
                _set_option(context, b"lowerdir+", os.fsencode(layer))
        except OSError as error:
            # Before Linux 6.7 all of them are one string.
            together = b":".join(map(os.fsencode, layers))
            if error.errno != errno.EINVAL or len(together) > _LONGEST_STRING:
                raise
            _set_option(context, b"lowerdir", together)
        _syscall(
            _SYS_FSCONFIG,
            ctypes.c_int(context),
            ctypes.c_uint(_CREATE),
            None,
            None,
            ctypes.c_int(0),
        )
        return _syscall(
            _SYS_FSMOUNT, ctypes.c_int(context), ctypes.c_uint(_CLOEXEC), ctypes.c_uint(_READ_ONLY)
        )
    finally:
        os.close(context)


def _set_option(context: int, key: bytes, value: bytes) -> None:
    _syscall(
        _SYS_FSCONFIG,
        ctypes.c_int(context),
        ctypes.c_uint(_SET_STRING),
        ctypes.c_char_p(key),
        ctypes.c_char_p(value),
        ctypes.c_int(0),
    )


def _syscall(number: int, *arguments: object) -> int:
    done = _libc.syscall(ctypes.c_long(number), *arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "overlay")
    return int(done)


@dataclass(frozen=True)
class InspectedImage:
    """An engine's report of an image or a container. `pid` 0: it is not running.

    `layers` are directories of its files, the topmost first; empty if unknown.
    """

    kind: str  # image | container
    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    pid: int = 0
    layers: tuple[Path, ...] = ()


@dataclass(frozen=True)
class ImageEngine:
    """One engine, by the name of its program."""

    name: str

    def container(self, name: str) -> InspectedImage | None:
        """Return a container, None if there is none of that name; NotFound if the engine fails."""
        inspected = self._inspect("container", name)
        if inspected is None:
            return None
        args = (str(inspected.get("Path", "")), *map(str, inspected.get("Args") or ()))
        state = inspected.get("State") or {}
        return InspectedImage(
            "container",
            name,
            variables_of((inspected.get("Config") or {}).get("Env")),
            tuple(arg for arg in args if arg),
            int(state.get("Pid") or 0) if state.get("Running") else 0,
            _layers(inspected),
        )

    def image(self, name: str) -> InspectedImage | None:
        """Return an image, None if there is none of that name; NotFound if the engine fails."""
        inspected = self._inspect("image", name)
        if inspected is None:
            return None
        config = inspected.get("Config") or {}
        args = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
        variables = variables_of(config.get("Env"))
        return InspectedImage(
            "image", name, variables, tuple(map(str, args)), 0, _layers(inspected)
        )

    @contextmanager
    def opened(self, inspected: InspectedImage) -> Iterator[ImageTarget]:
        """Open the files of what was inspected; nothing of it is run."""
        kind = f"{inspected.kind} of {self.name}"
        known = (kind, inspected.name, inspected.variables, inspected.args)
        with ExitStack() as stack:
            fd, note = None, ""
            try:
                fd = stack.enter_context(open_layers(inspected.layers))
            except OSError as error:
                note = _unread(inspected, error)
            yield ImageTarget(*known, fd, note)

    def _inspect(self, kind: str, name: str) -> dict[str, Any] | None:
        try:
            output = self._ask(kind, "inspect", "--", name)
        except _UnknownName:
            return None
        try:
            [rows] = json.loads(output)
        except ValueError as error:
            raise NotFound(f"{self.name} gave an unknown answer") from error
        return rows if isinstance(rows, dict) else None

    def _ask(self, *args: str) -> str:
        try:
            done = subprocess.run(
                [self.name, *args],
                capture_output=True,
                text=True,
                check=False,
                timeout=_ANSWER_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotFound(f"{self.name} does not answer ({error})") from error
        if done.returncode == 0:
            return done.stdout
        why = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        if any(word in done.stderr.lower() for word in _UNKNOWN):
            raise _UnknownName(why[0])
        raise NotFound(f"{self.name}: {why[0]}")


def _unread(inspected: InspectedImage, error: OSError) -> str:
    """Say why the files of an image or a container that is not running are not known."""
    what = "only its configuration is known, because"
    if not inspected.layers:
        instead = "start a container of it, and name that, or a directory with its files"
        return f"{what} {error.strerror}: {instead}"
    if os.geteuid() != 0:
        return f"{what} its layers can only be mounted by root. Use sudo"
    return f"{what} its layers could not be mounted: {error}"


class _UnknownName(NotFound):
    """The engine knows nothing of that name."""


def installed_engines() -> list[ImageEngine]:
    """Return the engines whose programs are installed."""
    return [ImageEngine(name) for name in _PROGRAMS if shutil.which(name)]


def _layers(driver_data: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the directories of an overlay's layers, as docker and podman tell them."""
    driver = driver_data.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    if not str(driver.get("Name", "")).startswith("overlay"):
        return ()
    lower = str(data.get("LowerDir") or "").split(":")
    return tuple(Path(path) for path in (str(data.get("UpperDir") or ""), *lower) if path)
