#!/bin/sh
# Makes the key pair of Airflow and the host key of each host that is named, once: make-keys.sh HOST...
# /keys/airflow is for Airflow alone, /keys/HOST for that host alone. Airflow knows the host keys from here.
set -eu
umask 077

make_key() { # folder, name, comment; the private key comes last, so that an interrupted call is repeated
    [ -f "$1/$2" ] && return
    rm -f "$1/new" "$1/new.pub"
    ssh-keygen -q -t ed25519 -N "" -C "$3" -f "$1/new"
    mv "$1/new.pub" "$1/$2.pub"
    mv "$1/new" "$1/$2"
    echo "Made $1/$2."
}

for name in airflow "$@"; do
    [ -d "/keys/$name" ] && continue
    echo "make-keys.sh: /keys/$name is not a volume of this service. Add it to 'volumes' of 'keys' in compose.yaml." >&2
    exit 1
done
make_key /keys/airflow id_ed25519 dtrain
known=/keys/airflow/known_hosts
: >"$known.new"
for host in "$@"; do
    make_key "/keys/$host" ssh_host_ed25519_key "$host"
    cp /keys/airflow/id_ed25519.pub "/keys/$host/authorized_keys"
    chmod 755 "/keys/$host"
    chmod 644 "/keys/$host/authorized_keys"
    echo "$host $(cut -d ' ' -f 1,2 "/keys/$host/ssh_host_ed25519_key.pub")" >>"$known.new"
done
mv "$known.new" "$known"
chmod 700 /keys/airflow
# The user of the Airflow image.
chown -R 50000:50000 /keys/airflow
