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


# --- on this machine ---


def test_every_block_is_run_by_a_test_here() -> None:
    found = [it[:2] for it in blocks(README)]
    assert sorted(found) == sorted(BLOCKS)
    for test in BLOCKS.values():
        assert test.__name__.startswith("test_")


def left_behind(said: str) -> dict[str, list[str]]:
    """Return what is left of the stack whose folder the demo named in `said`."""
    found = re.search(r"all in (/var/tmp/(gpushare-[0-9a-f]+))", said)
    assert found is not None, said
    root, name = Path(found[1]), found[2]
    runtime = Path("/run/containerd/runc", name)
    everything = {
        "folders": [str(path) for path in (root, runtime) if path.exists()],
        "mounts": leftovers.mounts_under(root),
        "cgroups": [str(path) for path in leftovers.cgroups_named(name)],
        "processes": subprocess.run(
            ["pgrep", "--full", name], check=False, capture_output=True, text=True
        ).stdout.split(),
    }
    return {kind: things for kind, things in everything.items() if things}


@pytest.mark.gate
def test_the_demo_holds_as_typed_and_leaves_nothing_behind() -> None:
    demo, test = block(*TRY)
    done = subprocess.run(demo, shell=True, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$ docker run" in done.stdout
    assert "  FAIL  " not in done.stdout
    assert not left_behind(done.stdout)
    # The block's other command is running now: it is what CI runs, and all that CI runs.
    called = (ROOT / ".ci/run").read_text().splitlines()[-1]
    assert called.endswith(f'&& exec {test} "$@"')


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
    machine.start_gpushared(shlex.split(command))


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


#: What a container sees of the card with each request of the table; None: no card.
TOTALS: Mapping[str, int | None] = {
    "none": None,
    "`GPUSHARE_MEMORY=4GiB`": 4 * GIB,
    "`GPUSHARE_MEMORY=4GiB`, `GPUSHARE_CORES=30`": 4 * GIB,
    "`GPUSHARE_MEMORY=4GiB`, `GPUSHARE_CORES=30`, `GPUSHARE_POLICY=burst-share`": 4 * GIB,
    "`GPUSHARE_MEMORY=4GiB`, `GPUSHARE_MEMORY_LIMIT=8GiB`": 8 * GIB,
    "`GPUSHARE_COUNT=1`": 139 * GIB,
}


def test_each_request_gets_the_result_in_the_readme(ready: Ready) -> None:
    assert sorted(row[0] for row in ROWS) == sorted(TOTALS)
    for written, total in TOTALS.items():
        asked = " ".join(
            f"-e {variable}" for variable in re.findall(r"GPUSHARE_\w+=[\w-]+", written)
        )
        done = ready.machine.call(f"docker run --rm --runtime=gpushare {asked} {PROBE}")
        if total is None:
            assert (done.returncode, events(done.stdout)["driver"]["found"]) == (3, False)
        else:
            assert events(done.stdout)["info"]["total"] >= total, written


#: What each command shows of the container `train`.
DAILY: Mapping[str, str] = {
    "gpushare ls": r"\n0 +H200 +139 GiB +4 GiB .* 30 % +1/16 +shared +ok",
    "gpushare ps": r"\ntrain +0 +0\.0/\d\.0 GiB +(-|0\.0)/30 % ",
    "gpushare why train": r"^train +card 0 +H200 +0\.0/4\.0 GiB",
    "gpushare set train --memory 6GiB": r"6 ?GiB",
    "gpushare pause train": r"train",
    "gpushare evict train": r"^train: evicted",
    "gpushare run --wait -- docker run ...": rf'"total":{4 * GIB},',
    "gpushare card drain 0": r"train",
    "gpushare history train": r"train( \([0-9a-f]{12}\))? reserved 4 GiB on card 0\n",
    "gpushare doctor": r"ok    docker: runtime gpushare registered",
    "gpushare top": r"H200",
    "gpushare verify --memory --cores": r"CUDA_ERROR_OUT_OF_MEMORY",
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
#: What is done after a command, so that the next ones find the container at work.
AFTER = {
    "gpushare set train --memory 6GiB": "gpushare set train --memory 4GiB",
    "gpushare pause train": "gpushare resume train",
    "gpushare evict train": "gpushare restore train",
    "gpushare card drain 0": "gpushare card uncordon 0",
}


def test_the_daily_commands_have_the_results_in_the_readme(ready: Ready) -> None:
    assert sorted(DAILY) == sorted(COMMANDS)
    quota = "-e GPUSHARE_MEMORY=4GiB -e GPUSHARE_CORES=30"
    ready.machine.run(f"docker run -d -i --name train --runtime=gpushare {quota} gpushare-probe")
    wait_until(lambda: "train" in ready.machine.run("gpushare ps"))
    for command, shown in DAILY.items():
        said = ready.machine.run(INSTEAD.get(command, command))
        assert re.search(shown, said), f"{command}: {said}"
        assert "fail  " not in said
        ready.machine.run(AFTER.get(command, "true"))
    ready.machine.run("docker rm --force train")
    wait_until(lambda: "train" not in ready.machine.run("gpushare ps"))


#: What each says of the pod for HAMi that the demonstration brings, or of the probe's image.
BROUGHT: Mapping[str, str] = {
    "gpushare explain pod.yaml": "-> memory=4GiB",
    "gpushare validate pod.yaml": "pod.yaml: ok (1 container, 1 requests a GPU)",
    "gpushare convert pod.yaml --to gpushare": "gpushare.io/memory: 4GiB",
    "gpushare compat IMAGE": "gpushare-probe",
    "gpushare explain 700": "CUDA_ERROR_ILLEGAL_ADDRESS",
}


def test_the_commands_explain_check_and_convert_a_manifest(ready: Ready) -> None:
    assert [re.split(r"\s{2,}", line)[0] for line in block(*BRING)] == [*BROUGHT]
    ready.machine.run(f"printf %s {shlex.quote(POD)} >pod.yaml")
    for command, said in BROUGHT.items():
        assert said in ready.machine.run(command.replace("IMAGE", "gpushare-probe"))


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
