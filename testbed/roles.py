"""Users of Airflow's simple auth manager, one per role."""

from __future__ import annotations

import json
from pathlib import Path

#: Users with their names as passwords.
ROLES = ("admin", "op", "user", "viewer")


def role_options(home: Path) -> dict[str, str]:
    """Write the passwords of all users, and return the options of Airflow that name them.

    :param home: AIRFLOW_HOME, which exists
    """
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({role: role for role in ROLES}))
    return {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{role}:{role}" for role in ROLES),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }
