# SPDX-License-Identifier: Apache-2.0
"""Other systems' keys (gpushare/quota/dialects), as entries: one a dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpushare.quota.dialects import DIALECTS
from gpushare.topics.entry import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.quota.dialects import Dialect, Row

GROUP: Final = "Vendors"
#: What else users call the product, or who makes it; a maker may have several.
ALSO: Final = {
    "alibaba": ("aliyun", "ack", "cgpu"),
    "egpu": ("aliyun", "pai"),
    "qgpu": ("tencent", "tke"),
    "vcuda": ("tencent", "gpu-manager", "gaiagpu"),
    "elasticgpu": ("tencent",),
    "mgpu": ("volcengine", "vke"),
    "hami": ("hami-core",),
    "volcano": ("volcano-vgpu",),
    "nvidia": ("nvidia-container-toolkit",),
    "kai": ("run:ai", "kai-scheduler"),
    "huawei": ("cce", "xgpu"),
    "baidu": ("baidu-cce",),
    "aws": ("ecs",),
    "gke": ("google",),
    "orionx": ("orion", "virtaitech"),
}
_WHERE: Final = {
    "env": "variable",
    "limit": "resources.limits",
    "label": "label of the pod",
    "node label": "label of a node",
    "node annotation": "annotation of a node",
    "node file": "file of a node",
    "plugin": "configuration of its device plugin",
    "task": "task definition",
}
_TOTAL: Final = "all cards together"


def entries() -> list[Entry]:
    """Return an entry for each dialect."""
    return [_entry(one) for one in DIALECTS.values()]


def _entry(dialect: Dialect) -> Entry:
    return Entry(
        dialect.name,
        GROUP,
        f"Keys of {dialect.title}, and their meaning here.",
        also=ALSO.get(dialect.name, ()),
        see=("dialects", "units", "limits-and-labels", "docs/reference/dialects.md"),
        parts={"text": "\n".join(_lines(dialect))},
    )


def _lines(dialect: Dialect) -> Iterator[str]:
    for row in dialect.rows:
        if row.use != "kept":
            yield f"- {_key(row)}"
    kept = [f"`{row.name}`" for row in dialect.rows if row.use == "kept"]
    if kept:
        yield f"- Its own bookkeeping, which asks for nothing: {', '.join(kept)}."
    said = [*dialect.notes, *(_assumed(dialect))]
    if said:
        yield ""
        yield from (f"- {_sentence(one)}" for one in said)
    if any(not row.reaches for row in dialect.rows):
        yield ""
        yield (
            "Only variables and annotations reach a runtime. What brings the rest to it: "
            f"{dialect.translation}."
        )


def _key(row: Row) -> str:
    """Return `nvidia.com/gpumem` (resources.limits, MiB): Memory of each card. Here: memory."""
    about = [_WHERE.get(row.where, row.where)]
    about += [row.unit.name] if row.unit.name else []
    about += [_TOTAL] if row.total and _TOTAL not in row.meaning else []
    if row.gives:
        here = f"Here: {row.gives}, divided by the cards." if row.total else f"Here: {row.gives}."
    else:
        here = f"Here: {row.instead}." if row.instead else ""
    return f"`{row.name}` ({'; '.join(about)}): {_sentence(row.meaning)} {here}".rstrip()


def _assumed(dialect: Dialect) -> Iterator[str]:
    for one in dialect.assumed:
        amount = f"the amount of {one.like}" if one.like else one.text
        yield f"Where {one.key} is not said it is {amount}{f': {one.why}' if one.why else ''}"


def _sentence(text: str) -> str:
    said = text if text.endswith((".", ":")) else f"{text}."
    return f"{said[0].upper()}{said[1:]}"
