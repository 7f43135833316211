#!/usr/bin/env python3
"""The event files of examples/trainer, read by TensorBoard itself: tensorboard_test.py RUEDARUN MNIST

Exit status 77 (skipped): tensorboard is not installed; third_party/setup.sh --tests installs it.
"""
import csv
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
except ImportError as error:
    print(f"SKIPPED: {error}; third_party/setup.sh --tests installs tensorboard")
    sys.exit(77)

MNIST = sys.argv.pop()
RUEDARUN = sys.argv.pop()
HANG = 120  # seconds


class TensorBoard(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)

    def train(self, epochs, *words):
        done = subprocess.run(
            [RUEDARUN, "-np", "2", "--prefix", "none", MNIST, "--epochs", str(epochs), "--csv", self.folder / "log.csv",
             "--tensorboard", self.folder / "events", "--checkpoint", self.folder / "checkpoints", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG, stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def check_scalars(self, epochs):
        """What it reads is what the other log has."""
        events = EventAccumulator(str(self.folder / "events")).Reload()
        rows = list(csv.DictReader((self.folder / "log.csv").read_text().splitlines()))
        self.assertEqual([row["epoch"] for row in rows], [str(epoch) for epoch in range(1, epochs + 1)])
        self.assertEqual(sorted(events.Tags()["scalars"]), ["loss", "lr", "val_accuracy", "val_loss"])
        for tag in events.Tags()["scalars"]:
            scalars = events.Scalars(tag)
            self.assertEqual([scalar.step for scalar in scalars], [int(row["step"]) for row in rows], tag)
            for scalar, row in zip(scalars, rows):
                self.assertAlmostEqual(scalar.value, float(row[tag]), places=5)
                self.assertGreater(scalar.wall_time, 1.7e9)

    def test_reads_what_the_trainer_writes(self):
        self.train(3)
        files = list((self.folder / "events").iterdir())
        self.assertEqual(len(files), 1, "rank 0 alone writes one")
        self.check_scalars(3)
        raw = list(RawEventFileLoader(str(files[0])).Load())  # whose reader checks the checksums
        events = [Event.FromString(event) for event in raw]
        self.assertEqual([event.WhichOneof("what") for event in events], ["file_version", "session_log"] + 3 * ["summary"])
        self.assertEqual(events[0].file_version, "brain.Event:2")

    def test_a_training_that_goes_on_replaces_what_came_later(self):
        self.train(2)
        shutil.copytree(self.folder / "checkpoints", self.folder / "second")
        self.train(4, "--resume", self.folder / "checkpoints")
        self.train(3, "--resume", self.folder / "second")
        self.assertEqual(len(list((self.folder / "events").iterdir())), 3)
        self.check_scalars(3)

    def test_a_damaged_file_is_noticed(self):
        """That the reader looks at the checksums: else the first test would prove less."""
        self.train(2)
        file = next((self.folder / "events").iterdir())
        data = bytearray(file.read_bytes())
        whole = len(list(RawEventFileLoader(str(file)).Load()))
        data[-6] ^= 1  # of the last event
        file.write_bytes(data)
        self.assertEqual(len(list(RawEventFileLoader(str(file)).Load())), whole - 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
