#!/bin/sh
# Generates the key pair once. The user of the Airflow image has the same uid as dtrain on the hosts.
set -eu
[ -f /keys/id_ed25519 ] || ssh-keygen -q -t ed25519 -N "" -C dtrain -f /keys/id_ed25519
chown 50000:0 /keys /keys/id_ed25519 /keys/id_ed25519.pub
