# SPDX-License-Identifier: Apache-2.0
"""The request of a container by all that a manifest says, with the position of every problem.

A container runtime sees the environment and annotations; limits, labels and claims are for the
kubelet, schedulers and their plugins. All of them are read here, in their vendors' meaning
(gpushare/quota/__init__.py).

What that comes to on a node is read as gpushared reads a config.json at the container's create. Of
anything else, that file is made first, as an engine would make it: the container's variables, and
of a pod its annotations and the names that a kubelet's engine says of it. What an image says of
itself is in neither.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gpushare.compatibility.image import requested_precisions
from gpushare.compatibility.model import ModelFormats
from gpushare.compatibility.rules import Image
from gpushare.manifest.model import STDIN, Container, Document, ManifestFile, ManifestValue
from gpushare.oci import edits, injected_gpu, spec
from gpushare.oci.driver_files import DriverFiles
from gpushare.oci.request import (
    SpecRequest,
    parse_spec_request,
    sandbox_annotations,
    trusted_annotations,
)
from gpushare.quota.dialects import TABLES
from gpushare.quota.dialects.parse import DialectRequest
from gpushare.quota.dialects.vendor_key import KeyLocation, VendorValue
from gpushare.quota.effective_request import EffectiveRequest
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import ANNOTATION_PREFIX
from gpushare.quota.parse import parse_manifest
from gpushare.quota.request import Diagnostic, EngineCards, Layer, ValueSource
from gpushare.quota.request_policy import RequestPolicy

SANDBOX: Final = "it is the pause container of a pod, which never gets a GPU"
_NO_DRIVER: Final = (
    "its engine passes something of NVIDIA's, and what that asks for is not read here: this "
    "machine has no driver to compare it with"
)
_OF_CONTAINERS: Final[tuple[KeyLocation, ...]] = (
    "env",
    "annotation",
    "limit",
    "label",
    "claim",
    "task",
)
_OF_DOCUMENTS: Final[tuple[KeyLocation, ...]] = ("node label", "node annotation", "plugin", "claim")


class LocatedValue(NamedTuple):
    """A vendor's value, and where it stands."""

    word: VendorValue
    value: ManifestValue


class KeyRefusal(NamedTuple):
    """A value that is refused, and where it stands: None if no single text is the reason."""

    error: QuotaError
    value: ManifestValue | None


@dataclass(frozen=True)
class ManifestRequest:
    """The request of a container.

    `dialects` has an entry for each dialect that is used, `own` what gpushare's own keys request,
    and `requested` is what all of it comes to. `problems` are values that are refused, `notes` what
    was not taken and why. `unreachable` are values that no container runtime sees;
    `dialect.translated_by` of each says what passes them on.
    """

    dialects: tuple[DialectRequest, ...]
    own: Layer
    requested: Layer
    problems: tuple[KeyRefusal, ...]
    notes: tuple[str, ...]
    unreachable: tuple[LocatedValue, ...]

    @property
    def asks(self) -> bool:
        """Whether a GPU is requested, rightly or not."""
        return bool(self.requested or self.problems)


def request_of(container: Container, *, strict: bool) -> ManifestRequest:
    """Return what `container` requests; `strict` holds each vendor's own rules, in one dialect."""
    parsed = parse_manifest(
        {where: _texts(container, where) for where in _OF_CONTAINERS},
        strict=strict,
        container=container.name,
        position=container.position,
        in_cluster=container.in_cluster,
    )
    return ManifestRequest(
        parsed.dialects,
        parsed.own,
        parsed.requested,
        tuple(_problems(container, parsed.diagnostics)),
        parsed.notes,
        tuple(_unreachable(container, parsed.dialects)),
    )


def asks(container: Container, request: ManifestRequest) -> bool:
    """Whether `container` requests a GPU, in its request, of its engine, or of a scheduler."""
    return request.asks or container.cards is not None or bool(container.scheduled)


def image_of(container: Container, request: ManifestRequest, model: ModelFormats = ()) -> Image:
    """Return what its command line and variables say of its image; `model` if it gets a GPU."""
    return Image(
        precisions=requested_precisions(
            container.arguments,
            _texts(container, "env"),
            model if asks(container, request) else (),
        )
    )


def _problems(container: Container, diagnostics: Iterable[Diagnostic]) -> list[KeyRefusal]:
    """Return what is refused, in the order of the file."""
    problems = [
        KeyRefusal(diagnostic.error, _at(container, diagnostic.source))
        for diagnostic in diagnostics
    ]
    placed = [
        (problem.value.line, problem.value.column) if problem.value else (sys.maxsize, 0)
        for problem in problems
    ]
    return [one for _, _, one in sorted(zip(placed, range(len(problems)), problems, strict=True))]


