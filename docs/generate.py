# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of docs/reference that are derived from the code, and docs/index.md.

    python docs/generate.py            write them
    python docs/generate.py --check    fail if one differs from the code

The command line comes from click's tree, the configuration from its schema, the keys from
gpushare/quota/keys.py, the protocol from gpushare/protocol, the log's events from
gpushare/events.py, the codes and topics from gpushare/knowledge, the metrics from
gpushare/exporter, the reports from gpushare/history/reports, the driver's functions from
libhook/table/coverage.txt, other systems' keys from gpushare/quota/dialects, what runs unchanged
from tests/corpus. A variable that the code reads and
this file does not describe is an error.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, is_typeddict

import click

from gpushare import protocol
from gpushare.cli import gpushare, kubectl
from gpushare.cli.commands import SECTIONS
from gpushare.cli.run import NOT_EXECUTABLE, NOT_FOUND, OURS, TIMED_OUT
from gpushare.cli.session import error_report
from gpushare.client import UnknownTenant
from gpushare.errors import ErrorCode, ExitStatus
from gpushare.events import EVENTS, KEPT
from gpushare.protocol import kubernetes, queue, rows
from gpushare.protocol.operations import OPERATIONS, REPLY, ROWS, Operation
from gpushare.quota import effective_request
from gpushare.quota.errors import BadValue
from gpushare.quota.keys import BY_ENV, KEYS, Key
from gpushare.settings import resolved

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs.compatibility import compatibility
from docs.contents import contents
from docs.coverage import coverage
from docs.dialects import dialects
from docs.markdown import table
from docs.metrics import metrics
from docs.reports import reports
from docs.vendors import vendors

ROOT: Final = Path(__file__).resolve().parents[1]
REFERENCE: Final = ROOT / "docs" / "reference"
SCHEMA: Final = ROOT / "configs" / "gpushare.schema.json"
READERS: Final = (
    "gpushare",
    "libhook",
    "runtime",
    "hooks",
    "simulator",
)  # whose variables are described

NOTE: Final = "<!-- Written by docs/generate.py from the code: change that, and run it again. -->"

#: Variables that request nothing: their readers and effects.
ENVIRONMENT: Final = {
    "GPUSHARE_SOCKET": (
        "`gpushare`",
        "Control socket of gpushared, if `--socket` is not given.",
    ),
    "GPUSHARE_LOG": (
        "the interposer library",
        "Log level of the library on stderr: `error`, `warning`, `info` or `debug`.",
    ),
    "GPUSHARE_DISABLE": (
        "-",
        "Ignored: it requests nothing and disables nothing. A quota next to it is enforced.",
    ),
    "GPUSHARE_SIM_DEVICE": (
        "the simulated driver",
        "Device file of the simulated cards. Default: `/dev/gpushare-sim`.",
    ),
    "GPUSHARE_SIM_TRACE": (
        "the simulated driver",
        "If set, a call that is not simulated prints its name on stderr, or to this file.",
    ),
    "GPUSHARE_TICKET": (
        "gpushared",
        "The ticket of a container that waited in the queue; ignored after its first start.",
    ),
    "GPUSHARE_TENANT_DIR": (
        "the interposer library",
        "A tenant's pages, if `/opt/gpushare/tenant` does not exist (`run` without root).",
    ),
}


STATUSES: Final = {
    ExitStatus.SUCCESS: "success",
    ExitStatus.ERROR: "error: the command failed, a check of `verify` failed, or `validate` or "
    "`config check` found a problem in a file",
    ExitStatus.USAGE: "usage error: the command line is invalid, or a value in it",
    ExitStatus.REFUSED: "refused: the request is valid and was not granted, or this user may not "
    "make it, or `compat` finds that an image does not run",
    ExitStatus.DEGRADED: "degraded: a check of `doctor` failed, a card in `ls` is unhealthy, an "
    "engine has not loaded the runtime (`runtime status`), `compat` has a warning, strict "
    "`validate` has only warnings, or `kubectl gpushare` lists a card with a problem or a node "
    "that does not answer",
    ExitStatus.INTERRUPTED: "interrupted by Ctrl-C",
}
CODES: Final = {
    ErrorCode.USAGE: "The command line has an unknown command or option, misses an argument, or "
    "has a value that its key cannot have: a size, a percentage, a name that is too long.",
    ErrorCode.NOT_FOUND: "There is no such container, card, ticket, image, file, code or topic, "
    "or a name is that of several containers.",
    ErrorCode.INVALID: "A file has an error, or misses what the command needs.",
    ErrorCode.UNREACHABLE: "gpushared does not run or does not respond.",
    ErrorCode.REFUSED: "The request is valid, but no card has room, the node's policy does not "
    "allow it, or the container is in a state that does not.",
    ErrorCode.FORBIDDEN: "This user has no permission.",
    ErrorCode.FAILED: "gpushared, an engine, the driver or the system failed.",
    ErrorCode.INTERNAL: "A defect of gpushare.",
    ErrorCode.INTERRUPTED: "Ctrl-C.",
}
#: The error of `gpushare inspect training --json`.
EXAMPLE: Final = UnknownTenant(
    'no container is named "training"; see gpushare ps -a', ["train"], key="name", value="training"
)


