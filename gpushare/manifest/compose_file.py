# SPDX-License-Identifier: Apache-2.0
"""Files of docker compose. Source: compose-spec."""

from __future__ import annotations

import re
from typing import Final

import yaml

from gpushare.manifest.file import Container, Document, Pod, Value
from gpushare.manifest.nodes import below, entries, items, word
from gpushare.manifest.values import either
from gpushare.quota import Cards

_VARIABLE: Final = re.compile(
    r"\$(?:(?P<twice>\$)|\{(?P<braced>\w+)(?:(?P<how>:?[-+?])(?P<other>[^{}]*))?\}|(?P<bare>\w+))"
)
_CDI: Final = re.compile(r"nvidia\.com/gpu=(?P<name>.+)")


def is_compose(root: yaml.Node) -> bool:
    """Whether `root` is that of a compose file."""
    services = entries(below(root, "services"))
    known = {"image", "build", "extends"}
    return "apiVersion" not in entries(root) and any(
        not known.isdisjoint(entries(entry.value)) for entry in services.values()
    )


def read(root: yaml.Node) -> Document:
    """Return the document of a compose file; each service is a pod of one container."""
    document = Document("compose", root, name=word(below(root, "name")) or "")
    for name, entry in entries(below(root, "services")).items():
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
                image=word(below(service, "image")) or "",
                env=env,
                cards=_cards(service),
                runtime=word(_first(root, name, "runtime")) or "",
                unknown=unknown,
            )
        )
        document.pods.append(pod)
    return document


def _inherited(root: yaml.Node, name: str, key: str) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the values that a service has, with those that it extends, and what a shell decides.

    Of a service in another file nothing is known here.
    """
    found: dict[str, Value] = {}
    unknown: dict[str, None] = {}
    for above in reversed(_line(root, name)):
        node = below(root, "services", above, key)
        known, shell = _known(either(node, ("services", above, key)))
        found |= known
        unknown |= dict.fromkeys((*shell, *_from_shell(node)))
    return found, tuple(name for name in unknown if name not in found)


def _first(root: yaml.Node, name: str, key: str) -> yaml.Node | None:
    values = (below(root, "services", above, key) for above in _line(root, name))
    return next((value for value in values if value is not None), None)


def _line(root: yaml.Node, name: str) -> list[str]:
    """Return a service and those that it extends in the same file, each after the one below it."""
    line: list[str] = []
    while name and name not in line:
        line.append(name)
        extended = below(root, "services", name, "extends")
        elsewhere = below(extended, "file") is not None
        name = "" if elsewhere else word(extended) or word(below(extended, "service")) or ""
    return line


def _known(values: dict[str, Value]) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return `values` as compose writes them out, and the names of those that a shell decides."""
    found: dict[str, Value] = {}
    unknown: list[str] = []
    for name, value in values.items():
        text = written_out(value.text)
        if text is None:
            unknown.append(name)
        else:
            found[name] = Value(text, value.place, value.key_node, value.value_node)
    return found, tuple(unknown)


def written_out(text: str) -> str | None:
    """Return `text` with its variables at their defaults; None where one has none.

    `${NAME:-4GiB}` is 4GiB where nobody sets NAME, and `$$` is a dollar.
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


def _from_shell(node: yaml.Node | None) -> tuple[str, ...]:
    """Return the variables that are named without a value: they are the shell's."""
    named = [name for name, entry in entries(node).items() if word(entry.value) is None]
    listed = (word(item) or "" for item in items(node))
    return (*named, *(name for name in listed if name and "=" not in name))


def _cards(service: yaml.Node) -> Cards | None:
    """Return the cards that docker is asked for: by deploy, gpus or a CDI device."""
    reserved = below(service, "deploy", "resources", "reservations", "devices")
    for source, devices in (("deploy devices", reserved), ("gpus", below(service, "gpus"))):
        if word(devices) == "all":
            return Cards(f"compose {source}", all_cards=True)
        for device in items(devices):
            capabilities = [word(item) for item in items(below(device, "capabilities"))]
            if _said(device, "driver") in {None, "nvidia", "cdi"} and (
                "gpu" in capabilities or source == "gpus"
            ):
                return _of_device(f"compose {source}", device)
    found = [_CDI.fullmatch(word(item) or "") for item in items(below(service, "devices"))]
    names = tuple(match["name"] for match in found if match)
    if not names:
        return None
    return Cards(
        "compose devices", devices=() if "all" in names else names, all_cards="all" in names
    )


def _said(device: yaml.Node, key: str) -> str | None:
    text = word(below(device, key))
    return None if text is None else written_out(text)


def _of_device(source: str, device: yaml.Node) -> Cards:
    named = tuple(name for item in items(below(device, "device_ids")) if (name := word(item)))
    count = _said(device, "count")
    if named:
        return Cards(source, devices=named)
    if count is not None and count.isdecimal():
        return Cards(source, count=int(count))
    return Cards(source, all_cards=True)  # what compose takes for no count: all
