# SPDX-License-Identifier: Apache-2.0
"""What differs between two recordings, but for renames, sentences and what is never the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.guard.vocabulary import NAMES

RENAMES: Final = Path(__file__).with_name("renames.yaml")
SECTIONS: Final = (
    "events",
    "event_fields",
    "replies",
    "tenants",
    "status",
    "specs",
    "explain",
    "validate",
    "convert",
    "ledger",
    "rendered",
    "metrics",
)
#: Sections in which each character counts: these are read by programs, or were made by one.
_EXACT: Final = frozenset({"specs", "rendered", "metrics"})
#: The sum of parts depends on the order in which they were added.
_ROUNDING: Final = 0.11
_NAMES: Final = re.compile(
    r"(?<![\w./-])(?:" + "|".join(map(re.escape, NAMES)) + r")(?![\w-]|\.\w)"
)
#: Findings are sorted by their text as well, which is not compared.
_FINDING: Final = ("line", "column", "key", "level", "value")
#: Texts for people, however short they are.
_TEXTS: Final = frozenset({"rule", "fix", "meaning", "means", "error", "problems"})
#: What is recorded after each step of a story is of these sections.
_STORY_SECTIONS: Final = {
    "tenants": "tenants",
    "cards": "status",
    "metrics": "status",
    "files": "ledger",
    "cdi": "specs",
    "shown": "rendered",
    "served": "metrics",
}
_NO_STORY: Final[Mapping[str, Any]] = {"steps": [], "events": {"tenants": {}, "others": {}}}
_SHOWN: Final = 40
_WIDE: Final = 160
_MISSING: Final = "(nothing)"


@dataclass(frozen=True)
class AllowedDifferences:
    """What may differ: `renames` by section, keys that were `added`, and how texts are compared."""

    renames: Mapping[str, Mapping[str, str | None]]
    added: tuple[str, ...]
    texts: bool

    @classmethod
    def read(cls, path: Path, *, texts: bool) -> AllowedDifferences:
        """Return the rules of a file like renames.yaml; ValueError for an unknown section."""
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        unknown = set(found) - {*SECTIONS, "added"}
        if unknown:
            raise ValueError(f"{path}: no section is called {', '.join(sorted(unknown))}")
        renames = {name: found.get(name) or {} for name in SECTIONS}
        return cls(renames, tuple(found.get("added") or ()), texts)

    def key(self, section: str, path: tuple[str, ...], key: str) -> str | None:
        """Return what `key` beneath `path` is called now; None where it is gone."""
        if path and path[-1] == "events":
            return self.renames["events"].get(key, key)  # how often each happened
        for name, renamed in self.renames[section].items():
            if "=" not in name and _ends(path, key, name):
                return renamed
        return key

    def value(self, section: str, path: tuple[str, ...], value: Any) -> Any:
        """Return what a value at `path` is now."""
        renames = self.renames[section]
        if section in _EXACT and isinstance(value, str):
            for old, new in renames.items():
                value = value.replace(old, new or "")
            return value
        for name, renamed in renames.items():
            where, equals, old = name.partition("=")
            if equals and path and old == str(value) and _ends(path[:-1], path[-1], where):
                return renamed
        return value

    def is_gone(self, section: str, text: Any) -> bool:
        """Whether a line, or a key in a text of which each character counts, is gone."""
        renames = self.renames[section]
        return section in _EXACT and isinstance(text, str) and renames.get(text, text) is None

    def is_added(self, path: tuple[str, ...], key: str) -> bool:
        """Whether a key that only the second recording has is known to be new."""
        return any(_ends(path, key, one) for one in self.added)


def _ends(path: tuple[str, ...], key: str, name: str) -> bool:
    """Whether `key` beneath `path` ends as `name` says; a name may have dots in it itself."""
    whole = ".".join((*path, key))
    return whole == name or whole.endswith(f".{name}")


@dataclass(frozen=True)
class Difference:
    """One place where the recordings differ; those of one `kind` differ in the same way."""

    where: str
    kind: str
    before: Any
    after: Any


def report(before: Any, after: Any, rules: AllowedDifferences, *, everything: bool) -> int:
    """Print what differs, by kind and with how often; return 1 if anything does."""
    kinds: dict[str, list[Difference]] = {}
    for one in differences(before, after, rules):
        kinds.setdefault(one.where if everything else one.kind, []).append(one)
    if not kinds:
        print("guard: the recordings are equal")
        return 0
    most = len(kinds) if everything else _SHOWN
    for found in sorted(kinds.values(), key=len, reverse=True)[:most]:
        first = found[0]
        print(f"{len(found):5} x  {first.where}")
        print(f"          - {_short(first.before)}")
        print(f"          + {_short(first.after)}")
    total = sum(map(len, kinds.values()))
    left = f"; {len(kinds) - most} more kinds with --all" if len(kinds) > most else ""
    print(f"guard: {total} differences of {len(kinds)} kinds{left}")
    return 1


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 3]}..."


def differences(before: Any, after: Any, rules: AllowedDifferences) -> Iterator[Difference]:
    """Yield each place where `after` is not what `before` becomes by the rules."""
    for node in sorted({*before, *after}):
        old, new = before.get(node, {}), after.get(node, {})
        if node == "rendered":
            yield from _Walk(rules, "rendered", node).compare((), old, new)
            continue
        if node.startswith("story "):
            yield from _of_story(node, old or _NO_STORY, new or _NO_STORY, rules)
            continue
        if node == "commands":
            for file, label, one, other in _pairs(old, new):
                section = label.split()[0]
                yield from _Walk(rules, section, f"{file}: {label}").compare((), one, other)
            continue
        for part in sorted({*old, *new}):
            one, other = old.get(part, {}), new.get(part, {})
            if part == "events":
                yield from _events(node, one, other, rules)
            elif part in {"cases", "corpus", "launched", "opened"}:
                yield from _of_cases(f"{node}: {part}", one, other, rules)
            elif part in {"restarts", "states"}:
                yield from _Walk(rules, "tenants", f"{node}: {part}").compare((), one, other)
            else:
                section = "replies" if part == "policies" else "status"
                yield from _Walk(rules, section, f"{node}: {part}").compare((), one, other)


def _of_story(name: str, old: Any, new: Any, rules: AllowedDifferences) -> Iterator[Difference]:
    yield from _events(name, old["events"], new["events"], rules)
    for number, ((label, one), (label_now, other)) in enumerate(
        zip(old["steps"], new["steps"], strict=False)
    ):
        where = f"{name} {number} {label}"
        if label != label_now:
            yield Difference(where, name, label, label_now)
            return
        for part in sorted({*one, *other}):
            walk = _Walk(rules, _STORY_SECTIONS.get(part, "replies"), f"{where}: {part}")
            yield from walk.compare((), one.get(part), other.get(part))
    if len(old["steps"]) != len(new["steps"]):
        yield Difference(name, f"{name} steps", old["steps"], new["steps"])


def _pairs(old: Any, new: Any) -> Iterator[tuple[str, str, Any, Any]]:
    for name in sorted({*old, *new}):
        for label in sorted({*old.get(name, {}), *new.get(name, {})}):
            yield name, label, old.get(name, {}).get(label), new.get(name, {}).get(label)


def _of_cases(where: str, old: Any, new: Any, rules: AllowedDifferences) -> Iterator[Difference]:
    sections = {"spec": "specs", "tenant": "tenants"}
    for name, label, one, other in _pairs(old, new):
        if label != "then":
            section = sections.get(label, "replies")
            yield from _Walk(rules, section, f"{where} {name}: {label}").compare((), one, other)
            continue
        for (step, shown), (_, shown_now) in zip(one or (), other or (), strict=False):
            walk = _Walk(rules, "tenants", f"{where} {name}: {step}")
            yield from walk.compare((), shown, shown_now)
        if len(one or ()) != len(other or ()):
            yield Difference(f"{where} {name}", f"{where} then", one, other)


def _events(node: str, old: Any, new: Any, rules: AllowedDifferences) -> Iterator[Difference]:
    for whose in sorted({*old["tenants"], *new["tenants"]}):
        one = [_renamed(event, rules) for event in old["tenants"].get(whose, ())]
        other = new["tenants"].get(whose, [])
        where = f"{node}: events of {whose}"
        # What ends is told of by two threads, in either order.
        one, other = (sorted(some, key=lambda event: str(event["event"])) for some in (one, other))
        one, other = _killed_once(one), _killed_once(other)
        names, names_now = ([event["event"] for event in some] for some in (one, other))
        if names != names_now:
            yield Difference(where, f"{node} events {names} {names_now}", names, names_now)
            continue
        for event, event_now in zip(one, other, strict=True):
            name = str(event["event"])
            yield from _Walk(rules, "event_fields", where).compare((name,), event, event_now)
    others = {str(_renamed(event, rules)["event"]): event for event in old["others"].values()}
    for name in sorted({*others, *new["others"]}):
        fields, fields_now = others.get(name), new["others"].get(name)
        if fields is None or fields_now is None:
            where = f"{node}: event {name}"
            yield Difference(where, where, fields or _MISSING, fields_now or _MISSING)
            continue
        # Of these the first one is compared, and by its fields: what they say is of the moment.
        keys = {rules.key("event_fields", (name,), key) for key in fields} - {None}
        added = {key for key in fields_now if not rules.is_added((name,), key)}
        if keys != added:
            where = f"{node}: fields of {name}"
            yield Difference(where, where, sorted(map(str, keys)), sorted(added))


def _killed_once(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `events` without repeated kills: a process that is slow to exit is killed again."""
    return [
        event
        for at, event in enumerate(events)
        if not at or event["event"] != "tenant-killed" or events[at - 1]["event"] != "tenant-killed"
    ]


