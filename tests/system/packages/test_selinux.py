# SPDX-License-Identifier: Apache-2.0
"""The policy module of the rpm, compiled into a real policy: Debian's, with Red Hat's names.

No machine here enforces a policy, so what this shows is that every type, class and permission of
the module exists, that no assertion (neverallow) of the policy is violated, and what the labels of
gpushare's files are.
"""

from __future__ import annotations

import bz2
import subprocess
from pathlib import Path

import pytest
from packages import host_bundle, selinux
from packages.workspace import Workspace

from . import debian_archive

pytestmark = pytest.mark.needs("package")

MODULES = ("base", "unconfined")
#: Names of container-selinux and of Fedora's policy that Debian's does not have.
ELSEWHERE = """
(typeattribute container_domain)
(type container_t)
(roletype system_r container_t)
(typeattributeset container_domain (container_t))
(typeattributeset domain (container_t))
(type container_ro_file_t)
(roletype object_r container_ro_file_t)
(typeattributeset file_type (container_ro_file_t))
(type unconfined_service_t)
(typeattributeset domain (unconfined_service_t))
(roletype system_r unconfined_service_t)
"""
LABELS = {
    f"{host_bundle.PREFIX}/1.0/bin/gpushared": "bin_t",
    f"{host_bundle.PREFIX}/1.0/lib/python3.11/site-packages/gpushare/lib/libcuda.so.1": "lib_t",
    f"{host_bundle.PREFIX}/1.0/python/bin/python3": "bin_t",
    f"{host_bundle.PREFIX}/1.0/python/lib/ld-linux-x86-64.so.2": "ld_so_t",
    f"{host_bundle.PREFIX}/1.0/python/lib/libc.so.6": "lib_t",
    "/usr/local/lib/gpushare/1.0-0123/bin/gpushare-runtime": "bin_t",
    "/usr/local/lib/gpushare/1.0-0123/lib/libcuda.so.1": "lib_t",
    "/var/lib/gpushare": "gpushare_var_lib_t",
    "/var/lib/gpushare/compat/libcuda.so.570.10": "container_ro_file_t",
    "/var/lib/gpushare/history/events.db": "gpushare_var_lib_t",
    "/var/lib/gpushare/ldcache/0123": "container_ro_file_t",
}


@pytest.fixture(scope="module")
def tools(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Debian's policy and its compilers, which need no installation."""
    folder = tmp_path_factory.mktemp("selinux")
    for package in ("policycoreutils", "secilc", "selinux-policy-default", "selinux-utils"):
        archive = debian_archive.fetch(workspace, "bookworm", package)
        subprocess.run(["dpkg-deb", "--extract", archive, folder], check=True)
    return folder


@pytest.fixture(scope="module")
def contexts(workspace: Workspace, tools: Path) -> Path:
    """The labels of files under the policy with the module; the policy is compiled for them."""
    module = tools / "gpushare.pp"
    selinux.compile_module(workspace, module)
    folder = tools / "usr/share/selinux/default"
    packed = {name: bz2.decompress((folder / f"{name}.pp.bz2").read_bytes()) for name in MODULES}
    sources = []
    for name, content in (*packed.items(), ("gpushare", module.read_bytes())):
        sources.append(tools / f"{name}.cil")
        converter = tools / "usr/libexec/selinux/hll/pp"
        text = subprocess.run([converter], input=content, check=True, capture_output=True).stdout
        # Its users have roles of modules that are not compiled here.
        lines = [line for line in text.splitlines(True) if not line.startswith(b"(selinuxuser")]
        sources[-1].write_bytes(b"".join(lines))
    (tools / "elsewhere.cil").write_text(ELSEWHERE)
    compiler = [str(tools / "usr/bin/secilc"), "--mls=true", f"--output={tools}/policy"]
    compiler += [f"--filecontext={tools}/contexts"]
    subprocess.run([*compiler, *sources, tools / "elsewhere.cil"], check=True)
    return tools / "contexts"


def test_every_kind_of_file_has_its_label(tools: Path, contexts: Path) -> None:
    found = {}
    for path in LABELS:
        printed = subprocess.run(
            [tools / "usr/sbin/selabel_lookup", "-b", "file", "-f", contexts, "-k", path],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        found[path] = printed.split(":")[-2]
    assert found == LABELS
