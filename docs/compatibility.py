# SPDX-License-Identifier: Apache-2.0
"""The page of what goes with what, from gpushare/compatibility."""

from __future__ import annotations

from collections.abc import Iterator

from docs.markdown import table
from gpushare.compatibility import RULES, rules
from gpushare.compatibility.rules import Version, cuda_text, driver_text


def compatibility() -> Iterator[str]:
    """Yield the rules and the tables that they rest on."""
    yield "`gpushare compat` judges an image by these rules, and so does the daemon when a"
    yield "container with a GPU is made (`compat` in [gpushare.yaml](configuration.md)). How to"
    yield "read its answer: [check an image](../how-to/check-an-image.md)."
    yield ""
    yield from ("## Rules", "")
    yield from table(("rule", "when"), [(f"`{name}`", said) for name, said in RULES.items()])
    yield from toolkits()
    yield from cards()
    yield from ("## The interposer", "")
    yield "Its table of calls is made of the headers of CUDA"
    yield (
        f"{cuda_text(rules.BASELINE_OLDEST)} to {cuda_text(rules.BASELINE_NEWEST)}. Each form "
        "that a call ever"
    )
    yield "had is in it, so an older runtime is mediated as a newer one; what is newer than the"
    yield "table passes, and the audit charges it. A whole card has no interposer: no such bound."
    yield ""


def toolkits() -> Iterator[str]:
    """Yield which driver came with which toolkit, and which runs it at all."""
    yield from ("## Toolkits and drivers", "")
    yield "A driver runs the CUDA that it came with, and every older one. Of the same major"
    yield "version it runs newer ones too, without what is new in them and without their PTX, from"
    yield "the least driver on. Before 11 every release takes its own driver."
    yield ""
    yield from table(
        ("CUDA", "came with driver", "least driver"),
        [(cuda_text(cuda), driver_text(own), _least(cuda)) for cuda, own in rules.TOOLKITS.items()],
    )


def cards() -> Iterator[str]:
    """Yield which toolkits make programs for which cards, and what those compute with."""
    yield from ("## Cards", "")
    rows = []
    for capability, known in rules.ARCHITECTURES.items():
        last = f"{known.last}.x" if known.last else "goes on"
        rows.append((cuda_text(capability), known.name, cuda_text(known.first), last))
    headings = ("compute capability", "name", "first CUDA", "last CUDA")
    yield from table(headings, rows)
    yield from ("## Formats of numbers", "")
    formats = [
        (f"`{name}`", cuda_text(one.capability), one.instead)
        for name, one in rules.PRECISIONS.items()
    ]
    yield from table(("format", "from compute capability", "instead"), formats)


def _least(cuda: Version) -> str:
    least = rules.MINOR_COMPATIBLE.get(cuda[0], rules.TOOLKITS[cuda])
    return driver_text(least)
