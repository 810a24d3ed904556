"""Templates, configurations and payloads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.errors import NotFoundError, UserError
from airflow_provider_dtrain.resources.templates import Template
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.tables import configs, manifests, payload_senders, payloads, templates
from airflow_provider_dtrain.store.database.transactions import Database, check_name, digest_of, reads, writes
from airflow_provider_dtrain.store.records.trials import Config

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig

#: One 96 MiB payload and its archive headers.
PAYLOAD_LIMIT_BYTES = 100 * 2**20
#: Validated configurations that a process keeps: a few hundred KiB.
MODELS = 64


class Templates:
    """Templates of configurations, with all their versions."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def set(self, conn: Connection, name: str, text: str, *, by: str) -> int:
        """Store a template as its next version and return the version.

        :param text: YAML, validated by the caller
        :param by: the user, for the history
        :raises UserError: the name breaks the rule for names
        """
        check_name("template", name)
        return self._add_version(conn, name, text=text, by=by, removed=False)

    @reads
    def get(self, conn: Connection, name: str, version: int | None = None) -> Template:
        """Return a version of a template.

        :param version: None = the current one
        :raises NotFoundError: it does not exist; the message lists the existing ones
        """
        if version is not None:
            query = sa.select(templates).where(templates.c.name == name)
            versions = {one.version: one for one in map(_template, conn.execute(query))}
            if version in versions:
                return versions[version]
            if versions:
                listed = ", ".join(map(str, sorted(versions)))
                raise NotFoundError(f"Template '{name}' has no version {version}. Versions: {listed}.")
        found = {template.name: template for template in _current(conn)}
        if name not in found:
            raise _no_template(name, list(found))
        return found[name]

    @reads
    def versions(self, conn: Connection, name: str) -> list[Template]:
        """Return every version of a template, oldest first, removals included.

        :raises NotFoundError: it never existed
        """
        query = sa.select(templates).where(templates.c.name == name).order_by(templates.c.version)
        found = [_template(row) for row in conn.execute(query)]
        if not found:
            raise _no_template(name, [template.name for template in _current(conn)])
        return found

    @writes
    def remove(self, conn: Connection, name: str, *, by: str) -> None:
        """Remove a template, but keep its versions in the history.

        :raises NotFoundError: it does not exist
        """
        known = [template.name for template in _current(conn)]
        if name not in known:
            raise _no_template(name, known)
        self._add_version(conn, name, text="", by=by, removed=True)

    def _add_version(self, conn: Connection, name: str, *, text: str, by: str, removed: bool) -> int:
        latest = conn.scalar(sa.select(sa.func.max(templates.c.version)).where(templates.c.name == name))
        version = int(latest or 0) + 1
        conn.execute(
            templates.insert().values(
                name=name, version=version, text=text, set_by=by, set_at=self.db.now(), removed=removed
            )
        )
        return version

    @reads
    def list(self, conn: Connection) -> list[Template]:
        """Return the current version of each template, by name."""
        return _current(conn)


