"""What torch knows of a process group: its methods, works and futures that C++ waits for, who sees
a collective, and what happens where the backend is not built."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
from shared_job import SharedJob  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import rueda  # noqa: E402
import rueda.distributed  # noqa: E402
from rueda import launcher  # noqa: E402

on_two, on_three = SharedJob(2), SharedJob(3)


def start(**options):
    dist.init_process_group("rueda", **options)
    return dist.group.WORLD, dist.get_rank(), dist.get_world_size()


def meet_in_the_store(place):
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    store.set(f"{place} {rank}", "")
    store.wait([f"{place} {other}" for other in range(dist.get_world_size())])


# ---- the methods of ProcessGroup, in all forms that torch has ----


@on_three.add
def overloads():
    pg, rank, size = start()
    op = dist.ReduceOp.MAX
    highest, total = [float(size)] * 3, [size * (size + 1) / 2.0] * 3
    second = timedelta(seconds=60)

    def own():
        return torch.full((3,), rank + 1.0)

    def each():
        return [torch.zeros(3) for _ in range(size)]

    for begin, expected in (
        (lambda x: pg.allreduce([x], op), highest),
        (lambda x: pg.allreduce([x], op=op), highest),
        (lambda x: pg.allreduce([x], op, second), highest),
        (lambda x: pg.allreduce([x]), total),
        (lambda x: pg.allreduce(x), total),
        (lambda x: pg.allreduce(x, op), highest),
        (lambda x: pg.allreduce(x, op, timeout=second), highest),
        (lambda x: pg.allreduce_coalesced([x]), total),
        (lambda x: pg.broadcast(x, root=1), [2.0] * 3),
        (lambda x: pg.broadcast(x, 1, second), [2.0] * 3),
    ):
        x = own()
        begin(x).wait()
        assert x.tolist() == expected, expected
    for begin in (
        lambda x: pg.reduce(x, 0, op),
        lambda x: pg.reduce(x, root=0, op=op),
        lambda x: pg.reduce(x, 0, op, second),
    ):
        x = own()
        begin(x).wait()
        assert x.tolist() == (highest if rank == 0 else [rank + 1.0] * 3)
    outputs = each()
    pg.allgather(outputs, own()).wait()
    assert [x[0].item() for x in outputs] == [k + 1.0 for k in range(size)]
    outputs = each() if rank == 1 else []
    pg.gather(outputs, own(), 1).wait()
    assert [x[0].item() for x in outputs] == [k + 1.0 for k in range(size if rank == 1 else 0)]
    x = torch.zeros(3)
    pg.scatter(x, [own() * (k + 1) for k in range(size)] if rank == 1 else [], 1).wait()
    assert x.tolist() == [2.0 * (rank + 1)] * 3
    x = torch.zeros(3)
    pg.reduce_scatter(x, [own() * (k + 1) for k in range(size)], op).wait()
    assert x.tolist() == [float(size * (rank + 1))] * 3
    pg.barrier().wait()
    pg.barrier(timeout=second).wait()
    work = dist.all_reduce(x := own(), async_op=True)
    assert work.wait(second) and x.tolist() == total
    future = pg.allreduce(own()).get_future()
    future.wait()
    assert future.value()[0].tolist() == total
    dist.destroy_process_group()


def test_methods_have_torchs_overloads():
    on_three.results(overloads)


@on_two.add
def facts():
    pg, _, _ = start(timeout=timedelta(seconds=300))
    before = pg._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    backend = pg._get_backend(torch.device("cpu"))
    found = {
        "operations": pg._get_sequence_number_for_group() - before,
        "devices": [device.type for device in pg._device_types],
        "name": backend.name(),
        "options": backend.options._timeout.total_seconds(),
    }
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), pg)
    begin = time.monotonic()
    try:
        dist.recv(torch.zeros(1), 1 - dist.get_rank())
        raise AssertionError("nobody has sent anything")
    except rueda.TimeIsUpError as error:
        found["limit"] = str(error)
    assert time.monotonic() - begin < 60
    meet_in_the_store("facts")
    return found


def test_torch_is_told_what_the_group_is():
    for found in on_two.results(facts):
        assert found["operations"] == 1
        assert found["devices"] == ["cpu"] + ["cuda"] * torch.cuda.is_available()
        assert found["name"] == "rueda"
        assert found["options"] == 300
        assert found["limit"].startswith(
            "process group 0: after a timeout of 1 s, unnamed send/recv "
        )
        assert "; missing: rank " in found["limit"]


@on_two.add
def hooks():
    pg, _, size = start()
    if hasattr(pg, "_set_sequence_number_for_group"):  # torch 2.14 has it no more
        pg._set_sequence_number_for_group()
    pg._enable_collectives_timing()
    told = []
    pg._register_on_completion_hook(told.append)
    assert pg._has_hooks()
    outputs = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(outputs, torch.ones(3), async_op=True)
    dist.barrier()
    pg._wait_for_pending_works()
    assert all(x.tolist() == [1.0] * 3 for x in outputs)
    assert all(info.time_started <= info.time_finished for info in told)
    return sorted((info.seq, str(info.op_type)) for info in told)


def test_hooks_are_told_of_works_that_end():
    for told in on_two.results(hooks):
        assert told == [(1, "OpType.ALLGATHER"), (2, "OpType.BARRIER")]


@on_three.add
def splits():
    """The default group, unevenly and then whole; and a part of it."""
    _, rank, _ = start()
    sums = []
    limit = timedelta(seconds=60)
    for ranks in ([[2, 0]], [[0, 1, 2]], [[0], [1, 2]]):
        part = dist.split_group(split_ranks=ranks, timeout=limit)
        own = next((sorted(each) for each in ranks if rank in each), None)
        assert (part is None) == (own is None)
        if part is not None:
            assert dist.get_process_group_ranks(part) == own
            dist.all_reduce(x := torch.ones(2), group=part)
            sums.append(x[0].item())
    same = dist.new_group([1, 2])
    if rank > 0:
        with pytest.raises(rueda.RuedaError, match="are in [0-9] to [0-9] groups"):
            dist.split_group(same, [[0, 1]]) if rank == 1 else dist.split_group(same, [[1, 0]])
    for wrong in ([[0, 1], [1, 2]], [[0, 3]], [[]], None):
        with pytest.raises(ValueError, match="split_ranks"):
            dist.split_group(split_ranks=wrong)
    return sums


def test_groups_are_split():
    assert on_three.results(splits) == [[2.0, 3.0, 1.0], [3.0, 2.0], [2.0, 3.0, 2.0]]


@on_two.add
def raising_hook():
    pg, _, _ = start()
    pg._register_on_completion_hook(lambda info: 1 / 0)
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
    with pytest.raises(RuntimeError, match="division by zero"):
        pg._wait_for_pending_works()


def test_hooks_may_raise():
    on_two.results(raising_hook)


@on_two.add
def nobody_sends():
    _, _, _ = start(timeout=timedelta(seconds=1))
    with pytest.raises(
        rueda.TimeIsUpError, match="after a timeout of 1 s, no rank has sent a message"
    ):
        dist.irecv(torch.zeros(1)).get_future().wait()
    meet_in_the_store("nobody_sends")


def test_futures_of_messages_from_any_source_have_a_limit():
    on_two.results(nobody_sends)


@on_two.add
def premultiplied():
    _, rank, size = start()
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5))
    assert x.tolist() == [0.5 * size * (size + 1) / 2] * 3
    y = torch.zeros(1)
    given = torch.full((size,), rank + 1.0)
    dist.reduce_scatter_tensor(y, given, op=dist._make_nccl_premul_sum(2.0))
    assert y.item() == size * (size + 1)
    dist.destroy_process_group()


def test_sums_are_premultiplied():
    on_two.results(premultiplied)


# ---- what C++ waits for ----


@on_two.add
def uneven_inputs():
    _, rank, _ = start()
    net = DistributedDataParallel(nn.Linear(5, 5, bias=False))
    with net.join(divide_by_initial_world_size=False):
        for _ in range(3 + 2 * rank):
            net(torch.ones(1, 5)).sum().backward()
            assert net.module.weight.grad[0, 0] == 1
            net.zero_grad()
    dist.destroy_process_group()


def test_ddp_joins_by_those_that_are_left():
    on_two.results(uneven_inputs)


@on_two.add
def builtin_hooks():
    _, rank, size = start()
    for hook in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        net = DistributedDataParallel(nn.Linear(4, 4, bias=False))
        net._register_builtin_comm_hook(hook)
        (net(torch.full((1, 4), float(rank))).sum()).backward()
        assert torch.equal(net.module.weight.grad, torch.full((4, 4), (size - 1) / 2))
    dist.destroy_process_group()


def test_ddps_own_hooks_run():
    on_two.results(builtin_hooks)


@on_two.add
def late():
    """Rank 1 does not come to a backward pass within the group's limit."""
    _, rank, _ = start()
    net = DistributedDataParallel(nn.Linear(3, 3))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
    if rank == 0:
        missing = "process group 0: after a timeout of 1 s, .*submitted by rank 0; missing: rank 1 "
        with pytest.raises(rueda.TimeIsUpError, match=missing):
            net(torch.ones(1, 3)).sum().backward()
    meet_in_the_store("late")
    dist.destroy_process_group()


