"""Types of configuration fields: names, paths, sizes, variables, patterns.

Validators raise ``PydanticCustomError`` with type ``dtrain`` and a complete message. ``problems.py`` turns
these errors into problems with a path.
"""

from __future__ import annotations

import posixpath
import re
import warnings
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from airflow_provider_dtrain.core.control_characters import is_one_line
from airflow_provider_dtrain.core.safe_repr import shown

_SHELL: Final = re.compile(r"[;&|<>$`\"'\\(){}\[\]*?!#~]")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z", re.ASCII)
_TRIAL_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
#: Source: RAMInBytes of docker's go-units, with "1 gi" and any space before the unit.
_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) *[kmgtp]?i?b?\Z", re.ASCII | re.IGNORECASE)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_INTERFACE: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,15}\Z", re.ASCII)
_PORTS: Final = re.compile(r"(\d{1,5})-(\d{1,5})\Z", re.ASCII)

#: The compiler of ``re`` recurses, and a host may have less stack left than this process.
MAX_GROUPS_DEEP: Final = 50

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
    """Section of a configuration: strictly typed, without unknown fields, immutable after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def refuse(message: str) -> PydanticCustomError:
    """Return the error that a validator raises for a value.

    :param message: complete text of the error
    """
    return PydanticCustomError("dtrain", "{words}", {"words": message})


def _text(value: str) -> str:
    if "\x00" in value:
        raise refuse("a NUL character is not accepted")
    return value


def _line(value: str) -> str:
    if not is_one_line(value):
        raise refuse(f"{shown(value)} has a control character or a newline")
    if not value.strip():
        raise refuse("an empty text is not accepted")
    return value


def _secret(value: str) -> str:
    """Check a secret. Messages never contain the value."""
    if not value or not is_one_line(value):
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
    """Accept printable characters only, because names of files and assets are derived from a title."""
    _line(value)
    if not value.isprintable():
        raise refuse(f"{shown(value)} has a character that cannot be printed")
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


def _in_container(value: str) -> str:
    """Check a path in the container. A relative path is below the work folder."""
    if posixpath.normpath(_path(value)) in (".", "/"):
        raise refuse(f"{shown(value)} is the whole container or its work folder; a folder below it is accepted")
    return value


def _relative(value: str) -> str:
    """Refuse ``..`` in a relative path. An absolute path states its target."""
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
    match = _SIZE.match(value) if isinstance(value, str) else None
    if not (float(match[1]) > 0 if match else type(value) is int and 0 < value < 2**63):
        raise refuse(f"{shown(value)} is not a size above 0: bytes, or a text such as '4g' or '512 mi', is accepted")
    return value


def _variable_name(value: Any) -> Any:
    if not isinstance(value, str) or not _VARIABLE.match(value):
        name = shown(value.partition("=")[0]) if isinstance(value, str) else shown(value)
        raise refuse(f"{name} is not a variable name: letters, digits and '_' are accepted, no digit first")
    if value in LAUNCH_VARIABLES:
        raise refuse(f"{value} is set for each rank by the launch; remove it")
    return value


def _variable_value(value: Any) -> Any:
    """Check the value of a variable. Messages never contain it, because it may be a password."""
    if type(value) is int:
        return str(value)
    if isinstance(value, (bool, float)):
        raise refuse(f"a {type(value).__name__} would lose its spelling; quote the value")
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
    if (depth := _nesting(value)) > MAX_GROUPS_DEEP:
        raise refuse(f"groups nested {depth} deep; at most {MAX_GROUPS_DEEP} are accepted")
    try:
        with warnings.catch_warnings():
            # The host checks a pattern that a later Python may interpret differently, so no warning is printed here.
            warnings.simplefilter("ignore")
            re.compile(value)
    except (re.error, OverflowError, RecursionError, MemoryError, ValueError) as error:
        raise refuse(f"{shown(value)} is not a regular expression: {str(error) or type(error).__name__}") from None
    return value


def _nesting(pattern: str) -> int:
    """Return the nesting depth of the groups of a pattern.

    Parentheses in character sets count as well, escaped ones do not.
    """
    depth = deepest = 0
    for mark in re.findall(r"\\.|[()]", pattern, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(mark, 0)
        deepest = max(deepest, depth)
    return deepest


def is_trial_class(entrypoint: str | list[str]) -> bool:
    """Return whether an entrypoint is ``module:TrialClass`` and not a command."""
    return isinstance(entrypoint, str) and bool(_TRIAL_CLASS.match(entrypoint))


Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[str, AfterValidator(_line)]
Secret = Annotated[str, AfterValidator(_secret)]
Name = Annotated[str, AfterValidator(_name)]
Title = Annotated[str, AfterValidator(_title)]
Path = Annotated[str, AfterValidator(_path)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
ContainerPath = Annotated[str, AfterValidator(_in_container)]
CodePath = Annotated[str, AfterValidator(_relative)]
TemplateName = Annotated[str, BeforeValidator(_template)]
Python = Annotated[str, AfterValidator(_python)]
Size = Annotated[int | str, BeforeValidator(_size)]
VariableName = Annotated[str, BeforeValidator(_variable_name)]
VariableValue = Annotated[str, BeforeValidator(_variable_value)]
Interface = Annotated[str, AfterValidator(_interface)]
PortRange = Annotated[str, AfterValidator(_ports)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Positive = Annotated[int, Field(ge=1, le=2**63 - 1)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Field(gt=0, le=10**9)]
