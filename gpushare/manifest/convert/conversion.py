# SPDX-License-Identifier: Apache-2.0
"""Plan the conversion of a file: which keys are removed, and which take their place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from gpushare.errors import ErrorCode, UserError
from gpushare.manifest.convert.plan import CannotEdit, DocumentEdits, NewText, Quoted
from gpushare.manifest.convert.requests import LocatedKey, LocatedRequest, locate_request
from gpushare.manifest.convert.targets import (
    DroppedKey,
    RenderedKey,
    RenderedRequest,
    Surface,
    Target,
    Untranslatable,
    render,
)
from gpushare.manifest.model import (
    Container,
    Document,
    ManifestFile,
    ManifestValue,
    Pod,
)
from gpushare.manifest.request import KeyRefusal, settings_of
from gpushare.quota.dialects import TABLES
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import request_from
from gpushare.quota.node_settings import POLICY
from gpushare.text_position import KeyPath
from gpushare.yaml_nodes import YamlNode, value_at

#: lost: the target has no word for it. left: it stays, and does no harm. note: to know or to do.
NoteKind: TypeAlias = Literal["lost", "left", "note"]


#: The separator of documents: a line of dashes with its comment, or dashes before a document.
_SEPARATOR: Final = re.compile(r"(?m)(^(?:---|\.\.\.)(?:[ \t]*(?:#.*)?\r?\n|[ \t]))")
_COMMENT: Final = re.compile(r"(?m)(?:^|(?<=\s))(#.*)")
_LONGEST: Final = 63  # what Kubernetes lets an annotation's name have behind its slash
#: Schedulers that place the pods of one vendor's device plugin alone.
SCHEDULERS: Final = {"hami-scheduler": "hami"}


@dataclass(frozen=True)
class ConversionNote:
    """One line for the user: which key of which line, and why."""

    line: int
    key: str
    what: NoteKind
    why: str


class CannotConvert(UserError):
    """A file that is left as it is; the text has a line for each reason."""

    code = ErrorCode.INVALID

    def __init__(self, file: ManifestFile, reasons: Sequence[tuple[int, str]]) -> None:
        shown = dict.fromkeys(f"{file.path}:{line}: {why}" for line, why in reasons)
        super().__init__("\n".join((*shown, "nothing was written")))
        self.reasons = tuple(reasons)


@dataclass
class FileConversion:
    """The conversion of one file: its edits, the notes on them, and the reasons against it."""

    file: ManifestFile
    target: Target
    notes: list[ConversionNote] = field(default_factory=list)
    reasons: list[tuple[int, str]] = field(default_factory=list)
    rewritten: list[tuple[LocatedRequest, RenderedRequest, list[NewText]]] = field(
        default_factory=list
    )

    def __post_init__(self) -> None:
        # The last line may have no line break: it gets one while lines are put beneath it.
        self.ending = "" if self.file.text.endswith("\n") else "\n"
        self.parts = _SEPARATOR.split(self.file.text + self.ending)
        self.plans: dict[int, DocumentEdits] = {}
        end = 0
        for number, part in enumerate(self.parts):
            start, end = end, end + len(part)
            for root in self.file.roots:
                if start <= root.start < end and not root.is_empty:
                    self.plans[id(root)] = DocumentEdits(number, part, root)
        self._annotated: dict[int, list[NewText]] = {}
        self._known: set[ConversionNote] = set()

    def apply(self) -> str:
        """Return the text of the file after the edits; CannotEdit where they would change more."""
        parts = list(self.parts)
        for plan in self.plans.values():
            parts[plan.number] = plan.apply()
        return "".join(parts).removesuffix(self.ending)

    def note_comments(self, removed: Sequence[str], text: str) -> None:
        """Note the removed comments that are no longer in `text`; CannotEdit for others."""
        before = self.file.text
        counts = [Counter(raw.rstrip() for raw in _COMMENT.findall(of)) for of in (before, text)]
        fewer = counts[0] - counts[1]
        texts = [n for root in self.file.roots for n in root.walk() if "#" in n.text]
        for match in _COMMENT.finditer(before) if fewer else ():
            comment, at = match[1].rstrip(), match.start(1)
            if comment not in fewer or any(node.start <= at < node.end for node in texts):
                continue
            line = before.count("\n", 0, at) + 1
            if not any(comment in raw for raw in removed):
                why = f"the comment {comment} would be lost; move it away from braces or alias"
                raise CannotEdit(why, line)
            if comment not in text:
                why = "this comment was removed with its key"
                self.notes.append(ConversionNote(line, comment, "note", why))

    def document(self, document: Document) -> None:
        """Plan the edits of a document."""
        self._note_settings(document)
        for pod in document.pods:
            asking = [
                located
                for located in map(self._locate, pod.containers)
                if located is not None
                and (located.to_convert or located.block or located.kept or located.alone)
            ]
            for container in pod.containers:
                self._note_unknown(container)
            changing = [one for one in asking if (one.to_convert or one.block) and one.layer]
            for request in asking:
                self._note_kept(request)
            if changing:
                try:
                    self._pod(pod, changing)
                except CannotEdit as error:
                    self.reasons.append((error.line, str(error)))

    def _locate(self, container: Container) -> LocatedRequest | None:
        located = locate_request(container, self.target.dialect)
        for problem in located.request.problems:
            line = container.line if problem.value is None else problem.value.line
            self.reasons.append((line, refusal_text(problem)))
        cards = container.cards
        if located.block and cards is not None and cards.all_cards:
            why = "not converted: no key of gpushare means all cards. Write their number as count"
            self._note(container, cards.source, "left", why)
            located = replace(located, block=())
        for key in (*located.own, *located.to_convert) if located.to_convert else ():
            if "env_file" in key.value.place:
                why = f"{key.name} is in an env_file, which is not edited; write it in environment"
                self.reasons.append((key.value.line, why))
        return None if located.request.problems else located

    # --- notes ---

    def _note(self, value: ManifestValue | Container, key: str, what: NoteKind, why: str) -> None:
        note = ConversionNote(value.line, key, what, why)
        if note not in self._known:
            self._known.add(note)
            self.notes.append(note)

    def _note_settings(self, document: Document) -> None:
        """Note the operator's settings: labels of nodes, and the file of a device plugin."""
        for word, value in settings_of(document):
            if word.row.instead and word.row.where != "claim" and self.target.name == GPUSHARE:
                title, instead = word.dialect.title, word.row.instead
                why = f"the operator of the node sets this for {title}: {instead}"
                self._note(value, word.name, "left", why)

    def _note_unknown(self, container: Container) -> None:
        """Note the requests whose values are not in the file, but in a shell or a ConfigMap."""
        for text in container.unresolved:
            self._note(container, text, "left", "not converted, because it cannot be resolved here")
        unknown = dict.fromkeys(container.unknown, "")
        for word in TABLES.find("env", unknown):
            if word.row.key and word.row.role == "request":
                why = "not converted, because its value is not in this file"
                self._note(container, word.name, "left", why)
        for name, value in container.env.items():
            written = value.value_node.text.removeprefix(f"{name}=")
            if "$" in written and written != value.text and TABLES.find("env", {name: value.text}):
                self._note(value, name, "note", f"the default of {written} is used: {value.text}")

    def _note_kept(self, located: LocatedRequest) -> None:
        """Note the keys that stay, or that are removed without a replacement."""
        for key in located.alone:
            assert key.word is not None
            why = key.word.row.instead or "no other system has an equivalent"
            self._note(key.value, key.name, "left", f"not converted: {why}")
        for key in located.kept:
            assert key.word is not None
            row = key.word.row
            title = key.word.dialect.title
            if row.where == "claim":
                why = f"claims are not converted: {title} continues to serve this one"
                self._note(key.value, key.name, "left", why)
            elif row.where == "limit":
                why = row.instead or f"{self.target.title} has no equivalent of this {title} limit"
                self._note(key.value, key.name, "lost", f"removed: {why}")
                self._remove(located.container, key)
            elif row.role != "record" and row.instead:
                self._note(key.value, key.name, "left", f"it has no effect here; {row.instead}")
            else:
                why = f"only {title} reads it ({row.meaning.rstrip('.')})"
                self._note(key.value, key.name, "left", why)

    # --- a pod ---

    def _pod(self, pod: Pod, asking: Sequence[LocatedRequest]) -> None:
        surface = surface_of(pod.document.kind)
        requests: list[tuple[LocatedRequest, RenderedRequest]] = []
        for located in asking:
            try:
                quota = request_from(located.layer)
                requests.append((located, render(located.layer, quota, self.target, surface)))
            except Untranslatable as error:
                self.reasons.append((located.line, f"{located.container.name}: {error}"))
            except QuotaError as error:
                self.reasons.append((located.line, str(error)))
        if len(requests) < len(asking):
            return
        for located, rendered in requests:
            for note in located.request.notes:
                self._note(located.container, located.container.name, "note", note)
            for lost in rendered.lost:
                self._note_lost(located, lost)
            self._note_policy(located)
        self._agree(requests)
        for located, rendered in requests:
            self.rewritten.append((located, rendered, self._write(pod, located, rendered)))
        self._runtime(pod)

    def _note_policy(self, located: LocatedRequest) -> None:
        """Note a policy that a label of the vendor's nodes has set so far."""
        if (
            self.target.name != GPUSHARE
            or "cores" not in located.layer
            or "policy" in located.layer
        ):
            return
        for row in (
            row
            for dialect in located.request.dialects
            if dialect.layer
            for row in dialect.dialect.rows
        ):
            if row.setting == POLICY:
                why = (
                    f"its policy was a label of the nodes ({row.name}): {row.instead}. "
                    "Without the label: fixed-share"
                )
                self._note(located.container, located.container.name, "note", why)

    def _note_lost(self, located: LocatedRequest, lost: DroppedKey) -> None:
        source = located.layer[lost.key].source.name if lost.key in located.layer else ""
        key_lost = next(
            (converted for converted in located.to_convert if converted.name == source), None
        )
        value: ManifestValue | Container = key_lost.value if key_lost else located.container
        self._note(value, source or lost.key, "lost", f"{lost.key} {lost.text}: {lost.why}")

    def placed(self, part: Container | Pod) -> tuple[DocumentEdits, YamlNode, KeyPath]:
        """Return the edits of the document of a container or pod, its node, and its path."""
        path = (*part.document.root.path, *part.place)
        return self.plans[id(part.node.root)], part.node, path

    def _remove(self, container: Container, key: LocatedKey) -> None:
        value = key.value
        plan, _, _ = self.placed(container)
        path = (*container.document.root.path, *value.place)
        if key.word is not None and key.word.row.where == "label":
            selected = value_at(container.document.root, "spec", "selector")
            if selected is not None and any(
                node.kind == "scalar" and node.text == key.name for node in selected.walk()
            ):
                why = "kept, because the selector uses it"
                self._note(value, key.name, "left", why)
                return
        for depth in range(len(path) - 1, 0, -1):
            if isinstance(path[depth], int):  # NAME=VALUE, or {name: ..., value: ...}
                for number in same_names(plan.at(path[:depth]), int(path[depth])):
                    plan.remove((*path[:depth], number))
                return
            if depth < len(path) - 1 or path[-1] not in {"value", "Value"}:
                break
        plan.remove(path)

    # --- what is written ---

    def _agree(self, requests: Sequence[tuple[LocatedRequest, RenderedRequest]]) -> None:
        """Drop annotations in which the containers of a pod differ."""
        if self.target.scoped:
            return
        first: dict[str, RenderedKey] = {}
        for located, rendered in requests:
            for annotation in [
                annotation for annotation in rendered.written if annotation.where == "annotation"
            ]:
                if first.setdefault(annotation.name, annotation).text != annotation.text:
                    why = (
                        f"{annotation.name} applies to the whole pod, and another container needs "
                        "another value"
                    )
                    rendered.lost.append(DroppedKey(annotation.key, annotation.text, why))
                    self._note_lost(located, rendered.lost[-1])
                    rendered.written.remove(annotation)

    def _write(self, pod: Pod, located: LocatedRequest, rendered: RenderedRequest) -> list[NewText]:
        """Replace the keys of a request by those of the target; return the new entries."""
        surface = surface_of(pod.document.kind)
        new: dict[RenderedKey, NewText] = {}
        stays: set[tuple[str, str]] = set()
        # New limits are quoted as the old ones are.
        quoted = any(entry.value.value_node.style for entry in located.limits_to_convert[:1])
        for entry in rendered.written:
            name = self._name(pod, located.container, entry)
            value: str | int | Quoted = entry.text
            if entry.where == "limit":
                value = Quoted(entry.text) if quoted else int(entry.text)
            stays.add((name, entry.text))
            new[entry] = NewText(name, value)
        standing: set[str] = set()
        for key in (*located.to_convert, *located.own):
            if (key.name, key.value.text) in stays and not key.of_requests:
                standing.add(key.name)
            else:
                self._remove(located.container, key)
        plan, node, path = self.placed(located.container)
        if located.block:
            plan.remove((*located.container.document.root.path, *located.block))
        here = EditTarget(plan, node, path)
        written = {entry: made for entry, made in new.items() if made.key not in standing}
        if limits := [made for entry, made in written.items() if entry.where == "limit"]:
            here.limits(limits, self._limits(located))
        if env := [made for entry, made in written.items() if entry.where == "env"]:
            here.variables(env, surface)
        if of_pod := [made for entry, made in written.items() if entry.where == "annotation"]:
            self._annotate(pod, of_pod)
        return list(written.values())

    def _limits(self, located: LocatedRequest) -> tuple[YamlNode, KeyPath] | None:
        """Return the mapping in which limits are converted, which an alias may have brought."""
        for limit in located.limits_to_convert:
            if not limit.of_requests and (mapping := limit.value.key_node.parent):
                path = (*located.container.document.root.path, *limit.value.place[:-1])
                return mapping, path
        return None

    def _name(self, pod: Pod, container: Container, written: RenderedKey) -> str:
        """Return the name of a key, with the container's if the pod has others."""
        joined = pod.document.kind in SERVING or container.place[-1:] == ("container",)
        alone = len(pod.containers) == 1 and not joined  # others come in the cluster
        if written.where != "annotation" or not self.target.scoped or alone:
            return written.name
        why = ""
        if not container.name:
            why = "a request needs the container's name; add one"
        elif pod.names[container.name] > 1:
            why = f"two containers of this pod are named {container.name}; rename one"
        domain, _, key = written.name.partition("/")
        name = f"container.{container.name}.{key}"
        if len(name) > _LONGEST:
            why = f"the annotation {domain}/{name} is too long for Kubernetes; rename the container"
        if why:
            self.reasons.append((container.line, why))
        return f"{domain}/{name}"

    def _annotate(self, pod: Pod, new: Sequence[NewText]) -> None:
        plan, node, path = self.placed(pod)
        here = EditTarget(plan, node, path)
        there = {key: value.text for key, value in pod.annotations.items()}
        fresh = [entry for entry in new if there.get(entry.key) != entry.value]
        wished = {entry.key for entry in self._annotated.setdefault(id(pod), [])}
        fresh = [entry for entry in fresh if entry.key not in wished]
        self._annotated[id(pod)] += fresh
        if fresh:
            serving = pod.document.kind in SERVING
            here.annotations(fresh, serving=serving, several=len(pod.document.pods) > 1)

    def _runtime(self, pod: Pod) -> None:
        """Set our runtime for these containers, or remove it."""
        surface = surface_of(pod.document.kind)
        if surface not in {"kubernetes", "compose"}:
            if self.target.name == GPUSHARE and surface == "ecs":
                why = (
                    "ECS cannot set a runtime: make gpushare Docker's default runtime on the "
                    "instance"
                )
                self._note(pod.containers[0], pod.containers[0].name, "note", why)
            return
        plan, node, path = self.placed(pod)
        here, key = EditTarget(plan, node, path), CLASS if surface == "kubernetes" else "runtime"
        self._note_selector(pod, node)
        if self.target.name != GPUSHARE:
            here.drop(key, GPUSHARE)
            return
        if pod.containers[0].place[-1:] == ("container",):
            why = (
                "Argo's templates have unknown key; use podSpecPatch: 'runtimeClassName: gpushare'"
            )
            self._note(pod.containers[0], key, "note", why)
            return
        other = here.runtime(key)
        if surface == "kubernetes" and other is None and pod.runtime_class != GPUSHARE:
            why = "the cluster needs the RuntimeClass gpushare, and its nodes need gpushare setup"
            self._note(pod.containers[0], key, "note", why)
        if other is not None:
            why = f"{other} is kept, but gpushare enforces the quota only if {key} is gpushare"
            self._note(pod.containers[0], key, "note", why)
        for scheduler, of in SCHEDULERS.items():
            if of != self.target.dialect and here.drop("schedulerName", scheduler):
                why = f"{scheduler} was removed: it only places pods of {of}"
                self._note(pod.containers[0], "schedulerName", "note", why)
        kept = node.get("schedulerName")
        if surface == "kubernetes" and kept and kept.text not in {"default-scheduler", *SCHEDULERS}:
            why = f"{kept.text} is kept: without this scheduler in the cluster, the pod waits"
            self._note(pod.containers[0], "schedulerName", "note", why)

    def _note_selector(self, pod: Pod, node: YamlNode) -> None:
        """Note the labels of a vendor's nodes that the pod selects."""
        selector = node.get("nodeSelector")
        texts = (
            {}
            if selector is None
            else {entry.key.text: entry.value.text for entry in selector.entries}
        )
        for word in TABLES.find("node label", texts):
            if word.dialect.name != self.target.dialect:
                why = f"the pod still selects nodes with this label of {word.dialect.title}"
                self._note(pod.containers[0], f"nodeSelector {word.name}", "left", why)


