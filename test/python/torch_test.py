"""rueda.torch: Horovod's surface, operations, state."""

from __future__ import annotations

import inspect
import threading

import pytest

torch = pytest.importorskip("torch")

import rueda  # noqa: E402
import rueda.torch as hvd  # noqa: E402

# Horovod 0.28.1's, with the arguments that each takes, in their order.
_SET = "process_set"
_SCALES = ["prescale_factor", "postscale_factor"]
SURFACE = {
    "init": ["comm", "process_sets"],
    "shutdown": [],
    "is_initialized": [],
    "rank": [],
    "size": [],
    "local_rank": [],
    "local_size": [],
    "cross_rank": [],
    "cross_size": [],
    "is_homogeneous": [],
    "start_timeline": ["file_path", "mark_cycles"],
    "stop_timeline": [],
    "mpi_threads_supported": [],
    "mpi_enabled": [],
    "mpi_built": [],
    "gloo_enabled": [],
    "gloo_built": [],
    "nccl_built": [],
    "ddl_built": [],
    "ccl_built": [],
    "cuda_built": [],
    "rocm_built": [],
    "add_process_set": ["process_set"],
    "remove_process_set": ["process_set"],
    "allreduce": ["tensor", "average", "name", "compression", "op", *_SCALES, _SET],
    "allreduce_async": ["tensor", "average", "name", "op", *_SCALES, _SET],
    "allreduce_": ["tensor", "average", "name", "op", *_SCALES, _SET],
    "allreduce_async_": ["tensor", "average", "name", "op", *_SCALES, _SET],
    "grouped_allreduce": ["tensors", "average", "name", "compression", "op", *_SCALES, _SET],
    "grouped_allreduce_async": ["tensors", "average", "name", "op", *_SCALES, _SET],
    "grouped_allreduce_": ["tensors", "average", "name", "op", *_SCALES, _SET],
    "grouped_allreduce_async_": ["tensors", "average", "name", "op", *_SCALES, _SET],
    "sparse_allreduce_async": ["tensor", "name", "op", _SET],
    "allgather": ["tensor", "name", _SET],
    "allgather_async": ["tensor", "name", _SET],
    "grouped_allgather": ["tensors", "name", _SET],
    "grouped_allgather_async": ["tensors", "name", _SET],
    "broadcast": ["tensor", "root_rank", "name", _SET],
    "broadcast_async": ["tensor", "root_rank", "name", _SET],
    "broadcast_": ["tensor", "root_rank", "name", _SET],
    "broadcast_async_": ["tensor", "root_rank", "name", _SET],
    "alltoall": ["tensor", "splits", "name", _SET],
    "alltoall_async": ["tensor", "splits", "name", _SET],
    "reducescatter": ["tensor", "name", "compression", "op", _SET, *_SCALES],
    "reducescatter_async": ["tensor", "name", "op", _SET, *_SCALES],
    "grouped_reducescatter": ["tensors", "name", "compression", "op", _SET, *_SCALES],
    "grouped_reducescatter_async": ["tensors", "name", "op", _SET, *_SCALES],
    "join": ["device", _SET],
    "barrier": [_SET],
    "poll": ["handle"],
    "synchronize": ["handle"],
    "broadcast_parameters": ["params", "root_rank", _SET],
    "broadcast_optimizer_state": ["optimizer", "root_rank", "model", _SET],
    "broadcast_object": ["obj", "root_rank", "name", _SET],
    "broadcast_object_fn": ["root_rank", "session", "name", _SET],
    "allgather_object": ["obj", "name", _SET],
    "DistributedOptimizer": [
        "optimizer",
        "named_parameters",
        "compression",
        "backward_passes_per_step",
        "op",
        "gradient_predivide_factor",
        "num_groups",
        "groups",
        "sparse_as_dense",
        _SET,
    ],
}


@pytest.mark.parametrize("name", SURFACE)
def test_the_surface_is_horovods(name):
    own = list(inspect.signature(getattr(hvd, name)).parameters)
    assert own[: len(SURFACE[name])] == SURFACE[name]
    assert len(own) == len(SURFACE[name]) or name == "DistributedOptimizer"


