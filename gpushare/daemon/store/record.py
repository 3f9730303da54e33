# SPDX-License-Identifier: Apache-2.0
"""The ledger's record of one tenant, and the files of the ledger.

Each file is one JSON object with a checksum, and is replaced as a whole. Its first line is
`gpushare-ledger FORMAT CRC32`, the second is the object. A file is written under a temporary name,
`.NAME`, and then renamed, so a reader finds the old content or the new. Nothing is synced: what
`publish` has accepted is in the page cache, and survives the death of the daemon. A machine that
goes down takes all tenants with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeVar, get_args

from gpushare.daemon.policy import policy_on, reserved_cores
from gpushare.protocol.rows import TenantPod
from gpushare.quota.effective_request import DEFAULT_PRIORITY
from gpushare.quota.request import REMOTE, SCHEDULED, RequestRecord

TenantState = Literal["reserved", "bound", "none"]

FORMAT: Final = 1  # of the files; another one is not read
ABOUT: Final = "about"  # the one file that is no tenant's, claim's or ticket's
_MAGIC: Final = b"gpushare-ledger"
# A tenant's key, a claim's UID, or a ticket's ID.
_NAME: Final = re.compile(
    rf"{ABOUT}|[0-9a-f]{{16}}|claim-[0-9A-Za-z-]{{1,63}}|ticket-[0-9a-f]{{8}}", re.ASCII
)
_DAMAGED: Final = ".damaged"
_MOST_BYTES: Final = 1 << 20
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class CardAllocation:
    """A tenant's part of one card; its index in `TenantRecord.allocations` is its number.

    ValueError for an amount that no tenant can have.
    """

    uuid: str
    quota_bytes: int  # reserved for the tenant
    cores: int = 0  # requested
    whole: bool = False
    memory_limit_bytes: int | None = None  # the burst limit; None: it may not burst
    managed_bytes: int = 0  # of managed memory it may have so much more, in host memory

    def __post_init__(self) -> None:
        """Refuse an amount that would make the sum of a card's allocations wrong."""
        if (
            self.quota_bytes <= 0
            or self.burst_limit_bytes < self.quota_bytes
            or self.managed_bytes < 0
        ):
            raise ValueError(f"{self.quota_bytes} of {self.memory_limit_bytes} bytes of a card")

    @property
    def burst_limit_bytes(self) -> int:
        """The most that the tenant may ever use: its quota, or its burst limit."""
        return self.memory_limit_bytes or self.quota_bytes


