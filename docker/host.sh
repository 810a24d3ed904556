#!/bin/sh
# A training host that runs only sshd. The service `keys` has made its host key and its list of authorized keys.
set -eu
for file in ssh_host_ed25519_key authorized_keys; do
    [ -s "/keys/$file" ] && continue
    echo "$(hostname): /keys/$file is missing. Make the keys first: docker compose up keys" >&2
    exit 1
done
exec /usr/sbin/sshd -D -e
