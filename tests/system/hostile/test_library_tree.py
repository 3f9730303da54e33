# SPDX-License-Identifier: Apache-2.0
"""The libraries in a container are one mount, and no container can change it for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import abi

from .container import RuntimeContainer, RuntimeNamespace

TOP = "/.gpushare"
LIBRARIES = (f"{abi.DRIVER_DIR}/libcuda.so.1", f"{TOP}/lib/libcuda.so.1")


def mounts(pid: int) -> dict[str, list[str]]:
    """Return the fields of each mount in TOP after its mount point (proc(5)), by that."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    rows = [line.partition(" - ")[0].split() for line in lines]
    return {row[4]: row[5:] for row in rows if f"{row[4]}/".startswith(f"{TOP}/")}


ATTACK = """
could() { echo "could $*" >&2; }
try() { /bin/busybox "$@" >/dev/null 2>&1; }
for path in {paths}; do
  try test -e $path || could not find $path
  (echo x >>$path) 2>/dev/null && could write $path
  (echo x >${path%/*}/new) 2>/dev/null && could make a file beside $path
  try rm -f $path && could remove $path
  try mv $path $path.old && could rename $path
  try chmod 666 $path && could change the mode of $path
  for options in remount,rw remount,bind,rw; do
    try mount -o $options $path && could mount $path again, with $options
    try mount -o $options /.gpushare && could mount it all again, with $options
    try unshare -Urm mount -o $options $path && could mount $path again, in a namespace
    try unshare -Urm umount $path && could uncover $path, in a namespace
  done
done
echo done >&2
"""


@pytest.mark.gate
def test_root_of_a_container_changes_nothing_in_it(container: RuntimeContainer) -> None:
    """Each container has the same file system there."""
    busybox = "/bin/busybox"
    script = ATTACK.replace("{paths}", " ".join(LIBRARIES))
    container.config["process"]["args"] = [busybox, "sh", "-c", script]
    container.save()
    assert container.try_to_run() == "done\n"


REPLACE = """
cd /.gpushare/lib
/bin/busybox umount libcuda.so.1
/bin/busybox mount -o remount,rw /.gpushare
/bin/busybox mount -o remount,bind,rw /.gpushare
/bin/busybox rm -f libcuda.so.1 && echo other >libcuda.so.1 && echo replaced >&2
"""


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_container_that_may_mount_replaces_its_own_libraries_only(
    container: RuntimeContainer, place: RuntimeNamespace, runtime: str
) -> None:
    """It has no mount of the tree, whose file system it could make writable for all."""
    for names in container.config["process"]["capabilities"].values():
        names.append("CAP_SYS_ADMIN")
    container.config["process"]["args"] = ["/bin/busybox", "sh", "-c", REPLACE]
    container.save()
    other = RuntimeContainer(place, runtime)
    with other.started() as tenant:
        before = mounts(other.pid())
        assert container.try_to_run().endswith("replaced\n")
        assert mounts(other.pid()) == before
        assert tenant.ask("context")["code"] == 0
    other = RuntimeContainer(place, runtime)
    with other.started() as tenant:
        assert tenant.ask("context")["code"] == 0
