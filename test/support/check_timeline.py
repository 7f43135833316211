#!/usr/bin/env python3
"""Checks timelines: that they are what the Trace Event Format allows and docs/guides/timeline.md promises.

    test/support/check_timeline.py [--cut] [--tensor NAME=KIND:COUNT]... [--instant NAME=TEXT]...
                                   [--span NAME]... [--dropped] [--middle] FILE...

FILEs are those of a job's ranks, which share a clock. In each of them there must be so many
operations of each NAME given, each instant with TEXT in its text, and each span. --cut: the process
was killed, so the array is open. --dropped: records may be
missing; else they may not. --middle: it was started in the middle of operations, which are left
out. Times are compared in whole nanoseconds.
"""
import argparse
import collections
import decimal
import json
import sys

KINDS = {"ALLREDUCE", "BROADCAST", "ALLGATHER", "BARRIER", "ALLTOALL", "REDUCESCATTER", "REDUCE",
         "GATHER", "SCATTER", "SEND/RECV", "JOIN", "ADD_PROCESS_SET", "REMOVE_PROCESS_SET"}
# None of the ranks has done with these before all of them have begun.
MEETINGS = {"ALLREDUCE", "ALLGATHER", "BARRIER"}
OTHERS = "all other tensors"
INT, TEXT = (int,), (str,)
MOVED = {"bytes": INT, "bucket": INT, "tensors": INT, "first": TEXT, "backend": TEXT}
# The arguments of each event: those that it must have, and those that it may have.
METADATA = {"process_name": {"name": TEXT}, "process_sort_index": {"sort_index": INT},
            "thread_name": {"name": TEXT}, "thread_sort_index": {"sort_index": INT}}
SPANS = {"QUEUE": ({}, {}), "WAIT": ({}, {"tensor": TEXT}), "CALLBACK": ({}, {"tensor": TEXT}),
         "MEMCPY_IN_FUSION_BUFFER": ({}, {}), "MEMCPY_OUT_FUSION_BUFFER": ({}, {})}
for kind in KINDS:
    SPANS["NEGOTIATE_" + kind] = ({}, {})
    # The tensor of an operation that failed under way has no bucket.
    SPANS[kind] = ({"bytes": INT}, dict(MOVED, memcpy_in_ns=INT, memcpy_out_ns=INT))
SAYS = {"text": TEXT}
INSTANTS = {"TIMELINE_BEGIN": {"rank": INT, "size": INT, "host": TEXT, "pid": INT, "membership": INT,
                               "unix_time_us": INT, "clock_offset_ns": INT,
                               "clock_uncertainty_ns": INT},
            "TIMELINE_END": {"events": INT, "dropped_records": INT}, "DROPPED": {"records": INT},
            "ERROR": SAYS, "FAILURE": SAYS, "LEFT": SAYS, "PROCESS_SET": SAYS, "STALL": SAYS}


class Wrong(Exception):
    pass


def require(condition, *what):
    if not condition:
        raise Wrong(": ".join(str(w) for w in what))


def read(path, cut):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    require(text.startswith("[\n"), "does not begin with an array")
    require(text.endswith("\n]\n") != cut, "is cut, or is not")
    return json.loads(text + "]" if cut else text, parse_float=decimal.Decimal)


def nanos(event, key):
    value = event[key]
    require(isinstance(value, decimal.Decimal) and value >= 0, key, "no number with decimals", event)
    require(value.as_tuple().exponent == -3, key, "not three decimals", event)
    return int(value * 1000)


def check_args(event, needed, allowed):
    args = event.get("args", {})
    require(isinstance(args, dict), "args", event)
    for key, types in needed.items():
        require(key in args, "no argument " + key, event)
    for key, value in args.items():
        types = needed.get(key) or allowed.get(key)
        require(types and type(value) in types, "argument " + key, event)
        require(type(value) is not int or key == "clock_offset_ns" or value >= 0, key, event)


