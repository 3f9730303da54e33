# SPDX-License-Identifier: Apache-2.0
"""Files of docker compose. Source: compose-spec."""

from __future__ import annotations

import re
from typing import Final

from gpushare.manifest.model import Container, Document, ManifestValue, Pod, values_of_either
from gpushare.quota.request import EngineCards
from gpushare.yaml_nodes import YamlNode, fields, items, scalar_text, text_at, value_at

_VARIABLE: Final = re.compile(
    r"\$(?:(?P<twice>\$)|\{(?P<braced>\w+)(?:(?P<how>:?[-+?])(?P<other>[^{}]*))?\}|(?P<bare>\w+))"
)
_CDI: Final = re.compile(r"nvidia\.com/gpu=(?P<name>.+)")


def is_compose(root: YamlNode) -> bool:
    """Whether `root` is that of a compose file."""
    services = fields(value_at(root, "services"))
    known = {"image", "build", "extends"}
    return "apiVersion" not in fields(root) and any(
        not known.isdisjoint(fields(entry.value)) for entry in services.values()
    )


def read_compose(root: YamlNode) -> Document:
    """Return the document of a compose file; each service is a pod of one container."""
    document = Document("compose", root, name=text_at(root, "name"))
    for name, entry in fields(value_at(root, "services")).items():
        service, place = entry.value, ("services", name)
        labels, _ = _inherited(root, name, "labels")
        annotations, _ = _inherited(root, name, "annotations")
        env, unknown = _inherited(root, name, "environment")
        pod = Pod(document, place, service, annotations, labels)
        pod.containers.append(
            Container(
                name=name,
                place=place,
                node=service,
                pod=pod,
                image=text_at(service, "image"),
                env=env,
                cards=_cards(service),
                runtime=scalar_text(_first(root, name, "runtime")) or "",
                unknown=unknown,
            )
        )
        document.pods.append(pod)
    return document


def _inherited(
    root: YamlNode, name: str, key: str
) -> tuple[dict[str, ManifestValue], tuple[str, ...]]:
    """Return the values that a service has, with those that it extends, and what a shell decides.

    Of a service in another file nothing is known here.
    """
    inherited: dict[str, ManifestValue] = {}
    unknown: dict[str, None] = {}
    for above in reversed(_line(root, name)):
        node = value_at(root, "services", above, key)
        known, shell = _known(values_of_either(node, ("services", above, key)))
        inherited |= known
        unknown |= dict.fromkeys((*shell, *_from_shell(node)))
    return inherited, tuple(name for name in unknown if name not in inherited)


def _first(root: YamlNode, name: str, key: str) -> YamlNode | None:
    values = (value_at(root, "services", above, key) for above in _line(root, name))
    return next((value for value in values if value is not None), None)


def _line(root: YamlNode, name: str) -> list[str]:
    """Return a service and those that it extends in the same file, each after the one below it."""
    line: list[str] = []
    while name and name not in line:
        line.append(name)
        extended = value_at(root, "services", name, "extends")
        elsewhere = value_at(extended, "file") is not None
        name = "" if elsewhere else scalar_text(extended) or text_at(extended, "service")
    return line


def _known(values: dict[str, ManifestValue]) -> tuple[dict[str, ManifestValue], tuple[str, ...]]:
    """Return `values` as compose writes them out, and the names of those that a shell decides."""
    known: dict[str, ManifestValue] = {}
    unknown: list[str] = []
    for name, value in values.items():
        text = written_out(value.text)
        if text is None:
            unknown.append(name)
        else:
            known[name] = ManifestValue(text, value.place, value.key_node, value.value_node)
    return known, tuple(unknown)


def written_out(text: str) -> str | None:
    """Return `text` with its variables at their defaults; None where one has none.

    `${NAME:-4GiB}` is 4GiB where NAME is not set, and `$$` is a dollar.
    """
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        if match["twice"]:
            return "$"
        if (match["how"] or "").endswith("-"):
            return match["other"]
        missing = True
        return ""

    written = _VARIABLE.sub(value, text)
    return None if missing else written


def _from_shell(node: YamlNode | None) -> tuple[str, ...]:
    """Return the variables that are named without a value: they are the shell's."""
    named = [name for name, entry in fields(node).items() if scalar_text(entry.value) is None]
    listed = (scalar_text(item) or "" for item in items(node))
    return (*named, *(name for name in listed if name and "=" not in name))


def _cards(service: YamlNode) -> EngineCards | None:
    """Return the cards that docker is asked for: by deploy, gpus or a CDI device."""
    reserved = value_at(service, "deploy", "resources", "reservations", "devices")
    for source, devices in (("deploy devices", reserved), ("gpus", value_at(service, "gpus"))):
        if scalar_text(devices) == "all":
            return EngineCards(f"compose {source}", all_cards=True)
        for device in items(devices):
            capabilities = [scalar_text(item) for item in items(value_at(device, "capabilities"))]
            if _field_text(device, "driver") in {None, "nvidia", "cdi"} and (
                "gpu" in capabilities or source == "gpus"
            ):
                return _of_device(f"compose {source}", device)
    matches = [
        _CDI.fullmatch(scalar_text(item) or "") for item in items(value_at(service, "devices"))
    ]
    names = tuple(match["name"] for match in matches if match)
    if not names:
        return None
    return EngineCards(
        "compose devices", devices=() if "all" in names else names, all_cards="all" in names
    )


def _field_text(device: YamlNode, key: str) -> str | None:
    text = scalar_text(value_at(device, key))
    return None if text is None else written_out(text)


def _of_device(source: str, device: YamlNode) -> EngineCards:
    named = tuple(
        name for item in items(value_at(device, "device_ids")) if (name := scalar_text(item))
    )
    count = _field_text(device, "count")
    if named:
        return EngineCards(source, devices=named)
    if count is not None and count.isdecimal():
        return EngineCards(source, count=int(count))
    return EngineCards(source, all_cards=True)  # what compose takes for no count: all
