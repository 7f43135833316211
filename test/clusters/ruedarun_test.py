#!/usr/bin/env python3
"""ruedarun on several hosts (hosts.py), which it reaches by a real ssh (sshd.py). Needs root.

ruedarun_test.py RUEDARUN HELLO RUEDA_BENCH
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import hosts
import slurm
import sshd
import support

RUEDARUN, HELLO, BENCH = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
HANG = 60  # seconds


def setUpModule():
    support.skip_all(sshd.why_not())


class OnHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = hosts.Hosts(3)
        cls.addClassCleanup(cls.cluster.remove)
        cls.keys = tempfile.mkdtemp(prefix="rueda-sshd-")
        cls.addClassCleanup(shutil.rmtree, cls.keys)
        cls.sshd = sshd.Sshd(cls.cluster, cls.keys)
        cls.addClassCleanup(cls.sshd.stop)
        cls.a, cls.b, cls.c = cls.cluster.names

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="rueda-hosts-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.addCleanup(self.expect_nothing_left)

    def expect_nothing_left(self):
        """No process on any of the hosts but their sshd: agents and sessions end a moment after ruedarun."""
        deadline = time.monotonic() + HANG
        while left := self.sshd.processes():
            self.assertLess(time.monotonic(), deadline, left)
            time.sleep(0.02)

    def command(self, *words):
        """ruedarun on the first host."""
        return self.sshd.command(0, RUEDARUN, *words)

    def run_job(self, *words, **environment):
        return subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=HANG, cwd=self.folder,
                              env={**os.environ, **environment})

    def start_job(self, *words):
        job = subprocess.Popen(self.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd=self.folder)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        return job

    def expect_hello(self, size, *words):
        done = self.run_job(*words, HELLO)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         [f"[{rank}] {support.line_of(rank, size)}" for rank in range(size)])
        self.assertEqual(done.stderr, "")

    def expect_refused(self, status, *lines, words):
        done = self.run_job(*words)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stdout, "")
        said = done.stderr.splitlines()
        self.assertEqual(len(said), len(lines), done.stderr)
        for line, pattern in zip(sorted(said), sorted(lines)):
            self.assertRegex(line, f"^ruedarun: {pattern}")


class Starts(OnHosts):
    def test_this_host_and_another(self):
        self.expect_hello(4, "-np", "4", "-H", f"{self.a}:2,{self.b}:2")

    def test_only_others(self):
        self.expect_hello(3, "-H", f"{self.b}:2,{self.c}")

    def test_one_other_alone(self):
        self.expect_hello(2, "-H", f"{self.c}:2")

    def test_uneven_and_not_all_slots(self):
        self.expect_hello(5, "-np", "5", "-H", f"{self.c}:1,{self.a}:3,{self.b}:4")

    def test_hosts_of_a_file(self):
        path = os.path.join(self.folder, "hosts")
        with open(path, "w", encoding="ascii") as file:
            file.write(f"{self.a} slots=1  # this one\n{self.b} slots=1\n")
        self.expect_hello(2, "--hostfile", path)

    def test_names_of_one_host_are_one(self):
        self.expect_hello(4, "-H", f"{self.a}:1,{self.b}:2,10.77.0.1:1")

    def test_an_interface_by_name(self):
        self.expect_hello(2, "--network-interface", "eth0", "-H", f"{self.a},{self.b}")

    def test_ranks_find_their_place(self):
        done = self.run_job("-H", f"{self.a}:1,{self.b}:2", "sh", "-c",
                            "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $HOROVOD_CROSS_SIZE "
                            "$MASTER_ADDR $(hostname) $PWD")
        self.assertEqual(done.returncode, 0, done.stderr)
        place = [line.split(maxsplit=1)[1] for line in sorted(done.stdout.splitlines())]
        self.assertEqual(place, [f"0 3 0 1 0 2 10.77.0.1 {self.a} {self.folder}",
                                 f"1 3 0 2 1 2 10.77.0.1 {self.b} {self.folder}",
                                 f"2 3 1 2 1 2 10.77.0.1 {self.b} {self.folder}"])

    def test_only_some_variables_travel(self):
        done = self.run_job("-x", "SECOND", "-x", "THIRD=3 4", "-H", f"{self.b}", "sh", "-c",
                            'echo "$FIRST|$SECOND|$THIRD|$NCCL_DEBUG|$RUEDA_LOG_LEVEL"',
                            FIRST="1", SECOND="2", NCCL_DEBUG="WARN", RUEDA_LOG_LEVEL="error")
        self.assertEqual(done.stdout, "[0] |2|3 4|WARN|error\n", done.stderr)

    def test_outputs_go_to_files_here(self):
        out = os.path.join(self.folder, "out")
        done = self.run_job("--output-dir", out, "-H", f"{self.a},{self.b}", "sh", "-c", "echo $RANK; echo e$RANK >&2")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        for name, text in (("rank.0.out", "0\n"), ("rank.1.out", "1\n"), ("rank.0.err", "e0\n"), ("rank.1.err", "e1\n")):
            with open(os.path.join(out, name), encoding="ascii") as file:
                self.assertEqual(file.read(), text)

    def test_much_output_comes_whole(self):
        script = "import sys\nfor i in range(40000): print('x' * 99)\nprint('e' * 99, file=sys.stderr)"
        done = self.run_job("--prefix", "none", "-H", f"{self.a},{self.b}", sys.executable, "-c", script)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, ("x" * 99 + "\n") * 80_000)
        self.assertEqual(done.stderr, ("e" * 99 + "\n") * 2)

    def test_the_secret_is_in_no_command_line_and_no_environment(self):
        job = self.start_job("-H", f"{self.a},{self.b}", "sh", "-c", "echo up; exec sleep 60")
        for _ in range(2):
            self.assertIn("up", job.stdout.readline())
        seen = set()
        for pid in self.sshd.processes():
            with open(f"/proc/{pid}/environ", "rb") as environ:
                fd = re.search(rb"RUEDA_SECRET_FD=(\d+)", environ.read())
            if fd:
                with open(f"/proc/{pid}/fd/{fd[1].decode()}", "rb") as secret:
                    seen.add(secret.read())
        self.assertEqual(len(seen), 1)
        secret = seen.pop()
        self.assertEqual(len(secret), 32)
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for name in ("cmdline", "environ"):
                try:
                    with open(f"/proc/{pid}/{name}", "rb") as file:
                        text = file.read()
                except OSError:
                    continue
                for form in (secret, secret.hex().encode()):
                    self.assertNotIn(form, text)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(HANG), 128 + signal.SIGTERM)


class Refusals(OnHosts):
    def script(self, text):
        path = os.path.join(self.folder, "script")
        with open(path, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\n{text}\n")
        os.chmod(path, 0o755)
        return path

    def test_a_program_that_is_not_there(self):
        self.expect_refused(127, f"host {self.a}: program './none' not found$", f"host {self.b}: program './none' not found$",
                            words=["-H", f"{self.a},{self.b}", "./none"])

    def test_loopback_leads_to_no_other_host(self):
        for words in (["--network-interface", "lo"], ["-x", "RUEDA_NETWORK_INTERFACE=lo"]):
            self.expect_refused(1, f"host {self.a}: network interface lo is loopback, by which ranks on other hosts can't "
                                   "be reached: name another", words=[*words, "-H", f"{self.a},{self.b}", "true"])

    def test_a_host_without_ruedarun(self):
        program = os.path.join(self.folder, "ruedarun")
        shutil.copy(RUEDARUN, program)
        other = self.script(f'host=$1\nshift\nmv {program} {program}.away\n{self.sshd.bin}/ssh $host "$@"\nstatus=$?\n'
                            f'mv {program}.away {program}\nexit $status')
        done = subprocess.run(self.sshd.command(0, program, "--remote-shell", other, "-H", self.b, "true"),
                              capture_output=True, text=True, timeout=HANG)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, f"^ruedarun: host {self.b}: can't start {program} there, which every host "
                                      "needs at this path .*No such file")

    def test_another_version(self):
        other = self.script(f'{self.sshd.bin}/ssh "$@" | sed -u "s/ruedarun [0-9.]*[0-9]/ruedarun 9.9.9/"')
        self.expect_refused(1, rf"host {self.b}: .*/ruedarun there is ruedarun 9\.9\.9, and here ruedarun .*: all hosts "
                               "need the same$", words=["--remote-shell", other, "-H", self.b, "true"])

    def test_a_host_that_does_not_answer(self):
        done = self.run_job("--start-timeout", "5", "-H", f"{self.a},10.77.0.99", "true")
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1], "^ruedarun: host 10.77.0.99: .*(No route to host|timed out)")

    def test_a_name_that_nobody_knows(self):
        self.expect_refused(1, r"host no-such-host.invalid: not ready after 3 s \(--start-timeout\): ssh: Could not "
                            "resolve hostname", "host no-such-host.invalid: ssh: .*; trying again",
                            words=["--start-timeout", "3", "-H", f"{self.a},no-such-host.invalid", "true"])

    def test_a_key_that_is_not_the_hosts(self):
        with open(self.sshd.known_hosts, encoding="ascii") as file:
            known = file.read()
        keys = dict(line.split(" ", 1) for line in known.splitlines())
        entries = list(keys)
        keys[entries[1]], keys[entries[2]] = keys[entries[2]], keys[entries[1]]
        self.addCleanup(self.sshd._write, "known_hosts", known)
        self.sshd._write("known_hosts", "".join(f"{name} {key}\n" for name, key in keys.items()))
        self.expect_refused(1, f"host {self.b}: Host key verification failed",
                            words=["-H", f"{self.a},{self.b}", "true"])

    def test_a_user_who_may_not(self):
        """And whom the right key lets in."""
        ssh = self.script(f'exec {shutil.which("ssh")} -F /dev/null -o IdentitiesOnly=yes '
                          f'-o UserKnownHostsFile={self.sshd.known_hosts} "$@"')
        stranger = self.sshd.make_key(f"stranger-{os.path.basename(self.folder)}")
        os.mkdir(os.path.join(self.folder, "bin"))
        os.rename(ssh, os.path.join(self.folder, "bin", "ssh"))
        for key, status in ((stranger, 1), (self.sshd.key, 0)):
            done = subprocess.run(
                self.sshd.command(0, "sh", "-c", f'PATH={self.folder}/bin:$PATH; exec "$@"', "sh", RUEDARUN, "-i", key,
                                  "-H", self.b, "true"), capture_output=True, text=True, timeout=HANG)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertRegex(done.stderr, f"^ruedarun: host {self.b}: .*Permission denied" if status else "^$")

    def test_a_port_where_nobody_listens(self):
        self.expect_refused(1, f"host {self.b}: not ready after 3 s .*: ssh: connect to host .* port 2222: Connection "
                            "refused$", f"host {self.b}: ssh: .*; trying again",
                            words=["--start-timeout", "3", "-p", "2222", "-H", self.b, "true"])

    def test_a_host_that_comes_up_later(self):
        """FAKE: a shell that fails as ssh does as long as a host's name is not known."""
        tries = os.path.join(self.folder, "tries")
        late = self.script(f'echo >> {tries}; test $(wc -l < {tries}) -gt 2 || {{ echo "ssh: Could not resolve hostname '
                           f'$1: Name or service not known" >&2; exit 255; }}; exec {self.sshd.bin}/ssh "$@"')
        done = subprocess.run(self.sshd.command(0, RUEDARUN, "--remote-shell", late, "-H", self.b, "echo", "here"),
                              capture_output=True, text=True, timeout=HANG)
        self.assertEqual((done.returncode, done.stdout), (0, "[0] here\n"), done.stderr)
        self.assertRegex(done.stderr, f"^ruedarun: host {self.b}: ssh: Could not resolve hostname .*; trying again for "
                                      r"60 s \(--start-timeout\)$")

    def test_a_directory_that_is_not_there(self):
        gone = os.path.join(self.folder, "gone")
        os.mkdir(gone)
        done = subprocess.run(
            self.sshd.command(0, "sh", "-c", f'cd {gone}; rmdir {gone}; exec "$@"', "sh", RUEDARUN, "-H", self.b, "true"),
            capture_output=True, text=True, timeout=HANG)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "^ruedarun: the current directory can't be found")

    def test_one_machine_under_two_names(self):
        self.expect_refused(1, f"host (10.77.0.2|{self.b}): it is the same machine as (10.77.0.2|{self.b}); name it once",
                            words=["-H", f"{self.b},10.77.0.2", "true"])

    def test_a_remote_shell_that_is_not_there(self):
        self.expect_refused(1, f"host {self.b}: can't start /no/shell: No such file",
                            words=["--remote-shell", "/no/shell", "-H", self.b, "true"])

    def test_what_an_account_says_that_is_none(self):
        """On either output."""
        refuses = self.script("echo 'Could not chdir' >&2; echo 'Please login as admin.'; exit 142")
        self.expect_refused(1, rf"host {self.b}: Could not chdir; Please login as admin\.$",
                            words=["--remote-shell", refuses, "-H", self.b, "true"])

    def test_what_an_agent_says_that_is_none(self):
        """Whatever answers behind a remote shell: it ends the job, and does nothing else."""
        minus_one = b"\xff" * 9 + b"\x01"
        for message, said in (
                (b"\x22\x0d\x08\x07\x10" + minus_one, "its agent sent a message with a rank of another host$"),
                (b"\x22\x02\x08\x63", "its agent sent a message with an event that agents don't tell of$"),
                (b"\x0a\x06\x0a\xff\xff\xff\xff\x07", "its agent sent a message that is none$"),  # 2 GiB come
                (b"\x32\x04" + b"\x1b[2J", None),
                (b"\x1a\x08\x0a\x06\x1b]0;x\x07", r"\?\]0;x\?$"),
                (b"", "its agent sent a message with nothing in it$")):
            frame = len(message).to_bytes(4, "little") + message + b"\n"
            octal = "".join(f"\\{byte:03o}" for byte in b"\nrueda agent\n" + frame)
            agent = self.script(f"printf '{octal}'; printf '\\033[2J\\n' >&2; exec sleep 60")
            if said is not None:
                self.expect_refused(1, f"host {self.b}: {said}", words=["--remote-shell", agent, "-H", self.b, "true"])
            else:  # a loss that is told before there are ranks is none
                self.expect_refused(1, rf"host {self.b}: not ready after 1 s .*: \?\[2J$", words=[
                    "--start-timeout", "1", "--remote-shell", agent, "-H", self.b, "true"])

    def test_a_remote_shell_that_hangs(self):
        self.expect_refused(1, rf"host {self.b}: not ready after 1 s \(--start-timeout\)",
                            words=["--start-timeout", "1", "--remote-shell", self.script("exec sleep 60"), "-H", self.b, "true"])


