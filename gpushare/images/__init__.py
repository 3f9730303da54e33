# SPDX-License-Identifier: Apache-2.0
"""Open an image, a container, a bundle or a root directory to look into it, never to run it.

A name that begins with / or . is a path: a directory with a config.json is a bundle, any other a
root. Any other name is a running container or an image of docker or podman, in this order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from gpushare.images import engine_images, target
from gpushare.images.target import ImageTarget, NotFound

__all__ = ["ImageTarget", "NotFound", "open_image"]


@contextmanager
def open_image(name: str, pid: int = 0) -> Iterator[ImageTarget]:
    """Open what `name` is; NotFound. `pid` is its first process, where that is known already."""
    if not name:
        raise NotFound("no name. Name an image, a container or a path.")
    opened: AbstractContextManager[ImageTarget]
    if pid:
        opened = target.open_container(name, pid)
    elif name.startswith(("/", ".")):
        if Path(name).is_file():
            raise NotFound(f"{name}: a file. Load the image into docker or podman, and name it.")
        opened = target.open_directory(Path(name))
    else:
        opened = _by_engine(name)
    with opened as found:
        yield found


def _by_engine(name: str) -> AbstractContextManager[ImageTarget]:
    engines = engine_images.installed_engines()
    if not engines:
        raise NotFound(
            f"{name}: neither docker nor podman is installed. Name a path, for example ./rootfs."
        )
    reasons = []
    for one in engines:
        try:
            inspected = one.container(name) or one.image(name)
        except NotFound as error:
            reasons.append(str(error))
            continue
        if inspected is None:
            reasons.append(f"{one.name} has no image or container of that name")
        elif inspected.pid:
            return target.open_container(name, inspected.pid, inspected.variables, inspected.args)
        else:
            return one.opened(inspected)
    raise NotFound(
        f"{name}: {'; '.join(reasons)}. Pull the image, or name a path, for example ./rootfs."
    )
