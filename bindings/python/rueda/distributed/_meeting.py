"""How the ranks of a process group meet: by what they tell each other through its store."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import uuid
from typing import Any

from rueda.core import _context

# What says where a process stands in the launcher's job. A group's ranks are others.
_PLACE = {
    "RUEDA_RANK",
    "RUEDA_SIZE",
    "RUEDA_LOCAL_RANK",
    "RUEDA_LOCAL_SIZE",
    "RUEDA_JOB_ID",
    "RUEDA_AGENT_FD",
    "RUEDA_MEETING_FD",
    "RUEDA_MEETING_ADDRESS",
    "RUEDA_PROCESS_SETS",
    "RUEDA_TIMELINE",
}
# No knobs: of scripts that install and build (core/config/config.cc).
_OF_SCRIPTS = {"RUEDA_VENV", "RUEDA_PIP_ARGS", "RUEDA_PREFIX"}


def host_id() -> str:
    """What makes processes neighbours, as the library sees it: they can share memory."""
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


def _is_the_launchers(rank: int, size: int, hosts: list[str]) -> bool:
    """Whether the group is the job that ruedarun started."""
    environment = os.environ
    return (
        "RUEDA_AGENT_FD" in environment
        and environment.get("RUEDA_RANK") == str(rank)
        and environment.get("RUEDA_SIZE") == str(size)
        and environment.get("RUEDA_LOCAL_SIZE") == str(hosts.count(hosts[rank]))
    )


def meet(store: Any, rank: int, size: int, group_name: str) -> int:
    """A context for the group. Collective over its ranks."""
    store.set(f"host {rank}", host_id())
    hosts = [store.get(f"host {other}").decode() for other in range(size)]
    name = f"torch.distributed {group_name}"
    if _is_the_launchers(rank, size, hosts):
        return _context.start({}, name=name)
    holder = None
    if rank == 0:
        job = {"job_id": f"c10d-{uuid.uuid4().hex}"}
        if len(set(hosts)) > 1 and "RUEDA_SHARED_DIR" not in os.environ:
            holder = reserve(os.environ.get("MASTER_ADDR", "127.0.0.1"))
            address, port = holder.getsockname()[:2]
            job["meeting_address"] = (
                f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            )
        store.set("job", json.dumps(job))
    # The environment's settings, but not what it says of places: torchrun, mpirun and others speak
    # of the whole world.
    knobs: dict[str, object] = {
        key.removeprefix("RUEDA_").lower(): value
        for key, value in os.environ.items()
        if key.startswith("RUEDA_") and key not in _PLACE | _OF_SCRIPTS
    }
    knobs |= json.loads(store.get("job"))
    knobs |= {
        "rank": rank,
        "size": size,
        "local_rank": hosts[:rank].count(hosts[rank]),
        "local_size": hosts.count(hosts[rank]),
    }
    with holder or contextlib.nullcontext():
        return _context.start(knobs, name=name, reads_environment=False)


def become_job(store: Any, rank: int, size: int) -> None:
    """Makes these ranks the process's job, as `rueda.init()` does by the environment."""
    _context.adopt(meet(store, rank, size, "job"))
