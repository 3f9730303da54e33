# SPDX-License-Identifier: Apache-2.0
"""The requests of a container's annotations and environment in other systems' keys.

Each value keeps the place of its source, so that a dialect's request is above or beneath the rest
as a key of ours in the same place would be. A value that only says how stands no higher than the
request beside it: alone it would be a request for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare.quota.annotations import PodIdentity
from gpushare.quota.dialects.parse import DialectRequest, Tables, combine, described, value_title
from gpushare.quota.dialects.vendor_key import KeyLocation, VendorValue
from gpushare.quota.errors import BadValue, QuotaError, printable, quoted
from gpushare.quota.keys import KEYS, Diagnostics
from gpushare.quota.parse import DialectLayer, Precedence
from gpushare.quota.request import VISIBLE_DEVICES, Diagnostic, Layer, RequestedValue, ValueSource
from gpushare.quota.request_policy import Dialects

_ORDER: Final = {key: number for number, key in enumerate(KEYS)}
_SHOWN: Final = 4  # containers that a note names
_WHOLE: Final = 100  # percent of a card


@dataclass
class Translation:
    """The requests by place and dialect. `notes` say what was not applied, and why.

    `meanings` say what was, in canonical keys. `unnamed` is a pod's that names no container.
    """

    layers: dict[Precedence, list[DialectLayer]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    meanings: list[str] = field(default_factory=list)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    unnamed: RequestedValue | None = None


@dataclass(frozen=True)
class Translator:
    """Finds the values of a container: `tables` are of all dialects, `dialects` says which hold.

    `pod` is the container's, `of_pod` the annotations of the pod itself, None where they cannot be
    seen.
    """

    tables: Tables
    dialects: Dialects
    pod: PodIdentity | None = None
    of_pod: Mapping[str, str] | None = None

    def translate(
        self,
        annotations: Mapping[str, str],
        env: Mapping[str, str],
        *,
        reads_env: bool = True,
        recorded: RecordedKeys | None = None,
    ) -> Translation:
        """Return what is requested, and what of it is refused.

        Without `reads_env` the environment is only named in the notes. The `recorded` keys stand
        for the annotations, of which they contain all that there were.
        """
        translation = Translation()
        places: dict[ValueSource, Precedence] = {}
        values = [] if recorded else self._annotated(annotations, places, translation)
        if recorded is not None:
            self._add_recorded(recorded, places, translation)
        of_env = [one for one in self.tables.find("env", env) if one.source not in places]
        if not (values or of_env):
            return translation
        if reads_env:
            places |= {value.source: Precedence.ENV for value in of_env}
            values += of_env
        else:
            translation.notes += _not_read(of_env)
        values = self._requesting(self._taken(values, translation), translation)
        for request in combine(values, strict=self._strict) if values else ():
            _add(request, places, translation)
        return translation

    @property
    def _strict(self) -> bool:
        return self.dialects.mode == "strict"

    def _add_recorded(
        self,
        recorded: RecordedKeys,
        places: dict[ValueSource, Precedence],
        translation: Translation,
    ) -> None:
        """Add what the recorded keys request, which the environment may only shrink."""
        values = recorded.values(self.tables)
        places |= {value.source: Precedence.SCOPED for value in values}
        values = self._requesting(self._taken(values, translation), translation)
        here = "" if self.pod is None else self.pod.container
        requests = combine(values, strict=self._strict, position=recorded.position, container=here)
        for request in requests:
            _add(_weighted(request) if self.dialects.weighs else request, places, translation)

    @staticmethod
    def _requesting(values: Sequence[VendorValue], translation: Translation) -> list[VendorValue]:
        """Return the values of the dialects with a request: most images only say how."""
        requesting = {value.dialect.name for value in values if value.is_request}
        known = {value.source for value in values if value.dialect.name in requesting}
        translation.notes += _says_only_how(value for value in values if value.source not in known)
        return [value for value in values if value.dialect.name in requesting]

    # --- annotations ---

    def _annotated(
        self,
        annotations: Mapping[str, str],
        places: dict[ValueSource, Precedence],
        translation: Translation,
    ) -> list[VendorValue]:
        """Return the values of the annotations that are for this container, the highest first."""
        by_place: dict[Precedence, list[VendorValue]] = {}
        named: dict[str, set[str]] = {}
        for value in _addressed(self.tables.find("annotation", annotations), self.pod):
            if value.container:
                translation.diagnostics += self._podless(value)
                if value.row.role != "record":  # a scheduler's note on what it placed is no request
                    named.setdefault(value.dialect.name, set()).add(value.container)
                if self.pod is not None and value.container == self.pod.container:
                    by_place.setdefault(Precedence.SCOPED, []).append(value)
            elif self._is_of_pod(value):
                source = ValueSource("pod annotation", value.name)
                by_place.setdefault(Precedence.OF_POD, []).append(replace(value, source=source))
            else:
                by_place.setdefault(Precedence.OWN, []).append(value)
        if Precedence.OF_POD in by_place:
            by_place[Precedence.OF_POD] = self._for_this(
                by_place[Precedence.OF_POD], named, translation
            )
        for place in sorted(by_place):
            places |= {value.source: place for value in by_place[place]}
        return [value for place in sorted(by_place) for value in by_place[place]]

    def _is_of_pod(self, value: VendorValue) -> bool:
        if self.pod is None:
            return False
        return self.of_pod is None or self.of_pod.get(value.name) == value.text

    def _podless(self, value: VendorValue) -> Iterator[Diagnostic]:
        """Yield the problem of a value that names a container of a pod where there is no pod."""
        if self.pod is None and value.is_request and self.dialects.takes(value.dialect.name):
            rule = (
                f"is for container {quoted(value.container)} of a pod, and this one is not in a pod"
            )
            fix = f"write gpushare.io/{value.row.key or 'memory'}"
            yield Diagnostic(QuotaError(value_title(value), value.text, rule, fix), value.source)

    def _for_this(
        self, values: Sequence[VendorValue], named: Mapping[str, set[str]], translation: Translation
    ) -> list[VendorValue]:
        """Return what of a pod's annotations without a name is for this container.

        If a dialect names containers, only they may request in it. What only says how is for all.
        """
        assert self.pod is not None
        kept = []
        for value in values:
            others = named.get(value.dialect.name, set()) - {self.pod.container}
            if not value.is_request or not others:
                kept.append(value)
                continue
            names = ", ".join(map(quoted, sorted(others)[:_SHOWN]))
            if self.pod.container in named[value.dialect.name]:
                rule = f"names no container, but other annotations name {names}"
                fix = "write it for each container"
                error = QuotaError(value_title(value), value.text, rule, fix)
                translation.diagnostics.append(Diagnostic(error, value.source))
                continue
            translation.notes.append(
                f"{described(value)} was not applied: the requests of its pod are for {names}"
            )
        return kept

    # --- what this node takes ---

    def _taken(self, values: Sequence[VendorValue], translation: Translation) -> list[VendorValue]:
        """Return the values of the dialects that are taken here; another that requests is refused.

        A name that several dialects know is a value of the one that is taken.
        """
        if self.dialects.accept is None:
            return list(values)
        taken = [value for value in values if self.dialects.takes(value.dialect.name)]
        known = {value.source for value in taken}
        left = [value for value in values if value.source not in known]
        for request in combine(left, strict=False):
            requesting = [value for value in request.words if value.is_request]
            if not (request.layer or request.problems) or not requesting:
                continue
            accept = self.dialects.source("accept")
            if self.dialects.others == "refuse":
                error = self._not_taken(request, requesting[0], accept)
                translation.diagnostics.append(Diagnostic(error, requesting[0].source))
                continue
            translation.notes += [
                f"{described(value)} was not applied: {request.dialect.name} is not in {accept}"
                for value in requesting
            ]
        return taken

    def _not_taken(self, request: DialectRequest, value: VendorValue, accept: str) -> QuotaError:
        keys = " ".join(
            f"{KEYS[key].env}={requested.text}"
            if value.row.where == "env"
            else f"{KEYS[key].annotation}={requested.text}"
            for key, requested in request.layer.items()
        )
        rule = f"uses {request.dialect.title} keys, which this node does not accept"
        ours = f"write {keys}, or " if keys else ""
        fix = f"{ours}add {request.dialect.name} to {accept}"
        return QuotaError(str(value.source), value.text, rule, fix)


def has_request(tables: Tables, annotations: Mapping[str, str]) -> bool:
    """Whether any of `annotations` requests a GPU in another system's keys."""
    return any(value.is_request for value in tables.find("annotation", annotations))


