# SPDX-License-Identifier: Apache-2.0
"""The step about memory above a promise: lent while it is free, refused first when it is not."""

from __future__ import annotations

from contextlib import ExitStack

from gpushare.quota.size import exact_size, format_size

from .stage import GRANULE, OUT_OF_MEMORY, Stage, soon

_MIB = 1 << 20


def lent_and_taken_back(stage: Stage, index: int) -> None:
    """On card `index` lend to one tenant, promise the rest to another, and take that back."""
    sizes = stage.sizes
    stage.report.title("What nobody was promised is lent, and refused first when it is needed")
    quota = {
        "memory": exact_size(sizes.small),
        "memory-limit": exact_size(sizes.resized),
        "devices": str(index),
    }
    with ExitStack() as stack:
        burst = stage.started(stack, "burst", quota)
        burst.ask("context")
        before = burst.ask("info")
        given = burst.ask(f"alloc {sizes.small}")
        stage.show("ps")
        stage.report.check(
            f"promised {format_size(sizes.small)}, it sees {format_size(sizes.resized)} and may "
            f"take more than its promise",
            before["total"] == sizes.resized and given["code"] == 0,
            f"{before}, {given}",
        )
        rest = stage.card(index)["free_bytes"] // _MIB * _MIB
        with ExitStack() as other:
            stage.started(other, "rest", {"memory": exact_size(rest), "devices": str(index)})
            refused = burst.ask(f"alloc {GRANULE}")
            now = burst.ask("info")
            stage.report.check(
                "when another is promised the rest of the card it keeps what it has, and gets no "
                "more",
                refused["result"] == OUT_OF_MEMORY and now["total"] < sizes.resized,
                f"{refused}, {now}",
            )
        again = soon(lambda: burst.ask("info")["total"] == sizes.resized)
        stage.report.check("when that has ended it is lent again", again, burst.ask("info"))
