# SPDX-License-Identifier: Apache-2.0
"""gpushare.yaml: where it is looked for, what it may say, and what holds where it says nothing.

configs/gpushare.schema.json is the one description of the keys; gpushare/settings reads the text,
and tells every problem with its line.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gpushare.quota import Terms, parse_size
from gpushare.settings import (
    USERS,
    USERS_CEILINGS,
    USERS_TOGETHER,
    CardRule,
    CardSection,
    ConfigError,
    card_sections,
    checked,
    namespaces,
    of_namespace,
    rule_of,
    schema,
    section_of,
    terms,
    text_of,
)

__all__ = [
    "DEFAULT_FILE",
    "Config",
    "ConfigError",
    "Timing",
    "load",
    "outdated",
    "parse",
    "schema",
]

DEFAULT_FILE: Final = Path("/etc/gpushare/gpushare.yaml")


@dataclass(frozen=True)
class Timing:
    """Periods and deadlines, in seconds."""

    bind: float = 60.0
    sample: float = 0.25
    reconcile: float = 10.0
    foreign_half_life: float = 60.0
    driver: float = 5.0


@dataclass(frozen=True)
class Config:
    """What gpushare.yaml says, sizes in bytes; the schema describes each key.

    `terms` are for every request but those of `users` (`gpushare run` without root) and of
    `namespaces`, by name or pattern in the order of the file. `written_ns` is when the file that
    was read had been written, 0 where there was none, None where no file was looked for.
    """

    file: Path | None = None
    written_ns: int | None = field(default=None, compare=False)
    run_dir: Path = Path("/run/gpushare")
    state_dir: Path = Path("/var/lib/gpushare")
    libraries: Path = Path("/usr/local/lib/gpushare/current/lib")
    read_group: str | None = None
    cdi: Path | None = None
    reserve_bytes: int = 0
    max_shares: int = 16
    cards: tuple[CardSection, ...] = ()
    terms: Terms = field(default_factory=Terms)
    users: Terms = field(
        default_factory=lambda: Terms(ceilings=USERS_CEILINGS, together=USERS_TOGETHER)
    )
    namespaces: tuple[tuple[str, Terms], ...] = ()
    allow_uninterposed: bool = False
    unknown: str = "warn"  # ignore | warn | kill: a container on a card that was given none
    docker_sockets: tuple[Path, ...] = (Path("/run/docker.sock"), Path("/run/podman/podman.sock"))
    mount_namespace: Path | None = None
    history_days: int = 7  # 0: none is kept
    history_bytes: int = 100 << 20
    timing: Timing = field(default_factory=Timing)

    @property
    def socket(self) -> Path:
        """The control socket."""
        return self.run_dir / "control.sock"

    @property
    def probe(self) -> Path:
        """The CUDA program that measures what a context takes."""
        return self.libraries / "gpushare-probe"

    def rule_of(self, index: int, uuid: str, model: str) -> CardRule:
        """Return which requests a card takes, and how many shares of it there may be."""
        return rule_of(self.cards, index, uuid, model, self.max_shares)

    def terms_of(self, namespace: str) -> Terms:
        """Return what containers of `namespace` are held to; of none where it is empty."""
        section = section_of(namespace, [name for name, _ in self.namespaces])
        return self.terms if section is None else dict(self.namespaces)[section]


def load(file: Path | None = None) -> Config:
    """Read `file`, or DEFAULT_FILE where it exists; ConfigError when it cannot be used."""
    found = file or DEFAULT_FILE
    # Before the text is read: what is written in between must look newer than what was read.
    written_ns = _written_ns(found)
    if file is None and not written_ns:
        return Config(written_ns=0)
    return replace(parse(text_of(found), found), written_ns=written_ns)


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


def parse(text: str, file: Path) -> Config:
    """Return what `text`, the content of `file`, says; ConfigError when it is not right."""
    document, plain = checked(text, file), Config()
    said = {key: value for key, value in document.content.items() if value is not None}
    paths = {key: Path(said[key]) for key in ("run_dir", "state_dir", "libraries") if key in said}
    reserve, cdi = said.get("reserve", "0"), document.at(("driver", "cdi"))
    sockets = document.at(("engines", "docker", "sockets"))
    namespace = said.get("mount_namespace")
    history = document.section(("history",))
    days, most = history.get("days"), history.get("most")
    timing = document.section(("timing",)).items()
    return Config(
        file=file,
        written_ns=None,
        **paths,
        read_group=said.get("read_group"),
        cdi=None if cdi is None else Path(cdi),
        reserve_bytes=0 if reserve in {"0", "0B", 0} else parse_size(reserve),
        max_shares=said.get("max_shares", plain.max_shares),
        cards=card_sections(document),
        terms=terms(document),
        users=terms(document, USERS),
        namespaces=tuple(
            (name, terms(document, of_namespace(name))) for name in namespaces(document)
        ),
        allow_uninterposed=said.get("allow_uninterposed", plain.allow_uninterposed),
        unknown=document.section(("audit",)).get("unknown") or plain.unknown,
        docker_sockets=plain.docker_sockets if sockets is None else tuple(map(Path, sockets)),
        mount_namespace=None if namespace is None else Path(namespace),
        history_days=plain.history_days if days is None else int(days),
        history_bytes=plain.history_bytes if most is None else parse_size(most),
        timing=Timing(**{key: float(value) for key, value in timing if value is not None}),
    )
