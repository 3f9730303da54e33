# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of docs/reference that the code itself says.

    python docs/generate.py            write them
    python docs/generate.py --check    fail where one is not what the code says

The command line comes from click's tree, the configuration from its schema, the keys from
gpushare/quota/keys.py, the protocol from gpushare/protocol, the log's events from
gpushare/events.py, the codes and topics from gpushare/topics, the metrics from gpushare/exporter,
the driver's calls from libhook/table/doors.txt, other systems' keys from gpushare/quota/dialects. A
variable that the code reads and this file does not describe is an error.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from gpushare import protocol
from gpushare.cli.failure import DEGRADED
from gpushare.cli.group import ERROR, REFUSED, SECTIONS, USAGE, gpushare
from gpushare.cli.run import NOT_EXECUTABLE, NOT_FOUND, OURS
from gpushare.events import EVENTS, KEPT
from gpushare.protocol import cards, daemon, opened, tenants, why
from gpushare.quota import BadValue, given
from gpushare.quota.keys import BY_ENV, KEYS, Key
from gpushare.settings.rules import resolved

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs.compatibility import compatibility
from docs.dialects import dialects
from docs.doors import doors
from docs.errors import errors
from docs.markdown import table
from docs.metrics import metrics

ROOT: Final = Path(__file__).resolve().parents[1]
REFERENCE: Final = ROOT / "docs" / "reference"
SCHEMA: Final = ROOT / "configs" / "gpushare.schema.json"
READERS: Final = ("gpushare", "libhook", "runtime", "hooks")  # whose variables are described

NOTE: Final = "<!-- Written by docs/generate.py from the code: change that, and run it again. -->"

