"""rueda.tensorflow and rueda.keras: at once and in graphs, on ranks that are processes.

Functions that tests define within themselves are pickled by value and run on every rank. TensorFlow
takes seconds to import, so each has many cases.
"""

import importlib.util
import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("tensorflow-cpu is not installed", allow_module_level=True)

import rueda  # noqa: E402
from rueda.core import _library  # noqa: E402

ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def run(fn, *args, np=2, **env):
    return rueda.run(fn, args, np=np, env={**ENVIRONMENT, **env})


# ---- operations ----


def test_results_are_the_same_at_once_and_in_a_graph():
    def fn():
        import tensorflow as tf

        import rueda.tensorflow as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        rows = np.arange(4.0 * size).reshape(2 * size, 2).astype(np.float32) + 100 * rank
        every = [np.arange(4.0 * size).reshape(2 * size, 2) + 100 * r for r in range(size)]
        own = slice(2 * rank, 2 * rank + 2)
        pair = hvd.add_process_set([0, size - 1])
        cases = [
            (hvd.allreduce, sum(every) / size),
            (lambda x: hvd.allreduce(x, op=hvd.Sum, name="named"), sum(every)),
            (lambda x: hvd.allreduce(x, average=False), sum(every)),
            (lambda x: hvd.allreduce(x, op=hvd.Max), every[-1]),
            (lambda x: hvd.allreduce(x, op=hvd.Min), every[0]),
            (
                lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3),
                1.5 * sum(every),
            ),
            (
                lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16),
                sum(every) / size,
            ),
            (lambda x: hvd.grouped_allreduce([x, 2 * x])[1], 2 * sum(every) / size),
            (lambda x: hvd.broadcast(x, size - 1), every[-1]),
            (hvd.allgather, np.concatenate(every)),
            (lambda x: hvd.grouped_allgather([x, x + 1])[1], np.concatenate(every) + 1),
            (lambda x: hvd.reducescatter(x, op=hvd.Sum), sum(every)[own]),
            (hvd.reducescatter, sum(every)[own] / size),
            (
                lambda x: hvd.grouped_reducescatter([x, x + 1])[1],
                sum(every)[own] / size + 1,
            ),
            (hvd.alltoall, np.concatenate([one[own] for one in every])),
            (
                lambda x: hvd.alltoall(x, [2] * size)[0],
                np.concatenate([o[own] for o in every]),
            ),
            (lambda x: hvd.size_op() + hvd.local_size_op(), 2 * size),
            (lambda x: hvd.rank_op() + hvd.local_rank_op(), 2 * rank),
            (
                lambda x: hvd.process_set_included_op(pair.id),
                int(rank in (0, size - 1)),
            ),
        ]
        for number, (call, expected) in enumerate(cases):
            for form in (
                call,
                tf.function(call),
                tf.function(call, input_signature=[tf.TensorSpec([None, None], tf.float32)]),
            ):
                result = form(tf.constant(rows))
                assert isinstance(result, tf.Tensor)
                np.testing.assert_allclose(result, expected, rtol=1e-3, err_msg=str(number))
        if rank in (0, size - 1):
            total = hvd.allreduce(tf.constant([float(rank)]), op=hvd.Sum, process_set=pair)
            assert float(total[0]) == size - 1

        @tf.function
        def uneven(x):
            gathered = hvd.allgather(x)
            sent, received = hvd.alltoall(x, [rank + 1] + [0] * (size - 1))
            return gathered, sent, received

        gathered, sent, received = uneven(tf.fill([rank + 1, 2], float(rank)))
        assert gathered.shape == (sum(range(size + 1)), 2)
        assert sent.shape == ((sum(range(size + 1)), 2) if rank == 0 else (0, 2))
        assert list(received.numpy()) == ([r + 1 for r in range(size)] if rank == 0 else [0] * size)

        # Variables, numbers and arrays; all types and shapes.
        assert float(hvd.allreduce(tf.Variable(float(rank)))) == (size - 1) / 2
        assert float(hvd.allreduce(np.float32(rank), op=hvd.Sum)) == sum(range(size))
        kinds = [
            "bool",
            "uint8",
            "int8",
            "int32",
            "int64",
            "float16",
            "bfloat16",
            "float64",
        ]
        tensors = [tf.cast(tf.ones((2, 1, 2)), kind) for kind in [*kinds, "complex64"]]
        tensors += [tf.ones(shape) for shape in ((), (3,), (0, 2))]

        def sum_each(given):
            return [hvd.allreduce(x, op=hvd.Sum) for x in given]

        for form in (sum_each, tf.function(sum_each)):
            for x, total in zip(tensors, form(tensors), strict=True):
                assert (total.shape, total.dtype) == (x.shape, x.dtype)
                expected = tf.cast(tf.fill(x.shape, 1 if x.dtype == tf.bool else size), x.dtype)
                assert tf.reduce_all(total == expected), x.dtype

        # Again and again.
        step = tf.function(lambda x: hvd.allreduce(x) + hvd.allreduce(2 * x))
        for _ in range(200):
            assert float(step(tf.constant(1.0))) == 3.0

        # What is no tensor, or can't be: an error at once, and the job goes on.
        for wrong, kind in (("text", TypeError), (None, (TypeError, ValueError))):
            try:
                hvd.allreduce(wrong)
            except kind:
                continue
            raise AssertionError(wrong)
        from rueda import core

        try:
            core.allreduce_(tf.ones(3))
        except ValueError as error:
            assert "immutable" in str(error)
        try:
            tf.function(core.allreduce)(tf.ones(3))
        except TypeError as error:
            assert "rueda.tensorflow" in str(error)
        hvd.barrier()
        assert hvd.join() in range(size)
        hvd.shutdown()

    run(fn, np=3)


