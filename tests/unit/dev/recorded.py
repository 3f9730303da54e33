# SPDX-License-Identifier: Apache-2.0
"""What apt answers on machines with Docker's own packages.

Recorded on Debian 12 with `apt-get --simulate -o Dir::State::status=FILE install PACKAGE`, where
FILE is the dpkg status of a machine with containerd.io 1.7.27 (Conflicts, Replaces and Provides:
containerd, runc). With docker-ce 28.2.2 (Conflicts: docker.io), docker.io would remove that too.
"""

Recorded = dict[tuple[str, ...], str]

CONTAINERD_IO: Recorded = {
    ("crun",): "Inst crun (1.8.1-1+deb12u1 Debian:12.15/oldstable [amd64])\n",
    ("docker.io",): """\
Remv containerd.io [1.7.27-1]
Inst runc (1.1.5+ds1-1+deb12u1 Debian:12.15/oldstable [amd64])
Inst containerd (1.6.20~ds1-1+deb12u3 Debian:12.15/oldstable [amd64])
Inst tini (0.19.0-1+b3 Debian:12.15/oldstable [amd64])
Inst docker.io (20.10.24+dfsg1-1+deb12u1+b6 Debian:12.15/oldstable [amd64])
""",
    ("crun", "docker.io"): """\
Remv containerd.io [1.7.27-1]
Inst crun (1.8.1-1+deb12u1 Debian:12.15/oldstable [amd64])
Inst runc (1.1.5+ds1-1+deb12u1 Debian:12.15/oldstable [amd64])
Inst containerd (1.6.20~ds1-1+deb12u3 Debian:12.15/oldstable [amd64])
Inst tini (0.19.0-1+b3 Debian:12.15/oldstable [amd64])
Inst docker.io (20.10.24+dfsg1-1+deb12u1+b6 Debian:12.15/oldstable [amd64])
""",
}
