# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's params file is covered in a container, by what no image can lead elsewhere or hold up.

/proc/version stands for it, as a machine without a card has none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.core.loop import Loop
from gpushare.daemon.pages import driver_params
from gpushare.daemon.pages.driver_params import DriverParams
from gpushare.host import mounts
from gpushare.oci.spec import Spec
from tests.stack import Stack
from tests.stack.program import find
from tests.system.waiting import wait_until

from .container import RuntimeContainer, RuntimeNamespace
from .fuse import StallingFolder

pytestmark = pytest.mark.gate
VERSION = Path("/proc/version")
OFF = "ModifyDeviceFiles: 0\n"
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
def namespaces() -> Iterator[list[Namespace]]:
    made = [Namespace() for _ in range(driver_params._MOST + 1)]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    made = Namespace()
    yield made
    made.close()


class Params(DriverParams):
    """With a loop that runs; every tenant is to have the file covered."""

    def __init__(self, folder: Path, path: Path = VERSION) -> None:
        self.loop = Loop()
        super().__init__(folder / "copy", self.loop, path)
        self.prepare()
        self._running = threading.Thread(target=self.loop.run, daemon=True)
        self._running.start()

    def close(self) -> None:
        self.loop.stop()
        self._running.join()
        wait_until(lambda: not self._begun)
        self.loop.close()

    def start(self, namespace: Namespace) -> threading.Event | None:
        """Begin to cover the file there; what is returned is set once a start goes on."""
        proc = {"destination": "/proc", "type": "proc"}
        linux = {"namespaces": [{"type": "mount"}], "maskedPaths": ["/proc/kcore"]}
        capable = {"capabilities": {"bounding": ["CAP_MKNOD"]}}
        self.note_create("key", Spec({"process": capable, "mounts": [proc], "linux": linux}))
        begin, done = self.at_bind("key", namespace.pidfd), threading.Event()
        if begin is None:
            return None
        begin(done.set)
        return done

    def cover(self, namespace: Namespace) -> None:
        done = self.start(namespace)
        assert done is not None
        wait_until(done.is_set)


@pytest.fixture
def params(tmp_path: Path) -> Iterator[Params]:
    made = Params(tmp_path)
    yield made
    made.close()


def test_it_is_covered_in_that_namespace_alone(params: Params, namespace: Namespace) -> None:
    hosts, copy = VERSION.read_text(), VERSION.read_text() + OFF
    params.cover(namespace)
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
    params: Params,
    namespace: Namespace,
    tmp_path: Path,
    obstacle: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "version").touch()
    namespace.run("sh", "-ec", obstacle.format(folder=folder))
    before = namespace.mounts()
    params.cover(namespace)
    assert namespace.mounts() == before
    assert "driver-params-not-covered" in capfd.readouterr().err


@pytest.mark.parametrize("path", ["/proc/net/dev", "/proc/self/comm"])
def test_no_link_below_proc_is_followed(tmp_path: Path, path: str) -> None:
    namespace, params = Namespace("--mount"), Params(tmp_path, Path(path))
    before = namespace.mounts()
    params.cover(namespace)
    params.close()
    after = namespace.mounts()
    namespace.close()
    assert before == after


def test_roots_that_do_not_answer_hold_up_no_other_start(
    params: Params, namespaces: list[Namespace], capfd: pytest.CaptureFixture[str]
) -> None:
    *hostile, good = namespaces
    roots = [StallingFolder(Path("/"), "x", b"", one.inside) for one in hostile]
    try:
        for root in roots:
            root.stall()
        waiting = [params.start(one) for one in hostile]
        for root, done in zip(roots, waiting, strict=True):
            wait_until(root.stalled.is_set)
            assert done is not None
            wait_until(done.is_set)
        assert capfd.readouterr().err.count("driver-params-not-covered") == len(hostile)
        assert params.start(good) is None  # not even for its own time
        assert "driver-params-not-covered" in capfd.readouterr().err
    finally:
        for root in roots:
            root.close()
    wait_until(lambda: not params._begun)
    params.cover(good)  # by threads that have come back from there
    assert OFF in good.run("cat", str(VERSION))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_cannot_come_back_serves_no_other(
    params: Params, namespaces: list[Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    enter, first = mounts.enter_namespace, threading.Event()

    def enter_once(descriptor: int) -> None:
        if first.is_set() and lost and threading.get_ident() == lost[0]:
            raise PermissionError("setns")
        first.set()
        lost.append(threading.get_ident())
        enter(descriptor)

    lost: list[int] = []
    monkeypatch.setattr(mounts, "enter_namespace", enter_once)
    params.cover(namespaces[0])
    assert OFF in namespaces[0].run("cat", str(VERSION))
    wait_until(lambda: not any(thread.ident == lost[0] for thread in threading.enumerate()))
    monkeypatch.undo()
    params.cover(namespaces[1])
    assert OFF in namespaces[1].run("cat", str(VERSION))
