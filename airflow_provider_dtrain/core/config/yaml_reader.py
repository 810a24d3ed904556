"""Bounded reader for untrusted YAML: plain data only, YAML 1.2 scalars.

The parser is libyaml (the C safe loader of PyYAML). This module builds values from its events with an
explicit stack, so that depth and expanded size are known before anything is built or walked.

Scalars follow the core schema of YAML 1.2: ``1e-3`` is a number, ``010`` is ten, ``on``, ``yes``,
``12:30`` and ``2024-01-01`` are strings. Merge keys (``<<: *anchor``, or a list of them) are kept
from YAML 1.1 because anchors are of little use without them: keys written out win, earlier maps of
a list win over later ones, and merged values count against the limits like all other values.
Tags: ``!override``, ``!reset`` and the plain types (``!!str``, ``!!int`` ...). All other tags are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from airflow_provider_dtrain.core.config.merge import RESET, Override, join_path
from airflow_provider_dtrain.core.control_characters import is_one_line
from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.core.safe_repr import JINJA, LIMIT, is_jinja, shown
from airflow_provider_dtrain.errors import ConfigError, Problem

MAX_BYTES: Final = 1024 * 1024
#: Values of a document after its aliases are expanded.
MAX_VALUES: Final = 100_000
MAX_DEPTH: Final = 64
#: Characters of a dotted path. Each field has its path in places, origins and messages, so that longer ones would cost
#: many times the size of the document.
MAX_PATH: Final = 500
#: Problems of one document.
MAX_PROBLEMS: Final = 1000
#: Longer integers cost quadratic time and no database takes them.
MAX_DIGITS: Final = 400
#: Bits of an integer of that many digits.
_MAX_BITS: Final = 1329

_TAB: Final = "a tab, where YAML is indented with spaces"
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE_KEY: Final = object()
_CORE: Final = "tag:yaml.org,2002:"

# Source: YAML 1.2.2, 10.3.2 (core schema, tag resolution).
_NULL = re.compile(r"(?:null|Null|NULL|~|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z", re.ASCII)
_SPECIAL = re.compile(r"([-+]?)\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")


def load_yaml(text: str | bytes, *, source: str = "configuration", most_values: int = MAX_VALUES) -> ConfigDocument:
    """Return the mapping in a YAML text. An empty document is ``{}``.

    :param text: YAML, at most 1 MiB as UTF-8, also after its aliases are expanded
    :param source: name of the text in error messages
    :param most_values: number of values after its aliases are expanded
    :raises ConfigError: not YAML, not a mapping, too large, too deep, or an unknown tag
    """
    _check_size(text, source)
    builder = _Builder(source, text, most_values)
    try:
        document = builder.run(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        hint = _jinja_hint(text, mark.line if mark is not None else 0)
        problem = _TAB if _is_tab(text, mark) else error.problem or error.context
        raise _refusal(source, f"not YAML: {problem}{_line(mark)}{hint}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise _refusal(source, f"not YAML: {getattr(error, 'reason', None) or type(error).__name__}") from None
    if builder.problems:
        raise ConfigError(builder.problems, source=source)
    if not isinstance(document, dict):
        raise _refusal(source, f"{type(document).__name__} at the top; a map of fields is accepted")
    return document


def check_shape(document: Mapping[str, Any], *, is_argument: bool = False) -> list[Problem]:
    """Return the problems of a Python document: size, depth, keys, types.

    Walks an explicit stack and stops at the limits, so that it also ends on cycles and shared values.

    :param document: a mapping from code instead of YAML
    :param is_argument: it is part of a DAG, whose integers have 64 bits when Airflow sends it to another process
    """
    problems: list[Problem] = []
    stack: list[tuple[str, int, Any]] = [("", 0, document)]
    seen = chars = 0
    while stack:
        path, depth, value = stack.pop()
        seen += 1
        chars += len(value) if isinstance(value, str) else 0
        if len(path) > MAX_PATH:
            return [*problems, Problem(path=f"{path[:LIMIT]}...", message=_LONG_PATH)]
        if depth > MAX_DEPTH or seen > MAX_VALUES or chars > MAX_BYTES:
            what = f"more than {MAX_VALUES} values" if seen > MAX_VALUES else _LARGE
            what = f"nested deeper than {MAX_DEPTH}" if depth > MAX_DEPTH else what
            # The whole path of a value in a cycle would be as long as the limit is deep.
            return [*problems, Problem(path=".".join(path.split(".")[:4]), message=what)]
        stack.extend(_children(path, depth + 1, value, problems))
        if is_argument and isinstance(value, int) and not -(2**63) <= value < 2**64:
            problems.append(Problem(path=path, message=f"{shown(value)} has more than 64 bits: pass it as a text"))
    return problems


_LARGE: Final = "more than 1 MiB of text"
_LONG_PATH: Final = f"the names of a field and of those around it have more than {MAX_PATH} characters"


def _children(path: str, depth: int, value: Any, problems: list[Problem]) -> list[tuple[str, int, Any]]:
    """Return the children of a value, and add a problem for each key or value that JSON cannot represent."""
    if isinstance(value, Override):
        return [(path, depth, value.value)]
    if isinstance(value, Mapping):
        bad = [key for key in value if not isinstance(key, str)]
        problems.extend(Problem(path=path, message=f"key {shown(key)} is not a string: quote it") for key in bad)
        # Names of hyperparameters are shown in tables and charts.
        hidden = [key for key in value if isinstance(key, str) and not is_one_line(key)]
        problems.extend(Problem(path=path, message=f"key {shown(key)} has a control character") for key in hidden)
        problems.extend(Problem(path=path, message=_NO_UNICODE) for key in value if not _is_unicode(key))
        return [(join_path(path, _key_text(key)), depth, item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(join_path(path, str(index)), depth, item) for index, item in enumerate(value)]
    if not _is_unicode(value):
        problems.append(Problem(path=path, message=_NO_UNICODE))
    elif isinstance(value, float) and not math.isfinite(value):
        problems.append(Problem(path=path, message=f"{value} is not finite"))
    elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
        problems.append(Problem(path=path, message=f"{shown(value)}; at most {MAX_DIGITS} are accepted"))
    elif not (value is None or value is RESET or isinstance(value, (str, int, float, bool))):
        library = type(value).__module__.partition(".")[0]
        kind = type(value).__qualname__ if library == "builtins" else f"{library}.{type(value).__qualname__}"
        problems.append(Problem(path=path, message=f"a value of the type {kind} is not plain data. {_PLAIN}"))
    return []


_PLAIN: Final = (
    "Accepted are texts, numbers, True, False, None, lists and maps; of NumPy, value.item() or value.tolist()"
)
_NO_UNICODE: Final = "a text has half a pair of surrogates, which no encoding of Unicode holds"


def _is_unicode(value: object) -> bool:
    if not isinstance(value, str) or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _key_text(key: object) -> str:
    return key if isinstance(key, str) else shown(key)


def _check_size(text: str | bytes, source: str) -> None:
    size = len(text)
    if isinstance(text, str) and size <= MAX_BYTES:
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _refusal(source, f"{size} bytes; at most {MAX_BYTES} (1 MiB) are accepted")


def _refusal(source: str, message: str) -> ConfigError:
    return ConfigError([Problem(path="", message=message)], source=source)


def _line(mark: Any) -> str:
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""


def _is_tab(text: str | bytes, mark: Any) -> bool:
    """Return whether the character that libyaml refuses is a tab."""
    lines = (text if isinstance(text, str) else text.decode("utf-8", "replace")).split("\n")
    if mark is None or not 0 <= mark.line < len(lines):
        return False
    # The mark of some errors is the first character of the line's indentation.
    line = lines[mark.line]
    return line[mark.column : mark.column + 1] == "\t" or "\t" in line[: len(line) - len(line.lstrip(" \t"))]


def _jinja_hint(text: str | bytes, line: int) -> str:
    lines = (text if isinstance(text, str) else text.decode("utf-8", "replace")).splitlines()
    around = "\n".join(lines[max(line - 1, 0) : line + 1])
    return f". {JINJA}" if is_jinja(around) else ""


@dataclass(slots=True)
class _OpenNode:
    """A map or list that is still open."""

    value: ConfigDocument | list[Any]
    #: ``!override`` or ``!reset`` on the collection itself.
    tag: str | None
    anchor: str | None
    #: Number of values built before it opened, and of their characters, to compute its expanded size.
    before: int
    before_chars: int
    #: Characters of the path to it.
    path: int
    #: Number of levels below it so far.
    height: int = 1
    #: The key that waits for its value; None: a key comes next.
    key: Any = None
    merged: list[ConfigDocument] = field(default_factory=list)


class _Builder:
    """Builds one document from parser events.

    :param source: name of the text in error messages
    :param text: the YAML, to find Jinja when a key is a map
    :param most_values: number of values after aliases are expanded
    """

    def __init__(self, source: str, text: str | bytes, most_values: int) -> None:
        self.source = source
        self.text = text
        self.most_values = most_values
        self.problems: list[Problem] = []
        self.stack: list[_OpenNode] = []
        #: Anchor -> value, number of its values and characters, and its height.
        self.anchors: dict[str, tuple[Any, int, int, int]] = {}
        self.values = 0
        self.chars = 0
        self.documents = 0
        self.root: Any = {}

    def run(self, events: Iterator[Any]) -> Any:
        """Return the root value of the only document. An empty document is an empty map."""
        handlers: dict[type, Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.AliasEvent: self._alias,
            yaml.MappingStartEvent: self._open,
            yaml.SequenceStartEvent: self._open,
            yaml.MappingEndEvent: self._close,
            yaml.SequenceEndEvent: self._close,
            yaml.DocumentStartEvent: self._document,
        }
        for event in events:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
        return self.root

    def _document(self, event: Any) -> None:
        self.documents += 1
        if self.documents > 1:
            raise self._stop(event, "a second document starts here; one is accepted")

    def _stop(self, event: Any, message: str, hint: str = "") -> ConfigError:
        problem = Problem(path=self._path(), message=message + _line(event.start_mark) + hint)
        return ConfigError([*self.problems, problem], source=self.source)

    def _path(self) -> str:
        path = ""
        for frame in self.stack:
            if isinstance(frame.value, list):
                path = join_path(path, str(len(frame.value)))
            elif isinstance(frame.key, str):
                path = join_path(path, frame.key)
        return path

    def _count(self, event: Any, values: int, chars: int, height: int) -> None:
        """Count values, characters and levels, and raise when a limit is exceeded, before anything is built."""
        self.values += values
        self.chars += chars
        if self.values > self.most_values:
            raise self._stop(event, f"more than {self.most_values} values once aliases are expanded")
        if self.chars > MAX_BYTES:
            raise self._stop(event, f"{_LARGE} once aliases are expanded")
        if len(self.stack) + height > MAX_DEPTH:
            raise self._stop(event, f"nested deeper than {MAX_DEPTH}")

    def _wants_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None

    def _open(self, event: Any) -> None:
        if self._wants_key():
            hint = _jinja_hint(self.text, event.start_mark.line)
            raise self._stop(event, "a map or list is used as a key; keys must be strings", hint)
        is_map = type(event) is yaml.MappingStartEvent
        self._check_collection_tag(event, "map" if is_map else "seq")
        self._count(event, 1, 0, 1)
        if event.anchor is not None:
            self.anchors.pop(event.anchor, None)
        path = self._path_chars() if self.stack else 0
        self.stack.append(_OpenNode({} if is_map else [], event.tag, event.anchor, self.values - 1, self.chars, path))

    def _path_chars(self) -> int:
        """Return the number of characters of the path to the value that comes next."""
        frame = self.stack[-1]
        name = frame.key if isinstance(frame.key, str) else str(len(frame.value))
        return frame.path + len(name) + 1

    def _check_collection_tag(self, event: Any, kind: str) -> None:
        if event.tag not in (None, "!", "!override", "!reset", _CORE + kind):
            self._note(event, _refused_tag(event.tag))

    def _note(self, event: Any, message: str) -> None:
        if len(self.problems) >= MAX_PROBLEMS:
            raise self._stop(event, f"more than {MAX_PROBLEMS} problems")
        self.problems.append(Problem(path=self._path(), message=message + _line(event.start_mark)))

    def _close(self, event: Any) -> None:
        frame = self.stack.pop()
        value: Any = frame.value
        for merged in frame.merged:
            for key, item in merged.items():
                value.setdefault(key, item)
        value = _tagged(frame.tag, value)
        self._remember(frame.anchor, value, self.values - frame.before, self.chars - frame.before_chars, frame.height)
        self._emit(event, value, frame.height)

    def _remember(self, anchor: str | None, value: Any, values: int, chars: int, height: int) -> None:
        if anchor is not None:
            self.anchors[anchor] = (value, values, chars, height)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self.anchors:
            message = (
                "the alias names no finished anchor; quote a string that begins with *; a value cannot contain itself"
            )
            raise self._stop(event, message)
        value, values, chars, height = self.anchors[event.anchor]
        self._count(event, values, chars, height)
        if self._wants_key():
            self._key(event, value)
        else:
            self._emit(event, _copy(value), height)

    def _scalar(self, event: Any) -> None:
        self._count(event, 1, len(event.value), 0)
        is_key = self._wants_key()
        if is_key and event.value == "<<" and event.implicit[0] and event.tag is None:
            self._key(event, _MERGE_KEY)
            return
        value = self._resolve(event)
        self._remember(event.anchor, value, 1, len(event.value), 0)
        if is_key:
            self._key(event, value)
        else:
            self._emit(event, value, 0)

    def _key(self, event: Any, key: Any) -> None:
        frame = self.stack[-1]
        if key is not _MERGE_KEY and not isinstance(key, str):
            self._note(event, f"key {shown(key)} is not a string: quote it")
            key = _key_text(key)
        frame.key = key
        if key is not _MERGE_KEY and frame.path + len(key) > MAX_PATH:
            frame.key = f"{key[:LIMIT]}..."
            raise self._stop(event, _LONG_PATH)
        if key is _MERGE_KEY:
            if frame.merged:
                self._note(event, "<< is given twice; give it a list")
        elif key in frame.value:
            self._note(event, "the key is given twice")

    def _emit(self, event: Any, value: Any, height: int) -> None:
        """Add a finished value to the collection that is open."""
        if not self.stack:
            self.root = {} if value is None else value
            return
        frame = self.stack[-1]
        frame.height = max(frame.height, height + 1)
        if isinstance(frame.value, list):
            frame.value.append(value)
            return
        if frame.key is _MERGE_KEY:
            self._merge_key(event, frame, value)
        else:
            frame.value[frame.key] = value
        frame.key = None

    def _merge_key(self, event: Any, frame: _OpenNode, value: Any) -> None:
        maps = value if isinstance(value, list) else [value]
        if all(isinstance(item, dict) for item in maps):
            frame.merged.extend(maps)
        else:
            self._note(event, "<< takes a map or a list of maps")

    def _resolve(self, event: Any) -> Any:
        """Return the value of a scalar by its tag, or by its text when it is plain."""
        tag = event.tag
        if tag in (None, "!override"):
            plain = event.implicit[0] if tag is None else event.style in (None, "")
            return _tagged(tag, self._plain(event) if plain else event.value)
        if tag == "!reset":
            return RESET
        if tag in ("!", _CORE + "str"):
            return event.value
        return self._typed(event, tag)

    def _typed(self, event: Any, tag: str) -> Any:
        types: dict[str, tuple[type, ...]] = {
            _CORE + "int": (int,),
            _CORE + "float": (float, int),
            _CORE + "bool": (bool,),
            _CORE + "null": (type(None),),
        }
        if tag not in types:
            self._note(event, _refused_tag(tag))
            return None
        value = self._plain(event)
        if type(value) not in types[tag]:
            self._note(event, f"{shown(event.value)} is not a valid {tag.removeprefix(_CORE)}")
        return float(value) if tag == _CORE + "float" and type(value) is int else value

    def _plain(self, event: Any) -> Any:
        text: str = event.value
        if _INT.match(text) and len(text) > MAX_DIGITS:
            self._note(event, f"an integer of {len(text)} digits; at most {MAX_DIGITS} are accepted")
            return 0
        return plain_scalar(text)


def _refused_tag(tag: str) -> str:
    """Return the message for a refused tag.

    It omits a tag that no YAML library defines, because that may be an unquoted password.
    """
    name = tag if tag.startswith((_CORE, "!!", "!python", "!include", "!env")) and len(tag) <= LIMIT else "!..."
    return f"the tag {name} is refused; accepted: !override, !reset; quote a string that begins with !"


def plain_scalar(text: str) -> bool | int | float | str | None:
    """Return the value of an unquoted scalar in YAML 1.2."""
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text[0] in "tT"
    if _INT.match(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.match(text):
        return float(text)
    special = _SPECIAL.match(text)
    if special:
        return math.nan if special.group(1) is None else float(special.group(1) + "inf")
    return text


def _tagged(tag: str | None, value: Any) -> Any:
    if tag == "!override":
        return Override(value)
    return RESET if tag == "!reset" else value


def _copy(value: Any) -> Any:
    """Return a copy of an alias's value, so that no two places share one value."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return Override(_copy(value.value)) if isinstance(value, Override) else value
