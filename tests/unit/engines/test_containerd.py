# SPDX-License-Identifier: Apache-2.0
"""config.toml in its three versions: comments stay, the handler is a copy of the default's."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import tomlkit

from gpushare.engines.config_files import BadConfiguration
from gpushare.engines.containerd import Configuration, cri_section
from gpushare.quota.dialects import DIALECTS, TABLES

LAUNCHER = Path("/usr/local/lib/gpushare/current/bin/gpushare-runtime")
CONTAINERD = Configuration()
MARK = "# gpushare: `gpushare runtime unconfigure --runtime containerd` removes this\n"

V2 = """\
# kept by hand
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.k8s.io/pause:3.9" # pinned

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = 'runc' # for now
      snapshotter = "overlayfs"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        pod_annotations = ["io.example/*"]

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true

# the end
[timeouts]
  "io.containerd.timeout.bolt.open" = "0s"
"""

OTHERS = ", ".join(f'"{glob}"' for glob in TABLES.annotation_globs())


def test_later_edits_stay() -> None:
    after = CONTAINERD.register(V2, LAUNCHER, default=False) + "\n# mine\n[metrics]\n  x = 1\n"
    assert CONTAINERD.unregister(after, V2) == V2 + "\n# mine\n[metrics]\n  x = 1\n"


def test_an_upgrade_moves_the_handler_keeps_its_options_and_completes_it() -> None:
    earlier = CONTAINERD.register(V2, LAUNCHER, default=False).replace(f", {OTHERS}", "")
    other = Path("/opt/other")
    after = CONTAINERD.register(f"{earlier}  Root = '/run/mine'\n", other, default=False)
    handler = cri_section(tomlkit.parse(after).unwrap())["runtimes"]["gpushare"]
    options = {"SystemdCgroup": True, "Root": "/run/mine", "BinaryName": str(other)}
    assert handler["options"] == options
    others = TABLES.annotation_globs()
    assert handler["pod_annotations"] == ["io.example/*", "gpushare.io/*", *others]
    assert after.count(MARK) == 1


def test_a_default_of_another_kind_is_not_copied() -> None:
    kata = V2.replace("'runc' # for now", "'kata'").replace(
        "\n# the end",
        '\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]\n'
        '  runtime_type = "io.containerd.kata.v2"\n# the end',
    )
    after = tomlkit.parse(CONTAINERD.register(kata, LAUNCHER, default=False)).unwrap()
    handler = after["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["gpushare"]
    assert handler["runtime_type"] == "io.containerd.runc.v2"
    assert handler["options"]["SystemdCgroup"] is True


def test_a_shape_that_text_cannot_be_added_to_is_refused() -> None:
    inline = 'version = 2\nplugins = {"io.containerd.grpc.v1.cri" = {containerd = {}}}\n'
    with pytest.raises(BadConfiguration, match="cannot be edited safely"):
        CONTAINERD.register(inline, LAUNCHER, default=False)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("version = 2\n[plugins\n", 2, "line 2"),
        ("version = 5\n", 0, "version = 5 is not supported"),
        ('version = 2\nplugins = "x"\n', 0, "plugins is not a table"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(text: str, line: int, what: str) -> None:
    with pytest.raises(BadConfiguration, match=what) as caught:
        CONTAINERD.register(text, LAUNCHER, default=False)
    assert caught.value.line == line


def test_annotations_of_other_systems_are_passed_on() -> None:
    after = tomlkit.parse(CONTAINERD.register("", LAUNCHER, default=False)).unwrap()
    handler = cri_section(after)["runtimes"]["gpushare"]
    asking = [
        row.name.replace("{container}", "train")
        for dialect in DIALECTS.values()
        for row in dialect.rows
        if row.where == "annotation" and row.role == "request"
    ]
    assert "gpu-fraction" in asking
    # As path.Match of Go: a star is no slash.
    for name in asking:
        assert any(
            fnmatchcase(name, glob) and name.count("/") == glob.count("/")
            for glob in handler["pod_annotations"]
        )