def main(argv: list[str] | None = None) -> int:
    """Write the pages, or compare them; return 1 if one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; print the pages that differ"
    )
    check = parser.parse_args(argv).check
    differ = []
    for name, text in pages().items():
        path = REFERENCE / name
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            differ.append(f"{path.relative_to(ROOT)} differs from the code")
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
            ("protocol.md", "Control socket", control_socket()),
            ("compatibility.md", "Compatibility of images, drivers and cards", compatibility()),
            ("events.md", "Log events", events()),
            ("metrics.md", "Metrics", metrics()),
            ("reports.md", "Reports", reports()),
            ("dialects.md", "Other systems' keys", dialects()),
            ("vendors.md", "What runs unchanged", vendors()),
            ("coverage.md", "Driver API coverage", coverage()),
            ("../index.md", "Documentation", contents()),
        )
    }


# --- the command line ---


def command_line() -> Iterator[str]:
    """Yield the options of all commands, then each command."""
    assert isinstance(gpushare, click.Group)
    yield prose(gpushare)
    yield ""
    shared = options(gpushare)
    yield from option_table(shared)
    yield "These options, except `--version`, can precede or follow the name of a command."
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
    yield from ("## A whole cluster", "")
    yield from described(kubectl.command, kubectl.PROGRAM, set())


def described(command: click.Command, called: str, shared: set[str]) -> Iterator[str]:
    """Yield the help of a command and its subcommands, without the options of all commands."""
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
    """Return a command's help, each paragraph on one line; one that click keeps is a list."""
    return "\n\n".join(map(_paragraph, (command.help or "").split("\n\n")))


def _paragraph(text: str) -> str:
    first, *lines = (line.strip(" ") for line in text.splitlines())
    if first != "\b":
        return " ".join(text.split())
    items = [line.split(maxsplit=1) for line in lines]
    return "\n".join(f"- `{name}`: {meaning}" for name, meaning in items)


def options(command: click.Command) -> list[click.Option]:
    """Return the options that the help shows."""
    return [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]


def option_table(found: list[click.Option]) -> Iterator[str]:
    """Yield the table of `found`, or nothing if it is empty."""
    rows = []
    for option in found:
        value = "" if option.is_flag else " " + value_of(option)
        said = option.help or ""
        said += " Required." if option.required else ""
        said += f" Default: {option.default}." if option.show_default else ""
        rows.append((", ".join(f"`{word}{value}`" for word in option.opts), said.strip()))
    if rows:
        yield from table(("option", "meaning"), rows)


def value_of(option: click.Option) -> str:
    """Return the placeholder of an option's value."""
    if isinstance(option.type, click.Choice):
        return "|".join(option.type.choices)
    if isinstance(option.type, click.IntRange):
        return f"{option.type.min}..{option.type.max}"
    return option.metavar or option.type.name.upper()


# --- gpushare.yaml ---


def configuration() -> Iterator[str]:
    """Yield the keys of gpushare.yaml."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    yield "The configuration file is `/etc/gpushare/gpushare.yaml`, or the file named by"
    yield "`gpushared --config`. Every key is optional. An unknown key is an error that names its"
    yield "line. gpushared reads the file when it starts, and on `gpushare config reload`. Neither"
    yield "affects running containers. `gpushare config check FILE` reports all problems of a file."
    yield "`gpushare config show` prints the effective configuration and the line that sets each"
    yield "key. `gpushare config schema` prints the JSON schema from which this page is generated."
    yield ""
    yield from table(("key", "value", "default", "meaning"), settings(schema, schema))
    yield "Sizes have the same form as in a quota: `512MiB`, `4GiB`. Values in `timing` are"
    yield "seconds. To combine these keys, see [set a node's policy](../how-to/node-policy.md)."
    yield ""
    yield "A value is text, a decimal number, `true` or `false`, or a list in brackets. gpushare"
    yield "rejects YAML that is easy to misread: `yes` and `on` are text, `010` and `1:30` are not"
    yield "numbers, duplicate keys are errors, and anchors, aliases and tags are not supported."
    yield ""


def settings(
    schema: dict[str, Any],
    node: Mapping[str, Any],
    above: str = "",
    seen: dict[str, str] | None = None,
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each key of `node`; a section that was described before is only referred to.

    `seen` maps each section that the schema defines separately to its first key.
    """
    seen = {} if seen is None else seen
    for name, part in node.get("properties", {}).items():
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
    """Return `properties` with the defaults of the enclosing section."""
    given = {name: {"default": value} for name, value in values.items()}
    return {name: {**part, **given.get(name, {})} for name, part in properties.items()}


