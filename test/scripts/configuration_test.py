#!/usr/bin/env python3
"""How the build is configured: the options of three values, places that are not there, and which of CUDA's compilers
the build and third_party/setup.sh take, with stand-ins for them.

configuration_test.py REPOSITORY
"""
import os
import re
import shutil
import sys
import unittest

import support

REPOSITORY = os.path.realpath(sys.argv.pop(1))
WHEELS = "cache/rueda/venv/lib/python3.11/site-packages/nvidia"
ASK = f"""
list(APPEND CMAKE_MODULE_PATH {REPOSITORY}/cmake)
include(RuedaFindNvcc)
rueda_find_nvcc("${{wheels}}" nvcc version why)
message("${{nvcc}}|${{version}}|${{why}}")
"""


class Nvcc(support.ScriptTest):
    def compiler(self, name, version):
        return self.program(name, f'echo "Cuda compilation tools, release {version}, V{version}.1"')

    def found(self, **variables):
        """nvcc, version, why not."""
        script = self.write("ask.cmake", ASK)
        done = self.run_it("cmake", f"-Dwheels={self.path(WHEELS)}", f"-Drueda_cuda_toolkit={self.path('toolkit')}",
                           "-P", script, path=self.path("bin"), **variables)
        self.assertEqual(done.returncode, 0, done)
        return done.stderr.rstrip("\n").split("|")

    def refused(self, words, **variables):
        script = self.write("ask.cmake", ASK)
        done = self.run_it("cmake", "-P", script, path=self.path("bin"), **variables)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(words, re.sub(r"\s+", " ", done.stderr))

    def test_the_one_in_path_goes_first(self):
        in_path = self.compiler("bin/nvcc", "12.4")
        self.compiler(WHEELS + "/cu13/bin/nvcc", "13.0")
        self.assertEqual(self.found(), [in_path, "12.4", ""])

    def test_one_that_is_too_old_or_broken_hides_no_other(self):
        wheel = self.compiler(WHEELS + "/cu13/bin/nvcc", "13.0")
        self.compiler("bin/nvcc", "11.8")
        self.assertEqual(self.found(), [wheel, "13.0", ""])
        self.program("bin/nvcc", "echo no such library >&2; exit 127")
        self.assertEqual(self.found(), [wheel, "13.0", ""])
        toolkit = self.compiler("toolkit/bin/nvcc", "12.6")
        self.assertEqual(self.found(), [toolkit, "12.6", ""])

    def test_why_there_is_none(self):
        old = self.compiler("bin/nvcc", "11.8")
        self.assertEqual(self.found(), ["", "", f"{old} is CUDA 11.8, and 12.1 is the oldest that will do"])
        self.program("bin/nvcc", "echo no such library >&2; exit 127")
        self.assertEqual(self.found()[2], f"{old} does not say which version it is: no such library")
        os.remove(old)
        if shutil.which("nvcc") is None:
            self.assertEqual(self.found()[2], "nvcc was not found")

    def test_one_that_is_named_wins_or_is_an_error(self):
        self.compiler("bin/nvcc", "12.4")
        named = self.compiler("mine/nvcc", "12.8")
        self.assertEqual(self.found(CUDACXX=named), [named, "12.8", ""])
        self.refused("CUDACXX=/no/such/nvcc: there is no such program", CUDACXX="/no/such/nvcc")
        self.compiler("mine/nvcc", "11.8")
        self.refused("is CUDA 11.8, and 12.1 is the oldest", CUDACXX=named)

    def test_set_up_refuses_a_named_one_before_it_installs_anything(self):
        script = os.path.join(REPOSITORY, "third_party", "setup.sh")
        self.refuses(self.run_it("bash", script, "--cuda", CUDACXX="/no/such/nvcc"),
                     "CUDACXX=/no/such/nvcc: there is no such program")
        old = self.compiler("mine/nvcc", "11.8")
        self.refuses(self.run_it("bash", script, "--cuda", CUDACXX=old), "it is CUDA 11.8, and 12.1 is the oldest")
        self.refuses(self.run_it("bash", script, "--cuda", RUEDA_VENV=self.write("file", "")), "is no folder")


class Choices(support.ScriptTest):
    def ask(self, line):
        script = self.write("ask.cmake", f"include({REPOSITORY}/cmake/RuedaChoices.cmake)\n{line}\n")
        return self.run_it("cmake", "-P", script)

    def test_cmakes_words_for_on_and_off_will_do(self):
        for words, meant in (("ON on 1 TRUE true Yes y", "ON"), ("OFF off 0 FALSE no N", "OFF"), ("AUTO auto", "AUTO")):
            for word in words.split():
                done = self.ask(f'set(CHOICE {word})\nrueda_read_choice(CHOICE)\nmessage("${{CHOICE}}")')
                self.assertEqual((done.returncode, done.stderr), (0, meant + "\n"), word)
        for word in ("maybe", "2", '""'):
            done = self.ask(f"set(CHOICE {word})\nrueda_read_choice(CHOICE)")
            self.assertNotEqual(done.returncode, 0, word)
            self.assertIn("expected ON, OFF or AUTO", done.stderr)

    def test_a_place_that_is_not_there_is_an_error(self):
        for path, is_well in (("", True), (self.folder, True), ("/no/such", False), ("${CMAKE_CURRENT_LIST_FILE}", False)):
            done = self.ask(f'rueda_check_folder(PLACE "{path}" folder)')
            self.assertEqual(done.returncode == 0, is_well, done)
            self.assertEqual("there is no such folder" in done.stderr, not is_well, done)


if __name__ == "__main__":
    unittest.main()
