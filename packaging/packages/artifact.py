# SPDX-License-Identifier: Apache-2.0
"""A finished package, its checksum, and its bill of materials (SBOM) as CycloneDX JSON."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseAcknowledgement, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

CHECKSUMS: Final = "SHA256SUMS"
SBOM: Final = ".cdx.json"


@dataclass(frozen=True)
class BundledPart:
    """Software of others in a package: `kind` and `namespace` are those of its package URL."""

    name: str
    version: str
    licence: str  # an SPDX expression
    kind: str = "pypi"
    namespace: str | None = None
    sha256: str = ""  # of the archive that it comes from

    def component(self) -> Component:
        """Return its entry in a bill of materials."""
        url = PackageURL(self.kind, self.namespace, self.name, self.version or None)
        return Component(
            name=self.name,
            version=self.version or None,
            type=ComponentType.LIBRARY,
            purl=url,
            bom_ref=url.to_string(),
            licenses=[_licence(self.licence)],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=self.sha256)]
            if self.sha256
            else [],
        )


@dataclass(frozen=True)
class Artifact:
    """A file that users install, and the software of others that it contains."""

    path: Path
    parts: Sequence[BundledPart]

    def write_sbom(self, version: str, epoch: int) -> Path:
        """Write the bill of materials next to the package, and return its path."""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        root = Component(
            name=self.path.name,
            version=version,
            type=ComponentType.APPLICATION,
            bom_ref=self.path.name,
            licenses=[_licence("Apache-2.0")],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        )
        components = [part.component() for part in self.parts]
        bom = Bom(components=components, serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest))
        bom.metadata.component = root
        bom.metadata.timestamp = datetime.fromtimestamp(epoch, timezone.utc)
        bom.register_dependency(root, components)
        place = self.path.with_name(self.path.name + SBOM)
        place.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n", encoding="utf-8")
        return place


def _licence(expression: str) -> LicenseExpression:
    return LicenseExpression(expression, acknowledgement=LicenseAcknowledgement.DECLARED)


def write_checksums(folder: Path) -> Path:
    """Write SHA256SUMS for every file in `folder`, as sha256sum(1) reads it."""
    place = folder / CHECKSUMS
    place.write_text("".join(_lines(folder.iterdir())), encoding="utf-8")
    return place


def _lines(paths: Iterable[Path]) -> list[str]:
    return [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(paths)
        if path.is_file() and path.name != CHECKSUMS
    ]
