# SPDX-License-Identifier: Apache-2.0
"""The request of a container, the place of its keys, and the comparison of two requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpushare.manifest.compose_file import device_request
from gpushare.manifest.model import Container, ManifestValue
from gpushare.manifest.request import ManifestRequest, request_of
from gpushare.quota.dialects.parse import DialectRequest
from gpushare.quota.dialects.vendor_key import VendorValue
from gpushare.quota.effective_request import EffectiveRequest, resolve_request
from gpushare.quota.errors import BadValue
from gpushare.quota.keys import ANNOTATION_PREFIX, KEYS, is_quota, request_from
from gpushare.quota.request import Layer, RequestedValue, ValueSource
from gpushare.text_position import KeyPath

# Of whole cards only how many and which counts.
_WHOLE: Final = ("count", "devices")
_SHARED: Final = (
    *_WHOLE,
    "memory_bytes",
    "memory_percent",
    "memory_limit_bytes",
    "cores",
    "policy",
    "weight",
    "priority",
    "class_",
)
_ANY: Final = (
    "profile",
    "allow",
    "deny",
    "compute_capability",
    "placement",
    "oversubscribe",
    "backend",
    "idle_after_seconds",
    "time_limit_seconds",
)
Meaning = dict[str, object]


@dataclass(frozen=True)
class LocatedKey:
    """A key of the file, what it says in which dialect; `word` is None where it is our own."""

    name: str
    value: ManifestValue
    word: VendorValue | None = None
    of_requests: bool = False

    @property
    def key(self) -> str:
        """The canonical key that it sets; empty if none."""
        if self.word is not None:
            return self.word.row.key
        return self.name.rpartition(".")[2] if "/" in self.name else ""


@dataclass(frozen=True)
class LocatedRequest:
    """One container's request, with the keys that make it and their positions.

    `to_convert` are the keys of other dialects that set a canonical key, `kept` those that set
    none, `own` the target's. `alone` are keys that request what no canonical key can express.
    `block` leads to what requests devices of Docker, and that keys of gpushare replace.
    """

    container: Container
    request: ManifestRequest
    to_convert: tuple[LocatedKey, ...]
    kept: tuple[LocatedKey, ...]
    own: tuple[LocatedKey, ...]
    alone: tuple[LocatedKey, ...]
    block: KeyPath = ()

    @property
    def limits_to_convert(self) -> list[LocatedKey]:
        """The limits and requests among the keys of other dialects."""
        return [key for key in self.to_convert if key.word and key.word.row.where == "limit"]

    @property
    def layer(self) -> Layer:
        """The canonical request; empty where none is asked."""
        return with_cards(self.container, self.request) if self.block else self.request.requested

    @property
    def line(self) -> int:
        """The line of the first word of it."""
        first = next(iter((*self.to_convert, *self.own)), None)
        return first.value.line if first else self.container.line


def locate_request(container: Container, dialect: str) -> LocatedRequest:
    """Return what `container` requests; `dialect` is the target's, empty for our own keys."""
    request = request_of(container, strict=False)
    to_convert, kept, own, alone = [], [], [], []
    for spoken in request.dialects:
        for word in spoken.words:
            for located in _located_keys(container, word):
                if spoken.dialect.name == dialect:
                    own.append(located)
                elif _is_translated(word, spoken):
                    to_convert.append(located)
                elif spoken.layer:
                    kept.append(located)
                elif word.row.role == "request" and not word.row.key and not word.row.is_visible:
                    alone.append(located)
    ours = list(_gpushare_keys(container))
    if dialect:
        to_convert += ours
    else:
        own += ours
    gives = tuple(located for located in own if located.key)
    block = () if dialect or container.cards is None else device_request(container)
    return LocatedRequest(
        container, request, tuple(to_convert), tuple(kept), gives, tuple(alone), block
    )


def with_cards(container: Container, request: ManifestRequest) -> Layer:
    """Return what `container` requests, with the cards that an engine is asked for."""
    cards = container.cards
    if cards is None or cards.all_cards:
        return request.requested
    key = "devices" if cards.devices else "count"
    text = ",".join(cards.devices) or str(cards.count)
    value = RequestedValue(text, KEYS[key].parse(text), ValueSource("env", KEYS[key].env))
    return {key: value, **request.requested}


def _located_keys(container: Container, word: VendorValue) -> Iterator[LocatedKey]:
    values = container.values(word.source.kind)
    if word.name in values:
        yield LocatedKey(word.name, values[word.name], word)
    if word.row.where == "limit" and word.name in container.requests:
        yield LocatedKey(word.name, container.requests[word.name], word, of_requests=True)


def _is_translated(word: VendorValue, spoken: DialectRequest) -> bool:
    """Whether the keys of the target express what a key says."""
    row = word.row
    if not spoken.layer or row.where == "claim":
        return False
    if not row.key:  # a part of what another word says
        whole_of = any(other.row.fraction_of == row.name for other in spoken.words)
        return whole_of or row.names_container or (row.role == "request" and bool(row.requires))
    if row.where in {"limit", "label", "task"}:
        return True
    try:
        return row.read(word.text) is not None
    except BadValue:
        return True  # it is a problem, and nothing is written


def _gpushare_keys(container: Container) -> Iterator[LocatedKey]:
    """Yield our own keys that are for this container."""
    scope = f"{ANNOTATION_PREFIX}container."
    for name, value in container.annotations.items():
        if name.startswith(scope):
            if name.startswith(f"{scope}{container.name}."):
                yield LocatedKey(name, value)
        elif name.startswith(ANNOTATION_PREFIX):
            yield LocatedKey(name, value)
    for name, value in container.env.items():
        if is_quota(name):
            yield LocatedKey(name, value)


def meaning_of(layer: Layer) -> Meaning:
    """Return what `layer` gives, by field of Given and Quota; QuotaError as give."""
    quota = request_from(layer)
    effective: EffectiveRequest = resolve_request(quota)
    fields = {"kind": effective.kind, **{name: getattr(quota, name) for name in _ANY}}
    of_kind = _SHARED if effective.kind == "shared" else _WHOLE
    fields |= {name: getattr(effective, name) for name in of_kind}
    uuids = all(name.startswith("GPU-") for name in effective.devices)
    if effective.devices and uuids and not quota.allow:  # as many cards, and only these
        fields |= {"allow": effective.devices, "devices": ()}
    return fields


def differing_fields(first: Meaning, second: Meaning) -> list[str]:
    """Return the fields in which two differ."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def field_of(key: str) -> str:
    """Return the field that a canonical key fills."""
    return KEYS[key].field


def dropped_fields(keys: Iterable[str]) -> set[str]:
    """Return the fields that are not the same where `keys` are lost: the policy follows cores."""
    fields = {field_of(key) for key in keys}
    follows = {"cores": "policy", "devices": "allow"}
    return fields | {other for field, other in follows.items() if field in fields}
