# Sourced by scripts/demo and scripts/test: sets $python to a Python 3.11, 3.12 or 3.13, or ends with the reason.

usable() { # candidates of version managers exist on PATH and still do not run, so each one is tried
    "$1" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

python=""
for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 python; do
    if usable "$candidate"; then
        python=$candidate
        break
    fi
done

if [ -z "$python" ]; then
    found=$(python3 --version 2>/dev/null || echo "no python3")
    echo "Python 3.11, 3.12 or 3.13 is needed; this machine's PATH has $found." >&2
    echo "Install one of them, or name one: PYTHON=/path/to/python3.11 $0" >&2
    exit 1
fi

if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "$python cannot make virtual environments: its modules venv and ensurepip are missing." >&2
    echo "On Debian and Ubuntu: apt-get install python$version-venv" >&2
    exit 1
fi