def check_event(event):
    require(isinstance(event, dict), "no object", event)
    ph, name = event.get("ph"), event.get("name")
    require(type(event.get("pid")) is int and type(event.get("tid")) is int, "pid, tid", event)
    keys = {"ph", "name", "pid", "tid", "args"}
    if ph == "M":
        require(name in METADATA, "unknown metadata", event)
        check_args(event, METADATA[name], {})
    elif ph == "X":
        keys |= {"ts", "dur"}
        require(name in SPANS, "unknown span", event)
        check_args(event, *SPANS[name])
        event["begin"] = nanos(event, "ts")
        event["end"] = event["begin"] + nanos(event, "dur")
    elif ph == "i":
        keys |= {"ts", "s"}
        require(name in INSTANTS, "unknown instant", event)
        require(event.get("s") == ("p" if event["tid"] == 0 else "t"), "scope", event)
        check_args(event, INSTANTS[name], {})
        event["begin"] = event["end"] = nanos(event, "ts")
    else:
        require(False, "unknown ph", event)
    require(set(event) - {"begin", "end"} <= keys, "unknown keys", event)


def check_nesting(spans):
    """Spans of one track are apart, or lie within one another."""
    open_ends = []
    for span in sorted(spans, key=lambda e: (e["begin"], -e["end"])):
        while open_ends and open_ends[-1] <= span["begin"]:
            open_ends.pop()
        require(not open_ends or span["end"] <= open_ends[-1], "overlaps another", span)
        open_ends.append(span["end"])


def operations_of(spans, errors, cut):
    """A tensor's track as [(kind, negotiate, queue, moved)]; what it did not come to is None. cut:
    the last one's phases may be missing."""
    operations = []
    for span in spans:
        name = span["name"]
        if name.startswith("NEGOTIATE_"):
            operations.append([name[len("NEGOTIATE_"):], span, None, None])
            continue
        require(operations, "no NEGOTIATE before", span)
        last = operations[-1]
        before = last[1] if name == "QUEUE" else last[2]
        at = 2 if name == "QUEUE" else 3
        require(name in ("QUEUE", last[0]), "not of this operation", span)
        require(before is not None and last[at] is None, "out of order", span)
        require(before["end"] == span["begin"], "does not begin where the phase before ends", span)
        last[at] = span
    for a, b in zip(operations, operations[1:]):
        end = [s for s in a[1:] if s is not None][-1]["end"]
        require(end <= b[1]["begin"], "began before the operation before it ended", b[1])
    for kind, *phases in operations[:-1] if cut else operations:
        if phases[2] is not None or kind == "ADD_PROCESS_SET":
            continue
        end = [s for s in phases if s is not None][-1]["end"]
        require(any(e["begin"] == end for e in errors), "ended early, and no ERROR says why", phases)
    return operations


def check_buckets(moved, lanes, complete):
    buckets = {}
    for span in lanes:
        if span["name"] in KINDS:
            require(span["args"]["bucket"] not in buckets, "a bucket twice", span)
            buckets[span["args"]["bucket"]] = [span, []]
    for span in moved:
        if "bucket" not in span["args"]:
            continue
        bucket = buckets.get(span["args"]["bucket"])
        if bucket is None and not complete:
            continue
        require(bucket is not None, "of no bucket", span)
        require(all(span[k] == bucket[0][k] for k in ("name", "begin", "end")),
                "not the times of its bucket", span)
        bucket[1].append(span)
    for bucket, tensors in buckets.values() if complete else []:
        require(len(tensors) == bucket["args"]["tensors"], "tensors in bucket", len(tensors), bucket)
        require(sum(t["args"]["bytes"] for t in tensors) == bucket["args"]["bytes"], "bytes", bucket)


