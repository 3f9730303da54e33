# SPDX-License-Identifier: Apache-2.0
"""Each tenant's tmpfs, in the mount namespace that its runtime runs in.

A hardened unit has a mount namespace of its own, and what is mounted there never reaches runc. So
one thread leaves it for the host's and stays there; what it mounted is used through a descriptor,
which works in any namespace. `<tenants>/<key>` belongs to the uid that mounts from it
(root, or the root of the container's user namespace) and is closed to all others;
`<tenants>/<key>/pages` is the tmpfs, which only the tenant gets to see.

A few are mounted ahead of need, as `<tenants>/.spare-N`, and become a tenant's by one rename: a
container's start then waits neither for the mount nor for the thread. Where many start at once,
every mount of the machine waits for one lock of the kernel (namespace_sem), so further threads
mount theirs at the same time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gpushare.daemon.core.loop import T, Task
from gpushare.errors import UserError
from gpushare.host import mounts

HOST: Final = Path("/proc/1/ns/mnt")
PAGES: Final = "pages"
_FLAGS: Final = mounts.MS_NOSUID | mounts.MS_NODEV
_TOP_FLAGS: Final = _FLAGS | mounts.MS_NOEXEC
_SPARE: Final = ".spare-"
_SPARES: Final = 4
_HELPERS: Final = 15  # further threads, started when so many starts wait for a mount
_IDLE_SECONDS: Final = 0.05  # without a call, before a spare is made: starts come in crowds
#: Percent of the machine's memory.
_SHARED_OPTIONS: Final = "mode=1777,size=10%,nr_inodes=64k"
_KEY: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_LABEL: Final = re.compile(r"[A-Za-z0-9_:.,-]{1,256}", re.ASCII)

_NEEDED: Final = (
    "gpushared must be root with CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE; or set "
    "mount_namespace"
)


class MountsError(UserError):
    """Tenants' pages cannot be mounted on this machine."""


class _Spare(NamedTuple):
    """A tmpfs without a tenant yet; `directory` is open on it."""

    name: str
    directory: int


