"""Elastic jobs under ruedarun: processes are lost and come, hosts too, and the job goes on to the same weights, to the
bit, that a replay of its memberships gives."""
import contextlib
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

import hosts
import slurm
import sshd
import support

HELPER, RUEDARUN = map(os.path.abspath, sys.argv[1:3])
del sys.argv[1:3]
# With LibTorch, where it was built: the third word.
TORCH_HELPER = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and os.path.isfile(sys.argv[1]) else None
SANITIZED = os.environ.get("TEST_SANITIZED") == "1"
HANG = 60 * (5 if SANITIZED else 1)
KILLS = int(os.environ.get("TEST_ELASTIC_KILLS", "15" if SANITIZED else "60"))
HOST_KILLS = int(os.environ.get("TEST_ELASTIC_HOST_KILLS", "4" if SANITIZED else "12"))
SEED = int(os.environ.get("TEST_SEED", str(int(time.time()))))
# "[2] membership 3 rank 1 of 3 survivors 2 step 40 pid 4711 at 12.3"
AT_WORK = re.compile(r"^\[(\d+)\] membership (\d+) rank (\d+) of (\d+) survivors (\d+) step (\d+) pid (\d+) at ([\d.]+)$",
                     re.MULTILINE)


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def parent_of(pid):
    """0: it has gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def namespace_of(pid):
    """Of its network; empty: it has gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def lose(pids, victims):
    """All at once: stopped first, so that none regroups without the others."""
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            os.kill(pids[victim], sign)


PARAMETERS = 6  # of the model
# Each rank's optimizer remembers its own gradients: after a change all have the source's.
STEPPED_ALONE = ("adasum", "local_sgd", "diloco", "decentralized", "low_precision_decentralized", "async")


def saved(path):
    """What Strategy::save has written: the names, and the bytes of the tensors in order."""
    with zipfile.ZipFile(path) as archive:
        tensors = [name for name in archive.namelist() if "/data/" in name]
        tensors.sort(key=lambda name: int(name.rpartition("/")[2]))
        pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
        return [archive.read(name) for name in pickles + tensors]


class Job:
    """ruedarun with the helper; its output goes to a file that may be read meanwhile."""

    def __init__(self, test, *options, steps=100, pause=0, commit=5, own="", words=(), wrap=(), program=None):
        self.folder = tempfile.mkdtemp()
        self.path = os.path.join(self.folder, "out")
        self.end = os.path.join(self.folder, "end")
        command = program or [HELPER, "--steps", str(steps), "--pause", str(pause), "--commit", str(commit), "--until", self.end,
                              *(["--own", own] if own else []), *words]
        with open(self.path, "wb") as out:
            self.process = subprocess.Popen([*wrap, RUEDARUN, *map(str, options), "-x", f"RUEDA_RECORDER_DIR={self.folder}",
                                             "--verbose", *command],
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        test.addCleanup(self.process.wait)
        test.addCleanup(self.process.kill)
        self.test = test

    def text(self):
        with open(self.path, encoding="utf-8", errors="replace") as out:
            return out.read()

    def await_words(self, pattern, seconds=HANG):
        """The first match, once there is one."""
        deadline = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.text(), re.MULTILINE)
            if found:
                return found
            if time.monotonic() > deadline or self.process.poll() is not None:
                found = re.search(pattern, self.text(), re.MULTILINE)
                self.test.assertIsNotNone(found, f"no {pattern!r} in\n{self.text()}")
                return found
            time.sleep(0.01)

    def await_file(self, path):
        deadline = time.monotonic() + HANG
        while not os.path.exists(path):
            self.test.assertTrue(time.monotonic() < deadline and self.process.poll() is None, f"no {path}:\n{self.text()}")
            time.sleep(0.01)

    def await_membership(self, size, after=0):
        """The number of one of so many ranks, all of which are at work in it, and their pids by rank."""
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline and self.process.poll() is None:
            pids = {}
            for line in AT_WORK.finditer(self.text()):
                pids.setdefault((int(line[2]), int(line[4])), {})[int(line[3])] = int(line[7])
            for (number, ranks), members in sorted(pids.items()):
                if number > after and ranks == size and len(members) == size:
                    return number, dict(sorted(members.items()))
            time.sleep(0.01)
        self.test.fail(f"no membership of {size} after {after}:\n{self.text()}")
        return None

    def finish(self):
        """At the next commit."""
        open(self.end, "wb").close()

    def wait(self):
        try:
            return self.process.wait(timeout=HANG)
        except subprocess.TimeoutExpired:
            self.test.fail(f"it hangs:\n{self.text()}")

    def expect_done(self, ranks=None):
        """With status 0, and with equal and right weights everywhere."""
        self.test.assertEqual(self.wait(), 0, self.text())
        digests = re.findall(r"^\[\d+\] done (\S+) after", self.text(), re.MULTILINE)
        if ranks is not None:
            self.test.assertEqual(len(digests), ranks, self.text())
        self.test.assertGreater(len(digests), 0, self.text())
        self.test.assertEqual(len(set(digests)), 1, self.text())
        self.test.assertNotIn("] wrong", self.text())

    def expect_that_a_killed_rank_is_replaced(self, ranks):
        first, pids = self.await_membership(ranks)
        os.kill(pids.pop(ranks - 1), signal.SIGKILL)
        second, survivors = self.await_membership(ranks - 1, after=first)
        self.test.assertEqual(survivors, pids)
        self.await_membership(ranks, after=second)
        self.expect_done(ranks)

    def expect_failed(self, status, why):
        self.test.assertEqual(self.wait(), status, self.text())
        self.test.assertRegex(self.text(), why)


