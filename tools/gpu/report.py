# SPDX-License-Identifier: Apache-2.0
"""What was measured: rows in sections, written as Markdown for readers and as JSON for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

MEASUREMENTS = Path(__file__).resolve().parents[2] / "docs" / "measurements"
SCALES = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us")),
    "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")),
}
DETAIL_SHOWN = 60
REASON_CHARACTERS = 400


class NotMeasured(RuntimeError):
    """Something this row needs is not there; the text says what."""


@dataclass(frozen=True)
class ReportRow:
    """One thing seen. `held` is for a claim, None for a figure; `missing` says why there is none.

    `unit` is "ns" and "bytes" for what they are of; the Markdown scales them, the JSON does not.
    """

    name: str
    value: str | int | float | None = None
    unit: str = ""
    note: str = ""
    held: bool | None = None
    missing: str = ""
    detail: tuple[str, ...] = ()

    @classmethod
    def claim(cls, name: str, held: bool, seen: object = "") -> ReportRow:
        """A claim and whether it held; `seen` is shown where it did not."""
        return cls(name, held=held, note="" if held else str(seen))

    @property
    def shown(self) -> str:
        if self.missing:
            return f"not measured: {self.missing}"
        if self.held is not None:
            return "held" if self.held else "**did not hold**"
        return quantity(self.value, self.unit)


def quantity(value: str | float | None, unit: str = "") -> str:
    """Return `value` as a person writes it: 1536 bytes is 1.5 KiB."""
    if value is None or isinstance(value, str):
        return value or "-"
    for scale, larger in SCALES.get(unit, ()):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {larger}"
    text = str(value) if isinstance(value, int) else f"{value:.4g}"
    return f"{text} {unit}".rstrip()


@dataclass
class ReportSection:
    title: str
    rows: list[ReportRow] = field(default_factory=list)


@dataclass
class GpuReport:
    """Collects rows and shows them as they come; `stream` None keeps quiet."""

    facts: Mapping[str, str]
    stream: TextIO | None = None
    sections: list[ReportSection] = field(default_factory=list)

    def measure(self, title: str, rows: Iterable[ReportRow]) -> None:
        """Take `rows` as they are measured; an exception ends this section and no other."""
        section = ReportSection(title)
        self.sections.append(section)
        self._say(f"\n{title}")
        for row in _guarded(rows):
            section.rows.append(row)
            self._say(f"  {row.name}: {row.shown}{f'  ({row.note})' if row.note else ''}")

    @property
    def rows(self) -> list[ReportRow]:
        return [row for section in self.sections for row in section.rows]

    @property
    def lost(self) -> list[ReportRow]:
        """The claims that did not hold."""
        return [row for row in self.rows if row.held is False]

    @property
    def summary(self) -> str:
        claims = [row for row in self.rows if row.held is not None]
        missing = sum(bool(row.missing) for row in self.rows)
        figures = len(self.rows) - len(claims) - missing
        return (
            f"{len(claims) - len(self.lost)} of {len(claims)} claims held, "
            f"{figures} figures, {missing} not measured"
        )

    def markdown(self) -> str:
        lines = [f"# {self.facts['model']}, {self.facts['date']}", ""]
        lines += [f"- {name}: {value}" for name, value in self.facts.items()]
        lines += [f"- result: {self.summary}", ""]
        for section in self.sections:
            lines += [f"## {section.title}", "", "| what | seen | note |", "|---|---|---|"]
            lines += [
                f"| {_cell(row.name)} | {_cell(row.shown)} | {_cell(row.note)} |"
                for row in section.rows
            ]
            lines += ["", *_details(section.rows)]
        return "\n".join(lines).rstrip() + "\n"

    def json(self) -> str:
        sections = [asdict(section) for section in self.sections]
        return json.dumps({"facts": dict(self.facts), "sections": sections}, indent=1) + "\n"

    def write(self, path: Path) -> None:
        """Write the Markdown to `path` and the JSON beside it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".md").write_text(self.markdown())
        path.with_suffix(".json").write_text(self.json())

    def _say(self, text: str) -> None:
        if self.stream is not None:
            self.stream.write(text + "\n")
            self.stream.flush()


def slug(model: str) -> str:
    """Return a card's model as a part of a file name: "NVIDIA H100 80GB HBM3" is h100-80gb-hbm3."""
    words = re.findall(r"[a-z0-9]+", model.lower().removeprefix("nvidia"))
    return "-".join(words) or "unknown"


def default_path(facts: Mapping[str, str]) -> Path:
    return MEASUREMENTS / f"{facts['date']}-{slug(facts['model'])}.md"


def _guarded(rows: Iterable[ReportRow]) -> Iterator[ReportRow]:
    try:
        yield from rows
    except NotMeasured as error:
        yield ReportRow("the rest of this", missing=_shortened(str(error)))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not cost the other rows
        yield ReportRow("the rest of this", missing=_shortened(f"{type(error).__name__}: {error}"))


def _shortened(text: str) -> str:
    """Return `text` on one line; of a long one, which may be a whole traceback, both its ends."""
    line = " ".join(text.split())
    if len(line) <= REASON_CHARACTERS:
        return line
    return f"{line[: REASON_CHARACTERS // 3]} ... {line[-REASON_CHARACTERS * 2 // 3 :]}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _details(rows: Iterable[ReportRow]) -> list[str]:
    lines = []
    for row in rows:
        if row.detail:
            more = len(row.detail) - DETAIL_SHOWN
            words = ", ".join(f"`{word}`" for word in row.detail[:DETAIL_SHOWN])
            lines += [f"{row.name}: {words}{f' and {more} more' if more > 0 else ''}", ""]
    return lines
