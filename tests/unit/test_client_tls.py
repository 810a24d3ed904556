"""``dtrain`` over TLS and through proxies: each failure is one message with its cause and what solves it."""

from __future__ import annotations

import io
import socket
import threading
from datetime import timedelta

import pytest

from airflow_provider_dtrain.client.address import address
from airflow_provider_dtrain.client.failures import AwayError
from airflow_provider_dtrain.client.main import main
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.errors import ServerError, UsageError
from tests.support.tls_server import DAY, Authority, serving, signed_by_itself

PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch) -> None:
    for name in (*PROXIES, *(name.lower() for name in PROXIES), "DTRAIN_CA", "SSL_CERT_FILE", "DTRAIN_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DTRAIN_TOKEN", "given")


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def logged_in(monkeypatch, url: str, *more: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("password\n"))
    return main(["login", "--server", url, "--username", "ann", "--password-stdin", *more])


def listed(url: str, *more: str) -> int:
    return main(["trials", "list", "-o", "json", "--server", url, *more])


def refused(url: str, *, ca: object = None) -> str:
    """Return the message of a request that is not repeated, because a later try cannot succeed."""
    pauses: list[float] = []
    with pytest.raises(ServerError) as caught:
        Session(address(url), "given", ca=None if ca is None else str(ca), sleep=pauses.append).get("/me")
    assert not isinstance(caught.value, AwayError)
    assert pauses == []
    return str(caught.value)


def test_the_certificates_of_a_login_are_trusted_by_later_commands_of_that_server_only(
    authority, tmp_path, monkeypatch, capsys
):
    other = Authority(tmp_path, "other")
    certificate = authority.certificate()
    monkeypatch.chdir(authority.folder)
    with serving(certificate) as server, serving(certificate) as another:
        url = f"https://127.0.0.1:{server.server_port}"
        assert logged_in(monkeypatch, url, "--ca", authority.file.name) == 0
        monkeypatch.chdir(tmp_path)
        assert listed(url) == 0
        # A later login keeps them, for example after the token has expired.
        assert logged_in(monkeypatch, url) == 0
        assert listed(url) == 0
        monkeypatch.setenv("SSL_CERT_FILE", str(other.file))
        assert listed(url) == 0
        capsys.readouterr()
        assert listed(f"https://127.0.0.1:{another.server_port}") == 1
        monkeypatch.setenv("DTRAIN_CA", str(other.file))
        assert listed(url) == 1
        assert f"{other.file} (DTRAIN_CA) does not have it" in capsys.readouterr().err
        monkeypatch.delenv("DTRAIN_CA")
        assert main(["logout", "--server", url]) == 0
        assert listed(url) == 1


def test_certificates_of_a_login_that_are_gone_are_named_and_replaced_by_a_new_login(
    authority, tmp_path, monkeypatch, capsys
):
    gone = tmp_path / "gone.pem"
    gone.write_bytes(authority.file.read_bytes())
    with serving(authority.certificate()) as server:
        url = f"https://127.0.0.1:{server.server_port}"
        assert logged_in(monkeypatch, url, "--ca", str(gone)) == 0
        gone.unlink()
        assert listed(url) == 2
        assert f"{gone} (--ca of dtrain login) cannot be read: No such file" in capsys.readouterr().err
        assert logged_in(monkeypatch, url, "--ca", str(authority.file)) == 0
        assert listed(url) == 0


@pytest.mark.parametrize("setting", ["--ca", "DTRAIN_CA", "SSL_CERT_FILE"])
def test_a_certificate_is_trusted_by_a_file_of_its_authority(authority, setting, monkeypatch, capsys):
    with serving(authority.certificate()) as server:
        url = f"https://127.0.0.1:{server.server_port}"
        if setting == "--ca":
            assert listed(url, "--ca", str(authority.file)) == 0
        else:
            monkeypatch.setenv(setting, str(authority.file))
            assert listed(url) == 0
    assert capsys.readouterr().out == "[]\n"


def test_a_certificate_of_an_unknown_authority_is_one_message_with_the_setting(authority, capsys):
    with serving(authority.certificate()) as server:
        url = f"https://127.0.0.1:{server.server_port}"
        assert listed(url) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f"The certificate of {url} is signed by an authority that is not trusted, and the system's")
    assert shown.endswith("Name a file with the certificates of its authority: --ca FILE, or DTRAIN_CA=FILE.\n")
    assert (len(shown.splitlines()), server.seen) == (1, [])


def test_a_certificate_that_is_signed_by_itself_is_trusted_by_its_own_file(authority, tmp_path):
    file, public = signed_by_itself(tmp_path)
    with serving(file) as server:
        url = f"https://127.0.0.1:{server.server_port}"
        words = refused(url, ca=authority.file)
        assert "is signed by itself" in words
        assert f"{authority.file} (--ca) does not have it" in words
        assert "Name a file with the certificate itself: --ca FILE" in words
        assert listed(url, "--ca", str(public)) == 0


def test_a_certificate_of_another_host_names_both(authority):
    with serving(authority.certificate(["air.test"])) as server:
        words = refused(f"https://127.0.0.1:{server.server_port}", ca=authority.file)
    assert "is that of another host" in words
    assert "not valid for '127.0.0.1'" in words
    assert "--ca" not in words


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [(-2 * DAY, -DAY, "has expired. Renew it on the server"), (DAY, 2 * DAY, "is not valid yet. Check the clock")],
    ids=["expired", "later"],
)
def test_a_certificate_outside_its_time_names_the_clock(authority, begin: timedelta, end: timedelta, words):
    with serving(authority.certificate(begin=begin, end=end)) as server:
        found = refused(f"https://127.0.0.1:{server.server_port}", ca=authority.file)
    assert words in found
    assert "clock" in found


