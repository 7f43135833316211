#!/usr/bin/env python3
"""third_party/sysroot.sh, with stand-ins for apt-get and dpkg-deb: what it does to folders.

sysroot_test.py REPOSITORY
"""
import os
import sys
import unittest

import support

SCRIPT = os.path.join(os.path.realpath(sys.argv.pop(1)), "third_party", "sysroot.sh")

# "Fetches" into the folder that the script's configuration names.
APT_GET = r"""
cache=$(sed -n 's/^Dir::Cache "\(.*\)";/\1/p' "$APT_CONFIG")
grep -q '^APT::Architecture "arm64";' "$APT_CONFIG" || exit 1
[[ $1 != install ]] || touch "$cache/archives/one.deb"
"""
DPKG_DEB = """
mkdir -p "$3"/lib "$3"/usr/{lib,share/doc}
touch "$3/lib/liba.so.1" "$3/usr/share/doc/text"
ln -s /lib/liba.so.1 "$3/usr/lib/liba.so"
"""


class Sysroot(support.ScriptTest):
    def setUp(self):
        super().setUp()
        self.program("bin/apt-get", APT_GET)
        self.program("bin/dpkg-deb", DPKG_DEB)

    def make(self, folder):
        return self.run_it("bash", SCRIPT, folder, path=self.path("bin"))

    def test_links_stay_inside(self):
        done = self.make("new")
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(os.readlink(self.path("new/usr/lib/liba.so")), "../../lib/liba.so.1")
        self.assertEqual(os.listdir(self.path("new/usr/share")), [])

    def test_a_second_run_replaces_it(self):
        self.assertEqual(self.make("new").returncode, 0)
        self.write("new/lib/libold.so.1", "of an earlier list of packages")
        self.assertEqual(self.make("new").returncode, 0)
        self.assertEqual(os.listdir(self.path("new/lib")), ["liba.so.1"])

    def test_what_fails_leaves_the_old_one(self):
        self.assertEqual(self.make("new").returncode, 0)
        self.program("bin/apt-get", "exit 1")
        self.refuses(self.make("new"), "apt-get update failed")
        self.assertTrue(os.path.exists(self.path("new/lib/liba.so.1")))

    def test_a_folder_of_somebodys_own_is_refused(self):
        self.write("own/mine", "mine")
        self.refuses(self.make("own"), "own is not empty, and was not made by this")
        self.assertEqual(os.listdir(self.path("own")), ["mine"])
        self.refuses(self.make(self.write("file", "")), "is no folder")


if __name__ == "__main__":
    unittest.main()
