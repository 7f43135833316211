#!/usr/bin/env python3
"""What an allreduce costs in a function that JAX has compiled, and without JAX, in one run.

    ruedarun -np 2 python test/bench/python_jax_bench.py

Median microseconds on rank 0 of: `numpy`, rueda.allreduce of an array; `eager`, rueda.jax.allreduce; `call`, a
compiled function that is one allreduce, until its result is there; `each`, one of the 16 that another compiled
function does one after the other, without what a call costs; `empty`, a compiled function that adds 1.
"""
import os
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import rueda
import rueda.jax as rx

MANY = 16


def median_us(call, repeats):
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def many(x):
    for _ in range(MANY):
        x = rx.allreduce(x)
    return x


def main():
    rx.init()
    once, chain, empty = jax.jit(rx.allreduce), jax.jit(many), jax.jit(lambda x: x + 1)
    if rx.rank() == 0:
        print(f"{rx.size()} ranks, {os.cpu_count()} cores, jax {jax.__version__}; median us")
        print("    bytes    numpy    eager     call     each    empty")
    for count, repeats in ((1, 500), (1 << 14, 500), (1 << 20, 50)):
        array, tensor = np.ones(count, np.float32), jnp.ones(count)
        numpy = median_us(lambda: rueda.allreduce(array, "numpy"), repeats)
        eager = median_us(lambda: rx.allreduce(tensor), repeats)
        call = median_us(lambda: once(tensor).block_until_ready(), repeats)
        long = median_us(lambda: chain(tensor).block_until_ready(), max(repeats // 5, 10))
        nothing = median_us(lambda: empty(tensor).block_until_ready(), repeats)
        if rx.rank() == 0:
            row = (numpy, eager, call, (long - call) / (MANY - 1), nothing)
            print(f"{4 * count:9}" + "".join(f"{value:9.1f}" for value in row), flush=True)
    rx.shutdown()


if __name__ == "__main__":
    main()
