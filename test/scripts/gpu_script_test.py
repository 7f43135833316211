#!/usr/bin/env python3
"""test/gpu.sh, with stand-ins for what it runs: that it says what did not run, and then does not claim success.

gpu_script_test.py REPOSITORY
"""
import os
import shutil
import sys
import unittest

import support

SCRIPT = os.path.join(os.path.realpath(sys.argv.pop(1)), "test", "gpu.sh")

DEVICE = "      NCCL 2.32.3 (built with 2.32.3), CUDA 13.0; the driver supports CUDA 13.0\n      device 0: H100, 79 GiB\n"
NO_DEVICE = "      can't be used here: there is no CUDA device: no NVIDIA driver is installed\n"
CTEST = """
printf '%s\\n' "Test project there" "1/2 Test  #7: nccl_module_test .........$1 0.1 sec" \\
  "2/2 Test  #9: torch_cuda_test ..........$2 0.2 sec"
exit $3
"""


class GpuScript(support.ScriptTest):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("test"))
        shutil.copy(SCRIPT, self.path("test"))

    def tree(self, says=DEVICE, tests=("   Passed", "   Passed"), status=0):
        """What was built, and what its programs say."""
        self.write("says", says)
        self.program("build/gpu/bin/ruedarun", f'if [[ $1 == --check-build ]]; then cat {self.path("says")}; '
                     'else shift 2; "$@"; fi')
        for name in ("rueda_bench", "rueda_nccl_bench"):
            self.program(f"build/gpu/bin/{name}", 'echo "measured: $*"')
        self.program("bin/ctest", f"set -- '{tests[0]}' '{tests[1]}' {status}\n" + CTEST)
        self.program("bin/compute-sanitizer", "exit 0")

    def gpu(self, *options, **variables):
        return self.run_it("bash", "test/gpu.sh", *options, path=self.path("bin"), RUEDA_VENV=self.folder, **variables)

    def test_all_ran(self):
        self.tree()
        done = self.gpu("--tests", "--sanitizer", "--bench")
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("==== rueda_bench, 1 rank\n", done.stdout)
        self.assertIn("==== rueda_bench, 2 ranks\n", done.stdout)
        self.assertNotIn("did not run", done.stdout)

    def test_without_a_device_nothing_is_begun(self):
        self.tree(says=NO_DEVICE)
        for part in ("--tests", "--sanitizer", "--bench"):
            done = self.gpu(part)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr, "gpu.sh: no CUDA device can be used here: there is no CUDA device: "
                             "no NVIDIA driver is installed\n")
            self.assertNotIn("nccl_module_test", done.stdout)
            self.assertNotIn("measured", done.stdout)

    def test_a_test_that_skipped_has_not_passed(self):
        self.tree(tests=("   Passed", "***Skipped"))
        done = self.gpu("--tests")
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stdout.endswith(
            "\ndid not run: torch_cuda_test: it skipped (build/gpu/test/torch_cuda_test says why)\n"), done.stdout)

    def test_failures_are_a_line_each(self):
        self.tree(tests=("***Failed ", "   Passed"), status=8)
        self.program("build/gpu/bin/rueda_bench", "exit 1")
        done = self.gpu("--tests", "--bench")
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stdout.endswith("\nfailed: tests\nfailed: rueda_bench, 1 rank\nfailed: rueda_bench, 2 ranks\n"
                                             "failed: many, 2 ranks\n"), done.stdout)

    def test_without_torch_it_says_so(self):
        self.tree()
        self.program("bin/ctest", "echo '1/1 Test  #7: nccl_module_test .........   Passed 0.1 sec'")
        done = self.gpu("--tests")
        self.assertEqual(done.returncode, 1)
        self.assertIn("\ndid not run: torch_cuda_test: built without torch", done.stdout)

    def test_what_is_missing_is_said_in_a_line(self):
        for part in ("--tests", "--bench", "--sanitizer"):
            self.refuses(self.gpu(part), "gpu.sh: build/gpu is not built yet: test/gpu.sh --build comes first")
        self.tree()
        os.remove(self.path("bin/compute-sanitizer"))
        if shutil.which("compute-sanitizer") is None:
            self.refuses(self.gpu("--sanitizer"), "gpu.sh: --sanitizer: compute-sanitizer")
        self.refuses(self.gpu("--tests", RUEDA_PREFIX="no/such"), "RUEDA_PREFIX=no/such: there is no such folder")
        self.refuses(self.run_it("bash", "test/gpu.sh", "--build", RUEDA_VENV="/no/such"),
                     "RUEDA_VENV=/no/such: there is no such virtual environment")
        self.refuses(self.gpu("--build", CUDACXX="/no/such/nvcc"), "CUDACXX=/no/such/nvcc: there is no such program")
        self.refuses(self.gpu("--nonsense"), "unknown option --nonsense", status=2)

    def test_a_prefix_is_where_the_caller_is(self):
        self.tree()
        os.makedirs(self.path("away/mine"))
        self.program("bin/cmake", 'echo "cmake $*"')
        done = self.run_it("bash", "../test/gpu.sh", "--build", cwd=self.path("away"), path=self.path("bin"),
                           RUEDA_PREFIX="mine", RUEDA_VENV=self.folder)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("-DRUEDA_PREFIX=" + os.path.realpath(self.path("away/mine")), done.stdout)


if __name__ == "__main__":
    unittest.main()
