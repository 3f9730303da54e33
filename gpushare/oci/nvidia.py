# SPDX-License-Identifier: Apache-2.0
"""A GPU that an engine put into a spec before us, recognised so that it can be taken out whole.

It comes in two forms, and an image can write neither:

- `docker run --gpus` of older Docker: NVIDIA's prestart hook, and a second NVIDIA_VISIBLE_DEVICES
  behind the image's own (moby, daemon/nvidia_linux.go). `--gpus 2` reads `0,1`: any two cards.
- CDI edits that the engine has already applied: nodes, cgroup rules, mounts, createContainer hooks.
  No device name is left, only the minor numbers of the nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from gpushare.oci.driver import Driver
from gpushare.oci.edits import DEVICES, HOOKS, MOUNTS, RULES, Path
from gpushare.oci.spec import Spec
from gpushare.quota.cards import Cards
from gpushare.quota.errors import QuotaError
from gpushare.quota.visible import VISIBLE_DEVICES

_MAJOR: Final = 195  # of nvidia0.., nvidiactl and nvidia-modeset (Linux, devices.txt)
_PRESTART_HOOKS: Final = frozenset({"nvidia-container-runtime-hook", "nvidia-container-toolkit"})
_CDI_HOOKS: Final = frozenset({"nvidia-cdi-hook", "nvidia-ctk"})
_CARD: Final = re.compile(r"/dev/nvidia([0-9]{1,3})", re.ASCII)
_CONTROL: Final = re.compile(r"/dev/nvidia(ctl|-uvm|-uvm-tools|-modeset)", re.ASCII)
_VISIBLE_DEVICE: Final = re.compile(r"[0-9]{1,3}|GPU-[0-9A-Za-z-]{1,64}", re.ASCII)
_DRIVER_FILE: Final = re.compile(
    r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[a-z0-9_-]+|[A-Za-z0-9]+_nvidia)\.so[0-9.]*"
    r"|nvidia-(smi|debugdump|persistenced|modprobe|cuda-mps-control|cuda-mps-server)"
    r"|nvidia_drv\.so|nvidia-drm_gbm\.so|libglxserver_nvidia\.so[0-9.]*|gsp_[a-z0-9]+\.bin"
    r"|[0-9]*_?nvidia[a-z0-9_]*\.json|nvidia-application-profiles-[0-9.]+-[a-z-]+",
    re.ASCII,
)
_DRIVER_FOLDER: Final = re.compile(
    r"/nvidia-(persistenced|fabricmanager|mps)/|/(firmware|share)/nvidia/|/nvidia/(xorg|wine)/"
)
_SYSTEM: Final = ("/usr/", "/lib", "/etc/", "/run/", "/var/run/")


@dataclass(frozen=True)
class Request:
    """What an engine had put into a spec for a GPU.

    `cards` is what it asks for, None for nothing; `taken` is what has to go, for `edits.apply`:
    the indices of the entries in each list.
    """

    cards: Cards | None = None
    taken: Mapping[Path, Sequence[int]] = field(default_factory=dict)


def find(spec: Spec, driver: Driver) -> Request:
    """Return the GPU that is in `spec` already; `spec` is what `edits.strip` returned.

    QuotaError where something of NVIDIA's is in it that is not known: it is refused, never left in.
    A privileged container sees every node of the host: for it they are no request and they stay,
    and so does a driver's file that it mounts (monitors do); what a hook brings is one.
    """
    hooks = {path: _ours_to_take(spec.entries(*path)) for path in HOOKS}
    mounts = _driver_mounts(spec.entries(*MOUNTS), driver)
    nodes = _nodes(spec, driver)
    bound = _bound_nodes(spec.entries(*MOUNTS))
    by_hook = any(
        _name(spec.entries(*path)[index], "path") in _PRESTART_HOOKS
        for path, indices in hooks.items()
        for index in indices
    )
    minors = _minors(spec, nodes, bound)
    if spec.is_privileged() and not any(hooks.values()):
        return Request()
    if not (nodes or bound or any(hooks.values())):
        return Request(taken=_not_empty({RULES: _rules(spec, [])}))
    _refuse_unknown_mounts(spec.entries(*MOUNTS), [*mounts, *bound])
    taken: dict[Path, Sequence[int]] = {**hooks, MOUNTS: sorted({*mounts, *bound})}
    if not spec.is_privileged():
        taken[DEVICES] = nodes
        taken[RULES] = _rules(spec, nodes)
    cards = _cards_of_hook(spec) if by_hook else _cards_of_nodes(spec, minors)
    return Request(cards, _not_empty(taken))


def is_placed(spec: Spec) -> bool:
    """Whether something of NVIDIA's was put into `spec` for this container, known or not.

    The launcher's `placed` (runtime/spec.c) says the same: it is what makes a sandbox none.
    """
    hooks = (hook for path in HOOKS for hook in spec.entries(*path))
    if any(_name(hook, "path").startswith("nvidia-") for hook in hooks):
        return True
    if spec.is_privileged():
        return False
    sources = (_text(mount, "source") for mount in spec.entries(*MOUNTS))
    rules = spec.entries(*RULES)
    return (
        any(_is_nvidias(device) for device in spec.entries(*DEVICES))
        or any(source.startswith("/dev/nvidia") for source in sources)
        or any(rule.get("allow") is True and rule.get("major") == _MAJOR for rule in rules)
    )


def _not_empty(taken: Mapping[Path, Sequence[int]]) -> dict[Path, Sequence[int]]:
    return {path: indices for path, indices in taken.items() if indices}


def _ours_to_take(hooks: list[Any]) -> list[int]:
    found = []
    for index, hook in enumerate(hooks):
        name = _name(hook, "path")
        if name in _PRESTART_HOOKS or name in _CDI_HOOKS:
            found.append(index)
        elif "nvidia" in name:
            raise _unknown(f"hook {_text(hook, 'path')}")
    return found


def _nodes(spec: Spec, driver: Driver) -> list[int]:
    """Return the indices of NVIDIA's nodes; of /dev/dri those that the driver's CDI spec lists."""
    known = {node.path for node in driver.cdi.everything.nodes}
    found = []
    for index, device in enumerate(spec.entries(*DEVICES)):
        path = _text(device, "path")
        if _CARD.fullmatch(path) or _CONTROL.fullmatch(path) or path in known:
            found.append(index)
        elif _is_nvidias(device) and not spec.is_privileged():
            raise _unknown(f"device {path}")
    return found


def _is_nvidias(device: Mapping[str, Any]) -> bool:
    return _text(device, "path").startswith("/dev/nvidia") or device.get("major") == _MAJOR


def _bound_nodes(mounts: list[Any]) -> list[int]:
    """Return the indices of bind mounts of a node: `-v /dev/nvidia0:/dev/nvidia0`."""
    return [
        index
        for index, mount in enumerate(mounts)
        if _CARD.fullmatch(_text(mount, "source")) or _CONTROL.fullmatch(_text(mount, "source"))
    ]


def _driver_mounts(mounts: list[Any], driver: Driver) -> list[int]:
    known = {(mount.host_path, mount.container_path) for mount in driver.cdi.everything.mounts}
    return [
        index
        for index, mount in enumerate(mounts)
        if (_text(mount, "source"), _text(mount, "destination")) in known
        or (_is_bind(mount) and _is_driver_file(_text(mount, "destination")))
    ]


def _is_driver_file(path: str) -> bool:
    name = PurePosixPath(path).name
    return bool(_DRIVER_FILE.fullmatch(name) or _DRIVER_FOLDER.search(path))


def _refuse_unknown_mounts(mounts: list[Any], known: Sequence[int]) -> None:
    """Refuse a file of NVIDIA's that came with the card and is not known.

    A CDI spec mounts it where the host has it; what a user mounts, models say, lies elsewhere.
    """
    for index, mount in enumerate(mounts):
        path = _text(mount, "destination")
        same = _is_bind(mount) and path == _text(mount, "source")
        if index not in known and same and path.startswith(_SYSTEM) and "nvidia" in path:
            raise _unknown(f"mount {path}")


def _is_bind(mount: Mapping[str, Any]) -> bool:
    options = mount.get("options") or []
    return mount.get("type") == "bind" or "bind" in options or "rbind" in options


def _minors(spec: Spec, nodes: Sequence[int], bound: Sequence[int]) -> tuple[int, ...]:
    devices, mounts = spec.entries(*DEVICES), spec.entries(*MOUNTS)
    paths = [_text(devices[index], "path") for index in nodes]
    paths += [_text(mounts[index], "source") for index in bound]
    matches = (_CARD.fullmatch(path) for path in paths)
    return tuple(sorted({int(match[1]) for match in matches if match}))


def _rules(spec: Spec, nodes: Sequence[int]) -> list[int]:
    """Return the indices of the cgroup rules that let the container at `nodes`, or at any card."""
    devices = spec.entries(*DEVICES)
    taken = [devices[index] for index in nodes]
    numbers = {(device.get("major"), device.get("minor")) for device in taken}
    # Of a rule for all minors only those of majors that are NVIDIA's alone: 226 is every drm's.
    majors = {device.get("major") for device in taken if _CONTROL.fullmatch(_text(device, "path"))}
    majors = {_MAJOR} | majors - {None}
    return [
        index
        for index, rule in enumerate(spec.entries(*RULES))
        if rule.get("allow") is True
        and rule.get("type") == "c"
        and (rule.get("major") in majors or (rule.get("major"), rule.get("minor")) in numbers)
    ]


def _cards_of_hook(spec: Spec) -> Cards | None:
    source = "docker run --gpus"
    value = spec.variables.get(VISIBLE_DEVICES, "").strip()
    if value in ("", "none", "void"):
        return None
    if value == "all":
        return Cards(source, all_cards=True)
    devices = tuple(value.split(","))
    if not all(_VISIBLE_DEVICE.fullmatch(device) for device in devices):
        fix = "name whole cards by index or UUID: parts of cards (MIG) cannot be passed yet"
        raise QuotaError(source, value, "is not a list of cards", fix)
    if devices == tuple(str(index) for index in range(len(devices))):
        return Cards(source, count=len(devices))
    return Cards(source, devices=devices)


def _cards_of_nodes(spec: Spec, minors: tuple[int, ...]) -> Cards:
    source = "the CDI device or --device"
    if not minors:
        rule = "a part of NVIDIA's driver is passed, and no card"
        raise QuotaError(source, None, rule, "pass a card, or ask with GPUSHARE_MEMORY=4GiB alone")
    # A kubelet has chosen its cards and counts on them; an engine's `--gpus N` takes the first N.
    if minors == tuple(range(len(minors))) and not spec.is_kubernetes():
        return Cards(source, count=len(minors))
    return Cards(source, minors=minors)


def _unknown(what: str) -> QuotaError:
    rule = "is NVIDIA's and of a kind that gpushare does not know"
    return QuotaError(what, None, rule, "leave it out, or use the runtime runc")


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


def _name(entry: Mapping[str, Any], name: str) -> str:
    return PurePosixPath(_text(entry, name)).name
