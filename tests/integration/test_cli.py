"""``airflow dtrain ...`` commands: help, usage, documents, templates, the store."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand

from airflow_provider_dtrain.cli import get_dtrain_commands
from airflow_provider_dtrain.core.config import UNSUPPORTED
from tests.support.cli_world import AIRFLOW, ROOT, World
from tests.support.lock_dirs import new_lock_dir

pytest_plugins = ["tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow]

CONFIG = """
name: cli
entrypoint: python ranks.py facts
hyperparameters: {lr: 0.5}
data: {secrets: {token: hunter2}}
"""


@pytest.mark.nightly
def test_every_noun_is_in_the_help_and_airflow_knows_no_other_problem(world: World) -> None:
    done = subprocess.run([*AIRFLOW, "dtrain", "--help"], env=world.environment, capture_output=True, timeout=120)
    nouns = [
        "configs",
        "db",
        "doctor",
        "experiments",
        "explain",
        "gc",
        "hosts",
        "maintenance",
        "pools",
        "queue",
        "searches",
        "slots",
        "t",
        "templates",
        "tpl",
        "trials",
    ]
    assert [noun for noun in nouns if not re.search(rf"^\s+{noun}\s", done.stdout.decode(), re.MULTILINE)] == []
    assert done.returncode == 0
    assert b"Failed to load CLI commands" not in done.stderr + done.stdout


@pytest.mark.nightly
def test_the_definition_of_the_commands_imports_none_of_their_code() -> None:
    program = (
        "import sys, airflow.cli.cli_config; before = set(sys.modules)\n"
        "import airflow_provider_dtrain.cli as c; c.get_dtrain_commands()\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT, timeout=120)
    cli = "airflow_provider_dtrain.cli"
    pure = ["core", "core.lifecycle", "core.lifecycle.states", "core.lifecycle.timeline", "core.plain_data", "errors"]
    pure += ["core.safe_repr", "core.logs", "core.logs.text"]
    ours = ["airflow_provider_dtrain", cli, f"{cli}._airflow_commands"]
    pure += ["terminal", "terminal.arguments", "terminal.definition", "terminal.definition_trials"]
    ours += [f"airflow_provider_dtrain.{name}" for name in pure]
    seen = done.stdout.decode().splitlines()[-1]
    assert [name for name in ast.literal_eval(seen) if name not in ours] == []


def test_the_page_of_the_command_line_names_every_command_and_option() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()

    def commands(group: GroupCommand, path: str = "") -> Iterator[tuple[str, ActionCommand]]:
        for one in group.subcommands:
            if isinstance(one, GroupCommand):
                yield from commands(one, f"{path}{one.name} ")
            else:
                yield f"{path}{one.name}", one

    known = dict(commands(get_dtrain_commands()[0]))
    assert [path for path in known if path.split()[0] not in ("e", "t", "tpl") and f"`{path}" not in page] == []
    options = {
        flag for command in known.values() for arg in command.args for flag in arg.flags if flag.startswith("--")
    }
    assert [
        flag for flag in sorted(options - {"--output", "--verbose", "--details", "--follow"}) if flag not in page
    ] == []


def test_an_empty_store_says_the_next_command_and_prints_no_rows(world: World) -> None:
    done = world("trials", "list")
    assert (done.code, done.out) == (0, "")
    assert "TrialOperator" in done.err
    assert world.rows("trials", "list") == []


@pytest.mark.parametrize("name", ["a;rm -rf x", "$(id)", "../up", "a..b", "", "-x", "x" * 64, "new\nline", "ä"])
def test_a_name_that_no_host_can_have_is_a_usage_error(world: World, name: str) -> None:
    before = sorted(world.folder.glob("*"))
    assert world("hosts", "drain", name).code == 2
    assert sorted(world.folder.glob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("hosts", "add", "x"),
        ("hosts", "add", "x", "--conn", "a b"),
        ("hosts", "add", "x", "--conn", "c", "--slots", "0"),
        ("hosts", "add", "x", "--conn", "c", "--slots", "cpu:many"),
        ("hosts", "add", "x", "--conn", "c", "--pool", "local"),
        ("hosts", "add", "x", "--conn", "c", "--remote-dir", "../../etc"),
        ("hosts", "add", "x", "--conn", "c", "--accept-host-key", "md5:aa"),
        ("hosts", "add", "local", "--conn", "c"),
        ("pools", "set", "p"),
        ("trials", "logs", "-1"),
        ("trials", "describe", "9" * 30),
        ("configs", "validate"),
        ("hosts", "juggle"),
    ],
)
def test_arguments_that_make_no_sense_are_usage_errors(world: World, arguments: tuple[str, ...]) -> None:
    assert world(*arguments).code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("hosts", "drain", "absent"), "There is no host 'absent'"),
        (("pools", "describe", "nothing"), "There is no pool 'nothing'"),
        (("trials", "describe", "77"), "There is no trial 77"),
        (("trials", "logs", "77"), "There is no trial 77"),
        (("templates", "describe", "nothing"), "There is no template 'nothing'"),
        (("hosts", "add", "x", "--conn", "no_such"), "no Airflow connection 'no_such'. Add it with: airflow"),
        (("configs", "validate", "/no/such.yaml"), "cannot be read: No such file"),
        (("configs", "validate", "/"), "cannot be read: it is a folder"),
    ],
)
def test_what_does_not_exist_is_named(world: World, arguments: tuple[str, ...], words: str) -> None:
    done = world(*arguments)
    assert (done.code, done.out) == (1, "")
    assert words in done.err


def test_the_environment_of_a_hosts_ranks_is_set_and_shown(world: World) -> None:
    folders = ("--state-dir", str(world.folder / "state" / "local"), "--lock-dir", new_lock_dir(world.folder))
    assert world("hosts", "add", "local", "--slots", "cpu:1", *folders).code == 0
    done = world("hosts", "set", "local", "--env", "HF_HOME=/data/hf", "--env", "OPTS=a=b c")
    assert "HF_HOME" in done.out
    assert world.rows("hosts", "set", "local", "--unset", "HF_HOME") == {"host": "local", "env": {"OPTS": "a=b c"}}
    refused = world("hosts", "set", "local", "--env", "RANK=3")
    assert (refused.code, "RANK: set for every rank by the launch" in refused.err) == (2, True)
    assert "has no variable HF_HOME" in world("hosts", "set", "local", "--unset", "HF_HOME").err
    assert world("hosts", "set", "local", "--env", "1X=3").code == 2
    assert world("hosts", "remove", "local", "-y").code == 0


# -- documents ------------------------------------------------------------------------------------------


def test_all_problems_of_a_document_come_at_once_with_their_paths(world: World) -> None:
    text = "entrypoint: 7\nresources: {slots_per_trial: -1, pol: x}\nmax_restarts: many\nnaem: x\n"
    done = world("configs", "validate", world.file("bad.yaml", text))
    assert done.code == 1
    paths = ("entrypoint", "resources.slots_per_trial", "resources.pol", "max_restarts", "naem")
    assert [path for path in paths if f"  {path}: " not in done.err] == []
    assert "bad.yaml: 5 problems" in done.err


def test_a_lock_file_is_checked_and_what_it_lacks_for_this_platform_is_printed(world: World, tmp_path: Path) -> None:
    path = world.file("packages.yaml", "entrypoint: python train.py\nenvironment: {requirements: uv.lock}\n")
    code = Path(path).parent
    (code / "uv.lock").write_text("six==1.0\n")
    done = world("configs", "validate", path)
    assert done.code == 1
    assert "environment.requirements: 'uv.lock': no hashes for six==1.0" in done.err
    package = (
        '[[package]]\nname = "demo"\nversion = "1.0"\nsource = { registry = "x" }\n'
        f'wheels = [{{ url = "https://x/demo-1.0-cp39-cp39-win_amd64.whl", hash = "sha256:{"a" * 64}" }}]\n'
    )
    (code / "uv.lock").write_text(f'version = 1\n[manifest]\nrequirements = [{{ name = "demo" }}]\n{package}')
    done = world("configs", "validate", path)
    assert done.code == 0
    assert "Warning: environment.requirements: uv.lock has no wheels of demo 1.0 for Python 3." in done.err


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1, 2", "not YAML"),
        ("name: x\nname: y\n", "given twice"),
        (BOMB, "once aliases are expanded"),
        ("x: !!python/object/apply:os.system [touch /tmp/dtrain-pwned]", "is refused"),
        (b"#" * (10 * 2**20), "1 MiB"),
        (b"\xff\xfe\x00name: x", "not UTF-8"),
        ("- a\n- b\n", "a map of fields is accepted"),
    ],
)
def test_yaml_that_a_stranger_wrote_is_refused_in_words(world: World, text: str | bytes, words: str) -> None:
    path = world.file("strange.yaml", text)
    for arguments in (("configs", "validate", path), ("templates", "set", "strange", path)):
        done = world(*arguments)
        assert done.code == 1
        assert words in done.err
    assert not Path("/tmp/dtrain-pwned").exists()
    assert [row for row in world.rows("templates", "list") if row["name"] == "strange"] == []


def test_an_endless_file_is_refused_without_being_read_whole(world: World) -> None:
    done = world("configs", "validate", "/dev/zero")
    assert done.code == 1
    assert "it is a device" in done.err


def test_a_template_lives_from_its_first_version_to_its_removal(world: World) -> None:
    first = world.file("one.yaml", "resources: {slots_per_trial: 2}\n")
    assert world("templates", "set", "life", first, "--dry-run").code == 0
    assert world.rows("templates", "list") == []
    assert world.rows("templates", "set", "life", first) == {"name": "life", "version": 1}
    assert world("tpl", "set", "life", "-", given=b"resources: {slots_per_trial: 4}\n").code == 0
    rows = world.rows("tpl", "list", "-d")
    assert [(row["name"], row["version"]) for row in rows] == [("life", 2)]
    assert rows[0]["text"] == "resources: {slots_per_trial: 4}\n"
    assert world("templates", "describe", "life", "--version", "1").out == Path(first).read_text()
    assert [row["version"] for row in world.rows("templates", "versions", "life")] == [2, 1]
    refused = world("templates", "remove", "life")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert world("templates", "remove", "life", "-y").code == 0
    assert world.rows("templates", "list") == []


def test_a_template_with_a_literal_secret_a_tag_or_a_template_is_refused(world: World) -> None:
    text = "template: other\nresources: {slots_per_trial: !override 2}\n"
    done = world("templates", "set", "bad", world.file("tags.yaml", text))
    assert done.code == 1
    assert "a template cannot use a template" in done.err
    assert "resources.slots_per_trial" in done.err
    done = world("templates", "set", "bad", world.file("secret.yaml", "data: {secrets: {token: hunter2}}\n"))
    assert done.code == 1
    assert "data.secrets.token: a literal secret" in done.err
    assert "hunter2" not in done.err
    variables = world.file("variable.yaml", "environment: {variables: [DB_PASSWORD=hunter2, A=b]}\n")
    for words in (("templates", "set", "bad", variables), ("configs", "validate", "--template", variables)):
        done = world(*words)
        assert done.code == 1
        assert "environment.variables.0: a private variable" in done.err
        assert "hunter2" not in done.out + done.err


def test_no_command_repeats_a_secret_of_a_configuration_that_it_refuses(world: World) -> None:
    text = CONFIG + "environment: [DB_PASSWORD=hunter2]\nresources: {pool: 'mysql://u:hunter2@h'}\nslots: 4\n"
    path = world.file("leaks.yaml", text)
    for words in (("configs", "validate", path, "--template"), ("searches", "preview", path), ("explain", path)):
        done = world(*words)
        assert done.code == 1
        assert "hunter2" not in done.out + done.err
        assert "did you mean resources.slots_per_trial?" in done.err


def test_a_pipe_in_place_of_a_file_and_a_file_with_jinja_are_refused_with_the_reason(
    world: World, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    done = world("configs", "validate", str(tmp_path / "pipe.yaml"))
    assert (done.code, "named pipe (FIFO)" in done.err) == (1, True)
    done = world("configs", "validate", world.file("jinja.yaml", "hyperparameters:\n  lr: {{ params.lr }}\n"))
    assert (done.code, "contains Jinja, which Airflow renders" in done.err) == (1, True)


def test_the_effective_configuration_shows_origins_and_no_secret(world: World) -> None:
    space = "{lr: 0.1, layers: 3, bs: {type: int, minval: 1, maxval: 9}}"
    template = world.file("base.yaml", f"resources: {{slots_per_trial: 2}}\nhyperparameters: {space}\n")
    path = world.file("config.yaml", CONFIG)
    document = world.rows("configs", "render", path, "--template", template)
    assert document["hyperparameters"] == {"lr": 0.5, "layers": 3, "bs": {"type": "int", "minval": 1, "maxval": 9}}
    assert document["resources"]["slots_per_trial"] == 2
    done = world("configs", "render", path, "--template", template, "--origins", "-o", "json")
    origins = {row["path"]: row["origin"] for row in done.json}
    assert origins["hyperparameters.lr"] == "config"
    assert origins["hyperparameters.layers"] == origins["hyperparameters.bs.minval"] == "template"
    assert origins["resources.priority"] == "default"
    assert "hunter2" not in done.out + json.dumps(document)


def test_values_with_their_origins_can_be_copied_back(world: World) -> None:
    path = world.file(
        "copy.yaml", "entrypoint: python train.py\nhyperparameters: {a: true, b: 0.123456789, c: 'yes'}\n"
    )
    done = world("configs", "render", path, "--origins")
    shown = {parts[0]: parts[1] for line in done.out.splitlines() if len(parts := line.split()) > 2}
    assert [shown[f"hyperparameters.{name}"] for name in "abc"] == ["true", "0.123456789", "yes"]
    assert shown["reproducibility.deterministic"] == "false"
    assert shown["data"] == "{}"


def test_validating_tells_a_template_from_a_configuration(world: World) -> None:
    part = world.file("part.yaml", "resources: {slots_per_trial: 2}\n")
    assert world("configs", "validate", part).code == 1
    assert world.rows("configs", "validate", part, "--template")["kind"] == "template"
    assert world.rows("configs", "validate", "--template", part)["kind"] == "template"
    whole = world.file("whole.yaml", "entrypoint: python train.py\n")
    assert world.rows("configs", "validate", whole, "--template", part)["kind"] == "configuration"


def test_a_field_whose_feature_is_missing_fails_the_validation_by_name(world: World) -> None:
    path = world.file("later.yaml", "entrypoint: a.py\nbind_mounts: [{host_path: /a, container_path: b}]\n")
    done = world("configs", "validate", path)
    is_built = not any(field == "bind_mounts" for field, _, _ in UNSUPPORTED)
    assert (done.code == 0) is is_built
    assert ("bind_mounts: not supported in this version" in done.err) is not is_built


# -- the store ------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_doctor_names_the_command_for_a_database_of_airflow_without_tables(world: World, tmp_path: Path) -> None:
    empty = {**world.environment, "AIRFLOW_HOME": str(tmp_path)}
    empty["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{tmp_path / 'empty.db'}"
    command = [*AIRFLOW, "dtrain", "doctor", "-o", "json"]
    done = subprocess.run(command, env=empty, capture_output=True, text=True, timeout=120)
    (wrong,) = [row for row in json.loads(done.stdout) if not row["ok"]]
    assert done.returncode == 1
    assert wrong["check"] == "airflow database"
    assert wrong["message"].endswith("with: airflow db migrate")
    assert "Error" not in done.stdout + done.stderr


def test_the_store_is_migrated_and_checked(world: World) -> None:
    revision = world.rows("db", "migrate")
    assert revision["schema"]
    assert {row["ok"] for row in world.rows("db", "check")} == {True}
    checks = {row["check"]: row for row in world.rows("doctor")}
    assert next(iter(checks)) == "python"
    assert "airflow dtrain init" in checks["experiment dag"]["message"]
