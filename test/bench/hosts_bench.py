#!/usr/bin/env python3
"""Compares operations between hosts, interleaved in one run: Rueda's data path by blocks, over its own
sockets and over Gloo, its flat one over Gloo, the peers that test/bench/peers/setup.sh has set up (gloo, torch, openmpi, mpich), and
the least that a plain exchange over TCP takes (two hosts of one rank; allreduces).

Hosts are network namespaces of this machine (test/clusters/hosts.py); needs root.

    test/bench/hosts_bench.py [--build DIR] [--hosts N] [--local N] [--rate 1gbit|none] [--op allreduce,broadcast]
                              [--dtype float32|bfloat16] [--bytes 4,64K,64M] [--rounds N] [--real-time]

    test/bench/hosts_bench.py [--delay MS] [--loss PERCENT]
    test/bench/hosts_bench.py [--mtu BYTES] [--ipv6]

do the same over a network that takes longer or loses packets (test/clusters/relay.py: a process, slower than any link;
--rate does not apply), with frames of another size (1500 otherwise), or without IPv4, which the peers need.

    test/bench/hosts_bench.py --round-trip 50

counts the round trips of small operations instead, on two hosts with a round-trip time of that many
milliseconds.

    test/bench/hosts_bench.py --compressor int8,auto --rate 100mbit --bytes 4M

measures allreduces with each compressor instead, against one without, on hosts and by shared memory on one host.

Prints medians over rounds of rank 0's medians, in ms; beside them, of large operations of Rueda's, how many of the
tensor's bytes the host sent that sent most, as a multiple of its size. Open MPI and MPICH use TCP between hosts; MPICH
only spins, and is left out where ranks share cores. --real-time: under chrt -r 1, where a woken thread gets its core
at once.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "clusters"), str(HERE / "peers")]
import hosts  # noqa: E402
import peers  # noqa: E402
import runs  # noqa: E402
import relay  # noqa: E402

PATIENCE = 600  # seconds
PORTS = 7800  # those of the peers that are told one begin here
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
RATES = {"mbit": 1e6, "gbit": 1e9}
STREAM = """
import socket, sys, threading, time
peer, seconds = sys.argv[1], float(sys.argv[2])
server = socket.create_server(("", 7777))
print("up", flush=True)
sys.stdin.readline()
out = socket.create_connection((peer, 7777))
came, _ = server.accept()
end = time.monotonic() + seconds
def send():
    data = bytes(1 << 18)
    try:
        while time.monotonic() < end: out.sendall(data)
    except OSError: pass
