# SPDX-License-Identifier: Apache-2.0
"""Files of docker compose, as `docker compose config` resolves them.

Source: compose-spec; compose-go (interpolation, dotenv); moby, daemon/devices.go.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final, TypeAlias

from gpushare.manifest.model import Container, Document, ManifestValue, Pod, values_of_either
from gpushare.oci import injected_gpu
from gpushare.quota.dialects import TABLES
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import ANNOTATION_PREFIX, is_quota
from gpushare.quota.request import EngineCards
from gpushare.text_position import KeyPath, UnreadableText, read_text
from gpushare.yaml_nodes import YamlNode, fields, items, scalar_text, text_at, value_at

_VARIABLE: Final = re.compile(
    r"\$(?:(?P<twice>\$)|(?P<bare>\w+)|"
    r"\{(?P<braced>\w+)(?:(?P<how>:?[-+?])(?P<other>(?:[^{}]|\{[^{}]*\})*))?\})"
)
_CDI_KIND: Final = "nvidia.com/gpu="
# A line of an env_file: NAME=VALUE, NAME: VALUE, or NAME, which has its value elsewhere.
_LINE: Final = re.compile(r"(?:export\s+)?(?P<name>[\w.-]+)\s*(?:(?P<equals>[=:])\s*(?P<text>.*))?")
_QUOTED: Final = re.compile(r"'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\"")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}
# What Docker serves by a device driver, and not by the devices of a container.
_BLOCKS: Final = {
    "deploy devices": ("deploy", "resources", "reservations", "devices"),
    "gpus": ("gpus",),
}
_MOST_BYTES: Final = 1 << 16  # of an env_file
_MOST_VALUES: Final = 100_000  # that the services of a file have from env_files

#: The values of variables; None is one that is set and not known.
Variables: TypeAlias = MutableMapping[str, str | None]
#: A service and those that it extends, each after the one below it.
Line: TypeAlias = dict[str, YamlNode]


class _UnresolvedError(Exception):
    """What a service has cannot be known from its file: the text names it."""


def read_compose(root: YamlNode, folder: Path | None) -> Document:
    """Return the document of a compose file in `folder`; each service is a pod of one container.

    A variable has its value in the file .env, or its default. What only a shell or another file
    has is named in the `unknown` and the `unresolved` of a container.
    """
    reader = _ComposeReader(root, folder)
    for name, entry in fields(value_at(root, "services")).items():
        reader.read_service(name, entry.value)
    return reader.document


class _ComposeReader:
    def __init__(self, root: YamlNode, folder: Path | None) -> None:
        self.document = Document("compose", root, name=text_at(root, "name"))
        self._root = root
        self._folder = folder
        self._values = 0
        self._files: dict[str, Variables] = {}
        self._variables: Variables = {}
        self._unresolved: list[str] = []
        try:
            self._variables = self._read_env_file(".env", optional=True)
        except _UnresolvedError as error:
            self._unresolved.append(str(error))

    def read_service(self, name: str, service: YamlNode) -> None:
        line, elsewhere = self._line(name)
        unresolved = [*self._unresolved, *([f"extends {elsewhere}"] if elsewhere else [])]
        unknown: dict[str, None] = {}
        env: dict[str, ManifestValue] = {}
        cards = None
        try:
            self._take_env_files(line, env, unknown)
            cards = self._cards(line)
        except _UnresolvedError as error:
            unresolved.append(str(error))
        self._take(line, "environment", env, unknown)
        unresolved += [f"environment {name}" for name in unknown if _decides(name)]
        labels: dict[str, ManifestValue] = {}
        annotations: dict[str, ManifestValue] = {}
        self._take(line, "labels", labels, {})
        others: dict[str, None] = {}
        self._take(line, "annotations", annotations, others)
        unresolved += [
            f"annotation {name}" for name in others if name.startswith(ANNOTATION_PREFIX)
        ]
        place = ("services", name)
        pod = Pod(self.document, place, service, annotations, labels)
        pod.containers.append(
            Container(
                name=name,
                place=place,
                node=service,
                pod=pod,
                image=text_at(service, "image"),
                env=env,
                cards=cards,
                runtime=next(filter(None, (text_at(of, "runtime") for of in line.values())), ""),
                unknown=tuple(unknown),
                unresolved=tuple(unresolved),
            )
        )
        self.document.pods.append(pod)

    def _line(self, name: str) -> tuple[Line, str]:
        """Return the line of a service, and the file that has the rest of it, which is not read."""
        line: dict[str, YamlNode] = {}
        while name not in line and (service := value_at(self._root, "services", name)) is not None:
            line[name] = service
            extended = value_at(service, "extends")
            if file := text_at(extended, "file"):
                return line, file
            name = scalar_text(extended) or text_at(extended, "service")
        return line, ""

    def _take(
        self, line: Line, key: str, into: dict[str, ManifestValue], unknown: dict[str, None]
    ) -> None:
        """Put the values of `key` into a mapping, and the names that have none into `unknown`."""
        for above, service in reversed(line.items()):
            node, place = value_at(service, key), ("services", above, key)
            for name, value in values_of_either(node, place).items():
                text = self._resolved(value.text)
                _put(into, unknown, name, text, value.place, (value.key_node, value.value_node))
            for name, at, of in _without_value(node):
                _put(into, unknown, name, self._variables.get(name), (*place, at), (of, of))

    def _take_env_files(
        self, line: Line, env: dict[str, ManifestValue], unknown: dict[str, None]
    ) -> None:
        """Put the variables of all `env_file` into `env`."""
        for above, service in reversed(line.items()):
            node = value_at(service, "env_file")
            for item in items(node) or ([] if node is None else [node]):
                path = scalar_text(item) or text_at(item, "path")
                file = self._resolved(path)
                if file is None:
                    raise _UnresolvedError(f"env_file {path}")
                if file not in self._files:
                    optional = text_at(item, "required") == "false"
                    self._files[file] = self._read_env_file(file, optional=optional)
                self._values += len(self._files[file])
                if self._values > _MOST_VALUES:
                    raise _UnresolvedError(f"env_file {file} (too many values)")
                for name, text in self._files[file].items():
                    _put(env, unknown, name, text, ("services", above, "env_file"), (item, item))

    def _read_env_file(self, name: str, *, optional: bool = False) -> Variables:
        """Return the variables of a file, _UnresolvedError if it cannot be read."""
        path = None if self._folder is None else self._folder / name
        if optional and (path is None or not path.exists()):
            return {}
        if path is None or not path.is_file():
            raise _UnresolvedError(f"env_file {name} (no such file)")
        try:
            lines = read_text(path, _MOST_BYTES, "file of variables").splitlines()
        except UnreadableText as error:
            raise _UnresolvedError(f"env_file {name} ({error.fault.message})") from error
        found: dict[str, str | None] = {}
        for line in filter(None, map(str.strip, lines)):
            match = _LINE.fullmatch(line)
            if match is None and not line.startswith("#"):
                raise _UnresolvedError(f"env_file {name} (a line that is no NAME=VALUE)")
            if match is not None:
                known = ChainMap(self._variables, found)
                text = _line_value(match, known) if match["equals"] else known.get(match["name"])
                found[match["name"]] = text
        return found

    def _resolved(self, text: str) -> str | None:
        return resolve(text, self._variables)

    def _cards(self, line: Line) -> EngineCards | None:
        """Return the cards that docker is asked for: by deploy, gpus or CDI devices."""
        found: list[EngineCards] = []
        for source, keys in _BLOCKS.items():
            for devices in (value_at(service, *keys) for service in reversed(line.values())):
                if scalar_text(devices) is not None:
                    if self._text(source, devices) != "all":
                        raise _UnresolvedError(f"{source} {scalar_text(devices)}")
                    found.append(EngineCards(f"compose {source}", all_cards=True))
                found += filter(None, (self._device(source, item) for item in items(devices)))
        listed = [
            self._text("devices", item if item.kind == "scalar" else value_at(item, "source"))
            for service in reversed(line.values())
            for item in items(value_at(service, "devices"))
        ]
        found += filter(None, [_by_name("devices", [name for name in listed if name])])
        if len(found) > 1:
            raise _UnresolvedError(", ".join(dict.fromkeys(one.source for one in found)))
        return found[0] if found else None

    def _device(self, source: str, device: YamlNode) -> EngineCards | None:
        """Return the cards of one request for devices: what the driver that it names does."""
        driver = self._text(source, value_at(device, "driver"))
        capabilities = [
            self._text(source, item) for item in items(value_at(device, "capabilities"))
        ]
        names = [self._text(source, item) for item in items(value_at(device, "device_ids"))]
        count = self._text(source, value_at(device, "count"))
        if driver not in {"", "cdi"} and "gpu" not in capabilities and source != "gpus":
            return None
        if driver not in {"", "nvidia", "cdi"}:
            raise _UnresolvedError(f"{source} driver {driver} (Docker has nvidia and cdi)")
        if driver == "cdi" and (count or not names):
            raise _UnresolvedError(f"{source} driver cdi (it takes device_ids alone)")
        if driver == "cdi":
            return _by_name(f"{source} of cdi", names)
        if "gpu" not in capabilities and source != "gpus":
            return None
        if count and names:
            raise _UnresolvedError(f"{source} count {count} (device_ids is there too)")
        if names:
            return _named(source, names)
        if count in {"", "all", "-1"}:  # no count is all
            return EngineCards(f"compose {source}", all_cards=True)
        if not count.isdecimal():
            raise _UnresolvedError(f"{source} count {count}")
        return EngineCards(f"compose {source}", count=int(count)) if int(count) else None

    def _text(self, source: str, node: YamlNode | None) -> str:
        """Return a text with its variables; _UnresolvedError where one has no value."""
        written = scalar_text(node) or ""
        text = self._resolved(written)
        if text is None:
            raise _UnresolvedError(f"{source} {written}")
        return text


def resolve(text: str, variables: Variables) -> str | None:
    """Return `text` with its variables, or their defaults; None where one has neither.

    `${NAME:-4GiB}` is 4GiB where NAME is not set, and `$$` is a dollar.
    """
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        if match["twice"]:
            return "$"
        name, how = match["braced"] or match["bare"], match["how"] or ""
        found = variables.get(name)
        is_set = name in variables and (found != "" or not how.startswith(":"))
        if how.endswith("+" if is_set else "-"):
            found = resolve(match["other"], variables)
        elif how.endswith("+"):
            found = ""
        elif not is_set:
            found = None
        missing = missing or found is None
        return found or ""

    written = _VARIABLE.sub(value, text)
    return None if missing else written


def _line_value(line: re.Match[str], variables: Variables) -> str | None:
    text = line["text"]
    quoted = _QUOTED.match(text)
    if quoted is None:
        if text.startswith(("'", '"')):
            raise _UnresolvedError(f"env_file (several lines in the value of {line['name']})")
        return resolve(re.split(r"\s#", text)[0].strip(), variables)
    if quoted["single"] is not None:
        return quoted["single"]
    plain = re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), quoted["double"])
    return resolve(plain, variables)


def _put(  # noqa: PLR0913, PLR0917 - a value's parts
    into: dict[str, ManifestValue],
    unknown: dict[str, None],
    name: str,
    text: str | None,
    place: KeyPath,
    nodes: tuple[YamlNode, YamlNode],
) -> None:
    """Set a variable: a later one takes the place of an earlier one, also where it is not known."""
    into.pop(name, None)
    unknown.pop(name, None)
    if text is None:
        unknown[name] = None
    else:
        into[name] = ManifestValue(text, place, *nodes)


def _without_value(node: YamlNode | None) -> Iterator[tuple[str, str | int, YamlNode]]:
    """Yield the variables that are named without a value: they are the shell's."""
    for name, entry in fields(node).items():
        if scalar_text(entry.value) is None:
            yield name, name, entry.key
    for number, item in enumerate(items(node)):
        name = scalar_text(item) or ""
        if name and "=" not in name:
            yield name, number, item


def _decides(name: str) -> bool:
    """Whether a variable is a part of a request."""
    return is_quota(name) or any(word.row.key for word in TABLES.find("env", {name: ""}))


def _by_name(source: str, names: list[str]) -> EngineCards | None:
    """Return the cards among CDI devices."""
    return _named(source, [name for name in names if name.startswith(_CDI_KIND)])


def device_request(container: Container) -> KeyPath:
    """Return the path to what asks Docker's device drivers for cards; () if nothing does."""
    if container.cards is None or "cdi" in container.cards.source:
        return ()
    below = (part for part in _BLOCKS.values() if value_at(container.node, *part) is not None)
    path = next(below, ())
    return (*container.place, *path) if path else ()


def _named(source: str, names: list[str]) -> EngineCards | None:
    try:
        return injected_gpu.cards(",".join(names), f"compose {source}")
    except QuotaError as error:
        raise _UnresolvedError(str(error)) from error