def test_sparse_averages_of_integers_are_those_of_dense_tensors():
    def fn():
        import tensorflow as tf

        import rueda.tensorflow as hvd

        hvd.init()

        def mean(values, indices):
            result = hvd.allreduce(tf.IndexedSlices(values, indices, tf.constant([4, 2])))
            return result.values, result.indices

        for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
            most = min(int(np.iinfo(name).max), 2**61)  # a sum of 64 bits may wrap around
            rows = [[most, 1], [most - 1, 1], [2 + hvd.rank(), 1]]
            for form in (mean, tf.function(mean)):
                # Rank 0 has an index twice.
                values, indices = form(
                    tf.constant(np.array(rows, name)), tf.constant([3, 0, hvd.rank()])
                )
                assert values.dtype.name == name
                found = dict(zip(indices.numpy().tolist(), values.numpy().tolist(), strict=True))
                assert found == {0: [most, 1], 1: [1, 0], 3: [most, 1]}, name
        return True

    assert run(fn) == [True] * 2


def test_gradients_are_the_derivative_times_horovods_factor():
    def fn():
        import tensorflow as tf

        import rueda.tensorflow as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        x = tf.constant(np.arange(6.0).reshape(6, 1) + rank)
        weights = tf.constant(np.arange(1.0, 200.0).reshape(-1, 1) * (rank + 1))

        def local_gradients(form):
            def gradient(x):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = form(x)
                    loss = tf.reduce_sum(y * weights[: tf.shape(y)[0]])
                return tape.gradient(loss, x)

            return gradient(x), tf.function(gradient)(x)

        def numbers(begin, count, r):
            return np.arange(1.0 + begin, 1 + begin + count) * (r + 1)

        total = sum(r + 1 for r in range(size))
        rows = 6 // size
        scattered = np.concatenate([numbers(0, rows, r) for r in range(size)])
        there = np.concatenate([numbers(rows * rank, rows, r) for r in range(size)])
        gathered = total * numbers(6 * rank, 6, 0)
        both = total * (numbers(6 * rank, 6, 0) + 3 * numbers(6 * size + 6 * rank, 6, 0))
        cast = (rank == 1) * total * numbers(0, 6, 0)
        # What is called, the derivative of the sum of all ranks' losses, and by what Horovod's
        # gradient differs from it.
        cases = [
            (lambda x: hvd.allreduce(x, op=hvd.Sum), numbers(0, 6, 0) * total, 1),
            (hvd.allreduce, numbers(0, 6, 0) * total / size, 1),
            (
                lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2, postscale_factor=3),
                6 * numbers(0, 6, 0) * total,
                1,
            ),
            (hvd.allgather, gathered, 1 / size),
            (lambda x: tf.concat(hvd.grouped_allgather([x, 3 * x]), 0), both, 1 / size),
            (lambda x: hvd.broadcast(x, 1), cast, 1 / size),
            (lambda x: hvd.reducescatter(x, op=hvd.Sum), scattered, size),
            (lambda x: hvd.reducescatter(x, prescale_factor=3), 3 * scattered / size, size),
            (lambda x: hvd.grouped_reducescatter([x])[0], scattered / size, size),
            (hvd.alltoall, there, 1),
            (lambda x: hvd.alltoall(x, [rows] * size)[0], there, 1),
        ]
        for convention in ("horovod", "sum"):
            assert hvd.gradients(convention) == convention
            for number, (form, derivative, factor) in enumerate(cases):
                scale = 1 if convention == "sum" else factor
                for result in local_gradients(form):
                    np.testing.assert_allclose(
                        result.numpy().ravel(),
                        scale * derivative,
                        rtol=1e-6,
                        err_msg=f"{convention} {number}",
                    )

        # Ranks whose conventions differ.
        hvd.gradients("sum" if rank == 1 else "horovod")
        texts = []
        for number in (3, 4, 5, 6, 8):
            for compiled in (False, True):

                def gradient(x, form=cases[number][0]):
                    with tf.GradientTape() as tape:
                        tape.watch(x)
                        loss = tf.reduce_sum(form(x))
                    return tape.gradient(loss, x)

                try:
                    with hvd.rueda_errors():
                        (tf.function(gradient) if compiled else gradient)(x)
                except rueda.MismatchError as error:
                    texts.append(str(error))
        hvd.shutdown()
        return texts

    first, second = run(fn, np=2)
    assert first == second and len(first) == 10
    for text in first:
        assert "disagree" in text and "hvd.gradients() must be the same" in text


