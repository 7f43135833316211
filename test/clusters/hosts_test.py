#!/usr/bin/env python3
"""Jobs on several hosts: namespaces with a network between them (hosts.py). Needs root.

hosts_test.py HELLO RUEDA_BENCH
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import hosts
import slurm
import support

HELLO, BENCH = sys.argv.pop(1), sys.argv.pop(1)
START = 30  # seconds for a job to start, if nothing else is said
HANG = 60  # seconds
# Keeps a port until its input ends.
TAKE = "import socket, sys; s = socket.create_server(('10.77.0.1', 29402)); print(flush=True); sys.stdin.read()"


def setUpModule():
    support.skip_all(hosts.why_not())


class Job:
    """`size` ranks of a program, in blocks of `local` on a host each; or of so many as `local` lists."""

    def __init__(self, cluster, size, local, program, only=None, **variables):
        self.ranks = []
        blocks = local if isinstance(local, list) else [local] * -(-size // local)
        host_of = [host for host, ranks in enumerate(blocks) for _ in range(ranks)]
        for rank in range(size) if only is None else only:
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size),
                           "LOCAL_WORLD_SIZE": str(blocks[host_of[rank]]), "MASTER_ADDR": "h1", "MASTER_PORT": "1",
                           "RUEDA_START_TIMEOUT_S": str(START), **variables}
            self.ranks.append(subprocess.Popen(
                cluster.command(host_of[rank], *program), env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))

    def wait(self):
        """What each rank printed, and its exit status."""
        try:
            return [(rank.communicate(timeout=HANG)[0], rank.returncode) for rank in self.ranks]
        finally:
            for rank in self.ranks:
                rank.kill()


class OnHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = hosts.Hosts(3)
        cls.addClassCleanup(cls.cluster.remove)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="rueda-hosts-")
        self.addCleanup(shutil.rmtree, self.folder)


class Hosts(OnHosts):
    def start(self, size, local, program=(HELLO,), **variables):
        return Job(self.cluster, size, local, program, **{"RUEDA_SHARED_DIR": self.folder, **variables})

    def expect_all(self, job, size):
        for rank, (out, status) in enumerate(job.wait()):
            self.assertEqual(status, 0, out)
            self.assertEqual(out, support.line_of(rank, size) + "\n")
        self.assertEqual(os.listdir(self.folder), [])

    def expect_refused(self, job, *texts):
        for out, status in job.wait():
            self.assertNotEqual(status, 0)
            for text in texts:
                self.assertIn(text, out)

    def test_two_ranks_on_each(self):
        self.expect_all(self.start(4, 2), 4)

    def test_one_rank_on_each(self):
        self.expect_all(self.start(3, 1), 3)

    def test_without_knowing_how_many_are_on_each(self):
        self.expect_all(self.start(4, 2, LOCAL_WORLD_SIZE=""), 4)

    def test_negotiation_over_tcp_only(self):
        self.expect_all(self.start(4, 2, RUEDA_BUS="tcp"), 4)

    def test_each_host_below_the_one_before(self):
        self.expect_all(self.start(6, 2, RUEDA_LEADER_FAN_OUT="1"), 6)

    def write_secret(self):
        secret = os.path.join(tempfile.mkdtemp(prefix="rueda-secret-"), "secret")
        self.addCleanup(shutil.rmtree, os.path.dirname(secret))
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("the secret of this job")
        return secret

    def test_nobody_is_left_behind_at_the_end(self):
        """The last barrier fails where others were faster; that is no reason to wait for it."""
        for _ in range(25):
            for out, status in self.start(6, 2, RUEDA_LOG_LEVEL="info").wait():
                self.assertEqual(status, 0, out)
                self.assertNotIn("the last barrier did not end in time", out)

    def test_a_stopped_rank_that_speaks_for_its_host_is_named(self):
        """By its neighbour: rank 0 can't know which of them it is."""
        settings = {"RUEDA_SHARED_DIR": "", "RUEDA_MEETING_ADDRESS": "10.77.0.1:29405",
                    "RUEDA_SECRET_FILE": self.write_secret(), "RUEDA_START_TIMEOUT_S": "2"}
        voice = Job(self.cluster, 4, 2, (HELLO,), only=[2], **settings)
        while "@rueda-" not in subprocess.run(self.cluster.command(1, "cat", "/proc/net/unix"), capture_output=True,
                                              text=True, check=True).stdout:
            time.sleep(0.01)
        voice.ranks[0].send_signal(signal.SIGSTOP)
        try:
            (rank_0, _), (rank_3, _) = Job(self.cluster, 4, 2, (HELLO,), only=[0, 3], **settings).wait()
            self.assertIn("did not come to the start of the job in time", rank_0)
            self.assertIn(f"the rank that speaks for this host (pid {voice.ranks[0].pid}, stopped by a signal) did not come",
                          rank_3)
        finally:
            voice.ranks[0].kill()
            voice.wait()

    def test_a_secret_of_their_own(self):
        self.expect_all(self.start(4, 2, RUEDA_SECRET_FILE=self.write_secret()), 4)

    def test_at_an_address_of_rank_0(self):
        """Without anything that the hosts share but a secret; also again at once, where connections may linger."""
        secret = self.write_secret()
        for address in ("10.77.0.1:29400", "10.77.0.1:29400", "[fd00:77::1]:29400"):
            if address.startswith("[") and not hosts.has_ipv6():
                continue
            with self.subTest(address):
                self.expect_all(self.start(4, 2, RUEDA_SHARED_DIR="", RUEDA_MEETING_ADDRESS=address,
                                           RUEDA_SECRET_FILE=secret), 4)

    def test_at_an_address_of_loopback(self):
        """On one host of ranks that nobody says are on one."""
        self.expect_all(self.start(2, 2, RUEDA_SHARED_DIR="", RUEDA_MEETING_ADDRESS="localhost:29404", LOCAL_WORLD_SIZE="",
                                   RUEDA_SECRET_FILE=self.write_secret()), 2)

    def test_at_an_address_without_a_secret(self):
        meeting = {"RUEDA_SHARED_DIR": "", "RUEDA_MEETING_ADDRESS": "10.77.0.1:29400"}
        self.expect_refused(self.start(4, 2, **meeting), "RUEDA_MEETING_ADDRESS without a secret", "RUEDA_SECRET_FILE",
                            "RUEDA_ALLOW_UNAUTHENTICATED=1")
        for out, status in self.start(4, 2, RUEDA_ALLOW_UNAUTHENTICATED="1", **meeting).wait():
            self.assertEqual(status, 0, out)
            self.assertEqual("whoever reaches 10.77.0.1:29400 can take part in this job" in out, "rank 0 of 4" in out)

    def test_what_is_wrong_with_an_address_is_said(self):
        secret = self.write_secret()
        for address, text in (("10.77.0.1", "address 10.77.0.1 has no port"),
                              ("10.77.0.1:99999", "address 10.77.0.1:99999 has no port")):
            self.expect_refused(self.start(2, 1, RUEDA_SHARED_DIR="", RUEDA_MEETING_ADDRESS=address,
                                           RUEDA_SECRET_FILE=secret), text)
        nobody = Job(self.cluster, 2, 1, (HELLO,), only=[1], RUEDA_START_TIMEOUT_S="1", RUEDA_SECRET_FILE=secret,
                     RUEDA_MEETING_ADDRESS="no-such-host.invalid:29400")
        self.expect_refused(nobody, "the host no-such-host.invalid: ")
        elsewhere = Job(self.cluster, 2, 1, (HELLO,), only=[0], RUEDA_START_TIMEOUT_S="1", RUEDA_SECRET_FILE=secret,
                        RUEDA_MEETING_ADDRESS="10.77.0.2:29403")
        self.expect_refused(elsewhere, "RUEDA_MEETING_ADDRESS=10.77.0.2:29403, where the others look for rank 0, is not "
                                       "this host; rank 0 waits at 10.77.0.1 (interface eth0)", "rank 1 did not come")
        other = Job(self.cluster, 2, 1, (HELLO,), only=[0], RUEDA_SECRET_FILE=secret, RUEDA_NETWORK_INTERFACE="lo",
                    RUEDA_MEETING_ADDRESS="10.77.0.1:29403")
        self.expect_refused(other, "RUEDA_MEETING_ADDRESS=10.77.0.1:29403 is an address of eth0, and "
                                   "RUEDA_NETWORK_INTERFACE=lo another interface: nobody would look for rank 0 there")
        none = Job(self.cluster, 2, 1, (HELLO,), only=[0], RUEDA_SECRET_FILE=secret, RUEDA_NETWORK_INTERFACE="eth7",
                   RUEDA_MEETING_ADDRESS="10.77.0.1:29403")
        self.expect_refused(none, "network_interface=eth7: this host has no such interface with an address")
        taken = subprocess.Popen(self.cluster.command(0, sys.executable, "-c", TAKE), stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True)
        try:
            taken.stdout.readline()
            first = Job(self.cluster, 2, 1, (HELLO,), only=[0], RUEDA_SECRET_FILE=secret,
                        RUEDA_MEETING_ADDRESS="10.77.0.1:29402")
            self.expect_refused(first, "listening on 10.77.0.1 port 29402: Address already in use")
        finally:
            taken.communicate("")

    @unittest.skipUnless(hosts.has_ipv6(), "no IPv6 here")
    def test_ipv6_alone(self):
        cluster = hosts.Hosts(2)
        self.addCleanup(cluster.remove)
        for host in range(2):
            cluster.ip(host, "addr", "flush", "dev", "eth0", "scope", "global")
            cluster.ip(host, "addr", "add", f"fd00:77::{host + 1}/64", "dev", "eth0", "nodad")
        self.expect_all(Job(cluster, 4, 2, (HELLO,), RUEDA_SHARED_DIR=self.folder), 4)

    def test_two_jobs_at_once(self):
        jobs = [self.start(4, 2, MASTER_PORT=str(port)) for port in (1, 2)]
        for job in jobs:
            for rank, (out, status) in enumerate(job.wait()):
                self.assertEqual((out, status), (f"rank {rank} of 4: average 1.5\n", 0))

    def test_what_an_earlier_job_left_is_replaced(self):
        """Rank 1 finds a file whose address nobody answers at, and waits for rank 0's."""
        first = Job(self.cluster, 2, 1, (HELLO,), only=[0], RUEDA_SHARED_DIR=self.folder)
        self.wait_for(lambda: any(not name.endswith(".new") for name in os.listdir(self.folder)), first)
        for rank in first.ranks:
            rank.kill()
        first.wait()
        self.assertEqual(len(os.listdir(self.folder)), 1)
        late = Job(self.cluster, 2, 1, (HELLO,), only=[1], RUEDA_SHARED_DIR=self.folder)
        again = Job(self.cluster, 2, 1, (HELLO,), only=[0], RUEDA_SHARED_DIR=self.folder)
        for job, rank in ((again, 0), (late, 1)):
            self.assertEqual(job.wait(), [(f"rank {rank} of 2: average 0.5\n", 0)])

    def test_several_interfaces_and_no_route(self):
        cluster = hosts.Hosts(2)
        self.addCleanup(cluster.remove)
        cluster.ip(0, "link", "add", "other0", "type", "veth", "peer", "name", "other1")
        cluster.ip(0, "addr", "add", "10.78.0.1/24", "dev", "other0")
        cluster.ip(0, "link", "set", "other0", "up")
        alone = Job(cluster, 2, 1, (HELLO,), only=[0], RUEDA_SHARED_DIR=self.folder)
        self.expect_refused(alone, "which network interface leads to the other hosts?", "eth0 (10.77.0.1)",
                            "other0 (10.78.0.1)", "RUEDA_NETWORK_INTERFACE")
        self.expect_all(Job(cluster, 2, 1, (HELLO,), RUEDA_SHARED_DIR=self.folder, RUEDA_NETWORK_INTERFACE="eth0"), 2)
        cluster.ip(0, "route", "add", "default", "via", "10.77.0.2")
        self.expect_all(Job(cluster, 2, 1, (HELLO,), RUEDA_SHARED_DIR=self.folder), 2)

    def test_a_public_address_carries_no_tensors(self):
        """Whichever rank has it: all are told."""
        cluster = hosts.Hosts(2)
        self.addCleanup(cluster.remove)
        for host in (1, 0):
            cluster.ip(host, "addr", "flush", "dev", "eth0", "scope", "global")
            cluster.ip(host, "addr", "add", f"203.0.113.{host + 1}/24", "dev", "eth0")
            for there in range(2):
                cluster.ip(there, "route", "replace", f"203.0.113.0/24" if there != host else "10.77.0.0/24", "dev", "eth0")
            self.expect_refused(Job(cluster, 2, 1, (HELLO,), RUEDA_SHARED_DIR=self.folder),
                                f"203.0.113.{2 if host == 1 else 1} of rank ", "can be reached from anywhere",
                                "RUEDA_ALLOW_UNAUTHENTICATED_DATA=1")
        self.expect_all(Job(cluster, 2, 1, (HELLO,), RUEDA_SHARED_DIR=self.folder,
                            RUEDA_ALLOW_UNAUTHENTICATED_DATA="1"), 2)

    def test_what_is_wrong_is_said(self):
        self.expect_refused(self.start(4, 2, RUEDA_SHARED_DIR=""), "of 4 ranks 2 are on this host", "RUEDA_SHARED_DIR")
        self.expect_refused(self.start(4, 2, RUEDA_SHARED_DIR="/no/such/folder"), "/no/such/folder",
                            "No such file or directory")
        self.expect_refused(self.start(4, 2, RUEDA_NETWORK_INTERFACE="eth7"),
                            "network_interface=eth7: this host has no such interface")

    def test_a_rank_that_does_not_come_is_named(self):
        job = Job(self.cluster, 4, 2, (HELLO,), only=[0, 1, 3], RUEDA_SHARED_DIR=self.folder,
                  RUEDA_START_TIMEOUT_S="2")
        self.expect_refused(job, "rank 2 did not come to the start of the job in time")
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_killed_rank_is_named_everywhere(self):
        """Soon, whichever it is: of rank 0's host, another host's first, and one of that."""
        self.kill_each(4, 2)

    def test_one_in_the_middle_of_a_chain_too(self):
        self.kill_each(3, 1, RUEDA_LEADER_FAN_OUT="1")

    def kill_each(self, size, local, **variables):
        for victim in range(size):
            job = self.start(size, local, (BENCH, "--bytes", "4K", "--iterations", "1000000"),
                             RUEDA_RECORDER_DIR=self.folder, **variables)
            pids = [rank.pid for rank in job.ranks]
            self.wait_for(lambda: all(map(support.reduces, pids)), job)
            os.kill(pids[victim], signal.SIGKILL)
            killed = time.monotonic()
            for rank, (out, status) in enumerate(job.wait()):
                if rank == victim:
                    self.assertEqual(status, -signal.SIGKILL)
                    continue
                self.assertGreater(status, 0, out)
                self.assertIn(f"rank {victim} (host ", out)
                self.assertIn(f"pid {pids[victim]}) was lost", out)
            print(f"rank {victim} killed: all have ended after {time.monotonic() - killed:.2f} s")

    def wait_for(self, condition, job):
        deadline = time.monotonic() + HANG
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            for rank in job.ranks:
                self.assertIsNone(rank.poll(), "it has ended")
            time.sleep(0.01)


