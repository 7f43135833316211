"""How the peers in Python are timed and print what they took: as mpi_bench.c does."""
import json
import time


def parse(operand):
    """BYTES or COUNTxBYTES: (0 or count, bytes of each)."""
    count, _, size = operand.rpartition("x")
    return int(count or 0), int(size)


def iterations_for(size):
    for limit, iterations in ((4 << 10, 20_000), (64 << 10, 2_000), (1 << 20, 200), (16 << 20, 30),
                              (64 << 20, 8)):
        if size <= limit:
            return iterations
    return 5


def measure(action, size, mean, before=lambda: None):
    """Microseconds of each call, sorted; of at most a second's worth, on which all ranks agree by
    `mean`, which makes a number the mean of all ranks'."""

    def run(iterations):
        times = []
        for _ in range(iterations):
            before()
            start = time.perf_counter()
            action()
            times.append((time.perf_counter() - start) * 1e6)
        return sorted(times)

    first = mean(run(5)[2])
    iterations = max(5, min(iterations_for(size), int(1e6 / first)))
    run(iterations // 10 + 1)
    return run(iterations)


def report(peer, ranks, count, size, times, operation="allreduce"):
    op = f"many_{count}x{size}" if count else operation
    size *= count or 1
    p50 = times[len(times) // 2]
    print(json.dumps({"peer": peer, "op": op, "np": ranks, "bytes": size, "p50_us": round(p50, 2),
                      "min_us": round(times[0], 2), "p99_us": round(times[len(times) * 99 // 100], 2),
                      "algbw_GBps": round(size / p50 / 1e3, 3)}), flush=True)
