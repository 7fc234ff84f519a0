"""Files of data sets: where they are sought, and downloads from a small server that may fail in every way."""

import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from synther_replay.benchmarks.data import download as dataset_files
from synther_replay.benchmarks.data.download import ADDRESSES, RECIPES, fetch, file_name, locate, regenerated_folder

WALKER = "walker2d-medium-replay-v2"
CONTENT = b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 400


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home without anything in it, and no way out of this machine."""
    for variable in ("D4RL_DATASET_DIR", "SYNTHER_REPLAY_DATASETS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(dataset_files, "HOST", f"http://127.0.0.1:{closed.getsockname()[1]}")
    return tmp_path / "home"


class Server(ThreadingHTTPServer):
    """Has one file at every address; its attributes are what goes wrong."""

    content, asked = CONTENT, ()
    status = 200  # of all answers
    cut = None  # bytes of an answer after which the line drops
    ranges = True  # whether it can continue
    shift = 0  # by which it misses the byte asked for
    length = True  # whether it says how long an answer is


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked = (*server.asked, (self.path, wanted))
        start, status, total = 0, server.status, len(server.content)
        if wanted and server.ranges and status == 200:
            start, status = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) + server.shift, 206
            status = 206 if start < total else 416
        body = server.content[start:] if status < 400 else b""
        self.send_response(status)
        if status in (206, 416):
            self.send_header("Content-Range", f"bytes {f'{start}-{total - 1}' if status == 206 else '*'}/{total}")
        if server.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cut])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(home, monkeypatch):
    server = Server(("127.0.0.1", 0), Handler)
    monkeypatch.setattr(dataset_files, "HOST", f"http://127.0.0.1:{server.server_port}/sets")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (WALKER, "gym_mujoco_v2/walker2d_medium_replay-v2.hdf5"),
        ("halfcheetah-random-v1", "gym_mujoco_v1/halfcheetah_random-v1.hdf5"),
        ("maze2d-umaze-v1", "maze2d/maze2d-umaze-sparse-v1.hdf5"),
        (
            "antmaze-umaze-v2",
            "ant_maze_v2/Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5",
        ),
        (
            "antmaze-large-play-v2",
            "ant_maze_v2/Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5",
        ),
        ("kitchen-complete-v0", "kitchen/mini_kitchen_microwave_kettle_light_slider-v0.hdf5"),
    ],
)
def test_addresses_are_those_of_d4rl(name, address):
    assert ADDRESSES[name] == address
    assert file_name(name) == address.split("/")[1]


def test_no_two_sets_share_a_file():
    assert len({file_name(name) for name in ADDRESSES}) == len(ADDRESSES)


def test_recipes():
    assert len(RECIPES) == 18
    assert {"hopper-medium-expert", "walker2d-random", "maze2d-large"} <= set(RECIPES)


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "variable", "usual"),
    [(WALKER, "D4RL_DATASET_DIR", ".d4rl"), ("maze2d-umaze-regen", "SYNTHER_REPLAY_DATASETS", ".synther_replay")],
)
def test_folders_are_searched_one_after_the_other(tmp_path, home, monkeypatch, name, variable, usual):
    monkeypatch.setenv(variable, str(tmp_path / "named"))
    last = touch(home / usual / "datasets" / f"{name}.hdf5")
    assert locate(name, tmp_path / "given") == last
    middle = touch(tmp_path / "named" / file_name(name))
    assert locate(name, tmp_path / "given") == middle
    first = touch(tmp_path / "given" / file_name(name))
    assert locate(name, tmp_path / "given") == first
    assert locate(name) == middle


def test_d4rls_own_file_name_comes_first(tmp_path):
    touch(tmp_path / f"{WALKER}.hdf5")
    own = touch(tmp_path / "walker2d_medium_replay-v2.hdf5")
    assert locate(WALKER, tmp_path) == own


def test_sets_that_d4rl_does_not_list_are_found_by_their_name(tmp_path):
    path = touch(tmp_path / "door-human-v1.hdf5")
    assert locate("door-human-v1", tmp_path) == path


def test_folder_of_regenerated_sets(home, monkeypatch):
    assert regenerated_folder() == home / ".synther_replay" / "datasets"
    monkeypatch.setenv("SYNTHER_REPLAY_DATASETS", "~/sets")
    assert regenerated_folder() == home / "sets"


# --- not found --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (WALKER, r"make_datasets\.py walker2d-medium-replay` to generate walker2d-medium-replay-regen"),
        ("maze2d-large-v1", r"make_datasets\.py maze2d-large` to generate maze2d-large-regen"),
        ("hopper-medium-regen", r"make_datasets\.py hopper-medium` to generate hopper-medium-regen"),
        ("hopper-medium", r"make_datasets\.py hopper-medium` to generate hopper-medium-regen"),
        ("antmaze-umaze-v2", r"make_datasets\.py antmaze-umaze` to generate antmaze-umaze-regen"),
        ("antmaze-umaze-diverse-v2", "cannot be regenerated$"),
        ("hopper-expert-v2", "cannot be regenerated$"),
        ("hoper-expert-v2", r"unknown data set; did you mean hopper-expert-v2"),
        ("ant-medium-regen", r"unknown data set; did you mean .*-medium-regen"),
        ("what", "; unknown data set$"),
    ],
)
@pytest.mark.parametrize("download", [False, True])
def test_the_error_lists_folders_and_a_hint(tmp_path, home, name, message, download):
    with pytest.raises(FileNotFoundError, match=message) as caught:
        locate(name, tmp_path / "given", download=download)
    said = str(caught.value)
    assert said.startswith(f"{name}: no {file_name(name)}")
    assert f" in {tmp_path / 'given'} or {home}" in said
    assert "\n" not in said
    assert ("download failed" in said) == (download and name in ADDRESSES)
    assert not list(tmp_path.iterdir())


def test_without_permission_the_server_is_not_asked(tmp_path, server):
    with pytest.raises(FileNotFoundError):
        locate(WALKER, tmp_path, download=False)
    assert server.asked == ()


# --- downloads --------------------------------------------------------------------------------------------------------


def test_a_download_lies_where_d4rl_would_put_it(home, server):
    path = locate(WALKER)
    assert path == home / ".d4rl" / "datasets" / "walker2d_medium_replay-v2.hdf5"
    assert path.read_bytes() == CONTENT
    assert server.asked == (("/sets/gym_mujoco_v2/walker2d_medium_replay-v2.hdf5", None),)
    assert list(path.parent.iterdir()) == [path]
    assert locate(WALKER) == path
    assert len(server.asked) == 1


def test_a_broken_download_is_resumed(tmp_path, server):
    server.cut = 1000
    with pytest.raises(FileNotFoundError, match=rf"download failed .*1000 of {len(CONTENT)} bytes") as caught:
        locate(WALKER, tmp_path)
    part = tmp_path / "walker2d_medium_replay-v2.hdf5.part"
    assert "make_datasets.py" in str(caught.value)
    assert list(tmp_path.iterdir()) == [part]
    server.cut = 2000
    with pytest.raises(FileNotFoundError, match=f"3000 of {len(CONTENT)} bytes"):
        locate(WALKER, tmp_path)
    server.cut = None
    assert locate(WALKER, tmp_path).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=1000-", "bytes=3000-"]
    assert not part.exists()


def test_a_server_that_cannot_continue_sends_all(tmp_path, server):
    (tmp_path / "set.part").write_bytes(b"something else")
    server.ranges = False
    assert fetch(dataset_files.HOST, tmp_path / "set").read_bytes() == CONTENT


def test_a_part_that_is_the_whole_is_taken(tmp_path, server):
    (tmp_path / "set.part").write_bytes(CONTENT)
    assert fetch(dataset_files.HOST, tmp_path / "set").read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_a_part_longer_than_the_file_is_thrown_away(tmp_path, server):
    (tmp_path / "set.part").write_bytes(CONTENT + b"more")
    assert fetch(dataset_files.HOST, tmp_path / "set").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [f"bytes={len(CONTENT) + 4}-", None]


def test_an_answer_that_continues_elsewhere_is_refused(tmp_path, server):
    (tmp_path / "set.part").write_bytes(CONTENT[:100])
    server.shift = 5
    with pytest.raises(OSError, match="expected a range from byte 100"):
        fetch(dataset_files.HOST, tmp_path / "set")
    assert (tmp_path / "set.part").read_bytes() == CONTENT[:100]
    assert not (tmp_path / "set").exists()


def test_an_answer_without_a_length_is_refused(tmp_path, server):
    server.length = False
    with pytest.raises(OSError, match="no Content-Length"):
        fetch(dataset_files.HOST, tmp_path / "set")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("status", [404, 503])
def test_an_error_of_the_server_is_reported(tmp_path, server, status):
    server.status = status
    with pytest.raises(FileNotFoundError, match=rf"download failed .*HTTP Error {status}"):
        locate(WALKER, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_page_instead_of_the_file_is_refused(tmp_path, server):
    server.content = b"<html>please log in</html>"
    with pytest.raises(OSError, match="not HDF5"):
        fetch(dataset_files.HOST, tmp_path / "set")
    assert not list(tmp_path.iterdir())


def test_no_server_at_all(tmp_path):
    with pytest.raises(OSError, match="refused"):
        fetch(dataset_files.HOST, tmp_path / "new" / "set")
    assert not list(tmp_path.iterdir())


def test_a_server_that_speaks_something_else(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            line, _ = listener.accept()
            with line:
                line.recv(4096)
                line.sendall(b"hello\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="BadStatusLine"):
            fetch(f"http://127.0.0.1:{listener.getsockname()[1]}", tmp_path / "set")
        thread.join()


def test_a_full_disk_leaves_what_had_room(tmp_path, server, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(dataset_files, "_BLOCK", 1024)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # what no file may outgrow
    try:
        with pytest.raises(FileNotFoundError, match=r"download failed .*too large"):
            locate(WALKER, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (part,) = tmp_path.iterdir()
    assert CONTENT.startswith(part.read_bytes())
    assert part.stat().st_size > 10_000
    assert locate(WALKER, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1][1] == f"bytes={20_000}-"


def test_progress_counts_what_was_there_before(tmp_path, server, monkeypatch):
    seen = {}

    class Bar:
        def __init__(self, **options):
            seen.update(options, steps=[])

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def update(self, count):
            seen["steps"].append(count)

    monkeypatch.setattr(dataset_files, "tqdm", Bar)
    monkeypatch.setattr(dataset_files, "_BLOCK", 10_000)
    (tmp_path / "set.part").write_bytes(CONTENT[:5000])
    fetch(dataset_files.HOST, tmp_path / "set")
    assert (seen["initial"], seen["total"], seen["desc"]) == (5000, len(CONTENT), "set")
    assert sum(seen["steps"]) == len(CONTENT) - 5000
    assert len(seen["steps"]) == 10
    assert seen["disable"] is None  # silent where there is no terminal