def scoped_annotation(tables: Tables, annotations: Mapping[str, str]) -> str:
    """Return the first of `annotations` that requests for one container of a pod; empty if none."""
    values = tables.find("annotation", annotations)
    requesting = {value.dialect.name for value in values if value.is_request}
    scoped = (
        annotation
        for annotation in values
        if annotation.container or annotation.row.names_container
    )
    return next(
        (annotation.name for annotation in scoped if annotation.dialect.name in requesting), ""
    )


def container_selector(tables: Tables, annotation: str) -> str:
    """Return the annotation by which the dialect of `annotation` names a container, or nothing."""
    rows = (
        row for value in tables.find("annotation", {annotation: ""}) for row in value.dialect.rows
    )
    return next((row.name for row in rows if row.names_container), "")


def _addressed(values: Sequence[VendorValue], pod: PodIdentity | None) -> Iterator[VendorValue]:
    """Yield the values of a pod, those that another one addresses with their container's name."""
    to = {
        value.dialect.name: value.text.strip()
        for value in values
        if value.row.names_container and pod is not None
    }
    for value in values:
        named = to.get(value.dialect.name, "")
        addressed = named and not value.container and not value.row.names_container
        yield replace(value, container=named) if addressed else value


def _not_read(values: Iterable[VendorValue]) -> list[str]:
    names = sorted({value.name for value in values if value.row.key} - {VISIBLE_DEVICES})
    return [f"{printable(name)} was not read: trust.env is ignore" for name in names]


