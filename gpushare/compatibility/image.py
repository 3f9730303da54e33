# SPDX-License-Identifier: Apache-2.0
"""The CUDA facts of an image, declared and contained: runtimes, requirements, precisions.

Its root is read beneath the root's descriptor, by name only, and only directories are opened: a
file counts if the name leads to a regular file within the image. A directory that has not changed
since it was last read, in this image or in another made of the same layers, is not read again.

Precisions are those of the command line and the environment, by the options of vLLM, SGLang and
text-generation-inference. Their `auto` is the model's own choice, which a user may name beside it
(`gpushare.compatibility.model`).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from gpushare import compatibility
from gpushare.compatibility.model import WEIGHTS, ModelFormats
from gpushare.compatibility.rules import (
    Image,
    Runtime,
    Version,
    parse_exactly,
    strip_zeros,
)
from gpushare.oci.cuda_compat import Compat
from gpushare.oci.elf import Platform
from gpushare.oci.rootfs import Rootfs
from gpushare.quota.errors import printable

_CUDART: Final = re.compile(r"libcudart\.so\.([0-9]+(?:\.[0-9]+){0,3})", re.ASCII)
_WHEEL: Final = re.compile(r"nvidia_cuda_runtime(?:_cu[0-9]+)?-([0-9.]+)\.dist-info", re.ASCII)
# cuda-12 is a link of packages to cuda-12.4.
_TOOLKIT: Final = re.compile(r"cuda(-[0-9]+\.[0-9.]+)?", re.ASCII)
_PYTHON: Final = re.compile(r"python3(\.[0-9]+)?", re.ASCII)
_PARTS: Final = re.compile(r"cuda_runtime|cu[0-9]{2}", re.ASCII)

#: The identity of a directory.
Stamp: TypeAlias = "tuple[int, ...]"

_OF_NVIDIA: Final = re.compile(r"/usr/local/(nvidia|cuda(-[0-9.]+)?)", re.ASCII)
_PATTERNS: Final = (_CUDART, _WHEEL, _TOOLKIT, _PYTHON, _PARTS)
_INTERESTING: Final = re.compile("|".join(f"(?:{one.pattern})" for one in _PATTERNS), re.ASCII)

_DRIVERS: Final = frozenset({"/usr/local/nvidia/lib", "/usr/local/nvidia/lib64"})
_DEBIANS: Final = frozenset({"/usr", "/usr/local"})
#: Where environments of Python and conda are, beside those that PATH names.
_PREFIXES: Final = ("/opt/conda", "/opt/venv", "/usr/local", "/usr")
# An image says how much there is to look at, and every container's start waits for it.
_MOST_CHARACTERS: Final = 4096  # of a variable
_MOST_PATHS: Final = 16
_MOST_PREFIXES: Final = 8
_MOST_TOOLKITS: Final = 8
_MOST_RUNTIMES: Final = 16
_MOST_PYTHONS: Final = 4
_MOST_READ: Final = 32  # directories, of which each has at most 4096 names
_MOST_KNOWN: Final = 2048

# What was found in a directory. An image cannot forge the time of change, which is a part of the
# stamp, so another one does not get what was found in this.
_known: dict[Stamp, tuple[str, ...]] = {}


#: NVIDIA's images say their toolkit, and the version of the runtime's package, `12.4.127-1`.
_VERSION_VARIABLES: Final = ("CUDA_VERSION", "NV_CUDA_CUDART_VERSION")
_PRECISION_OPTIONS: Final = frozenset(
    {"--dtype", "--torch-dtype", "--quantization", "--quantize", "--kv-cache-dtype"}
)
#: Those of the weights.
_DTYPES: Final = frozenset({"--dtype", "--torch-dtype", "DTYPE"})
_PRECISION_VARIABLES: Final = ("DTYPE", "QUANTIZE", "KV_CACHE_DTYPE")
#: The beginning of a value, and its format.
_FORMATS: Final = (
    ("bfloat16", "bfloat16"),
    ("bf16", "bfloat16"),
    ("fp8", "fp8"),
    ("float8", "fp8"),
    ("float-quantized", "fp8"),  # compressed-tensors' name in a config.json
    ("nvfp4", "fp4"),
    ("fp4", "fp4"),
)
# A command line may be a script; what is behind this is not its options any more.
_MOST_WORDS: Final = 512
_MOST_HINTS: Final = 8


def find_runtimes(
    rootfs: Rootfs, variables: Mapping[str, str], platform: Platform
) -> tuple[Runtime, ...]:
    """Return the runtimes, the first that a program finds first.

    That is the order of LD_LIBRARY_PATH, then the toolkits of the system, then what conda and
    Python packages bring, which programs of theirs find by a path of their own.
    """
    looks = _DirectoryReader(rootfs)
    runtimes: list[Runtime] = []
    stamps: set[Stamp] = set()
    for directory in _directories(looks, variables, platform):
        stamp, names = looks.at(directory)
        if stamp in stamps:
            continue  # under another name: /usr/local/cuda is a link to cuda-12.4
        stamps.add(stamp)
        runtimes += _runtimes_in(looks, directory, names)
        if len(runtimes) >= _MOST_RUNTIMES:
            break
    return tuple(runtimes)


def is_relevant(name: str) -> bool:
    """Whether a file or a directory of that name matters to the check."""
    return _INTERESTING.fullmatch(name) is not None


@dataclass
class _DirectoryReader:
    """The directories of one root, of which no more than so many are read."""

    rootfs: Rootfs
    left: int = _MOST_READ

    def names(self, directory: str) -> tuple[str, ...]:
        """Return those names of a directory that matter to the check, sorted."""
        return self.at(directory)[1]

    def at(self, directory: str) -> tuple[Stamp, tuple[str, ...]]:
        """Return what a directory is known by, and its names; nothing where there is none."""
        stamp = self.rootfs.directory_stamp(directory)
        if not stamp:
            return (), ()
        known = _known.get(stamp)
        if known is None:
            if not self.left:
                return (), ()
            self.left -= 1
            known = tuple(name for name in self.rootfs.names(directory) if is_relevant(name))
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[stamp] = known
        return stamp, known


def _directories(
    looks: _DirectoryReader, variables: Mapping[str, str], platform: Platform
) -> Iterator[str]:
    known: set[str] = set()
    for directory in itertools.chain(
        _absolute_paths(_variable(variables, "LD_LIBRARY_PATH")),
        _system(looks, platform),
        _packages(looks, variables),
    ):
        if directory not in known:
            known.add(directory)
            yield directory


def _system(looks: _DirectoryReader, platform: Platform) -> Iterator[str]:
    toolkits = [name for name in looks.names("/usr/local") if _TOOLKIT.fullmatch(name)]
    for toolkit in toolkits[:_MOST_TOOLKITS]:
        yield f"/usr/local/{toolkit}/lib64"
    yield from platform.library_directories


def _packages(looks: _DirectoryReader, variables: Mapping[str, str]) -> Iterator[str]:
    for prefix in _prefixes(variables):
        names = looks.names(f"{prefix}/lib")
        if any(_CUDART.fullmatch(name) for name in names):
            yield f"{prefix}/lib"
        pythons = [name for name in names if _PYTHON.fullmatch(name)]
        for python in pythons[:_MOST_PYTHONS]:
            # Debian's own Python, and no other, has dist-packages.
            for packages in ("site-packages", "dist-packages")[: 2 if prefix in _DEBIANS else 1]:
                nvidia = f"{prefix}/lib/{python}/{packages}/nvidia"
                for part in looks.names(nvidia):
                    if _PARTS.fullmatch(part):
                        yield f"{nvidia}/{part}/lib"


@functools.lru_cache(maxsize=64)  # the same few images are started over and over
def _prefixes_in(path: str, *named: str) -> tuple[str, ...]:
    bins = [one.removesuffix("/bin") for one in _absolute_paths(path) if one.endswith("/bin")]
    # Those of NVIDIA's images: no packages of Python are beneath a toolkit, or the driver's tools.
    bins = [one for one in bins if not _OF_NVIDIA.fullmatch(one)]
    prefixes = [prefix.rstrip("/") for prefix in (*named, *bins) if prefix.startswith("/")]
    return tuple(dict.fromkeys((*prefixes[:_MOST_PREFIXES], *_PREFIXES)))


def _prefixes(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders above `bin` and `lib` in which programs are installed."""
    named = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
    return _prefixes_in(*(_variable(variables, name) for name in named))


