"""Parts that the answers of several pages share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, with_config


class Model(BaseModel):
    """Base class of all answers and request bodies. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


#: Decorator of answers with thousands of parts. They are dictionaries, which are sent as they are: a model checks each
#: part, which takes ten times as long. mypy and the tests check their types.
unchecked = with_config(ConfigDict(extra="forbid"))


class Problem(Model):
    """One problem of a request body or a configuration."""

    #: Dotted path of the field; empty: the document itself.
    path: str
    message: str


class ErrorDetail(Model):
    """Cause of a refusal, and the next step."""

    #: ``unauthenticated``, ``forbidden``, ``cross_site``, ``not_found``, ``conflict``, ``invalid``, ``gone``,
    #: ``store_unavailable``, ``closed`` or ``internal``.
    code: str
    message: str
    #: Command or setting that helps; empty: there is none.
    hint: str
    #: Problems of the body or the configuration, all at once.
    problems: list[Problem] = []


class ErrorAnswer(Model):
    """Body of every answer with a status of 400 or more."""

    detail: ErrorDetail


class Done(Model):
    """Outcome of a change without another answer."""

    message: str