def test_second_derivatives():
    def fn():
        import tensorflow as tf

        import rueda.tensorflow as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        generator = np.random.default_rng(7)
        inputs = [tf.constant(generator.standard_normal((4, 3))) for _ in range(size)]
        splits = [[1, 3], [2, 2]]

        def exchanged(xs):
            parts = [tf.split(x, splits[r]) for r, x in enumerate(xs)]
            return [tf.concat([part[r] for part in parts], 0) for r in range(size)]

        def joined(xs):
            return [tf.concat(xs, 0)] * size

        # What is called, the same in one process, by what Horovod's gradient differs from the
        # derivative, and by what that of the backward pass does.
        cases = [
            (hvd.allreduce, lambda xs: [sum(xs) / size] * size, 1, 1),
            (
                lambda x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)[1],
                lambda xs: [2 * sum(xs)] * size,
                1,
                1,
            ),
            (hvd.allgather, joined, 1 / size, 1),
            (lambda x: hvd.grouped_allgather([x, x])[0], joined, 1 / size, 1),
            (lambda x: hvd.broadcast(x, 1), lambda xs: [xs[1]] * size, 1 / size, 1),
            (lambda x: hvd.alltoall(x, splits[rank])[0], exchanged, 1, 1),
            (hvd.reducescatter, lambda xs: tf.split(sum(xs) / size, size), size, 1 / size),
            (
                lambda x: hvd.grouped_reducescatter([x, 3 * x], op=hvd.Sum)[1],
                lambda xs: tf.split(3 * sum(xs), size),
                size,
                1 / size,
            ),
        ]

        def scaled(x, factor, again):
            """Its input, with its gradient times `factor`, and that one's times `again`."""

            @tf.custom_gradient
            def function(x):
                def backward(gradient):
                    return gradient if factor == 1 else factor * scaled(gradient, again, 1)

                return tf.identity(x), backward

            return function(x)

        def loss_of(y, rank):
            weights = tf.range(1, tf.cast(tf.size(y), y.dtype) + 1, dtype=y.dtype)
            return tf.reduce_sum(y**3 * tf.reshape(weights, tf.shape(y)) * (rank + 1))

        def gradient_of_penalty(loss, variables, wanted):
            """Of the sum of the squares of the loss's gradient."""
            with tf.GradientTape() as outer:
                outer.watch(variables)
                with tf.GradientTape() as inner:
                    inner.watch(variables)
                    total = loss(variables)
                gradients = inner.gradient(total, variables, unconnected_gradients="zero")
                penalty = sum(tf.reduce_sum(g**2) for g in gradients)
            return outer.gradient(penalty, wanted, unconnected_gradients="zero")

        def check(got, expected, tolerance, text):
            largest = np.abs(expected).max()
            np.testing.assert_allclose(got, expected, 0, tolerance * largest, err_msg=text)

        for convention in ("horovod", "sum"):
            hvd.gradients(convention)
            for number, (ours, model, *factors) in enumerate(cases):
                factor, again = (1, 1) if convention == "sum" else factors

                def in_one_process(xs, model=model, factor=factor, again=again):
                    ys = model([scaled(tf.sin(x), factor, again) for x in xs])
                    return sum(loss_of(y, r) for r, y in enumerate(ys))

                def here(xs, ours=ours):
                    return loss_of(ours(tf.sin(xs[0])), rank)

                def second(x, here=here):
                    return gradient_of_penalty(here, [x], x)

                expected = gradient_of_penalty(in_one_process, inputs, inputs[rank])
                for form in (second, tf.function(second)):
                    check(form(inputs[rank]), expected, 1e-9, f"{convention} {number}")

        # Keras' own batch normalization has wrong second derivatives: it stops the mean's gradient.
        whole = tf.constant(generator.standard_normal((7, 3)), tf.float32)
        weights = tf.constant(generator.standard_normal((7, 3)), tf.float32)
        part = slice(0, 3) if rank == 0 else slice(3, 7)
        gamma = tf.constant([1.0, 2.0, 3.0])
        layer = hvd.SyncBatchNormalization(epsilon=1e-3)
        layer.build((None, 3))
        layer.gamma.assign(gamma)

        def plain(variables):
            x, gamma = tf.sin(variables[0]), variables[1]
            mean = tf.reduce_mean(x, 0)
            variance = tf.reduce_mean((x - mean) ** 2, 0)
            y = (x - mean) * tf.math.rsqrt(variance + 1e-3) * gamma
            return tf.reduce_sum(y**3 * weights)

        def synchronized(variables):
            y = layer(tf.sin(variables[0]), training=True)
            return tf.reduce_sum(y**3 * weights[part])

        with tf.GradientTape() as outer:
            outer.watch([whole, gamma])
            with tf.GradientTape() as inner:
                inner.watch(whole)
                total = plain([whole, gamma])
            penalty = tf.reduce_sum(inner.gradient(total, whole) ** 2)
        of_inputs, of_gamma = outer.gradient(penalty, [whole, gamma])

        def twice(x):
            return gradient_of_penalty(synchronized, [x], [x, layer.gamma])

        for form in (twice, tf.function(twice)):
            got_inputs, got_gamma = form(whole[part])
            check(got_inputs, of_inputs[part], 1e-4, "inputs")
            check(hvd.allreduce(got_gamma, op=hvd.Sum), of_gamma, 1e-4, "gamma")

        # The averaged gradient g of x**3: each rank's part of it is 6 x / size.
        x = tf.Variable([1.0 + rank, 2.0])
        y = tf.Variable([1.0])
        averages = sum(3 * np.array([1.0 + r, 2.0]) ** 2 for r in range(size)) / size
        for options in ({}, {"groups": 1}, {"compression": hvd.Compression.fp16}):

            def through_the_tape(options=options):
                with tf.GradientTape() as outer:
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_sum(x**3) + tf.reduce_sum(y)
                    tape = hvd.DistributedGradientTape(tape, **options)
                    penalty = tf.reduce_sum(tape.gradient(loss, [x, y])[0] ** 2)
                return outer.gradient(penalty, x)

            for form in (through_the_tape, tf.function(through_the_tape)):
                check(form(), 2 * averages * 6 * x.numpy(), 1e-3, str(options))
        hvd.shutdown()

    run(fn, np=2)


# ---- training ----


