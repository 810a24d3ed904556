"""``dtrain login`` and ``logout``: a token of Airflow's own login."""

from __future__ import annotations

import getpass
import json
import os
import sys
from argparse import Namespace

from airflow_provider_dtrain.client import logins
from airflow_provider_dtrain.client.address import Address, address
from airflow_provider_dtrain.client.common_answers import Token
from airflow_provider_dtrain.client.decoder import Answer
from airflow_provider_dtrain.client.logins import Login
from airflow_provider_dtrain.client.session import Session, refusal, server_url
from airflow_provider_dtrain.errors import LoginError, ServerError, UsageError
from airflow_provider_dtrain.terminal.output import hint, note

#: Airflow's route of the simple and of the FAB auth manager.
TOKEN = "/auth/token"  # noqa: S105 - a path
_MOST_CHARS = 10_000


def server_of(args: Namespace) -> Address:
    """Return the server of a command.

    :raises UsageError: none is named
    """
    found = server_url(args.server)
    if found is None:
        raise UsageError("No server is named. Give --server URL, set DTRAIN_SERVER, or run: dtrain login --server URL")
    return address(found)


def session_of(args: Namespace) -> Session:
    """Return the session of a command, with the token in ``DTRAIN_TOKEN`` or that of the login."""
    return Session(server_of(args), os.environ.get("DTRAIN_TOKEN") or None, ca=args.ca, allow_http=args.allow_http)


def login(args: Namespace) -> int:
    """Ask for name and password, and keep the token that Airflow gives for them."""
    server = server_of(args)
    # Before the password is typed: it raises an error for a server that must not get it.
    session = Session(server, "", ca=args.ca, allow_http=args.allow_http)
    user = args.username or _asked("Username: ")
    password = _line() if args.password_stdin else _asked_secretly(f"Password of {user} at {server.url}: ")
    token = token_for(session, user, password)
    ca = os.path.abspath(args.ca) if args.ca else logins.trusted(server.url)  # noqa: PTH100 - links stay
    path = logins.save(Login(server=server.url, user=user, token=token, ca=ca))
    note(f"Logged in to {server.url} as {user}. The token is in {path}.")
    hint("dtrain experiments list")
    return 0


def logout(args: Namespace) -> int:
    """Remove the token of a server from this machine."""
    server = server_of(args)
    if logins.remove(server.url):
        note(f"The token for {server.url} is removed from this machine. It stays valid elsewhere until it expires.")
    else:
        note(f"There is no token for {server.url} on this machine.")
    return 0


def token_for(session: Session, user: str, password: str) -> str:
    """Return a token of Airflow's login.

    :param session: without a token
    :raises LoginError: Airflow refuses name or password, or has no such login
    """
    body = json.dumps({"username": user, "password": password}).encode()
    server = session.server
    answer = session.request("POST", f"{server.base}{TOKEN}", {"Content-Type": "application/json"}, body)
    session.close()
    if answer.status in (400, 401, 403, 422):
        raise LoginError(f"{server.url} refused the name or the password of {user!r}.")
    if answer.status in (404, 405):
        raise LoginError(
            f"The login of {server.url} gives no tokens for passwords. Get a token as its documentation says, and set "
            "DTRAIN_TOKEN."
        )
    if answer.status >= 300:
        raise refusal(answer, server)
    try:
        token = Answer(answer.body).record(Token).access_token
    except ServerError:
        token = ""
    if not token.isascii() or not token.isprintable() or not 0 < len(token) < _MOST_CHARS:
        raise ServerError(f"{server.url} sent no token. Is it an Airflow 3 API server?")
    return token


def _asked(question: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError("Standard input is not a terminal. Give --username NAME and --password-stdin.")
    print(question, end="", file=sys.stderr, flush=True)
    return _line()


def _asked_secretly(question: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError("Standard input is not a terminal. Give --password-stdin.")
    return getpass.getpass(question, stream=sys.stderr)


def _line() -> str:
    return sys.stdin.readline(_MOST_CHARS).rstrip("\r\n")