def allowed(schema: dict[str, Any], entry: Mapping[str, Any]) -> str:
    """Return the allowed values of a key as text."""
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
    """Yield the canonical keys, the effective request, and the precedence of sources."""
    yield "A container requests a GPU with annotations or environment variables, a host process"
    yield "with options of `gpushare run` (`--memory-percent 25`). Unknown keys are refused."
    yield ""
    rows = [
        (f"`{key.annotation}`", f"`{key.env}`", values(key), key.meaning) for key in KEYS.values()
    ]
    yield from table(("annotation", "environment", "value", "meaning"), rows)
    yield "Sizes are binary: `4GiB`, `4Gi`, `4g`, `512MiB`, `512m`. `4G`, `4GB` and `4gb` are 4 GiB"
    yield "in variables and options, as for `docker run -m`. In annotations they are refused:"
    yield "`4G` is decimal in Kubernetes. `4` is refused everywhere."
    yield ""
    yield "gpushare also accepts the keys of HAMi, ACK, qGPU, mGPU, NVIDIA's own components and"
    yield "others: see [other systems' keys](dialects.md)."
    yield ""
    yield from ("## Effective request", "")
    yield from (inspect.getdoc(effective_request) or "").partition("\n\n")[2].splitlines()
    yield ""
    yield "If a request omits a key, `defaults` in [gpushare.yaml](configuration.md) applies."
    yield ""
    yield from ("## Precedence", "")
    yield "Sources of a request, highest first:"
    yield ""
    yield "1. the operator: `gpushare set`"
    yield "2. what the scheduler of Kubernetes allocated, on a node with `kubernetes.mode: plugin`"
    yield "   or `dra`"
    yield "3. cards and annotations with which the container was created, for example by a device"
    yield "   plugin"
    yield "4. annotations of its pod that name it: `gpushare.io/container.NAME.memory`, and other"
    yield "   systems' keys that an [admission policy](../how-to/admission-policies.md) recorded"
    yield "5. annotations of its pod that name no container"
    yield "6. the environment"
    yield ""
    yield "A lower source can request less than a higher one grants, never more. `gpushare inspect`"
    yield "and `gpushare ps -a` show what it requested and did not get. `trust.env` sets what the"
    yield "environment can do: `request` a GPU if no higher source does, `reduce` what a higher"
    yield "source grants, or nothing (`ignore`). By default, the environment of a pod's container"
    yield "can reduce, and any other can request. The node's `defaults` apply last."
    yield ""
    yield "[Other systems' keys](../how-to/node-policy.md#requests-in-other-systems-keys) have the"
    yield "same order: each belongs to the source in which it is written. If one source contains"
    yield "two dialects, the smaller request applies. With `dialects.mode: strict`, both are"
    yield "refused."
    yield ""
    yield "If annotations of a pod name containers, only those containers can make requests."
    yield "Otherwise one container of the pod can"
    yield "([reason](../adr/0017-one-container-of-a-pod.md))."
    yield ""


def values(key: Key) -> str:
    """Return the allowed values of a key, from its refusal of an invalid one."""
    for wrong in ("?", ""):
        try:
            key.parse(wrong)
        except BadValue as refusal:
            return refusal.fix.removeprefix("write ")
    raise AssertionError(key.name)


def exit_statuses() -> Iterator[str]:
    """Yield the exit statuses of the programs, and the errors of `gpushare` by class."""
    yield "`gpushare`, `kubectl gpushare` and, where they cannot start, `gpushared`,"
    yield "`gpushare-exporter` and `gpushare-node`:"
    yield ""
    rows = [(str(int(status)), STATUSES[status]) for status in ExitStatus]
    yield from table(("status", "meaning"), rows)
    yield "`gpushare run` exits with the status of its command, or like Docker:"
    yield ""
    of_run = [
        (TIMED_OUT, "no card had room in the time of `--wait`"),
        (
            OURS,
            "gpushare failed: request refused or its ticket cancelled, no daemon, bad command line",
        ),
        (NOT_EXECUTABLE, "the command cannot be executed"),
        (NOT_FOUND, "the command does not exist"),
    ]
    yield from table(("status", "meaning"), [(str(code), said) for code, said in of_run])
    yield "`gpushare-runtime` executes the low-level runtime, so the status is that program's. If"
    yield "it refuses a container, it exits with 1 and a line that starts with `gpushare:`. Docker"
    yield "then exits with 125."
    yield ""
    yield "`./dev gpu` exits with 77 on a machine without an NVIDIA driver."
    yield ""
    yield "## Errors"
    yield ""
    yield "An error is a sentence on stderr. With `--json` it is an object on stderr, one a line,"
    yield "and stderr has nothing else:"
    yield ""
    yield "```json"
    yield json.dumps(error_report(EXAMPLE).document)
    yield "```"
    yield ""
    yield "`message` is the sentence. `key` is the option, argument or key that it is about,"
    yield "`value` its value, and `fix` what to do. Each of these is `null` if the error is about"
    yield "no single key or value, or if only the sentence says what to do. An error of one class"
    yield "always gives one exit status:"
    yield ""
    classes = [(f"`{code.text}`", CODES[code], str(int(code.status))) for code in ErrorCode]
    yield from table(("code", "meaning", "status"), classes)
    yield "A command for several containers reports an error for each, does the others, and exits"
    yield "with the highest status. What `doctor`, `verify`, `validate`, `compat` and"
    yield "`config check` find is no error: it is in their output, with the status of the first"
    yield "table."
    yield ""


