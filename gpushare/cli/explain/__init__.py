# SPDX-License-Identifier: Apache-2.0
"""`gpushare explain`: explain a manifest, a code, a topic or an image."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare import knowledge
from gpushare.cli import session as shared
from gpushare.cli.text import prose, wrapped
from gpushare.errors import ErrorCode, UserError
from gpushare.quota.errors import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpushare.cli.session import Session
    from gpushare.compatibility.model import ModelFormats
    from gpushare.compatibility.rules import CardFacts
    from gpushare.knowledge import KnowledgeEntry


STDIN: Final = "-"
_SUFFIXES: Final = (".yaml", ".yml", ".json")  # no code or topic has such a name
_NOR: Final = ": no such file, container of this node, or image of Docker or Podman"
_HEADINGS: Final = {
    "text": "",
    "why": "Cause",
    "here": "With gpushare",
    "do": "Solution",
}
_CODES: Final = (
    "Codes: CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation, 2; NVML_ERROR_NO_PERMISSION, "
    "nvml 4; xid-79; exit-3; log events, such as card-unhealthy; and messages, in quotes."
)

_CONVERT: Final = (
    "To rewrite the ignored keys in a form that the runtime receives, run `gpushare convert {file} "
    "--to gpushare`."
)


@shared.command("explain")
@click.argument(
    "words",
    nargs=-1,
    metavar="[FILE|CODE|TOPIC|IMAGE]",
    shell_complete=shared.completes("files", "topics"),
)
@shared.config_option("Node configuration to apply.")
@shared.model_option
def command(
    session: Session, words: tuple[str, ...], file: Path | None, model: ModelFormats
) -> None:
    """Explain a manifest, a code, a topic or an image.

    FILE is a manifest of Kubernetes or docker compose, an ECS task definition or a container's
    config.json, or - for standard input. For each container, explain shows what each key means, in
    any system's format, which keys the container runtime ignores, which source takes precedence,
    and the effective request on this node, computed as when a container is created.

    CODE is a CUDA or NVML error, by name or number (2, nvml 2), an XID (xid-79), an exit status
    (exit-3), a log event, or a message of gpushare, CUDA or a framework as it was printed. Without
    an argument, the TOPICS are listed.

    IMAGE is an image of Docker or Podman: explain shows the request of its own variables. For a
    container of this node it names the commands that show its quota and memory.

    A file takes precedence over a code, a code over a topic, and a topic over an image. If nothing
    matches, the exit status is 1.
    """
    subject = " ".join(words)
    is_file = subject == STDIN or _is_file(subject)
    if model and not is_file:
        raise click.UsageError("--model requires a FILE")
    if not subject:
        session.show(list(map(_data, knowledge.all_entries())), lambda: "\n".join(_topic_lines()))
    elif is_file:
        _explain_file(session, subject, file, model)
    elif subject.startswith(("/", "./", "../")):
        raise UserError(_no_file(subject), code=ErrorCode.NOT_FOUND, value=subject)
    else:
        _explain_entry(session, subject, file)


def _is_file(text: str) -> bool:
    """Whether `text` is the path of a file; a message may be longer than any path."""
    try:
        mode = Path(text).stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _no_file(path: str) -> str:
    try:
        Path(path).stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return f"{path}: {reason or 'not a path'}. Use a file, a code, a topic or an image."
    return f"{path}: not a file. To check all files in a folder, run `gpushare validate {path}`."


def _explain_file(session: Session, path: str, file: Path | None, model: ModelFormats) -> None:
    # Not at the top: a code needs no YAML.
    from gpushare.cli.explain import manifest  # noqa: PLC0415

    data = manifest.explain_manifest(
        path,
        file or session.config_file(),
        is_named=file is not None,
        cards_of=lambda: _cards(session),
        model=model,
    )
    others = [] if path == STDIN or path.endswith(_SUFFIXES) else knowledge.find_entries(path)
    session.show(
        {**data, "others": [other.name for other in others]},
        lambda: "\n".join(manifest_lines(data)),
    )
    if others:
        names = ", ".join(other.name for other in others)
        also = f"This explains the file {path}. It can also mean {names}."
        session.note("\n".join(wrapped(also)))


def _cards(session: Session) -> tuple[CardFacts, ...]:
    """Return the cards of this node; empty if gpushared does not say them."""
    from gpushare.cli.compat import card_facts  # noqa: PLC0415 - as above

    try:
        return tuple(map(card_facts, session.client.cards()))
    except UserError:
        return ()


def _explain_entry(session: Session, subject: str, file: Path | None) -> None:
    entries = knowledge.find_entries(subject)
    if entries:
        session.show(_entry_data(entries), lambda: "\n".join(_entry_lines(entries)))
        return
    from gpushare.cli.explain import manifest  # noqa: PLC0415

    if not manifest.may_be_image(subject):
        raise UserError(_unknown(subject), code=ErrorCode.NOT_FOUND, value=subject)
    data = manifest.explain_container(subject, session.client) or manifest.explain_image(
        subject, file or session.config_file(), is_named=file is not None
    )
    if data is None:
        raise UserError(_unknown(subject, _NOR), code=ErrorCode.NOT_FOUND, value=subject)
    session.show(data, lambda: "\n".join(image_lines(data)))


def _entry_lines(entries: list[KnowledgeEntry]) -> Iterator[str]:
    """Yield the text of the first entry, and the names of the others."""
    first, *others = entries
    yield f"{first.name}{_called(first)}"
    yield ""
    yield from wrapped(first.what)
    for part in knowledge.PARTS:
        if part in first.parts:
            heading = _HEADINGS[part]
            yield from ["", heading] if heading else [""]
            yield from prose(first.parts[part], "  " if heading else "")
    if first.see:
        yield ""
        yield from wrapped(f"See {', '.join(map(_named, first.see))}.", rest="    ")
    if others:
        yield ""
        yield from wrapped(f"This is {first.name} ({first.group}). It can also mean:")
        for other in others:
            yield from wrapped(f"{other.name}: {other.what}", "  ", "    ")


def _topic_lines() -> Iterator[str]:
    """Yield the topics by group, and the kinds of codes."""
    every = knowledge.all_entries()
    width = max(len(entry.name) for entry in every if entry.group in knowledge.TOPICS)
    for group in knowledge.TOPICS:
        yield group
        for entry in every:
            if entry.group == group:
                before = f"  {entry.name:<{width}}  "
                yield from wrapped(entry.what, before, " " * len(before))
        yield ""
    yield from wrapped(_CODES)


def _unknown(subject: str, nor: str = "") -> str:
    """Return the message for an unknown subject; `nor` says what else it is not."""
    close = knowledge.similar_names(subject)
    if close:
        return f"{quoted(subject)} is unknown. Did you mean {' or '.join(close)}?"
    return (
        f"{quoted(subject)} is unknown{nor}. `gpushare explain` lists the topics. Messages must be "
        "given as printed."
    )


def _entry_data(entries: list[KnowledgeEntry]) -> dict[str, Any]:
    """Return the JSON document: the first entry, and the names of the others."""
    first, *others = entries
    data = _data(first)
    return {
        **data,
        **first.parts,
        "see": list(first.see),
        "others": [other.name for other in others],
    }


def _data(entry: KnowledgeEntry) -> dict[str, Any]:
    return {
        "kind": "topic" if entry.group in knowledge.TOPICS else "code",
        "name": entry.name,
        "group": entry.group,
        "number": entry.number,
        "also": list(entry.also),
        "what": entry.what,
    }


def _called(entry: KnowledgeEntry) -> str:
    """Return the number of a code and its name in the CUDA runtime."""
    if entry.number is None or not entry.name.isupper():
        return ""
    names = [name for name in entry.also if name.startswith("cuda")]
    return f" ({', '.join([str(entry.number), *names])})"


def _named(page: str) -> str:
    return page if page.startswith("docs/") else f"`gpushare explain {page}`"


def manifest_lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of the result of manifest.explain_manifest()."""
    for container in data["containers"]:
        yield from _container(container)
        yield ""
    for setting in data["settings"]:
        text = f"{_shown(setting)} ({setting['vendor']}): {setting['meaning']}"
        instead = f" With gpushare: {setting['instead']}." if setting["instead"] else ""
        yield from wrapped(f"{setting['of']}, line {setting['line']}: {text}{instead}", rest="  ")
    if any(container["ignored"] for container in data["containers"]):
        yield from wrapped(_CONVERT.format(file=data["file"]))
    yield from wrapped(
        f"Configuration: {data['node']}. Overrides of running containers and the available "
        "capacity of cards are not considered. See `gpushare inspect NAME` and `gpushare ls`."
    )


