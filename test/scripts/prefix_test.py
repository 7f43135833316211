#!/usr/bin/env python3
"""third_party/prefix.sh, with stand-ins for apt-get and dpkg-deb: what it does to folders.

prefix_test.py REPOSITORY
"""
import os
import sys
import unittest

import support

SCRIPT = os.path.join(os.path.realpath(sys.argv.pop(1)), "third_party", "prefix.sh")


class Prefix(support.ScriptTest):
    def setUp(self):
        super().setUp()
        self.program("bin/apt-get", "touch one.deb")
        self.program("bin/dpkg-deb", 'mkdir -p "$3"/usr/{lib,src,share/doc}; touch "$3"/usr/lib/lib{a.a,a.so,only.a} '
                     '"$3"/usr/share/doc/text')

    def unpack(self, folder):
        return self.run_it("bash", SCRIPT, folder, path=self.path("bin"))

    def test_unpacks_and_unpacks_again(self):
        for _ in range(2):
            done = self.unpack("new")
            self.assertEqual(done.returncode, 0, done)
            self.assertEqual(sorted(os.listdir(self.path("new/usr/lib"))), ["liba.so", "libonly.a"])
            self.assertEqual(sorted(os.listdir(self.path("new/usr"))), ["lib", "share"])
            self.assertEqual(os.listdir(self.path("new/usr/share")), [])

    def test_what_others_have_put_there_stays(self):
        self.assertEqual(self.unpack("new").returncode, 0)
        for name in ("new/usr/lib/liba.a", "new/usr/share/doc/mine", "new/usr/src/mine"):
            self.write(name, "mine")
        self.assertEqual(self.unpack("new").returncode, 0)
        for name in ("new/usr/lib/liba.a", "new/usr/share/doc/mine", "new/usr/src/mine"):
            self.assertTrue(os.path.exists(self.path(name)), name)

    def test_an_empty_folder_will_do(self):
        os.mkdir(self.path("empty"))
        self.assertEqual(self.unpack("empty").returncode, 0)

    def test_a_folder_of_somebodys_own_is_refused(self):
        self.write("own/usr/share/doc/mine", "mine")
        self.refuses(self.unpack("own"), "own is not empty, and was not made by this")
        self.assertEqual(os.listdir(self.path("own/usr")), ["share"])
        self.refuses(self.unpack("/"), "/ is not empty")
        self.refuses(self.unpack(self.write("file", "")), "is no folder")


if __name__ == "__main__":
    unittest.main()
