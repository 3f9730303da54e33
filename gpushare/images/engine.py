# SPDX-License-Identifier: Apache-2.0
"""docker and podman, asked by their own programs what they know of an image or a container.

Its files are reached as the engine's layers, put together by the kernel in a mount that is nowhere
(overlay.py), which takes root; else as the engine exports them, of which only names are kept.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpushare.images import overlay
from gpushare.images.found import Found, NotFound, variables_of
from gpushare.images.skeleton import Skeleton

if TYPE_CHECKING:
    from collections.abc import Mapping

_ANSWER_SECONDS: Final = 60.0
_PROGRAMS: Final = ("docker", "podman")
_UNKNOWN: Final = ("no such", "not known", "no container with name")


@dataclass(frozen=True)
class Inspected:
    """What an engine says of an image or a container. `pid` 0: it does not run.

    `layers` are directories of its files, the topmost first; empty: the engine does not say.
    """

    kind: str  # image | container
    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    pid: int = 0
    layers: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Engine:
    """One engine, by the name of its program."""

    name: str

    def container(self, name: str) -> Inspected | None:
        """Return a container, None where there is none of that name; NotFound: not asked."""
        found = self._inspect("container", name)
        if found is None:
            return None
        args = (str(found.get("Path", "")), *map(str, found.get("Args") or ()))
        state = found.get("State") or {}
        return Inspected(
            "container",
            name,
            variables_of((found.get("Config") or {}).get("Env")),
            tuple(arg for arg in args if arg),
            int(state.get("Pid") or 0) if state.get("Running") else 0,
            _layers(found),
        )

    def image(self, name: str) -> Inspected | None:
        """Return an image, None where there is none of that name; NotFound: not asked."""
        found = self._inspect("image", name)
        if found is None:
            return None
        config = found.get("Config") or {}
        words = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
        variables = variables_of(config.get("Env"))
        return Inspected("image", name, variables, tuple(map(str, words)), 0, _layers(found))

    @contextmanager
    def opened(self, inspected: Inspected) -> Iterator[Found]:
        """Open the files of what was inspected; nothing of it is run."""
        kind = f"{inspected.kind} of {self.name}"
        known = (kind, inspected.name, inspected.variables, inspected.args)
        with ExitStack() as stack:
            fd, note = None, ""
            try:
                fd = stack.enter_context(overlay.opened(inspected.layers))
            except OSError:
                try:
                    skeleton = stack.enter_context(self._exported(inspected))
                    fd, note = skeleton.fd, skeleton.note
                except (NotFound, OSError, tarfile.TarError) as error:
                    note = f"its files could not be read, only what it says of itself: {error}"
            yield Found(*known, fd, note)

    @contextmanager
    def _exported(self, inspected: Inspected) -> Iterator[Skeleton]:
        """Read the engine's export of the files, of a container that is made for it and not run."""
        name = inspected.name
        with ExitStack() as stack:
            if inspected.kind == "image":
                # An image may have no command: one is named, and never started.
                name = self._ask("create", "--pull=never", "--network=none", name, "/-").split()[-1]
                stack.callback(self._ask, "rm", "--force", name)
            skeleton = stack.enter_context(Skeleton.made())
            words = [self.name, "export", name]
            with subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as export:
                try:
                    with tarfile.open(fileobj=export.stdout, mode="r|") as tar:
                        skeleton.add(tar)
                finally:
                    export.kill()
            yield skeleton

    def _inspect(self, kind: str, name: str) -> dict[str, Any] | None:
        try:
            said = self._ask(kind, "inspect", "--", name)
        except _Unknown:
            return None
        try:
            [found] = json.loads(said)
        except ValueError as error:
            raise NotFound(f"{self.name} answers in no known way") from error
        return found if isinstance(found, dict) else None

    def _ask(self, *words: str) -> str:
        try:
            done = subprocess.run(
                [self.name, *words],
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
            raise _Unknown(why[0])
        raise NotFound(f"{self.name}: {why[0]}")


class _Unknown(NotFound):
    """The engine knows nothing of that name."""


def there() -> list[Engine]:
    """Return the engines whose programs are installed."""
    return [Engine(name) for name in _PROGRAMS if shutil.which(name)]


def _layers(found: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the directories of an overlay's layers, as docker and podman tell them."""
    driver = found.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    if not str(driver.get("Name", "")).startswith("overlay"):
        return ()
    lower = str(data.get("LowerDir") or "").split(":")
    return tuple(Path(path) for path in (str(data.get("UpperDir") or ""), *lower) if path)
