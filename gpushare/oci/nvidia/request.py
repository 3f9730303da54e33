# SPDX-License-Identifier: Apache-2.0
"""A GPU that an engine put into a spec before us, recognised so that it can be taken out whole.

It comes in two forms, and an image can write neither:

- a hook that passes the cards, which it is told by a variable or an argument: `--gpus` of Docker,
  nerdctl and ctr. `--gpus 2` reads `0,1`: any two cards.
- CDI edits that the engine has already applied: nodes, cgroup rules, mounts, variables and
  createContainer hooks. No device name is left, only the minor numbers of the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.oci.driver import Driver
from gpushare.oci.edits import DEVICES, ENV, HOOKS, MOUNTS, RULES, Path
from gpushare.oci.nvidia import files as nvidia_files
from gpushare.oci.nvidia import hooks as nvidia_hooks
from gpushare.oci.nvidia import nodes as nvidia_nodes
from gpushare.oci.nvidia.errors import SHARE
from gpushare.oci.spec import Spec
from gpushare.quota.cards import Cards
from gpushare.quota.errors import QuotaError
from gpushare.quota.visible import VISIBLE_DEVICES

_NODES: Final = "the CDI device or --device"
# Besides `void`, which tells NVIDIA's own runtime to leave the container alone (nvidia-ctk 1.18).
_CDI_VARIABLES: Final = ("NVIDIA_CTK_LIBCUDA_DIR",)


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
    hooks = {path: _hooks(spec.entries(*path)) for path in HOOKS}
    mounts = nvidia_files.find(spec.entries(*MOUNTS), driver)
    nodes = nvidia_nodes.find(spec, driver)
    bound = nvidia_nodes.bound(spec)
    hooked = any(hooks.values())
    if spec.is_privileged() and not hooked:
        return Request()
    if not (nodes or bound or hooked):
        return Request(taken=_not_empty({RULES: nvidia_nodes.rules(spec, [])}))
    nvidia_files.refuse_unknown(spec.entries(*MOUNTS), [*mounts, *bound])
    taken: dict[Path, Sequence[int]] = {**hooks, MOUNTS: sorted({*mounts, *bound})}
    if not spec.is_privileged():
        taken[DEVICES] = nodes
        taken[RULES] = nvidia_nodes.rules(spec, nodes)
    kinds = _kinds(spec, hooks)
    taken[ENV] = _variables(spec, kinds)
    return Request(_cards(spec, kinds, nodes, bound), _not_empty(taken))


def is_placed(spec: Spec) -> bool:
    """Whether something of NVIDIA's was put into `spec` for this container, known or not.

    The launcher's `placed` (runtime/spec.c) says the same: it is what makes a sandbox none.
    """
    if any(nvidia_hooks.is_nvidias(hook) for path in HOOKS for hook in spec.entries(*path)):
        return True
    if spec.is_privileged():
        return False
    sources = (mount.get("source") for mount in spec.entries(*MOUNTS))
    rules = spec.entries(*RULES)
    return (
        any(nvidia_nodes.is_nvidias(device) for device in spec.entries(*DEVICES))
        or any(isinstance(source, str) and source.startswith("/dev/nvidia") for source in sources)
        or any(
            rule.get("allow") is True and rule.get("major") == nvidia_nodes.MAJOR for rule in rules
        )
    )


def _not_empty(taken: Mapping[Path, Sequence[int]]) -> dict[Path, Sequence[int]]:
    return {path: indices for path, indices in taken.items() if indices}


def _hooks(hooks: Sequence[Mapping[str, Any]]) -> list[int]:
    return [index for index, hook in enumerate(hooks) if nvidia_hooks.kind(hook) is not None]


def _kinds(
    spec: Spec, hooks: Mapping[Path, Sequence[int]]
) -> dict[nvidia_hooks.Kind, Mapping[str, Any]]:
    """Return the last hook of each kind: what it says is what counts."""
    found: dict[nvidia_hooks.Kind, Mapping[str, Any]] = {}
    for path, indices in hooks.items():
        for index in indices:
            hook = spec.entries(*path)[index]
            kind = nvidia_hooks.kind(hook)
            assert kind is not None
            found[kind] = hook
    return found


def _cards(
    spec: Spec,
    kinds: Mapping[nvidia_hooks.Kind, Mapping[str, Any]],
    nodes: Sequence[int],
    bound: Sequence[int],
) -> Cards | None:
    if "cli" in kinds:
        return nvidia_hooks.cli_cards(kinds["cli"])
    if "runtime-hook" in kinds and not _of_hooks_d(spec):
        return nvidia_hooks.cards(spec.variables.get(VISIBLE_DEVICES, ""), "docker run --gpus")
    if "runtime-hook" in kinds and not (nodes or bound or "cdi" in kinds):
        return None
    return _of_nodes(spec, nvidia_nodes.minors(spec, nodes, bound))


def _of_nodes(spec: Spec, minors: tuple[int, ...]) -> Cards:
    if not minors:
        rule = "a part of NVIDIA's driver is passed, and no card"
        raise QuotaError(_NODES, None, rule, f"pass a card, or ask for a share: {SHARE}")
    # A kubelet has chosen its cards and counts on them, and podman's --gpus names them; docker's
    # `--gpus N` takes the first N where it passes CDI devices.
    named = spec.is_kubernetes() or spec.is_podman()
    if minors == tuple(range(len(minors))) and not named:
        return Cards(_NODES, count=len(minors))
    return Cards(_NODES, minors=minors)


def _of_hooks_d(spec: Spec) -> bool:
    """Whether hooks come from hooks.d, which puts them into containers that ask for nothing.

    There the image's own NVIDIA_VISIBLE_DEVICES would decide, which is a weak request.
    """
    return spec.is_podman() or spec.is_kubernetes()


def _variables(spec: Spec, kinds: Mapping[nvidia_hooks.Kind, Mapping[str, Any]]) -> list[int]:
    """Return the indices of the variables that an engine set for the hook, or a CDI device."""
    entries = [(index, *entry.partition("=")[::2]) for index, entry in enumerate(spec.env)]
    found = {index for index, name, _ in entries if name in _CDI_VARIABLES}
    visible = [(index, value) for index, name, value in entries if name == VISIBLE_DEVICES]
    if visible:
        index, value = visible[-1]
        by_hook = "runtime-hook" in kinds and not _of_hooks_d(spec)
        if by_hook or value.strip() == "void":
            found.add(index)
    return sorted(found)
