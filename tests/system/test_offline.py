# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/offline.md is run: collected with the index, installed where there is no network."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .own_machine import ROOT
from .test_readme import blocks

PAGE = ROOT / "docs/how-to/offline.md"
SCRIPT = """
set -eu
mount -t tmpfs tmpfs {overlays}
for folder in /etc /opt /usr/local /var/lib; do
    upper={overlays}/upper$folder work={overlays}/work$folder
    mkdir -p $upper $work
    mount -t overlay overlay -o lowerdir=$folder,upperdir=$upper,workdir=$work $folder
done
mount -t tmpfs tmpfs /run
cd {folder}
{lines}
"""


def lines(heading: str) -> list[str]:
    (found,) = [one.lines for one in blocks(PAGE.read_text()) if one.section == heading]
    return [line.replace("sudo ", "") for line in found]


def test_the_page_is_right(
    wheel: Path,
    tmp_path: Path,
) -> None:
    # pip would build the same wheel from the clone, and fetch the compiler for it.
    collect = [
        line.replace(" .", f" {wheel}") if "pip wheel" in line else line
        for line in lines("Collect the packages")
    ]
    subprocess.run(["sh", "-ec", "\n".join(collect)], cwd=tmp_path, check=True)
    found = sorted(path.name.partition("-")[0] for path in (tmp_path / "gpushare-wheels").iterdir())
    assert "gpushare_runtime" in found
    assert {"click", "tomlkit", "nvidia_ml_py"} <= set(found)

    target, overlays = tmp_path / "target", tmp_path / "overlays"
    target.mkdir()
    overlays.mkdir()
    (tmp_path / "gpushare-wheels.tar").rename(target / "gpushare-wheels.tar")
    install = [
        # There is no card here.
        f"{line} --simulate h200 --runtime docker" if "gpushare setup" in line else line
        for line in lines("Install them")
    ]
    script = SCRIPT.format(overlays=overlays, folder=target, lines="\n".join(install))
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "do    docker: register the runtime in /etc/docker/daemon.json" in done.stdout
