"""How the ranks of a process group meet."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from rueda import errors
from rueda.core import _context
from rueda.distributed._agreement import Own, agree, decline

# What says where a process stands in the launcher's job. A group's ranks are others.
_PLACE = {
    "RUEDA_RANK",
    "RUEDA_SIZE",
    "RUEDA_LOCAL_RANK",
    "RUEDA_LOCAL_SIZE",
    "RUEDA_JOB_ID",
    "RUEDA_AGENT_FD",
    "RUEDA_AGENT_BELL_FD",
    "RUEDA_MEETING_FD",
    "RUEDA_MEETING_ADDRESS",
    "RUEDA_PROCESS_SETS",
    "RUEDA_TIMELINE",
}
# No knobs: of scripts that install and build (core/config/config.cc).
_OF_SCRIPTS = {
    "RUEDA_VENV",
    "RUEDA_PIP_ARGS",
    "RUEDA_PREFIX",
    "RUEDA_SYSROOT",
    "RUEDA_DEBIAN_MIRROR",
}
# Nor is what Kubernetes sets for a service, which core/config/config.cc knows too.
_OF_SERVICE = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT(_\d+_(TCP|UDP|SCTP)|$)")

_log = logging.getLogger("rueda")


def host_id() -> str:
    """What makes processes neighbors, as the library sees it: they can share memory."""
    given = os.environ.get("RUEDA_HOST_ID")
    if given:
        return given
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{os.getuid()}"


def reserve(towards: str) -> socket.socket:
    """Holds a free port, at an address of this host on the way to another one, until it is closed:
    who asks for any port does not get it, and the library, which is told its number, does."""
    found = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)
    found.sort(key=lambda each: each[0] != socket.AF_INET)  # IPv4 first
    no_way: OSError | None = None
    for family, _, _, _, target in found:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                own = probe.getsockname()
        except OSError as error:
            no_way = error
            continue
        if ipaddress.ip_address(own[0]).is_loopback:
            own = target
        holder = socket.socket(family)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((own[0], 0, *own[2:]))
        return holder
    raise no_way or OSError(f"no address of {towards}")


def free_address(towards: str) -> tuple[str, int]:
    """An address of this host on the way to another one, and a port that is free there."""
    with reserve(towards) as holder:
        return holder.getsockname()[0], holder.getsockname()[1]


class Met(NamedTuple):
    """A group that has met."""

    context: int
    #: The group's part of torch's store.
    store: Any


def meet(
    store: Any,
    rank: int,
    size: int,
    group_name: str,
    prepare: Callable[[], object] = lambda: None,
) -> Met:
    """A context for the group. Collective over its ranks. `prepare` raises a RuedaError if this one
    can't take part: then all ranks have it.

    Raises:
        RuedaError: the ranks did not meet; or the store held what none of them had written there,
            and the text names the key.
    """
    name = f"torch.distributed {group_name}"
    with contextlib.ExitStack() as held:

        def open_door() -> str:
            holder = held.enter_context(reserve(os.environ.get("MASTER_ADDR", "127.0.0.1")))
            address, port = holder.getsockname()[:2]
            return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

        try:
            prepare()
        except errors.RuedaError as error:
            decline(store, rank, size, error, _start_limit())
        own = _own(rank, size)
        place, meeting_address, group_store = agree(
            store, rank, size, own, _start_limit(), open_door
        )
        if place.is_launched:
            return Met(_context.start({}, name=name), group_store)
        # The environment's settings, but not what it says of places: torchrun, mpirun and others
        # speak of the whole world.
        knobs: dict[str, object] = {
            key.removeprefix("RUEDA_").lower(): value
            for key, value in os.environ.items()
            if value and key.startswith("RUEDA_") and key not in _PLACE | _OF_SCRIPTS
            if not _OF_SERVICE.search(key)
        }
        knobs["job_id"] = f"c10d-{place.nonce}"
        knobs["rank"], knobs["size"] = rank, size
        knobs["local_rank"], knobs["local_size"] = place.local_rank, place.local_size
        if meeting_address:
            knobs["meeting_address"] = meeting_address
        has_secret = knobs.keys() & {"secret_fd", "secret_file", "shared_dir"}
        if rank == 0 and place.hosts > 1 and has_secret:  # else the library warns
            _log.info(
                "the process group %s meets through torch's store, whose port asks nobody for a "
                "proof: a stranger who reaches it can keep the group from starting, but without "
                "the job's secret not take part in it; ruedarun needs no such store",
                group_name,
            )
        return Met(_context.start(knobs, name=name, reads_environment=False), group_store)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()


def _own(rank: int, size: int) -> Own:
    environment = os.environ
    is_launched = (
        "RUEDA_AGENT_FD" in environment
        and environment.get("RUEDA_RANK") == str(rank)
        and environment.get("RUEDA_SIZE") == str(size)
    )
    return Own(
        attempt=secrets.token_hex(16),
        host=_digest(host_id()),
        launched_as=_digest(environment.get("RUEDA_JOB_ID", "")) if is_launched else "",
        has_shared_dir=bool(environment.get("RUEDA_SHARED_DIR")),
    )


def _start_limit() -> timedelta:
    """How long init waits for others."""
    for name in ("RUEDA_START_TIMEOUT_S", "HOROVOD_START_TIMEOUT"):
        with contextlib.suppress(KeyError, ValueError):  # init says what is wrong
            seconds = float(os.environ[name])
            if 0 < seconds < 1e7:
                return timedelta(seconds=seconds)
    return timedelta(seconds=60)


def become_job(store: Any, rank: int, size: int) -> None:
    """Makes these ranks the process's job, as `rueda.init()` does by the environment."""
    _context.adopt(meet(store, rank, size, "job").context)