class BetweenHosts(OnHosts):
    """How tensors get from host to host."""
    SIZE = 8 << 20

    def reduce(self, blocks, sizes, iterations, **variables):
        """Each rank checks the first result of each size."""
        job = Job(self.cluster, sum(blocks), blocks, (BENCH, "--bytes", sizes, "--iterations", str(iterations)),
                  RUEDA_SHARED_DIR=self.folder, **variables)
        for out, status in job.wait():
            self.assertEqual(status, 0, out)

    def crossings(self, blocks, **variables):
        """How often each host sends a tensor's size in an allreduce, and how often it receives it."""
        counts = []
        for iterations in (10, 20):
            before = [self.cluster.bytes_of(host) for host in range(len(blocks))]
            self.reduce(blocks, str(self.SIZE), iterations, **variables)
            counts.append([[after - start for after, start in zip(self.cluster.bytes_of(host), before[host])]
                           for host in range(len(blocks))])
        more = 11 * self.SIZE  # rueda_bench warms up with a tenth of its iterations
        return [[(long - short) / more for short, long in zip(*host)] for host in zip(*counts)]

    def test_sums_are_right_however_ranks_are_spread(self):
        for blocks in ([2, 2], [1, 1, 1], [2, 1], [1, 3], [1, 2, 1], [2, 2, 1]):
            with self.subTest(blocks):
                self.reduce(blocks, "4,12K,100000,3M", 5)

    def test_of_two_hosts_each_sends_a_tensor_once(self):
        for blocks in ([2, 2], [2, 1], [1, 1]):
            for host in self.crossings(blocks):
                for times in host:
                    self.assertLess(times, 1.05, blocks)
                    self.assertGreater(times, 0.95, blocks)

    def test_of_three_hosts_each_sends_as_much_as_in_a_ring(self):
        for host in self.crossings([2, 1, 1]):
            for times in host:
                self.assertLess(times, 4 / 3 * 1.05)

    def test_a_ring_of_all_ranks_sends_more(self):
        """If it did not, there would be no use in the rest."""
        for host in self.crossings([2, 2], RUEDA_BACKEND="gloo"):
            for times in host:
                self.assertGreater(times, 1.3)


