# SPDX-License-Identifier: Apache-2.0
"""gpushare as the next version could be: pages of another layout, and more in each message.

Of the C parts, the filters, the scheduler and the launcher are built anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpushare import abi
from gpushare.install import Installation, InstallSource

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "tests" / "upgrade"
FOLDERS = ("CMakeLists.txt", "configs", "packaging", "runtime", "hooks", "scheduler", "libhook")
PROGRAMS = ("gpushare-scheduler", "gpushare-runtime")
TARGETS = ("cuda-filter", "nvml-filter", *PROGRAMS)
VERSION = abi.ABI_VERSION + 1

#: A larger record moves everything behind the processes.
EDITS = {
    "libhook/include/gpushare_abi.h": (
        (f"GPUSHARE_ABI_VERSION {abi.ABI_VERSION}", f"GPUSHARE_ABI_VERSION {VERSION}"),
        (
            "_Atomic uint64_t denied_bytes; /*",
            "uint64_t more[4];\n_Atomic uint64_t denied_bytes; /*",
        ),
        ("GPUSHARE_MAX_PROCESSES * 32)", "GPUSHARE_MAX_PROCESSES * 64)"),
        ("sizeof(struct gpushare_process) == 32", "sizeof(struct gpushare_process) == 64"),
    ),
    "gpushare/abi.py": (
        (f"ABI_VERSION: Final = {abi.ABI_VERSION}", f"ABI_VERSION: Final = {VERSION}"),
        ("PROCESS_BYTES: Final = 32", "PROCESS_BYTES: Final = 64"),
        ("PROCESS_DENIED_BYTES: Final = 24", "PROCESS_DENIED_BYTES: Final = 56"),
        ('PROCESS: Final = struct.Struct("<IIQQQ")', 'PROCESS: Final = struct.Struct("<IIQQ32xQ")'),
    ),
    "gpushare/__init__.py": (('__version__ = "', '__version__ = "9.'),),
    # Requests, replies and rows have a key that this version does not know.
    "gpushare/protocol/__init__.py": (
        ("packet = json.dumps(message,", "packet = json.dumps(_with_more(message),"),
        (
            "def decode(packet",
            """def _with_more(message: dict[str, Any]) -> dict[str, Any]:
    if isinstance(message.get("row"), dict):
        message = {**message, "row": _with_more(message["row"])}
    return {**message, "added_in_9": {"more": [1, None]}}


def decode(packet""",
        ),
    ),
    "runtime/client.c": (
        ('put(request, "}");', 'put(request, ",\\"added_in_9\\":{\\"more\\":[1,null]}}");'),
    ),
}

#: The editable installation's finder comes before any path. What lies beside this file is ours.
PROGRAM = """\
import importlib, sys
sys.meta_path = [one for one in sys.meta_path if "ScikitBuild" not in type(one).__name__]
importlib.import_module(sys.argv.pop(1)).main()
"""


@dataclass(frozen=True)
class Variant:
    """A version of gpushare whose pages this one does not know."""

    source: InstallSource
    program: Path

    def argv(self, module: str, *words: str) -> list[str]:
        """Return the command line that runs the function main of one of its modules."""
        return [sys.executable, str(self.program), module, *words]


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(like: Installation) -> Variant:
    """Return the variant; what is the same in both is taken from `like`."""
    with _one_at_a_time():
        tree = BUILD / "source"
        for name in (*FOLDERS, "gpushare"):
            for path in _files(name):
                _write(tree, path)
        _write_if_new(tree / "program.py", PROGRAM.encode())
        return Variant(_source(like, _compile(tree)), tree / "program.py")


def _files(name: str) -> list[Path]:
    listed = subprocess.run(
        [
            *("git", "-c", f"safe.directory={ROOT}", "ls-files"),
            *("--cached", "--others", "--exclude-standard", name),
        ],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    ).stdout
    return [Path(line) for line in listed.splitlines()]


def _write(tree: Path, path: Path) -> None:
    if not (ROOT / path).is_file():
        return
    content = (ROOT / path).read_bytes()
    for before, after in EDITS.get(str(path), ()):
        text = content.decode()
        assert text.count(before) == 1, f"{path}: {before}"
        content = text.replace(before, after).encode()
    _write_if_new(tree / path, content)


def _write_if_new(file: Path, content: bytes) -> None:
    """What did not change keeps its time, and is not built again."""
    if file.is_file() and file.read_bytes() == content:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _compile(tree: Path) -> Path:
    folder = BUILD / "made"
    beside = Path(sys.executable).parent
    settings = {
        "CMAKE_MAKE_PROGRAM": beside / "ninja",
        "Python_EXECUTABLE": sys.executable,
        "GPUSHARE_ZIG": "ON" if find_spec("ziglang") else "OFF",
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    for argv in (
        [str(beside / "cmake"), "-G", "Ninja", "-S", str(tree), "-B", str(folder), *options],
        [str(beside / "ninja"), "-j2", "-C", str(folder), *TARGETS],
    ):
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return folder


def _source(like: Installation, made: Path) -> InstallSource:
    """Return a folder that is named by its content: tests of another process may install it."""
    draft = BUILD / "parts-draft"
    shutil.rmtree(draft, ignore_errors=True)
    for name in ("bin", "lib"):
        shutil.copytree(like.root / name, draft / name)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copyfile(made / "lib" / name, draft / "lib" / name)
    for name in PROGRAMS:
        shutil.copyfile(made / "bin" / name, draft / "bin" / name)
    digest = hashlib.sha256()
    for path in sorted(draft.rglob("*")):
        digest.update(path.read_bytes() if path.is_file() else path.name.encode())
    parts = BUILD / f"parts-{digest.hexdigest()[:12]}"
    if not parts.exists():
        draft.rename(parts)
    return InstallSource(parts / "bin", parts / "lib")