def _variable(variables: Mapping[str, str], name: str) -> str:
    """Return what a variable says, and no more of it than is read: it is kept for the next."""
    return variables.get(name, "")[:_MOST_CHARACTERS]


@functools.lru_cache(maxsize=64)
def _absolute_paths(text: str) -> tuple[str, ...]:
    """Return the folders of a search path, but for the driver's own: no runtime is in those."""
    paths = (path.rstrip("/") for path in text.split(":") if path.startswith("/"))
    kept = dict.fromkeys(path for path in paths if path and path not in _DRIVERS)
    return tuple(kept)[:_MOST_PATHS]


def _runtimes_in(
    looks: _DirectoryReader, directory: str, names: tuple[str, ...]
) -> Iterator[Runtime]:
    """Yield the runtimes of a directory, by the longest of the names of each."""
    versions: dict[int, list[tuple[Version, str]]] = {}
    for name in names:
        match = _CUDART.fullmatch(name)
        version = parse_exactly(match[1]) if match else None
        if version is not None:
            versions.setdefault(version[0], []).append((version, name))
    for major, named in sorted(versions.items()):
        # libcudart.so.12 and .so.11.0 are names for the loader, libcudart.so.12.4.127 is the file.
        files = [(version, name) for version, name in named if name.count(".") >= 4]
        version, name = max(files or [((major,), named[0][1])])
        if looks.rootfs.is_file(f"{directory}/{name}"):
            if len(version) == 1:
                version = _of_wheel(looks, directory, major) or version
            yield Runtime(version, printable(f"{directory}/{name}"))


