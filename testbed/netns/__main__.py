"""Test hosts by hand: ``up`` runs them until Ctrl-C, ``clean`` removes the leftovers of dead runs."""

from __future__ import annotations

import argparse
import signal
import sys

from testbed.netns import NamespaceHosts, missing, remove_stale


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.netns", description=__doc__)
    parser.add_argument("what", choices=["up", "clean"])
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--shared-home", action="store_true")
    options = parser.parse_args()
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    if options.what == "clean":
        print("removed:", ", ".join(remove_stale()) or "nothing")
        return 0
    with NamespaceHosts(options.count, shared_home=options.shared_home) as hosts:
        for host in hosts:
            variable = f"AIRFLOW_CONN_{host.name.replace('-', '_').upper()}"
            print(f"export {variable}='{host.airflow_conn()}'")
            print(f"# ssh -i {host.private_key} root@{host.address}")
        print("# Ctrl-C ends them", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.exit(main())
