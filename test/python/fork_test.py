"""Forked children of ranks: what they inherit works there or raises, and nothing that they do
reaches their parent. Functions that tests define within themselves are pickled by value and run on
every rank."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import rueda  # noqa: E402

GRADIENT = ("RuntimeError", "clone it before the fork")
STEP = ("RuedaError", "DistributedOptimizer: this process was forked")
FORKED = ("RuedaError", "this process was forked after the context was initialized")

# What each action of `inherited` does in a child.
ENDS = {
    "nothing": None,
    "forward": True,
    "set_to_none": None,
    "zero_grad": None,
    "zero_grad_in_place": GRADIENT,
    "read": GRADIENT,
    "read_held": GRADIENT,
    "clip": GRADIENT,
    "pickle": GRADIENT,
    "send": GRADIENT,
    "save": GRADIENT,
    "numpy": GRADIENT,
    "print": GRADIENT,
    "step_of_torch": GRADIENT,
    "fused_step_of_torch": GRADIENT,
    "accumulate": GRADIENT,
    "accumulate_with_graph": GRADIENT,
    "backward": True,
    "train_with_torch": True,
    "step": STEP,
    "synchronize": STEP,
    "backward_and_step": STEP,
    "unscale": STEP,
    "load_state_dict": None,
    "copy_model": None,
    "save_model": None,
    "train_new_model": None,
    "drop_everything": None,
    "collective": FORKED,
    "read_in_grandchild": GRADIENT,
    "backward_in_grandchild": True,
}


def helpers():
    """What actions need on a rank."""
    import multiprocessing as mp

    import torch

    torch.set_num_threads(1)

    def in_child(action):
        """What it returns; or the type and text of its error, or how the child has ended."""
        reader, writer = mp.Pipe(False)

        def body():
            try:
                answer = action()
            except BaseException as error:
                answer = (type(error).__name__, str(error))
            writer.send(answer)

        child = mp.get_context("fork").Process(target=body)
        child.start()
        writer.close()
        try:
            if reader.poll(60):
                return reader.recv()
            child.kill()
            return "hangs"
        except EOFError:
            child.join()
            return f"exit code {child.exitcode}"
        finally:
            child.join()

    def net(wide=200):
        """Parameters that share a bucket, and a larger one."""
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(100, wide), torch.nn.Linear(wide, 300))

    def backward(model):
        model(torch.ones(4, model[0].in_features)).square().sum().backward()

    return in_child, net, backward


@pytest.fixture(scope="module")
def inherited():
    """By action: how it has ended in a child of each rank, after a step."""

    def on_rank():
        import copy
        import gc
        import io
        import pickle
        from multiprocessing.reduction import ForkingPickler

        import torch

        import rueda.torch as hvd

        hvd.init()
        in_child, net, backward = helpers()
        model = net()
        alone = net()
        backward(alone)
        scaler = torch.amp.GradScaler("cpu")
        opt = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 1e-6, momentum=0.9), model.named_parameters()
        )
        backward(model)
        opt.step()
        parameters = list(model.parameters())
        held = [p.grad for p in parameters]
        own = [p.grad.clone() for p in parameters]
        before = [p.detach().clone() for p in parameters]

        def has(gradients):
            return all(torch.equal(p.grad, g) for p, g in zip(parameters, gradients, strict=True))

        class Actions:
            def nothing(self):
                pass

            def forward(self):
                return bool(torch.isfinite(model(torch.ones(1, 100))).all())

            def set_to_none(self):
                for p in parameters:
                    p.grad = None

            def zero_grad(self):
                opt.zero_grad()

            def zero_grad_in_place(self):
                model.zero_grad(set_to_none=False)

            def read(self):
                return has(own)

            def read_held(self):
                return float(held[0].sum())

            def clip(self):
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)

            def pickle(self):
                pickle.dumps([p.grad for p in parameters])

            def send(self):
                ForkingPickler.dumps(parameters[0].grad)

            def save(self):
                torch.save(parameters[0].grad, io.BytesIO())

            def numpy(self):
                return parameters[0].grad.numpy().sum()

            def print(self):
                return repr(parameters[0].grad)

            def step_of_torch(self):
                torch.optim.SGD(parameters, 0.1).step()

            def fused_step_of_torch(self):
                torch.optim.Adam(parameters, 0.1, fused=True).step()

            def accumulate(self):
                backward(model)

            def accumulate_with_graph(self):
                model(torch.ones(4, 100)).square().sum().backward(create_graph=True)

            def backward(self):
                opt.zero_grad()
                with torch.no_grad():
                    for p, a in zip(parameters, alone.parameters(), strict=True):
                        p.copy_(a)
                for _ in range(2):  # more often than the parent's reducer takes
                    backward(model)
                return has([2 * a.grad for a in alone.parameters()])

            def train_with_torch(self):
                plain = torch.optim.SGD(parameters, 1e-6)
                plain.zero_grad()
                backward(model)
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                plain.step()
                return not torch.equal(parameters[0], before[0])

            def step(self):
                opt.step()

            def synchronize(self):
                opt.synchronize()

            def backward_and_step(self):
                opt.zero_grad()
                backward(model)
                opt.step()

            def unscale(self):
                opt.zero_grad()
                scaler.scale(model(torch.ones(4, 100)).square().sum()).backward()
                scaler.unscale_(opt)

            def load_state_dict(self):
                opt.load_state_dict(opt.state_dict())

            def copy_model(self):
                copy.deepcopy(model)

            def save_model(self):
                torch.save(model.state_dict(), io.BytesIO())

            def train_new_model(self):
                new = net()
                backward(new)
                torch.optim.SGD(new.parameters(), 1e-6).step()

            def drop_everything(self):
                nonlocal opt, model
                opt.remove_hooks()
                opt = model = None
                for p in parameters:
                    p.grad = None
                parameters.clear()
                held.clear()
                gc.collect()

            def collective(self):
                hvd.allreduce(torch.ones(3))

            def read_in_grandchild(self):
                return in_child(self.read)

            def backward_in_grandchild(self):
                return in_child(self.backward)

        actions = Actions()
        ends = {name: in_child(getattr(actions, name)) for name in names}
        assert has(own), "a child has written to its parent's gradients"
        for _ in range(2):
            opt.zero_grad()
            backward(model)
            opt.step()
        total = torch.cat([p.detach().flatten() for p in parameters])
        assert torch.equal(hvd.broadcast(total, 0), total)
        hvd.shutdown()
        return ends

    names = list(ENDS)
    return rueda.run(on_rank, np=2)


@pytest.mark.parametrize("action", ENDS)
def test_a_child_works_or_raises(inherited, action):
    for ends in inherited:
        if isinstance(ENDS[action], tuple):
            kind, text = ends[action]
            assert kind == ENDS[action][0]
            assert ENDS[action][1] in text
        else:
            assert ends[action] == ENDS[action]


def test_a_child_forked_between_backward_and_step_reads_this_ranks_gradients():
    def on_rank():
        import rueda.torch as hvd

        hvd.init()
        in_child, net, backward = helpers()
        model = net()
        opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-6))
        backward(model)
        own = [p.grad.clone() for p in model.parameters()]

        def reads():
            return all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), own, strict=True))

        def computes():
            opt.zero_grad()
            backward(model)
            return reads()

        ends = in_child(reads), in_child(computes)
        opt.step()
        hvd.shutdown()
        return ends

    assert rueda.run(on_rank, np=2) == [(True, True)] * 2


def test_gradients_of_an_optimizer_that_is_gone_raise_too_unless_its_hooks_were_removed():
    def on_rank():
        import gc

        import rueda.torch as hvd

        hvd.init()
        in_child, net, backward = helpers()
        ends = []
        for removes in False, True:
            model = net()
            opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-6))
            backward(model)
            opt.step()
            if removes:
                opt.remove_hooks()
            del opt
            gc.collect()
            own = [p.grad.clone() for p in model.parameters()]

            def reads():
                return all(
                    torch.equal(p.grad, g) for p, g in zip(model.parameters(), own, strict=True)
                )

            ends.append(in_child(reads))
        hvd.shutdown()
        return ends

    for (kind, text), reads in rueda.run(on_rank, np=2):
        assert kind == GRADIENT[0]
        assert GRADIENT[1] in text
        assert reads is True


def test_workers_of_a_data_loader_compute_gradients_of_the_inherited_model():
    def on_rank():
        import torch

        import rueda.torch as hvd

        hvd.init()
        _, net, backward = helpers()
        model = net()
        opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-6))

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, index):
                opt.zero_grad()
                backward(model)
                return model[0].weight.grad.norm()

        norms = []
        for _ in range(2):  # the second time of a model that has inherited gradients
            loader = torch.utils.data.DataLoader(
                Data(), num_workers=2, multiprocessing_context="fork"
            )
            first = None
            for norm in loader:
                opt.zero_grad()
                backward(model)
                first = first or model[0].weight.grad.norm()
                opt.step()
                norms.append(torch.equal(norm[0], first))
        total = torch.cat([p.detach().flatten() for p in model.parameters()])
        assert torch.equal(hvd.broadcast(total, 0), total)
        hvd.shutdown()
        return norms

    assert rueda.run(on_rank, np=2) == [[True] * 16] * 2


def test_a_fork_copies_no_gradients():
    def on_rank():
        import resource
        import subprocess
        import sys

        import rueda.torch as hvd

        hvd.init()
        in_child, net, backward = helpers()
        model = net(40_000)
        opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-6))
        backward(model)
        opt.step()
        pages = sum(p.grad.nbytes for p in model.parameters()) // resource.getpagesize()

        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

        before = faults()
        of_child = in_child(faults)
        subprocess.run([sys.executable, "-c", ""], check=True)
        of_parent = faults() - before
        backward(model)
        opt.step()
        hvd.shutdown()
        return pages, of_child, of_parent

    for pages, of_child, of_parent in rueda.run(on_rank, np=2):
        assert pages > 15_000
        assert of_child < pages / 5
        assert of_parent < pages / 5


def test_a_child_crashes_at_shared_numpy_arrays_and_leaves_them_as_they_are():
    def on_rank():
        import gc

        import rueda

        rueda.init()
        in_child, *_ = helpers()
        shared = [rueda.shared_empty(1000)]
        shared[0][:] = 3

        def drops():
            shared.clear()
            gc.collect()

        ends = in_child(lambda: float(shared[0].sum())), in_child(drops), float(shared[0].sum())
        rueda.shutdown()
        return ends

    assert rueda.run(on_rank, np=2) == [("exit code -11", None, 3000.0)] * 2


def test_a_child_with_a_job_of_its_own_trains_the_inherited_model():
    def on_rank():
        import os

        import torch

        import rueda.torch as hvd

        hvd.init()
        in_child, net, backward = helpers()
        model = net()
        opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-6))
        backward(model)
        opt.step()

        def trains():
            for name in list(os.environ):
                if name.startswith(("RUEDA_", "HOROVOD_")):
                    del os.environ[name]
            hvd.init()
            opt.zero_grad()
            again = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-6))
            before = model[0].weight.detach().clone()
            backward(model)
            again.step()
            hvd.shutdown()
            return hvd.is_initialized(), torch.equal(before, model[0].weight)

        ends = in_child(trains)
        hvd.shutdown()
        return ends

    assert rueda.run(on_rank, np=2) == [(False, False)] * 2


def test_children_of_a_process_group_use_plain_torch_and_no_collectives():
    def on_rank():
        import torch
        import torch.distributed as dist

        import rueda.distributed  # noqa: F401

        in_child, net, backward = helpers()
        dist.init_process_group("rueda")
        model = net()
        parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        parallel(torch.ones(4, 100)).square().sum().backward()
        own = [p.grad.clone() for p in model.parameters()]

        def reads():
            return all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), own, strict=True))

        def trains():
            alone = net()
            backward(alone)
            torch.optim.SGD(alone.parameters(), 1e-6).step()

        ends = [
            in_child(reads),
            in_child(trains),
            in_child(lambda: backward(model)),
            in_child(lambda: parallel(torch.ones(4, 100)).sum().backward()),
            in_child(lambda: dist.all_reduce(torch.ones(3))),
            in_child(dist.barrier),
            in_child(dist.destroy_process_group),
        ]
        dist.all_reduce(torch.ones(3))
        dist.destroy_process_group()
        return ends

    for reads, trains, inner, parallel, reduces, waits, destroys in rueda.run(on_rank, np=2):
        assert (reads, trains, inner, destroys) == (True, None, None, None)
        for kind, text in (parallel, reduces, waits):
            assert kind == "RuedaError"
            assert "this process was forked after the process group" in text


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_collectives_of_other_frameworks_raise_in_a_child(framework):
    pytest.importorskip(framework)

    def on_rank():
        in_child, *_ = helpers()
        if framework == "tensorflow":
            import tensorflow

            import rueda.tensorflow as hvd

            ones = tensorflow.ones(3)
        else:
            import jax.numpy

            import rueda.jax as hvd

            ones = jax.numpy.ones(3)
        hvd.init()
        end = in_child(lambda: hvd.allreduce(ones))
        hvd.allreduce(ones)
        hvd.shutdown()
        return end

    for kind, text in rueda.run(on_rank, np=2):
        assert kind in ("RuedaError", "NotInitializedError")
        assert FORKED[1] in text