class TenantMounts:
    """The tenants' directories beneath `root`, mounted in the namespace that `namespace` names.

    None is the host's: that of its first process, or, in a container that may not look at that, the
    daemon's own. MountsError where the thread cannot get there. `spare_bytes` is the size of those
    that are kept ready, 0 keeps none.
    """

    def __init__(self, root: Path, namespace: Path | None = None, spare_bytes: int = 0) -> None:
        self.root = root
        self._root_fd = -1  # of `root` in the namespace
        self._spare_bytes = spare_bytes
        self._spares: deque[_Spare] = deque()
        self._spares_made = 0
        self._trees = LibraryTrees(root)
        self.warning = ""  # for the operator, of the place where the mounts are made
        self._named = namespace is not None
        self._namespace = namespace or HOST
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._claims = self._helpers = 0
        self._counting = threading.Lock()  # of these two and `_spares_made`
        self._entered = Task(self._enter)
        threading.Thread(target=self._serve, name="mounts", daemon=True).start()
        self._entered.result()

    def path(self, key: str) -> Path:
        """Return the tmpfs of tenant `key`, a path of the runtime's mount namespace."""
        return self.root / key / PAGES

    def make(self, key: str, *, size_bytes: int, owner: int = 0, label: str = "") -> int:
        """Mount a tmpfs for tenant `key` and return a descriptor of its directory.

        At most `size_bytes` can be written to it; `owner` may reach it beside root; `label` is its
        SELinux context. What an earlier tenant of that key left is taken away first. OSError.
        """
        if not _KEY.fullmatch(key):
            raise OSError(errno.EINVAL, "not a tenant key", key)
        if size_bytes == self._spare_bytes and not label:
            directory = self._take_spare(key, owner)
            if directory is not None:
                return directory
        data = _options(size_bytes)
        if label:
            if not _LABEL.fullmatch(label):
                raise OSError(errno.EINVAL, "linux.mountLabel is not an SELinux label", label)
            data += f',context="{label}"'
        return self._ask(lambda: self._make(key, data, owner))

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """See that in the block a spare one is there for the calling thread to `make`.

        For each of many threads; another one takes what they have claimed, one after the other.
        """
        with self._counting:
            self._claims += 1
            is_short = len(self._spares) < self._claims and self._spare_bytes > 0
            is_help_due = is_short and self._helpers < min(self._claims - 1, _HELPERS)
            self._helpers += is_help_due
        try:
            if is_help_due:
                threading.Thread(target=self._help, name="mounts", daemon=True).start()
            if is_short:
                self._ask(self._make_spare)
            yield
        finally:
            with self._counting:
                self._claims -= 1

    def refill(self) -> None:
        """Have the spare ones made that `make` has taken; returns at once."""
        self._calls.put(lambda: None)  # so that the thread looks how many are left

    def close(self) -> None:
        """Take the spare ones away; the tenants' stay, and none is made ready any more.

        So does the tree of libraries while there are tenants: one of them may be about to start.
        """
        self._ask(self._close)

    def library_tree(self, top: str, files: Mapping[str, str]) -> Path:
        """Return a tree in which `files` (sources by destination, beneath `top`) are mounted.

        It is mounted at the first call for these files, and used by all later ones. OSError.
        """
        identity = identify(files)
        tree = self._trees.find(identity)
        return tree or self._ask(lambda: self._trees.make(top, files, identity))

    def shared_memory(self, path: Path) -> int:
        """Have a tmpfs at `path`, and return a descriptor of a copy of its mount; OSError.

        It is for the containers of one card, and bounded: they do not fill the host's /run.
        """

        def make() -> int:
            if not path.is_mount():
                mounts.tmpfs(path, flags=_TOP_FLAGS, data=_SHARED_OPTIONS)
            return mounts.clone(path)

        return self._ask(make)

    def drop_shared_memory(self, path: Path) -> None:
        """Unmount it, which is fine if it is not there; a container that has it keeps it."""
        self._ask(lambda: mounts.unmount_all(path))

    def stale_trees(self) -> list[str]:
        """Return the names of the trees that no new container gets."""
        return self._ask(self._trees.stale)

    def drop_trees(self, names: Collection[str]) -> None:
        """Unmount these trees, except one that is used again by now. No effect on containers."""
        self._ask(lambda: self._trees.drop(names))

    def open(self, key: str) -> int:
        """Return a descriptor of the directory that `make` mounted; OSError when it is gone."""
        return self._ask(lambda: self._open(key))

    def remove(self, key: str) -> None:
        """Take the tmpfs and its directory away. One that is not there is fine."""
        self._ask(lambda: self._remove(key))

    def made(self) -> list[str]:
        """Return the tenants that have a directory."""
        return self._ask(self._keys)

    def _ask(self, function: Callable[[], T]) -> T:
        call = Task(function)
        self._calls.put(call.run)
        return call.result()

    def _serve(self) -> None:
        self._entered.run()
        if self._entered.error is not None:
            return
        while True:
            is_short = len(self._spares) < _SPARES and self._spare_bytes > 0
            try:
                call = self._calls.get(timeout=_IDLE_SECONDS if is_short else None)
            except queue.Empty:
                call = self._make_spare
            call()

    def _help(self) -> None:
        """Make calls beside the first thread, which makes all of them where this one cannot."""
        try:
            self._enter_namespace()
        except OSError:
            return
        while True:
            self._calls.get()()

    def _enter(self) -> None:
        """Move this thread, and no other, into the namespace; make `root` there."""
        try:
            self._enter_namespace()
        except PermissionError as error:
            if self._named:
                raise MountsError(f"{self._namespace}: {error.strerror}; {_NEEDED}") from error
            self.warning = (
                f"{self._namespace} cannot be looked at: tenants' pages are mounted in gpushared's "
                "own mount namespace, which must be the runtime's too (runtime_mount_namespace)"
            )
        except OSError as error:
            raise MountsError(f"{self._namespace}: {error.strerror}; {_NEEDED}") from error
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o711)
        self._root_fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for record in self.root.iterdir():
            if record.name.startswith(_SPARE):  # of a daemon that was killed
                self._remove(record.name)
        self._trees.enter()

    def _enter_namespace(self) -> None:
        mounts.unshare(mounts.CLONE_FS)
        if not self._namespace.samefile("/proc/thread-self/ns/mnt"):
            with self._namespace.open("rb") as namespace:
                mounts.enter_namespace(namespace.fileno())

    def _make(self, key: str, data: str, owner: int) -> int:
        self._remove(key)
        outer = self.root / key
        outer.mkdir(mode=0o700)
        try:
            (outer / PAGES).mkdir()  # its mode is that of what is mounted on it
            os.chown(outer, owner, -1)
            self._mount(outer / PAGES, data)
            return self._open(key)
        except BaseException:
            self._remove(key)
            raise

    def _take_spare(self, key: str, owner: int) -> int | None:
        """Make a spare one the tenant's; None where there is none, or an earlier one's is there."""
        if not self._spares:
            return None
        spare = self._spares.popleft()
        try:
            if owner:
                os.chown(spare.name, owner, -1, dir_fd=self._root_fd)
            os.rename(spare.name, key, src_dir_fd=self._root_fd, dst_dir_fd=self._root_fd)
        except OSError:
            os.close(spare.directory)
            self._ask(lambda: self._remove(spare.name))
            return None
        return spare.directory

    def _make_spare(self) -> None:
        with self._counting:
            name = f"{_SPARE}{self._spares_made}"
            self._spares_made += 1
        try:
            directory = self._make(name, _options(self._spare_bytes), 0)
        except OSError:
            self._spare_bytes = 0  # a container that needs one is refused with the reason
            return
        self._spares.append(_Spare(name, directory))
        if not self._spare_bytes:
            self._drop_spares()

    def _drop_spares(self) -> None:
        self._spare_bytes = 0
        while self._spares:
            spare = self._spares.popleft()
            os.close(spare.directory)
            self._remove(spare.name)

    def _close(self) -> None:
        self._drop_spares()
        if not self._keys():
            self._trees.close()

    def _mount(self, target: Path, data: str) -> None:
        mounts.tmpfs(target, flags=_TOP_FLAGS, data=data)

    def _open(self, key: str) -> int:
        return os.open(self.path(key), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _remove(self, key: str) -> None:
        outer = self.root / key
        mounts.unmount_all(outer / PAGES)
        for folder in (outer / PAGES, outer):
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()

    def _keys(self) -> list[str]:
        return sorted(record.name for record in self.root.iterdir() if _KEY.fullmatch(record.name))


def _options(size_bytes: int) -> str:
    return f"mode=755,size={size_bytes},nr_inodes=8"


# --- the libraries that every container with a share gets, mounted as one tree ahead of need ---
#
# The tree is a read-only tmpfs with a mount for each library, at `<tenants>/.tree-<digest>`. A
# container gets a copy of it by one rbind (oci/container.py). Every mount in the tree is ro,
# nosuid and nodev by itself, because the flags of an rbind are those of its topmost mount only.
#
# The digest is that of the files' paths and identities: another driver, or other libraries of ours,
# are another tree. A tree appears whole, by one mount, so whatever stands under such a name after a
# crash is complete; and runtimes in mount namespaces that are slaves of this one get all of it.

_TREE: Final = ".tree-"
_DRAFT: Final = f"{_TREE}new"

_Identity = tuple[tuple[str, str, int, int], ...]


class _Current(NamedTuple):
    """The tree that new containers get, and the device of its file system."""

    identity: _Identity
    path: Path
    device: int


class LibraryTrees:
    """The trees beneath `root`; only `find` is for threads outside the mount namespace."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._making = threading.Lock()
        self._root_fd = -1  # of `root` in the mount namespace
        self._current: _Current | None = None
        self._is_closed = False

    def enter(self) -> None:
        """Open `root`; remove what a gpushared left that was killed while it made a tree."""
        self._root_fd = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._remove(self._root / _DRAFT)

    def find(self, identity: _Identity) -> Path | None:
        """Return the tree of these files, if it is the current one and still mounted."""
        current = self._current
        if current is None or current.identity != identity:
            return None
        try:
            status = os.stat(current.path.name, dir_fd=self._root_fd)
        except OSError:
            return None
        return current.path if status.st_dev == current.device else None

    def make(self, top: str, files: Mapping[str, str], identity: _Identity) -> Path:
        """Return the tree of `files`, which stand beneath `top` in a container; OSError.

        It may be one of an earlier gpushared.
        """
        with self._making:
            if self._is_closed:
                raise OSError(errno.ESHUTDOWN, os.strerror(errno.ESHUTDOWN), str(self._root))
            path = self.find(identity)
            if path is None:
                digest = hashlib.sha256(repr((top, identity)).encode()).hexdigest()[:16]
                path = self._root / f"{_TREE}{digest}"
                if not path.is_mount():
                    self._mount(path, top, files)
                self._current = _Current(identity, path, path.stat().st_dev)
            return path

    def stale(self) -> list[str]:
        """Return the names of the trees that no new container gets."""
        current = self._current
        kept = "" if current is None else current.path.name
        return [name for name in self._names() if name != kept]

    def drop(self, names: Collection[str]) -> None:
        """Unmount these trees, except the current one."""
        with self._making:
            for name in set(self.stale()).intersection(names):
                self._remove(self._root / name)

    def close(self) -> None:
        """Unmount every tree, and make none any more: gpushared ends."""
        with self._making:
            self._is_closed = True
            self._current = None
            for name in self._names():
                self._remove(self._root / name)

    def _names(self) -> list[str]:
        names = (entry.name for entry in self._root.iterdir())
        return sorted(name for name in names if name.startswith(_TREE) and name != _DRAFT)

    def _mount(self, path: Path, top: str, files: Mapping[str, str]) -> None:
        draft = self._root / _DRAFT
        self._remove(draft)
        draft.mkdir(mode=0o700)
        try:
            mounts.tmpfs(draft, flags=_TOP_FLAGS, data="mode=755,size=1m")
            # Other namespaces get the whole tree or nothing of it, never a part.
            mounts.mount("none", draft, flags=mounts.MS_PRIVATE)
            for destination, source in files.items():
                target = draft / os.path.relpath(destination, top)
                _make_directory(target.parent)
                target.touch()
                target.chmod(0o444)
                mounts.bind(source, target, read_only=True, flags=_FLAGS)
            _make_directory(draft / _TENANT)
            read_only = mounts.MS_REMOUNT | mounts.MS_RDONLY
            mounts.mount("none", draft, flags=read_only | _TOP_FLAGS)
            path.mkdir(mode=0o700, exist_ok=True)
            mounts.bind(draft, path, recursive=True)
        finally:
            self._remove(draft)

    def _remove(self, path: Path) -> None:
        mounts.unmount_all(path)
        with contextlib.suppress(FileNotFoundError):
            path.rmdir()


def identify(files: Mapping[str, str]) -> _Identity:
    """Return what tells `files` from others, also from new ones at the same paths; OSError."""
    return tuple(
        (destination, source, status.st_dev, status.st_ino)
        for destination, source in files.items()
        for status in (os.stat(source),)  # noqa: PTH116 - a string, for each create
    )


_TENANT: Final = "tenant"  # where a container has its tenant's pages mounted


def _make_directory(path: Path) -> None:
    path.mkdir(exist_ok=True)
    path.chmod(0o755)  # whatever the umask is