def settings_of(document: Document) -> list[LocatedValue]:
    """Return every operator's setting: labels of a Node, the file of a device plugin."""
    return [
        LocatedValue(word, document.values(where)[word.name])
        for where in _OF_DOCUMENTS
        for word in TABLES.find(
            where, {name: value.text for name, value in document.values(where).items()}
        )
    ]


def _texts(container: Container, where: KeyLocation) -> dict[str, str]:
    return {name: value.text for name, value in container.values(where).items()}


def _at(container: Container, source: ValueSource | None) -> ManifestValue | None:
    return None if source is None else container.values(source.kind).get(source.name)


def _unreachable(
    container: Container, dialects: tuple[DialectRequest, ...]
) -> Iterator[LocatedValue]:
    for dialect in dialects:
        for word in {
            word.source: word for word in dialect.words
        }.values():  # one key may say two things
            value = _at(container, word.source)
            if (
                value is not None
                and not word.row.is_visible
                and word.row.role in {"request", "option"}
            ):
                yield LocatedValue(word, value)


@dataclass(frozen=True)
class NodeRequest:
    """The request of a container on a node, and the effective request; or why it is `refused`.

    `notes` are what this reading cannot know.
    """

    requested: SpecRequest | None = None
    effective: EffectiveRequest | None = None
    refused: str = ""
    notes: tuple[str, ...] = ()


def request_on_node(
    container: Container,
    file: ManifestFile,
    *,
    terms_of: Callable[[str], RequestPolicy],
    driver: DriverFiles | None = None,
) -> NodeRequest:
    """Return what `container`, which is in `file`, requests on a node with this policy.

    `driver` is this machine's, by whose files what an engine passed is recognised. SpecError: a
    config.json that gpushared could not read either.
    """
    if container.document.kind == "oci":
        return _of_spec(file, terms_of, driver)
    if container.unresolved:
        note = f"{', '.join(container.unresolved)}: not resolved, so no request is predicted"
        return NodeRequest(notes=(note,))
    annotations, of_pod = _annotations(container)
    env = {name: value.text for name, value in container.env.items()}
    return _requested(annotations, env, of_pod, container.cards, terms_of)


def _of_spec(
    file: ManifestFile, terms_of: Callable[[str], RequestPolicy], driver: DriverFiles | None
) -> NodeRequest:
    original = edits.strip(spec.parse(file.text.encode()))
    placed = injected_gpu.is_placed(original)
    if original.is_sandbox() and not placed:
        return NodeRequest(effective=EffectiveRequest("none", SANDBOX, count=0))
    bundle = "" if file.path == STDIN else str(Path(file.path).resolve().parent)
    try:
        request = (
            injected_gpu.InjectedGpu() if driver is None else injected_gpu.find(original, driver)
        )
    except QuotaError as error:
        return NodeRequest(refused=str(error))
    annotations = trusted_annotations(bundle, original.annotations)
    of_pod = sandbox_annotations(annotations, bundle)
    notes = (_NO_DRIVER,) if placed and driver is None else ()
    return _requested(annotations, original.variables, of_pod, request.cards, terms_of, notes)


def _requested(  # noqa: PLR0913, PLR0917 - one argument a source
    annotations: Mapping[str, str],
    env: Mapping[str, str],
    of_pod: Mapping[str, str] | None,
    cards: EngineCards | None,
    terms_of: Callable[[str], RequestPolicy],
    notes: tuple[str, ...] = (),
) -> NodeRequest:
    requested = None
    try:
        requested = parse_spec_request(
            annotations, env, of_pod=of_pod, cards=cards, terms_of=terms_of
        )
        effective = requested.effective()
        requested.terms.max_per_request.refuse_above(requested.quota, effective, cards)
    except QuotaError as error:
        return NodeRequest(requested, refused=str(error), notes=notes)
    return NodeRequest(requested, effective, notes=notes)


def _annotations(container: Container) -> tuple[dict[str, str], dict[str, str] | None]:
    """Return the annotations that a runtime sees of `container`, and those of its pod."""
    texts = {name: value.text for name, value in container.annotations.items()}
    if not container.in_cluster:
        return texts, None
    document = container.document
    # As containerd's CRI plugin names them: gpushare.quota.annotations.
    around = {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": container.name,
        "io.kubernetes.cri.sandbox-name": document.name,
        "io.kubernetes.cri.sandbox-namespace": document.namespace or "default",
    }
    return {**texts, **around}, texts


def handed_on(container: Container) -> frozenset[str]:
    """Return the vendors' annotations that a kubelet's engine passes on only if configured to.

    `gpushare runtime configure` has it pass on gpushare's own (engines/containerd.py).
    """
    if not container.in_cluster or container.document.kind == "oci":
        return frozenset()
    texts = {name: value.text for name, value in container.annotations.items()}
    values = TABLES.find("annotation", texts)
    return frozenset(one.name for one in values if not one.name.startswith(ANNOTATION_PREFIX))