class Configs:
    """Effective configurations. Each is stored once and never changes."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def put(
        self,
        conn: Connection,
        document: Mapping[str, Any],
        *,
        origins: Mapping[str, Any],
        template: str | None = None,
        template_version: int | None = None,
        secrets: bytes | None = None,
    ) -> Config:
        """Return the stored configuration with this content, after storing it if it is new.

        :param document: effective configuration without secrets
        :param secrets: encrypted by the caller
        """
        digest = digest_of(document, origins, template, template_version, secrets)
        values = {
            "digest": digest, "document": document, "origins": origins, "template": template,
            "template_version": template_version, "secrets": secrets, "created_at": self.db.now(),
        }  # fmt: skip
        conn.execute(self.db.insert(configs).values(values).on_conflict_do_nothing(index_elements=["digest"]))
        return _config(conn.execute(sa.select(configs).where(configs.c.digest == digest)).one())

    @reads
    def get(self, conn: Connection, config_id: int) -> Config:
        """Return a stored configuration.

        :raises NotFoundError: there is none with this id
        """
        row = statements.first(conn, _CONFIG, {"config": config_id})
        if row is None:
            raise NotFoundError(f"The store has no configuration {config_id}.")
        return Config(**row._asdict())

    @reads
    def some(self, conn: Connection, config_ids: Collection[int]) -> list[Config]:
        """Return stored configurations, without ids that do not exist."""
        return [_config(row) for row in conn.execute(sa.select(configs).where(configs.c.config_id.in_(config_ids)))]


@lru_cache(maxsize=MODELS)
def model_of(stored: Config) -> ExperimentConfig:
    """Return the validated model of a stored configuration, the same one for the same digest.

    A process validates a configuration once for all trials that it submits, launches and cleans up. The model is
    immutable.

    :raises ConfigError: the configuration is not valid for this version
    """
    from airflow_provider_dtrain.core.config import ExperimentConfig

    return ExperimentConfig.model_validate(dict(stored.document))


class Payloads:
    """User code, stored once by its digest."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def put(self, digest: str, content: bytes) -> None:
        """Store user code, and the list of its files, unless they are stored already.

        :param digest: sha256 of the content, computed by the caller
        :raises UserError: the content is larger than the limit
        """
        if len(content) > PAYLOAD_LIMIT_BYTES:
            raise UserError(f"The payload has {len(content)} bytes, the store accepts at most {PAYLOAD_LIMIT_BYTES}.")
        # Before the transaction: of 96 MiB it takes a second.
        from airflow_provider_dtrain.core.code_files import code_files

        self._put(digest, content, code_files(content))

    @writes
    def _put(self, conn: Connection, digest: str, content: bytes, files: Mapping[str, str] | None) -> None:
        values = {"digest": digest, "content": content, "created_at": self.db.now()}
        conn.execute(self.db.insert(payloads).values(values).on_conflict_do_nothing(index_elements=["digest"]))
        if files is not None:
            listed = self.db.insert(manifests).values(digest=digest, content=files)
            conn.execute(listed.on_conflict_do_nothing(index_elements=["digest"]))

    @reads
    def has(self, conn: Connection, digest: str) -> bool:
        """Return whether the store holds this user code."""
        return conn.scalar(sa.select(payloads.c.digest).where(payloads.c.digest == digest)) is not None

    @reads
    def get(self, conn: Connection, digest: str) -> bytes:
        """Return stored user code.

        :raises NotFoundError: the store does not hold it
        """
        row = statements.first(conn, _PAYLOAD, {"of_digest": digest})
        if row is None:
            raise NotFoundError(f"The store has no payload {digest}. Run the task again: it packs the code again.")
        return bytes(row.content)

    @writes
    def note_sender(self, conn: Connection, digest: str, user_id: str) -> None:
        """Record that a user has sent the code with this digest."""
        values = {"digest": digest, "user_id": user_id}
        conn.execute(self.db.insert(payload_senders).values(values).on_conflict_do_nothing())

    @reads
    def is_sent_by(self, conn: Connection, digest: str, user_id: str) -> bool:
        """Return whether the store holds this user code, and the user has sent it."""
        where = payload_senders.c.digest == digest, payload_senders.c.user_id == user_id
        return conn.execute(sa.select(payload_senders.c.digest).where(*where)).first() is not None

    @writes
    def use(self, conn: Connection, digest: str) -> bool:
        """Return whether the store holds this user code, and if so reset its age."""
        return conn.execute(_USE, {"of_digest": digest, "now": self.db.now()}).rowcount > 0


_CONFIG = sa.select(configs).where(configs.c.config_id == sa.bindparam("config"))
_PAYLOAD = sa.select(payloads.c.content).where(payloads.c.digest == sa.bindparam("of_digest"))


def _current(conn: Connection) -> list[Template]:
    newest = sa.select(templates.c.name, sa.func.max(templates.c.version).label("version")).group_by(templates.c.name)
    latest = newest.subquery()
    query = (
        sa.select(templates)
        .join(latest, sa.and_(latest.c.name == templates.c.name, latest.c.version == templates.c.version))
        .where(sa.not_(templates.c.removed))
        .order_by(templates.c.name)
    )
    return [_template(row) for row in conn.execute(query)]


def _template(row: Row[Any]) -> Template:
    return Template(**row._mapping)


def _config(row: Row[Any]) -> Config:
    return Config(**row._mapping)


def _no_template(name: str, known: list[str]) -> NotFoundError:
    return NotFoundError(
        f"There is no template '{name}'. "
        + (f"Templates: {', '.join(known)}." if known else "Add one: airflow dtrain templates set NAME FILE")
    )


_USE = payloads.update().where(payloads.c.digest == sa.bindparam("of_digest")).values(created_at=sa.bindparam("now"))
