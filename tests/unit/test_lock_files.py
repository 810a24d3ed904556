"""Lock files: what is pinned for which platform, and what is refused."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
from packaging.tags import sys_tags

from airflow_provider_dtrain.core.lock_files.platform import Platform, gaps, wheels_for
from airflow_provider_dtrain.core.lock_files.reader import ReadLock, read_lock

A, B, C = (f"sha256:{digit * 64}" for digit in "abc")
LINUX = Platform(python="3.12.1", machine="x86_64", libc="glibc 2.36")
OLD = Platform(python="3.9.18", machine="x86_64", libc="glibc 2.28")

REQUIREMENTS = f"""
# This file was written by uv pip compile.
Six==1.16.0 \\
    --hash={A} \\
    --hash={B}
    # via demo
tomli==2.0.1 ; python_full_version < '3.11' --hash={C}  # old Pythons
requests[socks] == 2.32.5 --hash={A}
"""

UV_LOCK = f"""version = 1
revision = 3
requires-python = ">=3.9"

[[package]]
name = "demo"
version = "0.1"
source = {{ virtual = "." }}
dependencies = [
    {{ name = "array", version = "1.0", source = {{ registry = "x" }}, marker = "python_full_version < '3.10'" }},
    {{ name = "array", version = "2.0", source = {{ registry = "x" }}, marker = "python_full_version >= '3.10'" }},
    {{ name = "web", extra = ["socks"] }},
    {{ name = "windows-only", marker = "sys_platform == 'win32'" }},
]
[package.dev-dependencies]
dev = [{{ name = "linter" }}]

[[package]]
name = "array"
version = "1.0"
source = {{ registry = "x" }}
sdist = {{ url = "https://x/array-1.0.tar.gz", hash = "{A}" }}

[[package]]
name = "array"
version = "2.0"
source = {{ registry = "x" }}
wheels = [
    {{ url = "https://x/array-2.0-cp312-cp312-macosx_11_0_arm64.whl", hash = "{A}" }},
    {{ url = "https://x/array-2.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", hash = "{B}" }},
    {{ url = "https://x/array-2.0-cp312-cp312-manylinux_2_28_x86_64.whl", hash = "{C}" }},
]

[[package]]
name = "linter"
version = "1"
source = {{ registry = "x" }}

[[package]]
name = "proxy"
version = "3"
source = {{ registry = "x" }}
wheels = [{{ url = "https://x/proxy-3-py3-none-any.whl", hash = "{A}" }}]

[[package]]
name = "web"
version = "1"
source = {{ registry = "x" }}
wheels = [{{ url = "https://x/web-1-py3-none-any.whl", hash = "{A}" }}]
[package.optional-dependencies]
socks = [{{ name = "proxy" }}]

