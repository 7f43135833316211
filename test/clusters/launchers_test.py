#!/usr/bin/env python3
"""Programs that the launchers of others start: each rank finds its place, and meets the others.

launchers_test.py HELLO RUEDARUN
"""
import os
import subprocess
import sys
import tempfile
import time
import unittest

import slurm
import support

HELLO, RUEDARUN = sys.argv.pop(1), sys.argv.pop(1)
HANG = 60  # seconds


def run(*words, **variables):
    """The finished process; standard error with what goes to standard output."""
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG,
                          stdin=subprocess.DEVNULL, env={**os.environ, **variables})


class Launcher(unittest.TestCase):
    def expect_ranks(self, size, *words, **variables):
        support.expect_ranks(self, size, run(*words, **variables))

    def expect_two_jobs(self, *words, environments=({}, {})):
        """Two at once keep apart."""
        jobs = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 stdin=subprocess.DEVNULL, env={**os.environ, **environment})
                for environment in environments]
        for job in jobs:
            out, _ = job.communicate(timeout=HANG)
            self.assertEqual(job.returncode, 0, out)
            self.assertEqual(out.count("of 2: average 0.5"), 2, out)


class OpenMpi(Launcher):
    mpirun = ["mpirun.openmpi", "--mca", "oob_tcp_if_include", "lo"]

    def setUp(self):
        support.needs(self.mpirun[0])

    def test_ranks_meet(self):
        self.expect_ranks(4, *self.mpirun, "-np", "4", HELLO, **support.open_mpi(self))

    def test_a_rank_alone(self):
        self.expect_ranks(1, *self.mpirun, "-np", "1", HELLO, **support.open_mpi(self))

    def test_two_jobs(self):
        self.expect_two_jobs(*self.mpirun, "-np", "2", HELLO,
                             environments=[support.open_mpi(self) for _ in range(2)])


class Mpich(Launcher):
    mpirun = ["mpirun.mpich"]

    def setUp(self):
        support.needs(self.mpirun[0])

    def test_ranks_meet(self):
        self.expect_ranks(4, *self.mpirun, "-np", "4", HELLO)

    def test_behind_a_shell(self):
        self.expect_ranks(2, *self.mpirun, "-np", "2", "sh", "-c", f"{HELLO}; true")

    def test_two_jobs(self):
        self.expect_two_jobs(*self.mpirun, "-np", "2", HELLO)

    def test_without_its_socket_the_job_needs_a_name(self):
        closed = ["sh", "-c", f"eval \"exec $PMI_FD<&-\"; exec {HELLO}"]
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as out:  # mpirun may end before it has read it all
            done = run(*self.mpirun, "-np", "2", *closed[:2], f"{{ {closed[2]}; }} >>{out.name} 2>&1")
            self.assertNotEqual(done.returncode, 0)
            said = out.read()
        self.assertIn("is not the process manager's socket", said)
        self.assertIn("set RUEDA_JOB_ID to one word", said)
        self.expect_ranks(2, *self.mpirun, "-np", "2", *closed, RUEDA_JOB_ID=f"launchers-test-{os.getpid()}")


class Variables(Launcher):
    """A script that starts the ranks itself, by variables that many frameworks read."""

    def start(self, variables):
        return subprocess.Popen([HELLO], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                stdin=subprocess.DEVNULL, env={**os.environ, **variables})

    def expect(self, ranks):
        for rank, process in enumerate(ranks):
            out, _ = process.communicate(timeout=HANG)
            self.assertEqual(process.returncode, 0, out)
            self.assertEqual(out, f"rank {rank} of 2: average 0.5\n")

    def start_plain(self, rank):
        return self.start({"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
                           "MASTER_PORT": str(os.getpid())})

    def test_rank_and_world_size(self):
        self.expect([self.start_plain(rank) for rank in range(2)])

    def test_of_two_first_ranks_one_is_told(self):
        zeros = [self.start_plain(0), self.start_plain(0)]
        deadline = time.monotonic() + HANG
        while all(process.poll() is None for process in zeros):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        zeros.sort(key=lambda process: process.poll() is not None)
        out, _ = zeros[1].communicate(timeout=HANG)
        self.assertIn("another process of this host is waiting as rank 0 of a job of the same name, "
                      f"'RANK/localhost/{os.getpid()}", out)
        self.expect([zeros[0], self.start_plain(1)])

    def test_tf_config(self):
        cluster = f'"cluster": {{"worker": ["localhost:{os.getpid()}", "localhost:1"]}}'
        self.expect([self.start({"TF_CONFIG": f'{{{cluster}, "task": {{"type": "worker", "index": {rank}}}}}'})
                     for rank in range(2)])


class Ruedarun(Launcher):
    def test_behind_a_program_that_closes_the_secret(self):
        done = run(RUEDARUN, "-np", "1", "sh", "-c", f'eval "exec $RUEDA_SECRET_FD<&-"; exec {HELLO}')
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(": that descriptor is closed. A program between the launcher and this one has closed it",
                      done.stdout)


class Slurm(Launcher):
    @classmethod
    def setUpClass(cls):
        support.needs(*slurm.PROGRAMS)
        cls.folder = tempfile.TemporaryDirectory(prefix="rueda-slurm-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.cluster = slurm.Cluster(cls.folder.name, nodes=2, cpus=4)
        cls.addClassCleanup(cls.cluster.stop)
        cls.environment = {"SLURM_CONF": cls.cluster.conf}

    def test_ranks_meet(self):
        self.expect_ranks(4, "srun", "-N", "1", "-n", "4", HELLO, **self.environment)

    def test_with_a_process_manager_for_mpi(self):
        self.expect_ranks(2, "srun", "--mpi=pmi2", "-N", "1", "-n", "2", HELLO, **self.environment)

    def test_two_steps_at_once(self):
        self.expect_two_jobs("srun", "-N", "1", "-n", "2", HELLO, environments=[self.environment] * 2)

    def test_steps_of_a_batch_script_and_its_own_shell(self):
        out = os.path.join(self.folder.name, "batch.out")
        script = f"{HELLO}\nsrun -N 1 -n 2 {HELLO}\n"
        done = run("sbatch", "--wait", "-N", "1", "-n", "2", "-o", out, "--wrap", script, **self.environment)
        with open(out, encoding="utf-8") as text:
            printed = text.read()
        self.assertEqual(done.returncode, 0, done.stdout + printed)
        self.assertIn("rank 0 of 1: average 0.0", printed)
        self.assertEqual(printed.count("of 2: average 0.5"), 2, printed)

    def test_several_nodes_meet_in_a_shared_directory(self):
        """They are this machine, but neither SLURM nor the ranks know."""
        words = ["srun", "-N", "2", "--ntasks-per-node", "2", HELLO]
        done = run(*words, **self.environment)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("of 4 ranks 2 are on this host; to meet the others set RUEDA_SHARED_DIR", done.stdout)
        with tempfile.TemporaryDirectory() as shared:
            self.expect_ranks(4, *words, RUEDA_SHARED_DIR=shared, RUEDA_NETWORK_INTERFACE="lo", **self.environment)
            self.assertEqual(os.listdir(shared), [])


if __name__ == "__main__":
    support.main()