def _of_wheel(looks: _DirectoryReader, directory: str, major: int) -> Version | None:
    """Return the version of a wheel's libcudart, whose name has the major version alone."""
    packages, slash, _ = directory.partition("/nvidia/")
    if not slash:
        return None
    for name in looks.names(packages):
        match = _WHEEL.fullmatch(name)
        version = parse_exactly(match[1]) if match else None
        if version is not None and version[0] == major:
            return version
    return None


def image_facts(
    variables: Mapping[str, str],
    args: Sequence[str],
    runtimes: Sequence[Runtime] = (),
    own_driver: Version = (),
) -> Image:
    """Return the facts of an image with that environment and command, and what was found in it."""
    return Image(
        runtimes=_with_declared(tuple(runtimes), variables),
        requires=compatibility.find_requirements(variables),
        disabled=compatibility.is_disabled(variables),
        compat=own_driver,
        precisions=requested_precisions(args, variables),
    )


def inspect_image(
    rootfs: Rootfs,
    variables: Mapping[str, str],
    args: Sequence[str],
    platform: Platform,
    package: Compat | None,
) -> Image:
    """Return the facts of the image whose root is `rootfs`; OldKernelError.

    `package` is the cuda-compat in it, as gpushare.oci.cuda_compat finds it.
    """
    runtimes = find_runtimes(rootfs, variables, platform)
    return image_facts(
        variables, args, runtimes, () if package is None else strip_zeros(package.version)
    )


def _with_declared(
    runtimes: tuple[Runtime, ...], variables: Mapping[str, str]
) -> tuple[Runtime, ...]:
    """Return `runtimes`, made finer by what the environment says, or what that says alone."""
    for name in _VERSION_VARIABLES:
        declared = parse_exactly(variables.get(name, "").partition("-")[0])
        if declared is None or len(declared) > 4:
            continue
        if not runtimes:
            return (Runtime(declared, name),)
        first = runtimes[0]
        if len(first.version) == 1 and first.version[0] == declared[0]:
            return (Runtime(declared, first.where), *runtimes[1:])
    return runtimes


def requested_precisions(
    args: Sequence[str], variables: Mapping[str, str], model: ModelFormats = ()
) -> tuple[tuple[str, str], ...]:
    """Return (format, source) of everything that is declared, each format once.

    The weights of `model` count as they are stored unless a format for them is declared.
    """
    declared = [*_options(args), *_variables(variables)]
    converts = any(option in _DTYPES and value != "auto" for option, value in declared)
    precisions: dict[str, str] = {}
    stored = [
        (f"config.json: {key}", value) for key, value in model if not (converts and key in WEIGHTS)
    ]
    for option, value in (*declared, *stored):
        name = _precision_of(value)
        if name is not None and len(precisions) < _MOST_HINTS:
            precisions.setdefault(name, f"{option}={printable(value, 40)}")
    return tuple(precisions.items())


def _options(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    # Of `sh -c "vllm serve --dtype bfloat16"` the words are inside one argument.
    words = [word for arg in args[:_MOST_WORDS] for word in arg[:4096].split()][:_MOST_WORDS]
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option not in _PRECISION_OPTIONS:
            continue
        if equals:
            yield option, value
        elif place + 1 < len(words):
            yield option, words[place + 1]


def _variables(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield from ((name, variables[name]) for name in _PRECISION_VARIABLES if name in variables)


def _precision_of(value: str) -> str | None:
    plain = value.strip("\"'").lower()
    return next((name for start, name in _FORMATS if plain.startswith(start)), None)
