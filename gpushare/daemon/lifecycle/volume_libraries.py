# SPDX-License-Identifier: Apache-2.0
"""The names of the driver's libraries in folders of volumes, which another process lists.

A volume may lie on a server that does not answer. The process that waits for it is abandoned after
a second, and the container starts without what it would have said.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.oci.loader import is_driver_name
from gpushare.oci.rootfs import Rootfs

_SECONDS: Final = 1.0
_MOST_HANGING: Final = 3
_MOST_NAMES: Final = 64
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]);"
    "from gpushare.daemon.lifecycle import volume_libraries; volume_libraries.main(sys.argv[2])"
)

_hanging: list[subprocess.Popen[bytes]] = []


def find_libraries(folders: Sequence[tuple[str, str]]) -> list[tuple[int, str]] | None:
    """Return the libraries in `folders`: the number of each one's folder, and its path in there.

    A folder is a volume's source on the host, and a path in the volume; a library's path is in the
    volume, too, and without links. None: a volume does not answer. OSError: no process.
    """
    _hanging[:] = [child for child in _hanging if child.poll() is None]
    if len(_hanging) >= _MOST_HANGING:
        return None
    ours = str(Path(__file__).parents[3])
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, ours, json.dumps(folders)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        said, _ = child.communicate(timeout=_SECONDS)
        return [(int(number), str(path)) for number, path in json.loads(said)]
    except (subprocess.TimeoutExpired, ValueError):
        child.kill()
        if child.stdout is not None:
            child.stdout.close()
        _hanging.append(child)
        return None


def main(text: str) -> None:
    """Print the answer for folders as JSON, in the process that lists them."""
    folders = [(str(source), str(path)) for source, path in json.loads(text)]
    sys.stdout.write(json.dumps([*itertools.islice(_libraries_in(folders), _MOST_NAMES)]))


def _libraries_in(folders: Sequence[tuple[str, str]]) -> Iterator[tuple[int, str]]:
    for number, (source, folder) in enumerate(folders):
        with suppress(OSError):
            fd = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                volume = Rootfs(fd)
                for name in filter(is_driver_name, volume.names(folder)):
                    path = volume.resolve(f"{folder}/{name}")
                    if volume.is_file(path):
                        yield number, path
            finally:
                os.close(fd)