class OneHost(unittest.TestCase):
    def test_nothing_happens(self):
        Job(self, "-np", 3, "--min-np", 2).expect_done(3)

    def test_a_killed_rank_is_done_without_and_replaced(self):
        job = Job(self, "-np", 4, "--min-np", 2, steps=400, pause=5)
        first, pids = job.await_membership(4)
        os.kill(pids[1], signal.SIGKILL)
        second, survivors = job.await_membership(3, after=first)
        self.assertEqual(list(survivors.values()), [pids[0], pids[2], pids[3]], "they keep their order")
        _, all_four = job.await_membership(4, after=second)
        self.assertEqual([all_four[rank] for rank in range(3)], list(survivors.values()))
        job.expect_done(4)
        self.assertRegex(job.text(), r"process 1 \(rank 1, pid \d+\) killed by signal 9")

    def test_rank_0_is_killed(self):
        job = Job(self, "-np", 3, "--min-np", 2, steps=300, pause=5)
        first, pids = job.await_membership(3)
        os.kill(pids[0], signal.SIGKILL)
        _, survivors = job.await_membership(2, after=first)
        self.assertEqual(list(survivors.values()), [pids[1], pids[2]])
        job.expect_done(3)

    def test_who_waits_again_and_again_for_what_an_earlier_membership_took_fails(self):
        job = Job(self, "-np", 3, "--min-np", 1, "--blacklist-cooldown-range", 600, 600, steps=1_000_000, pause=1, words=["--pending"])
        _, pids = job.await_membership(3)
        os.kill(pids[1], signal.SIGKILL)
        number, _ = job.await_membership(1, after=1)
        job.finish()
        job.expect_done(1)
        self.assertEqual(number, 13, job.text())
        self.assertRegex(job.text(), r"\[0\] failed: rank 1 .* was lost: .*; membership 1\n")

    def test_nobody_waits_for_the_kernel_to_free_the_memory_of_the_dead(self):
        job = Job(self, "-np", 4, "--min-np", 2, "--blacklist-cooldown-range", 0.01, 0.01, "--regroup-timeout", HANG,
                  program=[HELPER, "--steps", "100000000", "--pause", "1", "--commit", "5", "--ballast", "2048"])
        number = 0
        for leads in (False, True):  # its host, and the others look at it; or that one does
            for _ in range(5):  # a busy machine may free it first
                number, pids = job.await_membership(4, number - 1)
                heavy = [int(line[7]) for line in AT_WORK.finditer(job.text()) if line[1] == "3"][-1]
                while leads and heavy != pids[0]:
                    os.kill(pids[0], signal.SIGKILL)
                    number, pids = job.await_membership(4, number)
                end = os.pidfd_open(heavy)
                os.kill(heavy, signal.SIGKILL)
                number, _ = job.await_membership(3, number)
                has_ended = bool(select.select([end], [], [], 0)[0])
                os.close(end)
                if not has_ended:
                    break
            self.assertFalse(has_ended, "each time it had ended when the others went on")

    def test_what_one_rank_has_alone(self):
        """Its neighbors have it open."""
        job = Job(self, "-np", 4, "--min-np", 2, "--blacklist-cooldown-range", 0.1, 0.1, steps=100_000, pause=2, own="rank")
        number, pids = job.await_membership(4)
        for victim in (2, 0, 3):
            os.kill(pids[victim], signal.SIGKILL)
            number, _ = job.await_membership(3, after=number)
            number, pids = job.await_membership(4, after=number)
        job.finish()
        job.expect_done(4)

    def test_a_rank_that_is_lost_before_anything_was_kept(self):
        """It had nothing but what it was made with."""
        job = Job(self, "-np", 3, "--min-np", 2, "--blacklist-cooldown-range", 0.1, 0.1, steps=100_000, pause=2, own="rank")
        job.await_words(r"membership 1 of 3 ranks")
        os.kill(int(job.await_words(r"process 1 started, pid (\d+)")[1]), signal.SIGKILL)
        job.await_membership(3, after=1)
        job.finish()
        job.expect_done(3)

    def test_what_ranks_had_alone_that_are_lost_together(self):
        """Any neighbor has the parts of all."""
        job = Job(self, "-np", 4, "--min-np", 1, "--blacklist-cooldown-range", 0.1, 0.1, steps=100_000, pause=2, own="rank")
        number, pids = job.await_membership(4)
        lose(pids, (0, 1, 3))
        number, _ = job.await_membership(1, after=number)
        job.await_membership(4, after=number)
        job.finish()
        job.expect_done(4)

    def test_those_that_go_on_get_what_ranks_had_alone_and_nobody_has_open(self):
        """The process that has started them has it. Three ranks are no two hosts: nobody is to come."""
        job = self.start_apart("--min-np", 2, "--blacklist-cooldown-range", 600, 600)
        number, pids = job.await_membership(4)
        lose(pids, (2, 3))
        job.await_membership(2, after=number)
        job.finish()
        job.expect_done(2)

    def test_those_that_come_get_what_ranks_had_alone_and_nobody_has_open(self):
        job = self.start_apart("--min-np", 4, "--blacklist-cooldown-range", 0.1, 0.1)
        number, pids = job.await_membership(4)
        for victims in ((2, 3), (0, 1), (3, 2)):
            lose(pids, victims)
            number, pids = job.await_membership(4, after=number)
        job.finish()
        job.expect_done(4)

    def start_apart(self, *options):
        """Hosts are fake: they share no memory."""
        return Job(self, "-np", 4, *options, "-x", "RUEDA_HOSTS_FAKE=2", "-x", "RUEDA_NETWORK_INTERFACE=lo", steps=100_000,
                   pause=2, own="rank")

    def test_a_stopped_rank_is_removed(self):
        job = Job(self, "-np", 3, "--min-np", 2, "-x", "RUEDA_HEARTBEAT_LIMIT_S=1", steps=300, pause=5)
        first, pids = job.await_membership(3)
        os.kill(pids[1], signal.SIGSTOP)
        _, survivors = job.await_membership(2, after=first)
        self.assertEqual(list(survivors.values()), [pids[0], pids[2]])
        self.assertRegex(job.text(), r"process 1 \(rank 1, pid \d+\) is removed: the others have waited [\d.]+ s")
        job.expect_done(3)

    def test_a_member_that_computes_for_too_long_is_removed(self):
        job = Job(self, "-np", 3, "--min-np", 1, "--regroup-timeout", 1, "-x", "RUEDA_HEARTBEAT_LIMIT_S=0", steps=300,
                  pause=5)
        first, pids = job.await_membership(3)
        os.kill(pids[2], signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        job.await_membership(1, after=first)
        self.assertRegex(job.text(), r"process 2 \(rank 2, pid \d+\) is removed")
        job.expect_done(3)

    def test_too_few_for_too_long(self):
        job = Job(self, "-np", 2, "--min-np", 2, "--elastic-timeout", 1, "--blacklist-cooldown-range", 60, 60,
                  steps=10_000, pause=5)
        _, pids = job.await_membership(2)
        os.kill(pids[0], signal.SIGKILL)
        job.expect_failed(137, r"for 1.0 s there was 1 process, fewer than the 2 of --min-np; the job ends")

    def test_one_that_ends_with_status_0_and_leaves_too_few(self):
        flag = os.path.join(tempfile.mkdtemp(), "flag")
        train = f"{HELPER} --steps 100000 --pause 5"
        job = Job(self, "-np", 2, "--min-np", 2, program=[
            "sh", "-c", f"[ $RUEDA_RANK = 0 ] && exec {train}; {train} & while [ ! -e {flag} ]; do sleep 0.05; done; "
            "kill -9 $!; exit 0"])
        job.await_membership(2)
        open(flag, "wb").close()
        job.expect_failed(1, r"process 1 \(rank 1, pid \d+\) exited with status 0 before the others; it is not replaced"
                             r"(.|\n)*a rank has ended with status 0, and of the others there is 1 process, fewer than the 2")

    def test_all_fail(self):
        job = Job(self, "-np", 2, "--min-np", 1, steps=10_000, pause=5)
        _, pids = job.await_membership(2)
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        job.expect_failed(137, r"all ranks of membership 1 have failed; the job ends")

    def test_resets_have_a_limit(self):
        job = Job(self, "-np", 3, "--min-np", 1, "--reset-limit", 1, "--blacklist-cooldown-range", 60, 60, steps=10_000,
                  pause=5)
        first, pids = job.await_membership(3)
        os.kill(pids[2], signal.SIGKILL)
        second, pids = job.await_membership(2, after=first)
        self.assertEqual(second, 2)
        os.kill(pids[1], signal.SIGKILL)
        job.expect_failed(137, r"more than 1 reset \(--reset-limit\); the job ends")

    def test_a_program_that_fails_at_once(self):
        job = Job(self, "-np", 2, "--min-np", 2, program=["sh", "-c", "exit 7"])
        job.expect_failed(7, "all processes have failed before they met; the job ends")

    def test_a_program_that_is_not_there(self):
        job = Job(self, "-np", 3, "--min-np", 2, "-H", "localhost:1,127.0.0.1:2", program=["./nowhere"])
        job.expect_failed(127, r"host localhost: program './nowhere' not found(.|\n)*no host can run the program; the job ends")

    def test_a_program_that_knows_nothing_of_it(self):
        self.assertEqual(Job(self, "-np", 2, "--min-np", 2, program=["true"]).wait(), 0)

    def test_a_spare_takes_the_place_at_once(self):
        job = Job(self, "-np", 3, "--min-np", 2, "--max-np", 3, "--spares", 1, "-H", "localhost:4", steps=300, pause=5)
        first, pids = job.await_membership(3)
        job.await_words("^ruedarun: process 3 started")
        time.sleep(1)  # until it waits for its place; else it comes a commit later
        os.kill(pids[0], signal.SIGKILL)
        number, now = job.await_membership(3, after=first)
        self.assertEqual(number, first + 1)
        self.assertEqual([now[0], now[1]], [pids[1], pids[2]])
        job.expect_done()

    def test_output_goes_to_files_of_slots(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "new", "out")
            program = ["sh", "-c", f"echo from $$; echo error >&2; mkdir {folder}/once && kill -9 $$; sleep 0.5"]
            job = Job(self, "-np", 2, "--min-np", 1, "--output-dir", out, program=program)
            job.wait()
            files = {}
            for name in sorted(os.listdir(out)):
                with open(os.path.join(out, name), encoding="utf-8") as file:
                    files[name] = file.read()
        self.assertEqual([name for name in files if name.startswith("rank.")],
                         ["rank.0.err", "rank.0.out", "rank.1.err", "rank.1.out"])
        self.assertIn("from ", files["rank.0.out"])
        self.assertIn("from ", files["rank.1.out"])
        self.assertGreater(len(set(re.findall(r"from (\d+)", files["rank.0.out"] + files["rank.1.out"]))), 1)
        self.assertIn("error\n", files["rank.1.err"])
        self.assertNotIn("from ", job.text())

    def test_output_of_a_slot_s_processes_is_one_after_the_other(self):
        with tempfile.TemporaryDirectory() as out:
            job = Job(self, "-np", 2, "--min-np", 1, "--output-dir", out, "--blacklist-cooldown-range", 0.1, 0.1, steps=400,
                      pause=5)
            path = os.path.join(out, "rank.1.out")
            deadline = time.monotonic() + HANG
            while not (os.path.exists(path) and os.path.getsize(path)):
                self.assertLess(time.monotonic(), deadline, job.text())
                time.sleep(0.01)
            os.kill(int(job.await_words(r"^ruedarun: process 1 started, pid (\d+)")[1]), signal.SIGKILL)
            self.assertEqual(job.wait(), 0, job.text())
            with open(path, encoding="utf-8") as file:
                pids = re.findall(r"^membership .* pid (\d+)", file.read(), re.MULTILINE)
        self.assertEqual(len(set(pids)), 2, pids)

    def test_a_warning_after_a_time(self):
        program = ["sh", "-c", "trap 'echo warned; exit 0' USR1; while :; do sleep 0.05; done"]
        job = Job(self, "-np", 2, "--min-np", 1, "--stop-after", 3, program=program)
        self.assertEqual(job.wait(), 0, job.text())
        self.assertEqual(job.text().count("] warned"), 2, job.text())
        self.assertIn("3.0 s are over (--stop-after); the ranks are warned (SIGUSR1)", job.text())

    def test_a_process_that_comes_later_and_works_alone(self):
        """Its program calls no elastic.run."""
        with tempfile.TemporaryDirectory() as folder:
            program = ["sh", "-c", f"mkdir {folder}/$RUEDA_RANK 2>/dev/null || exit 0; exec {HELPER} --steps 300 --pause 5"]
            job = Job(self, "-np", 3, "--min-np", 2, "--blacklist-cooldown-range", 0.1, 60, program=program)
            first, pids = job.await_membership(3)
            os.kill(pids[2], signal.SIGKILL)
            job.await_membership(2, after=first)
            job.expect_done(2)
        self.assertEqual(job.text().count("has ended without the others: does the program call elastic.run?"), 2,
                         "when it came, and in the closing table:\n" + job.text())
        self.assertLess(job.text().count("process 2 started"), 20, job.text())

    def test_a_signal_ends_it(self):
        job = Job(self, "-np", 2, "--min-np", 1, steps=10_000, pause=5)
        job.await_membership(2)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 143, job.text())

    def test_nothing_is_left_when_ruedarun_is_killed(self):
        job = Job(self, "-np", 2, "--min-np", 1, steps=10_000, pause=5)
        _, pids = job.await_membership(2)
        job.process.kill()
        deadline = time.monotonic() + HANG
        while any(os.path.exists(f"/proc/{pid}") for pid in pids.values()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)