[[package]]
name = "windows-only"
version = "1"
source = {{ registry = "x" }}
wheels = [{{ url = "https://x/windows_only-1-py3-none-win_amd64.whl", hash = "{A}" }}]
"""

SCRIPT = """# /// script
# requires-python = ">=3.9"
# dependencies = ["six==1.16.0"]
# ///
import six
"""
SCRIPT_LOCK = f"""version = 1
requires-python = ">=3.9"
[manifest]
requirements = [{{ name = "six" }}]
[[package]]
name = "six"
version = "1.16.0"
source = {{ registry = "x" }}
wheels = [{{ url = "https://x/six-1.16.0-py3-none-any.whl", hash = "{A}" }}]
"""


def files_of(**texts: str) -> Callable[[str], bytes | None]:
    known = {name.replace("__", "."): text.encode() for name, text in texts.items()}
    return known.get


def names(found: ReadLock, platform: Platform | None = LINUX) -> list[str]:
    assert found.problems == ()
    assert found.lock is not None
    return [str(pin) for pin in found.lock.pins(platform.markers() if platform else None)]


def test_requirements_pin_versions_and_hashes_under_their_markers() -> None:
    found = read_lock("requirements.txt", files_of(requirements__txt=REQUIREMENTS))
    assert names(found) == ["six 1.16.0", "requests 2.32.5"]
    assert names(found, OLD) == ["six 1.16.0", "tomli 2.0.1", "requests 2.32.5"]
    assert found.lock is not None
    assert [pin.hashes for pin in found.lock.pins(None)] == [(A, B), (C,), (A,)]


@pytest.mark.parametrize("path", ["uv.lock", "pyproject.toml"])
def test_a_lock_file_of_uv_gives_what_the_project_needs_on_a_platform(path: str) -> None:
    found = read_lock(path, files_of(uv__lock=UV_LOCK, pyproject__toml="[project]"))
    assert found.path == "uv.lock"
    assert names(found) == ["array 2.0", "proxy 3", "web 1"]
    assert names(found, OLD) == ["array 1.0", "proxy 3", "web 1"]
    assert names(found, None) == ["array 1.0", "array 2.0", "proxy 3", "web 1", "windows-only 1"]


def test_the_best_wheel_for_a_platform_comes_first_and_others_are_left_out() -> None:
    lock = read_lock("uv.lock", files_of(uv__lock=UV_LOCK)).lock
    assert lock is not None
    array = lock.pins(LINUX.markers())[0]
    assert wheels_for(array, LINUX.tags()) == [C, B]
    assert wheels_for(array, Platform(python="3.12.1", machine="x86_64", libc="glibc 2.17").tags()) == [B]
    assert wheels_for(array, Platform(python="3.12.1", machine="aarch64", libc="glibc 2.36").tags()) == []


def test_a_lock_file_names_what_it_lacks_for_a_platform() -> None:
    lock = read_lock("uv.lock", files_of(uv__lock=UV_LOCK)).lock
    assert lock is not None
    assert gaps(lock, LINUX, allow_builds=False) == []
    (message,) = gaps(lock, OLD, allow_builds=False)
    assert message.startswith("has no wheels of array 1.0 for Python 3.9.18 on Linux x86_64 with glibc 2.28.")
    assert "allow_builds" in message, "array 1.0 has an archive of its sources"
    assert gaps(lock, OLD, allow_builds=True) == []
    ancient = Platform(python="3.8.1", machine="x86_64", libc="glibc 2.28")
    assert gaps(lock, ancient, allow_builds=True) == [f"is for Python >=3.9, not for {ancient}"]


def test_the_lock_file_beside_a_script_has_the_pins_of_its_inline_metadata() -> None:
    both = files_of(train__py=SCRIPT, train__py__lock=SCRIPT_LOCK)
    assert read_lock("train.py", both).path == "train.py.lock"
    assert names(read_lock("train.py", both)) == ["six 1.16.0"]


def test_inline_metadata_alone_needs_wheels_because_it_has_no_hashes() -> None:
    alone = files_of(train__py=SCRIPT)
    (problem,) = read_lock("train.py", alone).problems
    assert problem == (
        "'train.py': no hashes for six==1.16.0, and no wheel of that version in environment.wheels. "
        "Lock it: uv lock --script train.py"
    )
    assert names(read_lock("train.py", alone, wheels=["six-1.16.0-py2.py3-none-any.whl"])) == ["six 1.16.0"]
    assert read_lock("train.py", alone, wheels=["six-1.17.0-py2.py3-none-any.whl"]).problems


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--index-url u:secret@x/simple", "--index-url is not accepted"),
        ("-i https://x/simple", "-i is not accepted"),
        ("--extra-index-url=x", "--extra-index-url is not accepted"),
        ("--find-links /x", "a folder of wheels is environment.wheels"),
        ("-f /x", "-f is not accepted"),
        ("-e .", "Put the package into model_dir"),
        ("--editable=./x", "Put the package into model_dir"),
        ("-r other.txt", "Lock all packages in one file"),
        ("--pre", "option '--pre' is not accepted"),
        (f"six @ https://x/six-1.16.0-py3-none-any.whl --hash={A}", "six is taken from a URL"),
        ("./six", "is not name==version"),
        ("https://x/six.whl", "is not name==version"),
        ("six", "'six' has no exact version"),
        ("six>=1.0", "has no exact version"),
        ("six==1.*", "has no exact version"),
        ("six==1.0,!=2", "has no exact version"),
        ("six==1.16.0", "no hashes for six==1.16.0"),
        ("six==1.16.0 --hash=md5:00", "is not a hash of the form sha256:"),
        ("six==1.16.0 --hash=sha256:00", "is not a hash of the form sha256:"),
        ("# nothing", "pins no packages"),
    ],
)
def test_a_line_that_pins_nothing_is_refused_with_its_number(line: str, message: str) -> None:
    (problem,) = read_lock("requirements.lock", files_of(requirements__lock=f"\n{line}\n")).problems
    assert problem.startswith("'requirements.lock': ")
    assert message in problem
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1\n", "version = 2\n", "has format 2 of uv.lock"),
        ('source = { virtual = "." }', 'source = { virtual = "packages/demo" }', "is a member of a workspace"),
        ('name = "web"\nversion = "1"\nsource = { registry', 'name = "web"\nversion = "1"\nsource = { git', "from git"),
        (A, "sha256:0", "a file without a hash"),
        ("sys_platform == 'win32'", "sys_platform = win32", "is not a marker"),
        ('requires-python = ">=3.9"', 'requires-python = "new"', "is not a specifier"),
        ("[[package]]", "[[package", "is not TOML"),
        ('name = "web"\nversion = "1"', "version = 1", "is not a lock file as uv writes it"),
    ],
)
def test_a_lock_file_of_uv_with_anything_but_packages_of_an_index_is_refused(old: str, new: str, message: str) -> None:
    assert old in UV_LOCK
    found = read_lock("uv.lock", files_of(uv__lock=UV_LOCK.replace(old, new)))
    assert any(message in problem for problem in found.problems), found.problems


@pytest.mark.parametrize(
    ("path", "texts", "message"),
    [
        ("requirements.txt", {}, "the code has no file 'requirements.txt'"),
        ("pyproject.toml", {"pyproject__toml": "[project]"}, "pins no versions, and there is no 'uv.lock'"),
        ("train.py", {"train__py": "import six\n"}, "has no inline metadata"),
        ("train.py", {"train__py": SCRIPT + SCRIPT}, "has two blocks"),
        ("train.py", {"train__py": SCRIPT.replace("=1.16.0", "")}, "uv lock --script train.py"),
        ("train.py", {"train__py": SCRIPT.replace('["six==1.16.0"]', "5")}, "without a list of dependencies"),
    ],
)
def test_a_file_without_pins_is_refused_with_what_writes_them(path: str, texts: dict[str, str], message: str) -> None:
    (problem,) = read_lock(path, files_of(**texts)).problems
    assert message in problem


def test_a_file_that_is_no_text_or_too_long_is_refused() -> None:
    assert read_lock("r.txt", {"r.txt": b"\xff\xfe"}.get).problems == ("'r.txt' is not a text in UTF-8",)
    assert "at most" in read_lock("r.txt", {"r.txt": b"#" * (9 << 20)}.get).problems[0]


def test_the_tags_of_a_platform_are_those_of_the_library_that_knows_this_machine() -> None:
    own = Platform(python=platform.python_version(), machine=platform.machine(), libc=" ".join(platform.libc_ver()))
    assert own.tags() == list(map(str, sys_tags()))
