# SPDX-License-Identifier: Apache-2.0
"""The dashboard's server: access, security headers, and the rows and figures of gpushared."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import ssl
import stat
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from gpushare.client import Client
from gpushare.dashboard import DEFAULT
from gpushare.errors import UserError
from gpushare.listen_address import Address, parse_address
from tests.stack.certificate import write_certificate
from tests.system.dashboard.conftest import GIB, KEY
from tests.system.dashboard.served import ServedDashboard, options_of, served
from tests.unit.cli.fake_daemon import AnsweringDaemon

pytestmark = pytest.mark.gate

API = ("/api/now", "/api/subjects?since=0&until=1", "/api/series", "/api/why", "/api/events")


@pytest.mark.parametrize("path", API)
@pytest.mark.parametrize("shown", [None, "", "Bearer", "Bearer x", "Basic x", "Bearer é"])
def test_without_the_token_of_the_printed_address_there_are_no_names(
    site: ServedDashboard, path: str, shown: str | None
) -> None:
    headers = {} if shown is None else {"Authorization": shown.encode().decode("latin-1")}
    status, _, body = site.ask(path, headers)
    assert status == 401
    assert "train" not in body.decode()


def test_the_token_is_new_with_each_start_and_in_no_cookie(
    site: ServedDashboard, daemon: AnsweringDaemon, history: Path
) -> None:
    with served(options_of(daemon.path, history)) as other:
        assert len(site.token) >= 32
        assert site.token != other.token
        assert other.ask("/api/now", {"Authorization": f"Bearer {site.token}"})[0] == 401
        _, headers, _ = other.ask("/api/now")
        assert headers["Set-Cookie"] is None
        # Nor in the address, which is written into logs and histories.
        assert other.ask(f"/api/now?token={other.token}", {})[0] == 401


def test_a_page_keeps_a_key_that_no_other_process_accepts(
    daemon: AnsweringDaemon, history: Path, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.touch(0o640)
    file.write_text("a" * 32)
    options = options_of(daemon.path, history, token_file=file)

    def shown(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    with served(options) as site, served(options) as other:
        assert "a" * 32 not in site.address
        status, headers, body = site.ask("/api/key", shown("a" * 32))
        key = json.loads(body)["key"]
        assert (status, len(key), headers["Cache-Control"]) == (200, 64, "no-store")
        assert site.ask("/api/now", shown(key))[0] == 200
        assert other.ask("/api/now", shown(key))[0] == 401
        for wrong in ("", "b" * 32, key):  # a key makes no keys
            assert site.ask("/api/key", shown(wrong))[0] != 200
        file.write_text("b" * 32)
        assert site.ask("/api/now", shown(key))[0] == 401
        assert site.ask("/api/now", shown("b" * 32))[0] == 200


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:9465", True),
        ("LOCALHOST:1", True),
        ("[::1]:9465", True),
        ("[::1]", True),
        ("10.0.0.7:9465", True),
        ("gpu.example.org:9465", True),
        (socket.gethostname(), True),
        ("evil.example:9465", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("localhost.evil.example", False),
        ("x@127.0.0.1", False),
        ("127.0.0.1:9465:1", False),
    ],
)
def test_a_name_that_another_site_made_point_here_gets_nothing(
    daemon: AnsweringDaemon, history: Path, host: str, known: bool
) -> None:
    options = options_of(daemon.path, history, host_names=("gpu.example.org",))
    with served(options) as site:
        headers = {"Host": host, "Authorization": f"Bearer {site.token}"}
        for path in ("/", "/api/now"):
            assert site.ask(path, headers)[0] == (200 if known else 421)


def test_every_answer_binds_the_browser(site: ServedDashboard) -> None:
    for path, headers in (("/", None), ("/main.js", None), ("/api/now", {}), ("/none", None)):
        found = site.ask(path, headers)[1]
        policy = found["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert found["X-Content-Type-Options"] == "nosniff"
        assert found["Access-Control-Allow-Origin"] is None
        assert found["Server"] is None
    assert site.ask("/api/now")[1]["Cache-Control"] == "no-store"


@pytest.mark.parametrize("mode", [0o666, 0o660])
def test_a_unix_socket_is_open_to_whom_the_control_socket_is(
    daemon: AnsweringDaemon, history: Path, tmp_path: Path, mode: int
) -> None:
    daemon.path.chmod(mode)
    path = tmp_path / "dashboard.sock"
    with served(options_of(daemon.path, history, listen=Address(path=path))) as site:
        assert site.address == f"unix:{path}"
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == mode
        assert found.st_gid == daemon.path.stat().st_gid
        assert site.ask("/api/now", {})[0] == 200
    assert not path.exists()


def test_without_a_control_socket_a_unix_socket_is_closed_to_others(
    history: Path, tmp_path: Path
) -> None:
    path = tmp_path / "dashboard.sock"
    options = options_of(tmp_path / "none.sock", history, listen=Address(path=path))
    with served(options):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def refusal_of(options: Any) -> str:
    with pytest.raises(UserError) as error:
        options.check()
    return str(error.value)


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "10.0.0.7:1"])
def test_other_machines_need_a_token_file_or_a_certificate(text: str, tmp_path: Path) -> None:
    listen, file = parse_address(text, DEFAULT), tmp_path / "file"
    assert "--token-file" in refusal_of(options_of(file, file, listen=listen))
    assert "--token-file" in refusal_of(
        options_of(file, file, listen=listen, certificate=file, key=file)
    )
    for alone in ({"certificate": file}, {"client_ca": file}):
        assert "--tls-certificate and --tls-key" in refusal_of(options_of(file, file, **alone))
    options_of(file, file, listen=listen, token_file=file).check()
    options_of(file, file, listen=listen, certificate=file, key=file, client_ca=file).check()


def test_mutual_tls_takes_the_place_of_the_token(
    daemon: AnsweringDaemon, history: Path, tmp_path: Path
) -> None:
    file = write_certificate(tmp_path)
    options = options_of(daemon.path, history, certificate=file, key=file, client_ca=file)
    with served(options) as site:
        assert site.address == f"https://127.0.0.1:{site.port}/"
        context = ssl.create_default_context(cafile=str(file))

        def ask() -> Any:
            link = http.client.HTTPSConnection("127.0.0.1", site.port, timeout=30, context=context)
            with contextlib.closing(link):
                link.request("GET", "/api/now")
                return json.loads(link.getresponse().read())

        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask()
        context.load_cert_chain(file)
        assert len(ask()["tenants"]) == 2
        with contextlib.ExitStack() as opened:  # of those that never begin, none keeps it out
            for _ in range(300):
                opened.enter_context(socket.create_connection(("127.0.0.1", site.port), 30))
            assert len(ask()["tenants"]) == 2


def query(what: str, /, **parameters: Any) -> str:
    return f"/api/{what}?{urllib.parse.urlencode(parameters, doseq=True)}"


def test_the_rows_are_those_of_gpushared(site: ServedDashboard, daemon: AnsweringDaemon) -> None:
    client, now = Client(daemon.path), site.json("/api/now")
    assert [without_sharing(row) for row in now["cards"]] == client.cards()
    assert [without_sharing(row) for row in now["tenants"]] == client.tenants()
    assert now["node"]["version"] == client.status()["version"]
    assert now["error"] == ""
    assert [row["sharing"] for row in now["tenants"]] == ["share", "share"]


def without_sharing(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "sharing"}


def test_without_gpushared_the_pages_say_so_and_show_the_history(
    tmp_path: Path, history: Path, end: float
) -> None:
    with served(options_of(tmp_path / "none.sock", history)) as site:
        now = site.json("/api/now")
        assert "gpushared is not running" in now["error"]
        assert now["cards"] == now["tenants"] == []
        found = site.json(query("subjects", since=end - 3600, until=end))
        assert [row["name"] for row in found["containers"]] == ["train"]


def test_a_graph_has_the_figures_of_the_history_with_its_gap(
    site: ServedDashboard, end: float
) -> None:
    asked = {"subject": f"container:{KEY}", "since": end - 3600, "until": end}
    found = site.json(query("series", figure=["used_bytes", "throttled_seconds"], **asked))
    memory, throttled = found["lines"]
    assert (memory["unit"], memory["name"]) == ("bytes", "train")
    known = [value for value in memory["values"] if value is not None]
    assert known[-1] == 359 * GIB // 100
    [gap] = [
        at for at, value in zip(found["times"], memory["values"], strict=True) if value is None
    ]
    assert gap == end - 1200  # the last sample before it
    assert sum(value or 0 for value in throttled["values"]) == pytest.approx(359)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"since": "x", "until": 1}, "since must be a time"),
        ({"since": 2, "until": 1}, "since must be before until"),
        ({"since": "nan", "until": 1}, "since must be a time"),
        ({"since": 0, "until": 10, "subject": "card:x", "figure": "cores"}, "no figure cores"),
        ({"since": 0, "until": 10, "subject": "/etc/passwd", "figure": "power"}, "no figure"),
        ({"since": 0, "until": 10}, "1 to 64 lines"),
        ({"since": 0, "until": 10, "subject": ["card:x"] * 65, "figure": "power"}, "64 lines"),
    ],
)
def test_a_wrong_request_is_refused(site: ServedDashboard, parameters: Any, text: str) -> None:
    status, _, body = site.ask(query("series", **parameters))
    assert status == 400
    assert text in json.loads(body)["error"]


@pytest.mark.parametrize("what", ["subjects", "series", "series.csv", "events", "report"])
@pytest.mark.parametrize("until", [9e18, 1e300, 93 * 86400])
def test_no_range_is_longer_than_any_history(
    site: ServedDashboard, what: str, until: float
) -> None:
    status, _, body = site.ask(query(what, name="usage", since=0, until=until))
    assert status == 400
    assert json.loads(body)["error"].endswith("and the range at most 92 days")


def test_an_answer_is_compressed_for_a_client_that_reads_that(site: ServedDashboard) -> None:
    headers = {"Authorization": f"Bearer {site.token}", "Accept-Encoding": "gzip, deflate"}
    for path in ("/vendor/uPlot.js", query("report", name="usage", since=0, until=1)):
        _, found, body = site.ask(path, headers)
        assert (found["Content-Encoding"], found["Vary"]) == ("gzip", "Accept-Encoding")
        _, plain_headers, plain = site.ask(path)
        assert plain_headers["Content-Encoding"] is None
        assert gzip.decompress(body) == plain


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(site: ServedDashboard, method: str) -> None:
    for path in ("/api/now", "/", "/main.js"):
        assert site.ask(path, method=method)[0] == 405


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/..%2fserver.py", "/%2e%2e/access.py", "/vendor/", "/api/none", "/now"],
)
def test_only_the_files_of_the_pages_are_served(site: ServedDashboard, path: str) -> None:
    assert site.ask(path)[0] == 404
