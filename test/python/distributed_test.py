"""torch.distributed over Rueda: every collective against Gloo, and what stands on it."""

from __future__ import annotations

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import rueda  # noqa: E402
from rueda import launcher  # noqa: E402
from rueda.distributed import _meeting  # noqa: E402

HERE = pathlib.Path(__file__).parent
CASES = str(HERE / "distributed_cases.py")

sys.path.insert(0, str(HERE))
import distributed_cases as cases  # noqa: E402
from shared_job import SharedJob  # noqa: E402

# On how many hosts the ranks pretend to be.
on_hosts = pytest.mark.parametrize("hosts", ["0", "2"])


on_two = SharedJob(2)
for case in (
    cases.what_gloo_has_not,
    cases.completed_with_outputs,
    cases.distributed_data_parallel,
    cases.zero_redundancy_optimizer,
    cases.fully_sharded,
    cases.outputs_of_other_sizes,
    cases.parts_of_one_rank_are_wrong,
    cases.inputs_in_outputs,
    cases.refused_letters,
    cases.many_from_any_source,
    cases.left_alone,
    cases.mismatch,
    cases.a_limit_of_time,
    cases.aborted,
):
    on_two.add(case)
on_three = SharedJob(3)
for case in (
    cases.against_gloo,
    cases.from_any_source,
    cases.missing_at_a_monitored_barrier,
    cases.late_at_a_monitored_barrier,
):
    on_three.add(case)


def test_collectives_are_those_of_gloo():
    on_three.results(cases.against_gloo)


def test_what_gloo_has_not():
    assert on_two.results(cases.what_gloo_has_not) == [None] * 2


def test_completed_means_that_the_outputs_are_there():
    assert on_two.results(cases.completed_with_outputs) == [None] * 2


def test_messages_come_from_any_source():
    assert on_three.results(cases.from_any_source) == [True] * 3
    assert rueda.run(cases.from_any_source, ("gloo",), np=3) == [True] * 3  # as it does


def test_many_messages_come_from_any_source():
    assert on_two.results(cases.many_from_any_source) == [True] * 2


def test_groups_that_were_destroyed_are_forgotten():
    assert rueda.run(cases.forgotten, np=2) == [True] * 2


def test_all_other_ranks_may_have_left():
    assert on_two.results(cases.left_alone) == [True] * 2


def test_nobody_may_send_a_message():
    told, _ = rueda.run(cases.nothing_from_any_source, np=2)
    assert "has been destroyed" in told


def test_a_rank_is_lost_before_it_sends_a_message(tmp_path):
    with pytest.raises(rueda.RemoteError):
        rueda.run(cases.nothing_from_any_source, (tmp_path / "loss",), np=2)
    assert "rank 1" in (tmp_path / "loss").read_text()


def test_groups_and_meshes():
    rueda.run(cases.groups, np=4)


def test_distributed_data_parallel():
    assert on_two.results(cases.distributed_data_parallel) == [None] * 2


@pytest.mark.parametrize(
    ("kind", "hosts"), [("ddp", "0"), ("ddp", "2"), ("hook", "2"), ("fsdp", "2")]
)
def test_survivors_of_a_lost_rank_raise(kind, hosts, tmp_path):
    """Torch's C++ waits for the futures of works, and has no use for exceptions of Python's."""
    size = 4 if hosts == "2" else 2
    with pytest.raises(rueda.RemoteError) as raised:
        rueda.run(
            cases.of_which_one_dies, (kind, tmp_path), np=size, env={"RUEDA_HOSTS_FAKE": hosts}
        )
    assert raised.value.rank == size - 1
    for rank in range(size - 1):
        told = (tmp_path / str(rank)).read_text()
        assert f"rank {size - 1} (" in told and "SIGKILL" in told, told


@on_hosts
def test_futures_of_what_failed(hosts):
    rueda.run(cases.futures_of_what_failed, np=2, env={"RUEDA_HOSTS_FAKE": hosts})


@on_hosts
def test_what_stalls_ends(hosts):
    knobs = {"stall_timeout_s": 0.3, "stall_warn_s": 0.2, "log_level": "error"}
    rueda.run(cases.stalls, np=2, knobs={**knobs, "hosts_fake": hosts})


def test_zero_redundancy_optimizer():
    assert on_two.results(cases.zero_redundancy_optimizer) == [None] * 2


def test_fully_sharded():
    assert on_two.results(cases.fully_sharded) == [None] * 2


def test_torchmetrics_and_samplers():
    pytest.importorskip("torchmetrics")
    rueda.run(cases.torchmetrics_and_samplers, np=2)


def test_accelerate():
    pytest.importorskip("accelerate")
    rueda.run(cases.accelerate, np=2)


def test_a_mismatch_is_everybodys():
    first, second = on_two.results(cases.mismatch)
    assert first == second and "rank 0 sent" in first and "rank 1 sent" in first


def test_outputs_of_other_sizes_are_refused():
    assert on_two.results(cases.outputs_of_other_sizes) == [None] * 2


def test_all_hear_that_the_parts_of_one_rank_are_wrong():
    first, second = on_two.results(cases.parts_of_one_rank_are_wrong)
    assert len(first) == len(second) == 5
    for own, other in zip(first, second, strict=True):
        assert "rank 0: " in other, (own, other)


