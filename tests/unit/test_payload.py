"""The payload for hosts is small, complete, inside its folder, and deterministic."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import pytest

from airflow_provider_dtrain.errors import PayloadError
from airflow_provider_dtrain.hosts.payload import Payload, library, pack
from airflow_provider_dtrain.supervisor.files.archives import unpack


def members(payload: Payload) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(payload.content), mode="r:gz") as tar:
        return {member.name: member for member in tar}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "net").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "net" / "model.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o750)
    return folder


def test_a_folder_is_packed_with_plain_owners_modes_and_times(code: Path) -> None:
    found = members(pack(code))
    assert list(found) == ["net", "net/model.py", "run.sh", "train.py"]
    assert {name: member.mode for name, member in found.items()} == {
        "net": 0o755, "net/model.py": 0o644, "run.sh": 0o755, "train.py": 0o644,
    }  # fmt: skip
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in found.values()} == {(0, 0, "", "", 0)}


def test_the_digest_is_that_of_the_content_and_depends_on_nothing_else(code: Path, tmp_path: Path) -> None:
    first = pack(code)
    assert first.digest == hashlib.sha256(first.content).hexdigest()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("train.py", "run.sh"):
        (elsewhere / name).write_bytes((code / name).read_bytes())
        os.utime(elsewhere / name, (1, 1))
    (elsewhere / "run.sh").chmod(0o700)
    (elsewhere / "net").mkdir(mode=0o700)
    (elsewhere / "net" / "model.py").write_text("x = 1\n")
    assert pack(elsewhere) == first
    (code / "train.py").write_text("print('other')\n")
    assert pack(code).digest != first.digest


def test_caches_and_repositories_stay_at_home(code: Path) -> None:
    before = pack(code)
    made = "checkpoints/20261126T204429Z-5266/step-00000160/state.pt"
    for name in ("__pycache__/train.pyc", ".git/config", "net/__pycache__/model.pyc", made, f"net/{made}"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).touch()
    (code / "old.pyc").touch()
    assert pack(code) == before


def test_dtrainignore_speaks_gitignore(code: Path) -> None:
    (code / ".dtrainignore").write_text("# data\ndata/\n*.ckpt\n!keep.ckpt\n/train.py\n")
    for name in ("data/big.bin", "a.ckpt", "keep.ckpt", "net/train.py", "net/b.ckpt"):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).touch()
    assert sorted(members(pack(code))) == [
        ".dtrainignore",
        "keep.ckpt",
        "net",
        "net/model.py",
        "net/train.py",
        "run.sh",
    ]


def test_links_inside_stay_links_and_become_relative(code: Path) -> None:
    (code / "net" / "same.py").symlink_to("../train.py")
    (code / "absolute.py").symlink_to(code / "net" / "model.py")
    (code / "folder").symlink_to("net")
    found = members(pack(code))
    assert found["net/same.py"].linkname == "../train.py"
    assert found["absolute.py"].linkname == "net/model.py"
    assert found["folder"].linkname == "net"
    assert "folder/model.py" not in found


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "net/../../outside"])
def test_a_link_that_leaves_the_folder_is_refused(code: Path, target: str) -> None:
    (code.parent / "outside").touch()
    (code / "leaves").symlink_to(target)
    with pytest.raises(PayloadError, match="leaves is a link to"):
        pack(code)


def test_a_link_that_leaves_through_another_link_is_refused(code: Path) -> None:
    (code / ".dtrainignore").write_text("out\n")
    (code / "out").symlink_to(code.parent)
    (code / "sly").symlink_to("out/secret")
    with pytest.raises(PayloadError, match="sly is a link to"):
        pack(code)


def test_an_ignored_link_may_lead_anywhere(code: Path) -> None:
    (code / "data").symlink_to("/")
    (code / ".dtrainignore").write_text("data\n")
    assert "data" not in members(pack(code))


def test_a_circle_of_links_ends(code: Path) -> None:
    (code / "a").symlink_to("b")
    (code / "b").symlink_to("a")
    assert members(pack(code))["a"].linkname == "b"


def test_too_much_code_names_the_largest_files(code: Path) -> None:
    for i in range(8):
        (code / f"weights{i}.bin").write_bytes(b"x" * (i + 1) * 100_000)
    with pytest.raises(
        PayloadError, match=r"3\.4 MiB in 11 files, at most 1\.0 MiB.*weights7\.bin \(781\.3 KiB\)"
    ) as told:
        pack(code, limit_bytes=2**20)
    assert "weights2" not in str(told.value)
    assert ".dtrainignore" in str(told.value)


def test_pipes_and_sockets_are_refused_by_name(code: Path) -> None:
    os.mkfifo(code / "pipe")
    with pytest.raises(PayloadError, match="pipe is not a file"):
        pack(code)


def test_a_missing_folder_and_a_strange_name_are_refused(code: Path) -> None:
    with pytest.raises(PayloadError, match="is not a folder"):
        pack(code / "train.py")
    (code / os.fsdecode(b"caf\xe9.py")).touch()
    with pytest.raises(PayloadError, match="not UTF-8"):
        pack(code)


def test_a_pattern_that_is_none_is_named(code: Path) -> None:
    (code / ".dtrainignore").write_bytes(b"\xff\xfe")
    with pytest.raises(PayloadError, match="cannot be read"):
        pack(code)


def test_the_library_imports_on_its_own(tmp_path: Path) -> None:
    found = library()
    names = members(found)
    assert "airflow_provider_dtrain/__init__.py" in names
    assert "airflow_provider_dtrain/train/__init__.py" in names
    assert not [name for name in names if "__pycache__" in name or "hosts" in name]
    with tarfile.open(fileobj=io.BytesIO(found.content), mode="r:gz") as tar:
        unpack(tar, str(tmp_path))
    program = "import airflow_provider_dtrain.train as t, sys; print(t.__file__); assert 'airflow' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.stdout.decode().startswith(str(tmp_path)), done.stderr.decode()


CREDENTIALS = (
    ".env", ".env.production", ".envrc", ".netrc", "id_rsa", "id_ed25519", "server.pem", "key.p12", ".pypirc", ".npmrc",
    ".git-credentials", "kubeconfig", "prod.kubeconfig", "ID_RSA", "credentials.json", ".pgpass", "putty.ppk",
)  # fmt: skip
FOLDERS = (".aws/credentials", ".ssh/config", ".kube/config", ".azure/token", ".gnupg/ring", ".config/gcloud/adc")
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END OPENSSH PRIVATE KEY-----\n"


def write(code: Path, names: tuple[str, ...], text: str = "SECRET") -> None:
    for name in names:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(text)


def test_credentials_stay_at_home_and_are_named(code: Path) -> None:
    write(code, (*CREDENTIALS, *FOLDERS, "net/.env"))
    write(code, ("deploy", "tls.key", "chain.pem", "chain.crt"), PRIVATE)
    write(code, ("account.json",), f'{{"private_key": "{PRIVATE!r}"}}')
    found = pack(code)
    assert b"SECRET" not in b"".join(contents(found).values())
    assert b"PRIVATE" not in b"".join(contents(found).values())
    assert sorted(members(found)) == [".config", "net", "net/model.py", "run.sh", "train.py"]
    inner = {f"{Path(name).parent}/" for name in FOLDERS}
    keys = {"deploy", "tls.key", "chain.pem", "chain.crt", "account.json", "net/.env"}
    assert set(found.credentials) == {*CREDENTIALS, *inner, *keys}
    assert found.notice.startswith("Not sent to hosts, because they hold credentials: .aws/, .azure/, .config/gcloud/,")
    assert "and 19 more. To send one of them, add a line with its name to .dtrainignore: !.aws/" in found.notice


def contents(payload: Payload) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(payload.content), mode="r:gz") as tar:
        return {one.name: file.read() for one in tar if (file := tar.extractfile(one)) is not None}


def test_what_only_looks_like_a_credential_is_sent(code: Path) -> None:
    public = {
        "ca.pem": "-----BEGIN CERTIFICATE-----\nx\n",
        "id.pub": "ssh-ed25519 AAAA",
        "id_rsa.pub": "ssh-rsa AAAA",
        ".env.example": "TOKEN=",
        "token.py": f'HEADER = """{PRIVATE}"""\n',
        "config.json": "{}",
        "env": "x",
        "environment.env.py": "x",
    }
    for name, text in public.items():
        (code / name).write_text(text)
    # A virtual environment of this name is no file with variables.
    write(code, (".env/bin/python",))
    found = pack(code)
    assert {*public, ".env/bin/python"} <= set(members(found))
    assert (found.credentials, found.notice) == ((), "")


def test_a_line_of_dtrainignore_sends_a_credential(code: Path) -> None:
    write(code, (".env", "net/.env", "server.pem", ".aws/credentials", "id_rsa"))
    (code / ".dtrainignore").write_text("!/.env\n!*.pem\n!.aws/\nid_rsa\n")
    found = pack(code)
    assert {".env", "server.pem", ".aws/credentials"} <= set(members(found))
    # A line without an exclamation mark says that the user knows of the file.
    assert found.credentials == ("net/.env",)


def test_detignore_excludes_as_well(code: Path) -> None:
    write(code, ("data/big.bin", "a.ckpt", "b.ckpt"))
    (code / ".detignore").write_text("data/\n*.ckpt\n")
    (code / ".dtrainignore").write_text("!b.ckpt\n")
    assert sorted(members(pack(code))) == [
        ".detignore", ".dtrainignore", "b.ckpt", "net", "net/model.py", "run.sh", "train.py",
    ]  # fmt: skip


def test_a_link_to_a_credential_leads_nowhere_on_the_host(code: Path, tmp_path: Path) -> None:
    write(code, (".env",))
    (code / "settings").symlink_to(".env")
    found = pack(code)
    assert found.credentials == (".env",)
    assert members(found)["settings"].linkname == ".env"
    assert b"SECRET" not in zlib.decompress(found.content, 31)
