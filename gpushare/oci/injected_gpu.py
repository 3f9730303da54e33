# SPDX-License-Identifier: Apache-2.0
"""A GPU that an engine put into a spec before us, recognised so that it can be taken out whole.

It comes in two forms, and an image can write neither:

- a hook that passes the cards, named in a variable or an argument: `--gpus` of Docker,
  nerdctl and ctr. `--gpus 2` reads `0,1`: any two cards.
- CDI edits that the engine has already applied: nodes, cgroup rules, mounts of the driver's files,
  variables and createContainer hooks. No device name is left, only the minor numbers of the nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeAlias

from gpushare.oci.driver_files import DriverFiles
from gpushare.oci.edits import DEVICES, ENV, HOOKS, MOUNTS, RULES, SpecPath
from gpushare.oci.spec import Spec
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import CARD_NAME
from gpushare.quota.request import VISIBLE_DEVICES, EngineCards

_NODES: Final = "the CDI device or --device"
# Besides `void`, which makes NVIDIA's own runtime ignore the container (nvidia-ctk 1.18).
_CDI_VARIABLES: Final = ("NVIDIA_CTK_LIBCUDA_DIR",)


@dataclass(frozen=True)
class InjectedGpu:
    """The parts of a spec that an engine put there for a GPU.

    `cards` is what it asks for, None for nothing; `taken` is what has to go, for `edits.apply`:
    the indices of the entries in each list.
    """

    cards: EngineCards | None = None
    taken: Mapping[SpecPath, Sequence[int]] = field(default_factory=dict)


def find(spec: Spec, driver: DriverFiles) -> InjectedGpu:
    """Return the GPU that is in `spec` already; `spec` is what `edits.strip` returned.

    QuotaError where something of NVIDIA's is in it that is not known: it is refused, never left in.
    A privileged container sees every node of the host: for it they are no request and they stay,
    and so does a driver's file that it mounts (monitors do); what a hook brings is one.
    """
    hooks = {path: _hooks(spec.entries(*path)) for path in HOOKS}
    mounts = driver_mounts(spec.entries(*MOUNTS), driver)
    nodes = card_nodes(spec, driver)
    bound = bound_nodes(spec)
    hooked = any(hooks.values())
    if spec.is_privileged() and not hooked:
        return InjectedGpu()
    if not (nodes or bound or hooked):
        return InjectedGpu(taken=_not_empty({RULES: node_rules(spec, [])}))
    refuse_unknown_mounts(spec.entries(*MOUNTS), [*mounts, *bound])
    taken: dict[SpecPath, Sequence[int]] = {**hooks, MOUNTS: sorted({*mounts, *bound})}
    if not spec.is_privileged():
        taken[DEVICES] = nodes
        taken[RULES] = node_rules(spec, nodes)
    kinds = _kinds(spec, hooks)
    taken[ENV] = _variables(spec, kinds)
    return InjectedGpu(_cards(spec, kinds, nodes, bound, driver), _not_empty(taken))


def is_placed(spec: Spec) -> bool:
    """Whether something of NVIDIA's was put into `spec` for this container, known or not.

    The launcher's `placed` (runtime/spec.c) says the same: it is what makes a sandbox none.
    """
    if any(is_nvidias(hook) for path in HOOKS for hook in spec.entries(*path)):
        return True
    if spec.is_privileged():
        return False
    sources = (mount.get("source") for mount in spec.entries(*MOUNTS))
    rules = spec.entries(*RULES)
    return (
        any(is_nvidia_node(device) for device in spec.entries(*DEVICES))
        or any(isinstance(source, str) and source.startswith("/dev/nvidia") for source in sources)
        or any(rule.get("allow") is True and rule.get("major") == MAJOR for rule in rules)
    )


def _not_empty(taken: Mapping[SpecPath, Sequence[int]]) -> dict[SpecPath, Sequence[int]]:
    return {path: indices for path, indices in taken.items() if indices}


def _hooks(hooks: Sequence[Mapping[str, Any]]) -> list[int]:
    return [index for index, hook in enumerate(hooks) if hook_kind(hook) is not None]


def _kinds(
    spec: Spec, hooks: Mapping[SpecPath, Sequence[int]]
) -> dict[HookKind, Mapping[str, Any]]:
    """Return the last hook of each kind: what it says is what counts."""
    hook_by_kind: dict[HookKind, Mapping[str, Any]] = {}
    for path, indices in hooks.items():
        for index in indices:
            hook = spec.entries(*path)[index]
            kind = hook_kind(hook)
            assert kind is not None
            hook_by_kind[kind] = hook
    return hook_by_kind


def _cards(
    spec: Spec,
    kinds: Mapping[HookKind, Mapping[str, Any]],
    nodes: Sequence[int],
    bound: Sequence[int],
    driver: DriverFiles,
) -> EngineCards | None:
    if "cli" in kinds:
        return cli_cards(kinds["cli"])
    if "runtime-hook" in kinds and not _of_hooks_d(spec):
        return cards(spec.variables.get(VISIBLE_DEVICES, ""), "docker run --gpus")
    if "runtime-hook" in kinds and not (nodes or bound or "cdi" in kinds):
        return None
    minors, instances = card_minors(spec, nodes, bound), instance_nodes(spec, nodes, driver)
    if not instances:
        return _of_nodes(spec, minors)
    beside = set(minors) - {
        minor for instance_minors in instances.values() for minor in instance_minors
    }
    if beside:
        rule = f"passes MIG instances, and beside them /dev/nvidia{min(beside)}, a whole card"
        raise QuotaError(_NODES, None, rule, "pass one or the other")
    return EngineCards(_NODES, devices=tuple(instances))


def _of_nodes(spec: Spec, minors: tuple[int, ...]) -> EngineCards:
    if not minors:
        rule = "parts of the NVIDIA driver are passed without a card"
        raise QuotaError(_NODES, None, rule, f"pass a card, or request a share: {SHARE}")
    # A kubelet has chosen its cards and counts on them, and podman's --gpus names them; docker's
    # `--gpus N` takes the first N where it passes CDI devices.
    named = spec.is_kubernetes() or spec.is_podman()
    if minors == tuple(range(len(minors))) and not named:
        return EngineCards(_NODES, count=len(minors))
    return EngineCards(_NODES, minors=minors)


def _of_hooks_d(spec: Spec) -> bool:
    """Whether hooks come from hooks.d, which puts them into containers that ask for nothing.

    There the image's own NVIDIA_VISIBLE_DEVICES would decide, which is a weak request.
    """
    return spec.is_podman() or spec.is_kubernetes()


def _variables(spec: Spec, kinds: Mapping[HookKind, Mapping[str, Any]]) -> list[int]:
    """Return the indices of the variables that an engine set for the hook, or a CDI device."""
    entries = [(index, *entry.partition("=")[::2]) for index, entry in enumerate(spec.env)]
    cdi_variables = {index for index, name, _ in entries if name in _CDI_VARIABLES}
    visible = [(index, value) for index, name, value in entries if name == VISIBLE_DEVICES]
    if visible:
        index, value = visible[-1]
        by_hook = "runtime-hook" in kinds and not _of_hooks_d(spec)
        if by_hook or value.strip() == "void":
            cdi_variables.add(index)
    return sorted(cdi_variables)


# What nvidia-ctk lists (nvidia-container-toolkit, pkg/nvcdi/driver-nvml.go and
# internal/discover/{graphics,ipc}.go), and libnvidia-container before it.
_FILE: Final = re.compile(
    r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[a-z0-9_-]+|[A-Za-z0-9]+_nvidia)\.so[0-9.]*"
    r"|nvidia-(smi|debugdump|persistenced|modprobe|cuda-mps-control|cuda-mps-server|imex|imex-ctl)"
    r"|nvidia_drv\.so|nvidia-drm_gbm\.so|libglxserver_nvidia\.so[0-9.]*|gsp_[a-z0-9]+\.bin"
    r"|[0-9]*_?nvidia[a-z0-9_.]*\.json|nvidia-application-profiles-[0-9.]+-[a-z-]+"
    r"|([0-9]+-)?nvidia[a-z-]*\.conf",
    re.ASCII,
)
_FOLDER: Final = re.compile(
    r"/nvidia-(persistenced|fabricmanager|mps)(/|$)|/(firmware|share)/nvidia/|/nvidia/(xorg|wine)/"
)
_SYSTEM: Final = ("/usr/", "/lib", "/etc/", "/run/", "/var/run/")


def driver_mounts(mounts: Sequence[Mapping[str, Any]], driver: DriverFiles) -> list[int]:
    """Return the indices of the mounts that are the driver's files."""
    known = {(mount.host_path, mount.container_path) for mount in driver.cdi.everything.mounts}
    return [
        index
        for index, mount in enumerate(mounts)
        if (_text(mount, "source"), _text(mount, "destination")) in known
        or (is_bind(mount) and _is_file(_text(mount, "destination")))
    ]


