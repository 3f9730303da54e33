# SPDX-License-Identifier: Apache-2.0
"""A file system in user space with one file, which stops answering when its reader is done.

Source: include/uapi/linux/fuse.h, protocol 7.31; fuse(4).
"""

from __future__ import annotations

import errno
import os
import select
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_IN: Final = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_OUT: Final = struct.Struct("<IiQ")  # length, error, unique
_ATTR: Final = struct.Struct("<QQQQQQIIIIIIIIII")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ = 1, 2, 3, 14, 15
_RELEASE, _FLUSH, _INIT, _OPENDIR, _RELEASEDIR, _BATCH_FORGET = 18, 25, 26, 27, 29, 42
_ROOT, _FILE = 1, 2
_DIRECT_IO: Final = 1


class StallingFolder:
    """A folder with the file `name`; after its first close no request is answered any more."""

    def __init__(self, folder: Path, name: str, text: bytes, inside: Sequence[str]) -> None:
        self._folder, self._name, self._text = folder, name.encode(), text
        self._inside = list(inside)
        self.stalled = threading.Event()  # a request came that has no answer
        self._silent = False
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        self._over = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        command = [*self._inside, "mount", "-i", "-t", "fuse", "-o", options, "none", str(folder)]
        subprocess.run(command, check=True, pass_fds=(self._fd,))

    def stall(self) -> None:
        """Answer no request any more."""
        self._silent = True

    def abort(self) -> None:
        """End it: what waits for an answer gets an error when the last descriptor is closed."""
        os.eventfd_write(self._over, 1)
        self._thread.join(30)

    def close(self) -> None:
        self.abort()
        command = [*self._inside, "umount", "--lazy", str(self._folder)]
        subprocess.run(command, check=False, capture_output=True)
        os.close(self._over)

    def _serve(self) -> None:
        while self._over not in select.select([self._fd, self._over], [], [])[0]:
            try:
                packet = os.read(self._fd, 1 << 20)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    break  # unmounted
                time.sleep(0.01)  # EPERM: not mounted yet
                continue
            _, opcode, unique, node, *_ = _IN.unpack_from(packet)
            if opcode in (_FORGET, _BATCH_FORGET):
                continue
            if self._silent:
                self.stalled.set()
                continue
            number, body = self._answer(opcode, node, packet[_IN.size :])
            self._silent = opcode == _RELEASE
            out = _OUT.pack(_OUT.size + len(body), -number, unique) + body
            try:
                os.write(self._fd, out)
            except OSError:
                continue  # the request was interrupted
        os.close(self._fd)

    def _answer(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        if opcode == _INIT:
            return 0, struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 1, 1, 1 << 16, 1, 1, 0, 0)
        if opcode == _LOOKUP:
            if body.rstrip(b"\0") != self._name:
                return errno.ENOENT, b""
            return 0, struct.pack("<QQQQII", _FILE, 0, 0, 0, 0, 0) + self._attributes(_FILE)
        if opcode == _GETATTR:
            return 0, struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if opcode in (_OPEN, _OPENDIR):
            return 0, struct.pack("<QII", 0, _DIRECT_IO, 0)
        if opcode == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return 0, self._text[offset : offset + size]
        return (0 if opcode in (_RELEASE, _RELEASEDIR, _FLUSH) else errno.ENOSYS), b""

    def _attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o644
        size = 0 if node == _ROOT else len(self._text)
        return _ATTR.pack(node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
