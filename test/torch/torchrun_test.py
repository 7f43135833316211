#!/usr/bin/env python3
"""Programs that torchrun starts, and starts again.

torchrun_test.py HELLO
"""
import os
import subprocess
import sys
import unittest

HELLO = sys.argv.pop(1)
HANG = 120  # seconds
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python"]


class Torchrun(unittest.TestCase):
    def expect_two_ranks(self, *words):
        done = subprocess.run([*TORCHRUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=HANG, stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         ["rank 0 of 2: average 0.5", "rank 1 of 2: average 0.5"], done.stdout + done.stderr)

    def test_ranks_meet(self):
        self.expect_two_ranks("--standalone", "--nproc-per-node", "2", HELLO)

    def test_ranks_meet_after_a_restart(self):
        """The first of rank 0 waits for rank 1 when torchrun ends it; the second must not wait for that."""
        fails_first = f'[ "$RANK$TORCHELASTIC_RESTART_COUNT" != 10 ] || exit 3; exec {HELLO}'
        self.expect_two_ranks("--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval",
                              "0.1", "sh", "-c", fails_first)


if __name__ == "__main__":
    unittest.main(verbosity=2)
