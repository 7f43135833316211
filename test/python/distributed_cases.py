"""What distributed_test.py runs on ranks: torch.distributed over Rueda, and over Gloo."""

from __future__ import annotations

import datetime
import gc
import logging
import os
import signal
import sys
import threading
import time
import weakref

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import rueda
import rueda.distributed  # noqa: F401


def start(backend="rueda", **options):
    dist.init_process_group(backend, **options)
    return dist.get_rank(), dist.get_world_size()


def values(shape, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-5, 6, shape, generator=generator).to(dtype)


# ---- every collective, against Gloo ----


def _all_reduce(group, rank, size):
    ops = dist.ReduceOp
    results = []
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8):
        for op in (ops.SUM, ops.MIN, ops.MAX, ops.PRODUCT):
            x = values((3, 4), rank, dtype).abs()
            dist.all_reduce(x, op, group=group)
            results.append(x)
    for dtype in (torch.int32, torch.int64):
        for op in (ops.BAND, ops.BOR, ops.BXOR):
            x = values((5,), rank, dtype)
            dist.all_reduce(x, op, group=group)
            results.append(x)
    for dtype in (torch.float16, torch.bfloat16):
        x = values((7,), rank, dtype)
        dist.all_reduce(x, group=group)
        results.append(x)
    work = dist.all_reduce(x := values((2,), rank), group=group, async_op=True)
    work.wait()
    assert work.is_completed()
    results.append(x)
    results.append(x.clone())
    dist.all_reduce(results[-1], group=group, async_op=True).get_future().wait()
    return results


def _sparse(group, rank, size):
    x = torch.sparse_coo_tensor([[rank, 3], [0, 1]], [1.0, 2.0], (5, 2))
    dist.all_reduce(x, group=group)
    return [x.to_dense()]


def _one_root(group, rank, size):
    results = []
    for root in range(size):
        x = values((3, 2), 10 * rank + root)
        dist.broadcast(x, root, group=group)
        y = values((4,), 20 * rank + root)
        dist.reduce(y, root, group=group)
        gathered = [torch.zeros(2, 3) for _ in range(size)] if rank == root else None
        dist.gather(values((2, 3), rank), gathered, root, group=group)
        z = torch.zeros(2, 2)
        parts = [values((2, 2), root + k) for k in range(size)] if rank == root else None
        dist.scatter(z, parts, root, group=group)
        results += [x, z.clone(), *(gathered or []), *([y] if rank == root else [])]
    return results


def _gathers(group, rank, size):
    outputs = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(outputs, values((2, 3), rank), group=group)
    scalars = [torch.zeros(()) for _ in range(size)]
    dist.all_gather(scalars, torch.tensor(float(rank)), group=group)
    whole = torch.zeros(2 * size, 3)
    dist.all_gather_into_tensor(whole, values((2, 3), rank), group=group)
    later = torch.zeros(2 * size, 3)
    work = dist.all_gather_into_tensor(later, values((2, 3), rank), group=group, async_op=True)
    work.wait()
    return [*outputs, *scalars, whole, later]


def _reduce_scatters(group, rank, size):
    output = torch.zeros(3)
    dist.reduce_scatter(output, [values((3,), rank + 7 * k) for k in range(size)], group=group)
    single = torch.zeros(2, 2)
    dist.reduce_scatter_tensor(single, values((2 * size, 2), rank), group=group)
    return [output, single]


def _all_to_alls(group, rank, size):
    equal = torch.zeros(size * 2, 3)
    dist.all_to_all_single(equal, values((size * 2, 3), rank), group=group)
    sent = [k + 1 for k in range(size)]
    split = torch.zeros((rank + 1) * size, 2)
    dist.all_to_all_single(
        split, values((sum(sent), 2), rank), [rank + 1] * size, sent, group=group
    )
    return [equal, split]


