"""Calls to all hosts of a gang, and the archives that hosts lack."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_dtrain.engine.session.runtime import answer
from airflow_provider_dtrain.engine.session.threads import in_launch_thread

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.job import Archive
    from airflow_provider_dtrain.hosts.channel.link import HostLink

T = TypeVar("T")


async def on_all(hosts: Mapping[str, T], action: Callable[[str, T], Awaitable[Any]]) -> dict[str, Any]:
    """Return each host's answer to an action that runs on all hosts, or on all parts of one, at the same time.

    It waits for every host, so that no action still runs when the first error is raised.
    """
    answers = await asyncio.gather(*(action(host, value) for host, value in hosts.items()), return_exceptions=True)
    for found in answers:
        if isinstance(found, BaseException):
            raise found
    return dict(zip(hosts, answers, strict=True))


async def send_archives(link: HostLink, archives: Mapping[str, Archive]) -> None:
    """Send the archives that a host lacks.

    :param archives: kind -> archive
    """
    replies = await on_all(archives, lambda kind, archive: answer(link, "have", kind=kind, digests=[archive.digest]))
    for kind, archive in archives.items():
        if replies[kind]["missing"]:
            await in_launch_thread(_send_archive, link, kind, archive)


def _send_archive(link: HostLink, kind: str, archive: Archive) -> None:
    # The content may come from the store, so it is read in the thread as well.
    link.send_archive(kind, archive.digest, archive.content())
