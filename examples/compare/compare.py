#!/usr/bin/env python3
"""Trains the net of examples/mnist under every strategy and compression, and compares them.

compare.py --bin FOLDER [-np N] [--epochs N] [--rounds N] [--only NAME,...] [--out FOLDER]

For each strategy: the time of a step (over shared memory), the bytes that a rank sends in a step
(over Gloo on the loopback interface, counted on the interface, so that anything else that uses it
counts too), and the test images that it gets right at the end. That net has 14,000 parameters; another
one of 12.6 million, trained with Adam (large_net), shows what bytes and memory cost: the time of
its step, how little a slower rank holds up the others, and the largest rank's peak memory, of every byte of tensors, parameters, gradients and
optimizer state with them. What Rueda itself takes for compression is not among those bytes. Times are
medians of the rounds, in which all strategies take turns. Exit status 1 when a run failed.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

# By name, and by name + compression; of each the options that suit it: steps that are longer want
# smaller learning rates.
STRATEGIES = {
    "ddp": [], "sharded": [], "fsdp": [], "adasum": [], "local_sgd": [], "diloco": ["--lr", "0.01"],
    "decentralized": [], "low_precision_decentralized": [], "async": [], "pipeline": [], "multi_worker": ["--lr", "0.025"], "ddp2": [],
    "dp": [], "bytegrad": [], "qadam": ["--optimizer", "adam", "--lr", "0.003"],
    **{f"ddp + {compression}": [] for compression in
       ["fp16", "bf16", "fp8", "int8", "topk:0.05", "powersgd:2", "auto"]},
    "ddp + 1bit": ["--lr", "0.02"], "qadam + 1bit": ["--optimizer", "adam", "--lr", "0.001"], "sharded + int8": [], "fsdp + int8": [],
}
TRIALS = 20  # steps in which `auto` measures what it chooses from
ONE_PROCESS = {"dp"}  # whose replicas are threads


def loopback_bytes():
    """What the loopback interface has sent."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    sys.exit("compare.py: there is no interface lo in /proc/net/dev")


def run(arguments, strategy, words, environment=None):
    """What the program writes, on one rank if the strategy needs no more."""
    ranks = 1 if strategy in ONE_PROCESS else arguments.np
    words = [str(arguments.bin / "ruedarun"), "-np", str(ranks), "--prefix", "none", str(arguments.bin / words[0]), *words[1:]]
    done = subprocess.run(words, env=dict(os.environ, OMP_NUM_THREADS="1", **(environment or {})),
                          stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"compare.py: {' '.join(words)} ended with status {done.returncode}\n{done.stdout}")
    return done.stdout


def train(arguments, strategy, epochs, environment=None):
    """(the last line's JSON, steps an epoch, final loss)"""
    name, _, compression = strategy.partition(" + ")
    words = ["mnist", "--strategy", name, "--epochs", str(epochs), *STRATEGIES[strategy]]
    if compression:
        words += ["--compression", compression]
    if strategy in ONE_PROCESS:
        words += ["--replicas", str(arguments.np)]
    if strategy in ONE_PROCESS | {"pipeline"}:
        words += ["--batch-size", str(32 * arguments.np)]  # of all ranks
    out = run(arguments, strategy, words, environment)
    steps = int(re.search(r"(\d+) steps an epoch", out).group(1))
    losses = re.findall(r" loss (-?(?:[0-9.]+(?:e[-+][0-9]+)?|nan|inf)),", out)
    return json.loads(out.splitlines()[-1]), steps, float(losses[-1])


def bytes_of(arguments, strategy, epochs):
    """What all ranks send."""
    before = loopback_bytes()
    train(arguments, strategy, epochs, {"RUEDA_BACKEND": "gloo"})
    return loopback_bytes() - before


def train_large(arguments, strategy, slow_last=1):
    """{"step_ms", "peak_bytes", ...}"""
    name, _, compression = strategy.partition(" + ")
    words = ["large_net", name, "--steps", "20", "--slow-last", str(slow_last), "--first-steps", str(TRIALS if compression == "auto" else 3)]
    if compression:
        words += ["--compression", compression]
    if strategy in ONE_PROCESS:
        words += ["--replicas", str(arguments.np)]
    return json.loads(run(arguments, strategy, words))


def measure(arguments, strategy):
    """All but the times."""
    name = strategy.partition(" + ")[0]
    result, steps, loss = train(arguments, strategy, arguments.epochs)
    row = {"strategy": strategy, "steps_ms": [1e3 * result["train_seconds"] / (steps * arguments.epochs)],
           "sent_kb": 0.0, "loss": loss, "accuracy": result["test_accuracy"]}
    large = train_large(arguments, strategy)
    row |= {"large_steps_ms": [large["step_ms"]], "peak_mb": large["peak_bytes"] / 1e6}
    if strategy not in ONE_PROCESS:
        # qadam's warm-up of 100 steps, in which it sends ddp's bytes, is over then.
        first = 1 if name != "qadam" else 100 // steps + 1
        few, many = (bytes_of(arguments, strategy, epochs) for epochs in (first, first + 2))
        row["sent_kb"] = (many - few) / (2 * steps) / arguments.np / 1e3
    return row


