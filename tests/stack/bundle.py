# SPDX-License-Identifier: Apache-2.0
"""An OCI bundle without an engine: the probe's image unpacked beside a config.json of runc's."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpushare.protocol.rows import TenantStatus
from gpushare.verify import image
from gpushare.verify.runners import ProbeTenant

from .program import find
from .stack import Stack

PROBE = (image.PROGRAM,)


def busybox() -> dict[str, bytes]:
    """Return the file with which a container has a shell."""
    return {"/bin/busybox": Path(find("busybox")).read_bytes()}


def _unpacked(stack: Stack, files: Mapping[str, bytes]) -> Path:
    """Return the image with `files`, unpacked once a stack: its archive is made in Python."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name} {len(files[name])} ".encode() + files[name])
    folder = stack.root / "images" / digest.hexdigest()[:16]
    if not folder.exists():
        image.unpack(folder, stack.installation.probe, dict(files))
    return folder


def _written_spec(stack: Stack) -> str:
    """Return what `runc spec` writes, once a stack."""
    file = stack.root / "images" / "config.json"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        argv = stack.argv("runc", "spec", "--bundle", str(file.parent))
        subprocess.run(argv, cwd=file.parent, check=True)
    return file.read_text()


class Bundle:
    """One container's bundle; `config` is its config.json, written back by `save`."""

    def __init__(
        self,
        stack: Stack,
        *,
        quota: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        args: Sequence[str] = PROBE,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self.stack = stack
        self.id = f"test-{secrets.token_hex(4)}"
        self.path = stack.root / "bundles" / self.id
        self.path.mkdir(parents=True)
        self.rootfs = self.path / "rootfs"
        shutil.copytree(_unpacked(stack, files or {}), self.rootfs, symlinks=True)
        self.config: dict[str, Any] = json.loads(_written_spec(stack))
        self.config["process"]["terminal"] = False
        self.config["process"]["args"] = list(args)
        self.config["process"]["env"] = ["PATH=/usr/bin:/bin"]
        self.config["process"].pop("rlimits", None)  # raising one needs CAP_SYS_RESOURCE
        self.config["root"]["readonly"] = False
        self.config["linux"]["cgroupsPath"] = f"/{stack.cgroup}/{self.id}"
        for key, value in (quota or {}).items():
            self.config["process"]["env"].append(
                f"GPUSHARE_{key.upper().replace('-', '_')}={value}"
            )
        if annotations:
            self.config["annotations"] = dict(annotations)
        self.save()

    def save(self, text: str | None = None) -> None:
        """Write `config` (or `text` as it is) to config.json."""
        if text is None:
            text = json.dumps(self.config, indent=2)
        (self.path / "config.json").write_text(text)

    def read(self) -> dict[str, Any]:
        """Return config.json as it is now on disk."""
        found: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        return found

    def argv(self, *words: str, runtime: str | None = None) -> list[str]:
        """Return a command line of the launcher (or of `runtime`) with this stack's state."""
        program = runtime or str(self.stack.installation.launcher)
        return self.stack.argv(program, "--root", f"{self.stack.root}/runc", *words)

    def run(self) -> ProbeTenant:
        """Run the container in the foreground, as `runc run` does."""
        words = self.argv("run", "--bundle", str(self.path), self.id)
        return ProbeTenant(self.id, words, self.stack.environment)

    @contextmanager
    def started(self) -> Iterator[ProbeTenant]:
        """Run it until its probe has found the driver; it is gone after the block."""
        try:
            with self.run() as tenant:
                assert tenant.start()["code"] == 0, tenant.errors
                yield tenant
        finally:
            self.remove()

    def refusal(self) -> str:
        """Run it, which must be refused; return what is said of it."""
        with self.run() as tenant:
            assert tenant.wait() != 0
        return tenant.errors

    def create(self) -> int:
        """Create it without output pipes: its init keeps those it is given."""
        return subprocess.run(
            self.argv("create", "--bundle", str(self.path), self.id),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.stack.environment,
        ).returncode

    def row(self) -> TenantStatus | None:
        """Return its row of `gpushare ps`."""
        return next((row for row in self.stack.client.tenants() if row["id"] == self.id), None)

    @property
    def tenant(self) -> TenantStatus:
        """The same; it must have one."""
        found = self.row()
        assert found is not None
        return found

    def detach(self) -> None:
        """Run the container in the background; its init has none of our pipes, and keeps none."""
        # To append: what the container writes must not go where we read.
        (self.path / "output").unlink(missing_ok=True)
        with (self.path / "output").open("a+") as output:
            done = subprocess.run(
                self.argv("run", "--detach", "--bundle", str(self.path), self.id),
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.stack.environment,
            )
            output.seek(0)
            assert done.returncode == 0, output.read()

    def call(self, *words: str, runtime: str | None = None) -> subprocess.CompletedProcess[str]:
        """Call a verb on this container: `bundle.call("state")`."""
        return subprocess.run(
            self.argv(*words, self.id, runtime=runtime),
            check=False,
            input="",  # a pipe: crun gives what it finds there to a mapped root, also /dev/null
            capture_output=True,
            text=True,
            env=self.stack.environment,
            cwd=self.path,
        )

    def remove(self) -> None:
        self.call("delete", "--force")
