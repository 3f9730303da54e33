# SPDX-License-Identifier: Apache-2.0
"""What is explained of a manifest or an image, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpushare.cli.prose import wrapped
from gpushare.quota.errors import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_CONVERT: Final = (
    "What no runtime hears `gpushare convert {file} --to gpushare` writes in keys that it does."
)


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield what file.explained() returns, to be read."""
    for container in data["containers"]:
        yield from _told(container)
        yield ""
    for setting in data["settings"]:
        said = f"{_shown(setting)} ({setting['vendor']}): {setting['meaning']}"
        here = f" Here: {setting['instead']}." if setting["instead"] else ""
        yield from wrapped(f"{setting['of']}, line {setting['line']}: {said}{here}", rest="  ")
    if any(container["unreachable"] for container in data["containers"]):
        yield from wrapped(_CONVERT.format(file=data["file"]))
    yield from wrapped(
        f"Read by {data['node']}. What an operator set for a container that runs, and what the "
        "cards have left, is not looked at: `gpushare inspect NAME`, `gpushare ls`."
    )


def _told(container: Mapping[str, Any]) -> Iterator[str]:
    kind = "init container" if container["init"] else "container"
    named = f"{kind} {container['name']}" if container["name"] else kind
    of = f"{container['of']}, " if container["of"] != "oci" else ""
    yield f"{of}{named} (line {container['line']})"
    yield from of_container(container, "It says")


def of_container(container: Mapping[str, Any], heading: str) -> Iterator[str]:
    """Yield what is known of a container; what it says stands below `heading`."""
    yield from _block(heading, map(_meant, container["written"]), none="nothing of a GPU")
    yield from _block("No runtime hears", _unheard(container.get("unreachable", ())))
    hears = [_heard(key, asked) for key, asked in container["hears"].items()]
    if cards := container["cards"]:
        which = ", ".join(cards["named"]) or _counted(cards["count"])
        hears.insert(0, f"{which} from {cards['source']}")
    heard = {key: asked["text"] for key, asked in container["hears"].items()}
    wanted = container.get("wants") or {}
    if wanted and wanted != heard:
        wants = " ".join(f"{key}={text}" for key, text in wanted.items())
        yield from _block("All of it asks for", [wants])
    yield from _block("A node hears", hears, none="" if container["refused"] else "nothing")
    given = container["given"]
    yield from _block("It gives", [_share(given)] if given else [])
    refused = container["refused"]
    yield from _block("It refuses", [refused] if refused else [])
    wrong = [text for text in container["problems"] if text != refused]
    yield from _block("Wrong in it, as `gpushare validate` says with more", wrong)
    why = given["why"] if given else ""
    yield from _block("To know", [note for note in container["notes"] if note not in why])


def _block(heading: str, items: Any, none: str = "") -> Iterator[str]:
    said = list(items) or ([none] if none else [])
    if said:
        yield f"  {heading}"
        for item in said:
            yield from wrapped(item, "    ", "      ")


def _shown(row: Mapping[str, Any]) -> str:
    return f"{row['where']} {row['key']} {quoted(row['value'])}"


def _meant(row: Mapping[str, Any]) -> str:
    means = f" -> {row['means']}" if row["means"] else ""
    said = f" {row['meaning']}" if row["meaning"] else ""
    line = f"line {row['line']}: " if "line" in row else ""
    return f"{line}{_shown(row)} ({row['vendor']}):{said}{means}"


def _unheard(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the keys that the same part translates, and which one that is."""
    by: dict[str, list[str]] = {}
    for row in rows:
        by.setdefault(row["translated_by"], []).append(f"{row['where']} {row['key']}")
    for part, keys in by.items():
        yield f"{', '.join(keys)}; translated by: {part or 'nothing on a node'}"


def _heard(key: str, asked: Mapping[str, Any]) -> str:
    written = "" if asked["written"] == asked["text"] else f" {quoted(asked['written'])}"
    return f"{key}={asked['text']} from {asked['source']}{written}"


def _counted(count: int | None) -> str:
    return "every card" if count is None else f"{count} card{'' if count == 1 else 's'}"


def _share(given: Mapping[str, Any]) -> str:
    if given["kind"] == "none":
        return f"no GPU: {given['why']}" if not given["why"].startswith("no GPU") else given["why"]
    count = given["count"]
    cards = _counted(count)
    if given["kind"] == "whole":
        return f"{cards}, whole: {given['why']}"
    each = "each of " if count is not None and count > 1 else ""
    cores = f" and {given['cores']} % of the compute" if given["cores"] else ""
    order = given["class"] if given["class"] == "online" else f"offline {given['priority']}"
    return f"{given['memory']}{cores} of {each}{cards}, {given['policy']}, {order}"
