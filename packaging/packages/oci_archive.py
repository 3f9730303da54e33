# SPDX-License-Identifier: Apache-2.0
"""An image in a file, as the OCI Image Format describes it: the same folders, the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True)
class ImageConfig:
    """The metadata of an image.

    Attributes:
        name: the name with which engines load it.
        architecture: the architecture, as Go names it.
        entrypoint: the program that its containers run.
        variables: the environment of its containers.
        labels: annotations of the image.
    """

    name: str
    architecture: str
    entrypoint: Sequence[str]
    variables: Mapping[str, str]
    labels: Mapping[str, str]

    def document(self, diff_ids: Sequence[str], epoch: int) -> dict[str, Any]:
        """Return the image's configuration, with the digests of its layers."""
        created = datetime.fromtimestamp(epoch, timezone.utc).isoformat()
        return {
            "architecture": self.architecture,
            "config": {
                "Entrypoint": list(self.entrypoint),
                "Env": [f"{name}={value}" for name, value in self.variables.items()],
                "Labels": dict(self.labels),
                "WorkingDir": "/",
            },
            "created": created,
            "history": [{"created": created, "created_by": "gpushare"} for _ in diff_ids],
            "os": "linux",
            "rootfs": {"diff_ids": list(diff_ids), "type": "layers"},
        }


@dataclass
class _Blobs:
    """The parts of an archive, by their digests."""

    contents: dict[str, bytes] = field(default_factory=dict)

    def add(self, content: bytes, media_type: str) -> dict[str, Any]:
        """Add a part; return what refers to it."""
        digest = hashlib.sha256(content).hexdigest()
        self.contents[f"blobs/sha256/{digest}"] = content
        return {"digest": f"sha256:{digest}", "mediaType": media_type, "size": len(content)}

    def add_document(self, document: Mapping[str, Any], media_type: str) -> dict[str, Any]:
        """Add a JSON document."""
        return self.add(_json(document), media_type)


def write(place: Path, layers: Sequence[Path], config: ImageConfig, epoch: int) -> None:
    """Write an archive of the folders `layers`, the lowest first; all its times are `epoch`."""
    blobs = _Blobs()
    tars = [_tar(folder, epoch) for folder in layers]
    diff_ids = [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]
    described = [blobs.add(gzip.compress(tar, 6, mtime=0), _LAYER) for tar in tars]
    manifest = {
        "annotations": dict(config.labels),
        "config": blobs.add_document(config.document(diff_ids, epoch), _CONFIG),
        "layers": described,
        "mediaType": _MANIFEST,
        "schemaVersion": 2,
    }
    entry = blobs.add_document(manifest, _MANIFEST)
    entry["annotations"] = {
        "io.containerd.image.name": config.name,
        "org.opencontainers.image.ref.name": config.name,
    }
    entry["platform"] = {"architecture": config.architecture, "os": "linux"}
    index = {"manifests": [entry], "mediaType": _INDEX, "schemaVersion": 2}
    files = blobs.contents | {
        "index.json": _json(index),
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
    }
    with tarfile.open(place, "w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(files):
            info = _info(name, epoch)
            info.size = len(files[name])
            archive.addfile(info, io.BytesIO(files[name]))


def _tar(folder: Path, epoch: int) -> bytes:
    """Return a tar of `folder` in which root owns everything."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in _sorted(folder):
            info = _info(path.relative_to(folder).as_posix(), epoch)
            info.mode = path.lstat().st_mode & 0o7777
            if path.is_symlink():
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                tar.addfile(info)
            elif path.is_dir():
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = path.stat().st_size
                with path.open("rb") as content:
                    tar.addfile(info, content)
    return buffer.getvalue()


def _sorted(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix())


def _info(name: str, epoch: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime = epoch
    info.uname = info.gname = "root"
    return info


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