def test_what_is_no_tensor_and_no_handle_is_a_type_error(on_threads):
    def body():
        x = torch.ones(2)
        for call in (
            lambda: hvd.allreduce(None),
            lambda: hvd.allreduce([1.0, 2.0]),
            lambda: hvd.allreduce("abc"),
            lambda: hvd.grouped_allreduce([x, None]),
            lambda: hvd.reducescatter("abc"),
            lambda: hvd.grouped_reducescatter([x, None]),
            lambda: hvd.allgather(None),
            lambda: hvd.broadcast(None, 0),
            lambda: hvd.alltoall(None),
            lambda: hvd.allreduce(x, process_set=None),
            lambda: hvd.allreduce(x, process_set="world"),
            lambda: hvd.allreduce(x, op="sum"),
            lambda: hvd.synchronize(3),
            lambda: hvd.poll("x"),
            lambda: hvd.remove_process_set(99),
            lambda: hvd.broadcast_optimizer_state(None, 0),
        ):
            with pytest.raises(TypeError):
                call()
        return hvd.allreduce(x, op=hvd.Sum).tolist()

    assert on_threads(2, body) == [[2.0, 2.0]] * 2


def test_the_rest_of_the_surface():
    for name in ("Average", "Sum", "Adasum", "Min", "Max", "Product", "global_process_set"):
        assert hasattr(hvd, name)
    assert hvd.ProcessSet([1, 0]).ranks == [0, 1]
    assert hvd.Compression.none and hvd.Compression.fp16
    assert list(inspect.signature(hvd.SyncBatchNorm).parameters)[:5] == [
        "num_features",
        "eps",
        "momentum",
        "affine",
        "track_running_stats",
    ]
    # Queries, before init.
    assert (hvd.mpi_built(), hvd.mpi_enabled(), hvd.rocm_built()) == (False, False, False)
    assert hvd.nccl_built() in (0, 1) and hvd.gloo_built() in (True, False)
    with pytest.raises(ValueError, match="init"):  # as Horovod's
        hvd.rank()


def test_averages(on_threads):
    def body():
        r = hvd.rank()
        x = torch.arange(4.0) + r
        assert torch.equal(hvd.allreduce(x), torch.arange(4.0) + 0.5)
        assert torch.equal(hvd.allreduce(x, op=hvd.Sum), 2 * torch.arange(4.0) + 1)
        with pytest.warns(DeprecationWarning):
            assert torch.equal(hvd.allreduce(x, False), 2 * torch.arange(4.0) + 1)
        with pytest.warns(DeprecationWarning):
            assert torch.equal(hvd.allreduce(x, average=True), torch.arange(4.0) + 0.5)
        with pytest.raises(ValueError, match="only one"):
            hvd.allreduce(x, average=True, op=hvd.Sum)
        with pytest.raises(TypeError, match="name="):
            hvd.allreduce(x, "x")
        # Integers are truncated towards zero.
        assert hvd.allreduce(torch.tensor([-3, 3, 4]) * r).tolist() == [-1, 1, 2]
        assert hvd.allreduce(x, compression=hvd.Compression.fp16, name="h").dtype == torch.float32

    on_threads(2, body)


def test_handles(on_threads):
    entered = threading.Event()

    def body():
        x = torch.ones(3) * (hvd.rank() + 1)
        if hvd.rank() == 1:
            entered.wait()
        handle = hvd.allreduce_async_(x, name="x", op=hvd.Sum)
        if hvd.rank() == 0:
            assert not hvd.poll(handle)
            with pytest.raises(ValueError, match="'x'|\"x\"| x"):
                hvd.allreduce_async_(torch.ones(3), name="x")
            entered.set()
        assert hvd.synchronize(handle) is x
        assert hvd.poll(handle)
        assert x.tolist() == [3, 3, 3]

    on_threads(2, body)


def test_in_place_whatever_the_strides(on_threads):
    def body():
        x = torch.arange(6.0).reshape(2, 3).t()
        before = x.clone()
        assert hvd.allreduce_(x, op=hvd.Sum) is x
        assert torch.equal(x, 2 * before)
        y = torch.zeros(4, 4)
        part = y[1:3, 1:3]
        part += hvd.rank() + 1
        hvd.allreduce_(part, name="part", op=hvd.Sum)
        assert y.sum() == 12 and y[0].sum() == 0
        hvd.grouped_allreduce_([part, x], name="g", op=hvd.Max)
        hvd.broadcast_(part, 1)
        z = torch.tensor([1 + 2j]).conj()
        assert hvd.allreduce(z, op=hvd.Sum).tolist() == [2 - 4j]

    on_threads(2, body)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.bool, torch.int64]
)
def test_dtypes(on_threads, dtype):
    def body():
        x = torch.tensor([0, 1, 1]).to(dtype)
        op = hvd.Max if dtype == torch.bool else hvd.Sum
        result = hvd.allreduce(x, op=op)
        assert result.dtype == dtype
        gathered = hvd.allgather(x)
        assert gathered.dtype == dtype and gathered.shape == (6,)
        return result.to(torch.float32).tolist()

    assert on_threads(2, body) == [[0, 1, 1] if dtype == torch.bool else [0, 2, 2]] * 2


