# SPDX-License-Identifier: Apache-2.0
"""Whether docker takes `--gpus`: without NVIDIA's toolkit it refuses, before a runtime is asked."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Final

from gpushare.checks.check import Check

# As systemd gives it to dockerd, which looks once, when it starts (moby, daemon/nvidia_linux.go).
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOOK: Final = "nvidia-container-runtime-hook"
CDI_HOOK: Final = "nvidia-cdi-hook"

_ANSWER_SECONDS: Final = 10.0
_CONVERTS: Final = (28, 3)  # --gpus becomes a CDI device where only the CDI hook is there
_CDI: Final = (28, 2)  # on without being asked for
_CDI_FEATURE: Final = (25, 0)
_INSTEAD: Final = "-e GPUSHARE_MEMORY=4GiB, or -e GPUSHARE_COUNT=1 for a whole card"
_DEVICE: Final = "--device nvidia.com/gpu=0 (gpushare cdi generate writes the spec)"


def of_docker() -> Check:
    """Return whether `docker run --gpus` comes as far as a runtime, and what to write instead."""
    hook = shutil.which(HOOK, path=PATH)
    if hook is not None:
        return Check("ok", f"docker run --gpus: taken, with {hook}")
    version = _version()
    cdi_hook = shutil.which(CDI_HOOK, path=PATH)
    if cdi_hook is not None and version is not None and version >= _CONVERTS:
        return Check("ok", f"docker run --gpus: taken, as a CDI device, with {cdi_hook}")
    text = (
        f"docker run --gpus: dockerd itself refuses it (could not select device driver), "
        f"for there is no {HOOK}"
    )
    # Nothing is amiss: who does not write --gpus needs none of it.
    return Check("ok", text, f"write {_instead(version)}")


def _instead(version: tuple[int, int] | None) -> str:
    if version is None or version < _CDI_FEATURE:
        return _INSTEAD
    if version < _CDI:
        return f'{_INSTEAD}; or, with "features": {{"cdi": true}} in daemon.json, {_DEVICE}'
    return f"{_INSTEAD}; or {_DEVICE}"


def _version() -> tuple[int, int] | None:
    """Return the running dockerd's version, None where it does not answer."""
    argv = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        said = subprocess.run(
            argv, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"([0-9]+)\.([0-9]+)", said.stdout)
    return (int(match[1]), int(match[2])) if match and said.returncode == 0 else None