def _add(
    request: DialectRequest, places: Mapping[ValueSource, Precedence], translation: Translation
) -> None:
    """Add what is requested in one dialect to the places where it is requested."""
    if request.problems:
        translation.diagnostics += request.problems
        return
    if not request.layer:
        translation.notes += _says_only_how(
            value for value in request.words if not value.is_request
        )
        return
    requesting = [value for value in request.words if value.is_request]
    highest = min((places[value.source] for value in requesting), default=Precedence.ENV)
    layers: dict[Precedence, Layer] = {}
    for key, requested in request.layer.items():
        layers.setdefault(max(places[requested.source], highest), {})[key] = requested
    for place, layer in layers.items():
        translation.layers.setdefault(place, []).append(DialectLayer(request.dialect.title, layer))
    translation.notes += request.notes
    translation.meanings.append(_meaning(request))
    by_source = {requested.source: requested for requested in request.layer.values()}
    unscoped = (value for value in requesting if places[value.source] is Precedence.OF_POD)
    if translation.unnamed is None and not any(value.container for value in requesting):
        translation.unnamed = next(
            (by_source[value.source] for value in unscoped if value.source in by_source), None
        )


def _weighted(request: DialectRequest) -> DialectRequest:
    """Return the request with its cores, if they are a part of a card, as a weight."""
    cores = request.layer.get("cores")
    if cores is None or cores.value == _WHOLE:
        return request
    layer = {key: value for key, value in request.layer.items() if key != "cores"}
    policy = "native-burst-share"
    layer["policy"] = RequestedValue(policy, policy, cores.source, cores.written)
    layer["weight"] = RequestedValue(cores.text, cores.value, cores.source, cores.written)
    return replace(request, layer=layer)


