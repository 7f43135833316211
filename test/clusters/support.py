"""What the tests of this folder share."""
import os
import shutil
import sys
import tempfile
import unittest


class _Loader(unittest.TestLoader):
    """Of the cases those that are chosen as GoogleTest chooses: test/run.sh --help says when."""

    def __init__(self):
        super().__init__()
        self.seen, self.shards = 0, int(os.environ.get("GTEST_TOTAL_SHARDS", "1"))
        self.shard = int(os.environ.get("GTEST_SHARD_INDEX", "0"))

    def getTestCaseNames(self, testCaseClass):
        chosen = []
        for name in super().getTestCaseNames(testCaseClass):
            if self.seen % self.shards == self.shard:
                chosen.append(name)
            self.seen += 1
        return chosen


def main(**options):
    unittest.main(verbosity=2, testLoader=_Loader(), **options)


def skip_all(reason):
    """Leaves the whole file's tests out if there is a reason to."""
    if reason:
        print(f"\nSKIPPED: {reason}", flush=True)
        sys.exit(77)


def skip(reason):
    """Leaves the test, or the class, out if there is a reason to."""
    if reason:
        print(f"\nSKIPPED in part: {reason}", flush=True)
        raise unittest.SkipTest(reason)


def needs(*programs):
    """Leaves the test out where one of them is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            skip(f"{program} is not installed (third_party/setup.sh --tests)")


def open_mpi(test):
    """What one mpirun needs in its environment. Several at once trip over each other's folder in /tmp."""
    folder = tempfile.mkdtemp(prefix="rueda-openmpi-")
    test.addCleanup(shutil.rmtree, folder, ignore_errors=True)
    # Open MPI refuses to run as root, and more ranks than cores, unless it is told to. Its daemon may place its copy
    # of the machine's topology where its own stack grows, and die: "none" does without the copy.
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_rtc_hwloc_vmhole": "none",
            "OMPI_MCA_orte_tmpdir_base": folder}


def line_of(rank, size):
    """What examples/hello prints."""
    return f"rank {rank} of {size}: average {(size - 1) / 2:.1f}"


def expect_ranks(test, size, done):
    """A finished launcher, whose ranks were `size` of examples/hello and found each other."""
    test.assertEqual(done.returncode, 0, done.stdout)
    found = sorted(line.strip() for line in done.stdout.splitlines() if " average " in line)
    test.assertEqual(found, sorted(line_of(rank, size) for rank in range(size)), done.stdout)


def has_engine(pid):
    """Whether that process is a rank whose start is over."""
    return has_thread(pid, "rueda-engine")


def reduces(pid):
    """Whether that rank of several hosts has begun to: the thread that serves Gloo is there."""
    return has_thread(pid, "rueda-lane")


def runs(pid):
    """Whether its program does something, or is about to: it neither waits nor is stopped."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()[0] not in "STt"


def has_thread(pid, name):
    names = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/comm", encoding="ascii") as comm:
                names.append(comm.read().strip())
        except OSError:  # it has ended
            pass
    return name in names