def test_a_tape_gives_averaged_gradients():
    def fn():
        import tensorflow as tf

        import rueda.tensorflow as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        table = tf.Variable(tf.ones([5, 2]))
        dense = tf.Variable(tf.ones([2, 3]))
        unused = tf.Variable(1.0)
        local = tf.Variable(2.0)
        sources = [table, dense, unused, local]

        def gradients(**options):
            with tf.GradientTape() as tape:
                rows = tf.gather(table, [rank, 4])
                loss = tf.reduce_sum(rows @ dense) * (rank + 1) + local * float(rank + 1)
            tape = hvd.DistributedGradientTape(tape, **options)
            tape.register_local_source(local)
            return tape.gradient(loss, sources)

        mean = sum(r + 1 for r in range(size)) / size
        expected = np.zeros((5, 2), np.float32)
        for r in range(size):
            expected[r] += 3 * (r + 1) / size
            expected[4] += 3 * (r + 1) / size
        for options in (
            {},
            {"sparse_as_dense": True},
            {"groups": 1},
            {"groups": 2, "sparse_as_dense": True},
            {"groups": [[table, dense]], "sparse_as_dense": True},
            {"gradient_predivide_factor": 2.0, "sparse_as_dense": True},
            {"compression": hvd.Compression.fp16},
            {"compression": OwnCompressor, "sparse_as_dense": True},
        ):
            for form in (gradients, tf.function(gradients)):
                for _ in range(3):
                    of_table, of_dense, of_unused, of_local = form(**options)
                    sparse = isinstance(of_table, tf.IndexedSlices)
                    assert sparse != options.get("sparse_as_dense", False)
                    np.testing.assert_allclose(tf.convert_to_tensor(of_table), expected, rtol=1e-3)
                    np.testing.assert_allclose(of_dense, np.full((2, 3), 2 * mean), rtol=1e-3)
                    assert of_unused is None
                    assert float(of_local) == (rank + 1) / size

        # One source, a nest, a block, a persistent tape, and a sum.
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True), op=hvd.Sum) as tape:
            loss = dense[0, 0] * (rank + 1)
        assert float(tape.gradient(loss, dense)[0, 0]) == mean * size
        nest = tape.gradient(loss, {"a": dense, "b": [unused]})
        assert float(nest["a"][0, 0]) == mean * size and nest["b"] == [None]
        with tf.GradientTape() as plain:
            loss = dense[0, 0] * (rank + 1) + local
        tape = hvd.DistributedGradientTape(plain, scale_local_gradients=False)
        tape.register_local_source(local)
        own, common = tape.get_local_and_global_gradients(loss, [dense, local])
        assert own[0][0] is local and float(own[0][1]) == 1.0
        assert common[0][0] is dense and float(common[0][1][0, 0]) == mean
        for wrong in ({"groups": 0}, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}):
            try:
                hvd.DistributedGradientTape(tf.GradientTape(), **wrong)
            except ValueError:
                continue
            raise AssertionError(wrong)

        # Variables are the root's, whatever their type; in a graph, too.
        variables = [tf.Variable(tf.cast(tf.fill([2], rank), t)) for t in (tf.float32, tf.int64)]
        hvd.broadcast_variables(variables, 1)
        assert [list(v.numpy()) for v in variables] == [[1, 1], [1, 1]]
        again = tf.Variable(float(rank))
        tf.function(lambda: hvd.broadcast_variables([again], 1))()
        assert float(again) == 1.0
        assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
        assert hvd.allgather_object(rank) == list(range(size))
        hvd.shutdown()

    class OwnCompressor:
        @staticmethod
        def compress(tensor):
            return tensor * 2, 0.5

        @staticmethod
        def decompress(tensor, ctx):
            return tensor * ctx

    run(fn)