threading.Thread(target=send, daemon=True).start()
total, begin = 0, time.monotonic()
while time.monotonic() < end: total += len(came.recv(1 << 18))
print(total / (time.monotonic() - begin))
"""


def size_of(word):
    return int(word[:-1]) * UNITS[word[-1]] if word[-1] in UNITS else int(word)


def bits_per_second(rate):
    return float(rate[:-4]) * RATES[rate[-4:]]


def run_all(commands, environments=None):
    """Runs one command a place at once; what each printed. None: one failed."""
    processes = [subprocess.Popen(command, env={**os.environ, **(environments[i] if environments else {})}, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                 for i, command in enumerate(commands)]
    try:
        outs = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, err) in zip(processes, outs):
        if process.returncode != 0:
            print(err, file=sys.stderr)
            return None
    return [out for out, _ in outs]


class Bench:
    def __init__(self, args, cluster):
        self.args = args
        self.size = args.hosts * args.local
        self.cluster = cluster
        self.folder = tempfile.mkdtemp(prefix="rueda-hosts-bench-")
        self.port = 1

    def close(self):
        self.cluster.remove()
        shutil.rmtree(self.folder)

    def stream(self):
        """Bytes a second that two hosts can send each other at once, by one connection each way."""
        places = [subprocess.Popen(self.cluster.command(host, sys.executable, "-c", STREAM, f"10.77.0.{2 - host}", "3"),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for host in range(2)]
        for place in places:
            place.stdout.readline()
        for place in places:
            place.stdin.write("go\n")
            place.stdin.flush()
        return min(float(place.communicate()[0]) for place in places)

    def place(self, host, *words):
        return [*(runs.real_time() if self.args.real_time else []), *self.cluster.command(host, *words)]

    def rueda(self, size, operation="allreduce", dtype="float32", **variables):
        """Rank 0's line of rueda_bench."""
        lines = self.lines(size, ["--op", operation, *(["--dtype", dtype] if dtype != "float32" else [])], **variables)
        return lines and next(line for line in lines if line["op"].startswith(operation))

    def lines(self, size, options, **variables):
        """All that rank 0 prints."""
        self.port += 1
        shared = tempfile.mkdtemp(dir=self.folder)
        environments = [{"RANK": str(rank), "WORLD_SIZE": str(self.size), "LOCAL_WORLD_SIZE": str(self.args.local),
                         "MASTER_ADDR": "h1", "MASTER_PORT": str(self.port), "RUEDA_SHARED_DIR": shared, **variables}
                        for rank in range(self.size)]
        words = [self.args.build + "/bin/rueda_bench", "--json", *options, "--bytes", str(size), "--iterations",
                 self.iterations(size)]
        outs = run_all([self.place(rank // self.args.local, *words) for rank in range(self.size)], environments)
        return outs and [json.loads(line) for line in outs[0].splitlines()]

    def gloo(self, size, algorithm):
        shared = tempfile.mkdtemp(dir=self.folder)
        outs = run_all([self.place(host, str(peers.BIN / "gloo_bench"), "--on", "eth0", shared,
                                   str(host * self.args.local), str(self.args.local), str(self.size), algorithm,
                                   str(size)) for host in range(self.args.hosts)])
        return outs and json.loads(outs[0])

    def torch(self, size, operation, dtype):
        self.port += 1
        outs = run_all([self.place(host, str(peers.PYTHON), str(HERE / "peers" / "torch_bench.py"), "--on", "eth0",
                                   "10.77.0.1", str(PORTS + self.port), str(host * self.args.local), str(self.args.local),
                                   "--op", operation, "--dtype", dtype, str(self.size), str(size))
                        for host in range(self.args.hosts)], [peers.ONE_THREAD] * self.args.hosts)
        return outs and json.loads(outs[0])

    def wire(self, size, spins):
        self.port += 1
        outs = run_all([self.place(host, self.args.build + "/bin/wire_bench", str(host), "10.77.0.1",
                                   str(PORTS + self.port), *(["--spin"] if spins else []), str(size)) for host in range(2)])
        return outs and json.loads(outs[0])

    def remote_shell(self):
        """In the place of ssh: runs a command on the host that it is given, which has that name there: Open MPI's files
        in shared memory are named after it."""
        path = pathlib.Path(self.folder, "shell")
        path.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\n'
                        'exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"\n', encoding="ascii")
        path.chmod(0o755)
        return str(path)

    def mpi(self, peer, size, operation, dtype):
        places = ",".join(f"{name}:{self.args.local}" for name in self.cluster.names)
        launcher, environment = {
            "openmpi": (["mpirun.openmpi", "--mca", "plm_rsh_agent", self.remote_shell(), "--mca", "oob_tcp_if_include",
                         "eth0", "--mca", "btl_tcp_if_include", "eth0", "--mca", "routed", "direct", "--mca", "pml", "ob1", "--mca", "btl",
                         "tcp,self,vader", "--oversubscribe", "-H", places], peers.OPEN_MPI),
            "mpich": (["mpirun.mpich", "-launcher", "ssh", "-launcher-exec", self.remote_shell(), "-iface", "eth0",
                       "-hosts", places], {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "FI_PROVIDER": "tcp"}),
        }[peer]
        first = ["unshare", "--uts", "sh", "-c", f'hostname {self.cluster.names[0]}; exec "$@"', "sh"]
        outs = run_all([self.place(0, *first, *launcher, "-np", str(self.size), str(peers.BIN / f"mpi_bench.{peer}"), peer, "--op",
                                   operation, *(["--dtype", dtype] if dtype != "float32" else []), str(size))],
                       [environment])
        return outs and json.loads(next(line for line in outs[0].splitlines() if line.startswith("{")))

    def iterations(self, size):
        if self.args.delay or self.args.loss:
            return "50" if size <= 1 << 16 else "10"
        return "1000" if size <= 1 << 16 else "30" if size <= 1 << 20 else "5"

    def measure(self, row, operation, size):
        """One figure, in microseconds, and how often the tensor crossed a host's link outwards, at most."""
        before = [self.cluster.bytes_of(host)[0] for host in range(self.args.hosts)]
        line = row(size)
        if not line:
            return None
        sent = max(self.cluster.bytes_of(host)[0] - before[host] for host in range(self.args.hosts))
        # rueda_bench warms up, and checks a result of allreduces of float32.
        count = int(self.iterations(size))
        count += count // 10 + 1 + (operation == "allreduce" and self.args.dtype == "float32")
        return line["p50_us"], sent / (size * count)

    def rows(self, operation):
        """What is compared, by name: functions of the size."""
        dtype = self.args.dtype
        rows = {"Rueda": lambda size: self.rueda(size, operation, dtype),
                "Rueda over Gloo": lambda size: self.rueda(size, operation, dtype, RUEDA_CROSS="gloo"),
                "flat": lambda size: self.rueda(size, operation, dtype, RUEDA_BACKEND="gloo")}
        if self.args.ipv6:
            return rows
        if peers.is_set_up("gloo") and dtype == "float32":
            algorithms = ("new_ring", "bcube", "ring", "halving_doubling") if operation == "allreduce" else (operation,)
            for algorithm in algorithms:
                rows[f"Gloo {algorithm}"] = lambda size, name=algorithm: self.gloo(size, name)
        if peers.is_set_up("torch"):
            rows["torch"] = lambda size: self.torch(size, operation, dtype)
        for peer in ("openmpi", "mpich"):
            if peers.is_set_up(peer) and (peer != "mpich" or self.size <= runs.cores()):
                rows[{"openmpi": "Open MPI", "mpich": "MPICH"}[peer]] = (
                    lambda size, name=peer: self.mpi(name, size, operation, dtype))
        if operation == "allreduce" and self.size == self.args.hosts == 2 and dtype == "float32":
            rows["wire, blocking"] = lambda size: self.wire(size, False)
            if runs.cores() >= 2:
                rows["wire, spinning"] = lambda size: self.wire(size, True)
        return rows

    def least_ms(self, operation, size):
        """What the slowest host's link takes for what has to cross it; none without a limit or for barriers."""
        if self.args.rate == "none" or operation == "barrier":
            return None
        others = (self.args.hosts - 1) / self.args.hosts
        times = {"allreduce": 2 * others, "broadcast": 1, "allgather": self.args.local * (self.args.hosts - 1),
                 "alltoall": self.args.local * others, "reducescatter": others}[operation]
        return times * size * 8 / bits_per_second(self.args.rate) * 1e3

    def print_size(self, operation, size):
        rows = self.rows(operation)
        least = self.least_ms(operation, size)
        print(f"\n{operation} of {size} bytes of {self.args.dtype}" + (f"; the link's limit: {least:.3f} ms" if least else ""))
        found = {name: [] for name in rows}
        for _ in range(self.args.rounds):
            for name, row in rows.items():
                figure = self.measure(row, operation, size)
                if figure:
                    found[name].append(figure)
        ours = statistics.median(us for us, _ in found["Rueda"]) / 1e3
        for name, figures in found.items():
            if not figures:
                print(f"  {name:22s} failed")
                continue
            ms = statistics.median(us for us, _ in figures) / 1e3
            crossed = statistics.median(times for _, times in figures)
            print(f"  {name:22s} {ms:10.3f} ms  {ms / ours:5.2f} x"
                  + (f"  {least / ms * 100:5.1f} % of the limit" if least and size >= 1 << 20 else "")
                  + (f"  sent {crossed:.3f} x its size" if name in ("Rueda", "Rueda over Gloo", "flat") and size >= 1 << 20 else ""),
                  flush=True)

    def print_compressors(self, size):
        names = ["none", *(name for name in self.args.compressor.split(",") if name != "none")]
        words = [self.args.build + "/bin/ruedarun", "-np", str(self.size), "--prefix", "none", self.args.build + "/bin/rueda_bench",
                 "--json", "--bytes", str(size), "--iterations", self.iterations(size), "--compressor", ",".join(names)]
        for place in (f"{self.args.hosts} hosts", "1 host"):
            found = {name: [] for name in names}
            for _ in range(self.args.rounds):
                if place == "1 host":
                    lines = [json.loads(line) for line in subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()]
                else:
                    lines = self.lines(size, ["--compressor", ",".join(names)])
                for line in lines:
                    if line["op"].startswith("allreduce_"):
                        found[line["op"][len("allreduce_"):]].append(line["p50_us"] / 1e3)
            none = statistics.median(found["none"])
            print(f"\n{size} bytes, {place}")
            for name, times in found.items():
                ms = statistics.median(times)
                print(f"  {name:22s} {ms:10.3f} ms  {ms / none:5.2f} x", flush=True)

    def print_trips(self):
        for operation, size in (("allreduce", 4), ("allreduce", 16 << 10), ("barrier", 4)):
            for name, variables in (("Rueda", {}), ("flat", {"RUEDA_BACKEND": "gloo"})):
                ms = self.rueda(size, operation, **variables)["p50_us"] / 1e3
                print(f"  {operation:10s} {size:6d} bytes  {name:13s} {ms:8.2f} ms  {ms / self.args.round_trip:5.2f} round trips",
                      flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(HERE.parent.parent / "build" / "release"))
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--local", type=int, default=2)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--op", default="allreduce", metavar="LIST")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--bytes", default="4,4K,64K,1M,64M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--real-time", action="store_true")
    parser.add_argument("--compressor", metavar="LIST")
    parser.add_argument("--delay", type=float, metavar="MS")
    parser.add_argument("--loss", type=float, metavar="PERCENT")
    parser.add_argument("--mtu", type=int, metavar="BYTES")
    parser.add_argument("--ipv6", action="store_true")
    parser.add_argument("--round-trip", type=float, metavar="MS")
    args = parser.parse_args()
    is_relayed = args.round_trip or args.delay or args.loss
    kind = relay.Hosts if is_relayed else hosts.Hosts
    reason = hosts.why_not(kind)
    if reason:
        sys.exit(f"hosts_bench: {reason}")
    if args.round_trip:
        args.hosts = 2
    cluster = kind(args.hosts)
    bench = Bench(args, cluster)
    try:
        if args.round_trip:
            cluster.change(delay_ms=args.round_trip / 2)
            print(f"2 hosts x {args.local} ranks, {args.round_trip} ms from each other and back")
            return bench.print_trips()
        if args.mtu:
            cluster.set_mtu(args.mtu)
        if is_relayed:
            args.rate = "none"
            cluster.change(delay_ms=args.delay or 0, loss=(args.loss or 0) / 100)
        elif args.rate == "none":
            cluster.use_cubic()
        else:
            cluster.limit(args.rate)
        print(f"{args.hosts} hosts x {args.local} ranks, {args.rate}, {os.cpu_count()} cores, load "
              f"{os.getloadavg()[0]:.1f}; a stream each way at once: {bench.stream() * 8 / 1e6:.0f} Mbit/s")
        if args.ipv6:
            for host in range(args.hosts):
                cluster.ip(host, "-4", "addr", "flush", "dev", "eth0")
        for word in args.bytes.split(","):
            if args.compressor:
                bench.print_compressors(size_of(word))
                continue
            for operation in args.op.split(","):
                bench.print_size(operation, size_of(word))
    finally:
        bench.close()


if __name__ == "__main__":
    main()