@dataclass(frozen=True)
class TenantRecord:
    """One tenant. `created` is seconds since the epoch; `expires` of CLOCK_BOOTTIME."""

    section: ClassVar = "record"  # of its file

    key: str
    state: TenantState
    id: str
    name: str = ""  # as the engine or Kubernetes names it; empty: not known yet
    engine: str = "runc"
    bundle: str = ""
    uid: int = 0  # of the user that requested it
    policy: str = ""
    isolation: str = ""
    why: str = ""
    quota: RequestRecord = field(default_factory=dict)
    created: float = 0.0
    expires: float = 0.0
    pid: int = 0
    starttime: int = 0  # of `pid`: /proc/PID/stat field 22
    # "hierarchy:path" as in /proc/PID/cgroup; empty: none of its own. A reservation has one where
    # its maker binds the container: the runtime is going to make it.
    cgroup: str = ""
    notes: tuple[str, ...] = ()  # parts of the request that were not applied
    namespace: str = ""  # of Kubernetes, as the next two; empty: of no pod
    sandbox: str = ""  # the pod's id
    container: str = ""  # its name in the pod
    pod: str = ""  # the pod's name
    pod_uid: str = ""
    claim: str = ""  # the UID of the ResourceClaim of which it has a part
    claim_requests: tuple[str, ...] = ()  # those of the claim that it names; empty: all
    labels: Mapping[str, str] = field(default_factory=dict)  # those that gpushare.yaml names
    allocations: tuple[CardAllocation, ...] = ()
    uninterposed: tuple[str, ...] = ()  # capabilities of the driver that bypass the interposer
    compat: str = ""  # the copy of a cuda-compat package that is its driver
    weight: int = 0  # 0: none requested
    priority: int = DEFAULT_PRIORITY  # 0 is the highest
    class_: str = "offline"
    # Of a reservation: the runtime that creates the container, or who called `gpushare run`; 0: not
    # known.
    maker: int = 0
    maker_starttime: int = 0
    requested: RequestRecord = field(default_factory=dict)  # `quota` without operator overrides
    eviction: EvictionRecord | None = None  # None: its memory is on its cards
    since: float = 0.0  # of CLOCK_BOOTTIME: when it was reserved; 0: before records had it
    is_restored: bool = False  # the driver has restored its processes at least once
    ticket: str = ""  # the ID of the one that it took over; empty: none

    @property
    def file(self) -> str:
        """The name of its file in the ledger."""
        return self.key

    @property
    def title(self) -> str:
        """The name for messages."""
        return self.name or self.id[:12]

    @property
    def identity(self) -> dict[str, str]:
        """The fields of an event that say which tenant it is about."""
        return {"tenant": self.key, "id": self.id, "name": self.title}

    @property
    def named(self) -> dict[str, str]:
        """The same without its ID."""
        return {"tenant": self.key, "name": self.title}

    @property
    def owner(self) -> str:
        """The owner that its events are charged to beside itself: a user, a namespace, or ""."""
        if self.uid:
            return f"uid {self.uid}"
        return f"namespace {self.namespace}" if self.namespace else ""

    @property
    def shared(self) -> bool:
        """Whether it has pages and an interposer library."""
        return bool(self.allocations) and not self.allocations[0].whole

    @property
    def is_remote(self) -> bool:
        """Whether it uses the GPU of a remote server, and has no allocation here."""
        return self.isolation == REMOTE

    @property
    def is_off_card(self) -> bool:
        """Whether none of its memory is on its cards: its allocations are available to others."""
        return self.eviction is not None and self.eviction.state == "evicted"

    def has_part_of(self, uuid: str) -> bool:
        """Whether it may have memory on a card now: none while it is evicted."""
        return not self.is_off_card and any(part.uuid == uuid for part in self.allocations)

    def evicted_bytes(self, number: int) -> int:
        """Return what it had of the card `number` when its eviction began; 0: it is not evicted."""
        if self.eviction is None or number >= len(self.eviction.card_bytes):
            return 0
        return self.eviction.card_bytes[number]

    @property
    def is_rootless(self) -> bool:
        """Whether the policy of users holds for it."""
        return self.isolation == "advisory"

    @property
    def of_pod(self) -> TenantPod | None:
        """Its pod, and its name there; None for a container of no pod."""
        if not self.pod:
            return None
        return TenantPod(
            namespace=self.namespace, name=self.pod, uid=self.pod_uid, container=self.container
        )

    @property
    def settings_key(self) -> str:
        """The key of the operator's settings: they outlive a restart by the kubelet."""
        return settings_key(self.id, self.pod_uid, self.container)

    @property
    def is_scheduled(self) -> bool:
        """Whether the scheduler of Kubernetes allocated what it has."""
        return any(entry["source"] in SCHEDULED for entry in self.quota.values())

    def is_set(self, key: str) -> bool:
        """Whether an operator has set canonical `key`."""
        return key in self.quota and self.quota[key]["source"] == "operator"

    def policy_on(self, allocation: CardAllocation, card_policy: str) -> str:
        """Return the policy that holds on a card of the tenant's, "" if it has all of the card.

        `card_policy` is the policy that an operator has set for the card, "" for none.
        """
        if allocation.whole:
            return ""
        return policy_on(self.policy, allocation.cores, card_policy, is_set=self.is_set("policy"))

    def reserved_cores(self, allocation: CardAllocation, card_policy: str) -> int:
        """Return the percent of a card that is reserved for the tenant under `card_policy`."""
        if allocation.whole:
            return 100
        return reserved_cores(self.policy_on(allocation, card_policy), allocation.cores)


def settings_key(identity: str, pod_uid: str, container: str) -> str:
    """Return what the operator's settings for a container are kept under.

    A kubelet that starts a container again makes a new one, with another ID in the same pod.
    """
    return f"{pod_uid}/{container}" if pod_uid and container else identity


Part = TypeVar("Part")


def to_json(value: Any) -> Any:
    """Return a record, or a part of one, as JSON has it."""
    if is_dataclass(value):
        return {name: to_json(part) for name, part in vars(value).items()}
    if isinstance(value, Mapping):
        return dict(value)
    return [to_json(part) for part in value] if isinstance(value, tuple) else value


def from_json(
    kind: type[Part], values: Mapping[str, Any], **readers: Callable[[Any], object]
) -> Part:
    """Return what `to_json` wrote of a `kind`; ValueError, TypeError, LookupError for others.

    `readers` are those of the fields that JSON has in another form.
    """
    if values.keys() != {item.name for item in fields(kind)}:  # type: ignore[arg-type]
        raise ValueError(f"it does not have the fields of {kind.__name__}")
    return kind(**{**values, **{name: read(values[name]) for name, read in readers.items()}})


def tuple_of(kind: type[Part]) -> Callable[[Any], tuple[Part, ...]]:
    """Return the reader of a list of such objects."""
    return lambda rows: tuple(kind(**row) for row in rows)