#: Variables that ask for nothing: who reads each, and what it does.
ENVIRONMENT: Final = {
    "GPUSHARE_SOCKET": (
        "`gpushare`",
        "The daemon's control socket, where `--socket` is not given.",
    ),
    "GPUSHARE_LOG": (
        "the filter libraries",
        "`error`, `warning`, `info` or `debug`: what a tenant's libraries say on stderr.",
    ),
    "GPUSHARE_DISABLE": (
        "nobody",
        "Ignored: it asks for nothing, and it switches nothing off. A quota beside it holds.",
    ),
    "GPUSHARE_SIM_DEVICE": (
        "the simulated driver",
        "The device file of the simulated cards; else `/dev/gpushare-sim`.",
    ),
    "GPUSHARE_SIM_TRACE": (
        "the simulated driver",
        "If set, a call that is not simulated says so on stderr.",
    ),
    "GPUSHARE_TENANT_DIR": (
        "the filter libraries",
        "A tenant's pages, where there is no `/opt/gpushare/tenant` (`run` without root).",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Write the pages, or compare them; exit status 1 where one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say which differ")
    check = parser.parse_args(argv).check
    differ = []
    for name, text in pages().items():
        path = REFERENCE / name
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            differ.append(f"{path.relative_to(ROOT)} is not what the code says")
        elif not check:
            path.write_text(text, encoding="utf-8")
    if differ:
        sys.stderr.write("\n".join([*differ, "run python docs/generate.py\n"]))
    return 1 if differ else 0


def pages() -> dict[str, str]:
    """Return every generated page by its file name."""
    return {
        name: "\n".join([f"# {title}", "", NOTE, "", *lines]).rstrip("\n") + "\n"
        for name, title, lines in (
            ("cli.md", "Commands", command_line()),
            ("configuration.md", "Configuration", configuration()),
            ("quotas.md", "Quotas", quotas()),
            ("exit-status.md", "Exit statuses", exit_statuses()),
            ("environment.md", "Environment variables", environment()),
            ("protocol.md", "The control socket", control_socket()),
            ("compatibility.md", "What runs on what", compatibility()),
            ("events.md", "Events of the log", events()),
            ("errors.md", "Errors and topics", errors()),
            ("metrics.md", "Metrics", metrics()),
            ("dialects.md", "Other systems' keys", dialects()),
            ("doors.md", "Calls of the driver", doors()),
        )
    }


# --- the command line ---


def command_line() -> Iterator[str]:
    """Yield the options that every command has, then each command."""
    assert isinstance(gpushare, click.Group)
    yield prose(gpushare)
    yield ""
    shared = options(gpushare)
    yield from option_table(shared)
    yield "But for `--version`, they may stand before or after a command's name."
    yield ""
    names = {option.name for option in shared if option.name}
    context = click.Context(gpushare, info_name="gpushare")
    for section, commands in SECTIONS.items():
        yield f"## {section}"
        yield ""
        for name in commands:
            command = gpushare.get_command(context, name)
            assert command is not None
            yield from described(command, f"gpushare {name}", names)


def described(command: click.Command, called: str, shared: set[str]) -> Iterator[str]:
    """Yield what a command and those beneath it do, without the options that all have."""
    pieces = command.collect_usage_pieces(click.Context(command, info_name=called))
    yield f"### {called}"
    yield ""
    yield from ("```", " ".join([called, *pieces]), "```", "")
    yield prose(command)
    yield ""
    yield from option_table([one for one in options(command) if one.name not in shared])
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from described(below, f"{called} {name}", shared)
    elif command.epilog:
        yield from ("```sh", command.epilog.removeprefix("Example: "), "```", "")


def prose(command: click.Command) -> str:
    """Return a command's help, each paragraph on one line."""
    return "\n\n".join(
        " ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")
    )


def options(command: click.Command) -> list[click.Option]:
    """Return the options that the help shows."""
    return [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]


def option_table(found: list[click.Option]) -> Iterator[str]:
    """Yield the table of `found`; nothing where there is none."""
    rows = []
    for option in found:
        value = "" if option.is_flag else " " + value_of(option)
        said = option.help or ""
        said += " Needed." if option.required else ""
        said += f" Default: {option.default}." if option.show_default else ""
        rows.append((", ".join(f"`{word}{value}`" for word in option.opts), said.strip()))
    if rows:
        yield from table(("option", "meaning"), rows)


def value_of(option: click.Option) -> str:
    """Return what stands for an option's value."""
    if isinstance(option.type, click.Choice):
        return "|".join(option.type.choices)
    if isinstance(option.type, click.IntRange):
        return f"{option.type.min}..{option.type.max}"
    return option.metavar or option.type.name.upper()


# --- gpushare.yaml ---


def configuration() -> Iterator[str]:
    """Yield the keys of gpushare.yaml."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    yield "`/etc/gpushare/gpushare.yaml`, or the file that `gpushared --config` names. Every key"
    yield "may be left out; an unknown one is an error that names its line. The file is read when"
    yield "the daemon starts, and by `gpushare config reload`; tenants outlive both."
    yield "`gpushare config check FILE` tells every problem of a file, `gpushare config show` what"
    yield "holds and which line says so, and `gpushare config schema` prints the JSON"
    yield "schema that this page is made of."
    yield ""
    yield from table(("key", "value", "default", "meaning"), settings(schema, schema))
    yield "Sizes are written as in a quota: `512MiB`, `4GiB`. Values in `timing` are seconds. How"
    yield "the parts go together: [set a node's policy](../how-to/node-policy.md)."
    yield ""
    yield "A value is text, a decimal number, `true` or `false`, or a list in brackets. What YAML"
    yield "could read otherwise than it looks is an error: `yes` and `on` are text, `010` and"
    yield "`1:30` are no numbers, a key is there once, and there are no anchors, aliases and"
    yield "tags."
    yield ""


def settings(
    schema: dict[str, Any],
    node: Mapping[str, Any],
    above: str = "",
    seen: dict[str, str] | None = None,
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each key beneath `node`; a part that was described is named the second time.

    `seen` has the key of each part that the schema describes by itself.
    """
    seen = {} if seen is None else seen
    for name, part in node["properties"].items():
        key, entry = f"{above}{name}", resolved(part, schema)
        default = entry.get("default")
        if "properties" in entry:
            first = seen.setdefault(part.get("$ref", key), key)
            if first == key:
                inherited = {"properties": with_defaults(entry["properties"], default or {})}
                yield from settings(schema, inherited, f"{key}.", seen)
            else:
                shown = f"`{json.dumps(default).replace(chr(34), '')}`" if default else "-"
                yield f"`{key}`", f"as `{first}`", shown, part.get("description", "")
            continue
        if entry.get("type") == "object":
            yield f"`{key}`", "a mapping", "-", entry["description"]
            inner = resolved(entry["additionalProperties"], schema)
            yield from settings(schema, inner, f"{key}.NAME.", seen)
            continue
        shown = f"`{json.dumps(default).strip(chr(34))}`" if "default" in entry else "-"
        yield f"`{key}`", allowed(schema, entry), shown, entry["description"]


def with_defaults(properties: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `properties` with the defaults that the part around them gives."""
    given = {name: {"default": value} for name, value in values.items()}
    return {name: {**part, **given.get(name, {})} for name, part in properties.items()}


def allowed(schema: dict[str, Any], entry: Mapping[str, Any]) -> str:
    """Return in words what a key may be."""
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "$ref" in entry and "properties" not in entry:
        named: str = entry["$ref"].rpartition("/")[2]
        return named
    if "array" in entry["type"] and "string" in entry["type"]:
        return f"`{entry['pattern'].strip('^$')}`, or a list of {allowed(schema, entry['items'])}"
    if entry["type"] == "array":
        return f"list of {allowed(schema, entry['items'])}"
    if entry["type"] == "integer":
        return f"{entry['minimum']} to {entry['maximum']}"
    if entry["type"] == "boolean":
        return "`true`, `false`"
    return "text"


# --- quotas, statuses, variables ---


def quotas() -> Iterator[str]:
    """Yield the canonical keys, what is given for them, and which source wins."""
    yield "A container asks by annotations or by environment variables, a host process by options"
    yield "of `gpushare run` (`--memory-percent 25`). An unknown key is refused."
    yield ""
    rows = [
        (f"`{key.annotation}`", f"`{key.env}`", values(key), key.meaning) for key in KEYS.values()
    ]
    yield from table(("annotation", "environment", "value", "meaning"), rows)
    yield "Sizes are binary: `4GiB`, `4Gi`, `4g`, `512MiB`, `512m`. `4G`, `4GB` and `4` are"
    yield "refused, since they can be read two ways."
    yield ""
    yield "What HAMi, ACK, qGPU, mGPU, NVIDIA's own parts and others call the same is taken too:"
    yield "[other systems' keys](dialects.md)."
    yield ""
    yield from ("## What is given", "")
    yield from (inspect.getdoc(given) or "").partition("\n\n")[2].splitlines()
    yield ""
    yield "What the node gives where a request says less: `defaults` in"
    yield "[gpushare.yaml](configuration.md)."
    yield ""
    yield from ("## Which source wins", "")
    yield "1. the operator: `gpushare set`;"
    yield "2. cards and annotations that the container was made with, as by a device plugin;"
    yield "3. its pod's annotations that name it: `gpushare.io/container.NAME.memory`;"
    yield "4. its pod's annotations that name no container;"
    yield "5. the environment."
    yield ""
    yield "A lower source may ask for less than a higher one grants, never for more. What it did"
    yield "not get is in `gpushare inspect` and `gpushare ps -a`. `trust.env` says what the"
    yield "environment may do at all: `ask` where nobody above it says, `shrink` what is granted"
    yield "above it, or nothing (`ignore`). Without it, that of a pod's container may shrink, and"
    yield "any other may ask. What nobody says is the node's `defaults`."
    yield ""
    yield "[Other systems' keys](../how-to/node-policy.md#requests-in-other-systems-words) are in"
    yield "the same order, each where it is written. Of two dialects in one place the one that asks"
    yield "for less is taken, or with `dialects.mode: strict` neither."
    yield ""
    yield "Where a pod names containers, only those may ask. Where it names none, one container may"
    yield "([why](../adr/0017-one-container-of-a-pod.md))."
    yield ""


def values(key: Key) -> str:
    """Return what a value may be, as the key itself says to one that is none."""
    for wrong in ("?", ""):
        try:
            key.parse(wrong)
        except BadValue as refusal:
            return refusal.fix.removeprefix("write ")
    raise AssertionError(key.name)


def exit_statuses() -> Iterator[str]:
    """Yield what each program exits with."""
    yield "`gpushare`, every command but `run`:"
    yield ""
    meanings = [
        (0, "ok"),
        (
            ERROR,
            (
                "error: it could not be done, `verify` found a claim that does not hold, or "
                "`validate` a problem in a file"
            ),
        ),
        (USAGE, "usage: the command line is wrong"),
        (
            REFUSED,
            (
                "refused: the request is understood and not granted, or `compat` finds that an "
                "image does not run"
            ),
        ),
        (
            DEGRADED,
            (
                "degraded: a check of `doctor` fails, a card of `ls` is not healthy, `compat` has "
                "a warning, or strict `validate` has warnings alone"
            ),
        ),
    ]
    yield from table(("status", "meaning"), [(str(code), said) for code, said in meanings])
    yield "`gpushare run` exits with its command's status, or as docker does:"
    yield ""
    meanings = [
        (OURS, "gpushare's own: refused, no daemon, a wrong command line"),
        (NOT_EXECUTABLE, "the command cannot be executed"),
        (NOT_FOUND, "there is no such command"),
    ]
    yield from table(("status", "meaning"), [(str(code), said) for code, said in meanings])
    yield "`gpushare-runtime` becomes the low-level runtime, so the status is that program's; where"
    yield "it refuses, 1 and a line that begins with `gpushare:`. docker then exits with 125."
    yield ""
    yield "`gpushared` exits with 0 after SIGTERM, 1 when it cannot start, 2 for a wrong call."
    yield "`./dev gpu` exits with 77 on a machine without an NVIDIA driver."
    yield ""


def events() -> Iterator[str]:
    """Yield the events of the log."""
    yield "`gpushared` logs one JSON object a line on stderr, which systemd's journal keeps:"
    yield ""
    yield "    journalctl -u gpushared -o cat | jq 'select(.event == \"tenant-released\")'"
    yield ""
    yield "Each has `time` (UTC), `level` (`debug`, `info`, `warning`, `error`) and `event`; the"
    yield "event says what else it has. A name never changes its meaning. Those that are *kept* are"
    yield "also in the node's history."
    yield ""
    rows = [
        (f"`{name}`", "kept" if name in KEPT else "", said) for name, said in sorted(EVENTS.items())
    ]
    yield from table(("event", "", "meaning"), rows)


def environment() -> Iterator[str]:
    """Yield the variables that are no quota; AssertionError where the code knows others."""
    read = variables_in_code()
    assert read == set(ENVIRONMENT), f"described and read differ: {read ^ set(ENVIRONMENT)}"
    yield "Variables that ask for a quota are in [Quotas](quotas.md). These ask for nothing:"
    yield ""
    rows = [(f"`{name}`", who, said) for name, (who, said) in ENVIRONMENT.items()]
    yield from table(("variable", "read by", "meaning"), rows)
    yield "Any other name that begins with `GPUSHARE_` is taken for a quota, but for those that"
    yield "Kubernetes makes for a Service called gpushare."
    yield ""


def variables_in_code() -> set[str]:
    """Return the names of variables in C and Python strings that are no quota's."""
    found = set()
    for folder in READERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".c", ".h", ".inc"}:
                found |= set(re.findall(r'"(GPUSHARE_[A-Z_]*[A-Z])"', path.read_text("utf-8")))
    return found - set(BY_ENV)


# --- the protocol ---

SHAPES: Final = (cards, tenants, why, daemon, opened)


def control_socket() -> Iterator[str]:
    """Yield gpushare.protocol's own words, and the shapes of its answers."""
    said = inspect.getdoc(protocol) or ""
    yield from said.partition("\n\n")[2].splitlines()
    yield ""
    yield "## Limits"
    yield ""
    limits = [name for name in vars(protocol) if name.isupper() and not name.startswith("CODE_")]
    rows = [(f"`{name}`", str(getattr(protocol, name))) for name in limits]
    yield from table(("name", "value"), rows)
    yield "## Codes of a refusal"
    yield ""
    source = inspect.getsource(protocol)
    codes = re.findall(r'^CODE_\w+: Final = "(\w+)"  # (.*)$', source, re.MULTILINE)
    yield from table(("code", "meaning"), [(f"`{code}`", said) for code, said in codes])
    yield "## Shapes"
    yield ""
    for module in SHAPES:
        for one in vars(module).values():
            if isinstance(one, type) and one.__module__ == module.__name__:
                yield from ("```python", inspect.getsource(one).rstrip("\n"), "```", "")


if __name__ == "__main__":
    sys.exit(main())