class Ends(OnHosts):
    def start_bench(self, size, hosts_option):
        """A job that reduces until it is ended, and its ranks' pids."""
        job = self.start_job("--verbose", "-H", hosts_option, "-x", f"RUEDA_RECORDER_DIR={self.folder}", BENCH,
                             "--bytes", "4K", "--iterations", "1000000")
        pids = {}
        while len(pids) < size:
            line = job.stderr.readline()
            if not line:
                self.fail(job.communicate()[1])
            found = re.match(r"ruedarun: rank (\d+) on host \S+ started, pid (\d+)", line)
            if found:
                pids[int(found[1])] = int(found[2])
        deadline = time.monotonic() + HANG
        while not all(support.reduces(pid) for pid in pids.values()):
            if job.poll() is not None:
                self.fail(job.communicate()[1])
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return job, pids

    def test_the_exit_status_is_that_of_the_rank_that_failed(self):
        done = self.run_job("-H", f"{self.a}:2,{self.b}:2", "sh", "-c", "[ $RANK = 3 ] && exit 7; sleep 60")
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertRegex(done.stderr, rf"ruedarun: rank 3 on host {self.b} \(pid \d+\) exited with status 7; ending")
        self.assertRegex(done.stderr, rf"\* +3 +\d+ +{self.b} +exited with status 7  <- first failure")

    def test_a_killed_rank_is_named_wherever_it_is(self):
        """Not the one whose complaint comes first."""
        for victim in range(4):
            job, pids = self.start_bench(4, f"{self.a}:2,{self.b}:2")
            os.kill(pids[victim], signal.SIGSTOP)
            while any(support.runs(pid) for pid in pids.values()):  # all wait for it
                time.sleep(0.01)
            os.kill(pids[victim], signal.SIGKILL)
            killed = time.monotonic()
            out, err = job.communicate(timeout=HANG)
            print(f"rank {victim} killed: over after {time.monotonic() - killed:.2f} s")
            host = (self.a, self.a, self.b, self.b)[victim]
            self.assertEqual(job.returncode, 128 + signal.SIGKILL, err)
            self.assertRegex(err, rf"ruedarun: rank {victim} on host {host} \(pid {pids[victim]}\) killed by signal 9 "
                                  r"\(SIGKILL\); ending the others")
            complaints = re.findall(r"\[(\d)\] rueda_bench: rank (\d) \(host \S+ pid \d+\) was lost: ([^,;]*), "
                                    r"(?:during|while rank \d awaited it in) (?:allreduce|barrier)", err)
            self.assertEqual(sorted(rank for rank, _, _ in complaints), [str(r) for r in range(4) if r != victim], err)
            for _, culprit, cause in complaints:
                self.assertEqual((culprit, cause), (str(victim), "killed by signal 9 (SIGKILL)"), err)

    def test_a_rank_killed_while_gloo_connects_takes_nobody_with_it(self):
        for trial in range(5):
            job, pids = self.start_bench(4, f"{self.a}:2,{self.b}:2")
            time.sleep(trial / 1000)
            os.kill(pids[trial % 4], signal.SIGKILL)
            _, err = job.communicate(timeout=HANG)
            self.assertNotIn("terminate", err)
            self.assertIn(f"ruedarun: rank {trial % 4} on host ", err)
            self.assertEqual(err.count(" exited with status 1\n"), 6, err)  # told at once, and in the table

    def start_handlers(self, which, statement):
        """Three ranks on two hosts that do this when the signal comes, and wait for it."""
        script = (f"import os, signal, sys\ndef warned(*_): {statement}\nsignal.signal(signal.{which}, warned)\n"
                  "print('up', flush=True)\nwhile True: signal.pause()")
        job = self.start_job("--prefix", "none", "-H", f"{self.a},{self.b}:2", sys.executable, "-c", script)
        for _ in range(3):
            self.assertEqual(job.stdout.readline(), "up\n")
        return job

    def test_signals_reach_all_ranks(self):
        job = self.start_handlers("SIGUSR1", "print('warned', os.environ['RANK'], flush=True); sys.exit(0)")
        job.send_signal(signal.SIGUSR1)
        out, err = job.communicate(timeout=HANG)
        self.assertEqual((job.returncode, sorted(out.splitlines())), (0, ["warned 0", "warned 1", "warned 2"]), err)

    def test_interrupt_ends_what_ignores_it(self):
        job = self.start_job("--grace-seconds", "1", "-H", f"{self.a},{self.b}", "sh", "-c",
                             "trap '' INT TERM; echo up; while :; do sleep 1; done")
        for _ in range(2):
            self.assertIn("up", job.stdout.readline())
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=HANG)
        self.assertEqual(job.returncode, 128 + signal.SIGINT)

    def test_a_signal_is_the_cause_whatever_ranks_make_of_it(self):
        """Such as a training that saves, and exits with a status by which it asks to be started again."""
        job = self.start_handlers("SIGTERM", "sys.exit(75)")
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=HANG)
        self.assertEqual(job.returncode, 128 + signal.SIGTERM, err)
        self.assertIn("the job ended after SIGTERM; exit status 143", err)
        self.assertEqual(err.count("exited with status 75"), 3, err)
        self.assertNotIn("fail", err)

    def test_a_rank_that_ends_before_the_start_is_named(self):
        for hosts_option, victim in ((f"{self.a}:2,{self.b}:2", 0), (f"{self.a}:2,{self.b}:2", 3), (f"{self.a},{self.b},{self.c}", 0),
                                     (f"{self.a},{self.b},{self.c}", 2)):
            done = self.run_job("-H", hosts_option, "sh", "-c", f"[ $RANK = {victim} ] && exit 0; exec {HELLO}")
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, rf"rank {victim} \(pid \d+\) exited with status 0 before the start of the job was over")

    def start_sleepers(self, *options):
        job = self.start_job(*options, "-H", f"{self.a},{self.b}:2,{self.c}", "sh", "-c", "echo up; exec sleep 600")
        for _ in range(4):
            self.assertIn("up", job.stdout.readline())
        return job

    def between(self, host, name):
        """The agents ("ruedarun") on a host, or their supervisors ("ruedarun-agent")."""
        found = []
        for pid in self.inside(host):
            with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
                if comm.read() == name + "\n" and "--agent" in self.words(pid):
                    found.append(int(pid))
        return sorted(found)

    def test_a_signal_to_an_agent_ends_the_job(self):
        job = self.start_sleepers()
        os.kill(self.between(1, "ruedarun")[0], signal.SIGTERM)
        _, err = job.communicate(timeout=HANG)
        self.assertEqual(job.returncode, 128 + signal.SIGTERM, err)
        self.assertIn(f"the job ended after SIGTERM to the agent on host {self.b}; exit status 143", err)
        self.assertEqual(len(re.findall(r"ended by ruedarun \(SIGTERM\) after SIGTERM to the agent", err)), 4, err)

    def test_a_supervisor_that_dies_is_named(self):
        for host, name in ((0, self.a), (1, self.b)):
            job = self.start_sleepers()
            supervisor = self.between(host, "ruedarun-agent")[0]
            os.kill(supervisor, signal.SIGKILL)
            _, err = job.communicate(timeout=HANG)
            self.assertEqual(job.returncode, 1, err)
            self.assertIn(f"ruedarun: host {name}: its supervisor process (pid {supervisor}) killed by signal 9", err)
            self.assertIn(f"the job ended after host {name} was lost; exit status 1", err)

    def test_one_that_does_not_answer_is_given_up(self):
        jobs = [self.start_sleepers("--host-timeout", "6")]
        stopped = self.between(1, "ruedarun")
        firsts = self.between(1, "ruedarun-agent")
        jobs.append(self.start_sleepers("--host-timeout", "6"))
        stopped += [pid for pid in self.between(1, "ruedarun-agent") if pid not in firsts]
        self.assertEqual(len(stopped), 2)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            for job in jobs:
                _, err = job.communicate(timeout=HANG)
                self.assertEqual(job.returncode, 1, err)
                self.assertIn(f"ruedarun: host {self.b}: what looks after its ranks has not answered for 5 s", err)
                self.assertIn(f"the job ended after host {self.b} was lost", err)
        finally:
            for pid in stopped:
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass

    def await_sleepers(self, host, limit):
        """Until no rank is left on a host; how long that took."""
        start = time.monotonic()
        while any(self.sleeps(pid) for pid in self.inside(host)):
            self.assertLess(time.monotonic() - start, limit)
            time.sleep(0.02)
        return time.monotonic() - start

    def sleeps(self, pid):
        try:
            return self.words(pid)[0] == "sleep"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def inside(self, host):
        return subprocess.run(["ip", "netns", "pids", self.cluster.names[host]], check=True, capture_output=True,
                              text=True).stdout.split()

    def test_ranks_end_when_ruedaruns_host_is_cut_off(self):
        job = self.start_job("--host-timeout", "4", "-H", f"{self.b}:2,{self.c}", "sh", "-c", "echo up; exec sleep 600")
        for _ in range(3):
            self.assertIn("up", job.stdout.readline())
        self.cluster.cut(0)
        try:
            times = [self.await_sleepers(host, limit=HANG) for host in (1, 2)]
            print(f"a silent ruedarun's host: ranks gone after {times[0]:.1f} s")
            _, err = job.communicate(timeout=HANG)
        finally:
            self.cluster.join(0)
        self.assertEqual(job.returncode, 1, err)
        self.assertRegex(err, r"what looks after its ranks has not answered for \d s")

    def test_a_ruedarun_that_is_stopped_disturbs_nobody(self):
        job = self.start_job("--host-timeout", "2", "-H", f"{self.b}:2,{self.c}", "sh", "-c", "echo up; exec sleep 7")
        for _ in range(3):
            self.assertIn("up", job.stdout.readline())
        stopped = [job.pid, *self.children(job.pid)]  # its ssh, too, as by Ctrl-Z in some shells
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(5)  # the ranks would be given up by now
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)
        _, err = job.communicate(timeout=HANG)
        self.assertEqual((job.returncode, err), (0, ""))

    def test_nothing_is_left_when_ruedarun_is_killed(self):
        job = self.start_job("-H", f"{self.a},{self.b}:2", "sh", "-c", "echo up; sleep 60 & sleep 60")
        for _ in range(3):
            self.assertIn("up", job.stdout.readline())
        job.kill()

    def test_a_lost_connection_is_named(self):
        job = self.start_job("-H", f"{self.a},{self.b},{self.c}", "sh", "-c", "echo up; exec sleep 60")
        for _ in range(3):
            self.assertIn("up", job.stdout.readline())
        ssh = [pid for pid in self.children(job.pid) if self.b in self.words(pid)]
        self.assertEqual(len(ssh), 1)
        os.kill(ssh[0], signal.SIGKILL)
        out, err = job.communicate(timeout=HANG)
        self.assertEqual(job.returncode, 1, err)
        self.assertRegex(err, rf"ruedarun: host {self.b}: the connection to it was lost: ssh killed by signal 9")
        self.assertRegex(err, rf"the job ended after host {self.b} was lost; exit status 1")
        self.assertRegex(err, rf" 1 +\d+ +{self.b} +unknown: its host was lost")

    def children(self, pid):
        found = []
        for other in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{other}/stat", encoding="utf-8", errors="replace") as stat:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.append(int(other))
        return found

    def words(self, pid):
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as cmdline:
            return cmdline.read().split("\0")


