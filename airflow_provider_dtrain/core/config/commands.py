"""Commands of an experiment: splitting into words without a shell, and removal of Determined's launcher."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from airflow_provider_dtrain.core.config.types import is_trial_class, refuse
from airflow_provider_dtrain.core.safe_repr import shown

_SPACE: Final = re.compile(r"[ \t\r\n]*")
#: One part of a word: in single quotes, the start of one in double quotes, one escaped character, or plain.
_PART: Final = re.compile(
    r"""'(?P<single>[^']*)'|(?P<double>")|\\(?P<escaped>.)|(?P<plain>[^ \t\r\n'"\\]+)""",
    re.DOTALL,
)
#: The end of a part in double quotes, or an escaped character in it.
_IN_DOUBLE_QUOTES: Final = re.compile(r'\\.|"', re.DOTALL)
_MARKS: Final = "'\"\\"
_QUOTING: Final = re.compile(r"['\"\\]")
_PLAIN_WORD: Final = re.compile(r"[^ \t\r\n]+")
_ESCAPED_IN_QUOTES: Final = re.compile(r'\\(["\\])')
_OPERATORS: Final = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "<<", "2>&1", "2>", "&>"})
_EXPANSION: Final = re.compile(r"\$[A-Za-z_]\w*|\$[{(]|`", re.ASCII)
_LAUNCHER: Final = "determined.launch.torch_distributed"
#: ``deepspeed.init_distributed`` reads torchrun's environment, so scripts that call it need no launcher.
_DEEPSPEED: Final = "determined.launch.deepspeed"
_LAUNCHERS: Final = (_LAUNCHER, _DEEPSPEED)
#: Determined's search for the batch size of a DeepSpeedTrial.
_AUTOTUNER: Final = "determined.launch.autodeepspeed"
_FOREIGN_LAUNCHER: Final = re.compile(r"determined\.launch\.\w+\Z")
_NO_EFFECT: Final = "resources.slots_per_trial sets the number of ranks, and the launch sets their rendezvous"

#: Number of words at the start of a command that are searched for the launcher and its options.
_SEARCHED: Final = 100
#: Options of torchrun without a value. Source: torch.distributed.run of PyTorch 2.
_FLAGS: Final = frozenset(
    {"--standalone", "-m", "--module", "--no-python", "--run-path", "--use-env", "--use-agent-store", "--help", "-h"}
)
#: Options of torchrun that set the kind of script.
_MODES: Final = {"-m": "module", "--module": "module", "--no-python": "no python"}


class Word(NamedTuple):
    """Word of a command that is given as one string."""

    value: str
    #: Offset of its first character in the text.
    start: int
    #: Shell syntax outside quotes; None: none.
    syntax: str | None


def split_command(entrypoint: str | list[str]) -> list[str]:
    """Return the words of a command.

    A string is split by the rules of POSIX quoting. No shell runs it. Takes linear time like ``shlex``, but
    about a hundredth of its time.

    :raises ValueError: a quote is open, or the text ends with a backslash
    """
    if not isinstance(entrypoint, str):
        return list(entrypoint)
    if not _QUOTING.search(entrypoint):
        return _PLAIN_WORD.findall(entrypoint)
    return [word.value for word in _tokens(entrypoint)]


def _tokens(text: str) -> Iterator[Word]:
    position = _end_of_space(text, 0)
    while position < len(text):
        start = position
        parts = []
        syntax = None
        while match := _PART.match(text, position):
            kind = str(match.lastgroup)
            part = match[match.lastgroup or 0]
            position = match.end()
            if kind == "double":
                end = _end_of_double(text, position)
                part = text[position:end]
                position = end + 1
            if syntax is None and kind in ("plain", "double"):
                syntax = _expansion(part)
            parts.append(_ESCAPED_IN_QUOTES.sub(r"\1", part) if kind == "double" else part)
        if position < len(text) and text[position] in _MARKS:
            raise ValueError("No escaped character" if text[position] == "\\" else "No closing quotation")
        yield Word("".join(parts), start, _operator(text[start:position]) or syntax)
        position = _end_of_space(text, position)


def _end_of_double(text: str, position: int) -> int:
    """Return the position of the double quote that ends a part.

    Uses a loop, because a repeated group would keep a stack.
    """
    for match in _IN_DOUBLE_QUOTES.finditer(text, position):
        if match[0] == '"':
            return match.start()
    raise ValueError("No closing quotation")


def _end_of_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _expansion(part: str) -> str | None:
    """Return the first expansion in a part of a word that would need a shell."""
    found = _EXPANSION.search(part)
    return found[0][:40] if found else None


def _operator(word: str) -> str | None:
    """Return the shell operator in a word as written, or None."""
    if word in _OPERATORS:
        return word
    return ";" if word.endswith(";") and not word.endswith("\\;") else None


def _tokens_and_syntax(text: str) -> tuple[list[str], str | None]:
    """Return the words of a command, and the first syntax in it that only a shell interprets.

    :raises ValueError: a quote is open, or the text ends with a backslash
    """
    if _QUOTING.search(text):
        found = list(_tokens(text))
        return [word.value for word in found], next((word.syntax for word in found if word.syntax), None)
    tokens = _PLAIN_WORD.findall(text)
    operator = next(filter(None, map(_operator, tokens)), None)
    return tokens, operator or _expansion(text)


