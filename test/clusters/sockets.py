"""Which sockets a process has."""
import os
import socket
import struct

LISTENS = "0A"


def _inodes(pid):
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:["):-1])
    return inodes


def _address(text):
    """Of /proc/net/tcp: words of four bytes in the machine's order."""
    raw = bytes.fromhex(text)
    raw = b"".join(struct.pack(">I", word) for word in struct.unpack(f"={len(raw) // 4}I", raw))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _tcp(pid):
    """(state, address, port) of each of its TCP sockets, at its own end. The kernel gives the table in parts, and
    what is opened and closed in between may shift a row from one into the next: it counts once."""
    inodes = _inodes(pid)
    for family in ("tcp", "tcp6"):
        try:
            table = open(f"/proc/{pid}/net/{family}", encoding="ascii")
        except FileNotFoundError:
            continue
        with table:
            for line in table.readlines()[1:]:
                words = line.split()
                if words[9] in inodes:
                    inodes.remove(words[9])
                    address, port = words[1].split(":")
                    yield words[3], _address(address), int(port, 16)


def listening(pid):
    """(address, port) of each TCP socket that the process listens on. Empty when it has ended."""
    try:
        return [(address, port) for state, address, port in _tcp(pid) if state == LISTENS]
    except OSError:
        return []


def count_accepted(pid, port):
    """The connections that came by a port that it listens on, and that it has taken. No more than there were at
    one time: what is counted had been taken before the table was read, and was not closed until then."""
    return sum(state != LISTENS and own_port == port for state, _, own_port in _tcp(pid))


def count_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def rss_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
