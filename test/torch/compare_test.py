#!/usr/bin/env python3
"""examples/compare, with a few strategies of each kind: compare_test.py COMPARE.PY BIN"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BIN = sys.argv.pop()
COMPARE = sys.argv.pop()
HANG = 200  # seconds
NAMES = ["ddp", "fsdp", "dp", "pipeline", "qadam"]


class Compare(unittest.TestCase):
    def test_measures_each_strategy(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, COMPARE, "--bin", BIN, "--epochs", "2", "--only", ",".join(NAMES), "--out", folder],
                                  stdout=subprocess.PIPE, text=True, timeout=HANG, stdin=subprocess.DEVNULL, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
            rows = json.loads(pathlib.Path(folder, "results.json").read_text())
            self.assertEqual([row["strategy"] for row in rows], NAMES)
            for row in rows:
                self.assertRegex(done.stdout, rf"\n\| {row['strategy'].replace('+', '.')} \| [0-9.]+ ms \|.* MB \| [0-9.]+ \| [0-9.]+ %")
                for key in ("step_ms", "large_step_ms", "peak_mb", "loss", "accuracy"):
                    self.assertGreater(row[key], 0, f"{key} of {row}")
            ddp, fsdp, dp, pipeline, qadam = rows
            self.assertAlmostEqual(pipeline["loss"], ddp["loss"], places=3, msg="the same samples in each step")
            self.assertEqual(dp["sent_kb"], 0)
            self.assertLess(qadam["sent_kb"], 0.3 * ddp["sent_kb"])
            self.assertLess(fsdp["peak_mb"], 0.6 * ddp["peak_mb"])
            try:
                import matplotlib  # pylint: disable=import-outside-toplevel,unused-import
            except ImportError:
                self.skipTest("matplotlib is not installed: no plot was made; third_party/setup.sh --tests installs it")
            self.assertIn("</svg>", pathlib.Path(folder, "plot.svg").read_text())

    def test_a_run_that_fails_is_an_error(self):
        done = subprocess.run([sys.executable, COMPARE, "--bin", BIN, "--only", "dpp"], stderr=subprocess.PIPE, text=True,
                              timeout=HANG, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no strategy 'dpp'", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
