"""Members of process groups of torchft, for torchft_test.py: processes that it starts and kills.

    torchft_cases.py CASE MEMBER MEMBERS PORT ...

PORT is that of a store. What a case finds out is a line of JSON.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pathlib
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
import torchft
from torch._C import _distributed_c10d as c10d
from torchft.checkpointing.pg_transport import PGTransport
from torchft.process_group import ProcessGroupGloo

import rueda
from rueda.torchft import ProcessGroupRueda

# No wait of a test that passes is as long.
LONG = datetime.timedelta(seconds=60)


def tell(**what):
    print(json.dumps(what), flush=True)


class Member:
    """One of the processes of a case."""

    def __init__(self, number, members, port):
        self.number, self.members, self.port = int(number), int(members), int(port)
        self.store = dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=LONG)
        self.groups = 0

    def configure(self, group, members=None):
        """A new group of these members, by default of all."""
        members = range(self.members) if members is None else members
        self.groups += 1
        if self.number in members:
            rank = members.index(self.number)
            place = f"127.0.0.1:{self.port}/group/{self.groups}"
            group.configure(place, f"member_{self.number}", rank, len(members), self.groups)

    def meet(self, place, members=None):
        """Waits for the others, without the group."""
        members = range(self.members) if members is None else members
        self.store.set(f"{place} {self.number}", "")
        self.store.wait([f"{place} {other}" for other in members])


def total(group, value):
    x = torch.full((1000,), float(value))
    group.allreduce([x], dist.ReduceOp.SUM).wait()
    assert torch.equal(x, x[:1].expand(1000))
    return x[0].item()


def error_of(call):
    """What it raises, and after how many seconds."""
    begin = time.monotonic()
    try:
        call()
    except Exception as error:
        return error, time.monotonic() - begin
    raise AssertionError("there is no error")


# ---- operations ----


def every_collective(group, rank, size):
    """The results of all that torchft's ProcessGroupGloo has. All begin before one is awaited."""
    x = torch.arange(6.0) + 10 * rank
    copies = [x.clone() for _ in range(6)]
    parts = [torch.zeros(6) for _ in range(size)]
    whole, few = torch.zeros(6 * size), torch.zeros(2 * size)
    dealt, message = torch.zeros(6), torch.zeros(6)
    op, root = c10d.AllreduceOptions(), c10d.BroadcastOptions()
    op.reduceOp, root.rootRank = dist.ReduceOp.MAX, 1
    splits = [6 // size] * size
    begun = {
        "allreduce": ([copies[0]], group.allreduce([copies[0]], op)),
        "by op": ([copies[1]], group.allreduce([copies[1]], dist.ReduceOp.PRODUCT)),
        "coalesced": (
            copies[2:4],
            group.allreduce_coalesced(copies[2:4], c10d.AllreduceCoalescedOptions()),
        ),
        "allgather": (parts, group.allgather([parts], [x], c10d.AllgatherOptions())),
        "into tensors": (
            [whole, few],
            group.allgather_into_tensor_coalesced(
                [whole, few], [x, x[:2].clone()], c10d.AllgatherOptions()
            ),
        ),
        "alltoall": (
            [dealt],
            group.alltoall_base(dealt, x, splits, splits, c10d.AllToAllOptions()),
        ),
        "broadcast": ([copies[4]], group.broadcast([copies[4]], root)),
        "broadcast_one": ([copies[5]], group.broadcast_one(copies[5], 2)),
        "send": ([], group.send([x], (rank + 1) % size, 7)),
        "recv": ([message], group.recv([message], (rank - 1) % size, 7)),
        "barrier": ([], group.barrier(c10d.BarrierOptions())),
    }
    for _, work in begun.values():
        work.wait()
        if isinstance(group, ProcessGroupRueda):  # Gloo has none of messages
            work.get_future().wait()
    return {name: [y.tolist() for y in outputs] for name, (outputs, _) in begun.items()}


def collectives(me):
    ours, gloos = ProcessGroupRueda(LONG), ProcessGroupGloo(LONG)
    found = []
    for group in (ours, gloos):
        me.configure(group)
        found.append(every_collective(group, me.number, me.members))
    assert found[0] == found[1], found
    assert "torchft-rueda" == ours.getBackendName() and ours.size() == me.members
    share, rows = torch.zeros(2), [torch.full((2,), k + 1.0) for k in range(me.members)]
    whole, op = torch.cat(rows), c10d.ReduceScatterOptions()
    for work in (
        lambda: ours.reduce_scatter([share], [rows], op),  # torchft's Gloo has neither
        lambda: ours.reduce_scatter_tensor_coalesced([share], [whole], op),
    ):
        share.zero_()
        work().wait()
        assert share.tolist() == [me.members * (me.number + 1.0)] * 2
    ours.shutdown()
    gloos.shutdown()
    tell(collectives=len(found[0]))


# ---- configurations ----


def held():
    status = pathlib.Path("/proc/self/status").read_text().split()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "children": len(pathlib.Path("/proc/thread-self/children").read_text().split()),
        "kib": int(status[status.index("VmRSS:") + 1]),
    }


