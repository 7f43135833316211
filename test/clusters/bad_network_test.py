#!/usr/bin/env python3
"""Jobs on several hosts whose network is bad (relay.py): cut in both directions or in one, for a while or for long, or
with packets that are late, lost, doubled or overtaken. Needs root.

bad_network_test.py BAD_NETWORK_HELPER RUEDARUN

NETWORK_SEED: what the relay's choices follow from; one that the file says, to see what happened again.
SOAK_NETWORK_OPERATIONS: how many each job does; more in test/soak/run.sh.
"""
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import hosts
import relay
import sshd
import support

HELPER, RUEDARUN = sys.argv.pop(1), sys.argv.pop(1)
SEED = int(os.environ.get("NETWORK_SEED") or random.randrange(1, 100_000))
OPERATIONS = int(os.environ.get("SOAK_NETWORK_OPERATIONS", "200"))
HANG = 60 + OPERATIONS / 4  # seconds
LIMIT = 2  # seconds, of silence
LATE = 1  # seconds after it: when all know, if the machine does not do too much else
DEFAULT_LIMIT = 4
LOST = 3  # the helper's exit status
NUMBERS = itertools.count(1)


def setUpModule():
    if reason := hosts.why_not(relay.Hosts):
        print(f"\nSKIPPED: {reason}", flush=True)
        sys.exit(77)
    print(f"NETWORK_SEED={SEED}", flush=True)


def between(source, destination, **what):
    usual = {"cut": False, "longest": 65535}
    return (lambda cluster: cluster.change(source, destination, **what),
            lambda cluster: cluster.change(source, destination, **{name: usual[name] for name in what}))


# What happens to the network between host 0 and host 1: the words for it, and what to do and undo.
CUTS = {
    "both ways": (lambda cluster: cluster.cut(1), lambda cluster: cluster.join(1)),
    "from host 0 on": between(0, 1, cut=True),
    "from host 1 on": between(1, 0, cut=True),
    "link down": (lambda cluster: cluster.ip(1, "link", "set", "eth0", "down"),
                  lambda cluster: cluster.ip(1, "link", "set", "eth0", "up")),
    # TCP's acknowledgements pass, and nothing else: who is not heard hears all.
    "all but short ones, from host 0 on": between(0, 1, longest=100),
    "all but short ones, from host 1 on": between(1, 0, longest=100),
}


