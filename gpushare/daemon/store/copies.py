# SPDX-License-Identifier: Apache-2.0
"""Each tenant's entry once more, as a small file: what the ledger is made from when it is damaged.

`<run_dir>/copies/<key>` holds a checksum and the entry as it was last acknowledged. Around each
transaction of the ledger its new form lies beside it as a draft, `.<key>`:

    change    write the draft, commit, rename the draft over the copy
    release   rename the copy to the draft, commit, remove the draft

So a daemon that is killed at any instruction leaves copies that alone say what was promised, and
where no draft is left the copy and the ledger say the same, or the ledger has lost something
(store/agree.py). What takes room comes before the commit, and what undoes it takes none: a full
disk refuses a change and leaves both as they were. Nothing is synced, as in the ledger: a machine
that goes down takes the tenants with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpushare.daemon.log import log
from gpushare.daemon.store.entry import Entry, Holding
from gpushare.daemon.store.tables import About

_ABOUT: Final = "about"
_KEY: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_DAMAGED: Final = ".damaged"
_MOST_BYTES: Final = 1 << 20
_MOST_DAMAGED: Final = 64  # that are kept for whoever looks into it
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_FIELDS: Final = frozenset(each.name for each in fields(Entry))


@dataclass(frozen=True)
class Copy:
    """A copy that can be believed, as it was written: maybe by a version with fewer fields."""

    said: Mapping[str, Any]

    def entry(self, beside: Entry | None) -> Entry:
        """Return the entry; what its version did not know is as `beside` has it, or nobody's."""
        known = {} if beside is None else vars(beside)
        return Entry(**{**known, **self.said})

    def says(self, entry: Entry) -> bool:
        """Whether it says all of `entry`."""
        return self.said.keys() == _FIELDS and self.entry(None) == entry


@dataclass(frozen=True)
class Found:
    """What there is by key: the copies, the drafts, and the keys of damaged copies.

    `about` is None where nobody has said that these are all.
    """

    about: About | None
    copies: Mapping[str, Copy]
    drafts: Mapping[str, Copy]
    damaged: frozenset[str]


class Listed(NamedTuple):
    """A list that is kept once more; None: there is none that can be believed."""

    kept: list[dict[str, Any]] | None
    draft: list[dict[str, Any]] | None