def _container(container: Mapping[str, Any]) -> Iterator[str]:
    kind = "init container" if container["init"] else "container"
    named = f"{kind} {container['name']}" if container["name"] else kind
    of = f"{container['of']}, " if container["of"] != "oci" else ""
    yield f"{of}{named} (line {container['line']})"
    yield from container_lines(container, "Request")


def container_lines(container: Mapping[str, Any], heading: str) -> Iterator[str]:
    """Yield the explanation of a container; its keys follow `heading`."""
    yield from _block(heading, map(_meaning, container["keys"]), none="no GPU")
    yield from _block("Ignored by the container runtime", _ignored(container.get("ignored", ())))
    applied = [_applied(key, value) for key, value in container["applied"].items()]
    if cards := container["cards"]:
        which = ", ".join(cards["named"]) or _counted(cards["count"])
        applied.insert(0, f"{which} from {cards['source']}")
    on_node = {key: value["text"] for key, value in container["applied"].items()}
    combined = container.get("combined") or {}
    if combined and combined != on_node:
        line = " ".join(f"{key}={text}" for key, text in combined.items())
        yield from _block("Combined request", [line])
    effective = container["effective"]
    yield from _block("Applied on the node", applied, none="nothing" if effective else "")
    yield from _block("Effective request", [_share(effective)] if effective else [])
    refused = container["refused"]
    yield from _block("Refused", [refused] if refused else [])
    problems = [text for text in container["problems"] if text != refused]
    yield from _block("Problems (for details, run `gpushare validate`)", problems)
    why = effective["why"] if effective else ""
    yield from _block("Notes", [note for note in container["notes"] if note not in why])