def one_of(*choices: str) -> Callable[[str], str]:
    """Return the reader of a text that is one of `choices`."""
    return lambda text: choices[choices.index(text)]


def record_from_json(values: Mapping[str, Any]) -> TenantRecord:
    """Return the record of a tenant; ValueError, TypeError, LookupError."""
    return from_json(
        TenantRecord,
        values,
        state=one_of(*get_args(TenantState)),
        allocations=tuple_of(CardAllocation),
        claim_requests=tuple,
        notes=tuple,
        uninterposed=tuple,
        eviction=_eviction_from_json,
    )


@dataclass(frozen=True)
class FolderScan:
    """The content of a folder, by the names of the files."""

    documents: Mapping[str, dict[str, Any]]
    unreadable: Mapping[str, str]  # why each of these cannot be read
    discarded: tuple[str, ...] = ()  # the names of files of another boot, which were removed


class RecordFolder:
    """The files in `path`, of boot `boot_id`; the decide thread's. OSError."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self.path = path
        self._boot_id = boot_id
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o700)
        # Each start of a container waits for these writes: no path is resolved for them.
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the folder; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, check: Callable[[str, dict[str, Any]], None]) -> FolderScan:
        """Return the content; drafts, and the files of another boot, are removed.

        A file whose name and object `check` refuses with ValueError, TypeError or LookupError is
        unreadable.
        """
        documents: dict[str, dict[str, Any]] = {}
        unreadable: dict[str, str] = {}
        discarded = []
        for name in sorted(file.name for file in self.path.iterdir()):
            if not _NAME.fullmatch(name.removeprefix(".")):
                continue
            if name.startswith("."):
                self.remove(name)  # it was never acknowledged
                continue
            try:
                document = self._load(name)
                boot = document.pop("boot")
                if boot == self._boot_id:
                    check(name, document)
                    documents[name] = document
                    continue
            except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
                unreadable[name] = " ".join(str(error).split())
                continue
            self.remove(name)
            discarded.append(name)
        return FolderScan(documents, unreadable, tuple(discarded))

    def draft(self, name: str, document: Mapping[str, Any]) -> None:
        """Write the next content of `name`; it is not in effect before `publish`."""
        body = _encode({"boot": self._boot_id, **document}).encode() + b"\n"
        content = b"%s %d %08x\n%s" % (_MAGIC, FORMAT, zlib.crc32(body), body)
        fd = os.open(f".{name}", _FLAGS, 0o600, dir_fd=self._fd)
        try:
            while content:
                content = content[os.write(fd, content) :]
        finally:
            os.close(fd)

    def publish(self, name: str) -> None:
        """Put the draft of `name` into effect. This needs no space on the disk."""
        self._rename(f".{name}", name)

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Replace the content of `name`."""
        self.draft(name, document)
        self.publish(name)

    def remove(self, name: str) -> None:
        """Remove the file `name`, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def set_aside(self, names: Iterable[str]) -> None:
        """Rename each file to NAME.damaged."""
        for name in sorted(names):
            with contextlib.suppress(FileNotFoundError):
                self._rename(name, f"{name}{_DAMAGED}")

    def _rename(self, before: str, after: str) -> None:
        os.rename(before, after, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _load(self, name: str) -> dict[str, Any]:
        """Return the object in a file; ValueError if it is damaged, or has another format."""
        with (self.path / name).open("rb") as opened:
            content = opened.read(_MOST_BYTES)
        header, _, body = content.partition(b"\n")
        magic, _, rest = header.partition(b" ")
        version, _, checksum = rest.partition(b" ")
        if magic != _MAGIC or not version.isdigit():
            raise ValueError("it is not a record of gpushare")
        if int(version) != FORMAT:
            raise ValueError(
                f"it has format {int(version)}, and this version of gpushare reads format {FORMAT}"
            )
        if checksum != b"%08x" % zlib.crc32(body):
            raise ValueError("its checksum is wrong")
        document = json.loads(body)
        if not isinstance(document, dict):
            raise ValueError("it is not an object")  # noqa: TRY004 - the file's fault, not a type
        return document


# --- what the ledger records of the freezes of tenants, and of kills that are promised ---

#: The cause of a freeze. "idle": `idle.action` paused it, as an operator does; "stop": it is to be
#: killed, at whatever request.
By = Literal["operator", "idle", "audit", "stop", "time-limit"]


@dataclass(frozen=True)
class FreezeRecord:
    """One freeze of one tenant, or its kill."""

    key: str
    by: By
    why: str
    since: float  # seconds since the epoch
    due: float = 0.0  # the time of the kill, of CLOCK_BOOTTIME
    thaws: bool = True  # gpushared may thaw it; it was not frozen before


class FreezeJournal:
    """The freezes of all tenants, for any thread: `all` is replaced, never changed.

    What is in effect is in memory, and in the kernel. `store` is called with the key of a tenant
    whose freezes are to be written to the disk: no freeze waits for that, or depends on it.
    `freezes` are those that were written.
    """

    def __init__(
        self, store: Callable[[str], None], freezes: Mapping[str, tuple[FreezeRecord, ...]]
    ) -> None:
        self.store = store
        self.all: Mapping[str, tuple[FreezeRecord, ...]] = MappingProxyType(dict(freezes))
        self._lock = threading.Lock()

    def of(self, key: str) -> tuple[FreezeRecord, ...]:
        """Return the freezes of tenant `key`, the oldest first."""
        return self.all.get(key, ())

    def by(self, key: str, by: By) -> FreezeRecord | None:
        """Return the freeze of tenant `key` by `by`, None if there is none."""
        return next((freeze for freeze in self.of(key) if freeze.by == by), None)

    def put(self, freeze: FreezeRecord) -> None:
        """Note `freeze` in place of an earlier one by the same for the same tenant."""
        with self._lock:
            self._publish(freeze.key, (*self._others(freeze.key, freeze.by), freeze))
        self.store(freeze.key)

    def drop(self, key: str, by: By) -> None:
        """Remove the freeze of tenant `key` by `by`, if there is one."""
        with self._lock:
            left = self._others(key, by)
            if left == self.of(key):
                return
            self._publish(key, left)
        self.store(key)

    def forget(self, key: str) -> None:
        """Publish that tenant `key` has no freezes: they ended with its record."""
        with self._lock:
            self._publish(key, ())

    def _others(self, key: str, by: By) -> tuple[FreezeRecord, ...]:
        return tuple(freeze for freeze in self.of(key) if freeze.by != by)

    def _publish(self, key: str, freezes: tuple[FreezeRecord, ...]) -> None:
        others = {other: kept for other, kept in self.all.items() if other != key}
        self.all = MappingProxyType({**others, key: freezes} if freezes else others)


# --- what the ledger records of an eviction: where a tenant's GPU memory is ---
#
# | state | memory | its allocations |
# |---|---|---|
# | evicting | on its cards; on the way to host memory | count |
# | evicted | in host memory of its processes | are available to others |
# | restoring | in host memory, on the way to the cards of its allocations | count again |
# | failed | the driver can neither keep nor restore it (CU_PROCESS_STATE_FAILED) | count |
#
# A step is recorded before it is begun, and what it has led to afterwards. A daemon that finds an
# eviction in between asks the driver for the state of each process: it never guesses.

EvictionState = Literal["evicting", "evicted", "restoring", "failed"]


@dataclass(frozen=True)
class EvictedProcess:
    """A process that uses the driver, by its numbers on the host."""

    pid: int
    starttime: int


@dataclass(frozen=True)
class EvictionRecord:
    """The eviction of a tenant. Tuples about cards are by the tenant's card number."""

    state: EvictionState
    since: float  # when it came into this state, in seconds since the epoch
    cause: str = "operator"  # or "idle", or "offline": for a request that had no room
    reason: str = ""
    processes: tuple[EvictedProcess, ...] = ()  # in the order of their eviction, and restore
    card_bytes: tuple[int, ...] = ()  # the driver's figure for each of the allocations
    # The UUIDs of the cards that the memory came from: a restore to another card changes those of
    # the allocations first.
    cards: tuple[str, ...] = ()
    error: str = ""  # of a failed one: what the driver said
    held: bool = False  # it is restored by an operator alone

    @property
    def bytes(self) -> int:
        """Memory that is, or is about to be, in host memory."""
        return sum(self.card_bytes)


def _eviction_from_json(values: Mapping[str, Any] | None) -> EvictionRecord | None:
    if values is None:
        return None
    return from_json(
        EvictionRecord,
        values,
        state=one_of(*get_args(EvictionState)),
        processes=tuple_of(EvictedProcess),
        card_bytes=lambda sizes: tuple(map(int, sizes)),
        cards=lambda uuids: tuple(map(str, uuids)),
    )


@dataclass(frozen=True)
class EvictionTotals:
    """The evictions since gpushared started, for the metrics. `seconds` are of all together."""

    evictions: int = 0
    restores: int = 0
    moves: int = 0
    failures: int = 0
    eviction_seconds: float = 0.0
    restore_seconds: float = 0.0
    driver_seconds: float = 0.0  # of both, in the driver

    def plus(self, **more: float) -> EvictionTotals:
        """Return these and what has been done since."""
        return EvictionTotals(
            **{key: value + more.get(key, 0) for key, value in vars(self).items()}
        )
