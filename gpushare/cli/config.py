# SPDX-License-Identifier: Apache-2.0
"""`gpushare config`: show, check and reload gpushare.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from gpushare import config, settings
from gpushare.cli import session as shared
from gpushare.cli.session import ERROR
from gpushare.cli.text import table
from gpushare.client import DaemonError, DaemonUnreachable, RequestRefused
from gpushare.quota import Defaults, exact_size, parse_size
from gpushare.settings import sections
from gpushare.settings.document import ConfigDocument, KeyPath, at, key_of
from gpushare.settings.schema import load_schema, resolved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushare.cli.session import Session

HEADINGS = ("KEY", "VALUE", "SOURCE")

DEFAULT: Final = "default"
NOT_SET: Final = "-"
_SECTIONS: Final = ("users", "namespaces")


@click.group("config", epilog="Example: gpushare config check /etc/gpushare/gpushare.yaml")
@shared.shared_options
def command() -> None:
    """Show, check and reload the gpushared configuration."""


@shared.command("show", example="gpushare config show --namespace team-a")
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The configuration to show. Default: that of the running gpushared, otherwise "
    "/etc/gpushare/gpushare.yaml.",
)
@click.option(
    "--namespace", metavar="NAME", help="Show the effective settings of a Kubernetes namespace."
)
@click.option(
    "--users", is_flag=True, help="Show the effective settings of `gpushare run` without root."
)
def show(session: Session, file: Path | None, namespace: str | None, users: bool) -> None:
    """Show the effective configuration and the line that sets each key.

    This is the file as it is now. gpushared reads it at startup and at `gpushare config reload`. If
    the section of a namespace or of users does not set a key, the node's setting is shown.
    """
    if namespace is not None and users:
        raise click.UsageError("--namespace and --users cannot be combined")
    document = _document(session, file)
    rows = list(_rows(document, namespace, users=users))
    data = [{"key": row.key, "value": row.value, "from": row.origin} for row in rows]
    empty = f"{document.file} sets no default and no limit here except the capacity of a card"
    session.show(data, lambda: table(HEADINGS, [_cells(row) for row in rows]) if rows else empty)


@shared.command("schema", example="gpushare config schema")
def schema(session: Session) -> None:
    """Print the JSON schema of the configuration.

    To use it in an editor, put # yaml-language-server: $schema=FILE at the top of gpushare.yaml.
    """
    text = settings.load_schema()
    session.show(text, lambda: json.dumps(text, indent=2))


@shared.command("check", example="gpushare config check gpushare.yaml")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
def check(session: Session, file: Path | None) -> None:
    """Check a configuration file and report all problems.

    Without FILE, the command checks that of the running gpushared, otherwise
    /etc/gpushare/gpushare.yaml. It reports each problem with line, key, value, rule and fix. If
    there is a problem, the exit status is 1.
    """
    problems: tuple[settings.ConfigProblem, ...] = ()
    found, exists = _file(session, file)
    try:
        if exists:
            settings.checked(settings.text_of(found), found)
    except settings.ConfigError as error:
        problems = error.problems
        if not session.json:
            raise
    data = {"file": str(found), "problems": [vars(problem) for problem in problems]}
    session.show(
        data, lambda: f"{found}: ok" if exists else f"{found}: no such file, using defaults"
    )
    if problems:
        click.get_current_context().exit(ERROR)


@shared.command("reload", example="gpushare config reload")
def reload(session: Session) -> None:
    """Reload the configuration of gpushared and list the changed keys.

    This requires root. `systemctl reload gpushared` does the same and writes the result to the log.
    gpushared applies all changes or none. If the file has an error, or changes a key that requires
    a restart (run_dir, state_dir, libraries, mount_namespace, driver, history,
    timing.driver_timeout_seconds and timing.non_tenant_half_life_seconds), the exit status is 3 and
    the previous configuration remains in effect. Existing allocations do not change. Ceilings and
    defaults apply to new requests.
    """
    changed = session.client.reload()
    text = f"changed: {', '.join(changed)}" if changed else "nothing has changed"
    session.show({"changed": changed}, lambda: text)


for _command in (show, schema, check, reload):
    command.add_command(_command)


def _document(session: Session, file: Path | None) -> ConfigDocument:
    """Return the given file, otherwise the daemon's or the default one; an empty one for none."""
    found, exists = _file(session, file)
    return settings.checked(settings.text_of(found) if exists else "", found)


def _file(session: Session, file: Path | None) -> tuple[Path, bool]:
    """Return the file to use, and whether to read it: a file that the user named always is."""
    found = file or daemon_config_file(session) or config.DEFAULT_FILE
    return found, file is not None or found.exists()