def _letters(group, rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    first, second = values((3,), rank), values((4, 2), rank + 1)
    got = [torch.zeros(3), torch.zeros(4, 2)]
    works = [
        dist.isend(first, right, group=group, tag=1),
        dist.isend(second, right, group=group, tag=2),
    ]
    # By their tags, in another order.
    works.append(dist.irecv(got[1], left, group=group, tag=2))
    works.append(dist.irecv(got[0], left, group=group, tag=1))
    for work in works:
        work.wait()
    more = torch.zeros(3)
    together = [
        dist.P2POp(dist.isend, first, right, group),
        dist.P2POp(dist.irecv, more, left, group),
    ]
    for work in dist.batch_isend_irecv(together):
        work.wait()
    return [*got, more]


def _objects(group, rank, size):
    everybody = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * rank}, group=group)
    lists = [rank, None] if rank == 0 else [None, None]
    dist.broadcast_object_list(lists, 0, group=group)
    mine = [None]
    dist.scatter_object_list(mine, list(range(size)) if rank == 0 else None, 0, group=group)
    assert everybody == [{"rank": k, "text": "x" * k} for k in range(size)]
    assert lists == [0, None] and mine == [rank]
    return []


COLLECTIVES = [
    _all_reduce,
    _sparse,
    _one_root,
    _gathers,
    _reduce_scatters,
    _all_to_alls,
    _letters,
    _objects,
]


def against_gloo():
    rank, size = start("gloo")
    ours = dist.new_group(backend="rueda")
    for case in COLLECTIVES:
        expected = case(dist.group.WORLD, rank, size)
        for _ in range(3):
            got = case(ours, rank, size)
            assert len(got) == len(expected), case
            for mine, theirs in zip(got, expected, strict=True):
                assert mine.dtype == theirs.dtype, (case, mine, theirs)
                assert torch.equal(mine, theirs), (case, mine, theirs)
    dist.destroy_process_group()


def strided(rank, size):
    wide = values((4, 6), rank)
    part = wide[:, ::2].t()
    total = sum(values((4, 6), k) for k in range(size))
    dist.all_reduce(part)
    assert torch.equal(part, total[:, ::2].t())
    assert torch.equal(wide[:, 1::2], values((4, 6), rank)[:, 1::2])
    stacked = torch.zeros(size, 2, 3)
    dist.all_gather_into_tensor(stacked, values((3, 2), rank).t())
    assert all(torch.equal(stacked[k], values((3, 2), k).t()) for k in range(size))
    scattered = torch.zeros(3, 2).t()
    parts = [values((2, 3), k) for k in range(size)] if rank == 0 else None
    dist.scatter(scattered, parts, 0)
    assert torch.equal(scattered, values((2, 3), rank))
    received = torch.zeros(2, 4).t()
    works = [
        dist.isend(values((4, 2), rank), (rank + 1) % size),
        dist.irecv(received, (rank - 1) % size),
    ]
    for work in works:
        work.wait()
    assert torch.equal(received, values((4, 2), (rank - 1) % size))


