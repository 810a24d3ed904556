#!/bin/sh
# One training host: sshd, and nothing else. Its host keys are made at the first start.
set -eu
install -d -m 700 -o dtrain -g dtrain /home/dtrain/.ssh
install -m 600 -o dtrain -g dtrain /keys/id_ed25519.pub /home/dtrain/.ssh/authorized_keys
ssh-keygen -A
exec /usr/sbin/sshd -D -e -o PasswordAuthentication=no -o MaxStartups=100 -o MaxSessions=50
