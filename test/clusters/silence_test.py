#!/usr/bin/env python3
"""Ranks that neither end nor answer: stopped by a signal, or cut off from the network. Part of it needs root (hosts.py).

silence_test.py RUEDARUN RUEDA_BENCH
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import hosts
import support

RUEDARUN, BENCH = sys.argv.pop(1), sys.argv.pop(1)
HANG = 60  # seconds
LIMIT = 2  # seconds, of silence


class Silence(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="rueda-silence-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = {**os.environ, "RUEDA_HEARTBEAT_LIMIT_S": str(LIMIT), "RUEDA_RECORDER_DIR": self.folder}

    def await_threads(self, name, pids, poll):
        """All ranks have one of this name."""
        deadline = time.monotonic() + HANG
        while not all(support.has_thread(pid, name) for pid in pids):
            self.assertIsNone(poll(), "it has ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


class OneHost(Silence):
    def start(self, size):
        """A job that reduces until it is ended, and its ranks' pids."""
        job = subprocess.Popen([RUEDARUN, "-np", str(size), "--verbose", BENCH, "--bytes", "4M", "--iterations", "1000000"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=self.environment)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        pids = {}
        while len(pids) < size:
            line = job.stderr.readline()
            self.assertNotEqual(line, "")
            if found := re.match(r"ruedarun: rank (\d+) started, pid (\d+)", line):
                pids[int(found[1])] = int(found[2])
        self.await_threads("rueda-engine", pids.values(), job.poll)  # its start is over
        return job, pids

    def test_a_stopped_rank_is_named(self):
        """The first of the host, which looks at the others, and one of those."""
        for victim in (0, 2):
            job, pids = self.start(3)
            os.kill(pids[victim], signal.SIGSTOP)
            stopped = time.monotonic()
            _, err = job.communicate(timeout=HANG)
            print(f"rank {victim} stopped: over after {time.monotonic() - stopped:.1f} s, limit {LIMIT} s")
            named = re.findall(r"\[(\d)\] rueda_bench: rank (\d) \(host \S+ pid \d+\) was lost: stopped by a signal for", err)
            self.assertEqual(sorted(named), [(str(r), str(victim)) for r in range(3) if r != victim], err)

    def test_a_short_stop_is_forgiven(self):
        job, pids = self.start(3)
        for victim in (0, 2):
            os.kill(pids[victim], signal.SIGSTOP)
            time.sleep(LIMIT / 2)
            os.kill(pids[victim], signal.SIGCONT)
        time.sleep(LIMIT)
        self.assertIsNone(job.poll())

    def test_a_stopped_job_goes_on(self):
        """Ctrl-Z and fg: all were stopped, and nobody is to blame."""
        job, _ = self.start(3)
        job.send_signal(signal.SIGTSTP)
        time.sleep(1.5 * LIMIT)
        job.send_signal(signal.SIGCONT)
        time.sleep(LIMIT)
        self.assertIsNone(job.poll())


class Hosts(Silence):
    @classmethod
    def setUpClass(cls):
        support.skip(hosts.why_not())

    def setUp(self):
        super().setUp()
        self.cluster = hosts.Hosts(2)
        self.addCleanup(self.cluster.remove)

    def start(self):
        """Two ranks on each of two hosts, all of which look at this folder."""
        ranks = []
        for rank in range(4):
            environment = {**self.environment, "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
                           "MASTER_ADDR": "h1", "MASTER_PORT": "1", "RUEDA_SHARED_DIR": self.folder}
            ranks.append(subprocess.Popen(
                self.cluster.command(rank // 2, BENCH, "--bytes", "16K", "--iterations", "1000000"), env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
            self.addCleanup(ranks[-1].communicate)
            self.addCleanup(ranks[-1].kill)
        self.await_threads("rueda-lane", [rank.pid for rank in ranks],
                           lambda: next((rank.poll() for rank in ranks if rank.poll() is not None), None))
        return ranks

    def expect_named(self, ranks, culprits, why):
        """By each rank of `culprits`: the one that it should name."""
        for rank, culprit in culprits.items():
            _, err = ranks[rank].communicate(timeout=HANG)
            self.assertRegex(err, rf"rueda_bench: rank {culprit} \(host \S+ pid \d+\) was lost: {why}")

    def test_a_stopped_rank_is_named_everywhere(self):
        for victim in range(4):
            ranks = self.start()
            os.kill(ranks[victim].pid, signal.SIGSTOP)
            stopped = time.monotonic()
            self.expect_named(ranks, {rank: victim for rank in range(4) if rank != victim},
                              r"(stopped by a signal for|silent for [\d.]+ s, while its host answers)")
            print(f"rank {victim} stopped: all know after {time.monotonic() - stopped:.1f} s, limit {LIMIT} s")
            os.kill(ranks[victim].pid, signal.SIGCONT)
            _, err = ranks[victim].communicate(timeout=HANG)  # it can't go on, and knows
            self.assertIn("was lost", err)

    def test_a_host_that_is_cut_off_is_named_on_both_sides(self):
        ranks = self.start()
        self.cluster.cut(1)
        cut = time.monotonic()
        self.expect_named(ranks, {0: 2, 1: 2, 2: 0, 3: 0},
                          r"(silent for [\d.]+ s(, as is its host|: the network between)|.*[Tt]imed out)")
        print(f"a host cut off: both sides know after {time.monotonic() - cut:.1f} s, limit {LIMIT} s")


if __name__ == "__main__":
    support.main()
