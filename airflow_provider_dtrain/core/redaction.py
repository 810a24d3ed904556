"""Redaction: the secrets of a trial are masked in text of its ranks before the text is stored or logged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, quote_plus, unquote

from airflow_provider_dtrain.core.config.secrets import MASK
from airflow_provider_dtrain.core.documents import JsonObject

#: Shorter texts are not secrets: they would be masked in most words of a log.
SHORTEST: Final = 5
#: Part of a secret at the edge of a text that is masked, characters at least.
_PART: Final = 4
#: Places that are compared with a part of a secret, per secret.
_TRIES: Final = 100
#: Longest text that is looked for as a whole; a longer secret is looked for in pieces.
_PIECE: Final = 4096
#: Places with a secret in one text. A text with more of them is masked as a whole.
_PLACES: Final = 50_000
#: Values of variables that are no secrets.
_PLAIN: Final = re.compile(r"true|false|none|null|[-+.\de]{1,8}", re.IGNORECASE)
#: User and password of a URL, and the secret parts of a connection string of Azure.
_PASSWORDS: Final = re.compile(r"://[^/\s:@]*:([^/\s@]+)@|(?:AccountKey|SharedAccessSignature|sig)=([^;&\s]+)")
#: Kinds of events that hold no text of ranks.
_WITHOUT_TEXT: Final = frozenset({"prepared", "started", "ended"})
#: Fields that name files or are compared with other values.
_KEPT: Final = frozenset(
    {"kind", "path", "removed", "part", "location", "finished", "sha256", "code", "backend", "device", "torch"}
)
_LINE_END: Final = re.compile(r"[\r\n]")
_Text = TypeVar("_Text", str, bytes)


class Redactor:
    """Mask for the secrets of one trial.

    :param credentials: secrets of the configuration and of its Airflow connection
    :param variables: private environment variables. They may equal names of metrics, so keys keep them
    :param withheld: why the secrets are not known; then all text of ranks is masked
    """

    def __init__(self, credentials: Iterable[str] = (), variables: Iterable[str] = (), *, withheld: str = "") -> None:
        in_keys = {form for value in credentials for form in _forms(value)}
        encoded = {form for value in variables if not _PLAIN.fullmatch(value.strip()) for form in _forms(value)}
        self._in_keys = sorted(in_keys)
        self._in_text = sorted(in_keys | encoded)
        self._in_logs = [form.encode("utf-8", "surrogatepass") for form in self._in_text]
        self.withheld = withheld
        #: Bytes of the longest text that is masked.
        self.longest = max(map(len, self._in_logs), default=0)

    def text(self, text: str) -> str:
        """Return a text of this provider, which may repeat text of ranks, with the known secrets masked."""
        return _masked(text, self._in_text)

    def rank_text(self, text: str) -> str:
        """Return a text of a rank or a host with the secrets masked."""
        return self.text(text) if not self.withheld or not text else f"({self.withheld})"

    def event(self, event: Mapping[str, Any]) -> JsonObject:
        """Return an event with the secrets in its texts masked.

        Fields that name files stay as they are, because they are compared with what is on disk.
        """
        kind = event["kind"]
        if kind in _WITHOUT_TEXT or not (self._in_text or self.withheld):
            return dict(event)
        if kind == "returned":
            return {**event, "json": self._returned(event)}
        return {self._key(name): value if name in _KEPT else self.value(value) for name, value in event.items()}

    def value(self, value: Any) -> Any:
        """Return plain data with the secrets in its texts masked."""
        if isinstance(value, str):
            return self.rank_text(value)
        if isinstance(value, Mapping):
            return {self._key(key): self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def _key(self, key: str) -> str:
        return _masked(key, self._in_keys)

    def _returned(self, event: Mapping[str, Any]) -> str:
        """Return the JSON of a returned value, which stays valid, or a part of it."""
        text = str(event["json"])
        if self.withheld:
            return "" if event.get("part") else json.dumps(f"({self.withheld})")
        if (event.get("parts") or 1) == 1:
            try:
                value = json.loads(text)
                masked = self.value(value)
            except (ValueError, RecursionError):
                return self.text(text)
            return text if masked == value else json.dumps(masked)
        return _masked(text, [form for form in self._in_text if not _PLAIN.fullmatch(form)])

    def log(self, data: bytes, *, is_cut: bool = False) -> bytes:
        """Return bytes of a log with asterisks in place of secrets, as many bytes as before.

        :param is_cut: the bytes may begin or end within a secret; then its part is masked, too
        """
        return self._log(data, is_cut=is_cut)[0]

    def _log(self, data: bytes, *, is_cut: bool = False) -> tuple[bytes, list[tuple[int, int]]]:
        if self.withheld:
            return re.sub(rb"[^\r\n]", b"*", data), []
        spans = _spans(data, self._in_logs)
        if is_cut:
            spans += _edges(data, self._in_logs)
        masked = bytearray(data)
        for start, end in spans:
            masked[start:end] = b"*" * (end - start)
        return bytes(masked), spans

    def sure_log(self, data: bytes, *, is_cut: bool = False) -> bytes:
        """Return the first bytes of a log with the secrets masked, as far as they depend on no bytes that follow.

        :param is_cut: the bytes may begin within a secret
        """
        masked, spans = self._log(data, is_cut=is_cut)
        if self.withheld or not self.longest:
            return masked
        cut = max(0, data.rfind(b"\n") + 1, data.rfind(b"\r") + 1, len(data) - self.longest + 1)
        return masked[: max([cut, *(end for start, end in spans if start < cut)])]


def secret_texts(value: Any, name: str = "") -> Iterator[str]:
    """Yield the texts of a credential that may be secret: all but types, projects and addresses.

    :param value: a text, a number, or the content of a key file
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from secret_texts(item, str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from secret_texts(item, name)
    elif value is not None and not isinstance(value, bool) and not name.endswith(_NAMES_NO_SECRET):
        yield str(value)


_NAMES_NO_SECRET: Final = ("_uri", "_url", "type", "project_id", "universe_domain")


def _forms(value: str) -> Iterator[str]:
    """Yield a secret, each of its lines, and its passwords, as programs write them."""
    found = {value, *value.splitlines()}
    for match in _PASSWORDS.finditer(value):
        password = match[1] or match[2]
        found |= {password, unquote(password)}
    for one in {text.strip() for text in found}:
        escaped = (json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1], repr(one)[1:-1])
        for form in (one, *escaped, quote(one, safe=""), quote_plus(one)):
            # A log is masked line by line.
            if len(form) >= SHORTEST and not _LINE_END.search(form):
                yield from _pieces(form)


