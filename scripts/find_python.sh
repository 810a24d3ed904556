# Sourced by scripts/demo and scripts/test: sets $python to a Python 3.11, 3.12 or 3.13, or exits with the reason.
# $python is never the interpreter of a virtual environment: the scripts may have to remove that environment.

base_of() { # prints the base interpreter of a candidate; a version manager's stub may exist and still not run
    "$1" -c '
import os, sys
base = getattr(sys, "_base_executable", None) or sys.executable
if not (3, 11) <= sys.version_info[:2] <= (3, 13) or not os.access(base, os.X_OK):
    raise SystemExit(1)
print(base)' 2>/dev/null
}

can_make_environments() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

python=""
incomplete=""
for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 python; do
    base=$(base_of "$candidate") || continue
    if can_make_environments "$base"; then
        python=$base
        break
    fi
    incomplete=${incomplete:-$base}
done

if [ -z "$python" ] && [ -n "$incomplete" ]; then
    version=$("$incomplete" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "$incomplete cannot create virtual environments: its modules venv and ensurepip are missing." >&2
    echo "On Debian and Ubuntu: apt-get install python$version-venv" >&2
    exit 1
fi

if [ -z "$python" ]; then
    found=$(python3 --version 2>/dev/null || echo "no python3")
    echo "Python 3.11, 3.12 or 3.13 is required; PATH has $found." >&2
    echo "Install one of them, or set its path: PYTHON=/path/to/python3.11 $0" >&2
    exit 1
fi