def test_tensors_that_are_none_of_ours(on_threads):
    def body():
        for bad in (
            torch.ones(2).to_sparse(),
            torch.ones(2, device="meta"),
            torch.ones(2, dtype=torch.complex32),
        ):
            with pytest.raises(TypeError):
                hvd.allreduce(bad)

    on_threads(1, body)


# ---- differentiable operations: their numbers are in gradients_test.py ----


def test_what_has_no_gradient_says_so(on_threads):
    def body():
        x = torch.ones(2, requires_grad=True)
        with pytest.raises(NotImplementedError, match="MAX"):
            hvd.allreduce(x, op=hvd.Max).sum().backward()
        with pytest.raises(NotImplementedError, match="reducescatter with op=MIN"):
            hvd.reducescatter(x, op=hvd.Min).sum().backward()

    on_threads(1, body)


def test_allgather_of_a_number_says_so(on_threads):
    def body():
        for differentiates in (False, True):
            with pytest.raises(ValueError, match="dimension|shape|scalar"):
                hvd.allgather(torch.tensor(1.0, requires_grad=differentiates))

    on_threads(1, body)


def test_ranks_may_differ_in_whether_they_differentiate(on_threads):
    def body():
        x = torch.ones(2, requires_grad=hvd.rank() == 0)
        return (
            hvd.allreduce(x, name="x").tolist(),
            hvd.allgather(x, name="y").tolist(),
            hvd.reducescatter(x, name="z").tolist(),
        )

    assert on_threads(2, body) == [([1, 1], [1] * 4, [1])] * 2


def test_alltoall_with_a_tensor_of_splits(on_threads):
    def body():
        x, splits = hvd.alltoall(torch.arange(3) + 10 * hvd.rank(), torch.tensor([2, 1]))
        return x.tolist(), splits.tolist()

    assert on_threads(2, body) == [([0, 1, 10, 11], [2, 2]), ([2, 12], [1, 1])]


BAD_SPLITS = {
    "negative": ([-1, 5], "splits has -1"),
    "float": ([1.5, 2.5], "splits has 1.5"),
    "tensor of floats": (torch.tensor([0.5, 3.5]), "splits has 0.5"),
    "not a number": ([float("nan"), 4], "splits has nan"),
    "infinite": ([float("inf"), 4], "splits has inf"),
    "too large": ([2**64 + 4, 0], "splits has 18446744073709551620"),
    "text": (["2", "2"], "splits has 2"),
    "of two dimensions": ([[2, 2], [2, 2]], "splits has .2, 2."),
    "sum": ([3, 2], "add up to 5 rows, the first dimension is 4"),
    "count": ([4], "1 splits for the 2 ranks"),
    "none": ([], "splits is empty"),
    "one number": (4, "not iterable"),
}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("kind", list(BAD_SPLITS))
def test_bad_splits_are_an_error_and_the_job_goes_on(on_threads, kind, gradient):
    splits, text = BAD_SPLITS[kind]

    def body():
        x = torch.ones(4, requires_grad=gradient)
        for name in (None, "x"):
            with pytest.raises(ValueError, match=text):
                hvd.alltoall(x, splits, name)
        with pytest.raises(ValueError, match=text):
            hvd.alltoall_async(x.detach(), splits).wait()
        return hvd.alltoall(x + hvd.rank(), [1, 3])[0].tolist()

    assert on_threads(2, body) == [[1, 2], [1] * 3 + [2] * 3]


@pytest.mark.parametrize("kind", list(BAD_SPLITS))
def test_bad_splits_of_one_rank_are_told_to_all(on_threads, kind):
    splits, text = BAD_SPLITS[kind]

    def body():
        for gradient in (False, True):
            x = torch.ones(4, requires_grad=gradient)
            with pytest.raises(ValueError, match=f"rank 0: .*{text}"):
                hvd.alltoall(x, splits if hvd.rank() == 0 else [1, 3])
        return hvd.alltoall(x + hvd.rank(), [1, 3])[0].tolist()

    assert on_threads(2, body) == [[1, 2], [1] * 3 + [2] * 3]


def _alltoall_with_a_mistake():
    hvd.init()
    hvd.alltoall(torch.ones(4), [-1, 5] if hvd.rank() == 0 else [2, 2])


