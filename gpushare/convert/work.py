# SPDX-License-Identifier: Apache-2.0
"""One file on its way: what its containers ask, what goes of it, and what comes in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpushare.convert import same
from gpushare.convert.asks import Asks, Found, asks_of
from gpushare.convert.edits import CannotEdit, Edit, New, Quoted
from gpushare.convert.lines import line_of
from gpushare.convert.place import CLASS, OURS, SERVING, Place, same_names, surface_of
from gpushare.convert.plan import Path, Plan
from gpushare.convert.said import Saying, What
from gpushare.convert.targets import Target, Unsayable
from gpushare.convert.tree import Node, trees
from gpushare.convert.words import Lost, Words, Written, words
from gpushare.manifest import Container, Document, File, Pod, Value
from gpushare.manifest.nodes import readable
from gpushare.manifest.own import Refusal
from gpushare.quota import QuotaError
from gpushare.quota.dialects import TABLES

_LONGEST: Final = 63  # what Kubernetes lets an annotation's name have behind its slash
#: Schedulers that place the pods of one vendor's device plugin alone.
_SCHEDULERS: Final = {"hami-scheduler": "hami"}


@dataclass
class Work:
    """One file on its way."""

    file: File
    target: Target
    said: list[Saying] = field(default_factory=list)
    reasons: list[tuple[int, str]] = field(default_factory=list)
    done: list[tuple[Asks, Words, list[New]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The last line may have no line break: it gets one while lines are put beneath it.
        self.ending = "" if self.file.text.endswith("\n") else "\n"
        self.text = self.file.text + self.ending
        self._nodes: dict[tuple[str, int], Node] = {}
        self._plans: dict[int, Plan] = {}
        self._annotated: dict[int, list[New]] = {}
        self._known: set[Saying] = set()
        for root in trees(readable(self.text)):
            plan = Plan(self.text, root)
            for node in root.walk():
                self._nodes.setdefault((node.kind, node.start), node)
                self._plans[id(node)] = plan

    def edits(self) -> Iterator[Edit]:
        """Yield the edits of all documents."""
        for plan in self.plans:
            yield from plan.edits()

    @property
    def plans(self) -> list[Plan]:
        """The plan of each document of the text."""
        return list({id(plan): plan for plan in self._plans.values()}.values())

    def placed(self, container: Container) -> tuple[Plan, Node, Path]:
        """Return where a container is."""
        return self._plan(container)

    def say_comments(self, comments: Sequence[str], text: str) -> None:
        """Say which comments are not in `text` any more."""
        for comment in dict.fromkeys(comments):
            if comment not in text:
                at = self.text.index(comment)
                why = "this comment went with its key"
                self.said.append(Saying(line_of(self.text, at), comment, "note", why))

    def document(self, document: Document) -> None:
        """Plan what is to change in a document."""
        self._say_settings(document)
        for pod in document.pods:
            asking = [
                asks
                for asks in (self._asks(one) for one in pod.containers)
                if asks is not None and (asks.foreign or asks.kept or asks.alone)
            ]
            for container in pod.containers:
                self._say_unknown(container)
            changing = [one for one in asking if one.foreign and one.layer]
            for one in asking:
                self._say_kept(one)
            if changing:
                try:
                    self._pod(pod, changing)
                except CannotEdit as error:
                    self.reasons.append((line_of(self.text, error.index), str(error)))

    def _asks(self, container: Container) -> Asks | None:
        try:
            asks = asks_of(container, self.target.dialect)
        except QuotaError as error:
            self.reasons.append((container.line, str(error)))
            return None
        for problem in asks.request.problems:
            line = container.line if problem.value is None else problem.value.line
            self.reasons.append((line, told(problem)))
        return None if asks.request.problems else asks

    # --- what is only said ---

    def _say(self, value: Value | Container, key: str, what: What, why: str) -> None:
        saying = Saying(value.line, key, what, why)
        if saying not in self._known:
            self._known.add(saying)
            self.said.append(saying)

    def _say_settings(self, document: Document) -> None:
        """Say what operators' settings become: of node labels, and of a device plugin's file."""
        for where, values in (
            ("node label", document.labels if document.kind == "Node" else {}),
            ("node annotation", document.annotations if document.kind == "Node" else {}),
            ("plugin", document.plugin),
        ):
            texts = {name: value.text for name, value in values.items()}
            for word in TABLES.find(where, texts):  # type: ignore[arg-type]
                if word.row.instead and self.target.name == OURS:
                    why = f"{word.dialect.title}: the node's operator says it: {word.row.instead}"
                    self._say(values[word.name], word.name, "left", why)

    def _say_unknown(self, container: Container) -> None:
        """Say which requests are not in the file: a shell has them, or a ConfigMap."""
        unknown = dict.fromkeys(container.unknown, "")
        for word in TABLES.find("env", unknown):
            if word.row.gives and word.row.use == "asks":
                why = "its value is not in this file, so it is not converted"
                self._say(container, word.name, "left", why)
        for name, value in container.env.items():
            written = value.value_node.value.removeprefix(f"{name}=")
            if written != value.text and TABLES.find("env", {name: value.text}):
                self._say(value, name, "note", f"of {written} the default, {value.text}, is taken")

    def _say_kept(self, asks: Asks) -> None:
        """Say what stays, or goes without a word in its place."""
        for found in asks.alone:
            assert found.word is not None
            why = found.word.row.instead or "no other system has this"
            self._say(found.value, found.name, "left", f"it is not converted: {why}")
        for found in asks.kept:
            assert found.word is not None
            row = found.word.row
            title = found.word.dialect.title
            if row.where == "claim":
                why = f"claims are not converted: {title} goes on to give what this one asks"
                self._say(found.value, found.name, "left", why)
            elif row.where == "limit":
                why = row.instead or f"{title}'s, and nothing of {self.target.title} does the same"
                self._say(found.value, found.name, "lost", f"taken out: {why}")
                self._remove(asks.container, found)
            elif row.use != "kept" and row.instead:
                self._say(found.value, found.name, "left", f"it does no harm; {row.instead}")
            else:
                why = f"it does no harm: {title} alone reads it ({row.meaning.rstrip('.')})"
                self._say(found.value, found.name, "left", why)

    # --- a pod ---

    def _pod(self, pod: Pod, asking: Sequence[Asks]) -> None:
        surface = surface_of(pod.document.kind)
        made: list[tuple[Asks, Words]] = []
        for asks in asking:
            try:
                quota = same.quota_of(asks.layer)
                made.append((asks, words(asks.layer, quota, self.target, surface)))
            except Unsayable as error:
                self.reasons.append((asks.line, f"{asks.container.name}: {error}"))
            except QuotaError as error:
                self.reasons.append((asks.line, str(error)))
        if len(made) < len(asking):
            return
        for asks, said in made:
            for note in asks.request.notes:
                self._say(asks.container, asks.container.name, "note", note)
            for lost in said.lost:
                self._say_lost(asks, lost)
            self._say_policy(asks)
        self._agree(made)
        for asks, said in made:
            self.done.append((asks, said, self._write(pod, asks, said)))
        self._runtime(pod)

    def _say_policy(self, asks: Asks) -> None:
        """Say where a policy came from that no manifest has: the label of the vendor's nodes."""
        if self.target.name != OURS or "cores" not in asks.layer or "policy" in asks.layer:
            return
        for row in (row for said in asks.request.spoken if said.layer for row in said.dialect.rows):
            if row.where == "node label" and "defaults.policy" in row.instead:
                why = f"its policy was said by nodes ({row.name}): {row.instead}, else fixed-share"
                self._say(asks.container, asks.container.name, "note", why)

    def _say_lost(self, asks: Asks, lost: Lost) -> None:
        source = asks.layer[lost.key].source.name if lost.key in asks.layer else ""
        found = next((one for one in asks.foreign if one.name == source), None)
        value: Value | Container = found.value if found else asks.container
        self._say(value, source or lost.key, "lost", f"{lost.key} {lost.text}: {lost.why}")

    def _plan(self, container_or_pod: Container | Pod) -> tuple[Plan, Node, Path]:
        node = self._tree(container_or_pod.node.start_mark.index)
        plan = self._plans[id(node)]
        return plan, node, (*self._path(container_or_pod.document), *container_or_pod.place)

    def _tree(self, start: int) -> Node:
        return self._nodes["mapping", start]

    def _path(self, document: Document) -> Path:
        """Return where a document is in its text: an item of a List, or the root."""
        root = self._tree(document.root.start_mark.index)
        return self._plans[id(root)].path_of(root)

    def _remove(self, container: Container, found: Found) -> None:
        value = found.value
        plan, _, _ = self._plan(container)
        path = (*self._path(container.document), *value.place)
        if found.word is not None and found.word.row.where == "label":
            selected = plan.at_or_none((*self._path(container.document), "spec", "selector"))
            if selected is not None and any(
                node.kind == "scalar" and node.text == found.name for node in selected.walk()
            ):
                why = "it does no harm; the selector names it"
                self._say(value, found.name, "left", why)
                return
        for depth in range(len(path) - 1, 0, -1):
            if isinstance(path[depth], int):  # NAME=VALUE, or {name: ..., value: ...}
                of = plan.at(path[:depth])
                for number in same_names(of, int(path[depth])):
                    plan.remove_item(of, number, path[:depth])
                return
            if depth < len(path) - 1 or path[-1] not in {"value", "Value"}:
                break
        key = self._nodes["scalar", value.key_node.start_mark.index]
        assert key.parent is not None
        entry = next(one for one in key.parent.entries if one.key is key)
        plan.remove(entry, path[:-1])

    # --- what is written ---

    def _agree(self, made: Sequence[tuple[Asks, Words]]) -> None:
        """Leave out what one container wants of a pod's annotations and another does not."""
        if self.target.scoped:
            return
        first: dict[str, Written] = {}
        for asks, said in made:
            for one in [one for one in said.written if one.where == "annotation"]:
                if first.setdefault(one.name, one).text != one.text:
                    why = f"{one.name} is of the whole pod, and another container wants another"
                    said.lost.append(Lost(one.key, one.text, why))
                    self._say_lost(asks, said.lost[-1])
                    said.written.remove(one)

    def _write(self, pod: Pod, asks: Asks, said: Words) -> list[New]:
        """Take out what is said in other words, put in the target's; return what is new."""
        surface = surface_of(pod.document.kind)
        new: dict[Written, New] = {}
        stays: set[tuple[str, str]] = set()
        quoted = self._quoted(asks)
        for one in said.written:
            name = self._name(pod, asks.container, one)
            value: str | int | Quoted = one.text
            if one.where == "limit":
                value = Quoted(one.text) if quoted else int(one.text)
            stays.add((name, one.text))
            new[one] = New(name, value)
        standing: set[str] = set()
        for found in (*asks.foreign, *asks.own):
            if (found.name, found.value.text) in stays and not found.of_requests:
                standing.add(found.name)
            else:
                self._remove(asks.container, found)
        plan, node, path = self._plan(asks.container)
        here = Place(plan, node, path)
        written = {one: made for one, made in new.items() if made.key not in standing}
        if limits := [made for one, made in written.items() if one.where == "limit"]:
            here.limits(limits, self._limits(asks))
        if env := [made for one, made in written.items() if one.where == "env"]:
            here.variables(env, surface)
        if of_pod := [made for one, made in written.items() if one.where == "annotation"]:
            self._annotate(pod, of_pod)
        return list(written.values())

    def _limits(self, asks: Asks) -> tuple[Node, Path] | None:
        """Return the mapping in which limits go, which an alias may have brought."""
        for found in asks.foreign:
            if found.word is not None and found.word.row.where == "limit" and not found.of_requests:
                mapping = self._nodes["scalar", found.value.key_node.start_mark.index].parent
                assert mapping is not None
                return mapping, (*self._path(asks.container.document), *found.value.place[:-1])
        return None

    def _quoted(self, asks: Asks) -> bool:
        """Whether the limits that go are in quotes: those that come are too."""
        for found in asks.foreign:
            if found.word is not None and found.word.row.where == "limit":
                return bool(found.value.value_node.style)
        return False

    def _name(self, pod: Pod, container: Container, one: Written) -> str:
        """Return the name of a key, for this container where a pod has others."""
        joined = pod.document.kind in SERVING or container.place[-1:] == ("container",)
        alone = len(pod.containers) == 1 and not joined  # others come in the cluster
        if one.where != "annotation" or not self.target.scoped or alone:
            return one.name
        why = ""
        if not container.name:
            why = "this container has no name to ask by; give it one"
        elif sum(other.name == container.name for other in pod.containers) > 1:
            why = f"two containers of this pod are called {container.name}; rename one"
        domain, _, key = one.name.partition("/")
        name = f"container.{container.name}.{key}"
        if len(name) > _LONGEST:
            why = f"Kubernetes takes no annotation as long as {domain}/{name}; rename the container"
        if why:
            self.reasons.append((container.line, why))
        return f"{domain}/{name}"

    def _annotate(self, pod: Pod, new: Sequence[New]) -> None:
        plan, node, path = self._plan(pod)
        here = Place(plan, node, path)
        there = {key: value.text for key, value in pod.annotations.items()}
        fresh = [one for one in new if there.get(one.key) != one.value]
        wished = {one.key for one in self._annotated.setdefault(id(pod), [])}
        fresh = [one for one in fresh if one.key not in wished]
        self._annotated[id(pod)] += fresh
        if fresh:
            serving = pod.document.kind in SERVING
            here.annotations(fresh, serving=serving, several=len(pod.document.pods) > 1)

    def _runtime(self, pod: Pod) -> None:
        """See to it that our runtime makes these containers, or does no more."""
        surface = surface_of(pod.document.kind)
        if surface not in {"kubernetes", "compose"}:
            if self.target.name == OURS and surface == "ecs":
                why = "ECS names no runtime: make gpushare docker's default on the instance"
                self._say(pod.containers[0], pod.containers[0].name, "note", why)
            return
        plan, node, path = self._plan(pod)
        here, key = Place(plan, node, path), CLASS if surface == "kubernetes" else "runtime"
        self._say_selector(pod, node)
        if self.target.name != OURS:
            here.drop(key, OURS)
            return
        if pod.containers[0].place[-1:] == ("container",):
            why = "Argo's templates have no such key: podSpecPatch: 'runtimeClassName: gpushare'"
            self._say(pod.containers[0], key, "note", why)
            return
        other = here.runtime(key)
        if surface == "kubernetes" and other is None and pod.runtime_class != OURS:
            why = "the cluster needs the RuntimeClass gpushare, and its nodes gpushare setup"
            self._say(pod.containers[0], key, "note", why)
        if other is not None:
            why = f"{other} stays: gpushare gives its part only where {key} is gpushare"
            self._say(pod.containers[0], key, "note", why)
        for scheduler, of in _SCHEDULERS.items():
            if of != self.target.dialect and here.drop("schedulerName", scheduler):
                why = f"{scheduler} was taken out: it places pods of {of} alone"
                self._say(pod.containers[0], "schedulerName", "note", why)

    def _say_selector(self, pod: Pod, node: Node) -> None:
        """Say which labels of a vendor's nodes its pods are kept to."""
        selector = node.get("nodeSelector")
        texts = (
            {} if selector is None else {one.key.text: one.value.text for one in selector.entries}
        )
        for word in TABLES.find("node label", texts):
            if word.dialect.name != self.target.dialect:
                why = f"the pod stays on nodes that {word.dialect.title} labels so"
                self._say(pod.containers[0], f"nodeSelector {word.name}", "left", why)


def told(refusal: Refusal) -> str:
    """Return a refusal as the error that a create fails with."""
    return str(QuotaError(refusal.source, refusal.text, refusal.rule, refusal.fix))
