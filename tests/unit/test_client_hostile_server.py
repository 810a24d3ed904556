"""``dtrain`` against a hostile server: each command with each answer changed, on a real terminal.

Whatever the server answers, a command prints its result or one message. It prints nothing that a terminal obeys, writes
nothing outside of its folder, and sends no file that the user has not named.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import re
import socket
import sys
import tarfile
import termios
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from airflow_provider_dtrain.client import answers, reconnection
from airflow_provider_dtrain.client import session as sessions
from airflow_provider_dtrain.client.client import Client
from airflow_provider_dtrain.client.definition import FUNCTIONS
from airflow_provider_dtrain.client.main import main, parser
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.resources.checkpoints import TrialCheckpoints
from airflow_provider_dtrain.resources.media import TrialMedia
from tests.support.budgets import budget
from tests.support.hostile_server import (
    CONTROLS,
    ROUTES,
    HostileServer,
    Route,
    archive,
    changed,
    hostile_server,
    route_of,
)

#: Commands of each function. Control requests differ only in their words.
COMMANDS = (
    "trials list", "trials list --experiment 1", "trials list -o yaml", "trials list -o json", "trials list -o plain",
    "trials describe 1", "trials describe 1 -o yaml", "trials metrics 1", "trials metrics 1 --csv", "trials timeline 1",
    "trials checkpoints 1 --removed", "trials logs 1", "trials logs 1 --all", "trials logs 1 -f", "trials stack 1",
    "trials exec 1 -- ls", "trials kill 1 -y", "trials pause 1 -y", "trials activate 1", "trials stop 1 -y",
    "trials trace 1", "pools usage", "pools usage --csv", "hosts day a",
    "trials set 1 --priority 7 --tag a", "trials outputs 1", "trials download 1", "trials download-checkpoint 1",
    "trials media 1", "trials media 1 --to trial-1",
    "trials watch 1", "trials profile 1", "trials diff 1 2", "trials reproduce 1", "trials reproduce 1 -f -o json",
    "experiments list", "experiments diff 1 2", "experiments describe 1", "experiments watch 1",
    "experiments fork 1",
    "experiments create c.yaml", "experiments create c.yaml --follow", "experiments pause 1 -y",
    "experiments activate 1", "experiments stop 1 -y", "experiments kill 1 -y", "experiments set 1 --weight 2 --name a",
    "queue list", "hosts list", "slots list", "hosts probe", "doctor", "hosts drain a", "hosts enable a",
    "hosts disable a -y",
    "experiments archive 1 2", "experiments unarchive 1", "experiments move 1 --project vision",
    "experiments delete 1 -y",
    "experiments list --mine --owner ann --project vision --archived all", "trials results 1", "hosts describe a",
    "hosts check", "templates list", "templates describe a", "templates versions a", "templates set a c.yaml",
    "templates remove a -y", "explain c.yaml", "explain 1", "configs validate c.yaml", "infer c.yaml",
)  # fmt: skip
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
#: Sequences of views, and what a log may keep.
MOVES = re.compile(r"\x1b\[(?:\d+A\r|2K|J)")
COLORS = re.compile(r"\x1b\[[0-9;]*m|\r")


def obeyed(text: str) -> str:
    """Return the characters of a text that a terminal obeys, or that hide text or turn it around."""
    return "".join(
        one
        for one in text
        if one not in "\n\t"
        and (
            unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp")
            or unicodedata.bidirectional(one) in _DIRECTIONS
            or "\U000e0000" <= one <= "\U000e0fff"
        )
    )


class Laptop:
    """A machine of a user: a folder with a configuration, and a terminal."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.work, self.monkeypatch = home, home / "work", monkeypatch
        self.stdin = io.StringIO()
        (self.work / "code").mkdir(parents=True)
        (self.work / "c.yaml").write_text("name: mine\nmodel_dir: code\nentrypoint: python train.py\n")
        (self.work / "code" / "train.py").write_text("print(1)\n")
        (home / ".ssh").mkdir()
        (home / ".ssh" / "id_rsa").write_text("SECRET")

    def run(self, *words: str) -> tuple[int, str]:
        """Run a command, and return its exit code and what the terminal got."""
        terminal, stream = os.openpty()
        attributes = termios.tcgetattr(stream)
        # No carriage returns of the terminal itself.
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(stream, termios.TCSANOW, attributes)
        termios.tcsetwinsize(stream, (60, 200))
        received = io.BytesIO()

        def read() -> None:
            # A terminal without writers answers with an error.
            with contextlib.suppress(OSError):
                while data := os.read(terminal, 1 << 16):
                    received.write(data)

        reader = threading.Thread(target=read)
        reader.start()
        with open(stream, "w", encoding="utf-8", newline="\n") as out, self.monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", out)
            patch.setattr(sys, "stdin", self.stdin)
            code = main(words)
        reader.join()
        os.close(terminal)
        return code, received.getvalue().decode()

    def files(self) -> dict[str, str]:
        """Return the files of this machine with what they are."""
        return {
            str(path.relative_to(self.home)): f"link to {os.readlink(path)}" if path.is_symlink() else "file"
            for path in self.home.rglob("*")
            if path.is_symlink() or path.is_file()
        }

    def forget(self) -> None:
        """Remove what commands have written."""
        for path in sorted(self.work.rglob("trial-*"), reverse=True):
            for one in sorted(path.rglob("*"), reverse=True):
                one.unlink() if one.is_file() else one.rmdir()
            path.rmdir()


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    found = Laptop(tmp_path / "home", monkeypatch)
    monkeypatch.chdir(found.work)
    monkeypatch.setenv("HOME", str(found.home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(found.home / ".config"))
    for name in ("DTRAIN_CA", "NO_PROXY", "HTTP_PROXY", "http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sessions, "PAUSES_S", (0.0,))
    monkeypatch.setattr(reconnection, "FIRST_S", 0.0)
    return found


@pytest.fixture
def server(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileServer]:
    with hostile_server() as found:
        monkeypatch.setenv("DTRAIN_SERVER", found.url)
        monkeypatch.setenv("DTRAIN_TOKEN", "given")
        yield found


def check(laptop: Laptop, words: str, shown: str, before: dict[str, str]) -> None:
    """Check that a command printed no control character and wrote nothing elsewhere."""
    text = MOVES.sub("", shown) if "watch" in words else shown
    text = COLORS.sub("", text) if "logs" in words or "exec" in words else text
    assert obeyed(text) == "", shown
    assert "Traceback" not in shown
    new = {path: what for path, what in laptop.files().items() if path not in before}
    assert all(re.match(r"work/trial-1(-step-\d+)?/", path) and what == "file" for path, what in new.items()), new


def test_every_function_of_the_program_has_a_command_here() -> None:
    targets = {parser().parse_args(words.split()).target for words in COMMANDS}
    assert set(FUNCTIONS) - targets == {"login.login", "login.logout"}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_survives_every_answer(words: str, laptop: Laptop, server: HostileServer) -> None:
    before = laptop.files()
    code, shown = laptop.run(*words.split())
    assert code == 0, shown
    check(laptop, words, shown, before)
    routes = list(dict.fromkeys(server.asked))
    draw = random.Random(words)
    for _ in range(budget(2)):
        laptop.forget()
        server.begin()
        route = draw.choice(routes)
        server.replaced[route] = changed(route.answer(), draw).encode()
        code, shown = laptop.run(*words.split())
        check(laptop, words, shown, before)
        assert code == 0 or len(shown) < 3000 or code == 3
        if not is_as_declared(route, server.replaced[route]):
            assert code != 0, (route, server.replaced[route][:500], shown)
        assert all(b"SECRET" not in gzip.decompress(one) for one in server.uploads)


def is_as_declared(route: Route, body: bytes) -> bool:
    """Return whether an answer has the form of its route, as pydantic sees it."""
    try:
        TypeAdapter(route.kind).validate_json(body, strict=True)
    except ValidationError:
        return False
    return True


#: Paths that lead elsewhere, or that no file system takes.
ELSEWHERE = (
    "../evil", "/tmp/dtrain-evil", "a/../../evil", "a/..", "..", ".", "", "a//b", "a/", "a\0b", "a\nb", CONTROLS,
    "x" * 300, "/".join(["d"] * 3000), "linked/evil", "\u202egpj.exe", "a\\..\\b/../../c",
)  # fmt: skip


@pytest.mark.parametrize("path", ELSEWHERE)
def test_an_output_is_written_below_its_folder_or_not_at_all(path: str, laptop: Laptop, server: HostileServer) -> None:
    (laptop.work / "trial-1").mkdir()
    (laptop.work / "trial-1" / "linked").symlink_to(laptop.home)
    before = laptop.files()
    route = route_of(answers.ScriptOutputs)
    answer = route.answer()
    answer["rows"][1]["path"] = path
    server.replaced[route] = json.dumps(answer).encode()
    code, shown = laptop.run("trials", "download", "1")
    assert (code, laptop.files()) == (1, before), shown
    assert "cannot be written below trial-1" in shown
    check(laptop, "trials download", shown, before)
    assert "/trials/1/outputs/download" not in server.paths


@pytest.mark.parametrize("path", [*ELSEWHERE, "work/media/../../evil/1-attempt1-text.txt", "work/media/a/evil.sh"])
def test_media_are_written_below_their_folder_or_not_at_all(path: str, laptop: Laptop, server: HostileServer) -> None:
    before = laptop.files()
    route = route_of(TrialMedia)
    answer = route.answer()
    answer["series"][0]["items"][1]["path"] = path
    server.replaced[route] = json.dumps(answer).encode()
    code, shown = laptop.run("trials", "media", "1", "--to", "media")
    assert (code, laptop.files()) == (1, before), shown
    assert "that cannot be written" in shown
    assert "/trials/1/outputs/download" not in server.paths


@pytest.mark.parametrize("paths", [("d", "d/e"), ("d/e", "d"), ("a", "a")], ids=["file-first", "folder-first", "twice"])
def test_outputs_that_exclude_each_other_are_one_message(
    paths: tuple[str, str], laptop: Laptop, server: HostileServer
) -> None:
    route = route_of(answers.ScriptOutputs)
    answer = route.answer()
    for row, path in zip(answer["rows"], paths, strict=True):
        row["path"] = path
    server.replaced[route] = json.dumps(answer).encode()
    code, shown = laptop.run("trials", "download", "1")
    assert code == (0 if paths[0] == paths[1] else 1)
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "cut"),
    [
        ("trials download 1", "/trials/1/outputs/download"),
        ("trials media 1 --to trial-1", "/trials/1/outputs/download"),
        ("trials download-checkpoint 1", "/trials/1/checkpoints/1/download"),
    ],
)
def test_a_download_that_was_cut_is_not_there(words: str, cut: str, laptop: Laptop, server: HostileServer) -> None:
    before = laptop.files()
    server.file = server.checkpoint = archive(("c/weights", bytes(100_000)))
    server.cut = cut
    code, shown = laptop.run(*words.split())
    assert (code, laptop.files()) == (1, before)
    assert "connection was cut" in shown


