"""The page of a run: what the server answers and refuses, and how the page looks in a browser."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synther_replay import RefitReport
from synther_replay.watching import RefitRecord, RunFolder
from synther_replay.watching.run_folder import HISTORY, REPORT
from synther_replay.watching.server import WatchServer


def refit(step: int, loss: float = 0.5) -> RefitRecord:
    fit = type("Fit", (), {"loss": loss, "held_out_loss": None})()
    return RefitRecord(RefitReport(fit, 4_000, step, 1.0, 0.4), number=step // 100)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run directory with two refits, beside a file that is none of its own."""
    (tmp_path / "secret.txt").write_text("secret")
    made = RunFolder(tmp_path / "hopper <b>")
    for step in (100, 200):
        made.write(refit(step))
    return made


@pytest.fixture
def server(folder: RunFolder) -> Iterator[WatchServer]:
    with WatchServer(folder.path) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: WatchServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def ask_plainly(server: WatchServer, *lines: str) -> bytes:
    """Send a request as it is; clients clean theirs up."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        return connection.makefile("rb").read()


# --- what is served


def test_the_history_is_served_and_grows(server: WatchServer, folder: RunFolder):
    status, headers, body = ask(server, "/history")
    run = json.loads(body)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert run["name"] == "hopper <b>"
    assert [entry["step"] for entry in run["refits"]] == [100, 200]
    assert run["latest"]["scalars"]["synther/fit_loss"] == 0.5
    folder.write(refit(300))
    assert len(json.loads(ask(server, "/history")[2])["refits"]) == 3


def test_what_the_browser_has_is_not_sent_again(server: WatchServer, folder: RunFolder):
    tag = ask(server, "/history")[1]["ETag"]
    assert ask(server, "/history", **{"If-None-Match": tag})[::2] == (304, b"")
    folder.write(refit(300))
    assert ask(server, "/history", **{"If-None-Match": tag})[0] == 200


def test_a_history_is_read_once_until_it_changes(
    server: WatchServer, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    with WatchServer(folder.path) as other:
        answer = other.answer("/history")
    assert answer is not None
    reads: list[Any] = []
    monkeypatch.setattr("synther_replay.watching.server.read_history", lambda path: reads.append(path) or [])
    assert ask(server, "/history", **{"If-None-Match": answer.tag})[0] == 304  # this server has not read it yet
    assert len(reads) == 0
    for _ in range(2):
        assert ask(server, "/history")[0] == 200
        assert len(reads) == 1
    folder.write(refit(300))
    assert ask(server, "/history")[0] == 200
    assert len(reads) == 2


def test_the_report_is_served_once_there_is_one(server: WatchServer, folder: RunFolder):
    assert ask(server, "/report")[0] == 404
    assert json.loads(ask(server, "/history")[2])["report"] is None
    (folder.path / REPORT).write_text("<p>good</p>")
    status, headers, body = ask(server, "/report?version=1")
    assert (status, body) == (200, b"<p>good</p>")
    assert "sandbox" in headers["Content-Security-Policy"]
    assert json.loads(ask(server, "/history")[2])["report"]


def test_a_folder_without_refits_is_served(tmp_path: Path):
    with WatchServer(tmp_path) as server:
        answer = server.answer("/history")
    assert answer is not None
    assert json.loads(answer.body)["latest"] is None


def test_lines_that_others_wrote_do_not_stop_the_page(server: WatchServer, folder: RunFolder):
    with open(folder.path / HISTORY, "a") as file:
        file.write("[" * 200_000 + "\n" + '{"step": 300, "scalars": {"synther/fit_loss": 1e999}}\n')
    status, _, body = ask(server, "/history")
    assert status == 200 and b"Infinity" not in body
    assert json.loads(body)["latest"]["scalars"] == {"synther/fit_loss": None}


def test_head_has_no_body(server: WatchServer):
    status, headers, body = ask(server, "/", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1_000


# --- what is refused


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "//etc/passwd",
        "/report/../../secret.txt",
        "/refits.jsonl",
        "/report.html",
        "/history/",
        "/.",
        "secret.txt",
        "http://127.0.0.1/../secret.txt",
        "http://[bad",
        "/\\..\\secret.txt",
        "/report%00",
    ],
)
def test_no_other_file_can_be_asked_for(server: WatchServer, path: str):
    answer = ask_plainly(server, f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{server.server_port}")
    assert b" 404 " in answer.splitlines()[0]
    assert b"secret" not in answer


def test_a_report_that_is_a_link_to_another_place_is_not_served(server: WatchServer, folder: RunFolder):
    (folder.path / REPORT).symlink_to(folder.path.parent / "secret.txt")
    assert ask(server, "/report")[0] == 404


def test_a_history_that_is_a_link_to_another_place_is_not_served(server: WatchServer, folder: RunFolder):
    path = folder.path / HISTORY
    path.rename(folder.path.parent / "secret.jsonl")
    path.symlink_to(folder.path.parent / "secret.jsonl")
    assert json.loads(ask(server, "/history")[2])["latest"] is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_history_that_is_a_pipe_is_not_waited_for(server: WatchServer, folder: RunFolder):
    path = folder.path / HISTORY
    path.unlink()
    os.mkfifo(path)
    assert json.loads(ask(server, "/history")[2])["latest"] is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil:{port}",
        "localhost.evil",
        "evil@localhost:{port}",
        "localhost:{port}.evil",
        "127.0.0.2:{port}",
        "localhost:",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/", "/history", "/report", "/nothing"])
def test_names_of_other_hosts_are_refused(server: WatchServer, host: str, path: str):
    assert ask(server, path, Host=host.format(port=server.server_port))[0] == 403


@pytest.mark.parametrize("host", ["localhost:{port}", "localhost:9999", "127.0.0.1:1", "[::1]:9999", "localhost"])
def test_this_machine_may_have_any_port(server: WatchServer, host: str):
    assert ask(server, "/", Host=host.format(port=server.server_port))[0] == 200


def test_two_names_are_refused(server: WatchServer):
    good = f"Host: 127.0.0.1:{server.server_port}"
    assert b" 403 " in ask_plainly(server, "GET /history HTTP/1.1", good, "Host: evil.example").splitlines()[0]
    assert b" 403 " in ask_plainly(server, "GET /history HTTP/1.0").splitlines()[0]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(server: WatchServer, folder: RunFolder, method: str):
    before = (folder.path / "refits.jsonl").read_bytes()
    assert ask(server, "/history", method)[0] in (405, 501)
    assert (folder.path / "refits.jsonl").read_bytes() == before


def test_only_this_machine_can_connect(server: WatchServer):
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_refused_with_the_way_out(server: WatchServer):
    with pytest.raises(OSError, match=f"{server.server_port} is in use.*0"):
        WatchServer(server.folder, server.server_port)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="folder"):
        WatchServer(tmp_path / "nothing")


# --- the command


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(folder: RunFolder):
    pytest.importorskip("typer")
    command = [sys.executable, "-c", "from synther_replay.cli import main; main()", "watch", str(folder.path)]
    process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{url}history", timeout=10) as answer:
            assert len(json.load(answer)["refits"]) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()


@pytest.mark.slow
def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path):
    pytest.importorskip("typer")
    command = [sys.executable, "-c", "from synther_replay.cli import main; main()", "watch", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "nothing" in done.stderr


# --- in a browser


@pytest.mark.slow
@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_page_follows_the_run(browser: Any, server: WatchServer, folder: RunFolder, width: int, colours: str):
    (folder.path / REPORT).write_text("<!doctype html><p>first report</p>")
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=colours)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(server.url) else problems.append(request.url))
    page.goto(server.url)
    page.get_by_text("refit 2 | step 200").wait_for()
    assert page.locator("h1").inner_text() == "hopper <b>"
    assert page.locator("#refits tbody tr").count() == 2
    assert page.locator("#charts svg").count() == 2  # losses and seconds
    page.frame_locator("iframe").get_by_text("first report").wait_for()
    folder.write(refit(300, loss=0.25))
    page.get_by_text("refit 3 | step 300").wait_for()
    assert page.locator("#refits tbody tr").first.inner_text().split()[0] == "300"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not problems
    if pictures := os.environ.get("SYNTHER_PICTURES"):
        page.screenshot(path=Path(pictures) / f"watch_{width}_{colours}.png", full_page=True)
    page.close()


@pytest.mark.slow
def test_the_page_says_when_the_server_is_gone(browser: Any, folder: RunFolder):
    page = browser.new_page()
    with WatchServer(folder.path) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        page.goto(server.url)
        page.get_by_text("refit 2 | step 200").wait_for()
        server.shutdown()
        thread.join()
    page.get_by_text("no answer").wait_for()
    page.close()
