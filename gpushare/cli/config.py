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
from gpushare.cli.text import table
from gpushare.errors import ErrorCode, ExitStatus, UserError
from gpushare.quota.effective_request import Defaults
from gpushare.quota.node_settings import ALLOWED_MODE, CORDONED
from gpushare.quota.size import exact_size, parse_size
from gpushare.settings import ConfigDocument, load_schema, resolved
from gpushare.text_position import KeyPath, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushare.cli.session import Session
    from gpushare.quota.node_settings import NodeSetting

HEADINGS = ("KEY", "VALUE", "SOURCE")

DEFAULT: Final = "default"
NOT_SET: Final = "-"
_SECTIONS: Final = ("users", "namespaces")


@shared.group("config")
def command() -> None:
    """Show, check and reload the gpushared configuration."""


@shared.command("show", example="gpushare config show --namespace team-a")
@shared.config_option("The configuration to show.")
@click.option(
    "--namespace", metavar="NAME", help="Show the effective settings of a Kubernetes namespace."
)
@click.option(
    "--users", is_flag=True, help="Show the effective settings of `gpushare run` without root."
)
def show(session: Session, file: Path | None, namespace: str | None, users: bool) -> None:
    """Show the effective configuration and the line that sets each key.

    This is the file as it is now. gpushared reads it at startup and at `gpushare config reload`. If
    the section of a namespace or of users does not set a key, the node's setting is shown. Without
    --config, settings by labels of the Kubernetes node are shown as they are in effect.
    """
    if namespace is not None and users:
        raise click.UsageError("--namespace and --users cannot be combined")
    document = _document(session, file)
    if file is None:
        _overlay(document, session.node_settings())
    rows = list(_rows(document, namespace, users=users))
    data = [{"key": row.key, "value": row.value, "from": row.origin} for row in rows]
    empty = f"{document.file} sets no default and no limit here except the capacity of a card"
    cells = [(row.key, _text(row.value), row.origin) for row in rows]
    session.show(data, lambda: table(HEADINGS, cells) if rows else empty)


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
    path, exists = _file(session, file)
    try:
        if exists:
            settings.checked(settings.text_of(path), path)
    except settings.ConfigError as error:
        problems = error.problems
        if not session.json:
            raise
    data = {"file": str(path), "problems": [vars(problem) for problem in problems]}
    session.show(data, lambda: f"{path}: ok" if exists else f"{path}: no such file, using defaults")
    if problems:
        click.get_current_context().exit(ExitStatus.ERROR)


@shared.command("reload", example="gpushare config reload")
def reload(session: Session) -> None:
    """Reload the configuration of gpushared and list the changed keys.

    This requires root. `systemctl reload gpushared` does the same and writes the result to the log.
    gpushared applies all changes or none. If the file has an error, the exit status is 1, as that
    of `gpushare config check`. If it changes a key that requires a restart (run_dir, state_dir,
    library_dir, runtime_mount_namespace, read_group, driver.cdi_spec, history, metrics_history,
    kubernetes.cdi_dir, timing.driver_timeout_seconds), it is 3. In both cases
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
    path, exists = _file(session, file)
    return settings.checked(settings.text_of(path) if exists else "", path)


def _overlay(document: ConfigDocument, settings_by_key: Mapping[str, NodeSetting]) -> None:
    """Put what labels of this node set into `document`."""
    for key, setting in settings_by_key.items():
        section, _, name = key.partition(".")
        places: list[KeyPath] = [(section, name)]
        value: object = setting["value"]
        if key == ALLOWED_MODE:
            places = [(section, card, name) for card in (*document.section((section,)), "*")]
        elif key == CORDONED:
            places = [(section, card, name) for card in setting["value"].split(",")]
            value = True
        for place in places:
            document.overlay(place, value, setting["source"])


def _file(session: Session, file: Path | None) -> tuple[Path, bool]:
    """Return the file to use, and whether it exists; a file that the user named has to."""
    if file is not None and not file.exists():
        raise UserError(
            f"{file}: no such file; name another file",
            code=ErrorCode.NOT_FOUND,
            value=str(file),
            fix="Name another file.",
        )
    path = file or session.config_file() or config.DEFAULT_FILE
    return path, path.exists()


def _rows(document: ConfigDocument, namespace: str | None, *, users: bool) -> Iterable[SettingRow]:
    if users:
        return section_rows(document, settings.USERS)
    if namespace is None:
        return node_rows(document)
    name = config.section_of(namespace, settings.namespaces(document))
    return section_rows(document, () if name is None else settings.of_namespace(name))


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
    yield from section_rows(document, settings.USERS, only_own=True)
    for name in settings.namespaces(document):
        yield from section_rows(document, settings.of_namespace(name), only_own=True)


def section_rows(
    document: ConfigDocument, place: KeyPath, *, only_own: bool = False
) -> Iterator[SettingRow]:
    """Yield what holds in a section, with what it has from the whole node if not `only_own`."""
    defaults = settings.terms(document, place).defaults
    for part in (
        "defaults",
        "max_per_request",
        "max_per_card",
        "max_per_node",
        "trust",
        "dialects",
        "audit",
        "idle",
    ):
        if place == settings.USERS and part in {"trust", "dialects", "audit", "idle"}:
            continue  # a host process has no image and no pod, and is judged as the node says
        values = settings.section_values(document, place, part)
        built_in = settings.built_in(place, part)
        for key in dict.fromkeys((*values.values, *built_in)):
            path = (*place, part, *key.split("."))
            if key not in values.values:
                yield SettingRow(key_of(path), built_in[key], DEFAULT)
            elif not only_own or values.places[key] == path:
                origin = document.origin(values.places[key])
                yield _limited_row(
                    SettingRow(key_of(path), values.values[key], origin), part, key, defaults
                )
    yield from _words(document, place, only_own=only_own)


def _words(document: ConfigDocument, place: KeyPath, *, only_own: bool) -> Iterator[SettingRow]:
    """Yield the keys of a section that are no sections themselves."""
    for key in () if place == settings.USERS else ("compatibility",):
        value, where = settings.word(document, place, key)
        if where and (where == (*place, key) or not only_own):
            yield SettingRow(key_of((*place, key)), value, document.origin(where))


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
    for name, described in part["properties"].items():
        below, path = resolved(described, whole), (*place, name)
        value = document.at(path)
        if "properties" in below:
            yield from _leaves(document, below, whole, path)
        elif isinstance(value, dict) and value:  # of names that are the file's own
            for name_of_its, its in value.items():
                for key, setting in (its or {}).items():
                    way = (*path, name_of_its, key)
                    yield SettingRow(key_of(way), setting, document.origin(way))
        elif value is not None:
            row = SettingRow(key_of(path), value, document.origin(path))
            yield _limited_row(row, str(path[0]), name, settings.terms(document).defaults)
        else:
            default = below.get("default")
            yield SettingRow(key_of(path), default, NOT_SET if default is None else DEFAULT)
