"""What a call from Python costs over the C API, on one rank, and what a blocking one takes on two.

    PYTHONPATH=build/release/python python3 test/bench/python_calls_bench.py

The C API's own time is that of rueda_execute (or rueda_submit, rueda_wait, rueda_release) in a loop of
a C program, compiled here. Medians of runs of 1,000 calls, one of each kind after another; microseconds.
"""

from __future__ import annotations

import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import rueda
from rueda import launcher

ROOT = pathlib.Path(__file__).parents[2]
ROUNDS, CALLS = 31, 1000

C_PROGRAM = r"""
#include <stdio.h>
#include <time.h>
#include "rueda/rueda.h"
static double Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
int main(int argc, char** argv) {
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.flags = RUEDA_INIT_READ_ENVIRONMENT;
  rueda_context* context;
  if (rueda_init(RUEDA_VERSION, &options, &context) != RUEDA_OK) return 1;
  float value = 1;
  int64_t shape[1] = {1};
  rueda_tensor tensor = {&value, {RUEDA_CPU, 0}, 1, RUEDA_FLOAT32, shape, NULL, 0};
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLREDUCE;
  operation.reduce_op = RUEDA_SUM;
  operation.input = &tensor;
  operation.name = "x";
  for (int round = 0; round < %(rounds)d; ++round) {
    double begin = Now();
    for (int i = 0; i < %(calls)d; ++i) {
      if (rueda_execute(context, &operation, 1, RUEDA_FOREVER, NULL) != RUEDA_OK) return 1;
    }
    const double blocking = (Now() - begin) / %(calls)d;
    begin = Now();
    for (int i = 0; i < %(calls)d; ++i) {
      rueda_handle handle;
      if (rueda_submit(context, &operation, 1, NULL, &handle) != RUEDA_OK) return 1;
      if (rueda_wait(context, handle, RUEDA_FOREVER) != RUEDA_OK) return 1;
      rueda_release(context, handle);
    }
    const double apart = (Now() - begin) / %(calls)d;
    if (rueda_rank(context) == 0) printf("%%f %%f\n", blocking, apart);
  }
  rueda_shutdown(context);
  return 0;
}
""" % {"rounds": ROUNDS, "calls": CALLS}


def c_times(ranks: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "calls.c"), pathlib.Path(folder, "calls")
        source.write_text(C_PROGRAM)
        libraries = pathlib.Path(rueda.core._library.folder(), "lib").resolve()
        include = ROOT / "bindings" / "c" / "include"
        subprocess.run(
            ["cc", "-O2", f"-I{include}", "-o", program, source, f"-L{libraries}", "-lrueda"]
            + [f"-Wl,-rpath,{libraries}"],
            check=True,
        )
        command = [launcher.program(), "-np", str(ranks), "--prefix", "none", program]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [tuple(map(float, line.split())) for line in out.splitlines()]
    return statistics.median(r[0] for r in rows), statistics.median(r[1] for r in rows)


def python_times() -> dict[str, float]:
    import numpy as np

    rueda.init()
    array = np.ones(1, np.float32)
    calls = {
        "NumPy, allreduce_": lambda: rueda.allreduce_(array, "x", rueda.Sum),
        "NumPy, allreduce": lambda: rueda.allreduce(array, "x", rueda.Sum),
        "NumPy, allreduce_async_ and synchronize": lambda: rueda.synchronize(
            rueda.allreduce_async_(array, "x", rueda.Sum)
        ),
        "NumPy, broadcast_": lambda: rueda.broadcast_(array, 0, "x"),
    }
    try:
        import torch

        import rueda.torch as hvd

        tensor = torch.ones(1)
        calls |= {
            "torch, hvd.allreduce_": lambda: hvd.allreduce_(tensor, name="x", op=hvd.Sum),
            "torch, hvd.allreduce": lambda: hvd.allreduce(tensor, name="x", op=hvd.Sum),
            "torch, hvd.allreduce_async_ and synchronize": lambda: hvd.synchronize(
                hvd.allreduce_async_(tensor, name="x", op=hvd.Sum)
            ),
        }
    except ImportError:
        pass
    try:
        import jax

        jax_array = jax.numpy.ones(1)
        calls["JAX, allreduce by DLPack"] = lambda: rueda.allreduce(jax_array, "x", rueda.Sum)
    except ImportError:
        pass
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    rueda.shutdown()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    for ranks in (1, 2):
        blocking, apart = c_times(ranks)
        python = rueda.run(python_times, np=ranks)[0]
        print(
            f"\n{ranks} rank{'s' if ranks > 1 else ''}, 4 bytes: us a call, and more than C takes"
        )
        print(f"{'C, rueda_execute':48}{blocking:8.2f}")
        print(f"{'C, rueda_submit, rueda_wait, rueda_release':48}{apart:8.2f}")
        for name, took in python.items():
            base = apart if "async" in name else blocking
            print(f"{name:48}{took:8.2f}{took - base:8.2f}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
