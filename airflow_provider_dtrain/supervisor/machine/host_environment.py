"""Variables of this host's login environment that its ranks get."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..names import JOB_PROCESS

#: What describes account and machine: paths and locale, proxies, certificates, caches, the network between GPUs.
_PASSED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TZ|LANG|LANGUAGE|LC_[A-Z]+|LD_LIBRARY_PATH|CUDA_HOME|CUDA_PATH"
    r"|(http|https|ftp|all|no)_proxy|(HTTP|HTTPS|FTP|ALL|NO)_PROXY"
    r"|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL|AWS)_CA_BUNDLE|GIT_SSL_CAINFO|NODE_EXTRA_CA_CERTS"
    r"|XDG_(CACHE|CONFIG|DATA|STATE)_HOME|XDG_(CONFIG|DATA)_DIRS"
    r"|HF_(HOME|HUB_CACHE|DATASETS_CACHE|ENDPOINT|HUB_OFFLINE)|HUGGINGFACE_HUB_CACHE|TRANSFORMERS_(CACHE|OFFLINE)"
    r"|TORCH_(HOME|EXTENSIONS_DIR)|TORCHINDUCTOR_CACHE_DIR|(TRITON|NUMBA|PIP|UV|WANDB)_CACHE_DIR|CUDA_CACHE_PATH"
    r"|NLTK_DATA|MPLCONFIGDIR|(NCCL|UCX|FI)_[A-Z0-9_]+"
)
#: What belongs to one login or to Python's start, and is set anew or not needed.
_OF_LOGIN = re.compile(
    r"_|PWD|OLDPWD|SHLVL|TERM|COLORTERM|MAIL|MOTD_SHOWN|PS[0-9]|IFS|SSH_.*|DBUS_.*|XDG_(SESSION_.*|RUNTIME_DIR|SEAT|VTNR)"
    r"|LS_COLORS|LESS.*|PAGER|EDITOR|VISUAL|HIST.*|DEBUGINFOD_URLS|PYTHON.*|DTRAIN_.*|CUDA_VISIBLE_DEVICES"
)


def is_of_login(name: str) -> bool:
    """Return whether a variable belongs to one login, its shell or the start of Python."""
    return _OF_LOGIN.fullmatch(name) is not None


def passed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that ranks get: of a job all that its setup lines left."""
    if JOB_PROCESS in environ:
        return {name: value for name, value in environ.items() if not is_of_login(name)}
    return {name: value for name, value in environ.items() if _PASSED.fullmatch(name)}


def withheld(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that ranks do not get although a user may expect them."""
    return sorted(name for name in environ if not _PASSED.fullmatch(name) and not _OF_LOGIN.fullmatch(name))
