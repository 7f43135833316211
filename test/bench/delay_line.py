"""Two hosts far from each other: network namespaces of this machine, each with a tun device, and a thread that hands
on what goes into one at the other's, later. For kernels without netem. Needs root. It is a way to count round trips,
not to measure bandwidth."""
import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import threading
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _open_tun(space):
    """Its descriptor; the device lives in the namespace. On a thread of its own, which enters that."""
    opened = []

    def enter():
        there = os.open(f"/var/run/netns/{space}", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(there, CLONE_NEWNET) == 0:
            tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TUN | IFF_NO_PI))
            opened.append(tun)
        os.close(there)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return opened[0]


class FarHosts:
    """10.77.0.1 and 10.77.0.2."""

    def __init__(self, round_trip_ms):
        self.delay = round_trip_ms / 2e3
        self.names = [f"rueda-{os.getpid()}-far{i}" for i in (1, 2)]
        try:
            for name in self.names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            self.tuns = [_open_tun(name) for name in self.names]
            for i, name in enumerate(self.names, start=1):
                _ip("-n", name, "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up", "mtu", "1500")
        except BaseException:
            self.remove()
            raise
        threading.Thread(target=self._forward, daemon=True).start()

    def _forward(self):
        late, number = [], 0
        while True:
            wait = max(0, late[0][0] - time.monotonic()) if late else None
            for tun in select.select(self.tuns, [], [], wait)[0]:
                number += 1
                packet = os.read(tun, 1 << 16)
                heapq.heappush(late, (time.monotonic() + self.delay, number, self.tuns[1 - self.tuns.index(tun)], packet))
            while late and late[0][0] <= time.monotonic():
                _, _, tun, packet = heapq.heappop(late)
                os.write(tun, packet)

    def command(self, host, *words):
        return ["ip", "netns", "exec", self.names[host], *words]

    @staticmethod
    def bytes_of(_host):
        return 0, 0

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