def refusal_text(refusal: KeyRefusal) -> str:
    """Return a refusal as the error that a create fails with."""
    return str(refusal.error)


# --- where a target's words go: limits, annotations and variables, by the kind of file ---

CLASS: Final = "runtimeClassName"
#: Runtimes that a vendor's set-up asks for: ours takes their place.
VENDOR_RUNTIMES: Final = frozenset({"nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental"})
GPUSHARE: Final = "gpushare"
#: Kinds whose pods get containers that are not in the file (KServe's storage initializer), and
#: that have annotations beside their containers.
SERVING: Final = ("InferenceService", "ServingRuntime", "ClusterServingRuntime")


def surface_of(kind: str) -> Surface:
    """Return where a document of this kind is run."""
    if kind == "oci":
        return "oci"
    if kind == "compose":
        return "compose"
    return "ecs" if kind == "ecs" else "kubernetes"


def same_names(variables: YamlNode, number: int) -> list[int]:
    """Return which items of an environment set the same variable as one of them does."""
    names = [_variable(item.resolved) for item in variables.items]
    return [place for place, name in enumerate(names) if place == number or name == names[number]]


def _variable(item: YamlNode) -> str | None:
    if item.kind == "scalar":
        return item.text.partition("=")[0]
    name = item.get("name") or item.get("Name")
    return None if name is None else name.text


