# SPDX-License-Identifier: Apache-2.0
"""What a node makes of a container that a manifest describes.

A config.json is read as gpushared reads it at the container's create. Of anything else that file is
made first, as an engine would make it: the container's variables, and of a pod its annotations and
the names that a kubelet's engine says of it. What an image says of itself is in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.manifest.file import STDIN, Container, File
from gpushare.oci import edits, nvidia, spec
from gpushare.oci.asked import Asked, asked_of
from gpushare.oci.driver import Driver
from gpushare.oci.pods import annotations_of, believed
from gpushare.quota import Cards, Given, QuotaError, Terms
from gpushare.quota.dialects import TABLES
from gpushare.quota.keys import ANNOTATION_PREFIX

SANDBOX: Final = "it is the pause container of a pod, which never gets a GPU"
_NO_DRIVER: Final = (
    "its engine passes something of NVIDIA's, and what that asks for is not read here: this "
    "machine has no driver to compare it with"
)


@dataclass(frozen=True)
class AtNode:
    """What a node hears of a container (`asked`) and gives it. `refused` says why it gives nothing.

    `hears` are the annotations that reached it. `notes` are what this reading cannot know.
    """

    asked: Asked | None = None
    given: Given | None = None
    refused: str = ""
    hears: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def at_node(
    container: Container,
    file: File,
    *,
    terms_of: Callable[[str], Terms],
    driver: Driver | None = None,
) -> AtNode:
    """Return what a node with these terms makes of `container`, which is in `file`.

    `driver` is this machine's, by whose files what an engine passed is recognised. SpecError: a
    config.json that gpushared could not read either.
    """
    if container.document.kind == "oci":
        return _of_spec(file, terms_of, driver)
    annotations, of_pod = _annotations(container)
    env = {name: value.text for name, value in container.env.items()}
    return _asked(annotations, env, of_pod, container.cards, terms_of)


def _of_spec(file: File, terms_of: Callable[[str], Terms], driver: Driver | None) -> AtNode:
    original = edits.strip(spec.parse(file.text.encode()))
    placed = nvidia.is_placed(original)
    if original.is_sandbox() and not placed:
        return AtNode(given=Given("none", SANDBOX, count=0))
    bundle = "" if file.path == STDIN else str(Path(file.path).resolve().parent)
    try:
        request = nvidia.Request() if driver is None else nvidia.find(original, driver)
    except QuotaError as error:
        return AtNode(refused=str(error))
    annotations = believed(bundle, original.annotations)
    of_pod = annotations_of(annotations, bundle)
    notes = (_NO_DRIVER,) if placed and driver is None else ()
    return _asked(annotations, original.variables, of_pod, request.cards, terms_of, notes)


def _asked(  # noqa: PLR0913, PLR0917 - one argument a source
    annotations: Mapping[str, str],
    env: Mapping[str, str],
    of_pod: Mapping[str, str] | None,
    cards: Cards | None,
    terms_of: Callable[[str], Terms],
    notes: tuple[str, ...] = (),
) -> AtNode:
    heard = frozenset(annotations)
    asked = None
    try:
        asked = asked_of(annotations, env, of_pod=of_pod, cards=cards, terms_of=terms_of)
        given = asked.given()
        asked.terms.ceilings.refuse_above(asked.quota, given, cards)
    except QuotaError as error:
        return AtNode(asked, refused=str(error), hears=heard, notes=notes)
    return AtNode(asked, given, hears=heard, notes=notes)


def _annotations(container: Container) -> tuple[dict[str, str], dict[str, str] | None]:
    """Return the annotations that a runtime sees of `container`, and those of its pod."""
    said = {name: value.text for name, value in container.annotations.items()}
    if not container.in_cluster:
        return said, None
    document = container.document
    # As containerd's CRI plugin names them: gpushare.quota.pod.
    around = {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": container.name,
        "io.kubernetes.cri.sandbox-name": document.name,
        "io.kubernetes.cri.sandbox-namespace": document.namespace or "default",
    }
    return {**said, **around}, said


def handed_on(container: Container) -> frozenset[str]:
    """Return the vendors' annotations that a kubelet's engine passes on only where it is told to.

    `gpushare runtime configure` has it pass on gpushare's own (engines/containerd.py).
    """
    if not container.in_cluster or container.document.kind == "oci":
        return frozenset()
    texts = {name: value.text for name, value in container.annotations.items()}
    words = TABLES.find("annotation", texts)
    return frozenset(word.name for word in words if not word.name.startswith(ANNOTATION_PREFIX))
