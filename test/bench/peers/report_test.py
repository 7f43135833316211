#!/usr/bin/env python3
"""What compare.py and scaling.py make of lines that programs print. All figures are made up."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import runs
import scaling
import table


def rows_of(peer, ranks, size, *p50s, op="allreduce"):
    return [{"peer": peer, "op": op, "np": ranks, "bytes": size, "p50_us": p50} for p50 in p50s]


class Table(unittest.TestCase):
    def setUp(self):
        self.rows = (rows_of("rueda", 2, 4096, 9, 3, 4) + rows_of("rueda_registered", 2, 4096, 2)
                     + rows_of("openmpi", 2, 4096, 8) + rows_of("impi", 2, 4096, 5, 5)
                     + rows_of("floor_shared", 2, 4096, 1) + rows_of("floor_staged", 2, 4096, 2)
                     + rows_of("rueda", 2, 819200, 300, op="many_200x4096")
                     + rows_of("torch", 2, 819200, 30000, op="many_200x4096")
                     + rows_of("rueda", 4, 4096, 7))

    def test_a_cell_is_the_median_over_the_rounds(self):
        medians = table.medians_of(self.rows)
        self.assertEqual(medians[2]["rueda"], {4096: 4, (200, 4096): 300})
        self.assertEqual(medians[4]["rueda"], {4096: 7})

    def test_ratios_are_to_the_fastest_and_to_the_floor_of_the_same_kind_of_memory(self):
        medians = table.medians_of(self.rows)[2]
        peers = {row: tuple(table.PEERS) for row in table.RUEDA}
        self.assertEqual(table.ratios_of(medians, peers, [4096]),
                         {"rueda": {4096: (0.8, "impi")}, "rueda_registered": {4096: (0.4, "impi")}})
        self.assertEqual(table.ratios_of(medians, table.FLOORS_OF, [4096]),
                         {"rueda": {4096: (2.0, "floor_staged")},
                          "rueda_registered": {4096: (2.0, "floor_shared")}})

    def test_what_was_not_measured_is_left_out(self):
        text = table.text(self.rows)
        self.assertIn("| 2 ranks | 4 KiB |", text)
        self.assertIn("| the best peer | Intel MPI |", text)
        self.assertIn("| **Rueda**, any memory / the best peer | 0.80 |", text)
        self.assertIn("| 2 ranks, asynchronous tensors | 200 × 4 KiB |", text)
        self.assertIn("| **Rueda**, any memory / the best peer | 0.01 |", text)
        self.assertIn("| 4 ranks | 4 KiB |", text)
        self.assertNotIn("MPICH", text)

    def test_the_last_run_of_a_file_counts(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"op": "about"}\n{"op": "old"}\n{"op": "about"}\n{"op": "new"}\n')
            file.flush()
            self.assertEqual([row["op"] for row in runs.last_run(file.name)], ["about", "new"])


class Scaling(unittest.TestCase):
    def test_efficiencies(self):
        rows = [{"op": "about"}]
        for ranks, computing, step in ((1, 100, 100), (2, 110, 125), (4, 200, 250), (4, 200, 250)):
            rows.append({"op": "step", "np": ranks, "batch": 10, "computing_us": computing,
                         "step_us": step})
        self.assertEqual(scaling.efficiencies(rows),
                         [(1, 100, 100, 100_000, 1.0, 1.0), (2, 110, 125, 160_000, 0.8, 0.88),
                          (4, 200, 250, 160_000, 0.4, 0.8)])


class Compare(unittest.TestCase):
    """The programs are scripts; no peer is set up in an empty cache."""

    LINE = '{"op": "allreduce%s", %s"np": 2, "bytes": 4, "p50_us": %s}'

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.script("limits_bench", "echo '" + self.LINE % ("", '"peer": "floor_shared", ', 1) + "'")
        self.script("ruedarun", f"""case "$*" in
          *--many*) echo broken >&2; exit 3 ;;
          *--registered*) echo '{self.LINE % ("_registered", "", 2)}' ;;
          *) echo 'a word'; echo '[1,0]<stdout>:{self.LINE % ("", "", 3)}' ;;
        esac""")

    def script(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)

    def compare(self, *words):
        return subprocess.run(
            [sys.executable, HERE / "compare.py", "--bin", self.folder, "--rounds", "2", "--np", "2",
             "--results", self.folder / "results.jsonl", *words], capture_output=True, text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(self.folder)})

    def test_what_is_not_set_up_is_named_and_the_rest_measured(self):
        done = self.compare("--vs", "torch,impi")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left out: torch, impi", done.stderr)
        self.assertIn("setup.sh torch impi", done.stderr)
        self.assertIn("status 3: broken", done.stderr)
        self.assertIn("| **Rueda**, memory of `rueda_mem_alloc` / the floor | 2.00 |", done.stdout)
        rows = runs.last_run(self.folder / "results.jsonl")
        self.assertEqual([row.get("peer") for row in rows],
                         [None] + ["floor_shared", "rueda_registered", "rueda"] * 2)

    def test_a_typo_is_refused(self):
        done = self.compare("--vs", "openmpi,toch")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("unknown peer 'toch'; did you mean torch? There are openmpi, impi, mpich, gloo, "
                      "torch, horovod", done.stderr)
        self.assertFalse((self.folder / "results.jsonl").exists())


if __name__ == "__main__":
    unittest.main()
