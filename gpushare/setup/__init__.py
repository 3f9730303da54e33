# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup`: prepares a machine, and leaves a program that undoes exactly its changes.

`plan` has the steps, and `low_level_runtime` finds the runtime that the launcher runs.
InstallRecord, in this module, is what gpushare-undo removes, and nothing else. Each of its methods
records an object before it creates it, so that an interrupted setup can be undone too. Paths are
those of the machine; `root` is its root during setup (`/`, or the folder of an image).

The record is the end of gpushare-undo (`script/undo.sh`), a shell script that needs nothing of
gpushare: it works after the package is removed, and only its own removal loses the record.
"""

from __future__ import annotations

import hashlib
import secrets
import subprocess
import tempfile
from dataclasses import astuple, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from gpushare.client import RequestRefused
from gpushare.engines.config_files import backup_path, under_root
from gpushare.errors import UserError
from gpushare.oci.bounded_read import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpushare.engines.config_files import FileChange, UndoneBy


UNDO: Final = Path("/usr/local/sbin/gpushare-undo")
STATE: Final = Path("/var/lib/gpushare")
_SCRIPT: Final = Path(__file__).parent / "script"
_LINE: Final = "#="  # begins a line of the record


class RecordError(UserError):
    """The record cannot be written or read."""


@dataclass(frozen=True)
class RecordedEdit:
    """How gpushare-undo restores a file of another owner: an engine's, or the user's own.

    If its content still has the SHA-256 `digest`, the backup is restored ("backup") or the file is
    removed ("new": setup created it). Otherwise it was edited, and only gpushare's part is removed.
    """

    owner: str  # an engine, or "gpushare"
    undone_by: UndoneBy
    origin: Literal["new", "backup"]
    digest: str


@dataclass(frozen=True)
class EngineCommands:
    """The commands that make an engine read its files again; "-" if there is no such command.

    `reload` does not disturb containers, so that gpushare-undo runs it. `restart` is advice.
    """

    reload: str
    restart: str


class InstallRecord:
    """The files, links, folders, trees and registrations that setup created under `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.files: dict[str, str] = {}  # path to the sha256 of the content
        self.links: dict[str, str] = {}
        self.folders: list[str] = []  # in the order of creation
        self.trees: list[str] = []
        self.edits: dict[str, RecordedEdit] = {}  # by the file's path
        self.engines: dict[str, EngineCommands] = {}
        self.node: tuple[str, str] | None = None  # gpushare-node, and its kubeconfig
        self.launcher = ""  # that engines run
        self.low_level = ""  # the low-level runtime that the user chose, a name or path

    @classmethod
    def read(cls, root: Path = Path("/")) -> InstallRecord:
        """Return the record under `root`, an empty one if gpushare is not set up."""
        record = cls(root)
        try:
            lines = under_root(root, UNDO).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return record
        for line in lines:
            mark, *fields = line.split("\t")
            if mark == _LINE:
                record._add(*fields)
        return record

    def _add(self, kind: str, *fields: str) -> None:
        match kind, *fields:
            case ["file", digest, path]:
                self.files[path] = digest
            case ["link", target, path]:
                self.links[path] = target
            case ["folder", path]:
                self.folders.append(path)
            case ["tree", path]:
                self.trees.append(path)
            case ["edit", engine, undone_by, origin, digest, path]:
                self.edits[path] = RecordedEdit(engine, undone_by, origin, digest)  # type: ignore[arg-type]
            case ["engine", name, reload, restart]:
                self.engines[name] = EngineCommands(reload, restart)
            case ["node", program, kubeconfig]:
                self.node = program, kubeconfig
            case ["launcher", path]:
                self.launcher = path
            case ["low_level", name]:
                self.low_level = name
            case _:
                raise RecordError(f"{UNDO} has an unknown line: {kind} {' '.join(fields)}")

    def _lines(self) -> Iterator[tuple[str, ...]]:
        yield from (("file", digest, path) for path, digest in self.files.items())
        yield from (("link", target, path) for path, target in self.links.items())
        yield from (("folder", path) for path in self.folders)
        yield from (("tree", path) for path in self.trees)
        yield from (("edit", *astuple(edit), path) for path, edit in self.edits.items())
        yield from (("engine", name, *astuple(how)) for name, how in self.engines.items())
        if self.node:
            yield ("node", *self.node)
        if self.launcher:
            yield "launcher", self.launcher
        if self.low_level:
            yield "low_level", self.low_level

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Write a new file, or one that setup wrote before."""
        self.folder(path.parent)
        self.files[str(path)] = _digest(text.encode())
        self.save()
        replace_file(under_root(self.root, path), text.encode(), mode)

    def link(self, path: Path, target: Path) -> None:
        """Create a symbolic link, or replace one that setup created before."""
        self.folder(path.parent)
        self.links[str(path)] = str(target)
        self.save()
        place = under_root(self.root, path)
        draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        draft.symlink_to(target)
        draft.replace(place)

    def folder(self, path: Path) -> None:
        """Create a folder and its parents; the record is saved with the next object in it."""
        missing: list[Path] = []
        while not under_root(self.root, path).is_dir():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            self.folders.append(str(folder))
            if folder == STATE:
                self.trees.append(str(folder))  # with the files that the daemon writes there
            under_root(self.root, folder).mkdir(mode=0o755)

    def tree(self, path: Path) -> None:
        """Record a folder that is removed with everything in it."""
        self.folder(path.parent)
        if str(path) not in self.trees:
            self.trees.append(str(path))
        self.save()

    def register(
        self,
        engine: str,
        commands: EngineCommands,
        launcher: Path,
        changes: list[tuple[UndoneBy, FileChange]],
    ) -> None:
        """Record an engine's registration, whose `changes` are made afterwards."""
        self.engines[engine] = commands
        self.launcher = str(launcher)
        self.edit(engine, changes)

    def edit(self, owner: str, changes: list[tuple[UndoneBy, FileChange]]) -> None:
        """Record changes of files that setup does not own, which `FileChange.apply` then makes."""
        for undone_by, change in changes:
            path = str(Path("/") / change.path.relative_to(self.root))
            origin: Literal["new", "backup"] = "new" if change.backup is None else "backup"
            digest = _digest((change.after or "").encode())
            if not change.needed and not _is_undone_by_backup(change):
                # Registered earlier and edited since: only gpushare's part may be removed.
                known = self.edits.get(path)
                origin, digest = (known.origin, known.digest) if known else (origin, "-")
            self.edits[path] = RecordedEdit(owner, undone_by, origin, digest)
            self.folder(Path(path).parent)
        self.save()

    def owns(self, path: Path) -> bool:
        """Whether the file at `path` exists and is unchanged since setup wrote it."""
        place = under_root(self.root, path)
        wrote = self.files.get(str(path))
        return wrote is not None and place.is_file() and _digest(place.read_bytes()) == wrote

    def save(self) -> None:
        """Write gpushare-undo with this record."""
        self.folder(STATE)
        self.folder(UNDO.parent)
        replace_file(under_root(self.root, UNDO), self.undo_program().encode(), 0o755)

    def undo_program(self) -> str:
        """Return gpushare-undo with this record; RecordError if it cannot have one of its lines."""
        lines = ["\t".join((_LINE, *fields)) for fields in self._lines()]
        if any(len(line.splitlines()) != 1 or "/../" in f"{line}/" for line in lines):
            raise RecordError("a path with a line break or with .. cannot be recorded. Rename it")
        return f"{_program()}\n# What `gpushare setup` created:\n" + "\n".join(lines) + "\n"


@cache
def _program() -> str:
    text = (_SCRIPT / "undo.sh").read_text(encoding="utf-8")
    for part in ("json.awk", "toml.awk"):
        text = text.replace(f"@{part}@", (_SCRIPT / part).read_text(encoding="utf-8"))
    return text


def _is_undone_by_backup(change: FileChange) -> bool:
    """Whether the backup, or no file, is what removing the runtime from the file leaves."""
    if change.backup is None:
        return True
    backup = backup_path(change.path)
    return backup.is_file() and backup.read_bytes() == change.backup.encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- A step of `gpushare setup`, and the error that stops it ---


class SetupError(UserError):
    """Setup cannot continue; the message has the reason."""


@dataclass(frozen=True)
class SetupStep:
    """One step: its description, and `do`, which is None if the step is already done."""

    text: str
    do: Callable[[], object] | None = None
    detail: str = ""  # a diff
    yours: bool = False  # a step that the user has to perform


# --- runs gpushare-undo, the program that setup has left, for `gpushare setup --undo` ---
#
# There is no other implementation: whatever works here also works without gpushare.

_IN_USE: Final = 3  # its exit status
_WORDS: Final = ("do", "would", "ok", "next", "keep")


class UndoError(UserError):
    """gpushare-undo has failed; the message has the step and the reason."""


@dataclass
class UndoStep:
    """One line of gpushare-undo: its first word, the rest, and the lines of a diff after it."""

    word: str
    text: str
    diff: list[str] = field(default_factory=list)


def undo(root: Path, *, dry_run: bool) -> Iterator[UndoStep]:
    """Run gpushare-undo under `root`, and yield each of its steps when it has been performed.

    Yields nothing if gpushare is not set up. RequestRefused if containers still use gpushare;
    UndoError if a step fails.
    """
    program = under_root(root, UNDO)
    if not program.exists():
        return
    words = ["--dry-run"] if dry_run else []
    with tempfile.TemporaryDirectory() as folder:
        if root != Path("/"):
            # The image may be anybody's: its record is data, and its program is not executed.
            program = Path(folder) / UNDO.name
            program.write_text(InstallRecord.read(root).undo_program(), encoding="utf-8")
            words += ["--root", str(root)]
        argv = ["sh", str(program), *words]
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            yield from _steps(iter(process.stdout))
            message = process.stderr.read().strip()
    if process.returncode:
        lines = [line.removeprefix("gpushare: ") for line in message.splitlines()]
        error = RequestRefused if process.returncode == _IN_USE else UndoError
        raise error("; ".join(lines) or f"{program} ended with status {process.returncode}")


def _steps(lines: Iterator[str]) -> Iterator[UndoStep]:
    step: UndoStep | None = None
    for line in lines:
        word, _, text = line.rstrip("\n").partition(" ")
        if word in _WORDS:
            if step is not None:
                yield step
            step = UndoStep(word, text.lstrip())
        elif step is not None:
            step.diff.append(line.rstrip("\n"))
    if step is not None:
        yield step
