#!/usr/bin/env python3
"""Checks that an operation takes the same parameters in the same order in every binding.

    test/lint/parameters.py

The bindings are rueda.hpp, torch.hpp and Python (rueda.core). What C++ has in a struct of options
counts as if its fields were parameters, one after another. A binding may lack a parameter; those
that two bindings both have must come in one order.
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPP = ROOT / "bindings/cpp/include/rueda/cpp"
TORCH = ROOT / "bindings/torch/include/rueda/torch.hpp"
PYTHON = ROOT / "bindings/python/rueda/core"
OPERATION = re.compile(r"(grouped_|sparse_)?(allreduce|reduce|broadcast|allgather|gather|scatter|"
                       r"alltoall|reducescatter|send|recv)(_with_splits)?(_async)?_?|"
                       r"(broadcast|allgather)_object")
# One word for what is called differently because it is something else in that language.
SAME = {"object": "obj", "handles": "handle"}


def without_comments(text):
    return re.sub(r"//.*", "", text)


def structs(text):
    """The options' fields, in order: struct -> names."""
    found = {name: re.findall(r"(\w+) = [^;]*;", body)
             for name, body in re.findall(r"^struct (\w*Options) \{\n(.*?)^\};", text, re.M | re.S)}
    for alias, name in re.findall(r"^using (\w+Options) = (\w+);", text, re.M):
        found[alias] = found[name]
    return found


def split(parameters):
    """At the commas of the outermost level."""
    parts, depth = [""], 0
    for letter in parameters:
        depth += (letter in "<({") - (letter in ">)}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def cpp_functions(text, options):
    """function -> lists of its parameters, one for each overload."""
    functions = {}
    for match in re.finditer(r"(?<![\w.>:])(\w+)\(((?:[^(){};]|\([^()]*\)|\{\})*)\)\s*(?:\{|;|\n= delete)",
                             text):
        name, parameters = match.groups()
        if not OPERATION.fullmatch(name) or not re.match(r"\s*(const \w|[A-Z]\w*&)", parameters):
            continue
        names = []
        for parameter in split(parameters):
            kind, word = re.fullmatch(r"(.*?)(\w+)(?: = .*)?",
                                      parameter.replace(" RUEDA_LIFETIMEBOUND", ""), re.S).groups()
            struct = re.search(r"(\w*Options)\b", kind)
            names += options[struct[1]] if struct else [word]
        functions.setdefault(name, []).append(names)
    return functions


def python_functions():
    functions = {}
    for path in sorted(PYTHON.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and OPERATION.fullmatch(node.name):
                arguments = node.args.args + node.args.kwonlyargs
                functions.setdefault(node.name, []).append([a.arg for a in arguments])
    return functions


def main():
    sections = without_comments("\n".join(path.read_text() for path in sorted(CPP.glob("*.hpp"))
                                          if path.name != "deprecated.hpp"))
    torch = without_comments(TORCH.read_text())
    options = structs(sections)
    bindings = {
        "rueda.hpp": cpp_functions(sections, options),
        "torch.hpp": cpp_functions(torch, options | structs(torch)),
        "rueda.core": python_functions(),
    }
    errors = [f"no operation found in {name}; is {sys.argv[0]} out of date?"
              for name, functions in bindings.items() if len(functions) < 20]
    pairs = 0
    names = list(bindings)
    for i, one in enumerate(names):
        for other in names[i + 1:]:
            for function in sorted(bindings[one].keys() & bindings[other].keys()):
                for mine in bindings[one][function]:
                    for theirs in bindings[other][function]:
                        pairs += 1
                        mine = [SAME.get(word, word) for word in mine]
                        theirs = [SAME.get(word, word) for word in theirs]
                        common = [word for word in mine if word in theirs and word != "temporary"]
                        if common != [word for word in theirs if word in mine]:
                            errors.append(f"{function}: {one} has ({', '.join(mine)}), "
                                          f"{other} ({', '.join(theirs)})")
    print("\n".join(errors))
    print(f"{pairs} pairs of signatures, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
