# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's params file is covered in a container, by what no image can lead elsewhere or hold up.

/proc/version stands for it, as a machine without a card has none.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compiled import ROOT, STRICT, compile_c
from tests.stack import Stack
from tests.stack.program import find

from .container import RuntimeContainer, RuntimeNamespace
from .fuse import StallingFolder

pytestmark = pytest.mark.gate
VERSION = Path("/proc/version")
OFF = "ModifyDeviceFiles: 0\n"
REFUSALS = {os.strerror(number) for number in (errno.ENOENT, errno.EXDEV, errno.ELOOP)}
BUSYBOX = "/bin/busybox"
DAEMON = f"""
import sys
from functools import partial
from pathlib import Path
from gpushare.daemon import __main__, composition
composition.DriverParams = partial(composition.DriverParams, path=Path("{VERSION}"))
sys.argv = sys.argv[1:]
__main__.main()
"""
ATTACK = f"""
exec >/output
cat {VERSION}
could() {{ echo "could $*"; }}
(echo x >>{VERSION}) 2>/dev/null && could write it
try() {{ /bin/busybox "$@" >/dev/null 2>&1; }}
try touch {VERSION} && could change its time
try umount {VERSION} && could uncover it
for options in remount,rw remount,bind,rw remount,bind,exec; do
  try mount -o $options {VERSION} && could mount it again, with $options
  try unshare -Urm mount -o $options {VERSION} && could mount it again in a namespace
done
try unshare -Urm umount {VERSION} && could uncover it in a namespace
exit 0
"""


@pytest.fixture(scope="module")
def covering() -> Iterator[RuntimeNamespace]:
    """A daemon that covers /proc/version, in a mount namespace of its own as systemd's are."""
    with Stack() as stack:
        made = RuntimeNamespace(stack)
        unshare = (find("unshare"), "--mount", "--propagation", "slave")
        stack.start_daemon((*unshare, sys.executable, "-c", DAEMON))
        yield made
        made.close()


def output(place: RuntimeNamespace, runtime: str, *capabilities: str) -> str:
    """Return what the attack says in a container that has these capabilities too."""
    container = RuntimeContainer(place, runtime, args=(BUSYBOX, "sh", "-c", ATTACK))
    for names in container.config["process"]["capabilities"].values():
        names.extend(capabilities)
    container.save()
    try:
        assert container.create() == 0
        container.call("start")
        container.through.wait_for(container.id, "stopped")
        return (container.rootfs / "output").read_text()
    finally:
        container.remove()
        place.assert_empty()


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_root_of_a_container_finds_the_copy_and_cannot_change_it(
    covering: RuntimeNamespace, runtime: str
) -> None:
    hosts = VERSION.read_text()
    assert output(covering, runtime, "CAP_MKNOD") == hosts + OFF
    assert output(covering, runtime) == f"{hosts}could change its time\n"  # the host's
    assert OFF not in output(covering, runtime, "CAP_MKNOD", "CAP_SYS_ADMIN")
    assert OFF not in VERSION.read_text()


