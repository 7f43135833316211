"""rueda: operations on tensors of all frameworks, errors, handles, process sets."""

from __future__ import annotations

import array
import enum
import gc
import importlib.util
import pickle
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import rueda
from rueda import launcher
from rueda.core import _horovod, _library, _operations

DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
DTYPES += ["complex64", "complex128"]


def frameworks():
    made = [pytest.param(np.asarray, np.asarray, id="numpy")]
    try:
        import torch

        made.append(
            pytest.param(lambda a: torch.from_numpy(a.copy()), lambda t: t.numpy(), id="torch")
        )
    except ImportError:
        pass
    try:
        import jax

        jax.config.update("jax_enable_x64", True)
        made.append(pytest.param(jax.numpy.asarray, np.asarray, id="jax"))
    except ImportError:
        pass
    try:
        import tensorflow

        made.append(pytest.param(tensorflow.constant, lambda t: t.numpy(), id="tensorflow"))
    except ImportError:
        pass
    return made


each_framework = pytest.mark.parametrize("make, back", frameworks())


@each_framework
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_every_dtype(on_threads, make, back, dtype):
    def body():
        values = (np.arange(6).reshape(2, 3) * (rueda.rank() + 1)).astype(dtype)
        tensor = make(values)
        result = rueda.allreduce(tensor, "x", rueda.Sum)
        assert type(result) is type(tensor)
        assert np.array_equal(back(tensor), values)  # the input is as it was
        return back(result)

    whole = np.arange(6).reshape(2, 3).astype(dtype)
    expected = whole + (np.arange(6).reshape(2, 3) * 2).astype(dtype)
    for result in on_threads(2, body):
        assert result.dtype == dtype
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["", "u"])
def test_averages_of_integers_are_exact_up_to_32_bits(on_threads, capfd, sign, bits):
    info = np.iinfo(f"{sign}int{bits}")

    def body():
        x = np.array([info.max, info.min, info.max - 1, 7], info.dtype)
        results = [
            rueda.allreduce(x),
            rueda.grouped_allreduce([x, x])[1],
            rueda.reduce(x, 0),
            rueda.allgather(rueda.reducescatter(x)),
        ]
        assert (results[2] is None) == (rueda.rank() != 0)
        results = [result for result in results if result is not None]
        assert all(result.dtype == x.dtype for result in results)
        return [result.tolist() for result in results]

    exact = [int(info.max), int(info.min), int(info.max) - 1, 7]
    if bits == 64:  # two's complement
        wrapped = (np.array(exact, object) * 3 - int(info.min)) % 2**64 + int(info.min)
        exact = [abs(total) // 3 * (1 if total > 0 else -1) for total in wrapped]
    for results in on_threads(3, body):
        assert results == [exact] * len(results)
    assert capfd.readouterr().err.count(" is exact now.") == (bits < 64)


@each_framework
def test_every_operation(on_threads, make, back):
    def body():
        rank, size = rueda.rank(), rueda.size()
        results = {}
        one = make(np.arange(4.0) + rank)
        results["average"] = rueda.allreduce(one)
        results["scaled"] = rueda.allreduce(
            one, op=rueda.Sum, prescale_factor=2.0, postscale_factor=0.5
        )
        results["max"] = rueda.allreduce(one, "m", rueda.Max)
        results["broadcast"] = rueda.broadcast(one, 1)
        results["allgather"] = rueda.allgather(make(np.full((rank + 1, 2), rank)))
        results["reducescatter"] = rueda.reducescatter(make(np.arange(5.0)), op=rueda.Sum)
        results["alltoall"] = rueda.alltoall(make(np.arange(2 * size) + 10 * rank))
        received = rueda.alltoall(make(np.arange(3) + 10 * rank), [1, 2])
        results["alltoallv"] = received.tensor
        assert received.splits == [rank + 1] * 2
        results["scatter"] = rueda.scatter(
            make(np.arange(4) * (rank + 1)), 1, [3, 1] if rank else None
        )
        reduced = rueda.reduce(one, 0, op=rueda.Sum)
        gathered = rueda.gather(one, 1)
        assert (reduced is None) == (rank != 0)
        assert (gathered is None) == (rank != 1)
        results["reduce"] = one if reduced is None else reduced
        group = rueda.grouped_allreduce([one, make(np.arange(2))], "group", rueda.Sum)
        results["group 0"], results["group 1"] = group
        results["gathered group"] = rueda.grouped_allgather([one, one])[1]
        results["scattered group"] = rueda.grouped_reducescatter([one], op=rueda.Sum)[0]
        rueda.barrier()
        assert all(type(result) is type(one) for result in results.values())
        return {name: back(result).tolist() for name, result in results.items()}

    first, second = on_threads(2, body)
    shared = {
        "average": [0.5, 1.5, 2.5, 3.5],
        "scaled": [1, 3, 5, 7],
        "max": [1, 2, 3, 4],
        "broadcast": [1, 2, 3, 4],
        "allgather": [[0, 0], [1, 1], [1, 1]],
        "group 0": [1, 3, 5, 7],
        "group 1": [0, 2],
        "gathered group": [0, 1, 2, 3, 1, 2, 3, 4],
    }
    assert first == shared | {
        "reducescatter": [0, 2, 4],
        "alltoall": [0, 1, 10, 11],
        "alltoallv": [0, 10],
        "scatter": [0, 2, 4],
        "reduce": [1, 3, 5, 7],
        "scattered group": [1, 3],
    }
    assert second == shared | {
        "reducescatter": [6, 8],
        "alltoall": [2, 3, 12, 13],
        "alltoallv": [1, 2, 11, 12],
        "scatter": [6],
        "reduce": [1, 2, 3, 4],
        "scattered group": [5, 7],
    }


def test_arrays_of_jax_in_any_layout_and_of_any_size(on_threads):
    jax = pytest.importorskip("jax")
    layout = pytest.importorskip("jax.experimental.layout")

    def body():
        rank, results = rueda.rank(), []
        rows = jax.numpy.arange(12.0, dtype="float32").reshape(3, 4)
        columns = jax.device_put(rows, layout.Format(layout.Layout((1, 0)), rows.sharding))
        if np.asarray(columns).flags.c_contiguous is False:
            with pytest.raises(ValueError, match="contiguous"):
                rueda.allreduce(columns, "columns")
        for dtype, count in (("bfloat16", 3), ("float32", 1), ("float32", 100_000), ("int64", 4)):
            array = jax.numpy.full(count, rank + 1, dtype)
            later = jax.jit(lambda x: x * 2)(array)  # perhaps not computed yet
            result = rueda.allreduce(later, op=rueda.Sum)
            results.append(isinstance(result, jax.Array) and result.dtype == array.dtype)
            results.append(bool((np.asarray(result) == 6).all()))
        array.delete()
        with pytest.raises(ValueError, match="deleted"):
            rueda.allreduce(array, "deleted")
        with pytest.raises(ValueError, match="immutable"):
            rueda.allreduce_(rows, "in place")
        with pytest.raises(TypeError, match="use the operations of rueda.jax"):
            jax.jit(rueda.allreduce)(rows)
        with pytest.raises(TypeError, match="key_data"):
            rueda.allreduce(jax.random.key(0))
        with pytest.raises(ValueError, match="numbers of rows"):
            rueda.alltoall(rows, [1.5, 1.5])
        return all(results)

    assert on_threads(2, body) == [True, True]


def test_calls_under_one_name_may_differ(on_threads):
    def body():
        odd = rueda.add_process_set([1])
        array = np.array([3.0, 1.001], np.float32)
        calls = [
            ({}, 3),
            ({"op": rueda.Sum}, 6),
            ({"prescale_factor": 2.0}, 6),
            ({"prescale_factor": np.array(4.0)}, 12),
            ({"postscale_factor": 2}, 6),
            ({"op": rueda.Max}, 3),
            ({"op": rueda.Sum, "priority": 1}, 6),
        ]
        for _ in range(3):
            for arguments, first in calls:
                assert rueda.allreduce(array, "same", **arguments)[0] == first
            exact, rounded = (rueda.allreduce(array, "same", compression=c) for c in (None, "bf16"))
            assert exact[1] == array[1] and rounded[1] == 1
            assert rueda.broadcast(array * (rueda.rank() + 1), 1, "same")[0] == 6
            if rueda.rank() == 1:
                assert rueda.allreduce(array, "same", rueda.Sum, process_set=odd)[0] == 3
            for other in (array.astype(np.float64), np.ones((2, 3)), np.ones((3, 2)), np.ones(0)):
                assert rueda.allreduce(other, "same").shape == other.shape
        rueda.barrier()
        rueda.remove_process_set(odd)
        return True

    assert on_threads(2, body) == [True, True]


def test_a_factor_may_change_between_calls():
    torch = pytest.importorskip("torch")
    rueda.init()
    factor = torch.tensor(2.0)
    assert rueda.allreduce(np.ones(1), "scaled", prescale_factor=factor)[0] == 2
    factor.fill_(3.0)
    assert rueda.allreduce(np.ones(1), "scaled", prescale_factor=factor)[0] == 3
    rueda.shutdown()


def test_numbers_that_make_no_sense_are_refused():
    rueda.init()
    array = np.ones(2)
    for call, error, text in [
        (lambda: rueda.broadcast(array, 2**32), ValueError, "the rank is 4294967296: .*so large"),
        (lambda: rueda.broadcast(array, "0"), TypeError, "the rank is '0': a whole number"),
        (lambda: rueda.allreduce(array, op=2**32), ValueError, "op is 4294967296"),
        (lambda: rueda.allreduce(array, op=17), ValueError, "op is 17: a ReduceOp is wanted"),
        (lambda: rueda.allreduce(array, process_set=2**32), ValueError, "process_set is"),
        (lambda: rueda.allreduce(array, priority=2**40), ValueError, "priority is"),
        (
            lambda: rueda.allreduce(array, prescale_factor=[1]),
            TypeError,
            r"prescale_factor is \[1\]",
        ),
        (
            lambda: rueda.allreduce(array, postscale_factor="2"),
            TypeError,
            "postscale_factor is '2'",
        ),
        (lambda: rueda.allreduce(array, postscale_factor=10**400), ValueError, "too large"),
    ]:
        with pytest.raises(error, match=text):
            call()
    assert rueda.allreduce(array, prescale_factor=np.float32(2))[0] == 2
    rueda.shutdown()


@pytest.mark.parametrize("module", ["gloo", "nccl"])
def test_what_is_built_is_what_is_there(module):
    there = any((_library.folder() / "lib").resolve().rglob(f"librueda_{module}.so"))
    assert bool(getattr(_horovod, f"{module}_built")()) == there


def test_more_names_than_are_remembered():
    rueda.init()
    for i in range(_operations._KNOWN_MAX + 10):
        assert rueda.allreduce(np.full(1, i), f"name {i}")[0] == i
    assert 0 < len(_operations._known) <= _operations._KNOWN_MAX
    rueda.shutdown()


@pytest.mark.parametrize("framework", ["jax.numpy", "torch", "tensorflow"])
def test_results_may_outlive_python(framework):
    if importlib.util.find_spec(framework.partition(".")[0]) is None:
        pytest.skip(f"{framework} is not installed")
    program = f"""
import builtins, rueda
import {framework} as framework
rueda.init()
large, gathered = rueda.allreduce(framework.ones(100_000)), rueda.allgather(framework.ones(100_000))
small = rueda.allreduce(framework.ones(3))
builtins.kept = [large, gathered, small]
builtins.kept.append(builtins.kept)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "end, status, told",
    [
        ("raise ValueError('of rank 1')", 1, "ValueError: of rank 1"),
        ("sys.exit(7)", 7, "SystemExit: 7"),
        ("sys.exit('of rank 1')", 1, "SystemExit: of rank 1"),
        ("try: sys.exit(7)\n    except ValueError: pass", 7, "SystemExit: 7"),
        ("with open(os.devnull): sys.exit(7)", 7, "SystemExit: 7"),
        (
            "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
            "    try: os.kill(os.getpid(), signal.SIGTERM); signal.pause()\n"
            "    except KeyError: pass",
            7,
            "SystemExit: 7",
        ),
    ],
)
def test_the_others_and_ruedarun_are_told_who_has_failed(end, status, told, tmp_path):
    done = under_ruedarun(
        tmp_path,
        f"""
if rueda.rank() == 1:
    {end}
try:
    rueda.allreduce(np.ones(4), "waits")
except rueda.AbortedError as error:
    assert not isinstance(error, rueda.LostRankError)  # it says itself why it goes
    assert (error.rank, error.pid) == (1, 0), vars(error)
    print(error, file=sys.stderr, flush=True)
    os._exit(3)  # sooner than the one that failed
""",
    )
    assert done.returncode == status, done.stderr
    assert f"rank 1 aborted the job: {told}" in done.stderr
    mark = rf"\* +1 .* exited with status {status}  <- first failure"
    assert re.search(mark, done.stderr), done.stderr


@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(0)",
        "sys.exit()",
        "try:\n    sys.exit(5)\nexcept SystemExit as error:\n    assert error.code == 5",
        "try:\n    sys.exit('kept')\nexcept SystemExit as error:\n    kept = error",
        "thread = threading.Thread(target=sys.exit, args=(5,))\nthread.start(), thread.join()",
    ],
)
def test_an_exit_that_is_no_failure_leaves_in_order(end, tmp_path):
    done = under_ruedarun(tmp_path, f"import threading\n{end}\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lost_rank_is_told_apart_from_an_abort(tmp_path):
    done = under_ruedarun(
        tmp_path,
        """
import pickle, signal
if rueda.rank() == 1:
    print("gone:", os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    rueda.allreduce(1.0, "waits")
except rueda.LostRankError as error:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is rueda.LostRankError and copy.rank == 1, vars(copy)
    print("told:", copy.pid, flush=True)
os._exit(3)
""",
    )
    found = dict(re.findall(r"(gone|told): (\d+)", done.stdout))
    assert "told" in found and found["told"] == found["gone"], done.stdout + done.stderr


def under_ruedarun(folder, text):
    """How a program ends on two ranks, after init."""
    program = folder / "program.py"
    program.write_text(f"import os, sys, rueda\nimport numpy as np\nrueda.init()\n{text}")
    command = [launcher.program(), "-np", "2", "--prefix", "none", sys.executable, program]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_a_framework_for_each_rank(on_threads):
    torch = pytest.importorskip("torch")
    jnp = pytest.importorskip("jax.numpy")
    makes = [np.asarray, torch.from_numpy, jnp.asarray, lambda a: array.array("f", a.tolist())]

    def body():
        tensor = makes[rueda.rank()](np.full(3, rueda.rank() + 1, np.float32))
        return np.asarray(
            memoryview(np.asarray(rueda.allreduce(tensor, "mixed", rueda.Sum)))
        ).tolist()

    assert on_threads(4, body) == [[10.0, 10.0, 10.0]] * 4


@pytest.mark.parametrize(
    "buffer, expected",
    [
        (array.array("d", [1, 2]), [2.0, 4.0]),
        (bytearray(b"\1\2"), [2, 4]),
        (b"\1\2", [2, 4]),
        (memoryview(np.array([[1, 2], [3, 4]], np.int16)), [[2, 4], [6, 8]]),
        (array.array("f"), []),
        (np.float32(3), 6),
    ],
    ids=["array", "bytearray", "bytes", "two dimensions", "empty", "scalar"],
)
def test_buffers(on_threads, buffer, expected):
    results = on_threads(2, lambda: rueda.allreduce(buffer, "b", rueda.Sum).tolist())
    assert results == [expected] * 2


def test_numbers_are_tensors_of_no_dimension(on_threads):
    class Color(enum.IntEnum):
        RED = 1

    def body():
        me = rueda.rank()
        reduced = [
            rueda.allreduce(me + 0.5),
            rueda.allreduce(me + 1, "int", rueda.Sum),
            rueda.allreduce(me == 1, "bool", rueda.Max),
            rueda.allreduce(complex(me, 1), "complex", rueda.Sum),
            rueda.allreduce(2**62 + me, "large", rueda.Max),
            rueda.allreduce(Color.RED, "enum", rueda.Sum),
            rueda.broadcast(float(me), 1),
            rueda.allreduce_async(me + 0.5, op=rueda.Sum).wait(),
            rueda.grouped_allreduce([me, float(me)], op=rueda.Sum),
        ]
        rows = [
            rueda.allgather(me),
            rueda.allgather(me == 1),
            rueda.allgather(complex(0, me)),
            rueda.gather(me + 0.5, 0),
            rueda.allgather(np.float32(me)).tolist(),
        ]
        with pytest.raises(ValueError, match="a float is a number: it can't be written in place"):
            rueda.allreduce_(1.0)
        with pytest.raises(ValueError, match="is too large: an int is a tensor of int64"):
            rueda.allreduce(2**63)
        with pytest.raises(rueda.MismatchError, match="float64.*int64|int64.*float64"):
            rueda.allreduce(1 if me == 0 else 1.0, "types")
        return reduced, [type(each) for each in reduced], rows

    numbers = [1.0, 3, True, 1 + 2j, 2**62 + 1, 2, 1.0, 2.0, [1, 1.0]]
    types = [float, int, bool, complex, int, int, float, float, list]
    gathered = [[0, 1], [False, True], [0j, 1j]]
    assert on_threads(2, body) == [
        (numbers, types, [*gathered, [0.5, 1.5], [0.0, 1.0]]),
        (numbers, types, [*gathered, None, [0.0, 1.0]]),
    ]


def test_in_place(on_threads):
    def body():
        x, y, z = np.arange(3.0), np.arange(3.0) * rueda.rank(), np.zeros(3)
        assert rueda.allreduce_(x, "x", rueda.Sum) is x
        assert rueda.broadcast_(y, 1, "y") is y
        if rueda.rank() == 0:
            rueda.send(x, 1, "p")
        else:
            assert rueda.recv_(z, 0, "p") is z
        w = np.ones(2)
        assert rueda.reduce_(w, 0, op=rueda.Sum) is w
        return x.tolist(), y.tolist(), z.tolist(), w.tolist()

    first, second = on_threads(2, body)
    assert first == ([0, 2, 4], [0, 1, 2], [0, 0, 0], [2, 2])
    assert second == ([0, 2, 4], [0, 1, 2], [0, 2, 4], [1, 1])


def test_layouts_that_are_not_contiguous(on_threads):
    def body():
        x = np.arange(6.0).reshape(2, 3).T
        assert rueda.allreduce(x, "x", rueda.Sum).tolist() == (2 * x).tolist()
        big = np.arange(3, dtype=">i4")
        assert rueda.allreduce(big, "e", rueda.Sum).tolist() == [0, 2, 4]
        frozen = np.arange(3.0)
        frozen.flags.writeable = False
        assert rueda.allreduce(frozen, "f", rueda.Sum).tolist() == [0, 2, 4]
        for bad in (x, frozen, big, b"abcd"):
            with pytest.raises(ValueError, match="in place"):
                rueda.allreduce_(bad)
        assert rueda.allreduce(np.array(3, np.float32), "s", rueda.Sum).tolist() == 6

    on_threads(2, body)


def test_what_is_no_tensor_is_a_type_error(on_threads):
    def body():
        for bad in ("text", None, [1, 2], np.array(["a"]), np.array([object()])):
            with pytest.raises(TypeError):
                rueda.allreduce(bad)

    on_threads(1, body)


def test_names_in_flight_are_refused_where_they_are_given(on_threads):
    ready = threading.Event()

    def body():
        if rueda.rank() == 1:
            ready.wait()
            return rueda.allreduce(np.ones(2), "twice").tolist()
        handle = rueda.allreduce_async(np.ones(2), "twice")
        with pytest.raises(ValueError, match="twice"):
            rueda.allreduce_async(np.ones(2), "twice")
        ready.set()
        return rueda.synchronize(handle).tolist()

    assert on_threads(2, body) == [[1, 1]] * 2


def test_a_mismatch_is_everybodys_and_the_job_goes_on(on_threads):
    def body():
        with pytest.raises(rueda.MismatchError, match="rank 0 sent .*rank 1 sent") as caught:
            rueda.allreduce(np.ones(2 + rueda.rank()), "shape")
        assert caught.value.status == rueda.errors.Status.INVALID_ARGUMENT
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (copy.operation, copy.tensor, copy.status) == ("allreduce", "shape", 3)
        assert not caught.value.recoverable
        handle = rueda.allreduce_async(np.ones(2, ["f4", "f8"][rueda.rank()]), "type")
        for _ in range(2):  # as often as it is asked
            with pytest.raises(rueda.MismatchError):
                handle.wait()
        return rueda.allreduce(np.ones(1), "after", rueda.Sum).tolist()

    assert on_threads(2, body) == [[2]] * 2


def test_an_abort_names_its_reason(on_threads):
    def body():
        if rueda.rank() == 1:
            rueda.abort("the disk is full")
        with pytest.raises(rueda.AbortedError, match="rank 1 .*the disk is full") as caught:
            rueda.allreduce(np.ones(2), "x")
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), str(copy), copy.rank) == (
            rueda.AbortedError,
            str(caught.value),
            caught.value.rank,
        )
        assert isinstance(caught.value, RuntimeError)

    on_threads(2, body)


def test_a_time_limit_leaves_the_operation(on_threads):
    late = threading.Event()

    def body():
        if rueda.rank() == 1:
            late.wait()
            return rueda.allreduce(np.ones(2), "late", rueda.Sum).tolist()
        handle = rueda.allreduce_async(np.ones(2), "late", rueda.Sum)
        with pytest.raises(rueda.TimeIsUpError):
            handle.wait(0.05)
        assert not handle.poll()
        late.set()
        result = handle.wait(60)
        assert handle.poll()
        assert handle.wait() is result
        return result.tolist()

    assert on_threads(2, body) == [[2, 2]] * 2


def test_waits_longer_than_python_looks_for_signals(on_threads):
    """What takes longer than a slice of the wait comes all the same."""

    def body():
        if rueda.rank() == 1:
            time.sleep(0.5)
        return rueda.allreduce(np.ones(2), "slow", rueda.Sum).tolist()

    assert on_threads(2, body) == [[2, 2]] * 2


@pytest.mark.parametrize("hosts", ["0", "2"])
def test_an_operation_that_stalls_ends_for_every_way_to_wait(on_threads, hosts):
    """RUEDA_STALL_TIMEOUT_S: 0.2 s, as long as a wait is cut into."""
    waited, gone = threading.Barrier(2), threading.Event()

    def body():
        x = np.ones(3, np.float32)
        waits = [
            lambda: rueda.allreduce(x, name="a"),
            lambda: rueda.allreduce_(x, name="b"),
            lambda: rueda.allreduce_async(x, name="c").wait(),
            lambda: rueda.allreduce_async(x, name="d").wait(100),
            lambda: rueda.grouped_allreduce([x, x], name="e"),
            lambda: rueda.broadcast_object({"a": 1}, 0, name="f"),
            rueda.barrier,
        ]
        if rueda.rank() == 0:
            for wait in waits:
                with pytest.raises(rueda.StalledError, match="missing: rank 1"):
                    wait()
            handle = rueda.allreduce_async(x, name="polled")
            while not handle.poll():
                time.sleep(0.01)
            for _ in range(2):  # and is told as often as it is asked
                with pytest.raises(rueda.StalledError):
                    handle.wait(0)
            gone.set()
        else:
            gone.wait()
        waited.wait()
        # The job goes on.
        return rueda.allreduce(x, name="together", op=rueda.Sum).tolist()

    knobs = {"stall_timeout_s": 0.2, "stall_warn_s": 0.1, "log_level": "error"}
    assert on_threads(2, body, hosts_fake=hosts, **knobs) == [[2.0] * 3] * 2


@pytest.mark.parametrize("hosts", ["0", "2"])
def test_a_deadlock_ends_on_all_ranks_with_who_waits_for_what(on_threads, hosts):
    """Waits are cut into slices of 0.2 s, and are one wait all the same."""

    def body():
        rank = rueda.rank()
        with pytest.raises(rueda.StalledError, match="RUEDA_DEADLOCK_TIMEOUT_S") as caught:
            rueda.allreduce(np.ones(3), name="ab"[rank])
        assert re.search("rank 0 waits for allreduce 'a', which rank 1 did not", str(caught.value))
        assert re.search("rank 1 waits for allreduce 'b', which rank 0 did not", str(caught.value))
        assert (caught.value.operation, caught.value.tensor) == ("allreduce", "ab"[rank])
        return rueda.allreduce(np.ones(2), "both", rueda.Sum).tolist()

    knobs = {"deadlock_timeout_s": 1, "log_level": "error", "hosts_fake": hosts}
    assert on_threads(2, body, **knobs) == [[2.0] * 2] * 2


def test_what_goes_wrong_with_a_result_is_told_as_often_as_it_is_asked(on_threads):
    def body():
        handle = rueda.allreduce_async(np.ones(2), "x")
        handle.then(lambda result: result[7])
        for _ in range(2):
            with pytest.raises(IndexError):
                handle.wait()
        return rueda.allreduce(np.ones(1), "x", rueda.Sum).tolist()

    assert on_threads(2, body) == [[2]] * 2


def test_what_nobody_waits_for_keeps_its_memory(on_threads):
    def body():
        expected = []
        for i in range(200):
            rueda.allreduce_async(np.full(1000, i + rueda.rank(), np.int64), f"n{i}", rueda.Sum)
            if i % 50 == 0:
                gc.collect()
            expected.append(rueda.allreduce(np.full(10, i, np.int64), f"m{i}", rueda.Sum)[0])
        return expected

    assert on_threads(2, body) == [[2 * i for i in range(200)]] * 2


def test_results_outlive_the_job(on_threads):
    results = on_threads(2, lambda: rueda.allgather(np.arange(1000) + rueda.rank()))
    gc.collect()
    for result in results:
        assert result[1500] == 501
        result[0] = 7  # it is the caller's to change


def test_process_sets(on_threads):
    def body():
        evens = rueda.add_process_set([0, 2])
        assert evens.id == 1 and evens.ranks == [0, 2] and evens.size() == 2
        with pytest.raises(ValueError, match="has the ranks"):
            rueda.add_process_set([0, 2])
        total = None
        if evens.included():
            assert evens.rank() == rueda.rank() // 2
            total = rueda.allreduce(np.ones(1) * rueda.rank(), "e", rueda.Sum, process_set=evens)[0]
        else:
            with pytest.raises(ValueError, match="not in"):
                rueda.allreduce(np.ones(1), "e", process_set=evens)
        assert rueda.remove_process_set(evens)
        with pytest.raises(rueda.RuedaError, match="not known yet"):
            rueda.allreduce(np.ones(1), process_set=evens)
        assert rueda.global_process_set.ranks == [0, 1, 2]
        return total

    assert on_threads(3, body) == [2, None, 2]


def test_numbers_of_numpy_remain_numbers(on_threads):
    def body():
        mean = rueda.allreduce(np.mean(np.full(3, rueda.rank(), np.float32)))
        assert type(mean) is np.float32
        gathered = rueda.allgather_object(float(mean))
        assert type(rueda.allreduce(np.int64(4), op=rueda.Sum)) is np.int64
        for wrong in ({"op": "sum"}, {"process_set": None}, {"process_set": "world"}):
            with pytest.raises(TypeError, match="wanted"):
                rueda.allreduce(np.ones(1), **wrong)
        return gathered

    assert on_threads(2, body) == [[0.5, 0.5]] * 2


def test_objects_that_cannot_be_pickled_are_told_to_everybody(on_threads):
    def body():
        rank = rueda.rank()
        errors = []
        for call in (
            lambda: rueda.broadcast_object(threading.Lock() if rank == 1 else None, 1),
            lambda: rueda.allgather_object(threading.Lock() if rank == 1 else rank),
        ):
            try:
                call()
            except (TypeError, ValueError) as error:
                errors.append(error)
        # What only a notebook or a function knows travels all the same.
        double = rueda.broadcast_object((lambda x: 2 * x) if rank == 0 else None)
        return [(type(error), str(error)) for error in errors], double(rank)

    for rank, (errors, doubled) in enumerate(on_threads(3, body)):
        assert doubled == 2 * rank
        for kind, text in errors:
            assert kind is (TypeError if rank == 1 else ValueError)
            assert "pickle" in text
            assert rank == 1 or "rank 1" in text
        assert len(errors) == 2


def test_objects(on_threads):
    def body():
        rank = rueda.rank()
        mine = {"rank": rank, "data": list(range(rank * 1000))}
        got = rueda.broadcast_object(mine if rank == 1 else None, 1, "o")
        assert got == {"rank": 1, "data": list(range(1000))}
        assert rueda.allgather_object("x" * rank) == ["", "x", "xx"]
        return rueda.broadcast_object(None)

    assert on_threads(3, body) == [None] * 3


def test_join_returns_the_last(on_threads):
    def body():
        for _ in range(rueda.rank() + 1):
            rueda.allreduce(np.ones(1), op=rueda.Sum)
        return rueda.join()

    assert on_threads(2, body) == [1, 1]


def test_memory_of_the_host(on_threads):
    def body():
        x = rueda.shared_empty((4, 5), "float64")
        assert not x.any()
        x[:] = rueda.rank() + 1
        rueda.allreduce_(x, "x", rueda.Sum)
        return x.sum()

    assert on_threads(2, body) == [60, 60]


@pytest.mark.parametrize("compression", ["fp16", "bf16", "int8", "topk:0.5"])
def test_compression(on_threads, compression):
    def body():
        x = np.linspace(-1, 1, 4096, dtype=np.float32)
        return rueda.allreduce(x, "x", compression=compression)

    for result in on_threads(2, body):
        assert np.abs(result - np.linspace(-1, 1, 4096)).max() < 0.51
        assert not np.array_equal(result, np.linspace(-1, 1, 4096, dtype=np.float32))


def test_bad_arguments(on_threads):
    def body():
        x = np.ones(4)
        cases = [
            (lambda: rueda.broadcast(x, 7), "7"),
            (lambda: rueda.alltoall(x, [1]), "splits"),
            (lambda: rueda.allreduce(x, compression="zip"), "zip"),
            (lambda: rueda.allreduce(x, "a\0b"), "NUL"),
            (lambda: rueda.allreduce(x, op=99), "op is 99: a ReduceOp"),
            (lambda: rueda.grouped_allreduce([]), "group"),
            (lambda: rueda.allreduce(x, "n" * 2000), "name"),
        ]
        for call, text in cases:
            with pytest.raises(ValueError, match=text):
                call()
        with pytest.raises(TypeError, match="name"):
            rueda.allreduce(x, 5)

    on_threads(1, body)


def test_before_init():
    for call in (rueda.rank, rueda.size, lambda: rueda.allreduce(np.ones(1)), rueda.barrier):
        with pytest.raises(rueda.NotInitializedError, match="init") as caught:
            call()
        assert isinstance(caught.value, ValueError)  # Horovod's
    assert not rueda.is_initialized()
    rueda.shutdown()


def test_epoch_is_the_old_name_of_membership():
    rueda.init()
    with pytest.warns(DeprecationWarning):
        assert rueda.epoch() == rueda.membership() > 0
    rueda.shutdown()
    error = rueda.AbortedError("enough", membership=7)
    with pytest.warns(DeprecationWarning):
        assert error.epoch == 7


def test_init_and_shutdown_a_hundred_times():
    for i in range(100):
        rueda.init()
        rueda.init()
        assert (rueda.rank(), rueda.size(), rueda.membership() > 0) == (0, 1, True)
        assert rueda.allreduce(np.full(3, i), op=rueda.Sum).tolist() == [i] * 3
        rueda.shutdown()
        assert not rueda.is_initialized()


def test_knobs():
    with pytest.raises(ValueError, match="no_such_knob"):
        rueda.init({"no_such_knob": 1})
    rueda.init({"fusion_threshold": 1 << 20, "deterministic": True})
    with pytest.raises(rueda.RuedaError, match="too late"):
        rueda.init({"fusion_threshold": 1})
    rueda.shutdown()
