# SPDX-License-Identifier: Apache-2.0
"""`./dev demo`: two containers share one GPU under quotas, on a private dockerd, in a minute.

The scenario is gpushare.verify's; the stack is that of the e2e tests. With a real driver on the
machine the card is the real one, else a simulated H200.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from gpushare.verify import Docker, Report, Scenario
from gpushare.verify.report import BOLD

from . import picture
from .stack import Stack
from .stack.card import real_card
from .stack.program import Missing

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
WIDTH = 112
WHOLE = "demo.svg"
#: Steps that have a picture of their own, by how their titles begin.
APART = {"Where is the memory": "why.svg"}


class Tee(io.StringIO):
    """Keeps what it also prints, for the picture."""

    def write(self, text: str) -> int:
        sys.stdout.write(text)
        return super().write(text)

    def flush(self) -> None:
        sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    if os.geteuid() != 0:
        print("gpushare demo: needs root, for it starts a dockerd of its own: sudo ./dev demo")
        return 1
    signal.signal(signal.SIGTERM, _leave)
    screen = Tee()
    report = Report(screen, colour=options.record or sys.stdout.isatty())
    try:
        held = _demonstrate(report, keep=options.keep)
    except Missing as error:
        print(f"gpushare demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ngpushare demo: stopped; nothing is left behind", file=sys.stderr)
        return 130
    if options.record and held:
        for name, text in pictures(screen.getvalue()).items():
            record(name, text)
            print(f"wrote {PICTURES / name}")
        picture.main()
    return 0 if held else 1


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keep", action="store_true", help="leave it up until Ctrl-C")
    parser.add_argument(
        "--record", action="store_true", help="write the pictures that the README shows"
    )
    return parser.parse_args(argv)


def _demonstrate(report: Report, *, keep: bool) -> bool:
    real = real_card()
    with Stack(cdi=real) as stack:
        report.title("gpushare: two containers share one GPU")
        report.say(
            "card      " + ("this machine's" if real else "a simulated H200 (no driver here)")
        )
        report.say(f"private   dockerd, containerd and gpushared, all in {stack.root}")
        stack.start_containerd()
        docker = stack.start_docker()
        stack.start_daemon()
        docker.prepare(stack.installation.probe)
        held = _scenario(docker, stack, report).run()
        report.title(report.summary)
        if keep:
            _wait_to_play(stack)
    return held


def _scenario(docker: Docker, stack: Stack, report: Report) -> Scenario:
    return Scenario(docker, stack.cli, report)


def _wait_to_play(stack: Stack) -> None:
    exports = [f"  export {name}={shlex.quote(value)}" for name, value in stack.env.items()]
    words = [
        "\nIt is still up. In another shell, as root:\n",
        *exports,
        f"  export PATH={Path(sys.executable).parent}:$PATH",
        "  docker run --rm -it --network none --runtime=gpushare -e GPUSHARE_MEMORY=4GiB \\",
        "      --name mine gpushare-probe          # then type: info, fill, free, spin 1000000 100",
        "  gpushare ps; gpushare why mine; gpushare set mine --memory 6GiB",
        "\nCtrl-C here takes it down.",
    ]
    with suppress(KeyboardInterrupt):
        print("\n".join(words), flush=True)
        signal.pause()


def pictures(text: str) -> dict[str, str]:
    """Return what each picture shows of a demonstration that said `text`."""
    found: dict[str, list[str]] = {}
    for step in text.strip("\n").split(f"\n\n{BOLD}"):
        title = step.removeprefix(BOLD)
        name = next((name for words, name in APART.items() if title.startswith(words)), WHOLE)
        found.setdefault(name, []).append(f"{BOLD}{title}")
    return {name: "\n\n".join(steps) for name, steps in found.items()}


def record(name: str, text: str) -> None:
    """Draw `text` (with its ANSI colours) as an SVG that the README shows."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text.strip("\n")))
    PICTURES.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(PICTURES / name), title="./dev demo")


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