class Copies:
    """The copies in `folder`, of boot `boot_id`; the decide thread's."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._folder = folder
        self._boot_id = boot_id
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        # Every promise waits for these writes: no path is looked up for them.
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the folder; every copy stays. Twice is as once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> Found:
        """Return what is there of this boot; what is of another is removed."""
        copies: dict[str, Copy] = {}
        drafts: dict[str, Copy] = {}
        damaged = set()
        for file in sorted(self._folder.iterdir()):
            key = file.name.removeprefix(".")
            if not _KEY.fullmatch(key):
                continue
            is_draft = file.name != key
            try:
                said = self._read(file)
                if said is not None:
                    (drafts if is_draft else copies)[key] = Copy(_checked(key, said))
                    continue
            except (OSError, ValueError, TypeError, LookupError, RecursionError):
                # A draft that is half written was never committed.
                if not is_draft:
                    damaged.add(key)
                    continue
            file.unlink(missing_ok=True)
        return Found(self._about(), copies, drafts, frozenset(damaged))

    def write_about(self, generation: int) -> None:
        """Note that these are all the copies there are, and the daemon's number; OSError."""
        self._write(f".{_ABOUT}", {"boot": self._boot_id, "generation": generation})
        self._rename(f".{_ABOUT}", _ABOUT)

    def settle(self, entries: Mapping[str, Entry], found: Found) -> None:
        """Have the copies say what `entries` do, and set aside what is damaged; OSError.

        A damaged one of whom there is no entry stays until somebody gives it up: without it nobody
        would know that there was one.
        """
        self.give_up(found.damaged & entries.keys())
        for key in found.drafts.keys() | found.copies.keys():
            if key not in entries:
                for name in (key, f".{key}"):
                    (self._folder / name).unlink(missing_ok=True)
        for key, entry in entries.items():
            said = found.copies.get(key)
            if said is None or not said.says(entry):
                self._write(f".{key}", self._of(entry))
                self._rename(f".{key}", key)
            else:
                self._unlink(f".{key}")

    def give_up(self, keys: Iterable[str]) -> None:
        """Set aside the damaged copies of `keys`, of which the newest are kept; OSError."""
        for key in sorted(keys):
            with contextlib.suppress(FileNotFoundError):
                self._rename(key, f"{key}{_DAMAGED}")
        damaged = sorted(self._folder.glob(f"*{_DAMAGED}"), key=lambda file: file.stat().st_ctime)
        for file in damaged[:-_MOST_DAMAGED]:
            file.unlink(missing_ok=True)

    @contextmanager
    def changing(self, entries: Sequence[Entry]) -> Iterator[None]:
        """Keep `entries` as the block commits them; OSError: nothing was kept."""
        try:
            with self._named():
                for entry in entries:
                    self._write(f".{entry.key}", self._of(entry))
            yield
        except BaseException:
            for entry in entries:
                self._unlink(f".{entry.key}")
            raise
        for entry in entries:
            with self._told(entry.key):
                self._rename(f".{entry.key}", entry.key)

    def read_listed(self, name: str) -> Listed:
        """Return the last list that was kept as `name`, and its draft where one is left."""
        return Listed(self._list(self._folder / name), self._list(self._folder / f".{name}"))

    @contextmanager
    def listing(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Keep `rows` as `name`, in place of those before, as the block commits them."""
        draft = f".{name}"
        try:
            with self._named():
                self._write(draft, {"boot": self._boot_id, "rows": list(rows)})
            yield
        except BaseException:
            self._unlink(draft)
            raise
        with self._told(name):
            self._rename(draft, name)

    @contextmanager
    def removing(self, key: str) -> Iterator[None]:
        """Remove the copy of `key` as the block commits that."""
        draft = f".{key}"
        with contextlib.suppress(FileNotFoundError):
            self._rename(key, draft)
        try:
            yield
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                self._rename(draft, key)
            raise
        with self._told(key):
            self._unlink(draft)

    def _write(self, name: str, said: Mapping[str, Any]) -> None:
        """Write `said` with its checksum; OSError, also where only a part could be written."""
        body = _encode(said).encode()
        content = b"%08x %s\n" % (zlib.crc32(body), body)
        fd = os.open(name, _FLAGS, 0o600, dir_fd=self._fd)
        try:
            while content:
                content = content[os.write(fd, content) :]
        finally:
            os.close(fd)

    def _rename(self, before: str, after: str) -> None:
        os.rename(before, after, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say of an error of the disk what could not be done, and where."""
        try:
            yield
        except OSError as error:
            why = f"{error.strerror}: nothing new can be noted there; who runs keeps what it has"
            raise OSError(error.errno, why, str(self._folder)) from error

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """Say what could not be done after the commit; the draft, which stays, has the same."""
        try:
            yield
        except OSError as error:
            log("copy-failed", "error", tenant=key, error=str(error))

    def _list(self, file: Path) -> list[dict[str, Any]] | None:
        try:
            said = _load(file)
            return list(said["rows"]) if said["boot"] == self._boot_id else None
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None

    def _about(self) -> About | None:
        try:
            said = _load(self._folder / _ABOUT)
            found = About(str(said["boot"]), int(said["generation"]))
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None
        return found if found.boot_id == self._boot_id else None

    def _read(self, file: Path) -> dict[str, Any] | None:
        """Return the fields of the entry in `file`, None where it is of another boot."""
        said = _load(file)
        if said.get("boot") != self._boot_id:
            return None
        found = said["entry"]
        if not isinstance(found, dict):
            raise TypeError("no entry")
        return found

    def _of(self, entry: Entry) -> dict[str, Any]:
        return {"boot": self._boot_id, "entry": _fields(entry)}


def _fields(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON has it."""
    return {
        **vars(entry),
        "quota": dict(entry.quota),
        "asked": dict(entry.asked),
        "notes": list(entry.notes),
        "uninterposed": list(entry.uninterposed),
        "holdings": [dict(vars(holding)) for holding in entry.holdings],
    }


def _checked(key: str, said: dict[str, Any]) -> dict[str, Any]:
    """Return what a copy says as an Entry has it; ValueError, TypeError where it is no entry."""
    if said.get("key") != key or not said.keys() <= _FIELDS:
        raise ValueError("not this tenant's, or of a later version")
    checked = dict(said)
    checked["holdings"] = tuple(Holding(**holding) for holding in said["holdings"])
    for name in ("notes", "uninterposed"):
        checked[name] = tuple(said.get(name, ()))
    return checked


def _load(file: Path) -> dict[str, Any]:
    """Return what `Copies` wrote; ValueError where a byte of it is another."""
    with file.open("rb") as opened:
        content = opened.read(_MOST_BYTES)
    checksum, _, body = content.removesuffix(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        raise ValueError("the checksum is another")
    said = json.loads(body)
    if not isinstance(said, dict):
        raise TypeError("no object")
    return said
