# SPDX-License-Identifier: Apache-2.0
"""Two ways to one low-level runtime, and what is seen on each of them."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.leftovers import cgroups_named
from tests.system.low_level import (
    CallOutcome,
    LowLevelRuntime,
    masked,
    removed_afterwards,
    write_bundle,
)

#: What the daemon leaves in the spec that it has changed.
RECORD = "x-gpushare"
ASKING = {"gpushare.io/memory": "1GiB"}

Result = TypeVar("Result")


class Kind(NamedTuple):
    """What sort of container lives, and whether there is a daemon."""

    name: str
    asks: bool = False
    daemon: bool = True
    bind: str = "hook"  # what binds it, where an engine creates it


UNMARKED = Kind("unmarked")
DEAD = Kind("daemon-dead", daemon=False)
QUOTA = Kind("quota", asks=True)
BOUND_BY_LAUNCHER = Kind("quota-launcher", asks=True, bind="launcher")


class RuntimeCase(NamedTuple):
    """Under which runtime a kind of container lives."""

    runtime: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.runtime}-{self.kind.name}"


#: Which runtime it is matters to the launcher only once it has something to ask or to bind. The
#: setting of what binds is heard at `create` alone, see CREATED.
COURSES = (
    RuntimeCase("runc", UNMARKED),
    RuntimeCase("runc", DEAD),
    RuntimeCase("runc", QUOTA),
    RuntimeCase("crun", QUOTA),
)
CREATED_COURSES = (
    *COURSES,
    *(each._replace(kind=BOUND_BY_LAUNCHER) for each in COURSES if each.kind == QUOTA),
)


class Life:
    """One container's life under one way to the runtime; `seen` is all that a caller sees of it."""

    def __init__(self, runtime: LowLevelRuntime, folder: Path, identity: str, kind: Kind) -> None:
        self.runtime = runtime
        self.folder = folder
        self.id = identity
        self.kind = kind
        self.path = folder / "bundle"
        self.pid_file = folder / "pid"
        self.seen: list[object] = []
        self._output = folder / "output"

    def bundle(self, *command: str, **changes: Any) -> Path:
        """Write config.json as an engine would for each start; `changes` as for write_bundle."""
        if self.kind.asks:
            changes["annotations"] = ASKING | changes.get("annotations", {})
        self.pid_file.unlink(missing_ok=True)
        write_bundle(self.path, *command, **changes)
        config = self.path / "config.json"
        spec = json.loads(config.read_bytes())
        spec["linux"]["cgroupsPath"] = f"/{self.id}"
        config.write_text(json.dumps(spec))
        return self.path

    def call(self, *words: str, stdin: bytes = b"", before: Sequence[str] = ()) -> CallOutcome:
        """Run one verb to its end; `before` is a program that executes the rest."""
        return self._saw(self.runtime.call(*words, stdin=stdin, before=before))

    def loose(self, *words: str, before: Sequence[str] = ()) -> CallOutcome:
        """Run a verb that leaves a process behind: its output goes to a file, see `said`.

        The container's init keeps the descriptors that it is given, so a pipe would not end.
        """
        with self._output.open("wb") as output:
            status = subprocess.run(
                self.runtime.argv(*words, before=before),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            ).returncode
        return self._saw(CallOutcome(status, self.said() if status else "", ""))

    def create(self, *flags: str, before: Sequence[str] = ()) -> CallOutcome:
        """Create the container from its bundle."""
        where = ("--bundle", str(self.path), "--pid-file", str(self.pid_file))
        return self.loose("create", *where, *flags, self.id, before=before)

    def started(self, *command: str, **changes: Any) -> None:
        """Bring a container to life that runs `command`."""
        self.bundle(*command, **changes)
        assert self.create().status == 0, self.said()
        assert self.call("start", self.id).status == 0

    def ended(self) -> None:
        """Return when the container's process has ended, by itself."""
        self.runtime.wait_for(self.id, "stopped")

    def said(self) -> str:
        """Return what `loose` and the container have written so far."""
        return masked(self._output.read_bytes())

    def traces(self) -> None:
        """See what there is of the container on disk: its state, its cgroups, its bundle."""
        state = self.runtime.state_folder / self.id
        self.seen += [
            sorted(path.name for path in state.rglob("*")),
            sorted(str(folder) for folder in cgroups_named(self.id)),
            sorted(path.name for path in self.path.iterdir()),
            self.pid_file.exists() and self.pid_file.read_text().isdigit(),
        ]

    @property
    def edited(self) -> bool:
        """Whether the daemon has given this container its share."""
        found: Mapping[str, object] = json.loads((self.path / "config.json").read_bytes())
        return RECORD in found

    def _saw(self, outcome: CallOutcome) -> CallOutcome:
        self.seen.append(outcome)
        return outcome


class RuntimePair:
    """The bare runtime and the one behind the launcher."""

    bare: LowLevelRuntime
    launched: LowLevelRuntime

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self.id = f"life-{secrets.token_hex(4)}"
        self.folder = folder / self.id
        self.folder.mkdir()

    @property
    def is_crun(self) -> bool:
        """Whether it is crun, which knows fewer verbs and flags."""
        return Path(self.bare.program[-1]).name == "crun"

    def same(self, script: Callable[[Life], Result]) -> Result:
        """Run `script` both ways; what it returned, and all that was seen, is the same.

        The container that it brings to life must have had its share through us, if it asks.
        """
        results, lives = [], []
        for runtime in (self.bare, self.launched):
            life = Life(runtime, self.folder, self.id, self.kind)
            with removed_afterwards(runtime, self.id):
                results.append(script(life))
                asked = runtime is self.launched and self.kind.asks
                assert life.edited == asked
            lives.append(life)
        for launched, bare in zip_longest(lives[1].seen, lives[0].seen):
            assert launched == bare, f"through us {launched}\nbare {bare}"
        assert results[1] == results[0], f"through us {results[1]}\nbare {results[0]}"
        return results[0]


def script_with(words: str) -> tuple[str, ...]:
    """Return a program that does `words` of the shell and executes the rest of its arguments."""
    return ("sh", "-c", f'{words}; exec "$@"', "sh")


#: For a case about `create`, after which the launcher may have bound the container.
CREATED = pytest.mark.parametrize("course", CREATED_COURSES, indirect=True, ids=str)
