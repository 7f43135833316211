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


def listening(pid):
    """(address, port) of each TCP socket that the process listens on. Empty when it has ended."""
    found = []
    try:
        inodes = _inodes(pid)
        for family in ("tcp", "tcp6"):
            try:
                table = open(f"/proc/{pid}/net/{family}", encoding="ascii")
            except FileNotFoundError:
                continue
            with table:
                for line in table.readlines()[1:]:
                    words = line.split()
                    if words[3] == LISTENS and words[9] in inodes:
                        address, port = words[1].split(":")
                        found.append((_address(address), int(port, 16)))
    except OSError:
        pass
    return found


def count_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def rss_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
