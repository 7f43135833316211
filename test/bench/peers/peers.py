"""The peers: how each is found, and which programs measure it. A program measures one row of the
table, its `peer` in the JSON lines; some peers have several, each set up differently."""
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import subprocess

import runs

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache",
                     "rueda", "peers")
BIN = CACHE / "bin"
IMPI = CACHE / "impi"
PYTHON = CACHE / "venv" / "bin" / "python3"
KNOWN = ("openmpi", "impi", "mpich", "gloo", "torch", "horovod")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1"}


@dataclasses.dataclass
class Program:
    row: str
    command: list  # before the sizes
    environment: dict = dataclasses.field(default_factory=dict)
    # Spins without yielding: with more ranks than cores each wait lasts for a time slice, under
    # real-time scheduling one of 100 ms; such a program then gets ordinary scheduling.
    spins: bool = False
    batches: bool = True  # has asynchronous operations


@functools.cache
def has_module(name):
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec('{name}') is None)"
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", find]).returncode == 0


def is_set_up(peer):
    if peer in ("openmpi", "mpich"):
        return (BIN / f"mpi_bench.{peer}").exists() and shutil.which(f"mpirun.{peer}") is not None
    if peer == "impi":
        return (BIN / "mpi_bench.impi").exists() and (IMPI / "bin" / "mpiexec.hydra").exists()
    if peer == "gloo":
        return (BIN / "gloo_bench").exists()
    return has_module("torch") and (peer == "torch" or has_module("horovod"))


def version(peer):
    """As its own tools say it."""
    package = f"import importlib.metadata as m; print(m.version('{peer}'))"
    command = {"openmpi": ["mpirun.openmpi", "--version"],
               "impi": [IMPI / "bin" / "mpiexec.hydra", "--version"],
               "mpich": ["mpichversion"],
               "gloo": ["dpkg-query", "-W", "-f", "${Version}", "libgloo-dev"]}
    try:
        text = subprocess.run(command.get(peer, [PYTHON, "-c", package]), capture_output=True,
                              env={**os.environ, **impi_environment()}, text=True).stdout
    except OSError:
        text = ""
    found = re.search(r"\d+\.[\d.]*\d[\w~+.]*", text)
    return found.group() if found else "unknown"


def impi_environment():
    return {"I_MPI_ROOT": str(IMPI), "LD_LIBRARY_PATH": str(IMPI / "lib"),
            "FI_PROVIDER_PATH": str(IMPI / "lib"), "I_MPI_HYDRA_BOOTSTRAP": "fork",
            "I_MPI_FABRICS": "shm"}


def impi_programs(ranks):
    command = [IMPI / "bin" / "mpiexec.hydra", "-np", ranks, BIN / "mpi_bench.impi"]
    if ranks <= runs.cores():
        return [Program("impi", command + ["impi"], impi_environment())]
    yields = {**impi_environment(), "I_MPI_THREAD_YIELD": "2"}  # sched_yield
    return [Program("impi", command + ["impi"], yields),
            Program("impi_unpinned", command + ["impi_unpinned"], {**yields, "I_MPI_PIN": "0"})]


def horovod_programs(ranks):
    programs = []
    for transport, options in (("gloo", ["--gloo", "--network-interface", "lo"]), ("mpi", ["--mpi"])):
        for cycle_ms in ("1", "0.1"):
            row = f"horovod_{transport}_{cycle_ms}ms"
            command = [PYTHON.parent / "horovodrun", *options, "-np", ranks, "-H",
                       f"localhost:{ranks}", PYTHON, HERE / "horovod_bench.py", row]
            path = f"{PYTHON.parent}:{os.environ['PATH']}"
            environment = {**ONE_THREAD, **OPEN_MPI, "HOROVOD_CYCLE_TIME": cycle_ms, "PATH": path,
                           "GLOO_SOCKET_IFNAME": "lo"}
            programs.append(Program(row, command, environment))
    return programs


def programs_of(peer, ranks):
    if peer == "openmpi":
        command = ["mpirun.openmpi", "--oversubscribe", "-np", ranks, BIN / "mpi_bench.openmpi"]
        return [Program(peer, command + [peer], OPEN_MPI)]
    if peer == "mpich":
        command = ["mpirun.mpich", "-np", ranks, BIN / "mpi_bench.mpich", peer]
        return [Program(peer, command, spins=True)]
    if peer == "impi":
        return impi_programs(ranks)
    if peer == "gloo":
        return [Program(f"gloo_{algorithm}", [BIN / "gloo_bench", ranks, algorithm], batches=False)
                for algorithm in ("ring", "halving_doubling")]
    if peer == "torch":
        return [Program(peer, [PYTHON, HERE / "torch_bench.py", ranks], ONE_THREAD)]
    return horovod_programs(ranks)
