# SPDX-License-Identifier: Apache-2.0
"""An image in a file: what `docker save` and `podman save` write, or an OCI archive."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from gpushare.images.found import Found, NotFound, variables_of
from gpushare.images.skeleton import Skeleton

_MOST_JSON: Final = 4 << 20


@contextmanager
def opened(path: Path) -> Iterator[Found]:
    """Open the image in the file `path`; NotFound. Of its files the names are kept."""
    with Skeleton.made() as skeleton:
        try:
            config = _read(path, skeleton)
            variables = variables_of(config.get("Env"))
            words = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
        except (tarfile.TarError, EOFError, LookupError, ValueError, TypeError) as error:
            said = "no tar" if isinstance(error, tarfile.ReadError) else str(error)
            why = f"is no image that docker, podman or OCI tools save ({said})"
            raise NotFound(f"{path} {why}; docker save writes one") from error
        yield Found(
            "archive", str(path), variables, tuple(map(str, words)), skeleton.fd, skeleton.note
        )


def _read(path: Path, skeleton: Skeleton) -> dict[str, Any]:
    """Put the layers' names into `skeleton`, and return the image's own configuration."""
    with tarfile.open(path) as tar:
        config, layers = _parts(tar)
        for layer in layers:
            with tarfile.open(fileobj=_stream(tar, layer), mode="r|*") as below:
                skeleton.add(below)
    return config


def _parts(tar: tarfile.TarFile) -> tuple[dict[str, Any], list[str]]:
    """Return the image's own configuration, and the names of its layers, the lowest first."""
    names = tar.getnames()
    if "manifest.json" in names:
        manifest = _json(tar, "manifest.json")[0]
        config = _json(tar, manifest["Config"])
        return config.get("config") or {}, list(manifest["Layers"])
    if "index.json" in names:
        manifest = _json(tar, "index.json")
        while "manifests" in manifest:  # an index may be of indices, one an architecture
            manifest = _json(tar, _blob(manifest["manifests"][0]))
        config = _json(tar, _blob(manifest["config"]))
        return config.get("config") or {}, [_blob(layer) for layer in manifest["layers"]]
    raise ValueError("neither manifest.json nor index.json is in it")


def _blob(described: dict[str, Any]) -> str:
    kind, _, digest = str(described["digest"]).partition(":")
    return f"blobs/{kind}/{digest}"


def _json(tar: tarfile.TarFile, name: str) -> Any:
    return json.loads(_stream(tar, name).read(_MOST_JSON))


def _stream(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = tar.extractfile(name)
    if stream is None:
        raise ValueError(f"{name} is no file")
    return stream
