# SPDX-License-Identifier: Apache-2.0
"""The engines: what tells that one is there, where it is told, and how it is asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpushare.engines import answer, clusters, crio, dockerd, imports, ordering, podman
from gpushare.engines.answer import Answer
from gpushare.engines.errors import EngineError
from gpushare.engines.place import Place, beneath


@dataclass(frozen=True)
class Engine:
    """One engine. `signs` is what only a machine with it has; `place` finds its files."""

    name: str
    program: str
    signs: tuple[Path, ...]
    place: Callable[[Path, Path | None], Place]
    ask: Callable[[Place], Answer]

    def present(self, root: Path = Path("/")) -> bool:
        """Return whether the engine is on this machine (or beneath `root`)."""
        if root == Path("/") and shutil.which(self.program):
            return True
        return any(beneath(root, sign).exists() for sign in self.signs)


def _containerd(root: Path, file: Path | None) -> Place:
    """The distribution of Kubernetes that is here, before a containerd of the machine's own."""
    if file is not None:
        return clusters.of_file(file, root) or imports.place(root, file)
    return clusters.find(root) or imports.place(root)


def _ordered(
    place: Callable[[Path, Path | None], Place], *services: str
) -> Callable[[Path, Path | None], Place]:
    """Return `place` with the drop-ins of the units that start its containers at boot."""

    def found(root: Path, file: Path | None) -> Place:
        here = place(root, file)
        if file is not None:  # a file that the user names is changed alone
            return here
        drop_ins = ordering.files(here.services or services, root)
        return replace(here, files=(*here.files, *drop_ins))

    return found


ENGINES: Final = {
    engine.name: engine
    for engine in (
        Engine(
            "docker",
            "dockerd",
            (Path("/etc/docker"), dockerd.SNAP, *dockerd.DESKTOP),
            _ordered(dockerd.place, "docker"),
            answer.of_docker,
        ),
        Engine(
            "containerd",
            "containerd",
            (imports.MAIN.parent, *(sign for sign, _ in clusters.CLUSTERS.values())),
            _ordered(_containerd, "containerd"),
            answer.of_containerd,
        ),
        Engine("crio", "crio", (crio.MAIN.parent,), _ordered(crio.place, "crio"), answer.of_crio),
        Engine(
            "podman",
            "podman",
            (Path("/usr/bin/podman"),),
            _ordered(podman.place, "podman-restart", "podman"),
            answer.of_podman,
        ),
    )
}


def find(name: str) -> Engine:
    """Return the engine of that name; EngineError lists those there are."""
    if name not in ENGINES:
        raise EngineError(f'"{name}" is no engine known here; there are {", ".join(ENGINES)}')
    return ENGINES[name]