def check_entrypoint(value: Any) -> Any:
    """Return an entrypoint that can be started without a shell.

    :raises PydanticCustomError: the entrypoint is malformed, or cannot be started without a shell
    """
    if isinstance(value, str):
        tokens = _checked_tokens(value)
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        tokens = value
    else:
        raise refuse(f"must be a command (a string or a list of strings) or module:TrialClass, got {shown(value)}")
    if not tokens or not tokens[0].strip():
        raise refuse("the command is empty")
    for word in tokens:
        if "\x00" in word:
            raise refuse("a NUL character is not accepted")
        if _FOREIGN_LAUNCHER.match(word):
            raise refuse(_foreign(word))
    return value


def _checked_tokens(text: str) -> list[str]:
    try:
        message, syntax = _tokens_and_syntax(text)
    except ValueError as error:
        raise refuse(f"the command cannot be split into words: {error}") from None
    if syntax is not None:
        raise refuse(
            f"{syntax!r} would need a shell, but the command runs without one; "
            "put it into a script, or use a list such as [bash, -c, ...]"
        )
    return message


def _foreign(launcher: str) -> str:
    if launcher == _LAUNCHER:
        return f"{launcher} is not followed by a script, or by --trial module:TrialClass and nothing else"
    if launcher in (_DEEPSPEED, _AUTOTUNER):
        found = "is not followed by a script" if launcher == _DEEPSPEED else "runs DeepSpeedTrial classes"
        return (
            f"{launcher} {found}. DeepSpeedTrial classes are not supported: name a script that "
            "calls deepspeed.init_distributed()"
        )
    return (
        f"{launcher} is a launcher of Determined; ranks are started here with torchrun's environment: "
        "name the training script itself, or module:TrialClass of a PyTorchTrial (Horovod and TensorFlow are not "
        "supported)"
    )


def without_launcher(entrypoint: Any) -> tuple[Any, list[str]]:
    """Return an entrypoint without Determined's launchers for torch and DeepSpeed, and warnings.

    An entrypoint that cannot be translated is returned unchanged.

    :param entrypoint: text or list of words, as written
    """
    if isinstance(entrypoint, str) and any(launcher in entrypoint for launcher in _LAUNCHERS):
        try:
            parts = list(itertools.islice(_tokens(entrypoint), _SEARCHED))
        except ValueError:
            return entrypoint, []
    elif isinstance(entrypoint, list) and all(isinstance(word, str) for word in entrypoint):
        parts = [Word(word, 0, None) for word in entrypoint[:_SEARCHED]]
    else:
        return entrypoint, []
    command = _translated([word.value for word in parts])
    if command is None:
        return entrypoint, []
    return command.written_as(entrypoint, parts), _warnings(command.launcher, command.options)


@dataclass(frozen=True, kw_only=True)
class _Command:
    launcher: str
    trial: str | None = None
    #: Words to put before the script: an interpreter, or nothing.
    before: Sequence[str] = ()
    #: Number of the first word of the script.
    first: int = 0
    options: Sequence[str] = ()

    def written_as(self, entrypoint: str | list[str], parts: Sequence[Word]) -> str | list[str]:
        """Return the command as a string or a list, like the entrypoint. Quotes in a string are kept."""
        if self.trial is not None:
            return self.trial
        if isinstance(entrypoint, list):
            return [*self.before, *entrypoint[self.first :]]
        return " ".join([*map(shlex.quote, self.before), entrypoint[parts[self.first].start :]])


def _warnings(launcher: str, options: Sequence[str]) -> list[str]:
    found = [f"entrypoint: {launcher} is left out: ranks start with torchrun's environment here"]
    if launcher == _DEEPSPEED:
        found[0] += ", which deepspeed.init_distributed reads"
    if options:
        found.append(f"entrypoint: {', '.join(options)[:200]} of {launcher} has no effect: {_NO_EFFECT}")
    return found


def _translated(parts: list[str]) -> _Command | None:
    """Return a command without the launcher.

    None: the launcher is not used, or the command names nothing to run.
    """
    launcher = next((word for word in parts[1:] if word in _LAUNCHERS), None)
    if launcher is None:
        return None
    place = parts.index(launcher)
    if parts[place - 1] != "-m":
        return None
    interpreter = parts[: place - 1] or ["python3"]
    first, options, mode = _options(parts, place + 1)
    if first >= len(parts):
        return None
    if parts[first] == "--trial" or parts[first].startswith("--trial="):
        given = [*parts[first].partition("=")[2:], *parts[first + 1 :]]
        names = [name for name in given if name]
        is_known = launcher == _LAUNCHER and len(names) == 1 and is_trial_class(names[0])
        return _Command(launcher=launcher, trial=names[0], options=options) if is_known else None
    if is_trial_class(parts[first]) and first == len(parts) - 1:
        is_known = launcher == _LAUNCHER
        return _Command(launcher=launcher, trial=parts[first], options=options) if is_known else None
    if mode == "module":
        return _Command(launcher=launcher, before=[*interpreter, "-m"], first=first, options=options)
    needs_interpreter = mode != "no python" and parts[first].endswith(".py")
    before = interpreter if needs_interpreter else ()
    return _Command(launcher=launcher, before=before, first=first, options=options)


def _options(parts: list[str], first: int) -> tuple[int, list[str], str]:
    """Return the index of the script, the options of torchrun before it, and the kind of script."""
    options: list[str] = []
    mode = "script"
    place = first
    while place < len(parts) and (word := parts[place]).startswith("-"):
        if word == "--":
            place += 1
            break
        if word == "--trial" or word.startswith("--trial="):
            break
        name, equals, _ = word.partition("=")
        plain = name.replace("_", "-")
        mode = _MODES.get(plain, mode)
        takes_value = not equals and plain not in _FLAGS
        width = 2 if takes_value and place + 1 < len(parts) and parts[place + 1] != "--" else 1
        if plain not in _MODES:
            options.append(name)
        place += width
    return place, options, mode
