# SPDX-License-Identifier: Apache-2.0
"""Files of the host that an attack is after, and the kernel's word on what was done to them."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_EVENT: Final = struct.Struct("iIII")  # struct inotify_event, inotify(7)
_NAMES: Final = {
    0x01: "read",
    0x02: "written",
    0x04: "attributes changed",
    0x08: "closed after writing",
    0x20: "opened",
    0x40: "moved away",
    0x80: "moved here",
    0x100: "made",
    0x200: "deleted",
}
#: Everything but the closing of what was opened to be read, which the opening tells of.
_MASK: Final = sum(_NAMES)
#: What programs might take these files for: the loader's, the driver's, our own.
_FILES: Final = (
    "ld.so.cache",
    "ld.so.preload",
    "ld.so.conf",
    "secret",
    "status",
    "grant",
    "socket",
    "libcuda.so.1",
    "libcuda.so",
    "libnvidia-ml.so.1",
    "libc.so.6",
    "evil.so",
    "hook",
)


class Witness:
    """A folder of the host, with `lib` and `etc` in it; no test has any business there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._inotify >= 0
        self._watched: dict[int, Path] = {}
        for place in (folder, folder / "lib", folder / "etc"):
            place.mkdir()
            for name in _FILES:
                (place / name).write_text(f"the host's {name}\n")
                (place / name).chmod(0o755)
        self._before = self._contents()
        for place in (folder, folder / "lib", folder / "etc"):
            number = _libc.inotify_add_watch(self._inotify, os.fsencode(place), _MASK)
            assert number >= 0
            self._watched[number] = place

    def close(self) -> None:
        os.close(self._inotify)

    def events(self) -> list[str]:
        """Return what was done to the files since the last time."""
        found: list[str] = []
        while True:
            try:
                data = os.read(self._inotify, 65536)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                name = os.fsdecode(data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
                done = [word for bit, word in _NAMES.items() if mask & bit]
                found.append(f"{self._watched[number] / name}: {', '.join(done)}")
                at += _EVENT.size + length

    def assert_untouched(self, *, but_made: bool = False) -> None:
        """Fail where a file was opened (so: read, run or mapped), changed, made or removed.

        `but_made` excuses new ones that are empty, and that whoever would have made one (by open
        with O_CREAT, where a mount is to go) found that it was there.
        """
        events = self.events()
        if but_made:
            events = [event for event in events if not event.endswith((": made", ": opened"))]
        assert not events, "; ".join(events)
        found = self._contents()
        new = {path: text for path, (_, text) in found.items() if path not in self._before}
        assert not any(new.values()), new
        assert {path: found[path] for path in found if path not in new} == self._before
        self.events()  # of looking ourselves

    def _contents(self) -> dict[str, tuple[int, str]]:
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        return {str(path): (path.stat().st_mode, path.read_text()) for path in files}