def test_an_input_may_lie_in_the_output():
    assert on_two.results(cases.inputs_in_outputs) == [None] * 2


def test_after_an_abort_everything_fails_with_it():
    told, _ = on_two.results(cases.aborted)
    assert {kind for kind, _ in told} == {"AbortedError"}
    assert all("rank 0 aborted its process group" in text for _, text in told)


def test_a_refused_message_takes_no_number():
    assert on_two.results(cases.refused_letters) == [None] * 2


def test_who_is_missing_at_a_monitored_barrier():
    first, second, _ = on_three.results(cases.missing_at_a_monitored_barrier)
    assert "rank 2 did not come" in first
    assert "rank 0 names them" in second


def test_a_monitored_barrier_works_again_after_one_that_failed():
    first, *others = on_three.results(cases.late_at_a_monitored_barrier)
    assert all("rank 2 did not come" in text for text in first)
    assert all("rank 0 names them" in text for texts in others for text in texts)


def test_a_limit_of_time_leaves_the_operation():
    assert on_two.results(cases.a_limit_of_time) == [2.0, 2.0]


def started(command, timeout=200, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD", "MASTER"))}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=clean | environment
    )


def test_a_lost_rank_is_named():
    done = started([launcher.program(), "-np", "2", sys.executable, CASES, "lost_rank"])
    assert re.search(r"survivor: True .*rank 1 .*SIGKILL", done.stdout), done.stdout + done.stderr


def test_a_monitored_barrier_says_who_is_lost():
    case = "lost_before_a_monitored_barrier"
    done = started([launcher.program(), "-np", "2", sys.executable, CASES, case])
    assert re.search(r"survivor: .*rank 1 .*SIGKILL", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize(
    "where, status, told",
    [
        ("first", "0", "has shut down"),
        ("second", "0", "has shut down"),
        ("job", "0", "has shut down"),
        ("second", "1", "aborted .*SystemExit: 1"),
    ],
)
def test_a_rank_that_ends_leaves_all_its_contexts_at_once(where, status, told):
    command = [launcher.program(), "-np", "2", sys.executable, CASES, "one_leaves", where, status]
    done = started(command, timeout=60)
    assert re.search(rf"told: .*rank 1 {told}", done.stdout), done.stdout + done.stderr


def test_an_exception_is_told_in_a_process_group():
    done = started([launcher.program(), "-np", "2", sys.executable, CASES, "one_fails"])
    assert re.search(r"told: .*ValueError: a bad batch", done.stdout), done.stdout + done.stderr


def test_torchrun():
    pytest.importorskip("torch.distributed.run")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = started([*command, CASES, "environment"], OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2: 2" in done.stdout and "rank 1 of 2: 2" in done.stdout


def test_spawned_processes_meet_in_a_file(tmp_path):
    torch.multiprocessing.spawn(cases.spawned, (2, str(tmp_path / "store")), nprocs=2)


def test_of_spawned_processes_one_fails(tmp_path):
    with pytest.raises(Exception, match="KeyError: 'of rank 1'"):
        torch.multiprocessing.spawn(
            cases.spawned_of_which_one_fails, (str(tmp_path / "store"),), nprocs=2
        )


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_is_held_until_the_library_listens(address):
    if ":" in address and not has_ipv6():
        pytest.skip("no IPv6")
    with _meeting.reserve(address) as holder:
        own = holder.getsockname()
        assert own[0] == address
        with socket.socket(holder.family) as other, pytest.raises(OSError, match="in use"):
            other.bind(own)
        with socket.socket(holder.family) as library:
            library.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            library.bind(own)
            library.listen()


@pytest.mark.parametrize(
    ("way", "address"),
    [
        ("RUEDA_SHARED_DIR", "127.0.0.1"),
        ("RUEDA_SECRET_FILE", "127.0.0.1"),
        ("RUEDA_SECRET_FILE", "::1"),
        ("RUEDA_ALLOW_UNAUTHENTICATED", "127.0.0.1"),
    ],
)
def test_several_hosts(tmp_path, way, address):
    """Two processes that take each other for another host."""
    if ":" in address and not has_ipv6():
        pytest.skip("no IPv6")
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    values = {
        "RUEDA_SHARED_DIR": str(tmp_path),
        "RUEDA_SECRET_FILE": str(secret),
        "RUEDA_ALLOW_UNAUTHENTICATED": "1",
    }
    common = {k: v for k, v in os.environ.items() if not k.startswith("RUEDA_")}
    common[way] = values[way]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    ranks = []
    for rank in range(2):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "RUEDA_HOST_ID": f"host {rank}",
            "RUEDA_NETWORK_INTERFACE": "lo",
            "OMP_NUM_THREADS": "1",
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, CASES, "environment"],
                env=common | place,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    for rank, process in enumerate(ranks):
        out, _ = process.communicate(timeout=100)
        assert process.returncode == 0 and f"rank {rank} of 2: 2" in out, out
        # One line at rank 0 says what a stranger could do.
        unsafe = way == "RUEDA_ALLOW_UNAUTHENTICATED"
        assert ("can keep the group from starting" in out) == (rank == 0 and not unsafe), out
        assert ("and read and change what it reduces" in out) == (rank == 0 and unsafe), out
