"""Options of ``sbatch`` that a user adds to a pool, and those that the pool itself sets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from airflow_provider_dtrain.core.control_characters import is_one_line
from airflow_provider_dtrain.core.safe_repr import shown

_GANG: Final = "a gang is one job whose nodes and tasks follow from its slots"
_OWN: Final = "it would break the job of a gang"
_OUTPUT: Final = "the program that submits reads the output"
#: Long options of ``sbatch`` that a user may not add -> the reason and what to use instead.
PROTECTED: Final[dict[str, str]] = {
    "job-name": "the name finds the job of an attempt",
    "output": "use --job-output of the pool",
    "error": "use --job-output of the pool",
    "input": _OWN,
    "open-mode": _OWN,
    "nodes": _GANG,
    "ntasks": _GANG,
    "ntasks-per-node": _GANG,
    "tasks-per-node": _GANG,
    "ntasks-per-core": _GANG,
    "ntasks-per-socket": _GANG,
    "ntasks-per-gpu": _GANG,
    "cpus-per-task": "use --cpus-per-slot of the pool",
    "cpus-per-gpu": "use --cpus-per-slot of the pool",
    "gpus": _GANG,
    "gpus-per-node": _GANG,
    "gpus-per-task": _GANG,
    "gpus-per-socket": _GANG,
    "mem": "use --memory-per-slot of the pool",
    "mem-per-cpu": "use --memory-per-cpu of the pool",
    "partition": "use --partition of the pool",
    "account": "use --account of the pool",
    "qos": "use --qos of the pool",
    "clusters": "use --clusters of the pool",
    "cluster": "use --clusters of the pool",
    "time": "use --time-limit of the pool",
    "time-min": "use --time-min of the pool",
    "exclude": "the nodes that a trial leaves out are its own; --constraint selects kinds of nodes",
    "signal": "the job is warned before its end by a signal of its own",
    "requeue": "an attempt is one job, and a new attempt is a new job",
    "no-requeue": "an attempt is one job, and a new attempt is a new job",
    "dependency": "the job depends on its own name, so that an attempt has one job",
    "parsable": _OUTPUT,
    "quiet": _OUTPUT,
    "verbose": _OUTPUT,
    "help": _OUTPUT,
    "usage": _OUTPUT,
    "version": _OUTPUT,
    "test-only": "no job would be submitted",
    "wait": "the command would wait for the end of the job",
    "hold": "the job would never start",
    "wrap": "the script is given on standard input",
    "array": "job arrays are not supported: a gang is one job, and a search submits one job for each trial",
    "het-group": "heterogeneous jobs are not supported: all nodes of a gang have equally many slots",
    "pack-group": "heterogeneous jobs are not supported: all nodes of a gang have equally many slots",
    "no-kill": "a job that lost a node must end, so that the gang restarts",
    "uid": _OWN,
    "gid": _OWN,
}
#: Short forms of protected options.
_SHORT: Final = {
    "J": "job-name", "o": "output", "e": "error", "i": "input", "N": "nodes", "n": "ntasks", "c": "cpus-per-task",
    "G": "gpus", "p": "partition", "A": "account", "q": "qos", "M": "clusters", "t": "time", "x": "exclude",
    "d": "dependency", "Q": "quiet", "v": "verbose", "h": "help", "V": "version", "W": "wait", "H": "hold",
    "a": "array", "k": "no-kill",
}  # fmt: skip
#: Options that a user may add, and that leave out nodes of the partition; the short ones with their letter.
_EXCLUDING: Final = (
    "constraint", "nodelist", "nodefile", "reservation", "mincpus", "tmp", "gres", "extra-node-info", "mem-per-gpu",
    "sockets-per-node", "cores-per-socket", "threads-per-core", "licenses", "contiguous", "exclusive",
)  # fmt: skip
_EXCLUDING_SHORT: Final = "BCFLw"
#: Short options that may stand before others in one argument because they have no value, or only an attached one.
_WITHOUT_VALUE: Final = frozenset("HOsWvQhVkI")
#: Short options with a value that a user may add.
_WITH_VALUE: Final = frozenset("BbCDFLmPSwU")


def option_problem(text: str, *, gres_name: str | None = None) -> str | None:
    """Return the reason why a text cannot be an option of ``sbatch`` for this pool, None if it can.

    :param text: one option in any spelling: ``--constraint=a100``, ``--constraint a100``, ``-C a100``, ``-Ca100``
    :param gres_name: generic resource that the pool itself requests by ``--gres``, None if it requests none
    """
    if not isinstance(text, str) or not is_one_line(text) or not text.strip():
        return f"{shown(text)} is not one line of text"
    text = text.strip()
    if text == ":" or " : " in text:
        return f"{shown(text)}: {PROTECTED['het-group']}"
    if not text.startswith("-") or text in ("-", "--"):
        return f"{shown(text)} is not an option of sbatch, such as --constraint=a100"
    if not text.startswith("--"):
        return _short_problem(text)
    name = text[2:].replace("=", " ", 1).split(" ")[0]
    if name == "gres" and gres_name is not None:
        return f"--gres: the pool requests {gres_name} by this option; use its options --gres-name and --gres-type"
    # sbatch accepts the beginning of a name for the whole one.
    protected = name if name in PROTECTED else next((one for one in PROTECTED if one.startswith(name)), None)
    return f"--{protected} cannot be added: {PROTECTED[protected]}" if protected else None


def excludes_nodes(text: str) -> bool:
    """Return whether an option that a user added may exclude nodes that a job could have otherwise."""
    text = text.strip()
    if not text.startswith("--"):
        return text[1:2] in _EXCLUDING_SHORT
    name = text[2:].replace("=", " ", 1).split(" ")[0]
    return any(one.startswith(name) for one in _EXCLUDING)


def _short_problem(text: str) -> str | None:
    for letter in text[1:].partition(" ")[0]:
        if letter in _SHORT:
            return f"-{letter} (--{_SHORT[letter]}) cannot be added: {PROTECTED[_SHORT[letter]]}"
        if letter not in _WITHOUT_VALUE:
            return None if letter in _WITH_VALUE else f"{shown(text)} is not an option of sbatch"
    return None


def arguments(options: Iterable[str]) -> list[str]:
    """Return options as arguments of ``sbatch``: a value that follows a blank becomes an argument of its own."""
    found: list[str] = []
    for text in options:
        name, blank, value = text.strip().partition(" ")
        has_value = "=" in name or not blank
        found += [text.strip()] if has_value else [name, value.strip()]
    return found