def events() -> Iterator[str]:
    """Yield the events of the log."""
    yield "`gpushared` logs one JSON object per line to stderr. Under systemd, the journal stores"
    yield "it:"
    yield ""
    yield "    journalctl -u gpushared -o cat | jq 'select(.event == \"tenant-released\")'"
    yield ""
    yield "Each object has `time` (UTC), `level` (`debug`, `info`, `warning`, `error`) and `event`."
    yield "Other fields depend on the event. A name never changes its meaning. Events marked *kept*"
    yield "are also in the node's history."
    yield ""
    rows = [
        (f"`{name}`", "kept" if name in KEPT else "", said) for name, said in sorted(EVENTS.items())
    ]
    yield from table(("event", "", "meaning"), rows)


def environment() -> Iterator[str]:
    """Yield the variables that are not quotas; AssertionError if the code knows others."""
    read = variables_in_code()
    assert read == set(ENVIRONMENT), (
        f"described and used variables differ: {read ^ set(ENVIRONMENT)}"
    )
    yield "For variables that request a quota, see [Quotas](quotas.md). These request nothing:"
    yield ""
    rows = [(f"`{name}`", who, said) for name, (who, said) in ENVIRONMENT.items()]
    yield from table(("variable", "read by", "meaning"), rows)
    yield "Any other name that starts with `GPUSHARE_` is treated as a quota key, except those that"
    yield "Kubernetes creates for a Service named gpushare."
    yield ""


def variables_in_code() -> set[str]:
    """Return the names of variables in C and Python strings that are not quota keys."""
    found = set()
    for folder in READERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".c", ".h", ".inc"}:
                found |= set(re.findall(r'"(GPUSHARE_[A-Z_]*[A-Z])"', path.read_text("utf-8")))
    return found - set(BY_ENV)


# --- the protocol ---

SHAPES: Final = (protocol, rows, queue, kubernetes)


def control_socket() -> Iterator[str]:
    """Yield the documentation of gpushare.protocol, and the types of its replies."""
    said = inspect.getdoc(protocol) or ""
    yield from said.partition("\n\n")[2].splitlines()
    yield ""
    yield "## Operations"
    yield ""
    head = ("op", "from", "fields (optional ones in brackets)", "returns", "meaning")
    yield from table(head, [_operation(row) for row in OPERATIONS.values()])
    yield "## Limits"
    yield ""
    limits = [name for name in vars(protocol) if name.isupper() and name != "TYPE_CHECKING"]
    rows = [(f"`{name}`", str(getattr(protocol, name))) for name in limits]
    yield from table(("name", "value"), rows)
    yield "## Reply types"
    yield ""
    for module in SHAPES:
        for name, one in vars(module).items():
            if is_typeddict(one) and one.__module__ == module.__name__ and name[0] != "_":
                yield from ("```python", inspect.getsource(one).rstrip("\n"), "```", "")


def _operation(row: Operation) -> tuple[str, ...]:
    """Return an operation's row."""
    fields = ", ".join(
        f"`{field.name}`" if field.is_required else f"[`{field.name}`]" for field in row.fields()
    )
    said, _, more = (inspect.getdoc(row.declared) or "").partition("\n")
    kind = re.sub(r"\b\w+\.", "", str(row.declared.__annotations__["return"]))
    if row.answer == ROWS:
        kind = f"{kind.removeprefix('list[').removesuffix(']')} rows"
    elif kind == "Replies":
        kind = " ".join(more.split())
    elif row.answer not in {"", REPLY}:
        kind = f"`{row.answer}`: {kind}"
    return f"`{row.name}`", row.caller, fields or "-", kind.replace("None", "-"), said


if __name__ == "__main__":
    sys.exit(main())