def _pieces(form: str) -> Iterator[str]:
    last = max(0, len(form) - _PIECE)
    yield from (form[start : start + _PIECE] for start in (*range(0, last, _PIECE), last))


def _spans(text: _Text, forms: Iterable[_Text]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for form in forms:
        start = text.find(form)
        while start >= 0:
            found.append((start, start + len(form)))
            if len(found) > _PLACES:
                return [(0, len(text))]
            start = text.find(form, start + 1)
    return found


def _edges(data: bytes, forms: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    """Yield the places where a secret begins before the data, or ends after it."""
    head = data[:_PART]
    for form in forms:
        at = form.find(head, 1) if len(head) == _PART else -1
        for _ in range(_TRIES):
            if at < 0 or data.startswith(form[at:]):
                break
            at = form.find(head, at + 1)
        if at >= 0 and data.startswith(form[at:]):
            yield 0, len(form) - at
        at = data.find(form[:_PART], max(0, len(data) - len(form) + 1))
        for _ in range(_TRIES):
            if at < 0 or form.startswith(data[at:]):
                break
            at = data.find(form[:_PART], at + 1)
        if at >= 0 and form.startswith(data[at:]):
            yield at, len(data)


def _masked(text: str, forms: Iterable[str]) -> str:
    """Return a text with a mask in place of each form. Forms that overlap share one."""
    spans = sorted(_spans(text, forms))
    if not spans:
        return text
    parts: list[str] = []
    done = begin = 0
    for start, end in spans:
        if start >= done:
            parts.append(text[done:start])
            begin = start
            parts.append("")
        done = max(done, end)
        parts[-1] = MASK[: done - begin]
    return "".join([*parts, text[done:]])
