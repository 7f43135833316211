"""The program that ../elastic_bench.py runs under Rueda and its peers, and kills: a small model, trained by steps with
one gradient exchange each. Usage: elastic_program.py rueda|horovod|torchrun|torchft FOLDER

Each process writes FOLDER/steps.PID, one line per step: `done|dropped STEP RANKS TIME`. RANKS is how many took part in
the step; TIME is the monotonic clock's, which all processes of a host share."""
import os
import sys
import time

import torch

COMMIT = 10  # steps from one commit, or checkpoint, to the next

way, folder = sys.argv[1:]
torch.set_num_threads(1)
steps = os.open(os.path.join(folder, f"steps.{os.getpid()}"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)


def step(exchange=lambda: None):
    optimizer.zero_grad()
    model(torch.randn(32, 256)).square().mean().backward()
    exchange()
    optimizer.step()


def record(what, number, ranks):
    os.write(steps, f"{what} {number} {ranks} {time.monotonic():.6f}\n".encode())
    time.sleep(0.005)


def elastic(hvd):
    """Rueda's and Horovod's interface is the same."""
    global optimizer
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @hvd.elastic.run
    def train(state):
        while True:
            step()
            record("done", state.step, hvd.size())
            state.step += 1
            if state.step % COMMIT == 0:
                state.commit()

    train(state)


def torchrun():
    """All processes start anew, from the last checkpoint."""
    global model
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    number, path = 0, os.path.join(folder, "checkpoint.pt")
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        number = saved["step"]
    while True:
        step()
        record("done", number, dist.get_world_size())
        number += 1
        if number % COMMIT == 0 and dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number}, path + ".new")
            os.replace(path + ".new", path)


def torchft():
    """A step in which an exchange failed is dropped: the optimizer does not apply it."""
    global optimizer
    import datetime

    import torchft as ft
    # The store of a replica group, which is this process alone.
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    inner = optimizer

    def load(saved):
        model.load_state_dict(saved["model"])
        inner.load_state_dict(saved["optimizer"])

    manager = ft.Manager(pg=ft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=30)), min_replica_size=2,
                         load_state_dict=load,
                         state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
                         replica_id=f"replica_{os.environ['REPLICA']}", hostname="localhost",
                         store_addr="localhost", store_port=store.port, rank=0, world_size=1,
                         timeout=datetime.timedelta(seconds=30))

    def exchange():
        # Not by torchft's DistributedDataParallel: in 0.2.0 its hook fails an assertion on every survivor when Gloo
        # reports the loss within an allreduce, and they all end.
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()

    optimizer = ft.Optimizer(manager, inner)
    while True:
        number = manager.current_step()
        step(exchange)
        committed = manager.current_step() > number
        record("done" if committed else "dropped", manager.current_step() - committed, manager.num_participants())


if way == "rueda":
    import rueda.torch
    elastic(rueda.torch)
elif way == "horovod":
    import horovod.torch
    elastic(horovod.torch)
elif way == "torchrun":
    torchrun()
else:
    torchft()