def _block(heading: str, items: Any, none: str = "") -> Iterator[str]:
    lines = list(items) or ([none] if none else [])
    if lines:
        yield f"  {heading}"
        for item in lines:
            yield from wrapped(item, "    ", "      ")


def _shown(row: Mapping[str, Any]) -> str:
    return f"{row['where']} {row['key']} {quoted(row['value'])}"


def _meaning(row: Mapping[str, Any]) -> str:
    means = f" -> {row['means']}" if row["means"] else ""
    meaning = f" {row['meaning']}" if row["meaning"] else ""
    line = f"line {row['line']}: " if "line" in row else ""
    return f"{line}{_shown(row)} ({row['vendor']}):{meaning}{means}"


def _ignored(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the keys, grouped by the component that translates them."""
    by: dict[str, list[str]] = {}
    for row in rows:
        by.setdefault(row["translated_by"], []).append(f"{row['where']} {row['key']}")
    for part, keys in by.items():
        yield f"{', '.join(keys)}; translated by {part or 'no component of a node'}"


def _applied(key: str, value: Mapping[str, Any]) -> str:
    written = "" if value["written"] == value["text"] else f" {quoted(value['written'])}"
    return f"{key}={value['text']} from {value['source']}{written}"


def _counted(count: int | None) -> str:
    return "all cards" if count is None else f"{count} card{'' if count == 1 else 's'}"


def _share(effective: Mapping[str, Any]) -> str:
    if effective["kind"] == "scheduled":
        return str(effective["why"])
    if effective["kind"] == "none":
        return (
            f"no GPU: {effective['why']}"
            if not effective["why"].startswith("no GPU")
            else effective["why"]
        )
    if effective["kind"] == "remote":
        return str(effective["why"])
    count = effective["count"]
    cards = _counted(count)
    if effective["kind"] == "exclusive":
        return f"{cards}, whole: {effective['why']}"
    each = "each of " if count is not None and count > 1 else ""
    cores = f" and {effective['cores']} % of the compute" if effective["cores"] else ""
    order = (
        effective["class"] if effective["class"] == "online" else f"offline {effective['priority']}"
    )
    return f"{effective['memory']}{cores} of {each}{cards}, {effective['policy']}, {order}"


def image_lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of the result of explain_image() or explain_container()."""
    name = data["name"]
    if data["kind"] == "container":
        yield from wrapped(
            f"{name} is a container of this node ({data['state']}). For its quota and the "
            f"source of each key, run `gpushare inspect {name}`. For its memory, run "
            f"`gpushare why {name}`."
        )
        return
    yield f"image {name}"
    yield from container_lines(data, "Request of the image")
    yield ""
    toolkit = f"The image has CUDA {data['cuda']}. " if data["cuda"] else ""
    yield from wrapped(
        f"{toolkit}To check whether it runs on this machine, run `gpushare compat {name}`. "
        "A variable of the image counts like one of the caller, as far as `trust.env` allows: see "
        f"`gpushare explain trust`. Configuration: {data['node']}."
    )
