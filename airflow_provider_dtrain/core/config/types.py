"""What the fields of a configuration are made of: names, paths, commands, periods.

Validators raise ``PydanticCustomError`` with type ``dtrain`` and finished words; ``problems.py`` turns
them into problems with a path.
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

_SHELL: Final = re.compile(r"[;&|<>$`\"'\\(){}\[\]*?!#~]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z", re.ASCII)
_TRIAL_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
_SIZE: Final = re.compile(r"\d+(\.\d+)?\s*([kmgt]i?)?b?\Z", re.ASCII | re.IGNORECASE)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_INTERFACE: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,15}\Z", re.ASCII)
_PORTS: Final = re.compile(r"(\d{1,5})-(\d{1,5})\Z", re.ASCII)
_OPERATORS: Final = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "<<", "2>&1", "2>", "&>"})
_EXPANSION: Final = re.compile(r"\$[A-Za-z_{(]|`")
_FOREIGN_LAUNCHER: Final = re.compile(r"determined\.launch\.\w+\Z")

#: Set for every rank by the launch; a value from the configuration could only break the gang.
LAUNCH_VARIABLES: Final = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_RUN_ID",
    }
)


class Section(BaseModel):
    """A part of a configuration: typed strictly, closed, never changed after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def refuse(message: str) -> PydanticCustomError:
    """Return the error with which a validator refuses a value, in finished words."""
    return PydanticCustomError("dtrain", "{words}", {"words": message})


