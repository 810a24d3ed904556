"""Names and contents of files that hold credentials of a user: code that is sent to hosts leaves them out."""

from __future__ import annotations

import re
from fnmatch import translate
from typing import Final

#: Bytes at the beginning of a file that :func:`is_credential` looks at.
HEAD_BYTES: Final = 64 * 1024
#: Names of folders whose files are credentials.
FOLDERS: Final = frozenset({".aws", ".azure", ".docker", ".gcloud", ".gnupg", ".kube", ".ssh", "gcloud"})
_FILES: Final = (
    ".env", ".env.*", ".envrc", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".pypirc", ".npmrc", ".git-credentials",
    ".htpasswd", ".boto", ".s3cfg", ".databrickscfg", ".dockercfg", ".vault-token", "credentials.json", "kubeconfig",
    "*.kubeconfig", "application_default_credentials.json", "id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519",
    "id_ed25519_sk", "*.ppk", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
)  # fmt: skip
#: Compiled once, before Airflow forks its tasks.
_FILE: Final = re.compile("|".join(map(translate, _FILES)))
#: Templates of files with variables have no values.
_TEMPLATES: Final = (".env.example", ".env.sample", ".env.template", ".env.dist")
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----")
_PUBLIC: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]*CERTIFICATE|[A-Z0-9 ]*PUBLIC KEY|X509 CRL|DH PARAMETERS)-----")


def is_credential_folder(name: str) -> bool:
    """Return whether a folder with this name holds credentials."""
    return name.lower() in FOLDERS


def is_credential(name: str, head: bytes) -> bool:
    """Return whether a file holds credentials, by its name or by a private key in it.

    :param head: its first :data:`HEAD_BYTES`
    """
    name = name.lower()
    if _FILE.match(name):
        return name not in _TEMPLATES
    if name.endswith(".pem") and not _PUBLIC.search(head):
        return True
    # A program may name the header of a key, so that only files of keys, and keys of service accounts, are searched.
    is_key = head.lstrip().startswith(b"-----BEGIN") or name.endswith((".pem", ".key", ".crt", ".json"))
    return is_key and _PRIVATE_KEY.search(head) is not None
