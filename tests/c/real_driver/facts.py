# SPDX-License-Identifier: Apache-2.0
"""Write libhook/table/drivers.txt from NVIDIA's libraries.

    PYTHONPATH=packaging/setup python -m tests.c.real_driver.facts

It needs root, and the drivers of `./dev real-driver`. A line is a fact that holds from a release
on: a function of NVML, or the words for a code. A function that the newest lacks is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import nvidia_packages

from libhook.table import drivers, elf
from tests.real_driver import RealDriver

from .conftest import Place

HEAD = """# What NVIDIA's libraries of some releases have, without a card: written by
#     PYTHONPATH=packaging/setup python -m tests.c.real_driver.facts
# From the CUDA version on: a function of NVML, or an error of CUDA or NVML in the library's words.
"""


def functions(driver: RealDriver) -> frozenset[str]:
    return elf.read(driver.libraries / "libnvidia-ml.so.1").exported


def of_driver(driver: RealDriver) -> Iterator[str]:
    """Yield the facts of one release."""
    place = Place(driver.libraries)
    yield from sorted(functions(driver))
    for key, (_, text) in place.ask("errors").items():
        form, code = key.split()
        if form == "cuGetErrorString" and text is not None:
            yield f"cuda {code} {text}"
    for code, text in enumerate(place.ask("nvml")["errors"]):
        if text != drivers.UNKNOWN:
            yield f"nvml {code} {text}"


def main() -> None:
    every = [RealDriver(release) for release in nvidia_packages.releases()]
    known = functions(every[0]).union(*map(functions, every)) - functions(every[-1])
    lines = []
    for driver in every:
        version = Place(driver.libraries).ask("calls")["before"]["version"]
        found = [fact for fact in of_driver(driver) if fact not in known]
        known = known.union(found)
        lines += [f"{version} {fact}\n" for fact in found]
    drivers.FACTS.write_text(HEAD + "".join(lines), encoding="ascii")
    sys.stdout.write(f"{drivers.FACTS}: {len(lines)} facts\n")


if __name__ == "__main__":
    main()
