# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's device nodes and cgroup rules in a spec, and which cards they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpushare.oci.driver import Driver
from gpushare.oci.edits import DEVICES, MOUNTS, RULES
from gpushare.oci.nvidia.errors import instance, unknown
from gpushare.oci.spec import Spec

MAJOR: Final = 195  # of nvidia0.., nvidiactl and nvidia-modeset (Linux, devices.txt)
DRM_MAJOR: Final = 226
DRM: Final = Path("/sys/class/drm")  # every /dev/dri/NAME has an entry of its name

_LAST_CARD: Final = 247  # NV_MINOR_DEVICE_NUMBER_REGULAR_MAX (nv-chardev-numbers.h)
_PCI_VENDOR: Final = "0x10de"
_CARD: Final = re.compile(r"/dev/nvidia([0-9]{1,3})", re.ASCII)
_CONTROL: Final = re.compile(r"/dev/nvidia(ctl|-uvm|-uvm-tools|-modeset)", re.ASCII)
_CAPABILITY: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap([0-9]+)", re.ASCII)
_MANAGEMENT: Final = (1, 2)  # "config" and "monitor" in /proc/driver/nvidia-caps/mig-minors


def find(spec: Spec, driver: Driver) -> list[int]:
    """Return the indices of NVIDIA's nodes in linux.devices.

    QuotaError for a part of a card (MIG), and for what is not known. A privileged container has
    every node of the host: nothing is refused, and none but the known ones are found.
    """
    known = {node.path for node in driver.cdi.everything.nodes}
    found = []
    for index, device in enumerate(spec.entries(*DEVICES)):
        path = _text(device, "path")
        capability = _CAPABILITY.fullmatch(path)
        if capability and not spec.is_privileged():
            raise _capability(path, int(capability[1]))
        if _CARD.fullmatch(path) or _CONTROL.fullmatch(path) or path in known or _is_drm(device):
            found.append(index)
        elif is_nvidias(device) and not spec.is_privileged():
            raise unknown(f"device {path}")
    return found


def is_nvidias(device: Mapping[str, Any]) -> bool:
    """Whether a node is NVIDIA's by its path or number."""
    return _text(device, "path").startswith("/dev/nvidia") or device.get("major") == MAJOR


def bound(spec: Spec) -> list[int]:
    """Return the indices of bind mounts of a node: `-v /dev/nvidia0:/dev/nvidia0`.

    QuotaError as `find`.
    """
    found = []
    for index, mount in enumerate(spec.entries(*MOUNTS)):
        source = _text(mount, "source")
        if _CARD.fullmatch(source) or _CONTROL.fullmatch(source):
            found.append(index)
        elif source.startswith("/dev/nvidia") and not spec.is_privileged():
            raise unknown(f"mount of {source}")
    return found


def minors(spec: Spec, nodes: Sequence[int], mounts: Sequence[int]) -> tuple[int, ...]:
    """Return the N of each /dev/nvidiaN among these nodes and mounts.

    All are a privileged container's; a CDI device adds a rule for its own, which `--privileged`
    has no need of (container-device-interface, pkg/cdi/container-edits.go).
    """
    if spec.is_privileged():
        ruled = (rule.get("minor") for rule in spec.entries(*RULES) if _is_card(rule))
        return tuple(sorted({minor for minor in ruled if isinstance(minor, int)}))
    devices, entries = spec.entries(*DEVICES), spec.entries(*MOUNTS)
    paths = [_text(devices[index], "path") for index in nodes]
    paths += [_text(entries[index], "source") for index in mounts]
    matches = (_CARD.fullmatch(path) for path in paths)
    return tuple(sorted({int(match[1]) for match in matches if match}))


def rules(spec: Spec, nodes: Iterable[int]) -> list[int]:
    """Return the indices of the cgroup rules that let the container at `nodes`, or at any card."""
    devices = spec.entries(*DEVICES)
    taken = [devices[index] for index in nodes]
    numbers = {(device.get("major"), device.get("minor")) for device in taken}
    # Of a rule for all minors only those of majors that are NVIDIA's alone: 226 is every drm's.
    majors = {device.get("major") for device in taken if _CONTROL.fullmatch(_text(device, "path"))}
    majors = {MAJOR} | majors - {None}
    return [
        index
        for index, rule in enumerate(spec.entries(*RULES))
        if rule.get("allow") is True
        and rule.get("type") == "c"
        and (rule.get("major") in majors or (rule.get("major"), rule.get("minor")) in numbers)
    ]


def _is_card(rule: Mapping[str, Any]) -> bool:
    minor = rule.get("minor")
    numbered = isinstance(minor, int) and 0 <= minor <= _LAST_CARD
    return rule.get("allow") is True and rule.get("major") == MAJOR and numbered


def _is_drm(device: Mapping[str, Any]) -> bool:
    """Whether a /dev/dri node is of a card of NVIDIA's, whatever our own CDI spec lists."""
    path = _text(device, "path")
    if device.get("major") != DRM_MAJOR or not path.startswith("/dev/dri/"):
        return False
    try:
        vendor = (DRM / Path(path).name / "device" / "vendor").read_text(encoding="ascii")
    except (OSError, ValueError):
        return False
    return vendor.strip() == _PCI_VENDOR


def _capability(path: str, number: int) -> Exception:
    return unknown(f"device {path}") if number in _MANAGEMENT else instance(f"device {path}")


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""