def test_futures_have_the_groups_limit():
    on_two.results(late)


AT_THE_END = """
import torch, torch.distributed as dist, rueda.distributed
dist.init_process_group("rueda")
def count(future):
    total = 0
    while total < 10**7:
        total += 1
    print("counted", total, flush=True)
dist.all_reduce(torch.ones(1), async_op=True).get_future().then(count)
"""


def test_callbacks_of_futures_end_before_python_does():
    done = subprocess.run(
        [launcher.program(), "-np", "2", sys.executable, "-c", AT_THE_END],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("counted 10000000") == 2


@on_two.add
def inference():
    _, rank, size = start()
    with torch.inference_mode():
        for wait in (lambda work: work.wait(), lambda work: work.get_future().wait()):
            outputs = [torch.zeros(2) for _ in range(size)]
            wait(dist.all_gather(outputs, torch.full((2,), float(rank)), async_op=True))
            assert [x[0].item() for x in outputs] == list(range(size))
            x = torch.ones(4, 4)[:, ::2]
            wait(dist.all_reduce(x, async_op=True))
            assert x.sum() == 8 * size
    dist.destroy_process_group()


def test_tensors_of_inference_mode_are_written():
    on_two.results(inference)


@on_two.add
def dropped():
    """Nobody waits for these works, and all is done when a later operation is."""
    _, rank, size = start()
    outputs = [torch.zeros(1000) for _ in range(size)]
    part = torch.ones(8, 8)[:, ::2]
    for _ in range(3):
        dist.all_gather(outputs, torch.full((1000,), float(rank)), async_op=True)
        dist.all_reduce(torch.ones(1000), async_op=True)
    dist.all_reduce(part, async_op=True)
    message = torch.zeros(3)
    dist.isend(torch.full((3,), float(rank)), 1 - rank)
    dist.irecv(message, 1 - rank).wait()
    assert message.tolist() == [1.0 - rank] * 3
    dist.destroy_process_group()
    assert [x[0].item() for x in outputs] == list(range(size))
    assert part.sum() == 32 * size


def test_works_that_are_dropped_go_on():
    on_two.results(dropped)


# ---- who sees a collective ----


@on_two.add
def seen():
    from torch.distributed.tensor.debug import CommDebugMode

    start()
    with CommDebugMode() as mode:
        dist.all_reduce(torch.ones(3))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.broadcast(torch.ones(3), 0)
    dist.destroy_process_group()
    return mode.get_total_counts(), {event.name for event in profile.events()}


def test_modes_and_profilers_see_it():
    for count, names in on_two.results(seen):
        assert count == 1
        assert {"c10d::broadcast_", "rueda:broadcast"} <= names


@on_two.add
def versions():
    """Whatever is written counts as written, also a leaf that requires a gradient."""
    _, rank, size = start()
    other = 1 - rank
    writers = [
        lambda x: dist.all_reduce(x),
        lambda x: dist.all_reduce(x, async_op=True).wait(),
        lambda x: dist.broadcast(x, 0),
        lambda x: dist.all_gather([x, torch.zeros(4)], torch.ones(4)),
        lambda x: dist.all_gather_into_tensor(x, torch.ones(4 // size)),
        lambda x: dist.reduce_scatter_tensor(x, torch.ones(4 * size)),
        lambda x: dist.all_to_all_single(x, torch.ones(4)),
        lambda x: dist.scatter(x, [torch.ones(4)] * size if rank == 0 else None, 0),
        lambda x: [w.wait() for w in (dist.isend(torch.ones(4), other), dist.irecv(x, other))],
    ]
    for write in writers:
        a = torch.arange(4.0, requires_grad=True)
        b = a * 2
        c = b * b
        write(b)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            c.sum().backward()
        write(nn.Parameter(torch.ones(4)))
    a = torch.arange(4.0, requires_grad=True)
    b = a.exp()
    works = [dist.isend(b, other), dist.irecv(torch.zeros(4), other)]
    for work in works:
        work.wait()
    b.sum().backward()  # what is sent is not written
    dist.destroy_process_group()


def test_autograd_sees_what_is_written():
    on_two.results(versions)


# ---- errors ----


@on_two.add
def types_that_differ():
    _, _, size = start()
    whole = torch.zeros(2 * size + 4)
    for call in (dist.all_gather_into_tensor, dist.reduce_scatter_tensor):
        first, second = whole[:2], torch.ones(2 * size, dtype=torch.float64)
        if call is dist.all_gather_into_tensor:
            first, second = whole[: 2 * size], torch.ones(2, dtype=torch.float64)
        with pytest.raises(ValueError, match="the input is Double on cpu, and the output Float"):
            call(first, second)
    assert whole.tolist() == [0] * (2 * size + 4)
    dist.destroy_process_group()


def test_an_output_of_another_type_is_refused():
    on_two.results(types_that_differ)


@on_two.add
def together():
    from torch.distributed.distributed_c10d import _coalescing_manager

    group, rank, size = start()
    cpu, other = torch.device("cpu"), 1 - rank
    group._start_coalescing(cpu)  # and an exception comes
    dist.all_reduce(torch.ones(1))
    group._start_coalescing(cpu)
    message = torch.zeros(2)
    dist.isend(torch.full((2,), float(rank)), other)
    dist.irecv(message, other)
    work = group._end_coalescing(cpu)
    work.get_future().wait()
    work.wait()
    assert message.tolist() == [float(other)] * 2
    with _coalescing_manager(group, cpu, async_ops=True) as manager:
        outputs = [torch.zeros(2 * size), torch.zeros(3 * size)]
        for count, output in zip((2, 3), outputs, strict=True):
            dist.all_gather_into_tensor(output, torch.full((count,), float(rank)))
    manager.wait()
    assert outputs[1].tolist() == [0.0] * 3 + [1.0] * 3
    dist.destroy_process_group()


def test_works_are_waited_for_together():
    on_two.results(together)


@on_two.add
def several_wait():
    """For one message that is refused, while Python asks how it is."""
    _, rank, _ = start(timeout=timedelta(seconds=60))
    if rank == 0:
        work = dist.irecv(torch.zeros(2))

        def wait():
            with pytest.raises(rueda.MismatchError):
                for _ in range(300):
                    work.wait()

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            work.is_completed()
            work.is_success()
    else:
        with pytest.raises(rueda.MismatchError):
            dist.send(torch.zeros(3), 0)
    dist.destroy_process_group()
    return True


def test_threads_ask_one_work():
    assert on_two.results(several_wait) == [True, True]


@on_two.add
def interrupted():
    _, rank, _ = start()
    if rank == 0:
        threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            dist.recv(torch.zeros(1), 1)
            raise AssertionError("nobody has sent anything")
        except KeyboardInterrupt:
            pass
    meet_in_the_store("interrupted")
    dist.destroy_process_group()
    return True


def test_ctrl_c_ends_a_wait():
    assert on_two.results(interrupted) == [True, True]


@on_two.add
def in_a_future():
    _, rank, _ = start()
    work = dist.all_reduce(torch.ones(2 + rank), async_op=True)
    with pytest.raises(rueda.MismatchError) as told:
        work.get_future().wait()
    with pytest.raises(rueda.MismatchError):
        work.wait()
    assert isinstance(work.exception(), rueda.MismatchError) and not work.is_success()
    dist.destroy_process_group()
    return told.value.operation


def test_futures_have_the_librarys_errors():
    assert on_two.results(in_a_future) == ["allreduce"] * 2


def not_built():
    from rueda import build

    if os.environ["RANK"] == "1":
        build.file_name = lambda _: "of_another_torch.so"
    begin = time.monotonic()
    try:
        start()
    except rueda.RuedaError as error:
        assert time.monotonic() - begin < 30
        return str(error)
    raise AssertionError("rank 1 has no module")


def test_a_rank_without_the_backend_is_told_of():
    first, second = rueda.run(not_built, np=2)
    assert first.startswith("rank 1: torch.distributed's backend 'rueda' is not built for torch ")
    assert f"{sys.executable} -m rueda.build" in first and second in first


# ---- again, in one process and in another ----


def again():
    for _ in range(5):
        _, rank, size = start(timeout=timedelta(seconds=60))
        for group in (None, dist.new_group()):
            x = torch.full((3,), float(rank))
            dist.all_reduce(x, group=group)
            assert x.tolist() == [size * (size - 1) / 2] * 3
        dist.destroy_process_group()


@on_two.add
def many_groups():
    """Under the limit that most systems have. Lowered for all cases that follow."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    _, rank, size = start(timeout=timedelta(seconds=60))
    for group in [dist.new_group() for _ in range(100)]:
        x = torch.full((3,), float(rank))
        dist.all_reduce(x, group=group)
        assert x.tolist() == [size * (size - 1) / 2] * 3


def test_a_hundred_groups_need_few_descriptors():
    on_two.results(many_groups)


def test_groups_are_made_again_in_one_store():
    rueda.run(again, np=3)


RESTARTED = """
import os, signal, torch, torch.distributed as dist, rueda.distributed
dist.init_process_group("rueda")
rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(20):
    x = torch.ones(1000)
    dist.all_reduce(x)
    assert x[0] == dist.get_world_size()
    if life == 0 and rank == 1 and step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(1), group=dist.new_group())
os.write(1, f"life {life} is well\\n".encode())
dist.destroy_process_group()
"""


def test_torchrun_restarts_ranks(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(RESTARTED)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "2", "--max-restarts", "1", str(program)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("life 1 is well") == 2, done.stdout + done.stderr


@pytest.mark.parametrize(
    "compiler, told",
    [
        ("no-such-c++", "there is no C++ compiler 'no-such-c++': install g++"),
        ("false", "this failed: "),
    ],
)
def test_what_a_build_lacks_is_said(tmp_path, compiler, told):
    done = subprocess.run(
        [sys.executable, "-m", "rueda.build"],
        capture_output=True,
        text=True,
        env={**os.environ, "CXX": compiler, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 1
    assert f"rueda.build: {told}" in done.stderr