def refuse_unknown_mounts(mounts: Sequence[Mapping[str, Any]], known: Sequence[int]) -> None:
    """Refuse a file of NVIDIA's that came with the card and is not known.

    A CDI spec mounts it where the host has it; what a user mounts, models say, lies elsewhere.
    """
    for index, mount in enumerate(mounts):
        path = _text(mount, "destination")
        same = is_bind(mount) and path == _text(mount, "source")
        if index not in known and same and path.startswith(_SYSTEM) and "nvidia" in path:
            raise unknown(f"mount {path}")


def is_bind(mount: Mapping[str, Any]) -> bool:
    """Whether a mount shows a file or folder of the host."""
    options = mount.get("options") or []
    return mount.get("type") == "bind" or "bind" in options or "rbind" in options


def _is_file(path: str) -> bool:
    name = PurePosixPath(path).name
    return bool(_FILE.fullmatch(name) or _FOLDER.search(path))


MAJOR: Final = 195  # of nvidia0.., nvidiactl and nvidia-modeset (Linux, devices.txt)
DRM_MAJOR: Final = 226
DRM: Final = Path("/sys/class/drm")  # every /dev/dri/NAME has an entry of its name

_LAST_CARD: Final = 247  # NV_MINOR_DEVICE_NUMBER_REGULAR_MAX (nv-chardev-numbers.h)
_PCI_VENDOR: Final = "0x10de"
_CARD: Final = re.compile(r"/dev/nvidia([0-9]{1,3})", re.ASCII)
_CONTROL: Final = re.compile(r"/dev/nvidia(ctl|-uvm|-uvm-tools|-modeset)", re.ASCII)
_CAPABILITY: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap([0-9]+)", re.ASCII)
_MANAGEMENT: Final = (1, 2)  # "config" and "monitor" in /proc/driver/nvidia-caps/mig-minors


