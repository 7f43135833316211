#!/usr/bin/env python3
"""Checks what the libraries export, and what they want of others.

    test/lint/symbols.py [--update] LIB_DIR

LIB_DIR holds librueda.so and, where they were built, rueda/librueda_gloo.so, librueda_apart.so, librueda_xla.so and
librueda_torch.so. The dynamic symbols of all but the last must be those of NAME.symbols beside this file; a
C++ adapter may export its own namespace, and what C++ makes every library export of others' inline
code. --update writes the lists anew; look at the difference before it is committed: what was
released stays.
"""
import difflib
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = ["librueda", "librueda_gloo", "librueda_apart", "librueda_xla"]
# Whose symbols librueda.so may not want (it is to load without them), and nobody may pass on.
MODULES = re.compile(r"\b(gloo|c10|at|torch|caffe2)::|^(nccl|uv_|cuda)")
LIBRARIES = re.compile(r"\b(absl|google::protobuf|hwy)::")
NEEDED = {
    "librueda": r"libprotobuf-lite|libsodium|libabsl_\w+|libhwy",
    "librueda_gloo": r"libgloo",
    "librueda_apart": r"librueda",
    "librueda_xla": r"",
    "librueda_torch": r"librueda|libtorch_cpu|libc10",
}
# The adapter's own, and the tables of its exported classes.
OWN = re.compile(r"((vtable|typeinfo|typeinfo name) for )?rueda::libtorch::")
SYSTEM = r"libstdc\+\+|libgcc_s|libm|libc|ld-linux-[\w-]+"


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(library, which):
    """(type, name with its version, C++ name) of each dynamic symbol."""
    result = []
    for line in run("nm", "-D", f"--{which}-only", str(library)).splitlines():
        kind, name = line.split()[-2:]
        result.append((kind, name))
    plain = [name.split("@")[0] for _, name in result]
    names = run("c++filt", *plain).splitlines() if result else []
    return [(kind, name, pretty) for (kind, name), pretty in zip(result, names)]


def exported(library):
    """Sorted names; a node of the symbol map is no symbol."""
    return sorted(name for kind, name, _ in symbols(library, "defined") if kind != "A")


def check_golden(name, library, update):
    path = HERE / f"{name}.symbols"
    now = exported(library)
    if update:
        path.write_text("".join(line + "\n" for line in now))
        print(f"wrote {path.name}: {len(now)} symbols")
        return []
    before = path.read_text().splitlines()
    if before == now:
        return []
    difference = "\n".join(difflib.unified_diff(
        before, now, f"test/lint/{path.name}", f"{library.name}, as built", lineterm=""))
    return [f"{name}.so exports other symbols than its list says:\n{difference}\n"
            f"If that is meant: test/lint/symbols.py --update {library.parent}"]


def check_needed(name, library):
    needed = re.findall(r"\(NEEDED\).*\[(.+?)\.so", run("readelf", "-dW", str(library)))
    return [f"{name}.so needs {other}.so; {sys.argv[0]} says what it may need"
            for other in needed if not re.fullmatch(f"{NEEDED[name]}|{SYSTEM}", other)]


def check_librueda(library):
    errors = [f"librueda.so exports {pretty}, which is no part of the C API"
              for kind, name, pretty in symbols(library, "defined")
              if kind != "A" and not name.startswith("rueda_")]
    errors += [f"librueda.so wants {pretty} of a library that only a module may link"
               for _, _, pretty in symbols(library, "undefined") if MODULES.search(pretty)]
    return errors


def check_adapter(library):
    """Of its own the adapter exports rueda::libtorch. Inline code, type information and tables of
    torch's and the standard library's are weak in every library that uses them."""
    errors = []
    own = 0
    for kind, name, pretty in symbols(library, "defined"):
        if name in ("__bss_start", "_edata", "_end", "_init", "_fini"):
            continue  # the linker's
        if OWN.match(pretty):
            own += 1
        elif kind not in "WVu":
            errors.append(f"librueda_torch.so exports {pretty} ({kind}), which is not of rueda::libtorch")
        elif LIBRARIES.search(pretty) or re.search(r"\brueda::", pretty):
            errors.append(f"librueda_torch.so leaks {pretty}")
    if own == 0:
        errors.append("librueda_torch.so exports nothing of rueda::libtorch")
    return errors


def main(arguments):
    update = "--update" in arguments
    places = [a for a in arguments if a != "--update"]
    if len(places) != 1:
        sys.exit(__doc__)
    lib_dir = pathlib.Path(places[0])
    errors = []
    for name in [*GOLDEN, "librueda_torch"]:
        library = lib_dir / ("rueda" if name == "librueda_gloo" else "") / f"{name}.so"
        if not library.exists():
            if name == "librueda":
                sys.exit(f"there is no {library}")
            print(f"SKIPPED in part: {name}.so was not built")
            continue
        if name in GOLDEN:
            errors += check_golden(name, library, update)
        errors += check_needed(name, library)
        if name == "librueda":
            errors += check_librueda(library)
        elif name == "librueda_torch":
            errors += check_adapter(library)
        print(f"{name}.so: {len(exported(library))} symbols looked at")
    for error in errors:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
