#!/usr/bin/env python3
"""What rueda_bench does when it is started by itself.

bench_process_test.py RUEDA_BENCH RUEDARUN
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

RUEDA_BENCH, RUEDARUN = sys.argv.pop(1), sys.argv.pop(1)


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)


class Bench(unittest.TestCase):
    def test_an_unknown_peer_is_refused(self):
        done = run(RUEDA_BENCH, "--vs", "openmpi,mpi")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("unknown peer 'mpi'", done.stderr)

    def test_it_starts_the_ranks_itself(self):
        for option in ("--vs", "--scaling"):
            done = run(RUEDARUN, "-np", "1", RUEDA_BENCH, option, "1")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"{option} starts the ranks itself: run it without ruedarun", done.stderr)

    def test_another_folder_of_the_peers(self):
        done = run(RUEDA_BENCH, "--vs", "mpich", "--peers-dir", "/nowhere")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("say with --peers-dir where test/bench/peers is", done.stderr)

    def test_weak_scaling_of_a_tiny_step(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "results.jsonl")
            done = run(RUEDA_BENCH, "--scaling", "2", "--step", "3x16x4", "--iterations", "1",
                       "--rounds", "2", "--results", results)
            self.assertEqual(done.returncode, 0, done.stderr)
            table = [line for line in done.stdout.splitlines() if re.match(r"\| \d", line)]
            self.assertEqual([line.split()[1] for line in table], ["1", "2"], done.stdout)
            self.assertIn(" 100.0% ", table[0])
            self.assertEqual(len(results.read_text(encoding="utf-8").splitlines()), 5)


if __name__ == "__main__":
    unittest.main()
