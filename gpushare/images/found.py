# SPDX-License-Identifier: Apache-2.0
"""What was found under a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpushare.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping


class NotFound(UserError):
    """There is no such image, container or directory, or it cannot be looked into."""


@dataclass(frozen=True)
class Found:
    """An image or a container. `root_fd` is open as long as the block of `find`.

    `kind` is what it is, in words. `root_fd` None: its files could not be reached, and `note` says
    why; then only what it says of itself is known.
    """

    kind: str
    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    root_fd: int | None = None
    note: str = ""


def variables_of(env: Sequence[str] | None) -> dict[str, str]:
    """Return `NAME=VALUE` strings by name; of a name that is there twice the last counts."""
    split = (entry.partition("=") for entry in env or ())
    return {name: value for name, _, value in split}
