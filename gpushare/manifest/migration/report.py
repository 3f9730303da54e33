# SPDX-License-Identifier: Apache-2.0
"""A plan as text, Markdown and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import yaml

from gpushare.manifest.migration.inventory import FoundWorkload
from gpushare.manifest.migration.plan import MigrationPlan
from gpushare.manifest.migration.steps import VALUES_FILE, MigrationStep

_WIDTH: Final = 100


def as_data(plan: MigrationPlan) -> dict[str, Any]:
    """Return a plan as JSON has it."""
    inventory, version = plan.inventory, plan.cluster.version
    return {
        "system": inventory.system.name,
        "mode": plan.mode,
        "kubernetes": version and ".".join(map(str, version)),
        "objects": [
            {
                "role": one.role,
                "replaced_by": plan.replacement(one.role),
                "kind": one.document.kind,
                "namespace": one.document.namespace,
                "name": one.document.name,
                "release": one.release,
                "at": one.place,
            }
            for one in inventory.objects
        ],
        "nodes": inventory.nodes,
        "workloads": [
            {**asdict(one), "stays": one.stays(plan.mode) if plan.translates != "none" else ""}
            for one in inventory.workloads
        ],
        "labels": [asdict(one) for one in plan.labels],
        "settings": [asdict(one) for one in plan.settings],
        "values": plan.values,
        "steps": [asdict(one) for one in plan.steps],
    }


def as_markdown(plan: MigrationPlan) -> str:
    """Return a plan as a document."""
    return "\n".join(_Markdown().lines(plan))


def as_text(plan: MigrationPlan) -> str:
    """Return a plan for a terminal."""
    return "\n".join(_Text().lines(plan))


class _Markdown:
    """The parts of a plan, in Markdown."""

    def title(self, text: str) -> Iterator[str]:
        yield from (f"# {text}", "")

    def heading(self, text: str) -> Iterator[str]:
        yield from (f"## {text}", "")

    def paragraph(self, text: str) -> Iterator[str]:
        yield from (text, "")

    def bullets(self, lines: Sequence[str]) -> Iterator[str]:
        if lines:
            yield from (*(f"- {line}" for line in lines), "")

    def code(self, lines: Sequence[str], language: str = "sh") -> Iterator[str]:
        yield from (f"```{language}", *lines, "```", "")

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
        yield self._row(heads)
        yield self._row(["---"] * len(heads))
        yield from map(self._row, rows)
        yield ""

    def _row(self, cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') or '-' for cell in cells)} |"

    def lines(self, plan: MigrationPlan) -> Iterator[str]:
        """Yield the lines of the whole plan."""
        inventory, system = plan.inventory, plan.inventory.system
        yield from self.title(f"From {system.title} to gpushare")
        pods = sum(one.pods for one in inventory.workloads)
        yield from self.paragraph(
            f"The dump has {_count(inventory.objects, 'object')} of {system.title}, "
            f"{_count(inventory.nodes, 'node')} and "
            f"{_count(inventory.workloads, 'container')} with its keys, in "
            f"{_count(range(pods), 'pod')}. The steps are for nodes in the mode {plan.mode}."
        )
        yield from self._found(plan)
        yield from self._becomes(plan)
        if system.notes:
            yield from self.heading("Differences")
            yield from self.bullets(system.notes)
        for number, step in enumerate(plan.steps, 1):
            yield from self._step(number, step)

    def _found(self, plan: MigrationPlan) -> Iterator[str]:
        inventory = plan.inventory
        if inventory.objects:
            yield from self.heading("What there is")
            rows = [
                [str(one), one.role, plan.replacement(one.role), one.release, one.place]
                for one in inventory.objects
            ]
            heads = ["object", "role", "replaced by", "helm release", "in the dump"]
            yield from self.table(heads, rows)
        if plan.labels:
            yield from self.heading("Node labels and annotations")
            rows = [[one.key, _values(one.values), one.meaning, one.then] for one in plan.labels]
            yield from self.table(["key", "value (nodes)", "meaning", "in gpushare"], rows)

    def _becomes(self, plan: MigrationPlan) -> Iterator[str]:
        workloads = plan.inventory.workloads
        if workloads:
            yield from self.heading("Workloads")
            rows = [
                [f"{one.owner}, {one.container}", str(one.pods), _keys(one), _request(one)]
                for one in workloads
            ]
            yield from self.table(["workload, container", "pods", "today", "in gpushare"], rows)
            yield from self.heading("Keys")
            keys = {(key.where, key.key): key.becomes for one in workloads for key in one.keys}
            rows = [[key, where, becomes] for (where, key), becomes in sorted(keys.items())]
            yield from self.table(["key", "location", "becomes"], rows)
        if plan.settings:
            yield from self.heading("Settings")
            rows = [
                [one.where, f"{one.key}={one.value}", _converted(one.values), one.why]
                for one in plan.settings
            ]
            yield from self.table(["where", "setting", "gpushare.yaml", "notes"], rows)
        yield from self.heading(VALUES_FILE)
        text = yaml.safe_dump(dict(plan.values), sort_keys=False)
        yield from self.code(str(text).rstrip("\n").splitlines(), "yaml")

    def _step(self, number: int, step: MigrationStep) -> Iterator[str]:
        yield from self.heading(f"{number}. {step.title}")
        yield from self.paragraph(step.why)
        if step.commands:
            yield from self.code(_lines(step.commands))
        yield from self.bullets(step.notes)
        if step.back:
            yield from self.paragraph("The way back:")
            are_commands = all(line.startswith(("kubectl", "helm")) for line in step.back)
            yield from self.code(_lines(step.back)) if are_commands else self.bullets(step.back)


class _Text(_Markdown):
    """The same for a terminal: rows of tables are paragraphs, and commands are indented."""

    def title(self, text: str) -> Iterator[str]:
        yield from (text.upper(), "")

    def heading(self, text: str) -> Iterator[str]:
        yield from (text, "-" * len(text))

    def paragraph(self, text: str) -> Iterator[str]:
        yield from (textwrap.fill(text, _WIDTH, break_on_hyphens=False), "")

    def bullets(self, lines: Sequence[str]) -> Iterator[str]:
        for line in lines:
            yield textwrap.fill(
                line,
                _WIDTH,
                initial_indent="- ",
                subsequent_indent="  ",
                break_on_hyphens=False,
                break_long_words=False,
            )
        if lines:
            yield ""

    def code(self, lines: Sequence[str], language: str = "sh") -> Iterator[str]:
        del language
        yield from (*(f"    {line}" for line in lines), "")

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
        for row in rows:
            yield row[0]
            width = max(map(len, heads[1:]))
            for head, cell in zip(heads[1:], row[1:], strict=True):
                if cell:
                    yield f"    {head:{width}}  {cell}"
        yield ""


def _count(found: Sequence[Any], what: str) -> str:
    return f"{len(found)} {what}{'' if len(found) == 1 else 's'}"


def _values(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{value or 'empty'} ({number})" for value, number in counts.items())


def _keys(one: FoundWorkload) -> str:
    return ", ".join(f"{key.key}={key.value}" for key in one.keys)


def _request(one: FoundWorkload) -> str:
    if one.problems:
        return f"refused: {'; '.join(one.problems)}"
    return ", ".join(f"{key}={text}" for key, text in one.request.items())


def _converted(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in values.items())


def _lines(commands: Sequence[str]) -> list[str]:
    return [line for command in commands for line in command.splitlines()]
