# SPDX-License-Identifier: Apache-2.0
"""Containers that use a card of ours and were given none: by `--privileged` and a plain runtime.

What a process of no tenant holds counts as foreign, whoever it is (audit/truth.py). One that an
engine has put into a container went round all of gpushare, and so its operator is told; where he
chose so, it is ended. Programs of the host itself are never: a desktop may use its card.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.daemon.audit.view import CardTruth, Look
from gpushare.daemon.identity.sightings import Keys, Sighting, Sightings
from gpushare.daemon.log import log

_KILL_LOOKS = 4  # in a row: a container that is only being released has left by then


@dataclass(frozen=True)
class Stranger:
    """A process of a container that was given nothing of the card `uuid`, which it holds."""

    pid: int
    name: str
    container: str
    uuid: str
    bytes: int


class Strangers:
    """Those of the last look, in `view`, and how often each was seen; the truth thread's."""

    def __init__(self) -> None:
        self.view: tuple[Stranger, ...] = ()
        self._looks: dict[tuple[int, int, str], int] = {}  # by pid, start time and card

    def look(
        self, look: Look, cards: Mapping[str, CardTruth], sightings: Sightings, keys: Keys, do: str
    ) -> None:
        """Note who is there, and do about it what the operator chose: ignore, warn or kill."""
        found: list[Stranger] = []
        looks: dict[tuple[int, int, str], int] = {}
        who = {
            (uuid, use.pid): one for uuid, uses in look.owned.items() for one, use in uses if one
        }
        for uuid, card in cards.items():
            for foreign in card.foreign if uuid in look.owned else ():
                sighting = who.get((uuid, foreign.pid))
                if not foreign.container or sighting is None or sighting.process is None:
                    continue
                if not sighting.holds or sighting.is_ambiguous:
                    continue
                stranger = Stranger(
                    foreign.pid, foreign.name, foreign.container, uuid, foreign.bytes
                )
                place = foreign.pid, sighting.process.starttime, uuid
                looks[place] = self._looks.get(place, 0) + 1
                found.append(stranger)
                _act(stranger, looks[place], sighting, sightings, keys, do)
        self._looks = looks
        self.view = tuple(found) if do != "ignore" else ()


def _act(  # noqa: PLR0913, PLR0917 - who it is, and by whose word
    stranger: Stranger,
    looks: int,
    sighting: Sighting,
    sightings: Sightings,
    keys: Keys,
    do: str,
) -> None:
    if looks == 1 and do != "ignore":
        log("unknown-container-seen", "warning", **_figures(stranger))
    if do != "kill" or looks < _KILL_LOOKS or not sightings.is_there(sighting, keys):
        return
    descriptor = sightings.descriptor(stranger.pid)
    if descriptor is None:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError as error:
        if looks == _KILL_LOOKS:
            log("unknown-container-stays", "error", error=str(error), **_figures(stranger))
        return
    log("unknown-container-killed", "warning", **_figures(stranger))


def _figures(stranger: Stranger) -> dict[str, object]:
    return {
        "card": stranger.uuid,
        "pid": stranger.pid,
        "program": stranger.name,
        "container": stranger.container,
        "used_bytes": stranger.bytes,
    }
