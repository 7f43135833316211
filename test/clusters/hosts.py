"""Hosts for tests: network namespaces of this machine, joined by a bridge, each with an address of its own. Needs
root. What makes ranks neighbours (host_identity.cc) differs between them; files are common."""
import itertools
import os
import shutil
import subprocess

_numbers = itertools.count()


def why_not(kind=None):
    """What is missing here to make them, those of the class `kind`; empty: nothing."""
    if os.geteuid() != 0:
        return "hosts of their own need root"
    if shutil.which("ip") is None:
        return "ip is not installed (third_party/setup.sh --tests)"
    try:
        hosts = (kind or Hosts)(1)
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    try:
        tried = subprocess.run(hosts.command(0, "true"), capture_output=True, text=True)
        return tried.stderr.strip() if tried.returncode else ""
    finally:
        hosts.remove()


def has_ipv6():
    return os.path.exists("/proc/sys/net/ipv6")


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)


class Hosts:
    """`count` of them: 10.77.0.1, fd00:77::1 and so on, each by eth0."""

    def __init__(self, count):
        self.prefix = f"rueda-{os.getpid()}-{next(_numbers)}"
        self.names = [f"{self.prefix}-h{i}" for i in range(1, count + 1)]
        self.made = []
        try:
            for name in self.names:
                self._add(name)
            self._connect()
            for i, name in enumerate(self.names, start=1):
                _ip("-n", name, "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
                if has_ipv6():
                    _ip("-n", name, "addr", "add", f"fd00:77::{i}/64", "dev", "eth0", "nodad")
                _ip("-n", name, "link", "set", "eth0", "up")
        except BaseException:
            self.remove()
            raise

    def _connect(self):
        """Makes each host's eth0."""
        self.switch = f"{self.prefix}-switch"
        self._add(self.switch)
        _ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names, start=1):
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", self.switch)
            _ip("-n", self.switch, "link", "set", f"port{i}", "master", "bridge", "up")

    def _add(self, name):
        _ip("netns", "add", name)
        self.made.append(name)
        _ip("-n", name, "link", "set", "lo", "up")

    def command(self, host, *words):
        """What runs `words` on the host-th of them, from 0 on."""
        return ["ip", "netns", "exec", self.names[host], *words]

    def ip(self, host, *words):
        _ip("-n", self.names[host], *words)

    def cut(self, host):
        """Nothing gets to the host or away from it from now on, and nobody is told."""
        _ip("-n", self.switch, "link", "set", f"port{host + 1}", "nomaster")

    def cut_between(self, *hosts):
        """Nothing gets from one of these to another; the others reach them all."""
        for host in hosts:
            _ip("-n", self.switch, "link", "set", f"port{host + 1}", "type", "bridge_slave", "isolated", "on")

    def join(self, host):
        _ip("-n", self.switch, "link", "set", f"port{host + 1}", "master", "bridge")

    def limit(self, rate):
        """Limits every host's link, in both directions, to `rate`, such as 1gbit."""
        for i, name in enumerate(self.names, start=1):
            for space, device in ((name, "eth0"), (self.switch, f"port{i}")):
                subprocess.run(["ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", device, "root", "tbf",
                                "rate", rate, "burst", "1mb", "latency", "20ms"], check=True, capture_output=True)
        self.use_cubic()

    def set_mtu(self, size):
        for i in range(len(self.names)):
            self.ip(i, "link", "set", "eth0", "mtu", str(size))
            if hasattr(self, "switch"):
                _ip("-n", self.switch, "link", "set", f"port{i + 1}", "mtu", str(size))

    def use_cubic(self):
        """The common congestion control, whichever this machine prefers."""
        for i in range(1, len(self.names) + 1):
            self.ip(i - 1, "route", "change", "10.77.0.0/24", "dev", "eth0", "proto", "kernel", "scope", "link", "src",
                    f"10.77.0.{i}", "congctl", "cubic")

    def bytes_of(self, host):
        """How many bytes have left a host, and how many have come."""
        counts = subprocess.run(self.command(host, "sh", "-c", "cd /sys/class/net/eth0/statistics && cat tx_bytes rx_bytes"),
                                check=True, capture_output=True, text=True).stdout
        return tuple(map(int, counts.split()))

    def remove(self):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self.made = []
