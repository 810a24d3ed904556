#!/bin/sh
# A training host that runs only sshd. The first start generates its host keys.
set -eu
install -d -m 700 -o dtrain -g dtrain /home/dtrain/.ssh
install -m 600 -o dtrain -g dtrain /keys/id_ed25519.pub /home/dtrain/.ssh/authorized_keys
ssh-keygen -A
exec /usr/sbin/sshd -D -e -o PasswordAuthentication=no -o MaxStartups=100 -o MaxSessions=50
