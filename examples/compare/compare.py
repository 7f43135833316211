#!/usr/bin/env python3
"""Trains the net of examples/mnist under every strategy and compression, and compares them.

compare.py --bin FOLDER [-np N] [--epochs N] [--only NAME,...] [--out FOLDER]

For each strategy: the time of a step (over shared memory), the bytes that a rank sends in a step
(over Gloo on the loopback interface, counted on the interface, so that anything else that uses it
counts too), and the test images that it gets right at the end. And the largest rank's peak memory:
every byte of tensors, parameters, gradients and optimizer state with them, when another net of 12.6
million parameters is trained with Adam (peak_memory); that of examples/mnist is too small to show
it. What Rueda itself takes for compression is not among those bytes. Exit status 1 when a run failed.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

# By name, and by name + compression; of each the options that suit it: steps that are longer want
# smaller learning rates.
STRATEGIES = {
    "ddp": [], "sharded": [], "fsdp": [], "adasum": [], "local_sgd": [], "diloco": ["--lr", "0.01"],
    "decentralized": [], "low_precision_decentralized": [], "async": [], "multi_worker": ["--lr", "0.025"], "ddp2": [],
    "dp": [], "bytegrad": [], "qadam": ["--optimizer", "adam", "--lr", "0.003"],
    **{f"ddp + {compression}": [] for compression in
       ["fp16", "bf16", "fp8", "int8", "topk:0.05", "powersgd:2", "auto"]},
    "ddp + 1bit": ["--lr", "0.01"], "sharded + int8": [], "fsdp + int8": [],
}
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
        words += ["--replicas", str(arguments.np), "--batch-size", str(32 * arguments.np)]
    out = run(arguments, strategy, words, environment)
    steps = int(re.search(r"(\d+) steps an epoch", out).group(1))
    losses = re.findall(r" loss ([0-9.]+),", out)
    return json.loads(out.splitlines()[-1]), steps, float(losses[-1]) if losses else None


def bytes_of(arguments, strategy, epochs):
    """What all ranks send."""
    before = loopback_bytes()
    train(arguments, strategy, epochs, {"RUEDA_BACKEND": "gloo"})
    return loopback_bytes() - before


def peak_mb(arguments, strategy):
    return json.loads(run(arguments, strategy, ["peak_memory", *strategy.split(" + ")]))["peak_bytes"] / 1e6


def measure(arguments, strategy):
    result, steps, loss = train(arguments, strategy, arguments.epochs)
    row = {"strategy": strategy, "step_ms": 1e3 * result["train_seconds"] / (steps * arguments.epochs),
           "sent_kb": 0.0, "peak_mb": peak_mb(arguments, strategy), "loss": loss,
           "accuracy": result["test_accuracy"]}
    if strategy not in ONE_PROCESS:
        few, many = (bytes_of(arguments, strategy, epochs) for epochs in (1, 3))
        row["sent_kb"] = (many - few) / (2 * steps) / arguments.np / 1e3
    return row


def table(rows, arguments, alone_mb):
    lines = [f"{arguments.np} ranks, {os.cpu_count()} cores, {arguments.epochs} epochs; against ddp in the same run. Peak memory: of a net of "
             f"12.6 million parameters with Adam, for which one process without Rueda takes {alone_mb:.0f} MB.", "",
             "| strategy | step | of ddp's | a rank sends in a step | a rank's peak memory | loss | test accuracy |",
             "|---|---|---|---|---|---|---|"]
    base = next((row["step_ms"] for row in rows if row["strategy"] == "ddp"), None)
    for row in rows:
        ratio = f"{row['step_ms'] / base:.2f}" if base else ""
        lines.append(f"| {row['strategy']} | {row['step_ms']:.2f} ms | {ratio} | {row['sent_kb']:.0f} kB | "
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
    figure, axes = pyplot.subplots(1, 4, figsize=(14, 0.4 * len(rows) + 1.2), sharey=True)
    names = [row["strategy"] for row in rows][::-1]
    for axis, (key, title) in zip(axes, [("step_ms", "ms a step"), ("sent_kb", "kB sent a step"),
                                         ("peak_mb", "MB of memory at the peak"), ("accuracy", "test accuracy")]):
        axis.barh(names, [row[key] for row in rows][::-1])
        axis.set_title(title)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where ruedarun and mnist are")
    parser.add_argument("-np", type=int, default=2, help="ranks (2)")
    parser.add_argument("--epochs", type=int, default=12, help="of each run (12)")
    parser.add_argument("--only", help="strategies, with commas between them")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="for the results")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(STRATEGIES)
    for name in names:
        if name not in STRATEGIES:
            sys.exit(f"compare.py: there is no strategy '{name}'; there are {', '.join(STRATEGIES)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    alone_mb = peak_mb(arguments, "none")
    rows = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(measure(arguments, name))
    (arguments.out / "results.json").write_text(json.dumps(rows, indent=2) + "\n")
    text = table(rows, arguments, alone_mb)
    (arguments.out / "table.md").write_text(text)
    print(text, end="")
    plot(rows, arguments.out / "plot.svg")


if __name__ == "__main__":
    main()
