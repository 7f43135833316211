"""rueda.jax: at once and in compiled functions, on ranks that are processes.

Functions that tests define within themselves are pickled by value and run on every rank.
"""

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import rueda  # noqa: E402

ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
# As few threads as XLA can do with.
ONE_THREAD = {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


def run(fn, *args, np=2, **env):
    return rueda.run(fn, args, np=np, env={**ENVIRONMENT, **env})


# ---- results ----


def test_results_are_the_same_at_once_and_compiled():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        rank, size = rx.rank(), rx.size()
        rows = np.arange(4.0 * size).reshape(2 * size, 2).astype(np.float32) + 100 * rank
        every = [np.arange(4.0 * size).reshape(2 * size, 2) + 100 * r for r in range(size)]
        own = slice(2 * rank, 2 * rank + 2)
        cases = [
            (rx.allreduce, sum(every) / size),
            (lambda x: rx.allreduce(x, "named", rx.Sum), sum(every)),
            (lambda x: rx.allreduce(x, op=rx.Max), every[-1]),
            (lambda x: rx.allreduce(x, op=rx.Min), every[0]),
            (
                lambda x: rx.allreduce(x, op=rx.Sum, prescale_factor=0.5, postscale_factor=3),
                1.5 * sum(every),
            ),
            (lambda x: rx.broadcast(x, size - 1), every[-1]),
            (rx.allgather, np.concatenate(every)),
            (lambda x: rx.reducescatter(x, op=rx.Sum), sum(every)[own]),
            (rx.reducescatter, sum(every)[own] / size),
            (rx.alltoall, np.concatenate([one[own] for one in every])),
        ]
        for number, (call, expected) in enumerate(cases):
            for form in (call, jax.jit(call)):
                result = form(rows)
                assert isinstance(result, jax.Array)
                np.testing.assert_array_equal(result, expected, err_msg=str(number))
        kinds = ("bool", "uint8", "int16", "int32", "float16", "bfloat16", "complex64")
        tensors = [jnp.ones((2, 1, 2), kind) for kind in kinds]
        tensors += [jnp.ones(shape) for shape in ((), (3,), (0, 2))]
        for form in (lambda f: f, jax.jit):
            for x, total in zip(tensors, form(sum_each)(tensors), strict=True):
                assert (total.shape, total.dtype) == (x.shape, x.dtype)
                expected = True if x.dtype == bool else size
                assert (np.asarray(total) == np.asarray(expected, x.dtype)).all(), x.dtype

    def sum_each(tensors):
        import rueda.jax as rx

        return [rx.allreduce(x, op=rx.Sum) for x in tensors]

    run(fn, np=3)


def test_a_group_is_a_pytree_and_one_call():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        size = rx.size()
        tree = {"a": jnp.ones(3), "b": [jnp.full((2, 2), 2, jnp.int32), 5.0], "c": None, "d": ()}
        call = jax.jit(lambda t: rx.grouped_allreduce(t, "group", rx.Sum))
        text = call.lower(tree).as_text()
        assert len(re.findall(r"custom_call @rueda\b", text)) == 1, text
        for form in (call, lambda t: rx.grouped_allreduce(t, "group", rx.Sum)):
            total = form(tree)
            assert jax.tree.structure(total) == jax.tree.structure(tree)
            jax.tree.map(lambda x, y: np.testing.assert_array_equal(x * size, y), tree, total)
        assert rx.grouped_allreduce({}) == {}

    run(fn)


def test_tensors_are_used_where_they_lie():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        call = jax.jit(lambda x, y: rx.grouped_allreduce([x, y, x + y], "group"))
        text = call.lower(jnp.ones((64, 64)), jnp.ones((64, 64))).compile().as_text()
        assert "custom_call_target=" in text
        assert " copy(" not in text and "copy-start" not in text, text

    run(fn, np=1)


def test_gradients():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        rank, size = rx.rank(), rx.size()
        x = jnp.arange(4.0 * size).reshape(2 * size, 2) + rank

        def gradient(call, weight):
            """Of a sum of the result, weighted differently by each rank."""
            loss = lambda x: (call(x) * weight).sum()  # noqa: E731
            first, second = jax.grad(loss)(x), jax.jit(jax.grad(loss))(x)
            np.testing.assert_array_equal(first, second)
            return first

        def weights(shape):
            return [np.arange(np.prod(shape)).reshape(shape) * (r + 1.0) for r in range(size)]

        own = slice(2 * rank, 2 * rank + 2)
        all_of = weights(x.shape)
        sums = sum(all_of)
        check = np.testing.assert_allclose
        check(gradient(lambda x: rx.allreduce(x, op=rx.Sum), all_of[rank]), sums)
        check(gradient(rx.allreduce, all_of[rank]), sums / size)
        check(
            gradient(lambda x: rx.allreduce(x, "n", rx.Sum, prescale_factor=3), all_of[rank]),
            3 * sums,
        )
        check(gradient(lambda x: rx.broadcast(x, 1), all_of[rank]), sums if rank == 1 else 0 * sums)
        check(
            gradient(rx.alltoall, all_of[rank]),
            np.concatenate([one[own] for one in all_of]),
        )
        gathered = weights((2 * size * size, 2))
        mine = slice(2 * size * rank, 2 * size * (rank + 1))
        check(gradient(rx.allgather, gathered[rank]), sum(gathered)[mine])
        scattered = weights((2, 2))
        check(gradient(rx.reducescatter, scattered[rank]), np.concatenate(scattered) / size)

        # A group with a tensor that has no gradient, and twice the gradient.
        def group(x):
            a, b = rx.grouped_allreduce([x, jnp.ones(2, jnp.int32)], "g", rx.Sum)
            return (a**3).sum() * b.sum()

        total = sum(np.arange(4.0 * size).reshape(2 * size, 2) + r for r in range(size))
        for form in (lambda f: f, jax.jit):
            check(form(jax.grad(group))(x), 2 * size * size * 3 * total**2)
            second = form(jax.grad(lambda x: jax.grad(lambda y: group(y))(x).sum()))(x)
            check(second, 2 * size * size * size * 6 * total)
        for call in (
            lambda x: rx.allreduce(x, op=rx.Max).sum(),
            lambda x: rx.reducescatter(x, op=rx.Min).sum(),
        ):
            with pytest.raises(NotImplementedError, match="gradient of"):
                jax.grad(call)(x)

    run(fn, np=3)


def test_second_derivatives():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        jax.config.update("jax_enable_x64", True)
        rx.init()
        rank, size = rx.rank(), rx.size()
        generator = np.random.default_rng(7)
        inputs = [jnp.array(generator.standard_normal((4, 3))) for _ in range(size)]
        # What is called, and the same in one process.
        cases = [
            (rx.allreduce, lambda xs: [sum(xs) / size] * size),
            (
                lambda x: rx.grouped_allreduce([x, 2 * x], op=rx.Sum)[1],
                lambda xs: [2 * sum(xs)] * size,
            ),
            (rx.allgather, lambda xs: [jnp.concatenate(xs)] * size),
            (lambda x: rx.broadcast(x, 1), lambda xs: [xs[1]] * size),
            (
                rx.alltoall,
                lambda xs: [jnp.concatenate([x[2 * r : 2 * r + 2] for x in xs]) for r in (0, 1)],
            ),
            (rx.reducescatter, lambda xs: jnp.split(sum(xs) / size, size)),
            (lambda x: rx.reducescatter(x, "r", rx.Sum), lambda xs: jnp.split(sum(xs), size)),
        ]

        def loss_of(y, rank):
            return (y**3 * jnp.arange(1.0, y.size + 1).reshape(y.shape) * (rank + 1)).sum()

        def gradient_of_penalty(loss):
            """Of the sum of the squares of the loss's gradient."""
            return jax.grad(lambda xs: sum((g**2).sum() for g in jax.grad(loss)(xs)))

        for number, (ours, model) in enumerate(cases):

            def in_one_process(xs, model=model):
                return sum(loss_of(y, r) for r, y in enumerate(model([jnp.sin(x) for x in xs])))

            def here(xs, ours=ours):
                return loss_of(ours(jnp.sin(xs[0])), rank)

            expected = gradient_of_penalty(in_one_process)(inputs)[rank]
            for form in (lambda f: f, jax.jit):
                [got] = form(gradient_of_penalty(here))([inputs[rank]])
                tolerance = 1e-9 * abs(expected).max()
                np.testing.assert_allclose(got, expected, 0, tolerance, err_msg=str(number))

    run(fn, np=2)


def test_loops_branches_and_rematerialisation():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        size = rx.size()

        @jax.jit
        def loop(x):
            def body(carry, factor):
                total = rx.allreduce(carry * factor, "in the loop", rx.Sum)
                return total, rx.allreduce(total.sum())

            return jax.lax.scan(body, x, jnp.ones(5))

        last, sums = loop(jnp.ones(2))
        assert last.tolist() == [size**5] * 2 and sums.tolist() == [
            2 * size**i for i in range(1, 6)
        ]
        assert jax.grad(lambda x: loop(x)[0].sum())(jnp.ones(2)).tolist() == [size**5] * 2

        @jax.jit
        def branch(x, flag):
            return jax.lax.cond(flag, lambda: rx.allreduce(x, op=rx.Sum), lambda: -x)

        assert branch(1.0, True) == size and branch(1.0, False) == -1

        @jax.jit
        def until(x):
            return jax.lax.while_loop(lambda x: x < 20, lambda x: rx.allreduce(x, op=rx.Sum) + 1, x)

        expected = 1
        while expected < 20:
            expected = expected * size + 1
        assert until(jnp.int32(1)) == expected

        kept = jax.checkpoint(lambda x: jnp.sin(rx.allreduce(x, op=rx.Sum)))
        x = jnp.arange(3.0)
        for form in (lambda f: f, jax.jit):
            np.testing.assert_allclose(
                form(jax.grad(lambda x: kept(x).sum()))(x), size * np.cos(size * x), rtol=1e-6
            )

    run(fn)


def test_vmap_is_one_operation_for_the_batch():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        rank, size = rx.rank(), rx.size()
        batch = jnp.arange(12.0 * size).reshape(2 * size, 3, 2) + rank
        calls = [
            rx.allreduce,
            rx.allgather,
            rx.reducescatter,
            rx.alltoall,
            lambda x: rx.broadcast(x, 1),
            lambda x: jax.grad(lambda y: (rx.allgather(y) ** 2).sum())(x),
        ]
        for call in calls:
            expected = jnp.stack([call(batch[:, i]) for i in range(3)], 1)
            for form in (jax.vmap(call, 1, 1), jax.jit(jax.vmap(call, 1, 1))):
                np.testing.assert_array_equal(form(batch), expected)
        group = jax.vmap(lambda x, y: rx.grouped_allreduce([x, y]), (0, None), [0, None])
        a, b = group(batch, jnp.ones(2))
        np.testing.assert_array_equal(a, rx.allreduce(batch))
        assert b.tolist() == [1, 1]
        for call in (
            lambda x: rx.allreduce(x, op=rx.Adasum),
            lambda x: rx.allreduce(x, "n", compression="powersgd:1"),
            lambda x: rx.send(x, 0),
        ):
            with pytest.raises(NotImplementedError, match="vmap of"):
                jax.vmap(call)(batch)

    run(fn)


def test_send_receive_and_barrier():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        x = jnp.arange(3.0) + 10 * rx.rank()
        for form in (lambda f: f, jax.jit):

            def exchange(x):
                if rx.rank() == 0:
                    rx.send(x, 1, "there")
                    back = rx.recv(jax.ShapeDtypeStruct((3,), jnp.float32), 1, "back")
                else:
                    back = rx.recv(x, 0, "there")
                    rx.send(x, 0, "back")
                rx.barrier()
                return back

            result = form(exchange)(x)
            assert result.tolist() == [10 * (1 - rx.rank()) + i for i in range(3)]

    run(fn)


def test_process_sets_and_compression():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        rank = rx.rank()
        some = rx.add_process_set([0, 2])
        if rank != 1:
            call = lambda x: rx.allgather(x, process_set=some)  # noqa: E731
            for form in (call, jax.jit(call)):
                assert form(jnp.full(1, float(rank))).tolist() == [0, 2]
        x = jnp.linspace(-1, 1, 5000) * (rank + 1)
        for form in (lambda f: f, jax.jit):
            call = form(lambda x: rx.allreduce(x, "small", compression="int8"))
            np.testing.assert_allclose(call(x), jnp.linspace(-2, 2, 5000), atol=0.05)
            call = form(lambda x: rx.allreduce(x, compression="bf16"))  # without a name
            np.testing.assert_allclose(call(x), jnp.linspace(-2, 2, 5000), atol=0.05)
        with pytest.raises(ValueError, match="tensor of int32"):
            rx.grouped_allreduce([x, jnp.ones(2, jnp.int32)], compression="fp16")

    run(fn, np=3)


def test_ranks_may_have_different_frameworks():
    def fn():
        import jax

        import rueda.jax as rx

        rx.init()
        x = np.arange(3, dtype=np.float32)
        if rx.rank() == 0:
            total = jax.jit(lambda x: rx.allreduce(x, "shared", rx.Sum))(x)
        else:
            total = rueda.allreduce(x, "shared", rueda.Sum)
        assert total.tolist() == [0, 2, 4]

    run(fn)


# ---- training ----


def test_gradients_are_averaged_and_parameters_equal():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        rank, size = rx.rank(), rx.size()
        params = rx.broadcast_parameters(
            {"w": jnp.full(2, 5.0 + rank), "b": jnp.ones(()) * rank}, 1
        )
        assert params["w"].tolist() == [6, 6] and params["b"] == 1

        def loss(params, x):
            return (params["w"] * x).sum() + params["b"], x

        x = jnp.arange(2.0) + rank
        mean = sum(range(size)) / size
        both = rx.value_and_grad(loss, has_aux=True)
        only = rx.grad(lambda p, x: loss(p, x)[0], name="other")
        for form in (lambda f: f, jax.jit):
            (value, aux), gradients = form(both)(params, x)
            assert value == 6 * x.sum() + 1 and aux.tolist() == x.tolist()
            assert gradients["w"].tolist() == [mean, 1 + mean] and gradients["b"] == 1
            assert form(only)(params, x)["w"].tolist() == [mean, 1 + mean]
        init, update = rx.DistributedGradients(op=rx.Sum)
        assert init(params) == ()
        assert update({"w": x}, (), params)[0]["w"].tolist() == [size * mean, size * (1 + mean)]
        assert rx.allgather_object(rank) == list(range(size))
        assert rx.broadcast_object({"of": rank}, 1) == {"of": 1}

    run(fn)


# ---- order ----


def order_of(repeats):
    """Operations without names that don't depend on one another; each rank's program has another
    form, so XLA would begin them in another order."""
    import jax
    import jax.numpy as jnp

    import rueda.jax as rx

    rx.init()
    rank, size = rx.rank(), rx.size()
    total = sum(range(1, size + 1))
    for rows in (4, 1 << 14):  # XLA runs small programs on one thread, and large ones on several
        x = jnp.full(rows, rank + 1.0)

        @jax.jit
        def step(x):
            parts = [x * (i + 1) for i in range(6)]
            if rank % 2 == 1:  # more to be done ahead of the first ones
                parts = [jnp.sort(part) + 0 * jnp.sin(part) for part in parts[:3]] + parts[3:]
            sums = [rx.allreduce(part, op=rx.Sum) for part in parts]
            sums.append(jax.jit(lambda x: rx.allgather(x[:1]))(x))
            sums.append(rx.broadcast(x, size - 1))
            order = np.random.RandomState(rank).permutation(len(sums))
            return {int(i): sums[i] for i in order} if rank else sums

        for _ in range(repeats):
            results = jax.block_until_ready(step(x))
        for i in range(6):
            assert results[i][0] == total * (i + 1)
        assert results[6].tolist() == [r + 1 for r in range(size)] and results[7][0] == size


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("threads", ["one", "all"])
def test_independent_operations_wait_for_nobody_in_a_circle(ranks, threads):
    run(by_value(order_of), 50, np=ranks, **(ONE_THREAD if threads == "one" else {}))


def by_value(fn):
    """A function of this module as one that is pickled with its code."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(__import__(fn.__module__))
    return fn


@pytest.mark.parametrize("threads", ["one", "all"])
def test_functions_under_way_together_keep_their_order(threads):
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        rank, size = rx.rank(), rx.size()

        @jax.jit
        def slow(x):
            return jax.lax.fori_loop(0, 30, lambda _, y: jnp.sort(y) + 0 * jnp.cos(y), x)

        first = jax.jit(lambda x: rx.allreduce(x, "same", rx.Sum))
        second = jax.jit(lambda x: rx.allgather(x[:2]))
        x = jnp.ones(1 << 14)
        for i in range(50):
            # On some ranks the first one's tensor is ready long after the second one's.
            late = slow(x * i) if i % size == rank else x * i
            a = first(late)
            b = second(x + rank)
            c = first(x)  # the same function and name again
            assert c[0] == size
            assert b[2] == 2 and a[0] == size * i

    run(fn, **(ONE_THREAD if threads == "one" else {}))


# ---- errors ----


def test_a_mismatch_has_the_same_text_on_all_ranks_and_the_job_goes_on():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        rank, size = rx.rank(), rx.size()
        compiled = jax.jit(lambda x: rx.allreduce(x, op=rx.Sum))
        texts = []
        for rows in (2, 1 << 15):  # XLA does small ones at once
            with pytest.raises(rueda.MismatchError, match="shape") as caught, rx.synchronized():
                compiled(jnp.ones(rows + rank))
            texts.append(str(caught.value))
            assert compiled(jnp.ones(2))[0] == size
            with pytest.raises(jax.errors.JaxRuntimeError, match="Rueda: .*shape"):
                jax.block_until_ready(compiled(jnp.ones(rows + rank)))
            with pytest.raises(rueda.MismatchError, match="shape"):
                rx.allreduce(jnp.ones(rows + rank))
            assert compiled(jnp.ones(2))[0] == size
        # Ranks that don't do the same thing at all.
        call = jax.jit((lambda x: rx.broadcast(x, 0)) if rank else (lambda x: rx.allreduce(x)))
        with pytest.raises(rueda.MismatchError, match="kind of operation"), rx.synchronized():
            call(jnp.ones(2))
        # Rows that differ: at once they may.
        with pytest.raises(rueda.RuedaError), rx.synchronized():
            jax.jit(rx.allgather)(jnp.ones(1 + rank))
        assert rx.allgather(jnp.ones(1 + rank)).shape == (3,)
        return texts

    first, second = run(fn)
    assert first == second


def test_what_stalls_ends_at_once_and_compiled():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        compiled = jax.jit(lambda x: rx.allreduce(x, "compiled"))
        for rows in (2, 1 << 15) if rx.rank() == 0 else ():  # XLA does small ones at once
            x = jnp.ones(rows)
            with pytest.raises(rueda.StalledError, match="missing: rank 1"):
                rx.allreduce(x, "at once")
            with pytest.raises(rueda.StalledError, match="missing: rank 1"), rx.synchronized():
                compiled(x)
            with pytest.raises(jax.errors.JaxRuntimeError, match="Rueda: .*missing: rank 1"):
                jax.block_until_ready(compiled(x))
        while True:  # the job goes on, however late one of them is
            try:
                return float(rx.allreduce(jnp.ones(1), "both", rx.Sum)[0])
            except rueda.StalledError:
                continue

    stalls = {"RUEDA_STALL_TIMEOUT_S": "0.3", "RUEDA_STALL_WARN_S": "0.2"}
    assert run(fn, RUEDA_LOG_LEVEL="error", **stalls) == [2.0] * 2


def test_mistakes_are_told_where_a_function_is_traced():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        with pytest.raises(rueda.NotInitializedError):
            rx.allreduce(jnp.ones(2))
        with pytest.raises(rueda.NotInitializedError):
            jax.jit(rx.allreduce)(jnp.ones(2))
        rx.init()
        for form in (lambda f: f, jax.jit):
            for call in (rx.allgather, rx.alltoall, rx.reducescatter):
                with pytest.raises(ValueError, match="scalar"):
                    form(call)(1.0)
            for call in (rx.alltoall, rx.reducescatter):
                with pytest.raises(ValueError, match="no equal parts"):
                    form(call)(jnp.ones(3))
            with pytest.raises(ValueError, match="no process set 7"):
                form(lambda x: rx.allreduce(x, process_set=7))(1.0)
        with pytest.raises(NotImplementedError, match="compiled for cuda"):
            jax.jit(rx.allreduce).trace(jnp.ones(2)).lower(lowering_platforms=("cuda",))
        with pytest.raises(ValueError, match="root"):
            rx.broadcast(jnp.ones(2), 7)
        with pytest.raises(rueda.RuedaError, match="root"), rx.synchronized():
            jax.jit(lambda x: rx.broadcast(x, 7))(jnp.ones(2))

    run(fn)


def test_a_lost_rank_is_named_and_nobody_hangs(capfd, tmp_path):
    def fn(rows):
        import os
        import signal
        import time

        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        call = jax.jit(lambda x: rx.allreduce(x, "lost"))
        x = jnp.ones(rows)
        call(x).block_until_ready()
        over = tmp_path / str(rows)  # on rank 0, which it may be later than on rank 1
        if rx.rank() == 1:
            while not over.exists():
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        over.touch()
        try:
            with rx.synchronized():
                call(x)
        except rueda.AbortedError as error:
            print(f"told: rank={error.rank} tensor={error.tensor} {error}", flush=True)
        try:
            rx.allreduce(x)
        except rueda.AbortedError as error:
            print(f"and again: rank={error.rank}", flush=True)

    for rows in (2, 1 << 16):
        with pytest.raises(rueda.RemoteError) as caught:
            run(fn, rows)
        assert caught.value.rank == 1
        out = capfd.readouterr().out
        assert re.search("told: rank=1 tensor=lost .*SIGKILL", out) is not None, out
        assert "and again: rank=1" in out


def test_a_function_compiled_before_is_of_use_after_shutdown_and_init():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        rank, size = rx.rank(), rx.size()
        reduce = jax.jit(lambda x: rx.allreduce(x, op=rx.Sum))
        some = rx.add_process_set([0])
        gather = jax.jit(lambda x: rx.allgather(x, process_set=some))
        if rank == 0:
            assert gather(jnp.ones(2)).shape == (2,)
        assert reduce(1.0) == size
        pending = reduce(jnp.ones(1 << 16))
        rx.shutdown()  # waits for what is under way
        assert pending[0] == size
        calls = (reduce, gather) if rank == 0 else (reduce,)
        for call in calls:
            with pytest.raises(rueda.NotInitializedError, match="init"), rx.synchronized():
                call(jnp.ones(2))
        rx.init()
        if rank == 0:
            with pytest.raises(rueda.RuedaError, match="no process set 1"), rx.synchronized():
                gather(jnp.ones(2))
        rx.add_process_set([0, 1])
        assert reduce(1.0) == size
        if rank == 0:
            with pytest.raises(rueda.RuedaError, match="traced for 1 ranks"), rx.synchronized():
                gather(jnp.ones(2))
        jax.clear_caches()
        rueda.shutdown()
        with pytest.raises(rueda.NotInitializedError):
            rx.allreduce(1.0)

    run(fn, np=3)


def test_a_rank_that_leaves_early_does_not_leave_others_waiting():
    def fn():
        import jax
        import jax.numpy as jnp

        import rueda.jax as rx

        rx.init()
        call = jax.jit(lambda x: rx.allreduce(x, "left"))
        if rx.rank() == 0:
            with pytest.raises(rueda.RuedaError, match="rank 1 has shut down"), rx.synchronized():
                call(jnp.ones(1 << 16))
            begun = jax.jit(lambda x: rx.allreduce(x, "left"))  # nobody waits for it
            try:
                begun(jnp.ones(1 << 16))
            except jax.errors.JaxRuntimeError:
                pass
        rx.shutdown()

    run(fn)