class Job:
    """Two ranks of the helper on each host."""

    def __init__(self, cluster, count, folder, name, *words, **variables):
        self.folder, self.name, self.ranks = tempfile.mkdtemp(dir=folder), name, []
        for rank in range(2 * count):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(2 * count), "LOCAL_WORLD_SIZE": "2",
                           "RUEDA_JOB_ID": name, "RUEDA_SHARED_DIR": folder, "RUEDA_RECORDER_DIR": self.folder,
                           "RUEDA_HEARTBEAT_LIMIT_S": str(LIMIT), **variables}
            with open(os.path.join(self.folder, f"out.{rank}"), "wb") as out:
                self.ranks.append(subprocess.Popen(cluster.command(rank // 2, HELPER, *map(str, words)), env=environment,
                                                   stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT))

    def out(self, rank):
        with open(os.path.join(self.folder, f"out.{rank}"), encoding="utf-8") as out:
            return out.read()

    def everything(self):
        return "".join(f"[{rank}] {line}" for rank in range(len(self.ranks))
                       for line in self.out(rank).splitlines(keepends=True)) + f"NETWORK_SEED={SEED}"

    def found(self, pattern):
        """What the pattern finds in each rank's words, None: nothing."""
        return [re.search(pattern, self.out(rank), re.MULTILINE) for rank in range(len(self.ranks))]

    def has_ended(self):
        return any(rank.poll() is not None for rank in self.ranks)

    def let_go(self):
        """Ranks of a job that has failed need not stay."""
        for rank in self.ranks:
            rank.stdin.close()

    def statuses(self):
        return [rank.wait(timeout=HANG) for rank in self.ranks]

    def end(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            rank.stdin.close()


class Network(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="rueda-network-")
        self.addCleanup(shutil.rmtree, self.folder)

    def cluster(self, count=2, **what):
        cluster = relay.Hosts(count, SEED)
        self.addCleanup(cluster.remove)
        cluster.change(**what)
        return cluster

    def job(self, cluster, *words, count=2, name=None, **variables):
        job = Job(cluster, count, self.folder, name or f"network-{next(NUMBERS)}", *words, **variables)
        self.addCleanup(job.end)
        return job

    def await_words(self, pattern, *jobs):
        deadline = time.monotonic() + HANG
        for job in jobs:
            while not all(job.found(pattern)):
                self.assertTrue(pattern == "^failed" or not job.has_ended(), job.everything())
                self.assertLess(time.monotonic(), deadline, job.everything())
                time.sleep(0.01)

    def expect_done(self, job, operations=1):
        """With the right results; and nobody was accused."""
        job.let_go()
        self.assertEqual(job.statuses(), [0] * len(job.ranks), job.everything())
        for done in job.found(r"^done (\d+), slowest ([\d.]+) s$"):
            self.assertGreaterEqual(int(done[1]), operations, job.everything())
        self.assertNotIn("lost", job.everything())

    def expect_lost(self, job, since, far):
        """All say so in time, and name a rank of another host: one of those that `far` lists for a rank."""
        self.await_words("^failed", job)
        latest = 0
        for rank, said in enumerate(job.found(r"^failed at ([\d.]+) rank (-?\d+): rank (-?\d+) \(host .* was lost: "
                                              r"(it took rank \d+ for lost: )?(silent|nothing has reached it) for")):
            self.assertIsNotNone(said, job.everything())
            self.assertIn(int(said[2]), far(rank), job.everything())
            self.assertEqual(said[2], said[3], job.everything())
            latest = max(latest, float(said[1]) - since)
        self.assertLess(latest, LIMIT + 4, job.everything())
        return latest

    def expect_stale(self, job):
        """Its ranks learn nothing new, and end."""
        job.let_go()
        self.assertEqual(job.statuses(), [LOST] * len(job.ranks), job.everything())
        for first, then in zip(job.found(r"^failed at [\d.]+ rank (\d+)"), job.found(r"^then rank (\d+)")):
            self.assertEqual(first[1], then[1], job.everything())


def other_of_two(rank):
    return (2, 3) if rank < 2 else (0, 1)


class Cut(Network):
    def test_both_sides_name_the_other(self):
        """While they work and while they do nothing. When the network is whole again those that are left behind
        disturb no later job of their name."""
        for ways in (list(CUTS)[:3], list(CUTS)[3:]):
            with self.subTest(ways=ways):
                self.both_sides_name_the_other(ways)

    def both_sides_name_the_other(self, ways):
        clusters = {way: self.cluster(delay_ms=2) for way in ways}
        jobs = {way: {"at work": self.job(cluster, "--work", 100), "idle": self.job(cluster, "--idle", 100)}
                for way, cluster in clusters.items()}
        if "both ways" in jobs:
            jobs["both ways"] |= {
                "over Gloo alone": self.job(clusters["both ways"], "--work", 100, RUEDA_BACKEND="gloo"),
                "over TCP alone": self.job(clusters["both ways"], "--work", 100, RUEDA_BUS="tcp")}
        for these in jobs.values():
            for what, job in these.items():
                self.await_words("^there" if what == "idle" else "^at work", job)
        since = {}
        for way, cluster in clusters.items():
            since[way] = time.monotonic()
            CUTS[way][0](cluster)
        for way, these in jobs.items():
            for what, job in these.items():
                print(f"{way}, {what}: all know after {self.expect_lost(job, since[way], other_of_two):.2f} s, "
                      f"limit {LIMIT} s", flush=True)
        time.sleep(max(0, max(since.values()) + 2 * LIMIT - time.monotonic()))
        for way, cluster in clusters.items():
            CUTS[way][1](cluster)
        for job in [self.job(clusters[way], "--operations", 20, name=jobs[way]["idle"].name) for way in ways]:
            self.expect_done(job, 20)
        for these in jobs.values():
            for job in these.values():
                self.expect_stale(job)
                job.end()

    def test_for_half_the_limit_it_is_forgiven(self):
        """The default one, on hosts that are far from each other."""
        limit = {"RUEDA_HEARTBEAT_LIMIT_S": str(DEFAULT_LIMIT)}
        clusters = {way: self.cluster(delay_ms=25) for way in list(CUTS)[:4]}
        jobs = []
        for cluster in clusters.values():
            jobs += [self.job(cluster, "--work", 6, **limit),
                     self.job(cluster, "--idle", 6, "--operations", 10, **limit)]
        self.await_words("^there", *jobs)
        time.sleep(1)  # they know how long an answer takes
        for way, cluster in clusters.items():
            CUTS[way][0](cluster)
        time.sleep(DEFAULT_LIMIT / 2)
        for way, cluster in clusters.items():
            CUTS[way][1](cluster)
        for job in jobs:
            self.expect_done(job)

    def test_one_host_of_three(self):
        """Those who still see each other name one of it."""
        clusters = {lost: self.cluster(3, delay_ms=2) for lost in (0, 2)}
        jobs = {lost: [self.job(cluster, "--work", 100, count=3), self.job(cluster, "--idle", 100, count=3)]
                for lost, cluster in clusters.items()}
        self.await_words("^there", *jobs[0], *jobs[2])
        since = time.monotonic()
        for lost, cluster in clusters.items():
            cluster.cut(lost)
        for lost, these in jobs.items():
            def far(rank):
                return [other for other in range(6) if (other // 2 == lost) != (rank // 2 == lost)]
            print(f"host {lost} of 3, all know after", *(f"{self.expect_lost(job, since, far):.2f} s" for job in these))
            for job in these:
                self.expect_stale(job)


    def test_between_two_hosts_that_the_root_hears(self):
        """Nothing is wrong with the control plane, whose tree goes around the cut: the tensors' connections tell."""
        def both_ways(cluster, **what):
            for source, destination in ((1, 2), (2, 1)):
                cluster.change(source, destination, **what)
        clusters = {name: self.cluster(3, delay_ms=2) for name in ("hierarchical", "gloo", "short")}
        jobs = {"hierarchical": self.job(clusters["hierarchical"], "--work", 100, count=3),
                "gloo": self.job(clusters["gloo"], "--work", 100, count=3, RUEDA_BACKEND="gloo")}
        short = self.job(clusters["short"], "--work", 8, count=3, RUEDA_HEARTBEAT_LIMIT_S=str(DEFAULT_LIMIT))
        self.await_words("^at work", *jobs.values(), short)
        since = time.monotonic()
        for cluster in clusters.values():
            both_ways(cluster, cut=True)
        for name, job in jobs.items():
            latest = self.expect_lost(job, since, lambda rank: (2, 3, 4, 5))
            print(f"{name}, between two of three: all know after {latest:.2f} s, limit {LIMIT} s", flush=True)
            self.assertIn("carries nothing any more", job.everything())
            self.expect_stale(job)
        time.sleep(max(0, since + DEFAULT_LIMIT - 0.5 - time.monotonic()))
        both_ways(clusters["short"], cut=False)
        self.expect_done(short)


    def test_a_route_that_is_gone(self):
        """Which the hosts themselves know: a connection fails at once."""
        cluster = hosts.Hosts(3)
        self.addCleanup(cluster.remove)
        job = self.job(cluster, "--work", 100, count=3)
        self.await_words("^at work", job)
        since = time.monotonic()
        cluster.ip(1, "route", "add", "blackhole", "10.77.0.3")
        cluster.ip(2, "route", "add", "unreachable", "10.77.0.2")
        latest = self.expect_lost(job, since, lambda rank: (2, 3, 4, 5))
        print(f"a route gone on both sides: all know after {latest:.2f} s, limit {LIMIT} s", flush=True)
        self.expect_stale(job)


class UnderRuedarun(Network):
    """Which has a connection to each host, that may be cut too, and ends ranks two seconds after the first has failed:
    whoever did not know by then would never."""

    RANKS = 6
    # Ranks 0 and 1 on the first of three hosts, which is ruedarun's, and so on; who can't be heard by whom.
    CUTS = {"two others": ((1, 2), (2, 1)), "two others, one way": ((1, 2),),
            "the root and another": ((0, 2), (2, 0)), "the root hears, and is not heard": ((0, 2),),
            "the root does not hear": ((2, 0),), "a host that hears nobody": ((0, 2), (1, 2)),
            "a host that nobody hears": ((2, 0), (2, 1)), "a host from all": ((0, 2), (1, 2), (2, 0), (2, 1))}

    @classmethod
    def setUpClass(cls):
        support.skip(sshd.why_not())

    def setUp(self):
        super().setUp()
        self.hosts = self.cluster(3, delay_ms=2)
        self.sshd = sshd.Sshd(self.hosts, tempfile.mkdtemp(dir=self.folder))
        self.addCleanup(self.sshd.stop)

    def start(self, *words):
        folder = tempfile.mkdtemp(dir=self.folder)
        # Not as its ranks' output: that of a host which is cut off does not come.
        script = f"exec {HELPER} {' '.join(map(str, words))} >{folder}/out.$RANK 2>&1"
        with open(os.path.join(folder, "err"), "wb") as err:
            job = subprocess.Popen(
                self.sshd.command(0, RUEDARUN, "--host-timeout", "6",
                                  "-H", ",".join(f"{name}:2" for name in self.hosts.names), "-x", f"RUEDA_HEARTBEAT_LIMIT_S={LIMIT}", "-x", f"RUEDA_RECORDER_DIR={folder}",
                                  "sh", "-c", script), cwd=folder, stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return job, folder

    def said(self, folder, name):
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def await_all(self, folder, pattern, seconds):
        """What it finds in the words of each rank; of one that does not say it in time None."""
        deadline = time.monotonic() + seconds
        while True:
            found = [re.search(pattern, self.said(folder, f"out.{rank}"), re.MULTILINE) for rank in range(self.RANKS)]
            if all(found) or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    def test_all_ranks_know_soon_after_the_limit(self):
        for name, directions in self.CUTS.items():
            with self.subTest(cut=name):
                self.expect_told(name, directions, "--work", 100, "--in-flight", 4, "--bytes-max", 1_000_000)

    def test_all_ranks_know_though_nothing_is_under_way(self):
        for name in ("the root hears, and is not heard", "the root does not hear"):
            with self.subTest(cut=name):
                self.expect_told(name, self.CUTS[name], "--idle", 100)

    def expect_told(self, name, directions, *words):
        job, folder = self.start(*words)
        def everything():
            return "".join(self.said(folder, file) for file in ["err", *(f"out.{rank}" for rank in range(self.RANKS))])
        ready = self.await_all(folder, "^there" if "--idle" in words else "^at work", HANG)
        self.assertTrue(all(ready), everything())
        since = time.monotonic()
        for source, destination in directions:
            self.hosts.change(source, destination, cut=True)
        late = LATE if os.getloadavg()[0] < 4 else 3 * LATE
        found = self.await_all(folder, r"^failed at ([\d.]+) rank (\d): rank \d \(host \S+ pid \d+\) was lost",
                               5 * LIMIT)
        job.wait(timeout=HANG)
        over = time.monotonic() - since
        for source, destination in directions:
            self.hosts.change(source, destination, cut=False)
        for rank, said in enumerate(found):
            self.assertIsNotNone(said, f"rank {rank}: {everything()}")
            self.assertNotEqual(int(said[2]), rank, everything())
            # It is of a host at one end of the cut.
            self.assertIn(int(said[2]) // 2, {host for pair in directions for host in pair}, everything())
        latest = max(float(said[1]) for said in found) - since
        print(f"{name}, {' '.join(map(str, words))}: all know after {latest:.2f} s, limit {LIMIT} s; over after {over:.1f} s",
              flush=True)
        self.assertLess(latest, LIMIT + late, everything())
        self.assertNotEqual(job.returncode, 0, everything())


class LargePackets(Network):
    """Those of more than 1000 bytes are lost, of interfaces that take 1500: a path whose limit nobody tells."""

    def test_the_pair_of_hosts_is_named(self):
        large = ("--in-flight", 4, "--bytes-max", 100_000)
        clusters = {way: self.cluster(3, delay_ms=2) for way in ("from the start", "one way", "both ways")}
        jobs = {way: self.job(cluster, "--work", 100, *large, count=3) for way, cluster in clusters.items()
                if way != "from the start"}
        self.await_words("^at work", *jobs.values())
        since = time.monotonic()
        clusters["one way"].change(1, 2, longest=1000)
        for source, destination in ((1, 2), (2, 1)):
            for way in ("both ways", "from the start"):
                clusters[way].change(source, destination, longest=1000)
        jobs["from the start"] = self.job(clusters["from the start"], "--work", 100, *large, count=3)
        self.await_words("^(there|failed)", jobs["from the start"])
        started = time.monotonic()
        for way, job in jobs.items():
            self.await_words("^failed", job)
            for said in job.found(r"^failed at ([\d.]+) rank (\d): rank \d \(host .* was lost: (it took rank \d for lost: )?"
                                  r"large packets to it have been lost for [\d.]+ s, and small ones are answered: the network "
                                  r"between its host and that of rank \d .* takes smaller packets"):
                self.assertIsNotNone(said, job.everything())
                self.assertIn(int(said[2]), (2, 3, 4, 5), job.everything())
                after = float(said[1]) - (started if way == "from the start" else since)
                self.assertLess(after, LIMIT + 4, job.everything())
            print(f"{way}: the last one knows after {after:.2f} s, limit {LIMIT} s", flush=True)
            self.expect_stale(job)


class Weather(Network):
    def test_results_are_right_and_nobody_is_accused(self):
        words = ("--in-flight", 20, "--bytes-max", 20_000, "--seed", SEED)
        weathers = {"5 % loss": {"loss": 0.05}, "50 ms there and back": {"delay_ms": 25},
                    "50 ms and 5 % loss": {"delay_ms": 25, "loss": 0.05},
                    "100 ms and 5 % loss": {"delay_ms": 50, "loss": 0.05},
                    "1 % late, 1 % twice": {"delay_ms": 1, "jitter_ms": 20, "jittered": 0.01, "duplicate": 0.01}}
        clusters = {name: self.cluster(**what) for name, what in weathers.items()}  # as the job starts too
        operations = {name: OPERATIONS // 2 if name.startswith("100 ms") else OPERATIONS for name in weathers}
        begin = time.monotonic()
        jobs = {name: self.job(cluster, *words, "--operations", operations[name],
                               RUEDA_HEARTBEAT_LIMIT_S=str(DEFAULT_LIMIT)) for name, cluster in clusters.items()}
        for name, job in jobs.items():
            self.expect_done(job, operations[name])
            counts = clusters[name].counts(None, None)
            print(f"{name}: {job.found('^done.*')[0][0]}, over after {time.monotonic() - begin:.1f} s, {dict(counts)}",
                  flush=True)
            what = weathers[name]
            for event, expected in {"lost": "loss", "duplicated": "duplicate", "overtaken": "jittered"}.items():
                self.assertEqual(counts[event] > 0, expected in what, (name, counts))

    def test_hosts_that_are_far_apart_meet(self):
        """The limit is twenty times as long as a word is under way, and the start takes many of them."""
        self.expect_done(self.job(self.cluster(3, delay_ms=100), "--operations", 2, count=3), 2)

    def test_one_that_does_nothing_is_not_lost(self):
        """Though every fifth packet is; and though nobody looks whether it is there."""
        jobs = []
        for limit, loss in ((0, 0.2), (DEFAULT_LIMIT, 0.05)):
            cluster = self.cluster()
            jobs.append(self.job(cluster, "--idle", 5, "--operations", 10, RUEDA_HEARTBEAT_LIMIT_S=str(limit)))
            self.await_words("^there", jobs[-1])
            cluster.change(loss=loss)
        for job in jobs:
            self.expect_done(job, 10)


class TheRelay(Network):
    """Does what it says."""

    RECEIVE = ("import json, socket, sys\n"
               "sock = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)\n"
               "sock.bind((sys.argv[1], 7))\n"
               "print('there', flush=True)\n"
               "came = []\n"
               "try:\n"
               "    while True:\n"
               "        came.append(int(sock.recv(2000)))\n"
               "        sock.settimeout(0.5)\n"
               "except TimeoutError:\n"
               "    print(json.dumps(came))\n")
    SEND = ("import socket, sys, time\n"
            "sock = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)\n"
            "for number in range(300):\n"
            "    sock.sendto(b'%0*d' % (number + 3, number), (sys.argv[1], 7))\n"
            "    time.sleep(0.0005)\n")

    def send(self, cluster, address="10.77.0.2"):
        """Which of 300 packets, ever longer ones, get from host 0 to host 1, as they come."""
        receiver = subprocess.Popen(cluster.command(1, sys.executable, "-c", self.RECEIVE, address), stdout=subprocess.PIPE,
                                    text=True)
        try:
            self.assertEqual(receiver.stdout.readline(), "there\n")
            subprocess.run(cluster.command(0, sys.executable, "-c", self.SEND, address), check=True, timeout=HANG)
            return json.loads(receiver.communicate(timeout=HANG)[0])
        finally:
            receiver.kill()
            receiver.wait()

    def test_what_is_asked_for_happens(self):
        cluster = self.cluster()
        everything = list(range(300))
        self.assertEqual(self.send(cluster), everything)
        if hosts.has_ipv6():
            self.assertEqual(self.send(cluster, "fd00:77::2"), everything)
        cluster.change(0, 1, jitter_ms=20, jittered=0.1)
        came = self.send(cluster)
        self.assertNotEqual(came, everything)
        self.assertEqual(sorted(came), everything)
        cluster.change(0, 1, jitter_ms=0, longest=20 + 8 + 103)
        self.assertEqual(self.send(cluster), everything[:101])

    def test_the_seed_decides(self):
        came = []
        for seed in (SEED, SEED, SEED + 1):
            cluster = relay.Hosts(2, seed)
            self.addCleanup(cluster.remove)
            cluster.change(0, 1, loss=0.2, duplicate=0.1)
            cluster.change(1, 0, cut=True)
            came.append(self.send(cluster))
        self.assertEqual(came[0], came[1])
        self.assertNotEqual(came[0], came[2])
        self.assertLess(len(set(came[0])), 300)
        self.assertLess(len(set(came[0])), len(came[0]))


if __name__ == "__main__":
    support.main()
