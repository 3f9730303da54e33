"""The CUDA headers on the Python index, one release of the toolkit at a time.

NVIDIA ships cuda.h, nvml.h and their typedefs in wheels. They are read in place, out of the
wheel, and never kept in the repository: the table takes names and numbers from them, no text.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Oldest first. The newest release determines what exists; the older ones contain what it may have
# dropped, and prove that no release ever changed the version of a symbol. To add a release, add its
# line, run generate.py, and review the difference.
RELEASES = {
    "11.8": ("nvidia-cuda-runtime-cu11==11.8.89", "nvidia-nvml-dev-cu11==11.8.86"),
    "12.1": ("nvidia-cuda-runtime-cu12==12.1.105", "nvidia-nvml-dev-cu12==12.1.105"),
    "12.4": ("nvidia-cuda-runtime-cu12==12.4.127", "nvidia-nvml-dev-cu12==12.4.127"),
    "12.9": ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia-nvml-dev-cu12==12.9.79"),
    "13.0": ("nvidia-cuda-runtime==13.0.96", "nvidia-nvml-dev==13.0.87"),
    "13.5": (
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-nvml-dev==13.5.37",
        "nvidia-cuda-profiler-api==13.5.25",
    ),
}

# The headers are the same on every platform; naming one makes all machines read the same wheel.
PLATFORMS = ("manylinux2014_x86_64", "manylinux1_x86_64")


class DownloadError(Exception):
    """The wheels could not be downloaded; the message contains the command and its output."""


@dataclass(frozen=True)
class Release:
    """The headers of one toolkit release: `text` by file name, as in `text["cuda.h"]`."""

    name: str
    text: dict[str, str]

    @property
    def version(self) -> int:
        """The release as CUDA_VERSION has it: 11080 is "11.8"."""
        major, _, minor = self.name.partition(".")
        return int(major) * 1000 + int(minor) * 10


def releases(cache: Path) -> Iterator[Release]:
    """Yield every release, oldest first; wheels not yet in `cache` are downloaded into it.

    Raises DownloadError when pip cannot fetch one.
    """
    cache.mkdir(parents=True, exist_ok=True)
    for name, requirements in RELEASES.items():
        wheels = [wheel(requirement, cache) for requirement in requirements]
        yield Release(name, dict(header for path in wheels for header in read(path)))


def wheel(requirement: str, cache: Path) -> Path:
    """Return the wheel of `requirement` (NAME==VERSION) in `cache`, downloading it if absent."""
    name, _, version = requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not any(cache.glob(pattern)):
        download(requirement, cache)
    for path in cache.glob(pattern):
        return path
    raise DownloadError(f"pip downloaded {requirement}, but no {pattern} is in {cache}")


def download(requirement: str, cache: Path) -> None:
    """Put the wheel of `requirement` into the folder `cache`, or raise DownloadError."""
    platforms = (f"--platform={platform}" for platform in PLATFORMS)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", *platforms]
    command += ["--dest", str(cache), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DownloadError(f"{' '.join(command)}: {done.stderr.strip()}")


def read(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of every header in the wheel at `path`."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if PurePosixPath(member).match("include/*.h"):
                # 11.8's headers hold a Latin-1 byte in a comment.
                yield PurePosixPath(member).name, archive.read(member).decode(errors="replace")
