# SPDX-License-Identifier: Apache-2.0
"""gpushare.yaml: where it is found, what it may contain, and its defaults.

configs/gpushare.schema.json is the one description of the keys; gpushare/settings reads the text,
and reports every problem with its line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from gpushare.prices import Prices, prices
from gpushare.protocol.kubernetes import MODES, NodeMode
from gpushare.quota.keys import parse_duration
from gpushare.quota.node_settings import (
    ALLOWED_MODE,
    CORDONED,
    NODE_MODE,
    RELEASED,
    NodeSetting,
)
from gpushare.quota.request_policy import RequestPolicy
from gpushare.quota.size import parse_size
from gpushare.remote_gpu import RemoteGpus, remote_gpus
from gpushare.settings import (
    ANY,
    INTERPOSER,
    USERS,
    USERS_MAX_PER_CARD,
    USERS_MAX_PER_REQUEST,
    CardRule,
    CardSection,
    card_sections,
    checked,
    namespaces,
    of_namespace,
    terms,
    text_of,
)
from gpushare.text_position import KeyPath

DEFAULT_FILE: Final = Path("/etc/gpushare/gpushare.yaml")


@dataclass(frozen=True)
class Timing:
    """Periods and deadlines, in seconds."""

    bind_timeout_seconds: float = 60.0
    sample_interval_seconds: float = 0.25
    reconcile_interval_seconds: float = 10.0
    driver_timeout_seconds: float = 5.0
    shortfall_kill_seconds: float = 30.0  # 0: never


@dataclass(frozen=True)
class QueueLimits:
    """How many starts may wait, and how long a grant stays."""

    max_tickets: int = 64
    max_tickets_per_user: int = 8
    start_timeout_seconds: int = 300  # from the grant to the start; an image may be pulled


@dataclass(frozen=True)
class HostMemory:
    """Host memory for managed memory beyond quotas: of all containers, and of one on each card.

    0: no container gets any. `container_bytes` None: as much as all containers together.
    """

    host_memory_bytes: int = 0
    container_bytes: int | None = None

    @property
    def most_bytes(self) -> int:
        """The bytes that one container may have on each card."""
        most = self.host_memory_bytes
        return most if self.container_bytes is None else min(most, self.container_bytes)

    @property
    def most_source(self) -> str:
        """The key that sets `most_bytes`."""
        own = self.container_bytes is not None and self.container_bytes <= self.host_memory_bytes
        return f"oversubscribe.{'per_container' if own else 'host_memory'}"


@dataclass(frozen=True)
class EvictPolicy:
    """The policy for evictions. Requests of an operator are bounded by `host_memory_bytes` alone.

    `host_memory_bytes` is for all evicted containers together; None: half of the machine's memory,
    0: nothing is evicted. `offline`: containers of class offline are evicted for a request of class
    online that has no room. `min_resident_seconds`: so long a restored container is not evicted for
    another one. `moves`: new containers get the device nodes of all cards of their card's model.
    `believe_claims`: what a container claims of managed and shared memory keeps it on its card.
    """

    host_memory_bytes: int | None = None
    offline: bool = False
    min_resident_seconds: int = 60
    moves: bool = False
    believe_claims: bool = True


@dataclass(frozen=True)
class Config:
    """The content of gpushare.yaml, sizes in bytes; the schema describes each key.

    `terms` are for every request but those of `users` (`gpushare run` without root) and of
    `namespaces`, by name or pattern in the order of the file. `written_ns` is when the file that
    was read had been written, 0 where there was none, None where no file was looked for.
    `node_settings` are those that labels of the node set, and `of_file` the same without them.
    """

    file: Path | None = None
    written_ns: int | None = field(default=None, compare=False)
    run_dir: Path = Path("/run/gpushare")
    state_dir: Path = Path("/var/lib/gpushare")
    libraries: Path = Path("/usr/local/lib/gpushare/current/lib")
    read_group: str | None = None
    cdi: Path | None = None
    reserve_bytes: int = 0
    max_tenants: int = 16
    cards: tuple[CardSection, ...] = ()
    terms: RequestPolicy = field(default_factory=RequestPolicy)
    users: RequestPolicy = field(
        default_factory=lambda: RequestPolicy(
            max_per_request=USERS_MAX_PER_REQUEST, max_per_card=USERS_MAX_PER_CARD
        )
    )
    namespaces: tuple[tuple[str, RequestPolicy], ...] = ()
    allow_uninterposed: bool = False
    bind: str = "launcher"  # launcher | hook: what binds a container that an engine creates
    docker_sockets: tuple[Path, ...] = (Path("/run/docker.sock"), Path("/run/podman/podman.sock"))
    mount_namespace: Path | None = None
    history_days: int = 7  # 0: none is kept
    history_bytes: int = 100 << 20
    prices: Prices = field(default_factory=Prices)
    metrics_days: int = 7  # 0: no figures are kept
    metrics_bytes: int | None = None  # None: in proportion to the days
    labels: tuple[str, ...] = ()  # of containers, which are recorded for reports
    kubernetes_mode: NodeMode = "annotations"
    node_name: str = ""  # in Kubernetes; empty: not configured
    cdi_dir: Path = Path("/var/run/cdi")  # for the specs of claims
    accepts_node_labels: bool = True
    node_settings: Mapping[str, NodeSetting] = field(default_factory=dict)
    of_file: Config | None = field(default=None, compare=False)  # None: it is this one
    evict: EvictPolicy = field(default_factory=EvictPolicy)
    timing: Timing = field(default_factory=Timing)
    queue: QueueLimits = field(default_factory=QueueLimits)
    oversubscribe: HostMemory = field(default_factory=HostMemory)
    remote: RemoteGpus = field(default_factory=RemoteGpus)

    @property
    def socket(self) -> Path:
        """The control socket."""
        return self.run_dir / "control.sock"

    @property
    def probe(self) -> Path:
        """The CUDA program that measures the memory of a context."""
        return self.libraries / "gpushare-probe"

    def labelled(self, settings: Mapping[str, NodeSetting]) -> Config:
        """Return the file's configuration with `settings` of the node's labels, if it lets them."""
        plain = self.of_file or self
        if not settings or not plain.accepts_node_labels:
            return plain
        mode = settings[NODE_MODE]["value"] if NODE_MODE in settings else plain.kubernetes_mode
        return replace(
            plain,
            terms=plain.terms.labelled(settings),
            users=plain.users.labelled(settings),
            namespaces=tuple(
                (name, section.labelled(settings)) for name, section in plain.namespaces
            ),
            kubernetes_mode=next(known for known in MODES if known == mode),
            node_settings=dict(settings),
            of_file=plain,
        )

    @property
    def driver_released(self) -> str:
        """Why gpushared must not hold the driver, "" if it may: a label of the node."""
        setting = self.node_settings.get(RELEASED)
        return f"it is about to be unloaded ({setting['source']})" if setting else ""

    def rule_of(self, index: int, uuid: str, model: str) -> CardRule:
        """Return which requests a card accepts, and the maximum number of shares."""
        values: dict[str, Any] = {}
        where: dict[str, str] = {}
        sections = [(section.nearness(index, uuid, model), section) for section in self.cards]
        for near, section in sorted(sections, key=lambda one: -one[0]):
            if near:
                values = {**section.values, **values}
                where = {**section.where, **where}
        if (setting := self.node_settings.get(ALLOWED_MODE)) is not None:
            values = {**values, "allowed_mode": setting["value"]}
            where = {**where, "allowed_mode": setting["source"]}
        return CardRule(
            mode=values.get("allowed_mode", ANY),
            max_tenants=values.get("max_tenants", self.max_tenants),
            backend=values.get("backend", INTERPOSER),
            mps_trusted=values.get("mps_trusted", False),
            where=where,
            cordoned_by=self._cordoned_by(uuid),
        )

    def _cordoned_by(self, uuid: str) -> str | None:
        setting = self.node_settings.get(CORDONED)
        if setting is None or uuid not in setting["value"].split(","):
            return None
        return setting["source"]

    def terms_of(self, namespace: str) -> RequestPolicy:
        """Return the policy for containers of `namespace`; empty: of no namespace."""
        section = section_of(namespace, [name for name, _ in self.namespaces])
        return self.terms if section is None else dict(self.namespaces)[section]


def section_of(namespace: str, sections: list[str]) -> str | None:
    """Return which of `sections` is for `namespace`: its name itself, else the first pattern."""
    if not namespace:
        return None
    if namespace in sections:
        return namespace
    return next((name for name in sections if fnmatchcase(namespace, name)), None)


def load(file: Path | None = None) -> Config:
    """Read `file`, or DEFAULT_FILE where it exists; ConfigError if it cannot be used."""
    path = file or DEFAULT_FILE
    # Before the text is read: what is written in between must look newer than what was read.
    written_ns = _written_ns(path)
    if file is None and not written_ns:
        return Config(written_ns=0)
    return replace(parse(text_of(path), path), written_ns=written_ns)


def outdated(config: Config) -> bool:
    """Whether the file of `config` was written, made or removed after it was read."""
    if config.written_ns is None:
        return False
    return _written_ns(config.file or DEFAULT_FILE) != config.written_ns


def _written_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _size(text: Any) -> int:
    """Return a size in bytes; 0 is one, unlike in a request."""
    return 0 if text in {"0", "0B", 0} else parse_size(text)


#: Of each field that is one key of the file: the key, and what makes its value.
FIELDS: Final[Mapping[str, tuple[KeyPath, Callable[[Any], Any]]]] = {
    "run_dir": (("run_dir",), Path),
    "state_dir": (("state_dir",), Path),
    "libraries": (("library_dir",), Path),
    "read_group": (("read_group",), str),
    "cdi": (("driver", "cdi_spec"), Path),
    "reserve_bytes": (("system_reserved",), _size),
    "max_tenants": (("max_tenants",), int),
    "allow_uninterposed": (("allow_bypass_capabilities",), bool),
    "bind": (("bind",), str),
    "docker_sockets": (("engines", "sockets"), lambda paths: tuple(map(Path, paths))),
    "mount_namespace": (("runtime_mount_namespace",), Path),
    "history_days": (("history", "retention_days"), int),
    "history_bytes": (("history", "max_size"), parse_size),
    "labels": (("labels",), tuple),
    "metrics_days": (("metrics_history", "retention_days"), int),
    "metrics_bytes": (("metrics_history", "max_size"), parse_size),
    "kubernetes_mode": (("kubernetes", "mode"), str),
    "node_name": (("kubernetes", "node"), str),
    "cdi_dir": (("kubernetes", "cdi_dir"), Path),
    "accepts_node_labels": (("kubernetes", "node_labels"), bool),
}


def parse(text: str, file: Path) -> Config:
    """Return the configuration in `text`, the content of `file`; ConfigError if it is invalid."""
    document = checked(text, file)
    values = {
        name: read(value)
        for name, (path, read) in FIELDS.items()
        if (value := document.at(path)) is not None
    }
    timing = document.section(("timing",)).items()
    evict = document.section(("evict",))
    evicted = evict.get("host_memory")
    remote = document.section(("remote",))
    return Config(
        **values,
        file=file,
        cards=card_sections(document),
        terms=terms(document),
        users=terms(document, USERS),
        namespaces=tuple(
            (name, terms(document, of_namespace(name))) for name in namespaces(document)
        ),
        prices=prices(document.section(("prices",))),
        queue=_queue(document.section(("queue",))),
        oversubscribe=_host_memory(document.section(("oversubscribe",))),
        remote=remote_gpus(remote) if remote else RemoteGpus(),
        evict=EvictPolicy(
            host_memory_bytes=None if evicted is None else _size(evicted),
            offline=bool(evict.get("offline", EvictPolicy.offline)),
            min_resident_seconds=parse_duration(evict.get("min_resident") or "60s"),
            moves=bool(evict.get("moves", EvictPolicy.moves)),
            believe_claims=bool(evict.get("believe_claims", EvictPolicy.believe_claims)),
        ),
        timing=Timing(**{key: float(value) for key, value in timing if value is not None}),
    )


def _host_memory(section: Mapping[str, Any]) -> HostMemory:
    most, each = section.get("host_memory") or "0", section.get("per_container")
    return HostMemory(
        0 if most in {"0", "0B"} else parse_size(most),
        None if each is None else parse_size(each),
    )


def _queue(section: Mapping[str, Any]) -> QueueLimits:
    """Return the limits that a section sets; a time is a text such as 30m."""
    values = {key: value for key, value in section.items() if value is not None}
    if "start_timeout" in values:
        values["start_timeout_seconds"] = parse_duration(values.pop("start_timeout"))
    return QueueLimits(**values)