class Namespace:
    """A process in namespaces of its own, whose root stays the host's."""

    def __init__(self, *kinds: str) -> None:
        kinds = kinds or ("--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
        argv = [find("unshare"), *kinds, "sh", "-c", "echo ready; exec sleep 1000"]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.inside = [find("nsenter"), f"--mount=/proc/{self.pid}/ns/mnt"]

    def run(self, *words: str) -> str:
        """Return what a program prints there."""
        done = subprocess.run([*self.inside, *words], check=True, capture_output=True, text=True)
        return done.stdout

    def mounts(self) -> list[list[str]]:
        """Return the fields of its table of mounts (proc(5)), as far as they can be in the way.

        The others are the host's, and go when their folders are removed there.
        """
        lines = Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()
        fields = (line.split() for line in lines)
        return [row for row in fields if row[4] == "/" or row[4].startswith(("/proc", "/p"))]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        os.close(self.pidfd)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    made = Namespace()
    yield made
    made.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that covers as the launcher does: PID, copy and file are its arguments."""
    output = tmp_path_factory.mktemp("cover") / "cover"
    own, launchers = Path(__file__).with_name("cover.c"), ROOT / "runtime/driver_params.c"
    return compile_c(output, *STRICT, "-static", f"-I{ROOT}/runtime", own, launchers)


class Params:
    def __init__(self, program: Path, copy: Path) -> None:
        self._program, self._copy = program, copy
        copy.write_text(VERSION.read_text() + OFF)

    def begin(self, namespace: Namespace, path: Path = VERSION) -> subprocess.Popen[str]:
        words = [str(namespace.pid), str(self._copy), str(path).removeprefix("/proc/")]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [self._program, *words], stdout=pipe, text=True, cwd=self._copy.parent
        )

    def cover(self, namespace: Namespace, path: Path = VERSION) -> str:
        """Return why it is not covered there; empty: it is."""
        begun = self.begin(namespace, path)
        why = begun.communicate()[0]
        assert begun.returncode == 0  # it came back
        return why


@pytest.fixture
def params(program: Path, tmp_path: Path) -> Params:
    return Params(program, tmp_path / "copy")


def test_it_is_covered_in_that_namespace_alone(params: Params, namespace: Namespace) -> None:
    hosts, copy = VERSION.read_text(), VERSION.read_text() + OFF
    assert params.cover(namespace) == ""
    assert namespace.run("cat", str(VERSION)) == copy
    [options] = [row[5] for row in namespace.mounts() if row[4] == str(VERSION)]
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(options.split(","))
    assert VERSION.read_text() == hosts
    assert str(VERSION) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize(
    "obstacle",
    [
        "mount --bind {folder} /proc",
        "mount --bind {folder}/version /proc/version",
        "mount --bind /proc/uptime /proc/version",
        (
            "mount -t tmpfs none /mnt; cd /mnt; mkdir p; mount --bind /proc p; ln -s p proc; "
            "mount --move /mnt /"
        ),
    ],
    ids=["folder", "file", "another of /proc", "link to procfs"],
)
def test_what_is_in_the_way_is_not_covered(
    params: Params, namespace: Namespace, tmp_path: Path, obstacle: str
) -> None:
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "version").touch()
    namespace.run("sh", "-ec", obstacle.format(folder=folder))
    before = namespace.mounts()
    assert params.cover(namespace) in REFUSALS
    assert namespace.mounts() == before


@pytest.mark.parametrize("path", ["/proc/net/dev", "/proc/self/comm"])
def test_no_link_below_proc_is_followed(params: Params, path: str) -> None:
    namespace = Namespace("--mount")
    before = namespace.mounts()
    assert params.cover(namespace, Path(path)) == os.strerror(errno.ELOOP)
    after = namespace.mounts()
    namespace.close()
    assert before == after


def test_a_root_that_does_not_answer_holds_up_its_own_start_until_it_ends(
    params: Params, namespace: Namespace
) -> None:
    root = StallingFolder(Path("/"), "x", b"", namespace.inside)
    try:
        root.stall()
        begun = params.begin(namespace)
        assert root.stalled.wait(30)
        assert begun.poll() is None
    finally:
        root.close()
    assert begun.communicate()[0] in {os.strerror(errno.ENOTCONN), os.strerror(errno.ECONNABORTED)}
    assert begun.returncode == 0


def test_a_launcher_with_a_root_of_its_own_keeps_it(
    program: Path, namespace: Namespace, tmp_path: Path
) -> None:
    (tmp_path / "root/proc").mkdir(parents=True)
    (tmp_path / "root/copy").write_text(VERSION.read_text() + OFF)
    shutil.copy(program, tmp_path / "root/cover")
    enter = f"mount -t proc proc root/proc; exec chroot root /cover {namespace.pid} /copy version"
    unshare = [find("unshare"), "--mount", "--propagation", "slave", "sh", "-ec", enter]
    done = subprocess.run(unshare, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert OFF in namespace.run("cat", str(VERSION))