def what_gloo_has_not():
    """Averages, shares of different sizes, any strides, all_to_all of lists, coalescing."""
    rank, size = start()
    strided(rank, size)
    assert dist.get_backend() == "rueda"
    x = torch.tensor([-3, 3, 5]) * rank
    dist.all_reduce(x, dist.ReduceOp.AVG)
    whole = torch.tensor([-3, 3, 5]) * sum(range(size))
    assert x.tolist() == [int(v / size) for v in whole.tolist()]
    y = torch.ones(2) * rank
    dist.all_reduce(y, dist.ReduceOp.AVG)
    assert y.tolist() == [sum(range(size)) / size] * 2

    output = torch.zeros(rank + 1)
    inputs = [torch.full((k + 1,), float(rank)) for k in range(size)]
    dist.reduce_scatter(output, inputs)
    assert output.tolist() == [sum(range(size))] * (rank + 1)

    uneven = [torch.zeros(k + 1) for k in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    assert [t.tolist() for t in uneven] == [[k] * (k + 1) for k in range(size)]

    got = [torch.zeros(k + 1) for k in range(size)]
    dist.all_to_all(got, [torch.full((rank + 1,), 10.0 * rank + k) for k in range(size)])
    assert [t.tolist() for t in got] == [[10 * k + rank] * (k + 1) for k in range(size)]

    a, b = torch.ones(2) * rank, torch.ones(3)
    with dist._coalescing_manager():
        dist.all_reduce(a)
        dist.all_reduce(b)
    assert a.tolist() == [sum(range(size))] * 2 and b.tolist() == [size] * 3
    with dist._coalescing_manager(async_ops=True) as manager:
        outs = [torch.zeros(size), torch.zeros(2 * size)]
        dist.all_gather_into_tensor(outs[0], torch.ones(1) * rank)
        dist.all_gather_into_tensor(outs[1], torch.ones(2) * rank)
    manager.wait()
    assert outs[0].tolist() == list(range(size))
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(a, 0)
        dist.all_reduce(b)
    assert b.tolist() == [size * size] * 3

    futures = [dist.all_reduce(torch.ones(4) * i, async_op=True).get_future() for i in range(20)]
    for i, future in enumerate(futures):
        assert future.wait()[0].tolist() == [i * size] * 4
    chained = (
        dist.all_reduce(torch.ones(1), async_op=True)
        .get_future()
        .then(lambda done: done.value()[0] / size)
    )
    assert chained.wait().item() == 1
    message, ones = torch.zeros(1), torch.ones(1)
    from_any = dist.irecv(message) if rank == 0 else dist.irecv(message, 0)
    works = [from_any, dist.isend(ones, 1 - rank)]
    torch.futures.wait_all([work.get_future() for work in works])
    assert message.item() == 1 and all(work.is_completed() for work in works)
    dist.destroy_process_group()


# ---- from any source ----


def from_any_source(backend="rueda"):
    """What rank 0 got: the sources, with numbers that tell who sent them and in which order."""
    rank, size = start(backend)
    got = []
    rounds = 5
    for i in range(rounds):
        message = torch.zeros(2, dtype=torch.int64)
        if rank != 0:
            dist.send(torch.tensor([rank, i]), 0)
            continue
        for _ in range(size - 1):
            source = dist.recv(message)
            assert source == message[0]
            got.append(message.tolist())
    for sender in range(1, size):
        assert [i for source, i in got if source == sender] == list(
            range(rounds if rank == 0 else 0)
        )

    # A receive that was posted goes on while its rank does something else; also of a tag.
    posted = torch.zeros(1)
    if rank == 0:
        work = dist.irecv(posted, tag=3)
        other = torch.zeros(1)
        dist.recv(other, 2, tag=4)
        dist.barrier()
        work.wait()
        assert (posted.item(), other.item()) == (7, 8) and work.is_completed()
        assert work._source_rank() == 1
    else:
        dist.send(torch.full((1,), 6.0 + rank), 0, tag=2 + rank) if rank < 3 else None
        dist.barrier()

    # From a named source and from any: each message once.
    if rank == 0:
        first, second = torch.zeros(1), torch.zeros(1)
        dist.recv(first, 1, tag=5)
        assert dist.recv(second, tag=5) == 1
        assert (first.item(), second.item()) == (1, 2)
    elif rank == 1:
        dist.send(torch.ones(1), 0, tag=5)
        dist.send(torch.full((1,), 2.0), 0, tag=5)

    # Of those that have sent before, one alone sends now.
    for sender in (2, 1, 1, 2):
        if rank == 0:
            assert dist.recv(posted) == sender
        elif rank == sender:
            dist.send(torch.ones(1), 0)
        dist.barrier()

    # Sources are ranks of the world, also in a group.
    pair = dist.new_group([size - 1, 0], backend=backend)
    if rank == 0:
        assert dist.recv(posted, group=pair) == size - 1
    elif rank == size - 1:
        dist.send(torch.ones(1), 0, group=pair)
    dist.barrier()
    dist.destroy_process_group()
    return True


def many_from_any_source():
    """With one sender messages come in the order in which they were sent, however many receives
    were posted, and however late they are."""
    rank, _ = start()
    count = 30
    group = dist.distributed_c10d._get_default_group()
    if rank == 0:
        posted = [torch.zeros(1) for _ in range(count)]
        for work in [dist.irecv(message) for message in posted]:
            work.wait(datetime.timedelta(seconds=20))
        assert [int(message) for message in posted] == list(range(count))
        # One after another, slower than they are sent; then of two threads.
        for _ in range(2):
            got = []
            for _ in range(count):
                message = torch.zeros(1)
                dist.irecv(message).wait(datetime.timedelta(seconds=20))
                got.append(int(message))
                time.sleep(0.005)
            assert sorted(got) == list(range(count))
            dist.barrier()
        # While the sender is in a call that waits in the store.
        first = dist.irecv(message := torch.zeros(1))
        assert dist.new_group([0, 1]) is not None
        first.wait(datetime.timedelta(seconds=20))
        dist.recv(message)
        assert dist.new_group([0, 1]) is not None
    else:
        for i in range(count):
            time.sleep(0.001)
            dist.isend(torch.full((1,), float(i)), 0)
        works = [dist.isend(torch.full((1,), float(i)), 0) for i in range(count)]
        dist.barrier()

        def send(begin):
            for i in range(begin, count, 2):
                works.append(group.send([torch.full((1,), float(i))], 0, 0))

        threads = [threading.Thread(target=send, args=(begin,)) for begin in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        dist.barrier()
        dist.send(torch.ones(1), 0)
        dist.new_group([0, 1])
        last = dist.isend(torch.ones(1), 0)
        dist.new_group([0, 1])
        last.wait(datetime.timedelta(seconds=20))
    dist.barrier()
    dist.destroy_process_group()
    return True


def nothing_from_any_source(loss=None):
    """`loss`: rank 1 ends, and how rank 0 heard of it is written there."""
    rank, _ = start()
    group = dist.distributed_c10d._get_default_group()
    if rank == 0:
        work = dist.irecv(torch.zeros(1))
        begin = time.monotonic()
        try:
            work.wait(datetime.timedelta(seconds=0.2))
            raise AssertionError("nobody has sent anything")
        except rueda.TimeIsUpError as error:
            assert "after a timeout of 0.2 s, no rank has sent a message" in str(error)
        assert 0.2 <= time.monotonic() - begin < 10 and not work.is_completed()
        dist.barrier()
        if loss is not None:
            try:
                work.wait()
            except rueda.AbortedError as error:
                loss.write_text(str(error))
            return ""
        group.shutdown()
        try:
            work.wait()
            raise AssertionError("the group has been destroyed")
        except rueda.NotInitializedError as error:
            return str(error)
    dist.barrier()
    if loss is not None:
        os._exit(0)
    group.shutdown()
    return ""


def forgotten():
    """A group that was destroyed is kept by nobody, nor is its store."""
    rank, _ = start()
    message = torch.zeros(1)
    dist.recv(message) if rank == 0 else dist.send(message, 0)
    group = weakref.ref(dist.distributed_c10d._get_default_group())
    dist.destroy_process_group()
    gc.disable()  # who waits for that holds up whoever wants the store's port
    end = time.monotonic() + 10
    while group() is not None and time.monotonic() < end:
        time.sleep(0.01)
    return group() is None


def left_alone():
    rank, _ = start()
    if rank == 0:
        message = torch.zeros(1)
        assert dist.recv(message) == 1  # sent before its sender left
        try:
            dist.recv(message)
            raise AssertionError("nobody is left")
        except rueda.RuedaError as error:
            assert "all other ranks have left" in str(error)
    else:
        dist.send(torch.ones(1), 0)
    dist.destroy_process_group()
    return True


# ---- groups ----


def groups():
    rank, size = start()
    evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
    own = evens if rank % 2 == 0 else odds
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=own)
    assert x.item() == (2 if rank % 2 == 0 else 4)
    assert dist.get_rank(own) == rank // 2
    dist.broadcast(x, 2 if rank % 2 == 0 else 3, group=own)  # global ranks
    if rank in (1, 3):
        last = dist.new_group([1, 3], use_local_synchronization=True)
        dist.barrier(last)
        dist.destroy_process_group(last)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    y = torch.tensor([float(rank)])
    dist.all_reduce(y, group=mesh.get_group("columns"))
    assert y.item() == (1 if rank < 2 else 5)
    dist.all_reduce(y, group=mesh.get_group("rows"))
    assert y.item() == 6
    assert dist.get_backend(mesh.get_group("rows")) == "rueda"
    dist.destroy_process_group()


# ---- what stands on it ----


def _net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)
    )