def card_nodes(spec: Spec, driver: DriverFiles) -> list[int]:
    """Return the indices of NVIDIA's nodes in linux.devices.

    QuotaError for a MIG instance that the driver's CDI spec does not have, and for what is not
    known. A privileged container has
    every node of the host: nothing is refused, and none but the known ones are found.
    """
    known = {node.path for node in driver.cdi.everything.nodes}
    nodes = []
    for index, device in enumerate(spec.entries(*DEVICES)):
        path = _text(device, "path")
        capability = _CAPABILITY.fullmatch(path)
        if capability and path not in known and not spec.is_privileged():
            raise _capability(path, int(capability[1]))
        if _CARD.fullmatch(path) or _CONTROL.fullmatch(path) or path in known or _is_drm(device):
            nodes.append(index)
        elif is_nvidia_node(device) and not spec.is_privileged():
            raise unknown(f"device {path}")
    return nodes


def is_nvidia_node(device: Mapping[str, Any]) -> bool:
    """Whether a node is NVIDIA's by its path or number."""
    return _text(device, "path").startswith("/dev/nvidia") or device.get("major") == MAJOR


def bound_nodes(spec: Spec) -> list[int]:
    """Return the indices of bind mounts of a node: `-v /dev/nvidia0:/dev/nvidia0`.

    QuotaError as `card_nodes`.
    """
    nodes = []
    for index, mount in enumerate(spec.entries(*MOUNTS)):
        source = _text(mount, "source")
        if _CARD.fullmatch(source) or _CONTROL.fullmatch(source):
            nodes.append(index)
        elif source.startswith("/dev/nvidia") and not spec.is_privileged():
            raise unknown(f"mount of {source}")
    return nodes


def card_minors(spec: Spec, nodes: Sequence[int], mounts: Sequence[int]) -> tuple[int, ...]:
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


def instance_nodes(
    spec: Spec, nodes: Sequence[int], driver: DriverFiles
) -> dict[str, tuple[int, ...]]:
    """Return by name the MIG instances whose capabilities are among these nodes.

    Each has the N of its card's /dev/nvidiaN, and the name by which the CDI spec lists it first.
    """
    if spec.is_privileged():
        return {}
    devices = spec.entries(*DEVICES)
    placed = {_text(devices[index], "path") for index in nodes}
    nodes_by_paths: dict[frozenset[str], tuple[str, tuple[int, ...]]] = {}
    for name, edits in driver.cdi.devices.items():
        paths = [node.path for node in edits.nodes]
        capabilities = frozenset(path for path in paths if _CAPABILITY.fullmatch(path))
        if name != "all" and capabilities and capabilities <= placed:
            cards = tuple(int(match[1]) for path in paths if (match := _CARD.fullmatch(path)))
            nodes_by_paths.setdefault(capabilities, (name, cards))
    return dict(nodes_by_paths.values())


def node_rules(spec: Spec, nodes: Iterable[int]) -> list[int]:
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


# --- NVIDIA's hooks in a spec: how they are recognised, and which cards they pass ---
#
# Three programs pass a card, by hooks that engines write:
#
# - `nvidia-container-runtime-hook prestart` reads the container's NVIDIA_VISIBLE_DEVICES. Docker's
# `--gpus` puts it there with such a variable (moby, daemon/nvidia_linux.go); a file in hooks.d puts
# it into every container of podman and CRI-O, and then it says nothing of this one. - `containerd
# oci-hook -- nvidia-container-cli ... --device=0` of `ctr` and `nerdctl run --gpus`   (containerd,
# contrib/nvidia). - `nvidia-cdi-hook` and `nvidia-ctk hook` come with the nodes of a CDI device and
# pass none   themselves (nvidia-container-toolkit, internal/discover/hooks.go).

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
# Drivers before 470 name one so (libnvidia-container, src/nvc_info.c).
_OLD_INSTANCE: Final = re.compile(r"MIG-GPU-[0-9A-Za-z/-]{1,96}", re.ASCII)
_CDI_KIND: Final = "nvidia.com/gpu="


def hook_kind(hook: Mapping[str, Any]) -> HookKind | None:
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
    args = hook.get("args")
    return [word for word in args if isinstance(word, str)] if isinstance(args, list) else []


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
    if not all(map(CARD_NAME.fullmatch, names)):
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