def test_bad_splits_on_one_rank_end_the_job():
    with pytest.raises(rueda.RemoteError, match="rank 0.*splits has -1"):
        rueda.run(_alltoall_with_a_mistake, np=2)


def test_a_group_of_mixed_types_is_compressed_if_all_of_them_can_be(on_threads):
    def body():
        x = torch.linspace(0, 1, 4096)
        rows = slice(hvd.rank() * 2048, (hvd.rank() + 1) * 2048)
        for combine, part in (
            (hvd.grouped_allreduce, slice(None)),
            (hvd.grouped_reducescatter, rows),
        ):
            for other, exact in ((x.bfloat16(), False), (x.double(), True)):
                name = f"{combine.__name__}.{other.dtype}"
                [result, _] = combine([x, other], name=name, compression="int8", op=hvd.Sum)
                assert torch.equal(result, 2 * x[part]) == exact
                torch.testing.assert_close(result, 2 * x[part], rtol=0, atol=0.05)

    on_threads(2, body)


def test_reducescatter_has_no_adasum_and_refuses_a_name_in_flight(on_threads):
    def body():
        for dtype in (torch.int32, torch.int64, torch.float32):
            x = torch.ones(4, dtype=dtype)
            with pytest.raises(ValueError, match=r"reducescatter 'a': adasum"):
                hvd.reducescatter(x, name="a", op=hvd.Adasum)
        first = None
        if hvd.rank() == 0:  # while it waits for rank 1
            first = hvd.reducescatter_async(torch.ones(4), name="b", op=hvd.Sum)
            with pytest.raises(ValueError, match=r"'b'.*in flight.*another name"):
                hvd.reducescatter_async(torch.ones(4), name="b", op=hvd.Sum)
        hvd.barrier(process_set=rueda.global_process_set)
        first = first or hvd.reducescatter_async(torch.ones(4), name="b", op=hvd.Sum)
        return first.wait().tolist()

    assert on_threads(2, body) == [[2, 2]] * 2


