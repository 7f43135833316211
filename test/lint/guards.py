#!/usr/bin/env python3
"""Checks that nothing is thrown across the C API: the body of each exported function is one call of
a guard (bindings/c/guard.h), or of another exported function; but for those of CANNOT_THROW.

    test/lint/guards.py [ROOT]
"""

import re

import tree

SYMBOLS = "test/lint/librueda.symbols"
FUNCTION = re.compile(r"^\w[\w *]*\b(rueda_\w+)\([^;{]*?\)(?: noexcept)? \{\n(.*?)^\}", re.M | re.S)
GUARD = re.compile(r"\s*(?:return|\(void\)) ?(?:rueda::capi::)?(?:Guard|GuardOr|Ask|rueda_\w+)\(")
# What reads and writes atomics and this thread's variables.
CANNOT_THROW = {"rueda_current_context", "rueda_dump_state", "rueda_last_error",
                "rueda_set_default_context", "rueda_set_thread_context", "rueda_status_name",
                "rueda_version"}


def is_one_guarded_call(body):
    if not GUARD.match(body):
        return False
    depth = 0
    for at, letter in enumerate(body):
        depth += (letter in "({") - (letter in ")}")
        if letter == ";" and depth == 0:
            return not body[at + 1:].strip()
    return False


def check(root):
    exported = {line.split("@")[0] for line in (root / SYMBOLS).read_text().splitlines()}
    exported = {name for name in exported if name.startswith("rueda_")}
    bodies = {}
    for path in (root / "bindings/c").glob("*.cc"):
        text = path.read_text()
        bodies |= dict(FUNCTION.findall(text[text.find('extern "C"'):]))
    errors = [f"{name} was not found in bindings/c" for name in sorted(exported - bodies.keys())]
    errors += [f"{name} is not exported: take it from CANNOT_THROW"
               for name in sorted(CANNOT_THROW - exported)]
    errors += [f"{name} must be one call of Guard or GuardOr (bindings/c/guard.h), so that nothing "
               "is thrown across the C API"
               for name in sorted(exported & bodies.keys() - CANNOT_THROW)
               if not is_one_guarded_call(bodies[name])]
    return errors


if __name__ == "__main__":
    tree.run(check)