def _renamed(event: Mapping[str, Any], rules: AllowedDifferences) -> dict[str, Any]:
    name = str(event["event"])
    return {**event, "event": rules.renames["events"].get(name, name)}


@dataclass(frozen=True)
class _Walk:
    """Compares two values, and what is in them; the paths are those of `before`."""

    rules: AllowedDifferences
    section: str
    where: str

    def compare(self, path: tuple[str, ...], one: Any, other: Any) -> Iterator[Difference]:
        """Yield the differences of two values at `path`."""
        is_card = path[-2:] == ("cards", "rows") or path[-1:] == ("card",)
        if is_card and self.section in {"replies", "tenants"}:
            yield from _Walk(self.rules, "status", self.where).compare(("card",), one, other)
            return
        if isinstance(one, dict) and isinstance(other, dict):
            yield from self._objects(path, one, other)
        elif isinstance(one, list) and isinstance(other, list):
            one = [it for it in one if not self.rules.is_gone(self.section, it)]
            if len(one) != len(other):
                yield self._difference(path, "length", one, other)
                return
            if path[-1:] == ("findings",):
                one, other = _by_position(one), _by_position(other)
            if path[-1:] == ("problems",):
                one, other = (
                    sorted(some, key=lambda text: sorted(_named(text))) for some in (one, other)
                )
            for old, new in zip(one, other, strict=True):
                yield from self.compare(path, old, new)
        elif not self._are_equal(path, self.rules.value(self.section, path, one), other):
            yield self._difference(path, f"{type(one).__name__}", one, other)

    def _objects(
        self, path: tuple[str, ...], one: Mapping[str, Any], other: Mapping[str, Any]
    ) -> Iterator[Difference]:
        seen = set()
        for key, value in one.items():
            now = self._key(path, key)
            if now is None:
                continue
            seen.add(now)
            if now not in other:
                yield self._difference((*path, key), "gone", value, _MISSING)
            else:
                yield from self.compare((*path, key), value, other[now])
        for key, value in other.items():
            if key not in seen and not self.rules.is_added(path, key):
                yield self._difference((*path, key), "new", _MISSING, value)

    def _key(self, path: tuple[str, ...], key: str) -> str | None:
        if self.section in _EXACT:
            is_gone = self.rules.is_gone(self.section, key)
            return None if is_gone else str(self.rules.value(self.section, path, key))
        return self.rules.key(self.section, path, key)

    def _are_equal(self, path: tuple[str, ...], one: Any, other: Any) -> bool:
        if one == other and type(one) is type(other):
            return True
        if isinstance(one, float) and isinstance(other, float):
            return abs(one - other) <= _ROUNDING
        if self.rules.texts or self.section in _EXACT:
            return False
        if not (isinstance(one, str) and isinstance(other, str)):
            return False
        if not ((_is_sentence(one) or (path[-1:] and path[-1] in _TEXTS)) and other):
            return False
        return _named(one) == _named(other)

    def _difference(self, path: tuple[str, ...], what: str, one: Any, other: Any) -> Difference:
        place = ".".join(path)
        of = re.sub(r"[\w<>-]*\d[\w<>.-]*", "N", self.where)
        shown = "" if what == "length" else f" {_short(one)[:40]} {_short(other)[:40]}"
        kind = f"{of} {place} {what}{shown if isinstance(one, str) else ''}"
        return Difference(f"{self.where}: {place}", kind, one, other)


def _by_position(findings: list[Any]) -> list[Any]:
    def place(one: Any) -> tuple[Any, ...]:
        return (*(one.get(key) for key in _FINDING), sorted(_named(str(one.get("fix", "")))))

    return sorted(findings, key=place)


def _is_sentence(text: str) -> bool:
    """Whether it is English for people; "4GiB env GPUSHARE_MEMORY" is a value and its source."""
    return text.count(" ") > 2 or (" " in text and text.rstrip().endswith("."))


def _named(text: str) -> set[str]:
    return set(_NAMES.findall(text))