ARCHIVES = {
    "link": archive(("x", ".")),
    "link-out": archive(("c/l", "/etc"), ("c/l/evil", b"x")),
    "inner-link": archive(("c/a", b"1"), ("c/b", "a")),
    "up": archive(("c/../../evil", b"x")),
    "root": archive(("/evil", b"x"), ("c/a", b"x")),
    "two": archive(("c/a", b"x"), ("d/a", b"x")),
    "file": archive(("weights", b"x")),
    "none": archive(),
    "cut": archive(("c/weights", bytes(100_000)))[:5000],
    "text": b"no archive",
    "empty": b"",
    "deep": archive(("c/" + "d/" * 900 + "x", b"1")),
}


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("words", ["trials download-checkpoint 1 --to t", "trials download 1 --to t"])
def test_an_archive_is_a_folder_of_plain_files(
    name: str, words: str, laptop: Laptop, server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = laptop.files()
    server.checkpoint = server.content = ARCHIVES[name]
    route = route_of(answers.ScriptOutputs)
    server.replaced[route] = b'{"rows": [], "truncated": false}'
    code, shown = laptop.run(*words.split())
    assert "Traceback" not in shown
    if code == 0:
        # Archives of outputs have no folder of their own.
        assert name in {"two", "file", "none"}
        assert words.startswith("trials download 1")
    else:
        assert laptop.files() == before
        assert not (laptop.work / "t").exists()


def test_an_archive_with_a_huge_header_or_many_files_is_refused_early(
    laptop: Laptop, server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_dtrain.client import downloads

    monkeypatch.setattr(downloads, "FILES_MOST", 3)
    server.checkpoint = archive(*((f"c/{number}", b"") for number in range(4)))
    code, shown = laptop.run("trials", "download-checkpoint", "1")
    assert (code, "more than 3 files" in shown) == (1, True)
    pax = tarfile.TarInfo("c/weights")
    pax.pax_headers = {"comment": "x" * 100_000}
    server.checkpoint = pax.tobuf(tarfile.PAX_FORMAT) + bytes(1024)
    code, shown = laptop.run("trials", "download-checkpoint", "1")
    assert (code, "extended header of" in shown) == (1, True)


@pytest.mark.parametrize("step", ["../../../evil", {"a": 1}, None, CONTROLS, -1, 2**60, True, 1.0])
def test_a_step_is_a_number_before_it_is_part_of_a_path(step: object, laptop: Laptop, server: HostileServer) -> None:
    before = laptop.files()
    route = route_of(TrialCheckpoints)
    answer = route.answer()
    answer["rows"][1]["step"] = step
    server.replaced[route] = json.dumps(answer).encode()
    code, shown = laptop.run("trials", "download-checkpoint", "1")
    assert (code, laptop.files()) == (1, before)
    assert "step: " in shown


def names(content: bytes) -> list[str]:
    """Return the names in an archive of code."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return tar.getnames()


@pytest.mark.parametrize("name", [".ssh", "../.ssh", "{home}/.ssh", "code/../../.ssh", "linked", "~/.ssh", ".", ""])
@pytest.mark.parametrize("own", ["", "model_dir: code\n", "model_dir: null\n"], ids=["none", "own", "null"])
def test_a_server_does_not_choose_the_code_that_is_sent(
    name: str, own: str, laptop: Laptop, server: HostileServer
) -> None:
    (laptop.work / "c.yaml").write_text(f"{own}entrypoint: python train.py\n")
    (laptop.work / "linked").symlink_to(laptop.home / ".ssh")
    (laptop.work / ".dtrainignore").write_text("linked\n")
    route = route_of(answers.Validation)
    lure = name.format(home=laptop.home)
    lines = [{"path": "model_dir", "text": f"model_dir: '{lure}'"}]
    server.replaced[route] = json.dumps({"problems": [], "effective": lines, "summary": None}).encode()
    code, shown = laptop.run("experiments", "create", "c.yaml")
    sent = [name for content in server.uploads for name in names(content)]
    assert "id_rsa" not in sent
    assert code == (0 if "code" in own or name in {".", ""} else 1), shown
    assert ("train.py" in sent) == ("code" in own)


def test_a_folder_that_a_template_names_is_sent_if_the_user_agrees(
    laptop: Laptop, server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (laptop.work / "c.yaml").write_text("entrypoint: python train.py\n")
    route = route_of(answers.Validation)
    lines = [{"path": "model_dir", "text": "model_dir: code"}]
    server.replaced[route] = json.dumps({"problems": [], "effective": lines, "summary": None}).encode()
    code, shown = laptop.run("experiments", "create", "c.yaml")
    assert (code, server.uploads) == (1, [])
    assert "Name the folder of the code: dtrain experiments create CONFIG FOLDER" in shown
    for answer, sent in (("n", 0), ("y", 1)):
        stdin = io.StringIO(f"{answer}\n")
        stdin.isatty = lambda: True  # type: ignore[method-assign]
        laptop.stdin = stdin
        code, shown = laptop.run("experiments", "create", "c.yaml")
        assert (code, len(server.uploads)) == (1 - sent, sent)
        assert "Send this folder? [y/N]" in shown
    code, shown = laptop.run("experiments", "create", "c.yaml", "code")
    assert (code, len(server.uploads)) == (0, 2)


DETAILS = {
    "controls": {"code": CONTROLS, "message": CONTROLS, "hint": f"airflow {CONTROLS}",
                 "problems": [{"path": CONTROLS, "message": CONTROLS}]},
    "long": {"code": "x", "message": "m" * 100_000, "hint": "", "problems": []},
    "many": {"code": "x", "message": "m", "hint": "", "problems": [{"path": "p", "message": "m"}] * 5000},
    "types": {"code": [1], "message": {"a": 1}, "hint": None, "problems": 7},
    "text": CONTROLS, "list": [CONTROLS], "null": None, "number": 7,
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "name"), [*((422, name) for name in DETAILS), *((one, "controls") for one in (400, 403, 404, 409, 500))]
)
def test_a_refusal_is_one_message(status: int, name: str, laptop: Laptop, server: HostileServer) -> None:
    before = laptop.files()
    server.status = status
    server.replaced = dict.fromkeys(ROUTES, json.dumps({"detail": DETAILS[name]}).encode())
    for words in ("trials list", "experiments create c.yaml", "doctor"):
        code, shown = laptop.run(*words.split())
        assert code == 1, shown
        assert 0 < len(shown) < 12_000
        check(laptop, words, shown, before)


def test_bytes_that_are_no_http_are_one_message(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    answers_of_others = (
        b"\x00" * 500,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b'HTTP/1.1 200 OK\r\nETag: "a\x0b\x1b]0;b"\r\nContent-Length: 12\r\n\r\n{"rows": []}',
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/\x1b]0;x\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    )
    monkeypatch.setenv("DTRAIN_TOKEN", "given")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        current = [b""]

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer:
                        peer.recv(1 << 16)
                        peer.sendall(current[0])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        for current[0] in answers_of_others:
            words = ("queue", "list", "--server", f"http://127.0.0.1:{listener.getsockname()[1]}")
            code, shown = laptop.run(*words)
            assert code in (0, 1)
            check(laptop, "queue list", shown, laptop.files())
            assert shown
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_errors_of_the_python_client_have_no_control_characters(laptop: Laptop, server: HostileServer) -> None:
    client = Client()
    detail = {"code": "x", "message": CONTROLS, "hint": CONTROLS, "problems": [{"path": CONTROLS, "message": CONTROLS}]}
    problem = {"path": CONTROLS, "line": 1, "message": CONTROLS, "severity": "error"}
    failed = {**route_of(answers.ServerOperation).answer(), "state": "failed", "error": CONTROLS}
    trial = client.trials.get(1)
    for status, replaced, act in (
        (422, dict.fromkeys(ROUTES, json.dumps({"detail": detail}).encode()), client.queue),
        (409, dict.fromkeys(ROUTES, json.dumps({"detail": CONTROLS}).encode()), client.cluster),
        (
            200,
            {
                route_of(answers.Validation): json.dumps(
                    {"problems": [problem], "effective": [], "summary": None}
                ).encode()
            },
            lambda: client.experiments.create("c.yaml"),
        ),
        (200, dict.fromkeys(ROUTES[-3:], json.dumps(failed).encode()), trial.stacks),
    ):
        server.begin()
        server.status, server.replaced = status, replaced
        with pytest.raises(DtrainError) as caught:
            act()
        assert "PWNED" in str(caught.value)
        assert obeyed(str(caught.value)) == ""


@pytest.mark.parametrize("name", [".env", "keys.pem"])
def test_a_credential_that_is_no_plain_file_is_left_out_as_well(
    name: str, laptop: Laptop, server: HostileServer
) -> None:
    (laptop.work / "code" / name).symlink_to(laptop.home / ".ssh" / "id_rsa")
    os.mkfifo(laptop.work / "code" / "pipe.pem")
    code, shown = laptop.run("experiments", "create", "c.yaml")
    assert code == 0
    assert f"Not sent to hosts, because they hold credentials: {name}, pipe.pem. To send one of them" in shown
    assert names(server.uploads[0]) == ["train.py"]