class ManyMemberships(unittest.TestCase):
    def test_leave_nothing_behind(self):
        count = 100 if SANITIZED else 1_000
        job = Job(self, "-np", 3, "--min-np", 2, program=[HELPER, "--regroups", str(count)])
        self.assertEqual(job.wait(), 0, job.text())
        had = {number: re.findall(rf"^\[(\d)\] after {number}: (\d+) descriptors, (\d+) threads, (\d+) KiB private, "
                                  r"(\d+) KiB shared", job.text(), re.MULTILINE) for number in (10, count)}
        for before, after in zip(*(sorted(each) for each in had.values()), strict=True):
            self.assertEqual(after[:3], before[:3], "descriptors and threads")
            if SANITIZED:  # which keeps what was freed
                continue
            self.assertLess(int(after[3]) - int(before[3]), 512, "KiB")
            self.assertLess(int(after[4]) - int(before[4]), 512, "KiB")
        print(f"{had[10][0]} became {had[count][0]}", flush=True)


class Discovery(unittest.TestCase):
    """Hosts by a script that prints a file: names of this machine, which count as hosts."""

    def start(self, text, *options, **how):
        self.file = os.path.join(tempfile.mkdtemp(), "hosts")
        self.say(text)
        return Job(self, "--host-discovery-script", f"cat {self.file}", *options, **how)

    def say(self, text):
        with open(self.file + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(self.file + ".new", self.file)

    def test_a_host_comes_and_another_goes(self):
        job = self.start("localhost:2\n", "--min-np", 2, steps=1_000, pause=5)
        first, pids = job.await_membership(2)
        self.say("localhost:2\n127.0.0.1:2\n")
        second, more = job.await_membership(4, after=first)
        self.assertEqual([more[0], more[1]], [pids[0], pids[1]])
        self.say("127.0.0.1:2\n")
        _, now = job.await_membership(2, after=second)
        self.assertEqual([now[0], now[1]], [more[2], more[3]])
        job.expect_done(2)
        self.assertEqual(job.text().count("dismissed"), 2, job.text())
        self.assertNotIn("killed by", job.text())

    def test_a_host_that_is_there_again_is_what_the_others_waited_for(self):
        job = self.start("localhost:1\n127.0.0.1:1\n", "--min-np", 2, steps=100_000, pause=5)
        first, pids = job.await_membership(2)
        self.say("localhost:1\n")
        job.await_words("there are fewer processes than --min-np; waiting for more, at most 600.0 s")
        self.say("localhost:1\n127.0.0.1:1\n")
        second, now = job.await_membership(2, after=first)
        self.assertEqual(now, pids)
        job.finish()
        job.expect_done(2)

    def test_more_slots_than_there_is_room_for(self):
        job = self.start("localhost:1\n", "--min-np", 1, "--max-np", 2, steps=1_000, pause=5)
        first, _ = job.await_membership(1)
        self.say("localhost:40\n")
        job.await_membership(2, after=first)
        self.assertIn("host localhost: 16 of its 40 slots are used", job.text())
        job.expect_done(2)

    def test_slots_come_and_go(self):
        job = self.start("localhost:1\n", "--min-np", 1, steps=1_000, pause=5)
        first, _ = job.await_membership(1)
        self.say("localhost:3\n")
        second, _ = job.await_membership(3, after=first)
        self.say("localhost:2\n")
        job.await_membership(2, after=second)
        job.expect_done(2)

    def test_who_leaves_hands_over_what_it_has_alone(self):
        """Also to others than its partner, which leaves, too."""
        job = self.start("localhost:2\n127.0.0.1:2\n", "--min-np", 1, steps=100_000, pause=2, own="rank")
        number, _ = job.await_membership(4)
        self.say("127.0.0.1:2\n")
        number, _ = job.await_membership(2, after=number)
        self.say("localhost:2\n127.0.0.1:2\n")
        number, _ = job.await_membership(4, after=number)
        self.say("localhost:1\n")
        number, _ = job.await_membership(1, after=number)
        self.say("localhost:4\n")
        number, _ = job.await_membership(4, after=number)
        self.say("localhost:2\n")
        job.await_membership(2, after=number)
        job.finish()
        job.expect_done(2)
        self.assertNotIn("killed by", job.text())

    def test_all_hosts_are_others(self):
        """What was learned goes to them."""
        for limit in (2, 4):
            with self.subTest(limit):
                job = self.start("localhost:2\n", "--min-np", 2, "--max-np", limit, steps=100_000, pause=2, own="rank")
                number, pids = job.await_membership(2)
                self.say("127.0.0.1:2\n")
                deadline = time.monotonic() + HANG
                while set(pids.values()) & set(job.await_membership(2, after=number - 1)[1].values()):
                    self.assertLess(time.monotonic(), deadline, job.text())
                    number += 1
                job.finish()
                job.expect_done(2)
                for line in AT_WORK.finditer(job.text()):
                    if int(line[2]) > 1:
                        self.assertGreater(int(line[5]), 0, f"no survivor: {line[0]}\n{job.text()}")
                        self.assertGreater(int(line[6]), 4, f"from the beginning: {line[0]}\n{job.text()}")
                self.assertEqual(job.text().count("dismissed"), 2, job.text())

    def test_two_changes_within_a_second(self):
        job = self.start("localhost:2\n", "--min-np", 1, steps=1_500, pause=5)
        first, _ = job.await_membership(2)
        self.say("localhost:2\n127.0.0.1:1\n")
        time.sleep(0.3)
        self.say("127.0.0.1:1\nlocalhost:1\n")
        job.await_membership(2, after=first)
        job.expect_done(2)

    def test_the_first_failure_ends_the_job_and_later_ones_do_not(self):
        job = Job(self, "--host-discovery-script", "exit 3", "--min-np", 1)
        job.expect_failed(2, "exit 3: it exited with status 3")
        job = self.start("localhost:2\n", "--min-np", 1, steps=400, pause=5)
        job.await_membership(2)
        os.remove(self.file)
        job.await_words("the hosts stay as they are")
        job.expect_done(2)

    def test_a_host_without_slots(self):
        job = self.start("localhost\n", "--min-np", 1, "--slots", 2)
        job.expect_done(2)
        job = self.start("localhost\n", "--min-np", 1)
        job.expect_failed(2, "it gives localhost no slots; print HOST:SLOTS, or set --slots")


class LibTorch(unittest.TestCase):
    def test_a_model_and_its_optimizer_survive(self):
        support.skip("" if TORCH_HELPER else "it was not given")
        job = Job(self, "-np", 3, "--min-np", 2, "--blacklist-cooldown-range", 1, 1, program=[TORCH_HELPER, "1200"])
        first, pids = job.await_membership(3)
        os.kill(pids[0], signal.SIGKILL)
        second, survivors = job.await_membership(2, after=first)
        self.assertEqual(list(survivors.values()), [pids[1], pids[2]])
        job.await_membership(3, after=second)
        job.expect_done(3)
        begin, end = map(float, re.search(r"loss from (\S+) to (\S+)", job.text()).groups())
        self.assertLess(end, begin / 4, job.text())


    def train_with(self, strategy, ranks, changes):
        """The strategy begins each membership with what it was in the one before, to the bit: `changes` gets the job, its first
        membership and its pids, and makes others."""
        support.skip("" if TORCH_HELPER else "it was not given")
        folder = tempfile.mkdtemp()
        job = Job(self, *ranks, "--blacklist-cooldown-range", 1, 1, program=[TORCH_HELPER, "--strategy", strategy, folder])
        job.end = os.path.join(folder, "end")
        changes(job, folder)
        job.finish()
        job.expect_done()
        begun = 0
        for name in os.listdir(folder):
            word, _, numbers = name.partition("-")
            if word != "begin" or numbers.startswith("1-"):
                continue
            number, step = map(int, numbers.split("-"))
            there = [each for each in range(1, number) if os.path.exists(os.path.join(folder, f"at-{each}-{step}"))]
            self.assertTrue(there or step == 0, f"{name} of {sorted(os.listdir(folder))}\n{job.text()}")
            before = f"at-{there[-1]}-{step}" if there else "begin-1-0"
            one, other = (saved(os.path.join(folder, each)) for each in (before, name))
            self.assertGreater(min(len(one), len(other)), PARAMETERS)
            if strategy == "qadam":  # at the end is what compression has lost, by rank: 1 or 2
                count = min(len(one), len(other)) - 1
                one, other = one[1:count], other[1:count]
            if strategy in STEPPED_ALONE:
                one, other = one[1:PARAMETERS + 1], other[1:PARAMETERS + 1]
            self.assertTrue(one == other, f"{before} and {name}\n{job.text()}")
            begun += 1
        self.assertGreaterEqual(begun, 2, job.text())
        shutil.rmtree(folder)

    def lose_rank_0(self, job, folder):
        first, pids = job.await_membership(len(self.ranks))
        job.await_file(os.path.join(folder, f"at-{first}-12"))
        os.kill(pids[0], signal.SIGKILL)
        second, _ = job.await_membership(len(self.ranks) - 1, after=first)
        job.await_membership(len(self.ranks), after=second)

    def test_what_ranks_have_alone_with_a_strategy(self):
        self.ranks = range(4)
        for strategy in ("sharded", "fsdp", "pipeline"):
            with self.subTest(strategy):
                self.train_with(strategy, ("-np", 4, "--min-np", 2), self.lose_rank_0)

    def test_every_other_strategy(self):
        self.ranks = range(2)  # an average of two equal numbers is the same number
        for strategy in ("ddp", "ddp2", "multi_worker", "bytegrad", "qadam", *STEPPED_ALONE):
            with self.subTest(strategy):
                self.train_with(strategy, ("-np", 2, "--min-np", 1), self.lose_rank_0)

    def test_ranks_with_shards_leave_and_come(self):
        file = os.path.join(tempfile.mkdtemp(), "hosts")

        def say(slots):
            with open(file, "w", encoding="utf-8") as out:
                out.write(f"localhost:{slots}\n")

        def change(job, folder):
            number, _ = job.await_membership(4)
            job.await_file(os.path.join(folder, f"at-{number}-12"))
            for slots in (2, 3, 1):
                say(slots)
                number, _ = job.await_membership(slots, after=number)

        for strategy in ("sharded", "fsdp"):
            with self.subTest(strategy):
                say(4)
                self.train_with(strategy, ("--hostfile", file, "--min-np", 1), change)


    def test_the_trainer_goes_on(self):
        """Each epoch is in its log once, whoever has written it. What it says of the test images at the end one process
        says of the same parameters."""
        mnist = os.path.join(os.path.dirname(RUEDARUN), "mnist")
        support.skip("" if os.path.exists(mnist) else "mnist was not built")
        for strategy in ("ddp", "fsdp"):
            with self.subTest(strategy):
                folder = tempfile.mkdtemp()
                checkpoints = os.path.join(folder, "checkpoints")
                log = os.path.join(folder, "log.csv")
                job = Job(self, "-np", 3, "--min-np", 2, "--blacklist-cooldown-range", 0.1, 0.1,
                          program=[mnist, "--elastic", "--commit-steps", "5", "--epochs", "40", "--strategy", strategy, "--csv", log,
                                   "--checkpoint", checkpoints, "--tensorboard", os.path.join(folder, "events")])
                job.await_words(r"^\[0\] epoch +3 ")
                os.kill(int(job.await_words(r"process 0 started, pid (\d+)")[1]), signal.SIGKILL)
                job.await_words(r"membership 3 of 3 ranks")
                os.kill(int(job.await_words(r"process 2 started, pid (\d+)")[1]), signal.SIGKILL)
                self.assertEqual(job.wait(), 0, job.text())
                end = re.search(r'"epochs": 40, ("test_accuracy": 0.9\d+), "replicas_equal": true, .*("parameters_digest": "\w+")',
                                job.text())
                self.assertIsNotNone(end, job.text())
                again = subprocess.run([mnist, "--elastic", "--epochs", "40", "--strategy", strategy, "--resume", checkpoints],
                                       capture_output=True, text=True, timeout=HANG, check=False)
                self.assertEqual(re.findall(r'("test_accuracy": [\d.]+), .*("parameters_digest": "\w+")', again.stdout),
                                 [end.groups()], again.stdout + again.stderr)
                with open(log, encoding="utf-8") as file:
                    self.assertEqual([line.split(",")[0] for line in file][1:], [str(epoch) for epoch in range(1, 41)])
                shutil.rmtree(folder)


class Hosts(unittest.TestCase):
    """Network namespaces, which ruedarun reaches by ssh."""

    @classmethod
    def setUpClass(cls):
        support.skip(hosts.why_not() or sshd.why_not())

    def setUp(self):
        self.hosts = hosts.Hosts(3)
        self.addCleanup(self.hosts.remove)
        self.sshd = sshd.Sshd(self.hosts, tempfile.mkdtemp())
        self.addCleanup(self.sshd.stop)

    def start(self, *options, **how):
        names = ",".join(f"{name}:2" for name in self.hosts.names)
        return Job(self, "-H", names, *options, wrap=self.sshd.command(0), **how)

    def test_a_killed_rank(self):
        job = self.start("--min-np", 2, steps=400, pause=5)
        first, pids = job.await_membership(6)
        os.kill(pids[3], signal.SIGKILL)
        killed = time.monotonic()
        second, _ = job.await_membership(5, after=first)
        print(f"between hosts the others are at work after {time.monotonic() - killed:.3f} s", flush=True)
        job.await_membership(6, after=second)
        job.expect_done(6)

    def test_a_host_is_lost_and_what_its_ranks_had_alone_is_not(self):
        job = self.start("--min-np", 2, steps=100_000, pause=2, own="host")
        first, pids = job.await_membership(6)
        for rank in (2, 3):
            os.kill(pids[rank], signal.SIGKILL)
        second, _ = job.await_membership(4, after=first)
        job.await_membership(6, after=second)
        job.finish()
        job.expect_done(6)

    def test_all_go_back_to_the_commit_that_had_arrived_when_a_host_is_lost(self):
        """Over a slow network a commit is on its way almost always."""
        self.hosts.limit("40mbit")
        job = self.start("--min-np", 2, steps=100_000, pause=2, own="host", words=("--elements", "1000000", "--say-commits"))
        number, pids = job.await_membership(6)
        for _ in range(5):
            commits = job.text().count("has committed")
            while job.text().count("has committed") < commits + 2:
                self.assertIsNone(job.process.poll(), job.text())
                time.sleep(0.01)
            lose(pids, (4, 5))
            number, _ = job.await_membership(4, after=number)
            number, pids = job.await_membership(6, after=number)
            if "went back from the commit" in job.text():
                break
        self.hosts.limit("1gbit")
        job.finish()
        job.expect_done(6)
        self.assertRegex(job.text(), "went back from the commit")

    def test_what_a_host_s_ranks_had_alone_outlives_all_of_them(self):
        """The others wait for the next rank there."""
        job = self.start("--min-np", 2, "--blacklist-cooldown-range", 2, 2, steps=100_000, pause=2, own="rank")
        number, pids = job.await_membership(6)
        for _ in range(3):
            victims = [rank for rank in pids if namespace_of(pids[rank]) == namespace_of(pids[0])]
            lose(pids, victims)
            waits = number + 1
            number, pids = job.await_membership(6, after=number)
            self.assertIn(f"membership {waits} of 4 ranks", job.text())
            self.assertRegex(job.text(), r"what lost ranks had alone is kept on \S+; who needs it waits for the next rank there, "
                                         r"at most 600.0 s \(--elastic-timeout\)")
        job.finish()
        job.expect_done(6)

    def test_others_that_come_leave_room_for_the_next_rank_of_a_host(self):
        job = self.start("--min-np", 2, "--max-np", 4, "--spares", 1, "--blacklist-cooldown-range", 0.5, 0.5, steps=100_000,
                         pause=2, own="rank")
        number, pids = job.await_membership(4)
        job.await_words(r"process 4 on \S+ started")
        time.sleep(0.2)  # it may be ready, or not
        lose(pids, (2, 3))
        job.await_membership(4, after=number)
        job.finish()
        job.expect_done(4)

    def test_nobody_waits_for_a_host_that_is_gone(self):
        job = self.start("--min-np", 2, "--host-timeout", 2, steps=100_000, pause=2, own="rank")
        _, pids = job.await_membership(6)
        spawner = parent_of(pids[2])
        for victim in (parent_of(spawner), spawner, pids[2], pids[3]):
            os.kill(victim, signal.SIGKILL)
        self.expect_lost(job)

    def test_nobody_waits_longer_for_the_next_rank_than_for_too_few(self):
        job = self.start("--min-np", 2, "--elastic-timeout", 5, "--blacklist-cooldown-range", 60, 60, steps=100_000,
                         pause=2, own="rank")
        _, pids = job.await_membership(6)
        lose(pids, (2, 3))
        killed = time.monotonic()
        self.expect_lost(job)
        self.assertGreater(time.monotonic() - killed, 4.9, job.text())

    def expect_lost(self, job):
        job.expect_failed(3, "the part of former rank 2, 3 of 6 is lost or damaged, and so is every copy: begin again from a "
                             "checkpoint")

    def test_rank_0_is_killed(self):
        job = self.start("--min-np", 2, steps=400, pause=5)
        first, pids = job.await_membership(6)
        os.kill(pids[0], signal.SIGKILL)
        os.kill(pids[1], signal.SIGKILL)
        second, _ = job.await_membership(4, after=first)  # rank 0 is on another host
        job.await_membership(6, after=second)
        job.expect_done(6)

    def test_a_host_that_is_cut_off_leaves_at_once(self):
        job = self.start("--min-np", 2, "--host-timeout", 3, "-x", "RUEDA_HEARTBEAT_LIMIT_S=1", steps=3_000, pause=5)
        first, pids = job.await_membership(6)
        self.hosts.cut(2)
        cut = time.monotonic()
        second, _ = job.await_membership(4, after=first)
        after = time.monotonic() - cut
        print(f"a host cut off: the others are at work after {after:.2f} s, limit 1 s", flush=True)
        deadline = time.monotonic() + HANG
        while any(lives(pids[rank]) for rank in (4, 5)):  # nobody goes on whom ruedarun can't reach
            self.assertLess(time.monotonic(), deadline, job.text())
            time.sleep(0.05)
        self.hosts.join(2)
        job.await_membership(6, after=second)
        job.expect_done(6)

    def test_two_hosts_that_do_not_reach_each_other(self):
        """But ruedarun reaches both: the job goes on without one of them."""
        job = self.start("--min-np", 2, "--blacklist-cooldown-range", 60, 60, "-x", "RUEDA_HEARTBEAT_LIMIT_S=1",
                         "--gloo-timeout-seconds", 2, steps=2_000, pause=5)
        first, pids = job.await_membership(6)
        self.hosts.cut_between(1, 2)
        _, now = job.await_membership(4, after=first)
        self.assertEqual(list(now.values()), [pids[rank] for rank in range(4)])
        self.assertRegex(job.text(), r"process 4 \(.*\) is removed: in 2 memberships others did not reach it")
        job.expect_done(4)


    def test_in_a_job_of_pbs_or_lsf(self):
        """Their variables, and a stand-in for blaunch: ruedarun asks for nothing else."""
        a, b, _ = self.hosts.names
        nodes = os.path.join(tempfile.mkdtemp(), "nodes")
        with open(nodes, "w", encoding="ascii") as file:
            file.write(f"{a}\n{a}\n{b}\n{b}\n")
        for variables in (["PBS_JOBID=7.pbs", f"PBS_NODEFILE={nodes}"], ["LSB_JOBID=7", f"LSB_MCPU_HOSTS={a} 2 {b} 2"]):
            with self.subTest(variables[0]):
                job = Job(self, "--min-np", 2, wrap=["env", *variables, *self.sshd.command(0)], steps=400, pause=5)
                job.expect_that_a_killed_rank_is_replaced(4)

    def test_kills_in_a_row(self):
        """Of ranks, of what starts them, of agents, and of all that runs on a host; the weights are right in the end."""
        print(f"seed {SEED}", flush=True)
        chance = random.Random(SEED)
        job = self.start("--min-np", 1, "--host-timeout", 2, "--blacklist-cooldown-range", 0.02, 0.1, steps=1_000_000,
                         pause=1, commit=3)
        job.await_membership(6)
        kills, dying, deadline = dict.fromkeys(("rank", "spawner", "agent", "host"), 0), set(), time.monotonic() + HANG
        while sum(kills.values()) < HOST_KILLS:
            time.sleep(chance.random() * 0.3)
            self.assertIsNone(job.process.poll(), job.text()[-5000:])
            self.assertLess(time.monotonic(), deadline, job.text()[-5000:])
            lines = list(AT_WORK.finditer(job.text()))
            newest = max(int(line[2]) for line in lines)
            ranks = {}  # by host
            for pid in sorted(int(line[7]) for line in lines if int(line[2]) == newest):
                if lives(pid) and pid not in dying:
                    ranks.setdefault(namespace_of(pid), []).append(pid)
            if len(ranks) < 2:  # one is left in any case
                continue
            pids = ranks[chance.choice(sorted(ranks))]
            spawner = parent_of(pids[0])
            agent = parent_of(spawner)
            if agent <= 1:  # it ends already
                continue
            kind = chance.choice(sorted(kills))
            victims = {"rank": [chance.choice(pids)], "spawner": [spawner], "agent": [agent],
                       "host": [agent, spawner, *pids]}[kind]
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            kills[kind] += 1
            dying.update(victims if kind == "rank" else pids)
            deadline = time.monotonic() + HANG
        job.await_membership(6, after=newest)
        job.finish()
        job.expect_done()
        gaps = [float(gap) for gap in re.findall(r"ranks? after ([\d.]+) s", job.text())]
        print(f"{kills}, {newest} memberships, the longest gap {max(gaps)} s", flush=True)


class Slurm(unittest.TestCase):
    """In an allocation, whose nodes are network namespaces."""

    def start(self, *options, **how):
        support.skip(hosts.why_not())
        support.needs(*slurm.PROGRAMS)
        self.hosts = hosts.Hosts(2)
        self.addCleanup(self.hosts.remove)
        folder = tempfile.mkdtemp(prefix="rueda-slurm-")
        self.cluster = slurm.Cluster(folder, nodes=2, cpus=4, hosts=self.hosts)
        self.addCleanup(self.cluster.stop)
        wrap = ["env", f"SLURM_CONF={self.cluster.conf}",
                *self.cluster.command("salloc", "--quiet", "--no-kill", "--nodes=2", "--ntasks-per-node=2")]
        return Job(self, "--min-np", 2, *options, wrap=wrap, **how)

    def test_a_killed_rank_is_replaced(self):
        self.start(steps=400, pause=5).expect_that_a_killed_rank_is_replaced(4)

    def test_the_job_goes_on_without_a_node(self):
        job = self.start("--host-timeout", 3, "-x", "RUEDA_HEARTBEAT_LIMIT_S=1", steps=3_000, pause=2)
        first, pids = job.await_membership(4)
        self.hosts.cut(1)
        second, survivors = job.await_membership(2, after=first)
        self.assertEqual(list(survivors.values()), [pids[0], pids[1]])
        deadline = time.monotonic() + HANG
        while any(lives(pids[rank]) for rank in (2, 3)):
            self.assertLess(time.monotonic(), deadline, job.text())
            time.sleep(0.05)
        self.hosts.join(1)
        job.await_membership(4, after=second)
        job.expect_done(4)


class Chaos(unittest.TestCase):
    def test_kills_in_a_row(self):
        """Of members at any moment, two at once, and of newcomers; the weights are right in the end."""
        print(f"seed {SEED}", flush=True)
        chance = random.Random(SEED)
        job = Job(self, "-np", 4, "--min-np", 1, "--blacklist-cooldown-range", "0.02", "0.1", steps=1_000_000, pause=1,
                  commit=3)
        kills, dead = 0, set()
        number, pids = job.await_membership(4)
        members = set(pids.values())
        while kills < KILLS:
            time.sleep(chance.random() * 0.08)
            lines = list(AT_WORK.finditer(job.text()))
            newest = max(int(line[2]) for line in lines)
            if newest > number:
                number = newest
                members = {int(line[7]) for line in lines if int(line[2]) == newest}
            alive = [pid for pid in sorted(members - dead) if lives(pid)]
            started = {int(pid) for pid in re.findall(r"started, pid (\d+)", job.text())}
            young = [pid for pid in started - dead - {int(line[7]) for line in lines} if lives(pid)]
            victims = []
            if young and alive and chance.random() < 0.3:
                victims = [chance.choice(sorted(young))]
            elif len(alive) >= 2:
                victims = chance.sample(alive, 2 if len(alive) > 2 and chance.random() < 0.2 else 1)
            for victim in victims:
                try:
                    os.kill(victim, signal.SIGKILL)
                    kills += 1
                    dead.add(victim)
                except ProcessLookupError:
                    pass
            self.assertIsNone(job.process.poll(), job.text()[-5000:])
        # The loss curve goes on.
        lines = list(AT_WORK.finditer(job.text()))
        newest = max(int(line[2]) for line in lines)
        job.await_membership(4, after=newest - 1)
        with open(job.end, "w", encoding="utf-8"):
            pass
        job.expect_done()
        steps = [(int(line[2]), int(line[6])) for line in AT_WORK.finditer(job.text())]
        begins = [min(step for membership, step in steps if membership == each) for each in sorted({m for m, _ in steps})]
        self.assertEqual(begins, sorted(begins), "no commit is lost")
        print(f"{kills} kills, {len(begins)} memberships, {begins[-1]} steps", flush=True)


if __name__ == "__main__":
    support.main()
