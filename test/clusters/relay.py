"""Hosts whose network is as bad as a test wants it: those of hosts.py, but each with a tun device, and a process that
hands on what goes into one at the others', later, twice, or never. For kernels without netem. Needs root.

What happens to the n-th packet from one host to another depends on the seed alone."""
import collections
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time

import hosts

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


class Hosts(hosts.Hosts):
    """`count` of them, and a perfect network at first."""

    def __init__(self, count, seed=0):
        self.seed, self.process = seed, None
        super().__init__(count)
        self.use_cubic()

    def _connect(self):
        self.process = subprocess.Popen([sys.executable, __file__, str(self.seed), *self.names], text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != "there\n":
            raise subprocess.CalledProcessError(self.process.wait(), ["relay.py"], stderr="/dev/net/tun can't be used")

    def change(self, source=None, destination=None, **what):
        """For packets from one host to another from now on, None: every one. What, each with what it is at first:

        delay_ms=0    how long one is under way
        jitter_ms=0   how much longer, at most, if it is one of
        jittered=1    so many: 0.01 is one in a hundred
        loss=0, duplicate=0   the share of packets that are lost, or come twice
        longest=65535 bytes, headers included; longer ones are lost, as where a path's limit is not known
        cut=False     none gets through, nor those that are under way
        """
        self._ask(source, destination, what)

    def counts(self, source, destination):
        """How many packets there were from one to the other: a Counter of sent, lost, duplicated, overtaken, cut."""
        return collections.Counter(self._ask(source, destination, {}))

    def _ask(self, source, destination, what):
        self.process.stdin.write(json.dumps([source, destination, what]) + "\n")
        return json.loads(self.process.stdout.readline())

    def cut(self, host):
        self.change(host, None, cut=True)
        self.change(None, host, cut=True)

    def join(self, host):
        self.change(host, None, cut=False)
        self.change(None, host, cut=False)

    def limit(self, rate):
        raise NotImplementedError("the relay's time is not a link's: see hosts.Hosts")

    def remove(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.process = None
        super().remove()


class Direction:
    """From one host to another."""

    def __init__(self, seed, source, destination):
        self.delay_ms = self.jitter_ms = self.loss = self.duplicate = 0
        self.jittered, self.longest, self.cut = 1, 65535, False
        self.random = random.Random(f"{seed}: {source} to {destination}").random
        self.counts = collections.Counter()
        self.latest = 0  # the number of the latest packet that came

    def fate(self, length):
        """When the next packet, which has so many bytes, comes, and its double if any, in seconds from now."""
        lost, doubled, jittered, jitter, jitter_of_double = (self.random() for _ in range(5))  # as many each time
        self.counts["sent"] += 1
        if self.cut:
            self.counts["cut"] += 1
            return []
        if lost < self.loss or length > self.longest:
            self.counts["lost"] += 1
            return []
        spread = self.jitter_ms if jittered < self.jittered else 0
        times = [(self.delay_ms + spread * jitter) / 1e3]
        if doubled < self.duplicate:
            self.counts["duplicated"] += 1
            times.append((self.delay_ms + spread * jitter_of_double) / 1e3)
        return times

    def comes(self, number):
        """Whether one that was under way does."""
        if self.cut:
            self.counts["cut"] += 1
        elif number < self.latest:
            self.counts["overtaken"] += 1
        else:
            self.latest = number
        return not self.cut


class Relay:
    def __init__(self, seed, names):
        self.tuns = [_open_tun(name) for name in names]
        self.directions = {(source, destination): Direction(seed, source, destination)
                           for source in range(len(names)) for destination in range(len(names)) if source != destination}
        self.of_address = {}
        for i in range(len(names)):
            self.of_address[socket.inet_pton(socket.AF_INET, f"10.77.0.{i + 1}")] = i
            self.of_address[socket.inet_pton(socket.AF_INET6, f"fd00:77::{i + 1}")] = i
        self.late = []  # when, number, source, destination, packet
        self.number = 0

    def run(self):
        """Until nobody tells it anything any more."""
        while True:
            wait = max(0, self.late[0][0] - time.monotonic()) if self.late else None
            for ready in select.select([sys.stdin, *self.tuns], [], [], wait)[0]:
                if ready != sys.stdin:
                    self.take(self.tuns.index(ready))
                elif not self.obey(sys.stdin.readline()):
                    return
            self.hand_on()

    def obey(self, line):
        if not line:
            return False
        source, destination, what = json.loads(line)
        counts = collections.Counter()
        for (one, other), direction in self.directions.items():
            if source in (None, one) and destination in (None, other):
                vars(direction).update(what)
                counts += direction.counts
        print(json.dumps(counts), flush=True)
        return True

    def take(self, source):
        """What a host has sent, at most so many at a time."""
        for _ in range(64):
            try:
                packet = os.read(self.tuns[source], 1 << 16)
            except OSError:  # no more; or the link is down
                return
            destination = self.of_address.get(packet[16:20] if packet[0] >> 4 == 4 else packet[24:40])
            if direction := self.directions.get((source, destination)):
                self.number += 1
                for seconds in direction.fate(len(packet)):
                    heapq.heappush(self.late, (time.monotonic() + seconds, self.number, source, destination, packet))

    def hand_on(self):
        while self.late and self.late[0][0] <= time.monotonic():
            _, number, source, destination, packet = heapq.heappop(self.late)
            if self.directions[source, destination].comes(number):
                try:
                    os.write(self.tuns[destination], packet)
                except OSError:  # the link is down
                    pass


def _open_tun(space):
    """Its descriptor. The device lives in the namespace, which this process enters."""
    there = os.open(f"/var/run/netns/{space}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(there, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"entering {space}")
    os.close(there)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TUN | IFF_NO_PI))
    return tun


if __name__ == "__main__":
    os.nice(-10)  # who is late is not to be the relay
    relay = Relay(int(sys.argv[1]), sys.argv[2:])
    print("there", flush=True)
    relay.run()
