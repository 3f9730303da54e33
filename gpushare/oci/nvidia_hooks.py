# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's hooks in a spec: how they are recognised, and which cards they pass.

Three programs pass a card, by hooks that engines write:

- `nvidia-container-runtime-hook prestart` reads the container's NVIDIA_VISIBLE_DEVICES. Docker's
  `--gpus` puts it there with such a variable (moby, daemon/nvidia_linux.go); a file in hooks.d puts
  it into every container of podman and CRI-O, and then it says nothing of this one.
- `containerd oci-hook -- nvidia-container-cli ... --device=0` of `ctr` and `nerdctl run --gpus`
  (containerd, contrib/nvidia).
- `nvidia-cdi-hook` and `nvidia-ctk hook` come with the nodes of a CDI device and pass none
  themselves (nvidia-container-toolkit, internal/discover/hooks.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, Literal, TypeAlias

from gpushare.quota.errors import QuotaError
from gpushare.quota.request import EngineCards

SHARE: Final = "-e GPUSHARE_MEMORY=4GiB alone"  # how to ask for a share without an engine's device


def unknown(what: str) -> QuotaError:
    """Return the error for something of NVIDIA's that is not known: it is never left in."""
    rule = "is an NVIDIA component that gpushare does not recognize"
    return QuotaError(what, None, rule, "remove it, or use the runc runtime")


def instance(where: str, value: str | None = None) -> QuotaError:
    """Return the error for a MIG instance that is not known, by its name or capability's node."""
    rule = "is a MIG instance that the driver's CDI spec does not list"
    fix = "name it as gpushare ls does (MIG-4f1c... or 0:1), or generate the CDI spec again"
    return QuotaError(where, value, rule, fix)


HookKind: TypeAlias = Literal["runtime-hook", "cli", "cdi"]

_KINDS: Final[Mapping[str, HookKind]] = {
    "nvidia-container-runtime-hook": "runtime-hook",
    "nvidia-container-toolkit": "runtime-hook",  # its name until 1.4
    "nvidia-container-cli": "cli",
    "nvidia-cdi-hook": "cdi",
    "nvidia-ctk": "cdi",
}
_WRAPPED: Final = ".real"  # the toolkit's container installs each program behind a script
# `0:1` is MIG instance 1 of card 0.
_CARD: Final = re.compile(r"[0-9]{1,3}(:[0-9]{1,3})?|(GPU|MIG)-[0-9A-Za-z-]{1,64}", re.ASCII)
# Drivers before 470 name one so (libnvidia-container, src/nvc_info.c).
_OLD_INSTANCE: Final = re.compile(r"MIG-GPU-[0-9A-Za-z/-]{1,96}", re.ASCII)
_CDI_KIND: Final = "nvidia.com/gpu="


def kind(hook: Mapping[str, Any]) -> HookKind | None:
    """Return what a hook is; None for another's. QuotaError: NVIDIA's, and not known."""
    path = hook.get("path")
    name = _name(path)
    if name in _KINDS:
        return _KINDS[name]
    if "nvidia" in name:
        raise unknown(f"hook {path}")
    for argument in arguments(hook):
        name = _name(argument)
        if is_passed(argument):
            if name not in _KINDS:
                raise unknown(f"hook {path} with {argument}")
            return _KINDS[name]
    return None


def is_nvidias(hook: Mapping[str, Any]) -> bool:
    """Whether a hook is one of NVIDIA's, known or not; the launcher's read_hook says the same."""
    path = hook.get("path")
    own = isinstance(path, str) and PurePosixPath(path).name.startswith("nvidia-")
    return own or any(is_passed(argument) for argument in arguments(hook))


def is_passed(argument: str) -> bool:
    """Whether a hook's argument is a program of NVIDIA's that another program is to start."""
    return argument.rpartition("/")[2].startswith("nvidia-container-")


def arguments(hook: Mapping[str, Any]) -> list[str]:
    """Return a hook's arguments, whatever is none of a string left out."""
    found = hook.get("args")
    return [word for word in found if isinstance(word, str)] if isinstance(found, list) else []


def cards(text: str, source: str) -> EngineCards | None:
    """Return what a list of cards for these hooks asks: `all`, `0,1`, `GPU-4f1c...`, `void`.

    Engines write `0,1` for two cards, whichever they are: read as a number of them. QuotaError
    names whatever is none, and a MIG instance in a form that drivers before 470 had.
    """
    value = text.strip()
    if value in ("", "none", "void"):
        return None
    names = [name.strip().removeprefix(_CDI_KIND) for name in value.split(",")]
    if names == ["all"]:
        return EngineCards(source, all_cards=True)
    part = next((name for name in names if _OLD_INSTANCE.fullmatch(name)), None)
    if part is not None:
        raise instance(source, part)
    if not all(_CARD.fullmatch(name) for name in names):
        raise QuotaError(source, value, "is not a list of cards", "name them by index or UUID")
    devices = tuple(dict.fromkeys(names))
    if devices == tuple(str(index) for index in range(len(devices))):
        return EngineCards(source, count=len(devices))
    return EngineCards(source, devices=devices)


def cli_cards(hook: Mapping[str, Any]) -> EngineCards | None:
    """Return what `nvidia-container-cli configure --device=0,1` passes."""
    options = [word.partition("=") for word in arguments(hook)]
    devices = [value for name, _, value in options if name == "--device"]
    return cards(",".join(devices), "--gpus")


def _name(path: object) -> str:
    name = PurePosixPath(path).name if isinstance(path, str) else ""
    return name.removesuffix(_WRAPPED)
