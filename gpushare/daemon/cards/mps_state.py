# SPDX-License-Identifier: Apache-2.0
"""The cards in MPS mode: what is known of their control daemons.

gpushare/daemon/mps/supervisor.py publishes it. Any thread may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare.daemon.core.loop import Signal
from gpushare.errors import UserError

#: The isolation of a tenant whose processes are clients of the card's MPS server, and the backend
#: that a request and a card have for it.
MPS: Final = "mps"

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"


class MpsRefused(UserError):
    """A container cannot become a client of the card's MPS server."""


@dataclass(frozen=True)
class MpsGrant:
    """The part of one tenant in the MPS server of its card."""

    folder: str  # on the host, with the socket of clients
    shared_memory: str  # the folder that server and client share at /dev/shm
    uid: int  # of its first process, the host's
    percentage: int  # its ceiling of the card's multiprocessors; 100: none
    variables: Mapping[str, str]  # for its processes
    note: str = ""  # how its request was changed


@dataclass(frozen=True)
class MpsCardState:
    """The control daemon of one card."""

    fault: str = ""  # why no container can join; "": they can
    server_state: str = ""  # as NVIDIA names it; "": no server runs
    # By tenant:
    grants: Mapping[str, MpsGrant] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)  # why it has to start again
    bypasses: Mapping[str, int] = field(default_factory=dict)  # a process that is no client


@dataclass
class MpsCards:
    """All cards in MPS mode, by UUID; `cards` is replaced, never changed.

    `bypassed` is with a tenant that uses the card without the server, and its process.
    """

    cards: Mapping[str, MpsCardState] = field(default_factory=dict)
    bypassed: Signal[[str, int]] = field(default_factory=Signal)

    def fault_of(self, uuid: str) -> str:
        """Return why no container can be a client of a card's server; "" if they can."""
        return self.cards.get(uuid, MpsCardState()).fault

    def bypass_of(self, key: str) -> int:
        """Return a process of a tenant that uses the card without the server, 0 if none does."""
        return next((card.bypasses[key] for card in self.cards.values() if key in card.bypasses), 0)

    def loss_of(self, key: str) -> str:
        """Return why a tenant's processes can no longer use the card, "" if they can."""
        return next((card.losses[key] for card in self.cards.values() if key in card.losses), "")

    def grant_of(self, key: str) -> MpsGrant | None:
        """Return what a tenant has of a server, None if it has none."""
        grants = (card.grants.get(key) for card in self.cards.values())
        return next((grant for grant in grants if grant is not None), None)
