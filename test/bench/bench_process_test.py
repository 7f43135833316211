#!/usr/bin/env python3
"""What rueda_bench does when it is started by itself.

bench_process_test.py RUEDA_BENCH RUEDARUN LIBRUEDA FAKE_CUDA_MODULE
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

RUEDA_BENCH, RUEDARUN, LIBRUEDA, FAKE_CUDA = (sys.argv.pop(1) for _ in range(4))


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

    def test_what_the_command_line_cant_mean(self):
        nccl_bench = str(pathlib.Path(RUEDA_BENCH).with_name("rueda_nccl_bench"))
        for words, message in (
                ((RUEDA_BENCH, "--device", "rocm"), "rueda_bench: --device expects cpu or cuda"),
                ((RUEDA_BENCH, "--device", "cuda", "--scaling", "1"), "--device cuda goes neither with --vs nor"),
                ((RUEDA_BENCH, "--device", "cuda", "--vs", "openmpi"), "--device cuda goes neither with --vs nor"),
                ((RUEDA_BENCH, "--bytes", "x"), "rueda_bench: not a size: x"),
                ((nccl_bench, "--iterations", "0"), "rueda_nccl_bench: --iterations expects"),
                ((nccl_bench, "--iterations", "2x"), "rueda_nccl_bench: --iterations expects"),
                ((nccl_bench, "--nonsense"), "usage: ruedarun -np N rueda_nccl_bench")):
            done = run(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(message, done.stderr)
        for program in (RUEDA_BENCH, nccl_bench):
            done = run(program, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(done.stdout.startswith("usage: "), done.stdout)

    def test_every_operation_is_timed(self):
        for operation in ("allreduce", "broadcast", "allgather", "alltoall", "reducescatter", "barrier"):
            done = run(RUEDARUN, "-np", "3", "--prefix", "none", RUEDA_BENCH, "--op", operation, "--bytes", "4,4K",
                       "--iterations", "3", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count(f'"op": "{operation}"'), 1 if operation == "barrier" else 2, done.stdout)
        self.assertEqual(run(RUEDA_BENCH, "--op", "gossip").returncode, 2)

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

    def test_on_a_fake_device_everything_runs(self):
        """That it runs, on a fake device whose times mean nothing; and that nothing does without one."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(LIBRUEDA, pathlib.Path(folder, "librueda.so.0.1"))  # and not a link to it
            modules = pathlib.Path(folder, "rueda")
            modules.mkdir()
            shutil.copy(FAKE_CUDA, modules)
            here = dict(os.environ, LD_LIBRARY_PATH=folder)
            for words, rows in ((("--bytes", "4,4K"), 2), (("--many", "20x4K"), 1),
                                (("--op", "allgather", "--bytes", "4K"), 1),
                                (("--bytes", "4K", "--compressor", "none,int8"), 2)):
                done = subprocess.run([RUEDARUN, "-np", "2", RUEDA_BENCH, "--device", "cuda", "--iterations", "3",
                                       "--json", *words], env=here, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.count('"p50_us"'), rows, done.stdout)
            nccl_bench = pathlib.Path(RUEDA_BENCH).with_name("rueda_nccl_bench")
            done = subprocess.run([RUEDARUN, "-np", "2", nccl_bench, "--iterations", "1", "--json"], env=here,
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count('"device": "fake"'), 5, done.stdout)
            self.assertEqual(done.stdout.count('"ratio"'), 3, done.stdout)
            here["FAKE_CUDA_DEVICES"] = "0"
            done = subprocess.run([RUEDA_BENCH, "--device", "cuda"], env=here, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(done.stderr.split(":")[0], "rueda_bench")
            self.assertIn("there is no CUDA device", done.stderr)
            done = subprocess.run([nccl_bench], env=here, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(done.stderr.split(":")[0], "rueda_nccl_bench")


if __name__ == "__main__":
    unittest.main()