def daemon_config_file(session: Session) -> Path | None:
    """Return the configuration file of the running gpushared, None if there is none."""
    try:
        path = session.client.status()["config"]
    except (DaemonUnreachable, DaemonError, RequestRefused):
        return None
    return Path(path) if path else None


def _rows(document: ConfigDocument, namespace: str | None, *, users: bool) -> Iterable[SettingRow]:
    if users:
        return section_rows(document, settings.USERS)
    if namespace is None:
        return node_rows(document)
    name = config.section_of(namespace, settings.namespaces(document))
    return section_rows(document, () if name is None else settings.of_namespace(name))


def _cells(row: SettingRow) -> tuple[str, str, str]:
    return row.key, _text(row.value), row.origin


def _text(value: Any) -> str:
    """Return a value as it is written in the file."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return "-" if value is None else json.dumps(value)


class SettingRow(NamedTuple):
    """One key, its value (None: nothing) and its origin: `FILE:LINE`, `default` or `-`."""

    key: str
    value: Any
    origin: str


def node_rows(document: ConfigDocument) -> Iterator[SettingRow]:
    """Yield every key of the file with what holds, then what it says of users and namespaces."""
    whole = load_schema()
    properties = {name: part for name, part in whole["properties"].items() if name not in _SECTIONS}
    yield from _leaves(document, {**whole, "properties": properties}, whole, ())
    yield from section_rows(document, sections.USERS, only_own=True)
    for name in sections.namespaces(document):
        yield from section_rows(document, sections.of_namespace(name), only_own=True)


def section_rows(
    document: ConfigDocument, place: KeyPath, *, only_own: bool = False
) -> Iterator[SettingRow]:
    """Yield what holds in a section, with what it has from the whole node if not `only_own`."""
    held = sections.terms(document, place).defaults
    for part in (
        "defaults",
        "max_per_request",
        "max_per_card",
        "max_per_node",
        "trust",
        "dialects",
        "audit",
    ):
        if place == sections.USERS and part in {"trust", "dialects", "audit"}:
            continue  # a host process has no image and no pod, and is judged as the node says
        values = sections.section_values(document, place, part)
        built_in = sections.built_in(place, part)
        for key in dict.fromkeys((*values.values, *built_in)):
            path = (*place, part, *key.split("."))
            if key not in values.values:
                yield SettingRow(key_of(path), built_in[key], DEFAULT)
            elif not only_own or values.places[key] == path:
                origin = at(document.file, document.line(values.places[key]))
                yield _limited_row(
                    SettingRow(key_of(path), values.values[key], origin), part, key, held
                )
    yield from _words(document, place, only_own=only_own)


def _words(document: ConfigDocument, place: KeyPath, *, only_own: bool) -> Iterator[SettingRow]:
    """Yield the keys of a section that are no sections themselves."""
    for key in () if place == sections.USERS else ("compatibility",):
        value, where = sections.word(document, place, key)
        if where and (where == (*place, key) or not only_own):
            yield SettingRow(key_of((*place, key)), value, at(document.file, document.line(where)))


def _limited_row(row: SettingRow, part: str, key: str, defaults: Defaults) -> SettingRow:
    """Return `row` with what is left of a default under its ceiling."""
    if part != "defaults" or key not in {"memory", "cores"}:
        return row
    left = defaults.cores if key == "cores" else defaults.memory_bytes
    if left is None or left == (row.value if key == "cores" else parse_size(row.value)):
        return row
    value = left if key == "cores" else exact_size(left)
    return SettingRow(row.key, value, f"{row.origin}, limited to max_per_request.{key}")


def _leaves(
    document: ConfigDocument, part: Mapping[str, Any], whole: Mapping[str, Any], place: KeyPath
) -> Iterator[SettingRow]:
    for name, found in part["properties"].items():
        below, path = resolved(found, whole), (*place, name)
        value = document.at(path)
        if "properties" in below:
            yield from _leaves(document, below, whole, path)
        elif isinstance(value, dict) and value:  # of names that are the file's own
            for name_of_its, its in value.items():
                for key, setting in (its or {}).items():
                    way = (*path, name_of_its, key)
                    yield SettingRow(key_of(way), setting, at(document.file, document.line(way)))
        elif value is not None:
            row = SettingRow(key_of(path), value, at(document.file, document.line(path)))
            yield _limited_row(row, str(path[0]), name, sections.terms(document).defaults)
        else:
            default = below.get("default")
            yield SettingRow(key_of(path), default, NOT_SET if default is None else DEFAULT)