class Allocations(OnHosts):
    """Neither -H nor -np: the batch system has said it."""

    def expect_ranks(self, size, words, **variables):
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=HANG, cwd=self.folder, env={**os.environ, **variables})
        self.assertEqual(done.returncode, 0, done.stderr)
        found = sorted(line for line in done.stdout.splitlines() if " average " in line)
        self.assertEqual(found, [f"[{rank}] {support.line_of(rank, size)}" for rank in range(size)], done.stdout)

    def slurm(self):
        support.needs(*slurm.PROGRAMS)
        folder = os.path.join(self.folder, "slurm")
        os.mkdir(folder)
        cluster = slurm.Cluster(folder, nodes=2, cpus=4, hosts=self.cluster)
        self.addCleanup(self.expect_nothing_left)
        self.addCleanup(cluster.stop)
        return cluster

    def test_slurm(self):
        cluster = self.slurm()
        self.expect_ranks(4, cluster.command("salloc", "-Q", "-N", "2", "--ntasks-per-node", "2", RUEDARUN, HELLO),
                          SLURM_CONF=cluster.conf)
        self.expect_ranks(3, cluster.command("salloc", "-Q", "-N", "2", "--ntasks-per-node", "2", RUEDARUN, "-np", "3",
                                             HELLO), SLURM_CONF=cluster.conf)
        file = os.path.join(self.folder, "slurm-hosts")
        with open(file, "w", encoding="ascii") as out:
            out.write("node2\nnode1\nnode2\n")
        self.expect_ranks(3, cluster.command("salloc", "-Q", "-N", "2", "--ntasks-per-node", "2", "env",
                                             f"SLURM_HOSTFILE={file}", RUEDARUN, HELLO), SLURM_CONF=cluster.conf)

    def test_a_batch_script_is_warned(self):
        """SLURM's signal to the job's steps reaches the ranks, whoever started them."""
        cluster = self.slurm()
        program = os.path.join(self.folder, "program.py")
        with open(program, "w", encoding="ascii") as file:
            # Python, while it ends, would die of a second warning.
            file.write("import os, signal, sys\n"
                       "def warned(*_):\n"
                       "    signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
                       "    print('warned', os.environ['RANK'], flush=True)\n"
                       "    sys.exit(0)\n"
                       "signal.signal(signal.SIGUSR1, warned)\nprint('up', flush=True)\nwhile True: signal.pause()\n")
        script = os.path.join(self.folder, "job.sh")
        with open(script, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\n#SBATCH -N 2 --ntasks-per-node=2\nexec {RUEDARUN} {sys.executable} {program}\n")
        out = os.path.join(self.folder, "out")
        environment = {**os.environ, "SLURM_CONF": cluster.conf}
        done = subprocess.run(cluster.command("sbatch", "--parsable", "-o", out, script), capture_output=True, text=True,
                              env=environment, timeout=HANG, cwd=self.folder)
        job = done.stdout.strip()
        self.assertRegex(job, r"^\d+$", done.stderr)
        self.await_found(out, r"\[(\d)\] up", 4)
        subprocess.run(cluster.command("scancel", "--signal=USR1", job), env=environment, timeout=HANG, check=True)
        self.await_found(out, r"warned (\d)", 4)  # by some more than once: SLURM tells all processes that it knows

    def await_found(self, path, pattern, count):
        """Until a file of ours has as many different matches."""
        deadline = time.monotonic() + HANG
        text = ""
        while len(set(re.findall(pattern, text))) < count:
            self.assertLess(time.monotonic(), deadline, text)
            time.sleep(0.02)
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    text = file.read()

    def test_pbs(self):
        nodes = os.path.join(self.folder, "nodes")
        with open(nodes, "w", encoding="ascii") as file:
            file.write(f"{self.a}\n{self.a}\n{self.b}\n{self.b}\n")
        self.expect_ranks(4, self.command(HELLO), PBS_JOBID="7.pbs", PBS_NODEFILE=nodes)

    def test_lsf(self):
        self.expect_ranks(4, self.command(HELLO), LSB_JOBID="7", LSB_MCPU_HOSTS=f"{self.a} 2 {self.b} 2")


if __name__ == "__main__":
    support.main()
