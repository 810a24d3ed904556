"""Variables of a host's logins: those that ranks get, and those that a registration names."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.launch.plan import RESERVED_VARIABLES
from airflow_provider_dtrain.supervisor.machine.host_environment import passed, withheld

PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME"),
    *("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_NUMERIC"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "NLTK_DATA"),
    *("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES", "FI_PROVIDER"),
)
OF_LOGIN = (
    *("PWD", "OLDPWD", "SHLVL", "_", "TERM", "SSH_CLIENT", "SSH_AUTH_SOCK", "MAIL", "XDG_RUNTIME_DIR", "LS_COLORS"),
    *("XDG_SESSION_ID", "DBUS_SESSION_BUS_ADDRESS", "PYTHONPATH", "DTRAIN_NO_CGROUP", "PS1"),
)
WITHHELD = ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_DATA", "AIRFLOW__CORE__X", "lang", "PATHS")


def test_what_describes_account_and_machine_is_passed_and_the_rest_is_named_or_of_the_login() -> None:
    environ = {name: f"value of {name}" for name in (*PASSED, *OF_LOGIN, *WITHHELD)}
    assert passed(environ) == {name: environ[name] for name in PASSED}
    assert withheld(environ) == sorted(WITHHELD)


@pytest.mark.parametrize("name", sorted(RESERVED_VARIABLES))
def test_no_variable_of_a_launch_comes_from_a_login(name: str) -> None:
    assert passed({name: "1"}) == {}
