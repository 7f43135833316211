#!/usr/bin/env python3
"""Checks the documentation of the public functions, which are read from the headers.

    test/lint/api_docs.py snippets           each is called in a marked piece of code of
                                             examples/snippets that docs/api includes
    test/lint/api_docs.py comments           each has a comment, and Doxygen warns of nothing. Those
                                             of LibTorch's headers too, which need no snippet. Exit
                                             status 77: skipped, for lack of Doxygen
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[2]
C_HEADER = ROOT / "bindings/c/include/rueda/rueda.h"
CPP_HEADERS = ROOT / "bindings/cpp/include/rueda/cpp"  # the sections of rueda.hpp
TORCH_HEADERS = ROOT / "bindings/torch/include/rueda"
DOXYFILE = ROOT / "docs/api/Doxyfile"


def c_functions():
    """Those that are not deprecated."""
    text = re.sub(r"^/\*\* Deprecated:[^/]*\*/\n[^;]*;", "", C_HEADER.read_text(), flags=re.M)
    return set(re.findall(r"^RUEDA_API [^;(]*?(\w+)\(", text, re.M))


def cpp_functions(headers=sorted(CPP_HEADERS.glob("*.hpp"))):
    """The functions of the headers: clang-format has them begin, with their type, a line."""
    text = "\n".join(header.read_text() for header in headers)
    text = re.sub(r"^namespace detail \{.*?^\}  // namespace detail$", "", text,
                  flags=re.M | re.S)
    text = re.sub(r"//.*", "", text)
    return set(re.findall(r"^(?!using|requires|namespace)(?:\[\[nodiscard\]\] )?(?:inline )?"
                          r"\w[\w:<>, ]*[ &*](\w+)\(", text, re.M))


def torch_functions():
    """The functions of namespace rueda::libtorch."""
    headers = [TORCH_HEADERS / f"{name}.hpp" for name in ("torch", "strategy", "training",
                                                          "precision")]
    return cpp_functions(headers) - {"WaitFor", "Then"}  # of namespace internal


def snippets(name):
    """The marked pieces of code: mark -> code."""
    text = (ROOT / "examples/snippets" / name).read_text()
    found = re.findall(r"^ *//! \[(\w+)\]\n(.*?)^ *//! \[\1\]$", text, re.M | re.S)
    return dict(found)


def check_snippets():
    errors = []
    included = re.findall(r"^\\snippet (\S+) (\w+)$", (ROOT / "docs/api/api.dox").read_text(), re.M)
    for name, functions, prefix in (("snippets.c", c_functions(), ""),
                                    ("snippets.cc", cpp_functions(), "rueda::")):
        if not functions:
            errors.append(f"no function found for {name}; is {sys.argv[0]} out of date?")
        shown = {mark: code for mark, code in snippets(name).items() if (name, mark) in included}
        errors += [f"{name}: [{mark}] is not included in docs/api/api.dox"
                   for mark in snippets(name) if mark not in shown]
        code = "\n".join(re.sub(r"//.*", "", code) for code in shown.values())
        errors += [f"{prefix}{function} has no piece of code in examples/snippets/{name}"
                   for function in sorted(functions)
                   if not re.search(rf"(?<![\w:]){prefix}{function}\(", code)]
        print(f"{name}: {len(functions)} functions, {len(shown)} pieces of code")
    return errors


def is_documented(member):
    return any("".join(member.find(kind).itertext()).strip()
               for kind in ("briefdescription", "detaileddescription"))


def check_comments():
    if not shutil.which("doxygen"):
        print("SKIPPED: doxygen is not installed (third_party/setup.sh)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        settings = DOXYFILE.read_text() + "GENERATE_HTML = NO\nGENERATE_XML = YES\n"
        run = subprocess.run(["doxygen", "-"], cwd=ROOT, input=settings, text=True,
                             stderr=subprocess.PIPE,
                             env={**os.environ, "RUEDA_VERSION": "", "RUEDA_DOXYGEN": scratch})
        if run.returncode != 0 or run.stderr:
            return [run.stderr, f"doxygen: exit status {run.returncode}"]
        members = {}  # by id: a member is listed where it is defined and in its group
        for path in pathlib.Path(scratch, "xml").glob("*.xml"):
            for member in xml.parse(path).getroot().iter("memberdef"):
                members[member.get("id")] = member
    functions = [m for m in members.values()
                 if m.get("kind") == "function" and m.get("prot") == "public"]
    names = {m.find("name").text for m in functions}
    errors = [f"{f} is not in the documentation" for f in sorted(c_functions() | cpp_functions() | torch_functions())
              if f not in names]
    signatures = [m.find("definition").text + m.find("argsstring").text
                  for m in functions if not is_documented(m)]
    errors += [f"no comment: {signature}" for signature in signatures
               if not re.search(r"=(default|delete)$|operator==", signature)]
    print(f"{len(functions)} functions, {len(members)} members")
    return errors


if __name__ == "__main__":
    found = (check_snippets() if sys.argv[1] == "snippets"
             else check_comments())
    print("\n".join(found))
    sys.exit(1 if found else 0)