def test_a_login_gets_the_same_message(authority, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"readline": lambda self, most: "secret\n"})())
    with serving(authority.certificate()) as server:
        words = ["login", "--server", f"https://127.0.0.1:{server.server_port}", "--username", "ann"]
        assert main([*words, "--password-stdin"]) == 1
    assert "--ca FILE" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "text"])
def test_a_file_of_certificates_that_is_none_is_named_with_its_setting(tmp_path, content, monkeypatch, capsys):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("DTRAIN_CA", str(file))
    assert listed("https://127.0.0.1:1") == 2
    assert f"The certificates in {file} (DTRAIN_CA) cannot be read: " in capsys.readouterr().err


def test_a_handshake_that_a_server_refuses_is_not_repeated(authority):
    with serving(authority.certificate(), clients=authority.file) as server:
        words = refused(f"https://127.0.0.1:{server.server_port}", ca=authority.file)
    assert words.startswith(f"No TLS connection to https://127.0.0.1:{server.server_port} is possible: ")


def test_a_line_that_drops_during_the_handshake_is_tried_again(authority):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pauses: list[float] = []

        def drop() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=drop, daemon=True).start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(AwayError, match="does not answer"):
            Session(address(url), "given", ca=str(authority.file), sleep=pauses.append).get("/me")
        assert len(pauses) == 3


def test_a_server_without_tls_names_the_other_url():
    with serving() as server:
        rest = f"127.0.0.1:{server.server_port}"
        assert refused(f"https://{rest}") == (
            f"https://{rest} does not speak TLS. If it serves plain HTTP, use: http://{rest}"
        )


def test_a_server_with_tls_names_the_other_url(authority):
    with serving(authority.certificate()) as server:
        rest = f"127.0.0.1:{server.server_port}"
        with pytest.raises(ServerError, match=f"use: https://{rest}$"):
            Session(address(f"http://{rest}"), "given", sleep=lambda _: None).get("/me")


@pytest.mark.parametrize("user", ["", "ann:p@ss"])
def test_a_tunnel_through_a_proxy_checks_the_certificate_of_the_server(authority, user, monkeypatch, capsys):
    with serving(authority.certificate()) as server, serving(leads_to=server.server_port) as proxy:
        proxy.user = user
        given = f"{user.replace('p@', 'p%40')}@" if user else ""
        monkeypatch.setenv("HTTPS_PROXY", f"http://{given}127.0.0.1:{proxy.server_port}")
        assert listed("https://air.test", "--ca", str(authority.file)) == 0, capsys.readouterr()
        assert proxy.seen == ["air.test:443"]
        assert len(server.seen) == 1
        words = refused("https://other.test", ca=authority.file)
        assert "is that of another host" in words
        words = refused("https://air.test")
        assert f"It may be that of the proxy 127.0.0.1:{proxy.server_port} (HTTPS_PROXY)." in words


def test_a_proxy_that_wants_a_user_or_refuses_is_named_with_its_setting(authority, monkeypatch):
    with serving(leads_to=1) as proxy:
        monkeypatch.setenv("all_proxy", f"127.0.0.1:{proxy.server_port}")
        name = f"The proxy 127.0.0.1:{proxy.server_port} (all_proxy)"
        proxy.user = "ann:secret"
        wants = f"{name} wants a user and a password: all_proxy=http://USER:PASSWORD@127.0.0.1:{proxy.server_port}"
        assert refused("https://air.test") == wants
        proxy.user, proxy.status = "", 403
        assert refused("https://air.test").startswith(f"{name} refuses connections to https://air.test: 403 ")
        proxy.status = 502
        with pytest.raises(AwayError, match=r"does not reach https://air\.test: 502 .*NO_PROXY=air\.test"):
            Session(address("https://air.test"), "given", sleep=lambda _: None).get("/me")
    with pytest.raises(AwayError, match=r"\(all_proxy\) does not answer: Connection refused"):
        Session(address("https://air.test"), "given", sleep=lambda _: None).get("/me")


def test_plain_http_is_forwarded_by_a_proxy_without_a_tunnel(monkeypatch, capsys):
    with serving(leads_to=1) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://ann:secret@127.0.0.1:{proxy.server_port}")
        assert listed("http://air.test:8080/airflow", "--allow-http") == 0
        assert proxy.seen == [
            "http://air.test:8080/airflow/dtrain/api/v1/trials?replaced=true&sort=created_at&order=desc&limit=50"
        ]
        assert proxy.proxy_tokens[0].startswith("Basic ")
        monkeypatch.setenv("NO_PROXY", "air.test")
        monkeypatch.setattr("airflow_provider_dtrain.client.session.PAUSES_S", ())
        assert listed("http://air.test:1", "--allow-http") == 1
        assert len(proxy.seen) == 1
    assert "secret" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("text", ["socks5://ann:secret@p:1080", "https://p:443", "http://p:port", "http://"])
def test_a_proxy_of_another_kind_is_refused_without_its_password(text, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", text)
    with pytest.raises(UsageError, match=r"^HTTPS_PROXY must be a proxy .*NO_PROXY=air\.test$") as caught:
        Session(address("https://air.test"), "given").get("/me")
    assert "secret" not in str(caught.value)
