# SPDX-License-Identifier: Apache-2.0
"""gpushare.yaml: where it is looked for, what it may say, and what holds where it says nothing.

configs/gpushare.schema.json is the one description of the keys; this module adds what a schema
cannot say (a size, a duplicate key) and turns an error into the line of the file that has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

import gpushare
from gpushare.errors import UserError
from gpushare.quota import BadValue, Trust, parse_size

DEFAULT_FILE: Final = Path("/etc/gpushare/gpushare.yaml")
MAX_BYTES: Final = 1 << 20
SCHEMA_NAME: Final = "gpushare.schema.json"

# A key of the file and the place in it: ("driver", "cdi").
Place = tuple[str | int, ...]


class ConfigError(UserError):
    """The configuration cannot be used; the text names file, line, key, value and fix."""


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
    """What gpushare.yaml says, sizes in bytes; the schema describes each key."""

    file: Path | None = None
    run_dir: Path = Path("/run/gpushare")
    state_dir: Path = Path("/var/lib/gpushare")
    libraries: Path = Path("/usr/local/lib/gpushare/current/lib")
    read_group: str | None = None
    cdi: Path | None = None
    reserve_bytes: int = 0
    max_shares: int = 16
    default_memory_bytes: int | None = None
    default_cores: int | None = None
    default_policy: str | None = None
    whole_is_share: bool = False
    trust_env: Trust | None = None
    allow_uninterposed: bool = False
    docker_sockets: tuple[Path, ...] = (Path("/run/docker.sock"), Path("/run/podman/podman.sock"))
    mount_namespace: Path | None = None
    timing: Timing = field(default_factory=Timing)

    @property
    def socket(self) -> Path:
        """The control socket."""
        return self.run_dir / "control.sock"

    @property
    def probe(self) -> Path:
        """The CUDA program that measures what a context takes."""
        return self.libraries / "gpushare-probe"


def load(file: Path | None = None) -> Config:
    """Read `file`, or DEFAULT_FILE where it exists; ConfigError when it cannot be used."""
    if file is None:
        if not DEFAULT_FILE.exists():
            return Config()
        file = DEFAULT_FILE
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; name another with --config") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text at byte {error.start}") from error
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{file}: over 1 MiB; this is no gpushare.yaml")
    return parse(text, file)


def parse(text: str, file: Path) -> Config:
    """Return what `text`, the content of `file`, says; ConfigError when it is not right."""
    document = _Document(text, file)
    _check_schema(document)
    driver, defaults = document.section("driver"), document.section("defaults")
    docker = document.section("engines", "docker")
    namespace = document.content.get("mount_namespace")
    plain = Config()
    return Config(
        file=file,
        run_dir=document.path(("run_dir",), plain.run_dir),
        state_dir=document.path(("state_dir",), plain.state_dir),
        libraries=document.path(("libraries",), plain.libraries),
        read_group=document.content.get("read_group"),
        cdi=Path(driver["cdi"]) if "cdi" in driver else None,
        reserve_bytes=document.size(("reserve",), zero=True) or 0,
        max_shares=document.content.get("max_shares", plain.max_shares),
        default_memory_bytes=document.size(("defaults", "memory")),
        default_cores=defaults.get("cores"),
        default_policy=defaults.get("policy"),
        whole_is_share=defaults.get("whole_is_share", False),
        trust_env=document.section("trust").get("env"),
        allow_uninterposed=document.content.get("allow_uninterposed", plain.allow_uninterposed),
        docker_sockets=tuple(map(Path, docker["sockets"]))
        if "sockets" in docker
        else plain.docker_sockets,
        mount_namespace=Path(namespace) if namespace else None,
        timing=Timing(**{key: float(value) for key, value in document.section("timing").items()}),
    )


class _Document:
    """A YAML text with the line of each of its keys, 1 upwards."""

    def __init__(self, text: str, file: Path) -> None:
        self.file = file
        self.lines: dict[Place, int] = {}
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            self._note(node, ())
            content = yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigError(f"{file}:{line}: not YAML: {error.problem}") from error
        except (yaml.YAMLError, RecursionError) as error:
            raise ConfigError(f"{file}: not YAML: {error}") from error
        if content is None:
            content = {}
        if not isinstance(content, dict):
            raise ConfigError(f"{file}:1: not a mapping; write lines like `max_shares: 16`")
        self.content: dict[str, Any] = content

    def section(self, *names: str) -> Mapping[str, Any]:
        found: Any = self.content
        for name in names:
            found = found.get(name) or {}
        return dict(found)

    def value(self, place: Place) -> Any:
        found: Any = self.content
        for part in place:
            found = found.get(part) if isinstance(found, dict) else found[part]
            if found is None:
                return None
        return found

    def path(self, place: Place, default: Path) -> Path:
        value = self.value(place)
        return default if value is None else Path(value)

    def size(self, place: Place, *, zero: bool = False) -> int | None:
        value = self.value(place)
        if value is None or (zero and value in {"0", "0B"}):
            return None
        try:
            return parse_size(value)
        except BadValue as bad:
            raise self.error(place, f'"{value}" {bad.rule}; {bad.fix}') from bad

    def error(self, place: Place, text: str) -> ConfigError:
        known = next((place[:n] for n in range(len(place), 0, -1) if place[:n] in self.lines), ())
        line = f":{self.lines[known]}" if known else ""
        key = ".".join(map(str, place))
        return ConfigError(f"{self.file}{line}: {key + ': ' if key else ''}{text}")

    def _note(self, node: yaml.Node | None, place: Place) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = (*place, key.value)
                if here in self.lines:
                    line = key.start_mark.line + 1
                    raise ConfigError(
                        f"{self.file}:{line}: {'.'.join(map(str, here))} is there twice "
                        f"(first in line {self.lines[here]}); keep one"
                    )
                self.lines[here] = key.start_mark.line + 1
                self._note(value, here)
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                here = (*place, number)
                self.lines[here] = item.start_mark.line + 1
                self._note(item, here)


def _check_schema(document: _Document) -> None:
    # Imported here: the clients read this module for its defaults and do without the validator.
    import jsonschema  # noqa: PLC0415

    validator = jsonschema.Draft202012Validator(schema())
    error = min(
        validator.iter_errors(document.content),
        key=lambda found: document.lines.get(tuple(found.absolute_path), 0),
        default=None,
    )
    if error is None:
        return
    place = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        assert isinstance(error.instance, dict)
        unknown = next(key for key in error.instance if key not in error.schema["properties"])
        known = ", ".join(error.schema["properties"])
        raise document.error((*place, unknown), f"no such key; the keys here are {known}")
    raise document.error(place, f"{error.message}; {_expected(error.schema)}")


def _expected(schema_part: Mapping[str, Any]) -> str:
    """Return what to write instead, from the schema's own words."""
    if "enum" in schema_part:
        return "write one of " + ", ".join(map(str, schema_part["enum"]))
    if schema_part.get("pattern") == "^/":
        return "write an absolute path"
    if "examples" in schema_part:
        return f"write e.g. {schema_part['examples'][0]}"
    if "minimum" in schema_part:
        return f"write a number from {schema_part['minimum']} to {schema_part['maximum']}"
    return f"write a {schema_part.get('type', 'value')}"


def schema() -> dict[str, Any]:
    """Return the JSON schema, from beside the package or from the source tree."""
    places = [Path(folder) for folder in gpushare.__path__]
    places.append(Path(__file__).parents[1] / "configs")
    for place in places:
        if (place / SCHEMA_NAME).is_file():
            found: dict[str, Any] = json.loads((place / SCHEMA_NAME).read_text(encoding="utf-8"))
            return found
    raise ConfigError(f"{SCHEMA_NAME} is not in {places[0]}; install gpushare again")