def _loss(model, step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, 6, generator=generator)
    return F.cross_entropy(model(x), torch.randint(0, 3, (8,), generator=generator))


def _weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _alone(size, make, steps=4):
    model = _net()
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(size):
            (_loss(model, step, rank) / size).backward()
        optimizer.step()
    return _weights(model)


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def _train(model, optimizer, rank, steps=4):
    for step in range(steps):
        optimizer.zero_grad()
        _loss(model, step, rank).backward()
        optimizer.step()


def _same(model_weights, expected, tolerance=1e-5):
    everybody = [torch.zeros_like(model_weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, model_weights)
    assert all(torch.equal(other, everybody[0]) for other in everybody)
    torch.testing.assert_close(everybody[0], expected, rtol=0, atol=tolerance)


def distributed_data_parallel():
    rank, size = start()
    expected = _alone(size, _sgd)
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = DistributedDataParallel(_net(), bucket_cap_mb=0.01, **options)
        _train(model, _sgd(model.parameters()), rank)
        _same(_weights(model), expected)

    # Hooks, with what they may lose.
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    power = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    hooks = [
        (None, default_hooks.allreduce_hook, 1e-5),
        (None, default_hooks.fp16_compress_hook, 1e-2),
        (None, default_hooks.bf16_compress_hook, 1e-1),
        (None, default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook), 1e-1),
        (power, powerSGD_hook.powerSGD_hook, 0.5),
    ]
    for state, hook, tolerance in hooks:
        model = DistributedDataParallel(_net())
        model.register_comm_hook(state, hook)
        _train(model, _sgd(model.parameters()), rank)
        _same(_weights(model), expected, tolerance)

    # Gradients of two batches added up; only the last pass is combined.
    model = DistributedDataParallel(_net())
    with model.no_sync():
        _loss(model, 0, rank).backward()
    _loss(model, 1, rank).backward()
    alone = _net()
    for k in range(size):
        (_loss(alone, 0, k) / size).backward()
        (_loss(alone, 1, k) / size).backward()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)

    # Ranks with different numbers of batches.
    model = DistributedDataParallel(_net())
    optimizer = _sgd(model.parameters())
    with model.join():
        _train(model, optimizer, rank, steps=2 + rank)
    dist.barrier()

    # An embedding with sparse gradients.
    torch.manual_seed(0)
    table = DistributedDataParallel(nn.Embedding(10, 4, sparse=True))
    table(torch.tensor([rank, 5])).sum().backward()
    dense = table.module.weight.grad.to_dense()
    assert dense[5].tolist() == [1.0] * 4 and dense[0].tolist() == [1 / size] * 4
    dist.destroy_process_group()


def zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank, size = start()
    model = DistributedDataParallel(_net())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=0.2, momentum=0.9
    )
    _train(model, optimizer, rank)
    _same(_weights(model), _alone(size, _sgd))
    optimizer.consolidate_state_dict(to=0)
    dist.destroy_process_group()


def _dies_in_step(model, optimizer, rank, size):
    """The last rank does, in the middle of a training; what the others are told."""
    try:
        for step in range(1_000):
            optimizer.zero_grad()
            loss = _loss(model, step % 4, rank)
            if step == 5 and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
    except RuntimeError as error:  # torch's, from its C++; an AbortedError is one, too
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nobody was lost")


def _sharded_model():
    from torch.distributed.fsdp import fully_shard

    model = _net()
    fully_shard(model)
    return model


def _hooked_model():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DistributedDataParallel(_net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model


def of_which_one_dies(kind, folder):
    """Each survivor writes there what it was told."""
    rank, size = start()
    make = {
        "ddp": lambda: DistributedDataParallel(_net(), bucket_cap_mb=0.01),
        "hook": _hooked_model,
        "fsdp": _sharded_model,
    }
    model = make[kind]()
    told = _dies_in_step(model, _sgd(model.parameters()), rank, size)
    (folder / str(rank)).write_text(told)


def futures_of_what_failed():
    """As torch's C++ waits for them, and Python."""
    rank, size = start()
    told = []

    def fails():
        return dist.all_reduce(torch.ones(4 + rank), async_op=True).get_future()

    for future in (
        fails(),
        fails().then(lambda ended: ended.value()),
        torch.futures.collect_all([fails()]),
    ):
        try:
            future.wait()
            raise AssertionError("the ranks disagree")
        except RuntimeError as error:
            assert "the ranks disagree on the shape" in str(error), error
            told.append(type(error).__name__)
    # A gradient that the others have in another shape.
    model = DistributedDataParallel(nn.Linear(4, 4))
    try:
        if rank == 0:
            model(torch.ones(1, 4)).sum().backward()
        else:
            dist.all_reduce(torch.ones(77))
        raise AssertionError("the ranks disagree")
    except RuntimeError as error:
        assert "the ranks disagree on the shape" in str(error), error
    dist.destroy_process_group()
    return told


def stalls():
    """RUEDA_STALL_TIMEOUT_S: every way to wait for an operation ends."""
    rank, size = start()
    x = torch.ones(4)
    if rank == 0:
        waits = [
            lambda: dist.all_reduce(x),
            lambda: dist.all_reduce(x, async_op=True).wait(),
            lambda: dist.all_reduce(x, async_op=True).get_future().wait(),
            dist.barrier,
        ]
        for wait in waits:
            try:
                wait()
                raise AssertionError("nobody else came")
            except RuntimeError as error:
                assert "missing: rank 1" in str(error), error
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            time.sleep(0.01)
        assert not work.is_success() and isinstance(work.exception(), rueda.StalledError)
        store = dist.distributed_c10d._get_default_store()
        store.set("all have stalled", "")
    else:
        dist.distributed_c10d._get_default_store().get("all have stalled")
    dist.destroy_process_group()


def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    rank, size = start()
    model = _net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    _train(model, _sgd(model.parameters()), rank)
    whole = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    _same(whole, _alone(size, _sgd))
    dist.destroy_process_group()


def torchmetrics_and_samplers():
    import torchmetrics
    from torch.utils.data import DistributedSampler, TensorDataset

    rank, size = start()
    data = TensorDataset(torch.arange(10))
    mine = list(DistributedSampler(data, shuffle=False))
    everybody = [None] * size
    dist.all_gather_object(everybody, mine)
    assert sorted(sum(everybody, [])) == list(range(10))
    metric = torchmetrics.classification.MulticlassAccuracy(2, average="micro")
    metric.update(torch.tensor([1, 1, 0, rank]), torch.tensor([1, 1, 1, 1]))
    assert abs(metric.compute().item() - (2 * 2 + 1) / 8) < 1e-6
    dist.destroy_process_group()


def accelerate():
    from accelerate import Accelerator

    import rueda.distributed  # noqa: F401

    rank, size = start()
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == size
    model, optimizer = accelerator.prepare(m := _net(), _sgd(m.parameters()))
    for step in range(4):
        optimizer.zero_grad()
        accelerator.backward(_loss(model, step, rank))
        optimizer.step()
    _same(_weights(model), _alone(size, _sgd))
    gathered = accelerator.gather(torch.tensor([rank]))
    assert gathered.tolist() == list(range(size))
    dist.destroy_process_group()


def completed_with_outputs():
    """On threads that do nothing but look: another one, or nobody yet, puts the outputs there."""
    rank, size = start()
    mine = torch.full((1 << 20,), 1.0)
    for i in range(1, 16):
        outputs = [torch.zeros(1 << 20) for _ in range(size)]
        strided = torch.full((512, 1024), float(i)).t()
        works = [
            (dist.all_gather(outputs, mine * i, async_op=True), outputs, i),
            (dist.all_reduce(strided, async_op=True), [strided], size * i),
        ]
        for work, results, expected in works:
            while not work.is_completed():
                pass
            assert all(bool((result == expected).all()) for result in results), i
            assert work.is_success()
    options = dist.distributed_c10d.AllgatherOptions()
    options.asyncOp = False
    outputs = [torch.zeros(3) for _ in range(size)]
    group = dist.distributed_c10d._get_default_group()
    work = group.allgather([outputs], [torch.full((3,), float(rank))], options)
    while not work.is_completed():
        pass
    assert [output[0].item() for output in outputs] == list(range(size))
    dist.destroy_process_group()


# ---- what goes wrong ----


def mismatch():
    rank, _ = start()
    try:
        dist.all_reduce(torch.ones(2 + rank))
        raise AssertionError("the shapes differ")
    except rueda.MismatchError as error:
        text = str(error)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2
    work = dist.all_reduce(torch.ones(2 + rank), async_op=True)
    future = work.get_future()
    try:
        future.wait()
        raise AssertionError("the shapes differ")
    except RuntimeError as error:
        assert "disagree" in str(error)
    assert work.exception() is not None and not work.is_success()
    dist.destroy_process_group()
    return text


def outputs_of_other_sizes():
    rank, size = start()
    group = dist.distributed_c10d._get_default_group()

    def refused(call):
        try:
            call()
        except ValueError:
            return
        raise AssertionError("the output's size is another")

    parts = [torch.full((k + 1,), 10.0 * (k + 1)) for k in range(size)]
    refused(lambda: dist.reduce_scatter(torch.zeros(rank + 2), parts))
    dist.reduce_scatter(mine := torch.zeros(rank + 1), parts)
    assert mine.tolist() == [10.0 * (rank + 1) * size] * (rank + 1)

    # As many elements in all, but not from each rank.
    wrong = [torch.zeros(1), torch.zeros(3)]
    refused(lambda: dist.all_gather(wrong, torch.ones(2)))
    refused(lambda: dist.all_to_all(wrong, [torch.ones(2)] * 2))
    refused(lambda: group.allgather_coalesced([wrong[:1], wrong[1:]], [torch.ones(2)]).wait())
    if rank == 0:
        refused(lambda: dist.gather(torch.ones(2), wrong, 0))
    else:
        dist.gather(torch.ones(2), None, 0)
    assert [t.tolist() for t in wrong] == [[0], [0, 0, 0]]
    both = [[torch.zeros(k + 1), torch.zeros(2)] for k in range(size)]
    group.allgather_coalesced(both, [torch.ones(rank + 1), torch.full((2,), float(rank))]).wait()
    assert [[t.tolist() for t in pair] for pair in both] == [
        [[1.0] * (k + 1), [k] * 2] for k in range(size)
    ]
    dist.destroy_process_group()


def parts_of_one_rank_are_wrong():
    """That rank gets a ValueError at once; the others don't wait for it."""
    rank, size = start()
    one = torch.ones(1)

    def scatter(parts):
        dist.scatter(torch.zeros(1), parts if rank == 0 else None, src=0)

    calls = [
        lambda bad: dist.all_to_all_single(
            torch.zeros(size),
            torch.ones(size),
            None,
            [size + 1] + [0] * (size - 1) if bad else None,
        ),
        lambda bad: dist.all_to_all_single(
            torch.zeros(size), torch.ones(size), [1] * (size + 1) if bad else None
        ),
        lambda bad: dist.all_to_all([torch.zeros(1)] * size, [one] * (size + bad)),
        lambda bad: dist.reduce_scatter(torch.zeros(1), [one] * (size + bad)),
        lambda bad: scatter([one] * (size + bad)),
    ]
    told = []
    for call in calls:
        try:
            call(rank == 0)
            raise AssertionError("the parts of rank 0 are wrong")
        except (ValueError, RuntimeError, TypeError) as error:
            told.append(f"{type(error).__name__}: {error}".splitlines()[0])
        call(False)
    dist.destroy_process_group()
    return told


def inputs_in_outputs():
    """As Gloo takes them."""
    rank, size = start("gloo")
    ours = dist.new_group(backend="rueda")

    def results(group):
        whole = values((4 * size,), rank)
        dist.reduce_scatter_tensor(whole[4 * rank :][:4], whole, group=group)
        gathered = values((4 * size,), rank)
        dist.all_gather_into_tensor(gathered, gathered[4 * rank :][:4], group=group)
        moved = values((4 * size,), rank)
        dist.all_gather_into_tensor(moved, moved[1:5], group=group)
        return [whole, gathered, moved]

    for mine, theirs in zip(results(ours), results(dist.group.WORLD), strict=True):
        assert torch.equal(mine, theirs), (mine, theirs)
    dist.destroy_process_group()


def aborted():
    """Those that wait, on threads too, and those that don't hear of the abort, not of its end."""
    rank, _ = start()
    group = dist.distributed_c10d._get_default_group()
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    told = []

    def tell(call):
        try:
            call()
        except Exception as error:
            told.append((type(error).__name__, str(error)))

    if rank == 0:
        works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(20)]
        future = works[0].get_future()
        options = dist.distributed_c10d.AllreduceOptions()
        options.asyncOp = False
        works.append(group.allreduce([torch.ones(4)], options))
        threads = [
            threading.Thread(target=tell, args=[lambda: dist.all_reduce(torch.ones(4))])
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        group.abort()
        for work in works:
            assert work.is_completed()
            tell(work.wait)
        for thread in threads:
            thread.join()
        assert len(told) == len(works) + len(threads)
        tell(future.wait)
        assert "AbortedError" in told[-1][1] or "aborted" in told[-1][1], told[-1]
        told.pop()
        tell(lambda: dist.all_reduce(torch.ones(4)))
        assert told.pop()[0] == "NotInitializedError"
        store.set("done", "")
    store.get("done")
    return told


def refused_letters():
    """A message that is refused takes no number; those of several threads get one each."""
    rank, _ = start()
    unknown = torch.zeros(3).to(torch.float8_e8m0fnu)
    other = 1 - rank
    for refused in [dist.send] if rank == 0 else [dist.recv, dist.recv]:
        try:
            refused(unknown, other)
            raise AssertionError("there is no such type")
        except rueda.UnsupportedError as error:
            assert "Float8_e8m0fnu" in str(error), error
    got = torch.zeros(3)
    works = [dist.isend(torch.full((3,), float(rank)), other), dist.irecv(got, other)]
    for work in works:
        work.wait(datetime.timedelta(seconds=10))
    assert got.tolist() == [other] * 3

    count = 50
    if rank == 0:

        def send():
            for _ in range(count):
                dist.isend(torch.ones(1), 1, tag=7)

        threads = [threading.Thread(target=send) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for _ in range(2 * count):
            x = torch.zeros(1)
            dist.irecv(x, 0, tag=7).wait(datetime.timedelta(seconds=10))
            assert x.item() == 1
    dist.destroy_process_group()


def missing_at_a_monitored_barrier():
    rank, _ = start()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))
    result = ""
    if rank != 2:
        try:
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
            raise AssertionError("rank 2 is not there")
        except RuntimeError as error:
            result = str(error)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"done {rank}", "")
    for other in range(3):
        store.get(f"done {other}")
    dist.distributed_c10d._get_default_group().abort()
    return result