@dataclass
class EditTarget:
    """One container, or a pod's part of the file, in the plan of its document."""

    plan: DocumentEdits
    node: YamlNode
    path: KeyPath

    def limits(self, new: Sequence[NewText], others: tuple[YamlNode, KeyPath] | None) -> None:
        """Put `new` into the limits of this container: in the mapping of `others`, which go."""
        if others is None:
            self.plan.add(self.path, ("resources", "limits"), new)
        else:
            self.plan.add(others[1], (), new, site=others[0])

    def variables(self, new: Sequence[NewText], surface: Surface) -> None:
        """Put `new`, names with texts, into the environment of this container."""
        if surface == "kubernetes":
            items = [(_first_entry("name", entry), NewText("value", entry.value)) for entry in new]
            self.plan.add_items(self.path, "env", list(items))
        elif surface == "ecs":
            capital = self.node.get("Name") is not None
            name, value, key = (
                ("Name", "Value", "Environment")
                if capital
                else (
                    "name",
                    "value",
                    "environment",
                )
            )
            items = [(_first_entry(name, entry), NewText(value, entry.value)) for entry in new]
            self.plan.add_items(self.path, key, list(items))
        elif (there := self.node.get("environment")) is not None and there.kind == "sequence":
            lines = [f"{entry.key}={_value_text(entry)}" for entry in new]
            self.plan.add_items(self.path, "environment", list(lines))
        else:
            self.plan.add(self.path, ("environment",), new)

    def runtime(self, key: str) -> str | None:
        """Have our runtime run this; return the name of another that stays."""
        there = self.node.get(key)
        if there is None or there.is_empty:
            new = NewText(key, GPUSHARE)
            self.plan.add(self.path, (), [new], after=_before_containers(self.node))
            return None
        if there.text in VENDOR_RUNTIMES:
            self.plan.remove((*self.path, key))
            self.plan.add(self.path, (), [NewText(key, GPUSHARE)])
        return None if there.text in {GPUSHARE, *VENDOR_RUNTIMES} else there.text

    def drop(self, key: str, text: str) -> bool:
        """Take `key` out where it has this text; return whether it had."""
        there = self.node.get(key)
        if there is None or there.text != text:
            return False
        self.plan.remove((*self.path, key))
        return True

    def annotations(self, new: Sequence[NewText], *, serving: bool, several: bool) -> None:
        """Put `new` into the annotations of the pod whose part this is.

        `serving`: a kind of KServe's, whose annotations stand beside its containers where it has
        `several` pods, and else in its own metadata.
        """
        holder, path, way = self._holder(serving=serving, several=several)
        first = way[0] == "metadata" and holder.get("metadata") is None
        self.plan.add(path, way, new, after="" if first else None)

    def _holder(self, *, serving: bool, several: bool) -> tuple[YamlNode, KeyPath, tuple[str, ...]]:
        if not self.path:
            return self.node, self.path, ("annotations",)  # a config.json
        if serving and (several or self.path[-1:] == ("spec",) or self.node.get("annotations")):
            return self.node, self.path, ("annotations",)
        if serving:
            root = self.plan.at(())
            return root, (), ("metadata", "annotations")
        if self.node.get("metadata") is not None or self.path[-1] != "spec":
            return self.node, self.path, ("metadata", "annotations")
        return self.plan.at(self.path[:-1]), self.path[:-1], ("metadata", "annotations")


def _before_containers(node: YamlNode) -> str | None:
    """Return the key behind which a runtime is named: what stands before the containers."""
    if node.get("containers") is None and node.get("initContainers") is None:
        return "image" if node.entry("image") else None
    before = ""
    for entry in node.entries:
        if entry.key.text in {"containers", "initContainers"}:
            break
        before = entry.key.text
    return before


def _first_entry(name: str, new: NewText) -> NewText:
    """Return the first entry of an item of a list, with the comments that `new` will get."""
    return NewText(name, new.key, above=new.above)


def _value_text(new: NewText) -> str:
    assert isinstance(new.value, (str, Quoted))
    return new.value if isinstance(new.value, str) else new.value.text