def configurations(me, count):
    group = ProcessGroupRueda(LONG)
    tell(**held())
    for number in range(int(count)):
        members = range(number % me.members + 1)
        me.configure(group, members)
        if me.number in members:
            assert group.size() == len(members)
            assert total(group, me.number + 1) == len(members) * (len(members) + 1) / 2
            assert group.errored() is None
        if members == range(me.members):
            me.meet(f"used {number}")  # none has left this group
            tell(**held())
    group.shutdown()
    tell(**held())


# ---- ends ----


def killed(me):
    """The first dies, then the last, then the first again."""
    group, members = ProcessGroupRueda(LONG), list(range(me.members))
    operations = [
        lambda x: group.allreduce([x], dist.ReduceOp.SUM),
        lambda x: group.broadcast([x], c10d.BroadcastOptions()),
        lambda x: group.recv([x], members.index(victim), 0),
    ]
    for victim, operation in zip([0, me.members - 1, 1], operations, strict=True):
        me.configure(group, members)
        total(group, 1)
        me.meet(f"before {victim}", members)  # each is over with the sum
        if me.number == victim:
            me.store.set("killed at", json.dumps(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        for wait in (lambda work: work.wait(), lambda work: work.get_future().wait()):
            error, _ = error_of(lambda: wait(operation(torch.ones(5))))
        began = json.loads(me.store.get("killed at"))
        me.meet(f"over {victim}", [m for m in members if m != victim])
        me.store.delete_key("killed at")
        tell(
            lost=members.index(victim),
            rank=getattr(error, "rank", None),
            error=str(error),
            errored=str(group.errored()),
            seconds=time.monotonic() - began,
        )
        members.remove(victim)
    me.configure(group, members)
    tell(total=total(group, 5))
    group.shutdown()


def aborted(me):
    """Member 0 waits for an allreduce, which the others don't begin, and they for a message."""
    group = ProcessGroupRueda(LONG)
    me.configure(group)
    total(group, 1)
    if me.number == 0:
        work = group.allreduce([torch.ones(1000)], dist.ReduceOp.SUM)
        told = []
        thread = threading.Thread(target=lambda: told.append(error_of(work.wait)))
        thread.start()
        me.meet("under way")
        group.abort()
        thread.join()
        (error, seconds), errored = told[0], group.errored()
        assert isinstance(error_of(lambda: total(group, 1))[0], Exception)
    else:
        me.meet("under way")
        error, seconds = error_of(lambda: group.recv([torch.ones(5)], 0, 0).wait())
        errored = group.errored()
    tell(
        kind=type(error).__name__,
        error=str(error),
        errored=str(errored),
        is_error=isinstance(errored, Exception),
        seconds=seconds,
    )
    me.configure(group)
    assert group.errored() is None
    tell(total=total(group, 1))
    group.shutdown()


def aborted_at_any_time(me, times):
    """By a thread, while another one calls operations as fast as it can."""
    group = ProcessGroupRueda(LONG)
    for number in range(int(times)):
        me.configure(group)
        errors = []

        def work(errors=errors):
            with contextlib.suppress(AssertionError):  # torchft's, where there is no group
                while True:
                    try:
                        total(group, 1)
                    except rueda.RuedaError as error:
                        errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        me.meet(f"at work {number}")
        if me.number != number % me.members:
            me.store.wait([f"aborted {number}"])
        group.abort()
        me.store.set(f"aborted {number}", "")
        for thread in threads:
            thread.join()
    tell(total=0)
    me.configure(group)
    tell(total=total(group, 1))


def limits(me):
    """Member 1 comes to no operation, and to no second group."""
    group = ProcessGroupRueda(LONG)
    me.configure(group)
    if me.number == 0:
        group.set_timeout(datetime.timedelta(seconds=0.5))
        error, seconds = error_of(group.allreduce([torch.ones(5)], dist.ReduceOp.SUM).wait)
        tell(kind=type(error).__name__, error=str(error), seconds=seconds)
        error, seconds = error_of(lambda: me.configure(group))
        tell(kind=type(error).__name__, error=str(error), seconds=seconds)
        group.set_timeout(LONG)
    else:
        me.groups += 1
    me.meet("late")
    me.configure(group)
    tell(total=total(group, 1))
    group.shutdown()


def left(me):
    """Member 0 ends its program, which does not end what the others still do with it."""
    group = ProcessGroupRueda(LONG)
    me.configure(group)
    total(group, 1)
    if me.number == 0:
        tell(ends=time.monotonic())
        return
    me.store.wait(["ended"] if me.number == 1 else [])  # by the test
    tell(errored=str(group.errored()))
    error, seconds = error_of(lambda: total(group, 1))
    tell(error=str(error), seconds=seconds)


# ---- training ----


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )

    def forward(self, x):
        return self.layers(x)


def train(number, lighthouse, folder, transport, last_step=-1):
    """A replica group of one rank, which is killed in the step after the last one. It takes steps
    until a file says that it is enough: to all at the same step, as they add up who has seen it."""
    stop = pathlib.Path(folder) / "stop"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupRueda(timeout=datetime.timedelta(seconds=30))
    torch.manual_seed(int(number))  # torchft makes the weights the same
    net = Net()
    inner = torch.optim.Adam(net.parameters(), lr=0.01)

    def load(state):
        net.load_state_dict(state["net"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=group,
        load_state_dict=load,
        state_dict=lambda: {"net": net.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=2,
        timeout=datetime.timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{number}",
        hostname="localhost",
        checkpoint_transport=PGTransport(group, LONG, torch.device("cpu"))
        if transport == "pg"
        else None,
    )
    model = torchft.DistributedDataParallel(manager, net)
    optimizer = torchft.Optimizer(manager, inner)
    enough = False
    while not enough:
        step = manager.current_step()
        optimizer.zero_grad()
        torch.manual_seed(100 * step + int(number))
        x = torch.randn(8, 16)
        loss = torch.nn.functional.mse_loss(model(x), x[:, :1])
        manager.wait_quorum()
        if 0 <= int(last_step) <= step and group.size() == 3:
            tell(killed_at=time.monotonic())
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        seen = torch.tensor([float(stop.exists())])
        manager.allreduce(seen, reduce_op=dist.ReduceOp.SUM).wait()
        failure = manager.errored()
        at = time.monotonic()
        optimizer.step()
        done = manager.current_step()
        enough = done > step and seen.item() > 0
        tell(
            step=done,
            committed=done > step,
            members=group.size(),
            at=time.monotonic(),
            failed_at=at if failure else None,
            failure=str(failure.original_exception) if failure else None,
        )
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    tell(step=manager.current_step(), weights=weights.sum().item(), all=weights.tolist())
    manager.shutdown(wait=False)
    group.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    case, *arguments = sys.argv[1:]
    if case == "train":
        train(*arguments)
    else:
        globals()[case](Member(*arguments[:3]), *arguments[3:])