def shown(value: object, limit: int = 60) -> str:
    """Return a value as it may stand in an error message: short, strings quoted."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 4] + "...'"


def _text(value: str) -> str:
    if "\x00" in value:
        raise refuse("a NUL character is not accepted")
    return value


def _line(value: str) -> str:
    if _CONTROL.search(value):
        raise refuse(f"{shown(value)} has a control character or a newline")
    if not value.strip():
        raise refuse("an empty text is not accepted")
    return value


def _secret(value: str) -> str:
    """Messages leave the value out."""
    if not value or _CONTROL.search(value):
        raise refuse("the value is empty, or has a control character or a newline")
    return value


def _name(value: str) -> str:
    if not _NAME.match(value) or ".." in value:
        raise refuse(
            f"{shown(value)} is not a name: 1 to 63 letters, digits, '_', '.', '-' are accepted, "
            "a letter or digit first, no '..'"
        )
    return value


def _title(value: str) -> str:
    _line(value)
    bad = sorted(set(_SHELL.findall(value)) | set(re.findall(r"[/%]", value)))
    if bad:
        raise refuse(f"{shown(value)} has {' '.join(bad)}; letters, digits, spaces and _ . - + : @ = , are accepted")
    if len(value) > 128:
        raise refuse(f"{len(value)} characters; at most 128 are accepted")
    return value


def _path(value: str) -> str:
    _line(value)
    if ".." in value.split("/"):
        raise refuse(f"{shown(value)} has a '..' part")
    return value


def _absolute(value: str) -> str:
    if not _path(value).startswith("/"):
        raise refuse(f"{shown(value)} is not an absolute path")
    return value


def _relative(value: str) -> str:
    """Only a relative path is looked at for ``..``: an absolute one says where it leads."""
    return _line(value) if value.startswith("/") else _path(value)


def _template(value: Any) -> Any:
    if isinstance(value, list):
        raise refuse(f"a list of {len(value)}; one template at most is accepted")
    if not isinstance(value, str):
        raise refuse(f"{shown(value)} is not a string")
    if not value.endswith((".yaml", ".yml")) and "/" not in value:
        return _name(value)
    if _SHELL.search(value):
        raise refuse(f"{shown(value)} has a character that shells act on; a plain path is accepted")
    return _relative(value)


def _python(value: str) -> str:
    _line(value)
    is_path = value.startswith(("/", "~/")) and ".." not in value.split("/")
    if _SHELL.search(value.removeprefix("~")) or not (is_path or _NAME.match(value)):
        raise refuse(f"{shown(value)} is neither an absolute path nor the bare name of a program")
    return value


def _size(value: Any) -> Any:
    good = _SIZE.match(value) if isinstance(value, str) else type(value) is int and value > 0
    if not good:
        raise refuse(f"{shown(value)} is not a size: bytes, or a text such as '4g', is accepted")
    return value


def _variable_name(value: Any) -> Any:
    if not isinstance(value, str) or not _VARIABLE.match(value):
        raise refuse(f"{shown(value)} is not a variable name: letters, digits and '_' are accepted, no digit first")
    if value in LAUNCH_VARIABLES:
        raise refuse(f"{value} is set for each rank by the launch; remove it")
    return value


def _variable_value(value: Any) -> Any:
    """Messages leave the value out: it may be a password."""
    if type(value) is int:
        return str(value)
    if isinstance(value, (bool, float)):
        raise refuse(f"a {type(value).__name__} loses its spelling; quote the value")
    if not isinstance(value, str):
        raise refuse(f"a {type(value).__name__} is not a string")
    if "\x00" in value or "\n" in value or "\r" in value:
        raise refuse("the value has a newline or a NUL character; one line is accepted")
    return value


def _interface(value: str) -> str:
    if not _INTERFACE.match(value):
        raise refuse(f"{shown(value)} is not the name of a network interface (at most 15 characters), nor 'auto'")
    return value


def _ports(value: str) -> str:
    match = _PORTS.match(value)
    low, high = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    if not 1024 <= low <= high <= 65535:
        raise refuse(f"{shown(value)} is not a range such as '29500-29600' within 1024-65535")
    return value


def _pattern(value: str) -> str:
    if len(value) > 1000:
        raise refuse(f"{len(value)} characters; at most 1000 are accepted")
    try:
        re.compile(value)
    except re.error as error:
        raise refuse(f"{shown(value)} is not a regular expression: {error}") from None
    return value


def split_command(entrypoint: str | list[str]) -> list[str]:
    """Return the words of a command; a text is split as a shell would, but no shell runs it.

    :raises ValueError: a quote is not closed
    """
    return shlex.split(entrypoint) if isinstance(entrypoint, str) else list(entrypoint)


def is_trial_class(entrypoint: str | list[str]) -> bool:
    """Return whether an entrypoint is ``module:TrialClass`` and not a command."""
    return isinstance(entrypoint, str) and bool(_TRIAL_CLASS.match(entrypoint))


def _entrypoint(value: Any) -> Any:
    if isinstance(value, str):
        _check_shell_words(_text(value))
    elif not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
        raise refuse(f"{shown(value)} is not accepted; a command as text or list of texts, or module:TrialClass, is")
    words = split_command(value)
    if not words or not words[0].strip():
        raise refuse("the command is empty")
    for word in words:
        _text(word)
        if _FOREIGN_LAUNCHER.match(word):
            raise refuse(
                f"{word} is a launcher of Determined; ranks are started here with torchrun's environment: "
                "name the training script itself (Horovod and TensorFlow are not supported)"
            )
    return value


def _check_shell_words(value: str) -> None:
    try:
        words = shlex.split(value, posix=False)
        shlex.split(value)
    except ValueError as error:
        raise refuse(f"{shown(value)} cannot be split into words: {error}") from None
    for word in words:
        expands = _EXPANSION.search(word) and not word.startswith("'")
        if word in _OPERATORS or word.endswith(";") or expands:
            raise refuse(
                f"{shown(word)} would need a shell, and none runs the command; "
                "put it into a script, or give a list such as [bash, -c, ...]"
            )


Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[str, AfterValidator(_line)]
Secret = Annotated[str, AfterValidator(_secret)]
Name = Annotated[str, AfterValidator(_name)]
Title = Annotated[str, AfterValidator(_title)]
Path = Annotated[str, AfterValidator(_path)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
CodePath = Annotated[str, AfterValidator(_relative)]
TemplateName = Annotated[str, BeforeValidator(_template)]
Python = Annotated[str, AfterValidator(_python)]
Size = Annotated[int | str, BeforeValidator(_size)]
VariableName = Annotated[str, BeforeValidator(_variable_name)]
VariableValue = Annotated[str, BeforeValidator(_variable_value)]
Interface = Annotated[str, AfterValidator(_interface)]
PortRange = Annotated[str, AfterValidator(_ports)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Entrypoint = Annotated[str | list[str], BeforeValidator(_entrypoint)]
Positive = Annotated[int, Field(ge=1, le=2**63 - 1)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Field(gt=0, le=10**9)]