def late_at_a_monitored_barrier():
    """The barrier that rank 2 was late for has failed; the next ones are as good as any."""
    rank, _ = start(timeout=datetime.timedelta(seconds=20))
    store = dist.distributed_c10d._get_default_store()
    results = []
    for number in range(2):
        if rank == 2:
            for other in range(2):
                store.get(f"{number} has failed at {other}")
        try:
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=20 if rank == 2 else 1))
            results.append("passed")
        except RuntimeError as error:
            results.append(str(error))
        store.set(f"{number} has failed at {rank}", "")
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == 3
    dist.destroy_process_group()
    return results


def a_limit_of_time():
    rank, _ = start(timeout=datetime.timedelta(seconds=60))
    store = dist.distributed_c10d._get_default_store()
    x = torch.ones(1)
    if rank == 1:
        store.get("go on")
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        try:
            work.wait(datetime.timedelta(milliseconds=50))
            raise AssertionError("rank 1 is not there")
        except TimeoutError:
            pass
        store.set("go on", "")
    work.wait()
    dist.destroy_process_group()
    return x.item()


def _rank_1_dies(rank):
    """When the others are over with what all did before."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        for other in set(range(dist.get_world_size())) - {1}:
            store.get(f"rank 1 may die: {other}")
        os.kill(os.getpid(), signal.SIGKILL)
    store.set(f"rank 1 may die: {rank}", "")


def lost_rank():
    rank, _ = start()
    model = DistributedDataParallel(_net())
    _loss(model, 0, rank).backward()
    _rank_1_dies(rank)
    began = time.monotonic()
    try:
        for step in range(100):
            _loss(model, step, rank).backward()
    except RuntimeError as error:
        print(f"survivor: {time.monotonic() - began < 5} {error}", flush=True)


def lost_before_a_monitored_barrier():
    rank, _ = start()
    _rank_1_dies(rank)
    try:
        dist.monitored_barrier()
    except RuntimeError as error:
        print(f"survivor: {error}", flush=True)


def one_leaves(where, status):
    """Rank 1 exits with a status while rank 0 waits for it in one of three contexts."""
    rank, _ = start()
    second = dist.new_group([0, 1])
    rueda.init()
    waits = {
        "first": lambda: dist.all_reduce(torch.ones(1)),
        "second": lambda: dist.all_reduce(torch.ones(1), group=second),
        "job": lambda: rueda.allreduce(torch.ones(1), name="x"),
    }
    for wait in waits.values():
        wait()
    if rank == 1:
        sys.exit(int(status))
    try:
        waits[where]()
    except rueda.RuedaError as error:
        print(f"told: {error}", flush=True)


def one_fails():
    rank, _ = start()
    if rank == 1:
        raise ValueError("a bad batch")
    try:
        dist.all_reduce(torch.ones(1))
    except rueda.AbortedError as error:
        print(f"told: {error}", flush=True)


def environment():
    """For other launchers: everything from MASTER_ADDR and so on."""
    logging.basicConfig(level=logging.INFO)
    rank, size = start()
    x = torch.ones(1)
    dist.all_reduce(x)
    print(f"rank {rank} of {size}: {x.item():g}", flush=True)
    # Not destroyed: left at exit.


def spawned(rank, size, path):
    start(init_method=f"file://{path}", rank=rank, world_size=size)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])


def spawned_of_which_one_fails(rank, path):
    dist.init_process_group("rueda", init_method=f"file://{path}", rank=rank, world_size=2)
    if rank == 1:
        raise KeyError("of rank 1")
    threading.Event().wait()  # in no operation