def test_keras_trains_as_one_process_does():
    def fn(folder):
        import os
        import warnings

        import keras
        import tensorflow as tf

        import rueda.tensorflow as tensorflow_hvd
        import rueda.tensorflow.keras as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        random = np.random.default_rng(0)
        x = random.normal(size=(64, 8)).astype(np.float32)
        y = random.integers(0, 3, 64)

        def model_of(seed):
            keras.utils.set_random_seed(seed)
            layers = [
                keras.Input((8,)),
                keras.layers.Dense(16, "relu"),
                keras.layers.Dense(3),
            ]
            return keras.Sequential(layers)

        def mine(steps=1):  # of each batch of 16 its part, in so many steps
            batches = zip(x.reshape(-1, size, 16 // size, 8), y.reshape(-1, size, 16 // size))
            parts = [(a[rank], b[rank]) for a, b in batches]
            xs, ys = (np.concatenate(part) for part in zip(*parts, strict=True))
            return tf.data.Dataset.from_tensor_slices((xs, ys)).batch(16 // size // steps)

        def whole():
            return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

        def train(model, optimizer, data, callbacks=(), epochs=3, **options):
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, metrics=["accuracy"], **options)
            return model.fit(
                data,
                epochs=epochs,
                callbacks=list(callbacks),
                verbose=0,
                validation_data=data,
            ).history

        def same(a, b):
            for one, other in zip(a.weights, b.weights, strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-6)

        optimizers = {
            "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
            "adam": lambda: keras.optimizers.Adam(0.01),
            "clipped": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
        }
        for name, make in optimizers.items():
            for options in ({}, {"run_eagerly": True}):
                if options and name != "sgd":
                    continue
                reference, model = model_of(0), model_of(rank)  # the root's are sent
                expected = train(reference, make(), whole())
                log = []
                history = train(
                    model,
                    hvd.DistributedOptimizer(make()),
                    mine(),
                    [
                        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                        hvd.callbacks.MetricAverageCallback(),
                        keras.callbacks.LambdaCallback(
                            on_epoch_end=lambda epoch, logs, log=log: log.append(dict(logs))
                        ),
                    ],
                    **options,
                )
                same(model, reference)
                for key in ("loss", "accuracy", "val_loss", "val_accuracy"):
                    np.testing.assert_allclose(history[key], expected[key], rtol=1e-4)
                    assert history[key] == [entry[key] for entry in log]

        # Gradients of two halves of a batch together are those of the batch.
        for average, factor in ((True, 1.0), (False, 2.0)):
            reference, model = model_of(0), model_of(0)
            train(reference, keras.optimizers.SGD(0.1 * factor), whole())
            distributed = hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.1),
                backward_passes_per_step=2,
                average_aggregated_gradients=average,
            )
            train(model, distributed, mine(2))
            same(model, reference)
            assert int(distributed.iterations) == 12

        # A file is loaded without Rueda, and with it it goes on.
        model = model_of(0)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), groups=1)
        train(model, optimizer, mine())
        path = os.path.join(folder, f"{rank}.keras")
        model.save(path)
        plain = keras.models.load_model(path)
        assert type(plain.optimizer) is keras.optimizers.Adam
        loaded = hvd.load_model(path)
        assert isinstance(loaded.optimizer, keras.optimizers.Adam)
        assert int(loaded.optimizer.iterations) == 12
        for one, other in zip(loaded.optimizer.variables, optimizer.variables, strict=True):
            np.testing.assert_array_equal(one, other)
        loaded.fit(mine(), verbose=0)
        train(model, optimizer, mine(), epochs=1)
        same(loaded, model)

        # Mixed precision: one rank's infinity makes all skip the step.
        keras.mixed_precision.set_global_policy("mixed_float16")
        model = model_of(0)
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=4.0)
        model.compile(hvd.DistributedOptimizer(scaled), "mse")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            hvd.DistributedOptimizer(keras.optimizers.SGD())
        assert "LossScaleOptimizer" in str(caught[0].message)
        keras.mixed_precision.set_global_policy("float32")
        before = [weight.numpy() for weight in model.weights]
        bad = np.full((4, 8), np.inf if rank == 1 else 1.0, np.float32)
        model.fit(bad, np.zeros((4, 3), np.float32), batch_size=4, verbose=0)
        for weight, old in zip(model.weights, before, strict=True):
            np.testing.assert_array_equal(weight, old)

        # Errors.
        for wrong in (
            lambda: hvd.DistributedOptimizer("sgd"),
            lambda: tensorflow_hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer()),
            lambda: hvd.DistributedOptimizer(optimizer),
            lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Adasum),
            lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=0),
            lambda: hvd.DistributedOptimizer(
                keras.optimizers.SGD(gradient_accumulation_steps=2),
                backward_passes_per_step=2,
            ),
        ):
            try:
                wrong()
            except (TypeError, ValueError):
                continue
            raise AssertionError(inspect.getsource(wrong))
        for function in (hvd.allreduce, hvd.allgather, lambda v: hvd.broadcast(v, 0)):
            assert isinstance(function([float(rank)]), np.ndarray)
        hvd.shutdown()

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run(fn, folder)