class Launchers(OnHosts):
    """The real ones, on the first two."""

    def setUp(self):
        super().setUp()
        self.shared = os.path.join(self.folder, "shared")
        os.mkdir(self.shared)
        self.environment = {"RUEDA_SHARED_DIR": self.shared, "RUEDA_START_TIMEOUT_S": str(START)}

    def remote_shell(self):
        """In the place of ssh: runs a command on the host that it is given."""
        path = os.path.join(self.folder, "shell")
        with open(path, "w", encoding="ascii") as script:
            script.write('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\n'
                         'exec ip netns exec "$host" sh -c "$*"\n')
        os.chmod(path, 0o755)
        return path

    def run_on_first(self, words, **variables):
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG,
                              stdin=subprocess.DEVNULL, env={**os.environ, **self.environment, **variables})

    def expect_ranks(self, size, words, **variables):
        support.expect_ranks(self, size, self.run_on_first(words, **variables))
        self.assertEqual(os.listdir(self.shared), [])

    def test_open_mpi(self):
        support.needs("mpirun.openmpi")
        first, second = self.cluster.names[:2]
        self.expect_ranks(4, self.cluster.command(
            0, "mpirun.openmpi", "--mca", "plm_rsh_agent", self.remote_shell(), "--mca", "oob_tcp_if_include", "eth0",
            "-H", f"{first}:2,{second}:2", "-np", "4", "-x", "RUEDA_SHARED_DIR", "-x", "RUEDA_START_TIMEOUT_S", HELLO),
                          **support.open_mpi(self))

    def test_mpich_with_a_name_for_the_job(self):
        support.needs("mpirun.mpich")
        words = self.cluster.command(0, "mpirun.mpich", "-launcher", "ssh", "-launcher-exec", self.remote_shell(),
                                     "-iface", "eth0", "-hosts", ",".join(f"{name}:2" for name in self.cluster.names[:2]),
                                     "-np", "4", HELLO)
        done = self.run_on_first(words)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("PMI_SIZE=4 says that Hydra", done.stdout)
        self.assertIn("set RUEDA_JOB_ID to one word for all of them", done.stdout)
        self.expect_ranks(4, words, RUEDA_JOB_ID=f"hosts-test-{os.getpid()}")

    def test_slurm(self):
        support.needs(*slurm.PROGRAMS)
        folder = os.path.join(self.folder, "slurm")
        os.mkdir(folder)
        cluster = slurm.Cluster(folder, nodes=2, cpus=4, hosts=self.cluster)
        self.addCleanup(cluster.stop)
        for words in (["--ntasks-per-node", "2"], ["--mpi=pmi2", "-n", "4"]):
            self.expect_ranks(4, cluster.command("srun", "-N", "2", *words, HELLO), SLURM_CONF=cluster.conf)


if __name__ == "__main__":
    support.main()
