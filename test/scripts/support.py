"""For tests of scripts: programs that stand in for others, and runs."""
import os
import subprocess
import tempfile
import unittest


class ScriptTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, text, mode=0o644):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def program(self, name, body):
        """A script of that body."""
        return self.write(name, "#!/bin/bash\n" + body + "\n", 0o755)

    def run_it(self, *words, path=None, cwd=None, **variables):
        """The words as a program; `path`: a folder that is looked at first. Other variables: None unsets one."""
        environment = dict(os.environ)
        for name in ("RUEDA_VENV", "RUEDA_PREFIX", "CUDACXX"):
            environment.pop(name, None)
        if path is not None:
            environment["PATH"] = f"{path}:{environment['PATH']}"
        environment.update(variables)
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd or self.folder,
                              env=environment, timeout=60, check=False)

    def refuses(self, done, words, status=1):
        """It said that in one line, and nothing else."""
        self.assertEqual(done.returncode, status, done)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertEqual(done.stdout, "")