def _says_only_how(values: Iterable[VendorValue]) -> list[str]:
    """Return a note for each dialect of `values`, none of which is a request."""
    by_dialect: dict[str, list[VendorValue]] = {}
    for value in {value.source: value for value in values}.values():
        if value.row.key and value.name != VISIBLE_DEVICES and _says(value):
            by_dialect.setdefault(value.dialect.title, []).append(value)
    return [_only_how(title, dialect_values) for title, dialect_values in by_dialect.items()]


def _only_how(title: str, values: Sequence[VendorValue]) -> str:
    first, *others = values
    if not others:
        rule = f"was not applied: it is only an option, and no {title} key requests a GPU"
        return f"{described(first)} {rule}"
    names = ", ".join(str(value.source) for value in values)
    rule = f"were not applied: they are only options, and no {title} key requests a GPU"
    return f"{names} ({title}) {rule}"


def _says(value: VendorValue) -> bool:
    """Whether its text is a value, and one that says something."""
    try:
        return value.row.read(value.text) is not None
    except BadValue:
        return False


def _meaning(request: DialectRequest) -> str:
    """Return `HAMi: env CUDA_DEVICE_MEMORY_LIMIT "4096m" is memory 4GiB`."""
    keys: dict[ValueSource, list[str]] = {}
    written: dict[ValueSource, str] = {}
    for key, requested in sorted(request.layer.items(), key=lambda one: _ORDER[one[0]]):
        keys.setdefault(requested.source, []).append(f"{key} {requested.text}")
        written[requested.source] = requested.shown
    parts = (
        f"{printable(str(source))} {quoted(written[source])} is {' and '.join(key_meaning)}"
        for source, key_meaning in keys.items()
    )
    return f"{request.dialect.title}: {', '.join(parts)}"


# --- vendors' keys of a pod's container, as an admission policy recorded them in an annotation ---
#
# No container runtime sees the limits and labels of a pod. The policy of gpushare's helm chart
# copies each container's keys, word for word, into `gpushare.io/container.NAME.vendor`, and removes
# the limits, which no device plugin serves. So there is one translation of them, that of this
# package.
#
# The text has a line for each key (`limit nvidia.com/gpumem=4096`), and one that says which
# container of its pod it is (`position 0`; init containers are counted apart), because some
# vendors' annotations go by that.

#: Where a policy reads keys.
RECORDED: Final[tuple[KeyLocation, ...]] = ("limit", "label", "annotation", "env")
_POSITION: Final = re.compile(r"position ([0-9]{1,4})", re.ASCII)
_FIX: Final = "omit it: the admission policy of gpushare's helm chart writes it"


@dataclass(frozen=True)
class RecordedKeys:
    """The keys of one container by where they were, and its `position` in its pod."""

    texts: Mapping[KeyLocation, Mapping[str, str]]
    position: int | None = None

    def values(self, tables: Tables) -> list[VendorValue]:
        """Return the values that `tables` know."""
        return [value for where, texts in self.texts.items() for value in tables.find(where, texts)]


def recorded_keys(text: str) -> RecordedKeys:
    """Return the keys in the annotation's `text`; BadValue if a line has another form."""
    texts: dict[KeyLocation, dict[str, str]] = {where: {} for where in RECORDED}
    position = None
    for line in text.splitlines():
        if match := _POSITION.fullmatch(line):
            position = int(match[1])
            continue
        where = next((location for location in RECORDED if line.startswith(f"{location} ")), None)
        name, equals, value = line.partition(" ")[2].partition("=")
        if where is None or not equals:
            raise BadValue(f"has the line {quoted(line)}, which is no vendor's key", _FIX)
        texts[where][name] = value
    return RecordedKeys(texts, position)
