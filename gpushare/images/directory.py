# SPDX-License-Identifier: Apache-2.0
"""A bundle, or a root directory alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.images.found import Found, NotFound
from gpushare.oci import spec
from gpushare.oci.spec import SpecError


@contextmanager
def opened(path: Path) -> Iterator[Found]:
    """Open a bundle or a root; NotFound."""
    with root(path) as fd:
        if not (path / spec.CONFIG).is_file():
            note = "no config.json is beside it: what its image says by variables is not known"
            yield Found("root directory", str(path), root_fd=fd, note=note)
            return
        try:
            loaded = spec.load(fd)
            below = path / loaded.root
        except SpecError as error:
            raise NotFound(f"{path}: {error}") from error
        said = loaded.at("process", "args")
        args = tuple(arg for arg in said if isinstance(arg, str)) if isinstance(said, list) else ()
        with root(below) as root_fd:
            yield Found("bundle", str(path), loaded.variables, args, root_fd)


@contextmanager
def root(path: Path | str) -> Iterator[int]:
    """Open a directory, whose path is the caller's own word; NotFound."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        hint = "; use sudo" if isinstance(error, PermissionError) else ""
        raise NotFound(f"{path}: {error.strerror}{hint}") from error
    try:
        yield fd
    finally:
        os.close(fd)
