# SPDX-License-Identifier: Apache-2.0
"""Containers that use a card without an allocation: `--privileged`, with a plain runtime.

The memory of every process of no tenant counts as non-tenant memory (observe/non_tenant.py). A
process that an engine has put into a container has bypassed gpushare, so it is reported, and
it is killed if the operator chose so. Programs of the host itself never are: a desktop may use its
card.
"""

from __future__ import annotations

import signal

from gpushare.daemon.core.log import log
from gpushare.daemon.identity.pid_resolver import Keys, ListedPid, PidResolver
from gpushare.daemon.state import AuditInput, Observations, UnallocatedContainer

_KILL_LOOKS = 4  # in a row: a container that is only being released has left by then


class UnallocatedContainers:
    """Those of the last look, and how often each was seen; the truth thread's."""

    def __init__(self, observed: Observations) -> None:
        self._observed = observed
        self._looks: dict[tuple[int, int, str], int] = {}  # by pid, start time and card

    def look(
        self,
        look: AuditInput,
        resolver: PidResolver,
        keys: Keys,
        do: str,
    ) -> None:
        """Note each container, and do about it what the operator chose: ignore, warn or kill."""
        found: list[UnallocatedContainer] = []
        looks: dict[tuple[int, int, str], int] = {}
        sightings = {
            (uuid, use.pid): one for uuid, uses in look.owned.items() for one, use in uses if one
        }
        for uuid, card in self._observed.usage.cards.items():
            for non_tenant in card.non_tenants if uuid in look.owned else ():
                sighting = sightings.get((uuid, non_tenant.pid))
                if not non_tenant.container or sighting is None or sighting.process is None:
                    continue
                if not sighting.holds or sighting.is_ambiguous:
                    continue
                container = UnallocatedContainer(
                    non_tenant.pid, non_tenant.name, non_tenant.container, uuid, non_tenant.bytes
                )
                place = non_tenant.pid, sighting.process.starttime, uuid
                looks[place] = self._looks.get(place, 0) + 1
                found.append(container)
                _act(container, looks[place], sighting, resolver, keys, do)
        self._looks = looks
        self._observed.unallocated = tuple(found) if do != "ignore" else ()


def _act(  # noqa: PLR0913, PLR0917 - the process, and what is decided of it
    container: UnallocatedContainer,
    looks: int,
    sighting: ListedPid,
    resolver: PidResolver,
    keys: Keys,
    do: str,
) -> None:
    if looks == 1 and do != "ignore":
        log("unallocated-container-detected", "warning", **_figures(container))
    if do != "kill" or looks < _KILL_LOOKS or not resolver.is_there(sighting, keys):
        return
    descriptor = resolver.descriptor(container.pid)
    if descriptor is None:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError as error:
        if looks == _KILL_LOOKS:
            log(
                "unallocated-container-kill-failed",
                "error",
                error=str(error),
                **_figures(container),
            )
        return
    log("unallocated-container-killed", "warning", **_figures(container))


def _figures(container: UnallocatedContainer) -> dict[str, object]:
    return {
        "card": container.uuid,
        "pid": container.pid,
        "program": container.name,
        "container": container.container,
        "used_bytes": container.bytes,
    }