def measure_again(arguments, row):
    result, steps, _ = train(arguments, row["strategy"], arguments.epochs)
    row["steps_ms"].append(1e3 * result["train_seconds"] / (steps * arguments.epochs))
    row["large_steps_ms"].append(train_large(arguments, row["strategy"])["step_ms"])


def slow_peer(arguments, rows):
    """How fast rank 0 is beside a last rank that takes 5 times as long for a step, of its own speed beside equals."""
    ratios = []
    for row in rows:
        if row["strategy"] in ("ddp", "local_sgd", "async"):
            slow = statistics.median(train_large(arguments, row["strategy"], 5)["step_ms"] for _ in range(arguments.rounds))
            ratios.append(f"{row['strategy']} {row['large_step_ms'] / slow:.2f}")
    return "\nRank 0's speed beside a last rank that is 5 times as slow, of that beside equals: " + ", ".join(ratios) + ".\n" if ratios else ""


def table(rows, arguments, alone):
    lines = [f"{arguments.np} ranks, {os.cpu_count()} cores, {arguments.epochs} epochs, {arguments.rounds} rounds; times against "
             "ddp in the same run. The larger net: 12.6 million parameters, Adam; without Rueda, each process by itself, "
             f"it takes {alone['step_ms']:.1f} ms and {alone['peak_bytes'] / 1e6:.0f} MB.", "",
             "| strategy | step | of ddp's | larger net's step | of ddp's | a rank sends in a step | larger net's peak memory, a rank | loss | test accuracy |",
             "|---|---|---|---|---|---|---|---|---|"]
    base = next((row for row in rows if row["strategy"] == "ddp"), None)
    for row in rows:
        times = []
        for key in ("step_ms", "large_step_ms"):
            times += [f"{row[key]:.2f} ms", f"{row[key] / base[key]:.2f}" if base else ""]
        lines.append(f"| {row['strategy']} | {' | '.join(times)} | {row['sent_kb']:.0f} kB | "
                     f"{row['peak_mb']:.0f} MB | {row['loss']:.4f} | {100 * row['accuracy']:.1f} % |")
    return "\n".join(lines) + "\n"


def plot(rows, path):
    try:
        import matplotlib
    except ImportError:
        print("compare.py: no plot, as matplotlib is not installed; run.sh installs it", file=sys.stderr)
        return
    matplotlib.use("svg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, 6, figsize=(20, 0.4 * len(rows) + 1.2), sharey=True)
    names = [row["strategy"] for row in rows][::-1]
    for axis, (key, title) in zip(axes, [("step_ms", "ms a step"), ("large_step_ms", "ms a step, larger net"),
                                         ("sent_kb", "kB sent a step"), ("peak_mb", "MB of memory at the peak"), ("loss", "loss at the end"),
                                         ("accuracy", "test accuracy")]):
        axis.barh(names, [row[key] for row in rows][::-1])
        axis.set_title(title)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where ruedarun and mnist are")
    parser.add_argument("-np", type=int, default=2, help="ranks (2)")
    parser.add_argument("--epochs", type=int, default=12, help="of each run (12)")
    parser.add_argument("--rounds", type=int, default=1, help="that the times are medians of (1)")
    parser.add_argument("--only", help="strategies, with commas between them")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="for the results")
    arguments = parser.parse_args()
    if min(arguments.np, arguments.epochs, arguments.rounds) < 1:
        sys.exit("compare.py: -np, --epochs and --rounds must be at least 1")
    names = arguments.only.split(",") if arguments.only else list(STRATEGIES)
    for name in names:
        if name not in STRATEGIES:
            sys.exit(f"compare.py: there is no strategy '{name}'; there are {', '.join(STRATEGIES)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    alone = train_large(arguments, "none")
    rows = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(measure(arguments, name))
    for number in range(2, arguments.rounds + 1):
        print(f"round {number} ...", file=sys.stderr, flush=True)
        for row in rows:
            measure_again(arguments, row)
    for row in rows:
        row["step_ms"], row["large_step_ms"] = (statistics.median(row[key]) for key in ("steps_ms", "large_steps_ms"))
    (arguments.out / "results.json").write_text(json.dumps(rows, indent=2) + "\n")
    text = table(rows, arguments, alone) + slow_peer(arguments, rows)
    (arguments.out / "table.md").write_text(text)
    print(text, end="")
    plot(rows, arguments.out / "plot.svg")


if __name__ == "__main__":
    main()
