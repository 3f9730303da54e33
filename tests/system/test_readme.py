# SPDX-License-Identifier: Apache-2.0
"""The README is run: every block of it by a test that is named in BLOCKS.

"Use it on your GPU" happens on a machine of its own (own_machine.py), as typed but for
SUBSTITUTIONS; its docker has no network. There is no systemd: what the installed unit starts is
read from the unit.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from gpushare.install import InstallSource
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.parse import parse_request
from gpushare.verify import image
from tests import leftovers
from tests.brought import POD

from .own_machine import ROOT, WRITTEN, OwnMachine
from .test_demo import left_behind, traces
from .waiting import wait_until

GIB = 1 << 30
README = (ROOT / "README.md").read_text()
PROBE = "gpushare-probe gpushare-probe info"  # image and command
# Everything in which a line that is run differs from the line that is read. {wheel} is built
# before: pip would build the same in an environment of its own, and fetch zig for it
# (a minute on two cores).
SUBSTITUTIONS = {
    "sudo ": "",
    "pip install .": "pip install {wheel}",
    "gpushare setup --runtime docker": "gpushare setup --runtime docker --simulate h200",
    "IMAGE nvidia-smi": PROBE,
    "python train.py": "/usr/local/lib/gpushare/current/lib/gpushare-probe info",
}


class CodeBlock(NamedTuple):
    section: str
    language: str
    lines: tuple[str, ...]


def blocks(text: str) -> list[CodeBlock]:
    """Return the fenced blocks of a Markdown text, each with the heading above it."""
    found: list[CodeBlock] = []
    section, inside = "", None
    for line in text.splitlines():
        if line.startswith("```"):
            if inside is None:
                inside = CodeBlock(section, line.removeprefix("```"), ())
            else:
                found.append(inside)
                inside = None
        elif inside is not None:
            inside = inside._replace(lines=(*inside.lines, line))
        elif line.startswith("#"):
            section = line.lstrip("# ")
    return found


def block(section: str, language: str) -> tuple[str, ...]:
    """Return the lines of the one such block."""
    (lines,) = [it.lines for it in blocks(README) if it[:2] == (section, language)]
    return lines


TRY = ("Try it without a GPU", "sh")
USE = ("Use it on your GPU", "sh")
COMPOSE = ("Use it on your GPU", "yaml")
BRING = ("Use your existing manifests", "")
EVERY_DAY = ("Daily use", "")
ROWS = re.findall(r"^\| (none|`GPUSHARE.*?`) \| (.*) \|$", README, re.MULTILINE)
COMMANDS = [re.split(r"\s{2,}", line)[0] for line in block(*EVERY_DAY)]
BROUGHT = [re.split(r"\s{2,}", line)[0] for line in block(*BRING)]


# --- on this machine ---


def test_every_block_is_run_by_a_test_here() -> None:
    found = [it[:2] for it in blocks(README)]
    assert sorted(found) == sorted(BLOCKS)
    for test in BLOCKS.values():
        assert test.__name__.startswith("test_")


def test_the_demo_holds_as_typed_and_leaves_nothing_behind() -> None:
    demo, test = block(*TRY)
    before = traces()
    done = subprocess.run(demo, shell=True, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$ docker run" in done.stdout
    assert "  FAIL  " not in done.stdout
    assert not left_behind(done.stdout)
    assert not {*traces()} - {*before}  # another test may have removed its own meanwhile
    # The block's other command is running now: it is what CI runs, and all that CI runs.
    called = (ROOT / ".ci/run").read_text().splitlines()[-1]
    assert called.endswith(f"&& exec {test}")


# --- on a machine of its own ---


@dataclass
class Ready:
    """A machine that was set up by the block; `said` is what its last line printed."""

    machine: OwnMachine
    before: str
    said: str

    def events(self, line: str) -> dict[str, dict[str, Any]]:
        return events(self.machine.run(line))

    def show(self, *words: str) -> Any:
        return json.loads(self.machine.run(shlex.join(["gpushare", *words, "--json"])))


def events(said: str) -> dict[str, dict[str, Any]]:
    """Return what the probe printed, by event."""
    found = [json.loads(line) for line in said.splitlines() if line.startswith('{"event"')]
    return {event["event"]: event for event in found}


def typed(line: str, wheel: object = "") -> str:
    """Return the line to run for one of the README."""
    for read, run in SUBSTITUTIONS.items():
        line = line.replace(read, run.format(wheel=wheel))
    return line


@pytest.fixture(scope="module")
def ready(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    install, setup, use = block(*USE)
    machine = OwnMachine(tmp_path_factory.mktemp("readme"))
    try:
        machine.run(
            'mkdir /etc/docker && echo \'{"log-level":   "warn"}\' >/etc/docker/daemon.json'
        )
        machine.start_dockerd()
        machine.run(
            "docker load", image.build(InstallSource.of_package().libraries / "gpushare-probe")
        )
        machine.run(typed(install, wheel))
        before = files(machine)
        said = machine.run(typed(setup))
        # What setup says is the user's to do where there is no systemd.
        assert "next  start the daemon: " in said
        assert "next  make docker read it: kill -HUP " in said
        start_daemon(machine)
        machine.run("kill -HUP $(cat /run/docker.pid)")
        wait_until(lambda: "gpushare" in machine.run("docker info --format '{{.Runtimes}}'"))
        yield Ready(machine, before, machine.run(typed(use)))
    finally:
        machine.close()
    assert not leftovers.cgroups_named(machine.cgroup)


def start_daemon(machine: OwnMachine) -> None:
    """Start gpushared as the unit that setup wrote would."""
    unit = machine.run("cat /etc/systemd/system/gpushared.service")
    (command,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    machine.start(
        "gpushared",
        shlex.split(command),
        lambda: machine.call("test -S /run/gpushare/control.sock").returncode == 0,
    )


def files(machine: OwnMachine) -> str:
    """Return every file and folder that setup might write to, with what is in it."""
    skipped = r"-path /opt/gpushare/venv -prune -o -xdev"
    return machine.run(
        f"find {' '.join(WRITTEN)} {skipped} -printf '%p %m %l\\n' | sort;"
        f"find /etc /usr/local/bin {skipped} -type f -exec sha256sum {{}} + | sort -k 2"
    )


def test_three_commands_give_a_container_its_part_of_the_gpu(ready: Ready) -> None:
    info = events(ready.said)["info"]
    assert info["total"] == info["device_total"] == 4 * GIB
    assert ready.machine.run("gpushare --version").startswith("gpushare ")


def test_the_compose_service_is_the_same_container(ready: Ready) -> None:
    (service,) = yaml.safe_load("\n".join(block(*COMPOSE)))["services"].values()
    asked = service["environment"]
    assert all(isinstance(value, str) for value in asked.values()), "compose wants texts"
    given = resolve_request(parse_request({}, asked).valid())
    assert (given.memory_bytes, given.cores, given.policy) == (4 * GIB, 30, "fixed-share")
    assert service.keys() == {"image", "runtime", "environment"}
    variables = " ".join(f"-e {name}={value}" for name, value in asked.items())
    line = f"docker run --rm --runtime={service['runtime']} {variables} {PROBE}"
    if ready.machine.call("docker compose version").returncode == 0:
        service |= {"image": "gpushare-probe", "command": PROBE.split()[1:]}
        text = yaml.safe_dump({"services": {"train": {**service, "network_mode": "none"}}})
        line = f"printf %s {shlex.quote(text)} | docker compose -f - run --rm train"
    assert ready.events(line)["info"]["total"] == 4 * GIB


def test_without_a_container_it_is_the_same(ready: Ready) -> None:
    sentence = r"^To run a program without a container, use `(.*?)` as root\."
    (line,) = re.findall(sentence, README, re.MULTILINE)
    assert ready.events(typed(line))["info"]["total"] == 4 * GIB


class QuotaRow(NamedTuple):
    """What a row of the table must come to; total None: no GPU."""

    total: int | None
    policy: str = ""
    cores: int = 0
    whole: bool = False


OUTCOMES: Mapping[str, QuotaRow] = {
    "none": QuotaRow(None),
    "`GPUSHARE_MEMORY=4GiB`": QuotaRow(4 * GIB, "best-effort"),
    "`GPUSHARE_MEMORY=4GiB`, `GPUSHARE_CORES=30`": QuotaRow(4 * GIB, "fixed-share", 30),
    "`GPUSHARE_MEMORY=4GiB`, `GPUSHARE_CORES=30`, `GPUSHARE_POLICY=burst-share`": QuotaRow(
        4 * GIB, "burst-share", 30
    ),
    "`GPUSHARE_MEMORY=4GiB`, `GPUSHARE_MEMORY_LIMIT=8GiB`": QuotaRow(8 * GIB, "best-effort"),
    "`GPUSHARE_COUNT=1`": QuotaRow(139 * GIB, "", 100, whole=True),
}


@pytest.mark.parametrize("written", [row[0] for row in ROWS])
def test_a_request_gets_the_result_in_the_readme(ready: Ready, written: str) -> None:
    row = OUTCOMES[written]
    asked = " ".join(f"-e {variable}" for variable in re.findall(r"GPUSHARE_\w+=[\w-]+", written))
    run = f"docker run --name row --runtime=gpushare {asked}"
    if row.total is None:
        done = ready.machine.call(f"{run} --rm {PROBE}")
        assert (done.returncode, events(done.stdout)["driver"]["found"]) == (3, False)
        return
    assert ready.events(f"{run} --rm {PROBE}")["info"]["total"] >= row.total
    with tenant(ready.machine, f"{run} -d -i gpushare-probe", "row"):
        shown = ready.show("inspect", "row")
        (card,) = shown["cards"]
        assert (shown["policy"], card["cores"]) == (row.policy, row.cores)
        assert (shown["isolation"] == "interposer") is not row.whole
        if row.whole:
            second = ready.machine.call(
                "docker run --rm --runtime=gpushare -e GPUSHARE_MEMORY=1GiB " + PROBE
            )
            assert second.returncode == 125
            assert "row" in second.stderr


class tenant:  # noqa: N801 - a context
    """A container that was started by `line` and is gone afterwards."""

    def __init__(self, machine: OwnMachine, line: str, name: str) -> None:
        self.machine, self.name = machine, name
        machine.run(line)

    def __enter__(self) -> None:
        wait_until(lambda: self.name in self.machine.run("gpushare ps"))

    def __exit__(self, *_: object) -> None:
        self.machine.run(f"docker rm --force {self.name}")
        wait_until(lambda: self.name not in self.machine.run("gpushare ps"))


@pytest.fixture
def train(ready: Ready) -> Iterator[Ready]:
    quota = "-e GPUSHARE_MEMORY=4GiB -e GPUSHARE_CORES=30"
    line = f"docker run -d -i --name train --runtime=gpushare {quota} gpushare-probe"
    with tenant(ready.machine, line, "train"):
        yield ready


def shows_cards(said: str, _: Ready) -> None:
    heading, row = said.splitlines()
    for word in ("ALLOCATED", "NON-TENANT", "AVAILABLE"):
        assert word in heading
    assert re.match(r"0 +H200 +139 GiB +4 GiB +\S+ \S+ +13\d GiB +30 % +1/16 +shared +ok", row)


def shows_containers(said: str, _: Ready) -> None:
    heading, row = said.splitlines()
    assert "MEMORY USED/QUOTA" in heading
    assert "CORES USED/QUOTA" in heading
    assert re.match(r"train +0 +0\.0/\d\.0 GiB +(-|0\.0)/30 % ", row)


def says_where_it_is(said: str, ready: Ready) -> None:
    heading, *lines = said.splitlines()
    assert re.match(r"train +card 0 +H200 +0\.0/4\.0 GiB", heading)
    shown = dict(re.findall(r"^  (\w[\w ]*?) +[+]?(\d+) ", "\n".join(lines), re.MULTILINE))
    assert shown["used"] == "0"
    assert int(shown["quota"]) == 4 * GIB
    assert ready.show("why", "train")["cards"][0]["used_bytes"] == 0


def has_resized(_: str, ready: Ready) -> None:
    assert ready.show("inspect", "train")["cards"][0]["quota_bytes"] == 6 * GIB


def is_paused(_: str, ready: Ready) -> None:
    [held] = ready.show("inspect", "train")["interventions"]
    assert held["by"] == "operator"
    ready.machine.run("gpushare resume train")
    assert ready.show("inspect", "train")["interventions"] == []


def is_evicted(said: str, ready: Ready) -> None:
    assert said.startswith("train: evicted")
    assert ready.show("inspect", "train")["evicted"]["state"] == "evicted"
    ready.machine.run("gpushare restore train")
    assert ready.show("inspect", "train")["evicted"] is None


def starts_when_there_is_room(said: str, _: Ready) -> None:
    assert f'"total":{4 * GIB},' in said


def takes_nobody(said: str, ready: Ready) -> None:
    assert "train" in said
    assert ready.show("ls")[0]["cordoned"] is True
    ready.machine.run("gpushare card uncordon 0")
    assert ready.show("ls")[0]["cordoned"] is False


def says_what_happened(said: str, _: Ready) -> None:
    assert re.search(r"train( \([0-9a-f]{12}\))? reserved 4 GiB on card 0$", said, re.MULTILINE)


def shows_all_at_once(said: str, _: Ready) -> None:
    assert "train" in said
    assert "H200" in said


def finds_nothing_wrong(said: str, _: Ready) -> None:
    assert "ok    docker: runtime gpushare registered" in said
    assert "fail  " not in said


def proves_the_limits(said: str, _: Ready) -> None:
    assert "$ docker run" in said
    assert "CUDA_ERROR_OUT_OF_MEMORY" in said


DAILY: Mapping[str, Callable[[str, Ready], None]] = {
    "gpushare ls": shows_cards,
    "gpushare ps": shows_containers,
    "gpushare why train": says_where_it_is,
    "gpushare set train --memory 6GiB": has_resized,
    "gpushare pause train": is_paused,
    "gpushare evict train": is_evicted,
    "gpushare run --wait -- docker run ...": starts_when_there_is_room,
    "gpushare card drain 0": takes_nobody,
    "gpushare history train": says_what_happened,
    "gpushare doctor": finds_nothing_wrong,
    "gpushare top": shows_all_at_once,
    "gpushare verify --memory --cores": proves_the_limits,
}
#: `top` needs a terminal (tests/unit/cli/top has one); shares of compute are proved on a card in
#: slow motion (shares/test_verify.py), for other tests take this machine's time.
INSTEAD = {
    "gpushare run --wait -- docker run ...": (
        "gpushare run --wait -- docker run --rm --network none --runtime=gpushare "
        "-e GPUSHARE_MEMORY=4GiB gpushare-probe /usr/bin/gpushare-probe info"
    ),
    "gpushare top": "gpushare top --once",
    "gpushare verify --memory --cores": "gpushare verify --memory",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_daily_commands_have_the_results_in_the_readme(train: Ready, command: str) -> None:
    DAILY[command](train.machine.run(INSTEAD.get(command, command)), train)


#: What each says of the pod for HAMi that the demonstration brings, or of the probe's image.
SAID_OF_BROUGHT: Mapping[str, str] = {
    "gpushare explain pod.yaml": "-> memory=4GiB",
    "gpushare validate pod.yaml": "pod.yaml: ok (1 container, 1 requests a GPU)",
    "gpushare convert pod.yaml --to gpushare": "gpushare.io/memory: 4GiB",
    "gpushare compat IMAGE": "gpushare-probe",
    "gpushare explain 700": "CUDA_ERROR_ILLEGAL_ADDRESS",
}


@pytest.mark.parametrize("command", BROUGHT)
def test_the_commands_explain_check_and_convert_a_manifest(ready: Ready, command: str) -> None:
    ready.machine.run(f"printf %s {shlex.quote(POD)} >pod.yaml")
    said = ready.machine.run(command.replace("IMAGE", "gpushare-probe"))
    assert SAID_OF_BROUGHT[command] in said


def test_undo_restores_every_file_byte_for_byte(ready: Ready) -> None:
    assert "`setup --undo` restores every file byte for byte" in README
    pid = ready.show()["daemon"]["pid"]
    said = ready.machine.run("gpushare setup --undo")
    assert f"do    stop gpushared (process {pid})" in said
    assert ready.machine.call(f"test -d /proc/{pid}").returncode != 0
    assert files(ready.machine) == ready.before


BLOCKS: Mapping[tuple[str, str], Callable[..., None]] = {
    TRY: test_the_demo_holds_as_typed_and_leaves_nothing_behind,
    USE: test_three_commands_give_a_container_its_part_of_the_gpu,
    COMPOSE: test_the_compose_service_is_the_same_container,
    BRING: test_the_commands_explain_check_and_convert_a_manifest,
    EVERY_DAY: test_the_daily_commands_have_the_results_in_the_readme,
}
