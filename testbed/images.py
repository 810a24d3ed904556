"""Images that a build without a registry needs: Debian, and one that behaves like the official PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from testbed.own_podman import Podman

SUITE = "bookworm"
DEBIAN = f"docker.io/library/debian:{SUITE}-slim"
POSTGRES = "docker.io/library/postgres:16"
#: Settings of pip that name a package index. Local folders among them are mounted.
_PIP_SETTINGS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "proxy",
    "default-timeout",
    "timeout",
    "cert",
)
#: The variables, the folders and the scripts of the official image, on Debian's PostgreSQL.
_POSTGRES = """
FROM {base}
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends postgresql \\
    && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/* && install -d -o postgres /var/lib/postgresql/data
ENV PGDATA=/var/lib/postgresql/data
COPY --chmod=755 entrypoint.sh /usr/local/bin/
CMD ["entrypoint.sh"]
"""
_ENTRYPOINT = """#!/bin/bash
set -eu
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
as() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
chown postgres "$PGDATA"
mkdir -p /var/run/postgresql && chown postgres /var/run/postgresql
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" >/tmp/password
    as initdb --encoding=UTF8 --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256 >/dev/null
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    as pg_ctl -w -o "-c listen_addresses=" start >/dev/null
    as createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    for file in /docker-entrypoint-initdb.d/*.sql; do
        as psql -v ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" --file="$file"
    done
    as pg_ctl -w stop >/dev/null
fi
exec setpriv --reuid postgres --regid postgres --init-groups postgres -c "listen_addresses=*"
"""


class Builder:
    """Builds images with the package indexes of this machine, which reach pip as a secret and leave no trace.

    :param podman: podman that gets the images
    """

    def __init__(self, podman: Podman) -> None:
        self.podman = podman
        self.folder = podman.folder / "builder"
        self.folder.mkdir()
        self.mounts = {self.folder: "/builder"}
        self.pip_conf = self.folder / "pip.conf"
        self.pip_conf.write_text(self._pip_conf())

    @property
    def volumes(self) -> list[str]:
        """Options of ``podman build`` and ``podman run`` for the local files that the settings of pip name."""
        return [f"--volume={place}:{inside}:ro" for place, inside in self.mounts.items()]

    @property
    def options(self) -> list[str]:
        """Options of ``podman build``."""
        return ["--network=host", f"--secret=id=pip,src={self.pip_conf}", *self.volumes]

    def _pip_conf(self) -> str:
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60, check=True
        )
        settings = {}
        for line in listed.stdout.splitlines():
            name, _, value = line.partition("=")
            settings[name.rpartition(".")[2]] = value.strip("'")
        lines = ["[global]"]
        for name in _PIP_SETTINGS:
            values = [self._inside(value) for value in settings.get(name, "").split()]
            if kept := [value for value in values if value]:
                lines.append(f"{name} = {' '.join(kept)}")
        return "\n".join(lines) + "\n"

    def _inside(self, value: str) -> str | None:
        """Return a setting as it is inside of a build, None for a folder that a build cannot see."""
        if value.startswith("file:"):
            return None
        path = Path(value)
        if not path.is_absolute():
            return value
        if path.is_file():
            shutil.copy(path, self.folder / path.name)
            return f"/builder/{path.name}"
        inside = f"/builder-{len(self.mounts)}"
        self.mounts[path] = inside
        return inside

    def debian(self) -> None:
        """Make the image of a minimal Debian, as the one of its registry is made."""
        tar = self.podman.folder / "debian.tar"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", SUITE, str(tar), *_sources()]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=900, env={**os.environ, "TMPDIR": "/tmp"}
        )
        if done.returncode != 0:
            raise RuntimeError(f"mmdebstrap made no base image:\n{done.stderr[-3000:]}")
        self.podman.import_image(DEBIAN, tar, ("CMD bash",))
        tar.unlink()

    def postgres(self) -> None:
        """Make the image that behaves like the official PostgreSQL."""
        context = self.podman.folder / "postgres"
        context.mkdir()
        (context / "Dockerfile").write_text(_POSTGRES.format(base=DEBIAN))
        (context / "entrypoint.sh").write_text(_ENTRYPOINT)
        self.podman.run("podman", "build", *self.options, "--tag", POSTGRES, str(context), online=True, timeout_s=900)


def _sources() -> list[str]:
    """Return the lines of a sources.list, from the archives that this machine uses."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    lines = []
    for line in dict.fromkeys(listed.splitlines()):
        origin, codename, uri = line.split()
        if origin == "Debian" and codename.partition("-")[2] in ("", "updates", "security"):
            part = codename.partition("-")
            lines.append(f"deb {uri} {SUITE}{part[1]}{part[2]} main")
    return lines
