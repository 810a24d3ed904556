#!/bin/sh
# Starts Airflow: checks what it needs, migrates the store, registers the hosts of DTRAIN_HOSTS that are new.
set -eu

fail() {
    echo "airflow: $*" >&2
    exit 1
}

needed_mb=2048
available_mb=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
    [ -r "$file" ] || continue
    limit_mb=$(awk '/^[0-9]+$/ && length($1) < 15 {print int($1 / 1048576)}' "$file")
    [ "${limit_mb:-$available_mb}" -lt "$available_mb" ] && available_mb=$limit_mb
done
[ "$available_mb" -ge "$needed_mb" ] ||
    fail "$needed_mb MB of free memory are needed, $available_mb MB are there. With Docker Desktop:" \
        "Settings, Resources, Memory. Else stop other programs."
for file in id_ed25519 known_hosts; do
    [ -r "/keys/$file" ] || fail "/keys/$file is missing. Make the keys first: docker compose up keys"
done
[ -w "$AIRFLOW_HOME" ] || fail "$AIRFLOW_HOME cannot be written by user $(id -u). It must be a volume of that user."

python - <<'EOF' || fail "PostgreSQL cannot be used. Its log: docker compose logs postgres"
import os, sys, time

import psycopg

address = os.environ["AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN"].replace("+psycopg", "", 1)
deadline = time.monotonic() + 60
while True:
    try:
        psycopg.connect(address, connect_timeout=5).close()
        break
    except psycopg.OperationalError as error:
        if "authentication failed" in str(error) or time.monotonic() > deadline:
            sys.exit(str(error))
        time.sleep(0.5)
EOF

airflow dtrain db migrate
[ -e dags/dtrain_operations.py ] || airflow dtrain init
registered=$(airflow dtrain hosts list -o plain)
for host in ${DTRAIN_HOSTS:-}; do
    echo "$registered" | grep -q "^$host " && continue
    airflow dtrain hosts add "$host" --conn "$(echo "$host" | tr - _)" --slots "${DTRAIN_SLOTS:-auto}" \
        --python /opt/train/bin/python --state-dir /home/dtrain/state
done
exec airflow standalone