def test_keras_callbacks_and_batch_normalization():
    def fn():
        import keras
        import tensorflow as tf

        import rueda.keras as hvd
        import rueda.tensorflow as tensorflow_hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        x, y = np.ones((32, 2), np.float32), np.ones((32, 1), np.float32)

        def fit(callbacks, optimizer, **options):
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile(optimizer, "mse")
            options = {"batch_size": 8, "epochs": 4, "verbose": 0} | options
            return model.fit(x, y, callbacks=callbacks, **options).history

        # The rates of batches, and of epochs.
        rates = []
        watch = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: rates.append(float(optimizer.learning_rate))
        )
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * size))
        warmup = hvd.callbacks.LearningRateWarmupCallback(0.1 * size, warmup_epochs=2, verbose=1)
        history = fit([warmup, watch], optimizer)
        ramp = [0.1 * (1 + (size - 1) * (k + 1) / 8) for k in range(8)]
        np.testing.assert_allclose(rates, ramp + [0.1 * size] * 8, rtol=1e-5)
        np.testing.assert_allclose(history["lr"][1:], 0.1 * size, rtol=1e-5)
        rates.clear()
        optimizer = keras.optimizers.SGD(1.0)
        fit(
            [
                hvd.callbacks.LearningRateScheduleCallback(1.0, 0.5, start_epoch=1),
                watch,
            ],
            optimizer,
        )
        np.testing.assert_allclose(rates[::4], [1.0, 1.0, 0.5, 0.25])
        for callback, given in (
            (
                hvd.callbacks.LearningRateWarmupCallback(0.1),
                keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)),
            ),
        ):
            try:
                fit([callback], given)
            except ValueError as error:
                assert "schedule" in str(error)
            else:
                raise AssertionError("a schedule was overwritten")

        # Momentum correction: velocities have the learning rate in them.
        def velocity(correction):
            optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
            schedule = hvd.callbacks.LearningRateScheduleCallback(
                1.0,
                lambda epoch: 1.0 if epoch == 0 else 0.1,
                momentum_correction=correction,
            )
            seen = []
            note = keras.callbacks.LambdaCallback(
                on_train_batch_begin=lambda batch, logs: seen.append(
                    [velocity.numpy().copy() for velocity in getattr(optimizer, "momentums", [])]
                )
            )
            fit([note, schedule, note], optimizer, epochs=2, batch_size=32)
            return seen

        seen = velocity(True)
        np.testing.assert_allclose(seen[3][0], 0.1 * seen[2][0], rtol=1e-5)
        seen = velocity(False)
        np.testing.assert_array_equal(seen[3][0], seen[2][0])

        # What is local stays, and so does where random numbers have come to.
        keras.utils.set_random_seed(rank)
        model = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        kernel, bias = model.layers[-1].kernel, model.layers[-1].bias
        bias.assign([float(rank)])
        states = [v.numpy().copy() for v in model.variables if "seed" in v.name]
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=bias)
        callback.set_model(model)
        model.optimizer.build(model.trainable_variables)
        callback.on_train_begin()
        assert float(bias[0]) == rank
        kernels = hvd.allgather(kernel.numpy().reshape(1, -1))
        assert (kernels == kernels[0]).all()
        for old, new in zip(states, [v for v in model.variables if "seed" in v.name], strict=True):
            np.testing.assert_array_equal(old, new)

        # Batch normalization over ranks of different batches is that of the whole.
        data = np.random.default_rng(1).normal(size=(12, 5, 3)).astype(np.float32)
        mine = data[:4] if rank == 0 else data[4:]
        whole, parts = (
            keras.layers.BatchNormalization(),
            tensorflow_hvd.SyncBatchNormalization(),
        )
        with tf.GradientTape() as tape:
            inputs = tf.constant(data)
            tape.watch(inputs)
            expected = whole(inputs, training=True)
            loss = tf.reduce_sum(expected**3)
        of_inputs = tape.gradient(loss, inputs)

        def step(given):
            with tf.GradientTape() as tape:
                tape.watch(given)
                result = parts(given, training=True)
                loss = tf.reduce_sum(result**3)
            return result, tape.gradient(loss, given)

        part = slice(0, 4) if rank == 0 else slice(4, 12)
        for form in (step, tf.function(step)):
            result, gradient = form(tf.constant(mine))
            np.testing.assert_allclose(result, expected[part], rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(gradient, of_inputs[part], rtol=1e-2, atol=1e-3)
        whole(data, training=True)
        np.testing.assert_allclose(parts.moving_mean, whole.moving_mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(parts.moving_variance, whole.moving_variance, rtol=1e-4)
        mask = np.arange(5) < 3
        masked = np.broadcast_to(mask, data.shape[:2])
        np.testing.assert_allclose(
            parts(mine, training=True, mask=masked[part]),
            whole(data, training=True, mask=masked)[part],
            rtol=1e-3,
            atol=1e-3,
        )
        hvd.shutdown()

    run(fn)


def test_layers_that_remain_a_ranks_own():
    def fn():
        import keras
        import tensorflow as tf

        import rueda.tensorflow.keras as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()

        def trained(shared, local, scaled, passes):
            """The changes of both layers' weights by a step of SGD with the rate 1."""
            model = keras.Sequential([shared, local])
            model.build((None, 2))
            optimizer = hvd.PartialDistributedOptimizer(
                keras.optimizers.SGD(1.0),
                local_layers=local,
                scale_local_gradients=scaled,
                backward_passes_per_step=passes,
            )
            before = [weight.numpy() for weight in model.trainable_weights]
            for _ in range(passes):
                gradients = [tf.fill(w.shape, rank + 1.0) for w in model.trainable_weights]
                optimizer.apply(gradients, model.trainable_weights)
            after = [weight.numpy() for weight in model.trainable_weights]
            return [float((b - a).mean()) for b, a in zip(before, after, strict=True)]

        def layer():
            return keras.layers.Dense(2, use_bias=False)

        for scaled in (True, False):
            for passes in (1, 2):
                of_shared, of_local = trained(layer(), layer(), scaled, passes)
                mean = sum(r + 1 for r in range(size)) / size
                np.testing.assert_allclose(of_shared, passes * mean, rtol=1e-5)
                own = passes * (rank + 1) / (size if scaled else 1)
                np.testing.assert_allclose(of_local, own, rtol=1e-5)
        for wrong, text in ((layer(), "no weights yet"), ("dense", "no layer")):
            with pytest.raises(ValueError, match=text):
                hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=[wrong])
        hvd.shutdown()

    run(fn)


# ---- a session's graph, which runs in any order ----


def test_what_is_unnamed_in_a_sessions_graph_goes_by_its_node():
    def fn():
        import threading

        import tensorflow as tf

        import rueda.tensorflow as hvd
        from rueda.core._operations import Operation

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        submits, begun = Operation.execute, threading.Event()

        def execute(self, tensor):
            begun.set()
            return submits(self, tensor)

        def after_the_first(x):
            assert begun.wait(60)
            return x

        combines = {
            "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum),
            "broadcast": lambda x: hvd.broadcast(x, size - 1) + tf.reduce_sum(x) * 0,
            "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
        }
        Operation.execute = execute
        for kind, combine in combines.items():
            begun.clear()
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                given = [tf.fill([size], value + rank) for value in (1.0, 10.0)]
                # Ranks 0 and 1 begin with different ones.
                late = 1 - rank % 2
                given[late] = tf.numpy_function(after_the_first, [given[late]], tf.float32)
                given[late].set_shape([size])
                got = session.run([tf.reduce_max(combine(x)) for x in given])
            total = sum(range(size))
            want = [1 + size - 1, 10 + size - 1]
            if kind != "broadcast":
                want = [size + total, 10 * size + total]
            assert got == want, (kind, got, want)
        Operation.execute = submits

        # Two gradients of one operation have names of their own.
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.fill([2], 1.0 + rank)
            y = hvd.allreduce(x, op=hvd.Sum)
            twice = [tf.gradients(y, x)[0], tf.gradients(3 * y, x)[0]]
            got = session.run(twice)
            assert [one.tolist() for one in got] == [[size] * 2, [3 * size] * 2], got
        hvd.shutdown()

    run(fn)


# ---- errors ----


def test_bad_splits_of_one_rank_are_told_to_all():
    def fn():
        import tensorflow as tf

        import rueda.tensorflow as hvd

        hvd.init()
        x = tf.ones([4])
        for splits, text in (
            ([-1, 5], "splits has -1"),
            ([1.5, 2.5], "splits has 1.5"),
            ([3, 2], "add up to 5 rows"),
        ):
            given = tf.constant(splits if hvd.rank() == 0 else [2, 2])
            for call in (hvd.alltoall, tf.function(hvd.alltoall)):
                with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as caught:
                    call(x, given)
                assert "rank 0: " in str(caught.value) and text in str(caught.value)
        assert hvd.alltoall(x, [1, 3])[1].numpy().tolist() == [[1, 1], [3, 3]][hvd.rank()]
        hvd.shutdown()

    run(fn)


def test_errors_name_what_is_wrong_on_every_rank():
    def fn():
        import tensorflow as tf

        import rueda
        import rueda.tensorflow as hvd

        hvd.init()
        rank = hvd.rank()
        bad = tf.zeros([rank + 1])

        def raised(kind, call, *texts):
            try:
                call()
            except kind as error:
                for text in texts:
                    assert text in str(error), error
                return error
            raise AssertionError(f"no {kind}")

        raised(rueda.MismatchError, lambda: hvd.allreduce(bad, name="bad"), "bad", "rank")
        graph = tf.function(lambda x: hvd.allreduce(x, name="in_graph"))
        raised(
            tf.errors.InvalidArgumentError,
            lambda: graph(bad),
            "MismatchError",
            "in_graph",
            "rank",
        )

        def inside():
            with hvd.rueda_errors():
                graph(bad)

        error = raised(rueda.MismatchError, inside, "in_graph", "rank")
        assert isinstance(error.__cause__, tf.errors.OpError)

        @hvd.rueda_errors()
        def of_others():
            tf.function(lambda x: tf.debugging.check_numerics(x, "not finite"))(tf.constant(np.inf))

        raised(tf.errors.InvalidArgumentError, of_others)

        # Of the gradients of one step one fails, and nothing is left behind.
        a, b = tf.Variable(tf.ones([2])), tf.Variable(tf.ones([rank + 1]))

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(a) + tf.reduce_sum(b)
            return hvd.DistributedGradientTape(tape).gradient(loss, [a, b])

        for _ in range(3):
            raised(
                tf.errors.InvalidArgumentError,
                step,
                "MismatchError",
                "DistributedGradientTape.1",
            )
        assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == hvd.size()
        raised(RuntimeError, lambda: hvd.broadcast_global_variables(0))

        # A rank that is gone.
        def last():
            # The other rank may be told of the end before it hears that both have come.
            hvd.barrier()
            if rank == 1:
                rueda.core.abort("on purpose")
            hvd.allreduce(tf.ones(3))

        error = raised(rueda.AbortedError, last, "on purpose")
        return type(error).__name__

    assert run(fn) == ["AbortedError"] * 2


def test_what_stalls_ends_at_once_and_in_a_graph():
    def fn():
        import tensorflow as tf

        import rueda
        import rueda.tensorflow as hvd

        hvd.init()
        if hvd.rank() == 0:
            with pytest.raises(rueda.StalledError, match="missing: rank 1"):
                hvd.allreduce(tf.ones(3), name="at once")
            graph = tf.function(lambda x: hvd.allreduce(x, name="in_graph"))
            with pytest.raises(tf.errors.OpError, match="missing: rank 1"):
                graph(tf.ones(3))
            with pytest.raises(rueda.StalledError), hvd.rueda_errors():
                graph(tf.ones(3))
        while True:  # the job goes on, however late one of them is
            try:
                return float(hvd.allreduce(tf.constant(1.0), name="both", op=hvd.Sum))
            except rueda.StalledError:
                continue

    stalls = {"RUEDA_STALL_TIMEOUT_S": "0.3", "RUEDA_STALL_WARN_S": "0.2"}
    assert run(fn, RUEDA_LOG_LEVEL="error", **stalls) == [2.0] * 2


# ---- the surface ----

_DEVICES = ["device_dense", "device_sparse"]
_SCALES = ["prescale_factor", "postscale_factor"]
_GROUPS = ["num_groups", "groups", "process_set", "scale_local_gradients"]
_MOVED = ["name", "ignore_name_scope", "process_set"]

# Horovod 0.28's functions and their arguments.
SURFACE = {
    "allreduce": [
        "tensor",
        "average",
        *_DEVICES,
        "compression",
        "op",
        *_SCALES,
        "name",
        "process_set",
        "ignore_name_scope",
    ],
    "grouped_allreduce": [
        "tensors",
        "average",
        *_DEVICES,
        "compression",
        "op",
        *_SCALES,
        "process_set",
        "ignore_name_scope",
        "name",
    ],
    "reducescatter": [
        "tensor",
        "device_dense",
        "compression",
        "op",
        "name",
        "process_set",
        "ignore_name_scope",
        *_SCALES,
    ],
    "grouped_reducescatter": [
        "tensors",
        "device_dense",
        "compression",
        "op",
        "process_set",
        "ignore_name_scope",
        "name",
        *_SCALES,
    ],
    "allgather": ["tensor", *_MOVED],
    "grouped_allgather": ["tensors", *_MOVED],
    "broadcast": ["tensor", "root_rank", *_MOVED],
    "broadcast_": ["variables", "root_rank", "name", "process_set"],
    "alltoall": ["tensor", "splits", *_MOVED],
    "broadcast_variables": ["variables", "root_rank", "process_set", "inplace"],
    "broadcast_object": ["obj", "root_rank", "name", "process_set"],
    "broadcast_object_fn": ["root_rank", "session", "name", "process_set"],
    "allgather_object": ["obj", "name", "process_set"],
    "size_op": ["process_set_id", "name"],
    "process_set_included_op": ["process_set_id", "name"],
    "rank_op": ["name"],
    "local_rank_op": ["name"],
    "local_size_op": ["name"],
    "DistributedGradientTape": [
        "gradtape",
        *_DEVICES,
        "compression",
        "sparse_as_dense",
        "op",
        "gradient_predivide_factor",
        *_GROUPS,
    ],
    "DistributedOptimizer": [
        "optimizer",
        "name",
        "use_locking",
        *_DEVICES,
        "compression",
        "sparse_as_dense",
        "backward_passes_per_step",
        "op",
        "gradient_predivide_factor",
        "average_aggregated_gradients",
        *_GROUPS,
    ],
}
KERAS = {
    "DistributedOptimizer": [
        "optimizer",
        "name",
        *_DEVICES,
        "compression",
        "sparse_as_dense",
        "gradient_predivide_factor",
        "op",
        "backward_passes_per_step",
        "average_aggregated_gradients",
        *_GROUPS,
    ],
    "PartialDistributedOptimizer": [
        "optimizer",
        "name",
        *_DEVICES,
        "compression",
        "sparse_as_dense",
        "gradient_predivide_factor",
        "op",
        "backward_passes_per_step",
        "average_aggregated_gradients",
        *_GROUPS[:-1],
        "local_layers",
        _GROUPS[-1],
    ],
    "allreduce": ["value", "name", "average", *_SCALES, "op", "compression"],
    "allgather": ["value", "name"],
    "broadcast": ["value", "root_rank", "name"],
    "reducescatter": ["value", "name", "op"],
    "load_model": ["filepath", "custom_optimizers", "custom_objects", "compression", "legacy_opts"],
    "broadcast_global_variables": ["root_rank"],
}
CALLBACKS = {
    "BroadcastGlobalVariablesCallback": ["root_rank", "device", "local_variables"],
    "MetricAverageCallback": ["device", "process_set"],
    "LearningRateScheduleCallback": [
        "initial_lr",
        "multiplier",
        "start_epoch",
        "end_epoch",
        "staircase",
        "momentum_correction",
        "steps_per_epoch",
    ],
    "LearningRateWarmupCallback": [
        "initial_lr",
        "warmup_epochs",
        "momentum_correction",
        "steps_per_epoch",
        "verbose",
    ],
}


def test_the_surface_is_horovods():
    import rueda.keras
    import rueda.tensorflow as hvd
    import rueda.tensorflow.keras

    for module, surface in (
        (hvd, SURFACE),
        (rueda.tensorflow.keras, KERAS),
        (rueda.keras, KERAS),
        (rueda.keras.callbacks, CALLBACKS),
        (rueda.tensorflow.keras.callbacks, CALLBACKS),
    ):
        for name, arguments in surface.items():
            own = list(inspect.signature(getattr(module, name)).parameters)
            assert own[: len(arguments)] == arguments, name
    common = "init shutdown is_initialized size local_size cross_size rank local_rank cross_rank"
    common += " start_timeline stop_timeline mpi_threads_supported mpi_enabled mpi_built"
    common += " gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built"
    common += " Average Sum Compression elastic ProcessSet add_process_set remove_process_set"
    common += " global_process_set broadcast_global_variables"
    more = "is_homogeneous Adasum Min Max Product join barrier SyncBatchNormalization"
    more += " PartialDistributedGradientTape HorovodInternalError"
    for module in (hvd, rueda.keras, rueda.tensorflow.keras):
        for name in [*common.split(), *(more.split() if module is hvd else ())]:
            assert hasattr(module, name), name
    for name in hvd.__all__:
        assert hasattr(hvd, name)


def allocator():
    """A malloc that ends the process when it gets memory of another; the build tree has it."""
    build = (_library.folder() / "lib").resolve().parent
    return build / "test" / "modules" / "librueda_test_allocator.so"


@pytest.mark.parametrize("order", ["tensorflow, rueda", "rueda, tensorflow"])
@pytest.mark.parametrize("malloc", ["libc's", "another"])
def test_the_package_is_there_in_either_order(order, malloc):
    environment = {**os.environ, **ENVIRONMENT, "RUEDA_HOSTS_FAKE": "2"}
    environment["RUEDA_INLINE_BYTES"] = "0"  # the module for several hosts is loaded, too
    if malloc == "another":
        if not allocator().exists():
            pytest.skip(f"there is no {allocator()}")
        environment["LD_PRELOAD"] = str(allocator())
    text = f"""
import {order}
from rueda import core
rueda.init()
assert float(core.allreduce(tensorflow.ones(())) + core.allgather(tensorflow.ones(1))[0]) == 2
rueda.shutdown()
"""
    done = subprocess.run(
        [_library.folder() / "bin" / "ruedarun", "-np", "2", sys.executable, "-c", text],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
