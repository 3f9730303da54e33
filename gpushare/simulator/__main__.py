# SPDX-License-Identifier: Apache-2.0
"""`python -m gpushare.simulator create DIR --profile h200 --cards 2`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpushare.simulator import DEVICE_ENV, create
from gpushare.simulator.device_file import ProfileError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 0, or 1 with a message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m gpushare.simulator", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="create")
    verb = verbs.add_parser("create", help="write a device file and a CDI spec")
    verb.add_argument("directory", type=Path)
    verb.add_argument(
        "--profile", default="h200", help="h200, a100-40gb, t4, t4-driver-520, or a JSON file"
    )
    verb.add_argument("--cards", type=int, default=1)
    verb.add_argument("--driver-version", help="e.g. 570.86.10")
    verb.add_argument("--cuda-version", help="e.g. 12.8")
    verb.add_argument(
        "--mig", nargs="+", default=(), metavar="INSTANCE", help="partition each: 1g.18gb ..."
    )
    verb.add_argument("--time-scale", type=float, default=1, help="factor for every duration")
    options = vars(parser.parse_args(arguments))
    try:
        simulator = create(**options)
    except (OSError, ProfileError) as error:
        sys.stderr.write(f"gpushare: {error}\n")
        return 1
    sys.stdout.write(f"export {DEVICE_ENV}={simulator.device}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
