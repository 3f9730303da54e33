# SPDX-License-Identifier: Apache-2.0
"""From what a user calls it to what it is.

What begins with / or . is a path: a directory with a config.json is a bundle, another one a root, a
file an archive of `docker save`, `podman save` or of OCI. Anything else is a container that runs or
an image of docker or podman, in this order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from gpushare.images import archive, directory, engine, process
from gpushare.images.found import Found, NotFound


@contextmanager
def find(name: str, pid: int = 0) -> Iterator[Found]:
    """Open what `name` is; NotFound. `pid` is its first process, where that is known already."""
    if not name:
        raise NotFound("which one? Name an image, a container or a path")
    opened: AbstractContextManager[Found]
    if pid:
        opened = process.opened(name, pid)
    elif name.startswith(("/", ".")):
        path = Path(name)
        opened = archive.opened(path) if path.is_file() else directory.opened(path)
    else:
        opened = _by_engine(name)
    with opened as found:
        yield found


def _by_engine(name: str) -> AbstractContextManager[Found]:
    engines = engine.there()
    if not engines:
        raise NotFound(f"{name}: neither docker nor podman is here; name a path, as ./rootfs")
    said = []
    for one in engines:
        try:
            inspected = one.container(name) or one.image(name)
        except NotFound as error:
            said.append(str(error))
            continue
        if inspected is None:
            said.append(f"{one.name} knows no image and no container of that name")
        elif inspected.pid:
            return process.opened(name, inspected.pid, inspected)
        else:
            return one.opened(inspected)
    raise NotFound(f"{name}: {'; '.join(said)}; pull it first, or name a path, as ./rootfs")