def check_file(path, options):
    """The operations by tensor."""
    events = read(path, options.cut)
    require(isinstance(events, list), "no array")
    names, begun, ended, dropped = {}, None, None, 0
    spans, instants = collections.defaultdict(list), collections.defaultdict(list)
    told = 0
    for i, event in enumerate(events):
        require(ended is None, "behind the end", event)
        check_event(event)
        name, tid, args = event["name"], event["tid"], event.get("args", {})
        require(event["pid"] == events[0]["pid"], "of another rank", event)
        require((name == "process_name") == (i == 0), "process_name comes first", event)
        if name == "thread_name":
            require(tid not in names, "a track is named twice", event)
            require(tid == 0 or tid != event["pid"], "a main thread, for a viewer", event)
            names[tid] = args["name"]
        if event["ph"] == "M":
            continue
        require(tid in names, "a track without a name", event)
        require((name == "TIMELINE_BEGIN") == (told == 0), "TIMELINE_BEGIN comes first", event)
        if name == "TIMELINE_BEGIN":
            begun = event
        require(event["begin"] >= begun["begin"], "from before the beginning", event)
        if name == "TIMELINE_END":
            require(args["events"] == told, "counted events", told, event)
            require(args["dropped_records"] == dropped, "counted losses", dropped, event)
            ended = event
        if name == "DROPPED":
            dropped += args["records"]
        (spans if event["ph"] == "X" else instants)[tid].append(event)
        told += 1
    require(begun is not None and begun["args"]["rank"] == events[0]["pid"], "TIMELINE_BEGIN")
    require(options.cut or ended is not None, "has no end")
    require(options.dropped or dropped == 0, "lost records", dropped)
    complete = not options.cut and not options.middle and dropped == 0

    by_tensor, moved, lanes = {}, [], []
    for tid, of_track in spans.items():
        if names[tid] != OTHERS:
            check_nesting(of_track)
        if tid >= 100_000:
            require(all(s["name"] in ("WAIT", "CALLBACK") for s in of_track), "thread", of_track[0])
        elif tid >= 20_000:
            lanes += of_track
        else:
            moved += [s for s in of_track if s["name"] in KINDS]
            if names[tid] != OTHERS:
                by_tensor[names[tid]] = operations_of(of_track, instants[tid],
                                                      options.cut and tid == events[-1]["tid"])
    check_buckets(moved, lanes, complete)

    for wanted in options.tensor:
        tensor, rest = wanted.rsplit("=", 1)
        kind, count = rest.split(":")
        done = [o for o in by_tensor.get(tensor, []) if o[0] == kind and o[3] is not None]
        require(len(done) == int(count), wanted, len(done))
    for wanted in options.instant:
        name, text = wanted.split("=", 1)
        all_instants = [e for of_track in instants.values() for e in of_track]
        require(any(e["name"] == name and text in e["args"]["text"] for e in all_instants),
                "not there", wanted, [e for e in all_instants if e["name"] in (name, "DROPPED")])
    for wanted in options.span:
        require(any(s["name"] == wanted for of_track in spans.values() for s in of_track),
                "not there", wanted)
    return by_tensor


def may_be_early(args):
    """Whether a rank may have given its part before the operation began on it."""
    return args["backend"] == "plan" or args["backend"] == "shm" and args["bytes"] <= 32 << 10


def check_together(files):
    """No rank is ordered to begin, or has done, before all have said, or begun."""
    for tensor in set.intersection(*(set(f) for f in files)):
        lists = [f[tensor] for f in files]
        if tensor.startswith("unnamed ") or len({len(l) for l in lists}) != 1:
            continue  # which is which can't be told
        for same in zip(*lists):
            negotiated = [o[1] for o in same if o[2] is not None]  # else it failed before
            moved = [o[3] for o in same if o[3] is not None and o[0] in MEETINGS
                     and "bucket" in o[3]["args"]  # else it failed
                     and not may_be_early(o[3]["args"])]
            for what, phases in (("ordered", negotiated), ("done", moved)):
                if len(phases) == len(files):
                    require(max(p["begin"] for p in phases) <= min(p["end"] for p in phases),
                            f"{tensor} is {what} on one rank before it begins on another", phases)


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--cut", action="store_true")
    parser.add_argument("--dropped", action="store_true")
    parser.add_argument("--middle", action="store_true")
    for option in ("--tensor", "--instant", "--span"):
        parser.add_argument(option, action="append", default=[])
    options = parser.parse_args(arguments)
    files = []
    for path in options.files:
        try:
            files.append(check_file(path, options))
        except (Wrong, ValueError) as error:
            print(f"{path}: {error}")
            return 1
    try:
        check_together(files)
    except Wrong as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