def test_barriers_of_process_sets_beside_each_other(on_threads):
    """Those of one set wait neither for another set's nor for what is under way in the world."""

    def body():
        sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
        mine = sets[hvd.rank() // 2]
        early = hvd.allreduce_async(torch.ones(1), op=hvd.Sum) if hvd.rank() == 0 else None
        for _ in range(1 + 3 * (hvd.rank() // 2)):  # one pair has more than the other
            hvd.barrier(process_set=mine)
        if early is not None:
            assert not early.poll()
        hvd.barrier()
        other = sets[1 - hvd.rank() // 2]
        with pytest.raises(ValueError, match="not in"):
            hvd.barrier(process_set=other)
        return (early or hvd.allreduce_async(torch.ones(1), op=hvd.Sum)).wait().item()

    assert on_threads(4, body) == [4] * 4


def test_sparse_tensors(on_threads):
    def body():
        r = hvd.rank()
        x = torch.sparse_coo_tensor([[r, 2, 2]], [1.0, 2.0, 1.0], (4,))
        total = hvd.synchronize(hvd.sparse_allreduce_async(x, name="s", op=hvd.Sum))
        mean = hvd.sparse_allreduce_async(x, name="s", op=hvd.Average)()
        assert total.is_sparse
        return total.to_dense().tolist(), mean.to_dense().tolist()

    assert on_threads(2, body) == [([1, 1, 6, 0], [0.5, 0.5, 3, 0])] * 2


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_sparse_averages_of_integers_are_those_of_dense_tensors(on_threads, dtype):
    dtype = getattr(torch, dtype)
    most = min(torch.iinfo(dtype).max, 2**61)  # a sum of 64 bits may wrap around

    def body():
        values = torch.tensor([most, most - 1, 2 + hvd.rank()], dtype=dtype)
        x = torch.sparse_coo_tensor([[3, 0, hvd.rank()]], values, (4,))  # of rank 0 one twice
        mean = hvd.sparse_allreduce_async(x)()
        assert mean.dtype == dtype and mean.is_coalesced()
        return mean.to_dense().tolist()

    assert on_threads(3, body) == [[most - 1, 1, 1, most]] * 3


@pytest.mark.parametrize("dtype", ["bool", "uint64"])
def test_sparse_averages_that_do_not_exist_are_refused(on_threads, dtype):
    def body():
        x = torch.sparse_coo_tensor([[1]], torch.ones(1, dtype=getattr(torch, dtype)), (4,))
        with pytest.raises(TypeError, match=f"average of torch.{dtype}"):
            hvd.sparse_allreduce_async(x)

    on_threads(1, body)


# ---- state ----


def _net(seed):
    """Ranks that are threads share torch's random numbers, so these are drawn elsewhere."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return net


def test_broadcast_parameters(on_threads):
    def body():
        net = _net(hvd.rank())
        hvd.broadcast_parameters(net.state_dict(), root_rank=1)
        hvd.broadcast_parameters(net.named_parameters(), root_rank=1)
        with pytest.raises(TypeError, match="names and tensors"):
            hvd.broadcast_parameters([net], root_rank=1)
        return {name: value.tolist() for name, value in net.state_dict().items()}

    expected = {name: value.tolist() for name, value in _net(1).state_dict().items()}
    assert on_threads(2, body) == [expected] * 2


@pytest.mark.parametrize("kind", [list, iter])
def test_broadcast_parameters_without_names(on_threads, kind):
    def body():
        net = _net(hvd.rank())
        hvd.broadcast_parameters(kind(net.parameters()), root_rank=1)
        return [p.tolist() for p in net.parameters()]

    assert on_threads(2, body) == [[p.tolist() for p in _net(1).parameters()]] * 2


def test_broadcast_parameters_skips_what_is_none(on_threads):
    def body():
        r = float(hvd.rank())
        kept = [torch.full((2,), r), None, torch.full((3,), r)]
        named = [("a", torch.full((1,), r)), None, ("b", None)]
        state = {"c": None, "d": torch.full((2,), r)}
        for params in (kept, named, state):
            hvd.broadcast_parameters(params, root_rank=1)
        return [kept[0].tolist(), kept[2].tolist(), named[0][1].tolist(), state["d"].tolist()]

    assert on_threads(2, body) == [[[1, 1], [1, 1, 1], [1], [1, 1]]] * 2


def test_objects(on_threads):
    def body():
        assert hvd.broadcast_object_fn(1)(hvd.rank()) == 1
        return hvd.allgather_object(hvd.rank())

    assert on_threads(2, body) == [[0, 1]] * 2


# ---- process sets at init ----


def test_process_sets_at_init():
    first = hvd.ProcessSet([0])
    hvd.init(process_sets="dynamic")
    hvd.shutdown()
    with pytest.raises(ValueError, match="dynamic"):
        hvd.init(process_sets="static")
    with pytest.raises(ValueError, match="process set"):
        hvd.init(comm=[0, 1])
    assert not hvd.is_initialized()
    with pytest.raises(rueda.RuedaError, match="not known"):
        first.id
    hvd.init(comm=[0])
    assert hvd.size() == 1
    hvd.shutdown()


# ---- SyncBatchNorm ----


@pytest.mark.parametrize("rows", [(4, 4), (1, 6), (8, 0)])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 3)])
def test_sync_batch_norm_is_batch_norm_of_all_samples(on_threads, rows, shape):
    generator = torch.Generator().manual_seed(3)
    whole = 100 + torch.randn(sum(rows), *shape, generator=generator)
    weights = torch.randn(sum(rows), *shape, generator=generator)
    kinds = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm2d}

    def train(layer, x, w):
        x = x.clone().requires_grad_()
        output = layer(x)
        (output * w).sum().backward()
        return output.detach(), x.grad

    alone = kinds[len(shape)](5).double()
    expected, gradient = train(alone, whole.double(), weights.double())
    evaluated = alone.eval()(whole.double()).detach()

    def close(got, wanted):
        torch.testing.assert_close(got.double(), wanted, rtol=2e-3, atol=2e-3)

    def body():
        r = hvd.rank()
        begin = sum(rows[:r])
        part = slice(begin, begin + rows[r])
        layer = hvd.SyncBatchNorm(5)
        output, own_gradient = train(layer, whole[part], weights[part])
        close(output, expected[part])
        close(own_gradient, gradient[part])
        close(hvd.allreduce(layer.weight.grad, op=hvd.Sum), alone.weight.grad)
        close(hvd.allreduce(layer.bias.grad, op=hvd.Sum), alone.bias.grad)
        close(layer.running_var, alone.running_var)
        close(layer.running_mean, alone.running_mean)
        assert layer.num_batches_tracked == 1
        close(layer.eval()(whole), evaluated)

    on_threads(2, body)


def test_convert_sync_batchnorm(on_threads):
    def body():
        net = _net(0)
        converted = hvd.SyncBatchNorm.convert_sync_batchnorm(net)
        assert isinstance(converted[1], hvd.SyncBatchNorm)
        assert [p.shape for p in converted.parameters()] == [p.shape for p in net.parameters()]

    on_threads(1, body)
