# SPDX-License-Identifier: Apache-2.0
"""From an installed package to a tenant and back, by the commands of the README.

In namespaces of its own: what setup writes lands in overlays of this machine's folders, and the
processes that it starts end with the first of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(sys.executable).parent
WRITTEN = ("/etc", "/opt", "/usr/local", "/var/lib")
# /run hides the machine's own systemd, docker and gpushare.
SCRIPT = """
set -eu
mount -t tmpfs tmpfs {overlays}
for folder in {folders}; do
    upper={overlays}/upper$folder work={overlays}/work$folder
    mkdir -p $upper $work
    mount -t overlay overlay -o lowerdir=$folder,upperdir=$upper,workdir=$work $folder
done
mount -t tmpfs tmpfs /run
mkdir -p /etc/docker
echo '{{"debug": true}}' > /etc/docker/daemon.json
rm -rf /etc/containerd/config.toml
find {folders} | sort > {overlays}/before
{programs}/gpushare setup --simulate h200 --runtime docker --runtime containerd
{programs}/gpushared > /run/gpushared.log 2>&1 &
daemon=$!
until test -S /run/gpushare/control.sock; do
    kill -0 $daemon || {{ cat /run/gpushared.log >&2; exit 1; }}
    sleep 0.05
done
{programs}/gpushare doctor >&2 || echo "doctor: $?" >&2
{programs}/gpushare setup --dry-run --simulate h200 --runtime docker --runtime containerd >&2
{programs}/gpushare run --memory 2GiB -- /usr/local/lib/gpushare/current/lib/gpushare-probe info
kill $daemon
wait $daemon || true
{programs}/gpushare setup --undo >&2
cat /etc/docker/daemon.json
find {folders} | sort | diff {overlays}/before - >&2
"""


@pytest.mark.gate
def test_set_up_it_serves_and_undone_nothing_is_left(tmp_path: Path) -> None:
    overlays = tmp_path / "overlays"
    overlays.mkdir()
    script = SCRIPT.format(overlays=overlays, folders=" ".join(WRITTEN), programs=PROGRAMS)
    apart = ("--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
    done = subprocess.run(
        ["unshare", *apart, "sh", "-c", script],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event"')]
    assert said[-1]["total"] == 2 << 30
    assert done.stdout.splitlines()[-1] == '{"debug": true}'
    lines = done.stderr.splitlines()
    assert any(line.startswith("ok    docker: runtime gpushare registered") for line in lines)
    assert any(line.startswith("ok    containerd: runtime gpushare registered") for line in lines)
    assert not [line for line in lines if line.startswith(("fail", "doctor:"))]
    assert not [line for line in lines if line.startswith("would ")], "a second setup changes"
