"""Which other hosts a job is on, and by which address they reach this one. ruedarun decides where
ranks go; this is only as much of it as ``run`` needs to know before it starts ruedarun.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import socket
import struct
import subprocess
from collections.abc import Iterable, Mapping

# An address of documentation (RFC 5737): nobody has it, so the way there is the default route.
_NOWHERE = "192.0.2.1"
_SIOCGIFADDR = 0x8915


def others(hosts: str | None, hostfile: str | None) -> list[str]:
    """The names of the job's hosts, as options or else the batch system give them, without those
    that are this host's. Some may be more than the job needs.

    Raises:
        OSError: a file of theirs can't be read.
        ValueError: the batch system's can't be told.
    """
    if hosts is not None:
        names = [_name(word) for word in hosts.split(",")]
    elif hostfile is not None:
        names = _names_in(hostfile)
    else:
        names = _allocation(os.environ)
    return [name for name in dict.fromkeys(names) if not _is_here(name)]


def own_address(others: Iterable[str], interfaces: str) -> str:
    """The address of this host at which the others are to find it.

    Args:
        others: their names; the route to the first one that is known counts, else the default
            route, else the only interface that is not loopback.
        interfaces: "eth0" or "ib0,eth0": the first one that exists overrides the above. "": none in
            particular.

    Raises:
        ValueError: no such interface, or no such route.
    """
    own_interfaces = _interfaces()
    there_are = ", ".join(f"{name} ({address})" for name, address in own_interfaces.items())
    if interfaces:
        for name in interfaces.split(","):
            if name.strip() in own_interfaces:
                return own_interfaces[name.strip()]
        raise ValueError(
            f"run: no network interface {interfaces} with an IPv4 address; there are {there_are}"
        )
    for name in [*others, _NOWHERE]:
        for family, there in _resolve(name):
            own = _source(family, there)
            if own and not ipaddress.ip_address(own).is_loopback:
                return own
    outward = [each for each in own_interfaces.values() if not each.startswith("127.")]
    if len(outward) == 1:
        return outward[0]
    raise ValueError(
        "run: which network interface leads to the other hosts? There is no route; choose with "
        f"network_interface= from {there_are}"
    )


# ---- names ----


def _name(word: str) -> str:
    """Of "a", "a:4", "[fd00::1]:4"."""
    word = word.strip()
    return word[1:].partition("]")[0] if word.startswith("[") else word.partition(":")[0]


def _names_in(path: str) -> list[str]:
    """The first word of each line."""
    with open(path, encoding="utf-8") as file:
        lines = (line.partition("#")[0].split() for line in file)
        return [_name(words[0]) for words in lines if words]


def _allocation(environment: Mapping[str, str]) -> list[str]:
    """What SLURM, LSF or PBS have given to this job."""
    nodes = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if nodes:
        return _names_of_slurm(nodes)
    for variable in ("LSB_DJOB_RANKFILE", "LSB_DJOB_HOSTFILE", "PBS_NODEFILE"):
        if environment.get(variable):
            return _names_in(environment[variable])
    words = (environment.get("LSB_MCPU_HOSTS") or environment.get("LSB_HOSTS") or "").split()
    return [word for word in words if not word.isdigit()]


def _names_of_slurm(nodes: str) -> list[str]:
    if not re.search(r"[\[,]", nodes):
        return [nodes]
    try:
        shown = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or error
        raise ValueError(
            f"run: can't tell the hosts of SLURM's {nodes}: {why}; name them with hosts="
        ) from error
    return shown.stdout.split()


# ---- addresses ----


def _resolve(name: str) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """Its addresses; none: nobody knows it here, though it may still be one of the user's for
    ssh."""
    try:
        found = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)  # routes don't depend on ports
    except OSError:
        return []
    return [(family, there) for family, _, _, _, there in found]


def _source(family: socket.AddressFamily, there: tuple[object, ...]) -> str:
    """The address that packets to `there` would leave from; "": no way. Nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(there)
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _is_here(name: str) -> bool:
    if name in ("localhost", socket.gethostname()):
        return True
    return any(
        ipaddress.ip_address(str(there[0])).is_loopback or _source(family, there) == there[0]
        for family, there in _resolve(name)
    )


def _interfaces() -> dict[str, str]:
    """Those that have an IPv4 address, with it."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name))
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                found[name] = socket.inet_ntoa(answer[20:24])
    return found
