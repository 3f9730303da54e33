# SPDX-License-Identifier: Apache-2.0
"""`gpushare doctor --bundle`: what a bug report needs, in one archive.

Each part is collected alone, and one that is not available is named in the archive with the
reason: a report is needed most when gpushared does not run.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import platform
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gpushare
from gpushare import config
from gpushare.client import Client
from gpushare.errors import UserError

if TYPE_CHECKING:
    from gpushare.checks import Check


#: The folder in the archive.
FOLDER: Final = "gpushare-report"
_HISTORY_SECONDS: Final = 7 * 86400
_LINES: Final = 20000  # of a journal, the last ones
_LOG_BYTES: Final = 8 << 20  # of a file, its end
_COMMAND_SECONDS: Final = 20
_PROGRAMS: Final = (
    "docker",
    "containerd",
    "podman",
    "crio",
    "kubelet",
    "runc",
    "crun",
    "nvidia-ctk",
    "systemctl",
    "gpushare-exporter",
    "gpushare-node",
)
#: The launcher writes to the engine that starts it.
_ENGINE_UNITS: Final = (
    "docker",
    "containerd",
    "crio",
    "podman",
    "kubelet",
    "k3s",
    "k3s-agent",
    "rke2-server",
    "rke2-agent",
    "k0scontroller",
    "k0sworker",
)
_KERNEL_WORDS: Final = ("NVRM", "nvidia", "gpushare")

#: The name of a file in the archive, and a function that returns its text, or what is its JSON.
ReportPart = tuple[str, Callable[[], Any]]


class NotAvailable(UserError):
    """A part of the report cannot be collected; the text says why."""


@dataclass(frozen=True)
class BugReport:
    """The collected parts, by the name of the file, and why the rest is missing."""

    parts: Mapping[str, Any]
    missing: Mapping[str, str]

    @property
    def reasons(self) -> dict[str, list[str]]:
        """The missing parts, by the reason."""
        names_by_reason: dict[str, list[str]] = {}
        for name, why in self.missing.items():
            names_by_reason.setdefault(why, []).append(name)
        return names_by_reason


def collect(socket: Path, checks: Callable[[Client], Iterator[Check]]) -> BugReport:
    """Return the report of this machine, with the result of `checks`."""
    client = Client(socket, start_seconds=0)
    parts: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name, part in _parts(client, checks):
        try:
            parts[name] = part()
        except (UserError, OSError, subprocess.SubprocessError) as error:
            missing[name] = str(error)
        except (LookupError, TypeError, ValueError) as error:  # a gpushared of another version
            missing[name] = repr(error)
    return BugReport(parts, missing)


def write(report: BugReport, path: Path) -> None:
    """Write the archive to `path`, a new file that only its owner can read; UserError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", filename="") as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            os.fchmod(descriptor, 0o600)  # independent of the umask
            _add(archive, "README.txt", _readme(report))
            for name, part in report.parts.items():
                _add(archive, name, part if isinstance(part, str) else json.dumps(part, indent=2))
    except BaseException as error:
        path.unlink()
        if isinstance(error, OSError):
            raise _not_written(path, error) from error
        raise


def _not_written(path: Path, error: OSError) -> UserError:
    fix = "name a new file in a folder with room"
    text = f"--bundle {path}: {error.strerror}. {fix.capitalize()}."
    return UserError(text, key="--bundle", value=str(path), fix=fix)


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = (text if text.endswith("\n") else text + "\n").encode("utf-8", "backslashreplace")
    entry = tarfile.TarInfo(f"{FOLDER}/{name}")
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
    archive.addfile(entry, io.BytesIO(content))


def _readme(report: BugReport) -> str:
    written_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    lines = [
        f"Report of gpushare {gpushare.__version__}, {written_at}",
        "",
        "Not available:",
        *([f"  {', '.join(names)}: {why}" for why, names in report.reasons.items()] or ["  -"]),
    ]
    return "\n".join(lines)


def _parts(client: Client, checks: Callable[[Client], Iterator[Check]]) -> Sequence[ReportPart]:
    since = time.time() - _HISTORY_SECONDS
    return (
        ("versions.json", partial(_versions, client)),
        ("status.json", client.status),
        ("gpushare.yaml", partial(_configuration, client)),
        ("doctor.json", lambda: [asdict(check) for check in checks(client)]),
        ("ls.json", client.cards),
        ("ps.json", partial(client.tenants, everything=True)),
        ("history.json", lambda: list(client.history("", since))),
        ("gpushared.log", partial(_daemon_log, client)),
        ("launcher.log", _launcher_log),
        ("kernel.log", _kernel_log),
    )


def _status(client: Client) -> Mapping[str, Any]:
    """Return a DaemonStatus; keys may be missing, all of them if gpushared does not answer."""
    try:
        return client.status()
    except UserError:
        return {}


def _versions(client: Client) -> dict[str, Any]:
    status = _status(client)
    driver = Path("/proc/driver/nvidia/version")
    return {
        "gpushare": gpushare.__version__,
        "gpushared": status.get("version"),
        "driver": status.get("driver_version"),
        "cuda": status.get("cuda_version"),
        "kernel_module": driver.read_text(errors="replace") if driver.exists() else None,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "system": _system(),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "programs": {name: version for name in _PROGRAMS if (version := _version(name))},
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()


def _version(program: str) -> str:
    """Return the first line that `program` prints with --version; empty if there is none."""
    try:
        return _output(program, "--version").partition("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return ""


def _configuration(client: Client) -> str:
    file = Path(_status(client).get("config") or config.DEFAULT_FILE)
    if not file.exists():
        raise NotAvailable(f"there is no {file}: the defaults apply")
    return file.read_text(encoding="utf-8", errors="replace")


def _daemon_log(client: Client) -> str:
    """Return gpushared's log: the file that is its stderr, otherwise the journal's lines."""
    stderr = Path(f"/proc/{_status(client).get('pid')}/fd/2")
    with contextlib.suppress(PermissionError):  # of another user: only the journal is left
        if stderr.is_file():
            return _end_of(stderr)
    return _journal("gpushared", "--unit=gpushared", "--output=cat")


def _end_of(file: Path) -> str:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _LOG_BYTES))
        return opened.read(_LOG_BYTES).decode("utf-8", "replace")


def _launcher_log() -> str:
    """Return what the engines' journals have of gpushare."""
    units = [f"--unit={unit}" for unit in _ENGINE_UNITS]
    return _lines_with(_journal("the engines", *units, "--output=short-iso"), ("gpushare",))


def _kernel_log() -> str:
    return _lines_with(_journal("the kernel", "--dmesg", "--output=short-iso"), _KERNEL_WORDS)


def _lines_with(text: str, words: Sequence[str]) -> str:
    lines = [line for line in text.splitlines() if any(word in line for word in words)]
    if not lines:
        raise NotAvailable(f"the journal has no line with {' or '.join(words)}")
    return "\n".join(lines)


def _journal(subject: str, *options: str) -> str:
    """Return the journal's lines by the options of journalctl(1); `subject` is what they are of."""
    try:
        found = _output("journalctl", "--no-pager", "--quiet", f"--lines={_LINES}", *options)
    except FileNotFoundError as error:
        raise NotAvailable("there is no journal on this machine: journalctl is missing") from error
    except subprocess.CalledProcessError as error:
        raise NotAvailable(f"journalctl: {error.stderr.strip() or error}") from error
    if not found.strip():
        raise NotAvailable(f"this user finds no line of {subject} in the journal. Use sudo.")
    return found


def _output(*argv: str) -> str:
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_COMMAND_SECONDS,
        check=True,
    )
    return done.stdout
