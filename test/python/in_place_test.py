"""Operations in place are writes that autograd knows of, as torch's own are: backward() raises when
it needs what was overwritten. Leaves that require gradients can be written to."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

import rueda  # noqa: E402
import rueda.torch as hvd  # noqa: E402
from rueda.core import _library as c  # noqa: E402
from rueda.core import _operations as operations  # noqa: E402

FUNCTIONS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (rueda, hvd)
    for name in dir(module)
    if name.endswith("_") and not name.startswith("_")
}
SAVED = "modified by an inplace operation"


def submit(function, tensor, **options):
    """The result, or the handle, of `function` on ranks 0 and 1, the latter's tensor being all 2.
    Arguments follow from the parameters' names: a new one has to be added here."""
    arguments = {
        "tensor": tensor,
        "tensors": [tensor],
        "root_rank": 1,
        "rank": 1 - rueda.rank(),
    }
    wanted = [
        p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty
    ]
    if "rank" in wanted and rueda.rank() == 1:  # recv_, of which this is the other end
        return rueda.send_async(torch.full_like(tensor, 2), 0)
    return function(**{name: arguments[name] for name in wanted}, **options)


def call(function, tensor):
    result = submit(function, tensor)
    return result.wait() if hasattr(result, "wait") else result


@pytest.fixture(params=FUNCTIONS)
def function(request):
    return FUNCTIONS[request.param]


def is_written(function):
    """On this rank: where it is not, the operation has another end."""
    return not function.__name__.startswith("recv") or rueda.rank() == 0


def test_all_are_here():
    of_rueda = {"allreduce", "broadcast", "grouped_allreduce", "recv", "reduce"}
    of_torch = {"allreduce", "broadcast", "grouped_allreduce"}
    expected = {f"rueda.{name}" for name in of_rueda} | {f"rueda.torch.{name}" for name in of_torch}
    assert set(FUNCTIONS) == {name + end for name in expected for end in ("_", "_async_")}


def test_backward_finds_what_it_has_saved_overwritten(on_threads, function):
    def body():
        leaf = torch.arange(4.0, requires_grad=True)
        saved = leaf * 2
        loss = (saved * saved).sum()
        call(function, saved)
        if is_written(function):
            with pytest.raises(RuntimeError, match=SAVED):
                loss.backward()

    on_threads(2, body)


def test_a_write_counts_for_the_whole_tensor_from_the_submission_on(on_threads, function):
    def body():
        whole = torch.zeros(3, 4)
        row, version = whole[1], whole._version
        handle = submit(function, row)
        if is_written(function):
            assert whole._version > version
        if hasattr(handle, "wait"):
            handle.wait()

    on_threads(2, body)


def test_a_leaf_that_requires_a_gradient_is_written(on_threads, function):
    def body():
        p = torch.nn.Parameter(torch.full((4,), 2.0 * rueda.rank()))
        version = p._version
        call(function, p)
        if is_written(function):
            assert p._version > version
            assert p.is_leaf and p.requires_grad and p.grad_fn is None
        return p.tolist()

    ranks = on_threads(2, body)
    assert ranks[0] in ([1.0] * 4, [2.0] * 4) or function.__name__.startswith("reduce_")
    assert ranks[1] in ([1.0] * 4, [2.0] * 4)


def test_a_refused_call_is_no_write(on_threads, function):
    def body():
        leaf = torch.arange(4.0, requires_grad=True)
        saved = leaf * 2
        loss = (saved * saved).sum()
        if is_written(function):
            with pytest.raises((ValueError, rueda.RuedaError)):
                submit(function, saved, process_set=12345)
        loss.backward()
        assert leaf.grad.tolist() == [0, 8, 16, 24]

    on_threads(2, body)


class Interrupted:
    """The library, with a Ctrl-C at the end of each call that submits."""

    def __getattr__(self, name):
        function = getattr(c.lib, name)

        def call(*arguments):
            function(*arguments)
            raise KeyboardInterrupt

        return call if name in ("rueda_execute", "rueda_submit") else function


def sweep():
    """Waits for what was left behind."""
    while True:
        with operations._sweeping:
            if not operations._left_behind:
                return
        operations._sweep()


def test_an_interrupted_call_is_a_write(on_threads, function, monkeypatch):
    monkeypatch.setattr(operations, "lib", Interrupted())

    def body():
        tensor = torch.zeros(4)
        version = tensor._version
        with pytest.raises(KeyboardInterrupt):
            call(function, tensor)
        sweep()
        return tensor._version > version

    assert on_threads(2, body)[0]


def test_a_tensor_made_in_inference_mode_is_written(on_threads, function):
    def body():
        with torch.inference_mode():
            inside, outside = torch.zeros(4), torch.zeros(4)
            call(function, inside)
        call(function, outside)
        assert inside.is_inference() and outside.is_inference()

    on_threads(2, body)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name.startswith("rueda.torch.")])
def test_backward_finds_a_tensor_with_gaps_overwritten(on_threads, name):
    def body():
        leaf = torch.ones(4, 4, requires_grad=True)
        saved = leaf * 2
        loss = (saved * saved).sum()
        call(FUNCTIONS[name], saved[:, ::2])
        with pytest.raises(RuntimeError, match=SAVED):
            loss.backward()

    on_threads(2, body)


def test_backward_finds_broadcast_parameters_overwritten(on_threads):
    def body():
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
        loss = model(torch.ones(2, 3)).sum()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        with pytest.raises(RuntimeError, match=SAVED):
            loss.backward()

    on_threads(2, body)


def test_results_that_are_new_tensors_are_no_writes(on_threads):
    def body():
        leaf = torch.arange(4.0, requires_grad=True)
        saved = leaf * 2
        loss, version = (saved * saved).sum(), saved._version
        hvd.allreduce(saved)
        hvd.broadcast(saved, 0)
        rueda.allgather(saved)
        rueda.reduce(saved, 0)
        assert saved._version == version
        loss.backward()

    on_threads(2, body)
