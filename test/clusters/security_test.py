#!/usr/bin/env python3
"""Jobs whose doors strangers knock at, and what of a job others can see. What needs hosts of its own (hosts.py) needs
root; the rest does not.

security_test.py HELLO RUEDA_BENCH RUEDARUN

SOAK_STRANGERS: how many come; more in test/soak/run.sh.
"""
import base64
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import hosts
import peer
import sockets
import support

HELLO, BENCH, RUEDARUN = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
STRANGERS = int(os.environ.get("SOAK_STRANGERS", "10000"))
SANITIZED = os.environ.get("TEST_SANITIZED") == "1"  # memory that was freed stays, and all is slower
START = 30  # seconds for a job to start
HANG = 60
CUT = 2.0  # seconds until one that proves nothing is cut off
JOINS = 3.0 * (4 if SANITIZED else 1)  # until a rank has joined past strangers, and the job is done
NOBODY = 65534


def needs_root(test):
    return unittest.skipUnless(os.geteuid() == 0, "needs root")(test)


def wait_until(condition, what):
    deadline = time.monotonic() + HANG
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited for {what}")
        time.sleep(0.01)


class Job:
    """Ranks that are started one by one."""

    def __init__(self, folder, size, program=(HELLO,), **variables):
        self.folder, self.size, self.program, self.ranks = folder, size, program, {}
        self.name = f"security-{os.getpid()}-{random.getrandbits(32):x}"
        self.environment = {**os.environ, "WORLD_SIZE": str(size), "RUEDA_JOB_ID": self.name,
                            "RUEDA_START_TIMEOUT_S": str(START), "RUEDA_RECORDER_DIR": folder, **variables}

    def start(self, *ranks, command=lambda rank, words: words, **variables):
        for rank in ranks:
            with open(os.path.join(self.folder, f"out.{rank}"), "wb") as out:
                self.ranks[rank] = subprocess.Popen(
                    command(rank, list(self.program)), env={**self.environment, "RANK": str(rank), **variables},
                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        return self

    def out(self, rank):
        with open(os.path.join(self.folder, f"out.{rank}"), encoding="utf-8", errors="replace") as out:
            return out.read()

    def status(self, rank):
        return self.ranks[rank].wait(timeout=HANG)

    def end(self):
        for rank in self.ranks.values():
            rank.kill()
            rank.wait()


class SecurityTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="rueda-security-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.shared = os.path.join(self.folder, "shared")
        os.mkdir(self.shared)

    def write_secret(self, content):
        path = os.path.join(self.folder, "secret")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(content)
        return path

    def job(self, size, *args, **variables):
        job = Job(self.folder, size, *args, **variables)
        self.addCleanup(job.end)
        return job

    def over_tcp(self, size, **variables):
        """A job that meets as those on several hosts do, over loopback."""
        return self.job(size, RUEDA_SHARED_DIR=self.shared, RUEDA_NETWORK_INTERFACE="lo", **variables)

    def expect_result(self, job):
        for rank in job.ranks:
            self.assertEqual(job.status(rank), 0, job.out(rank))
            self.assertIn(support.line_of(rank, job.size) + "\n", job.out(rank))

    def door(self, job):
        """Where rank 0 waits, and what proves oneself there."""
        def look():
            names = [name for name in os.listdir(self.shared) if not name.endswith(".new")]
            return names and os.path.join(self.shared, names[0])
        path = wait_until(look, "rank 0's file")
        with open(path, encoding="ascii") as file:
            _, address, secret, _ = file.read().split("\n")
        return address, peer.Scope(bytes.fromhex(secret), job.name + "/"), path


class Recorder(threading.Thread):
    """Stands between a rank and rank 0, and keeps what the rank says: when it comes again, as after an answer that was
    late, the last time."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.listener, self.behind, self.said = socket.create_server(("127.0.0.1", 0)), address, b""
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            front, back = self.listener.accept()[0], peer.connect(self.behind)
            back.settimeout(None)
            self.said = b""
            threading.Thread(target=self.pump, args=(back, front), daemon=True).start()
            threading.Thread(target=self.pump, args=(front, back, True), daemon=True).start()

    def pump(self, source, sink, keep=False):
        try:
            while data := source.recv(65536):
                if keep:
                    self.said += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Crowd:
    """Connections of every kind that prove nothing. `recorded`: what a rank of this job has said."""

    def __init__(self, address, scope, recorded, seed=1):
        self.address, self.scope, self.recorded = address, scope, recorded
        self.random, self.open = random.Random(seed), []

    def knock(self, count):
        for i in range(count):
            try:
                self.one(i % 10)
            except OSError:
                pass  # it was closed first
        return self

    def one(self, kind):
        sock = peer.connect(self.address)
        if kind == 9:  # says little, and stays
            sock.sendall(peer.MAGIC[:3])
            self.open.append(sock)
            if len(self.open) > 300:
                self.open.pop(0).close()
            return
        with sock:
            if kind == 1:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            elif kind == 2:
                sock.sendall(self.random.randbytes(4000))
            elif kind == 3:
                sock.sendall(b"GET / HTTP/1.1\r\nHost: rueda\r\n\r\n")
            elif kind == 4:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
            elif kind == 5:
                sock.sendall(self.hello() + bytes(100_000))
            elif kind == 6:
                sock.sendall(self.hello() + self.random.randbytes(peer.FINISH))
            elif kind == 7:
                sock.sendall(self.recorded or self.hello())
            elif kind == 8:
                said = self.recorded[:peer.HELLO + peer.FINISH] or self.hello()
                sock.sendall(peer.flip(said, self.random.randrange(8 * len(said))))

    def hello(self):
        return peer.hello(self.scope, 2, 0, self.random.randbytes(32))

    def leave(self):
        for sock in self.open:
            sock.close()


class TheDoor(SecurityTest):
    """Rank 0's, while the last rank of three has not come."""

    def begin(self):
        job = self.over_tcp(3).start(0)
        address, scope, path = self.door(job)
        recorder = Recorder(address)
        self.send_to(path, address, recorder.address)
        job.start(1)
        wait_until(lambda: len(recorder.said) > peer.HELLO + peer.FINISH, "rank 1")
        self.send_to(path, recorder.address, address)
        return job, address, scope, recorder.said

    @staticmethod
    def send_to(path, old, new):
        """Who reads the file from now on goes elsewhere."""
        with open(path, encoding="ascii") as file:
            text = file.read()
        with open(path, "w", encoding="ascii") as file:
            file.write(text.replace(old, new))

    def finish(self, job):
        """The last rank comes, and all have the result."""
        begin = time.monotonic()
        job.start(2)
        self.expect_result(job)
        return time.monotonic() - begin

    def test_thousands_of_strangers(self):
        job, address, scope, recorded = self.begin()
        self.assertFalse(any(sockets.listening(job.ranks[1].pid)))
        pid, begin = job.ranks[0].pid, time.monotonic()
        crowd = Crowd(address, scope, recorded).knock(200)
        rss, fds = sockets.rss_kib(pid), []
        for _ in range(10):
            crowd.knock((STRANGERS - 200) // 10)
            fds.append(sockets.count_fds(pid))
        grown, seconds = sockets.rss_kib(pid) - rss, time.monotonic() - begin
        joined = self.finish(job)
        crowd.leave()
        lines = job.out(0).count("start: refused ")
        print(f"{STRANGERS} strangers in {seconds:.1f} s: memory grew by {grown} KiB, at most {max(fds)} descriptors, "
              f"{lines} lines in the log; then the last rank joined and all was done in {joined:.2f} s")
        if not SANITIZED:
            self.assertLess(grown, 1024)
        self.assertLess(max(fds), 64 + 3 + 40)
        self.assertLessEqual(lines, seconds + joined + 2)
        self.assertGreaterEqual(lines, 1)
        self.assertLess(joined, JOINS)

    def test_while_they_keep_coming(self):
        job, address, scope, recorded = self.begin()
        over = threading.Event()

        def keep_coming(seed):
            crowd = Crowd(address, scope, recorded, seed)
            while not over.is_set():
                crowd.knock(10)
            crowd.leave()

        crowds = [threading.Thread(target=keep_coming, args=(seed,)) for seed in range(2)]
        try:
            for crowd in crowds:
                crowd.start()
            time.sleep(0.5)
            joined = self.finish(job)
        finally:
            over.set()
            for crowd in crowds:
                crowd.join()
        print(f"while they keep coming: joined and done in {joined:.2f} s")

    def test_every_false_proof(self):
        job, address, scope, recorded = self.begin()
        other = peer.Scope(os.urandom(32), scope.job.decode())
        # Of these it takes the hello, which anybody can say, and answers with its own proof.
        for what, make in {
                "another secret": lambda: peer.Client(address, other, 2).prove(),
                "a truncated proof": lambda: peer.Client(address, scope, 2).prove(lambda mac: mac[:31]),
                "an empty proof": lambda: peer.Client(address, scope, 2).prove(lambda mac: b""),
                "its own proof, reflected": lambda: self.reflect(address, scope),
                "zeros": lambda: peer.Client(address, scope, 2).prove(lambda mac: bytes(32)),
        }.items():
            client = make()
            self.assertTrue(client.greeted(), what)
            client.socket.shutdown(socket.SHUT_WR)
            self.assertEqual(peer.receive(client.socket, 1), b"", what)
            client.close()
        # To these it does not even answer.
        old, new = peer.Scope(scope.secret, scope.job.decode(), 0), peer.Scope(scope.secret, scope.job.decode(), 2)
        for what, who in {"an old membership": (old, 2, 0), "a later membership": (new, 2, 0), "looks for rank 1": (scope, 2, 1),
                          "rank -1": (scope, -1, 0), "rank 65536": (scope, 65536, 0)}.items():
            client = peer.Client(address, *who)
            self.assertEqual(client.reply, b"", what)
            client.close()
        # A whole session again, and what rank 0 itself has said.
        client = peer.Client(address, scope, 2, change_hello=lambda _: recorded[:peer.HELLO])
        self.assertTrue(client.greeted())
        client.prove(lambda _: recorded[peer.HELLO:])
        self.assertEqual(peer.receive(client.socket, 1), b"")
        greeted = peer.Client(address, scope, 2)
        self.assertTrue(greeted.server_is_honest())
        client = peer.Client(address, scope, 2, change_hello=lambda _: greeted.reply[:peer.HELLO])
        self.assertEqual(client.reply, b"")
        self.finish(job)

    @staticmethod
    def reflect(address, scope):
        client = peer.Client(address, scope, 2)
        return client.prove(lambda _: client.reply[-peer.MAC:])

    def test_every_flipped_bit(self):
        """A flip that is taken for the truth would make rank 2 come and go, and the start fail."""
        job, address, scope, _ = self.begin()
        for bit in range(8 * peer.HELLO):
            client = peer.Client(address, scope, 2, change_hello=lambda data: peer.flip(data, bit))
            if client.greeted():  # the flip is in its name or its nonce
                self.assertFalse(client.server_is_honest(), bit)
                client.prove()
            self.assertEqual(peer.receive(client.socket, 1), b"", bit)
            client.close()
        for bit in range(8 * peer.FINISH):
            client = peer.Client(address, scope, 2).prove(lambda data: peer.flip(data, bit))
            self.assertEqual(peer.receive(client.socket, 1), b"", bit)
            client.close()
        self.finish(job)

    def test_who_knows_the_secret_and_says_he_is_another(self):
        """The first that came as rank 1 keeps its place; who comes second is told."""
        job, address, scope, _ = self.begin()
        for rank, text in ((1, b"two processes say that they are rank 1 of this job"),
                           (0, b"rank 0 of this job, which is not waited for here"),
                           (7, b"rank 7 of this job, which is not waited for here")):
            client = peer.Client(address, scope, rank).prove()
            self.assertTrue(client.server_is_honest())
            kind, payload = client.read_frame()
            self.assertEqual(kind, peer.KIND_REFUSED)
            self.assertIn(text, payload)
            client.close()
        self.finish(job)

    def test_who_says_little_is_cut_off(self):
        job, address, scope, recorded = self.begin()
        slow = [peer.connect(address) for _ in range(40)]
        begin, ends = time.monotonic(), []
        said = peer.hello(scope, 2, 0, os.urandom(32))
        for i in range(12):  # a byte each quarter of a second
            still = []
            for sock in slow:
                try:
                    sock.sendall(said[i:i + 1])
                    sock.setblocking(False)
                    still.append(sock) if sock.recv(1) else ends.append(time.monotonic() - begin)
                except BlockingIOError:
                    still.append(sock)
                except ConnectionError:
                    ends.append(time.monotonic() - begin)
            slow = still
            time.sleep(0.25)
        self.assertEqual(slow, [])
        self.assertGreater(min(ends), CUT - 0.3)
        self.assertLess(max(ends), CUT + 1)
        crowd = [peer.connect(address) for _ in range(200)]
        joined = self.finish(job)
        print(f"cut off after {min(ends):.2f} to {max(ends):.2f} s; past 200 who say nothing a rank joins in {joined:.2f} s")
        self.assertLess(joined, JOINS)
        for sock in crowd:
            sock.close()

    def test_how_many_may_wait(self):
        """The rest does in the kernel, and costs the rank nothing."""
        job, address, _, _ = self.begin()
        port, most = int(address.rpartition(":")[2]), 0
        crowd = [peer.connect(address) for _ in range(300)]
        until = time.monotonic() + 1
        while time.monotonic() < until:
            most = max(most, sockets.count_accepted(job.ranks[0].pid, port))
        self.assertLessEqual(most, 64 + 3)  # rank 1, which has joined; a place for rank 2; and one just taken
        self.assertGreaterEqual(most, 60)
        self.finish(job)
        for sock in crowd:
            sock.close()


class TheSecondDoor(SecurityTest):
    """Rank 0's for the control connections of the other leaders, which is there from the start on."""

    def test_strangers_there(self):
        secret = b"a secret of this job alone"
        job = self.job(3, RUEDA_BUS="tcp", LOCAL_WORLD_SIZE="3", RUEDA_SECRET_FILE=self.write_secret(secret)).start(0)
        found = wait_until(lambda: sockets.listening(job.ranks[0].pid), "rank 0")
        self.assertEqual([address for address, _ in found], ["127.0.0.1"])
        address = "127.0.0.1:%d" % found[0][1]
        scope = peer.Scope(secret, job.name + "/")
        quiet = [peer.connect(address) for _ in range(100)]  # accepted by the kernel, and by nobody yet
        over = threading.Event()

        def keep_coming():
            crowd = Crowd(address, scope, b"")
            while not over.is_set():
                crowd.knock(10)
            crowd.leave()

        crowd = threading.Thread(target=keep_coming)
        crowd.start()
        try:
            job.start(1, 2)
            self.expect_result(job)
        finally:
            over.set()
            crowd.join()
        for sock in quiet:
            sock.close()


class WhatListens(SecurityTest):
    @staticmethod
    def watch(job):
        """All addresses that any rank listens on until all have ended."""
        seen = set()
        while any(rank.poll() is None for rank in job.ranks.values()):
            for number, rank in job.ranks.items():
                seen.update((number, address) for address, _ in sockets.listening(rank.pid))
        return seen

    def test_nothing_on_one_host(self):
        job = self.job(3, (BENCH, "--bytes", "4K", "--iterations", "3000"), LOCAL_WORLD_SIZE="3").start(0)
        time.sleep(0.2)
        job.start(1, 2)
        self.assertEqual(self.watch(job), set())
        for rank in job.ranks:
            self.assertEqual(job.status(rank), 0, job.out(rank))

    def test_nothing_under_ruedarun(self):
        launcher = subprocess.Popen([RUEDARUN, "-np", "3", BENCH, "--bytes", "4K", "--iterations", "1000000"],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        self.addCleanup(launcher.wait)
        self.addCleanup(launcher.terminate)
        seen = set()

        def look():
            pids = descendants(launcher.pid)
            for pid in [launcher.pid, *pids]:
                seen.update(sockets.listening(pid))
            return sum(support.has_engine(pid) for pid in pids) == 3

        wait_until(look, "the ranks")
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            self.assertTrue(look())
        self.assertEqual(seen, set())

    def test_the_control_plane_over_tcp_only_while_it_starts(self):
        job = self.job(2, (BENCH, "--bytes", "4K", "--iterations", "1000000"), RUEDA_BUS="tcp", LOCAL_WORLD_SIZE="2",
                       RUEDA_SECRET_FILE=self.write_secret(b"a secret of this job alone")).start(0)
        wait_until(lambda: sockets.listening(job.ranks[0].pid), "rank 0")
        self.assertEqual({address for address, _ in sockets.listening(job.ranks[0].pid)}, {"127.0.0.1"})
        job.start(1)
        wait_until(lambda: not sockets.listening(job.ranks[0].pid), "the door to be closed")
        time.sleep(0.5)
        for rank in job.ranks.values():
            self.assertIsNone(rank.poll())
            self.assertEqual(sockets.listening(rank.pid), [])


def descendants(pid):
    """Its children and theirs."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as children:
                for child in children.read().split():
                    found += [int(child), *descendants(child)]
    except OSError:
        pass
    return found


def forms(secret):
    """As it is, and as it could be written."""
    return [secret, secret.hex().encode(), secret.hex().upper().encode(), base64.b64encode(secret)[:-4], secret[:16],
            secret[:16].hex().encode()]


def in_memory(pid, texts, dumped):
    """Whether one of the texts is in the process's own writable memory: that which a core dump has, or the rest."""
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as file:
        regions = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw-p (?:.*\n)*?Rss: +(\d+) (?:.*\n)*?VmFlags: (.*)$", file.read(),
                             re.MULTILINE)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for begin, end, resident, flags in regions:
            begin, size = int(begin, 16), int(end, 16) - int(begin, 16)
            if resident == "0" or size > 256 << 20 or ("dd" not in flags.split()) != dumped:
                continue
            memory.seek(begin)
            content = memory.read(size)
            if any(text in content for text in texts):
                return True
    return False


def secrets_of(pids):
    """What lies behind RUEDA_SECRET_FD in each rank, once both are there."""
    found = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
            if b"RUEDA_RANK" in variables:
                with open(f"/proc/{pid}/fd/{int(variables[b'RUEDA_SECRET_FD'])}", "rb") as file:
                    found[pid] = file.read()
        except (OSError, KeyError):
            pass
    return found if len(found) == 2 else None


class TheSecret(SecurityTest):
    """Shows nowhere: neither as it is nor as it could be written."""

    def expect_nowhere(self, secret, texts):
        self.assertGreater(len(texts), 0)
        for where, text in texts.items():
            for form in forms(secret):
                self.assertNotIn(form, text, where)

    @staticmethod
    def of_processes(pids, *files):
        texts = {}
        for pid in pids:
            for name in files:
                try:
                    with open(f"/proc/{pid}/{name}", "rb") as file:
                        texts[f"{name} of {pid}"] = file.read()
                except OSError:
                    pass
        return texts

    def of_files(self):
        texts = {}
        for root, _, names in os.walk(self.folder):
            for name in names:
                if name != "secret":
                    with open(os.path.join(root, name), "rb") as file:
                        texts[name] = file.read()
        return texts

    @staticmethod
    def all_pids():
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]

    def test_of_a_file(self):
        secret = b"CANARY-of-a-file-7Rk2mQ9xV4tB"
        job = self.job(3, (BENCH, "--bytes", "4K", "--iterations", "1000000"), LOCAL_WORLD_SIZE="3", RUEDA_BUS="tcp",
                       RUEDA_LOG_LEVEL="debug", RUEDA_TIMELINE=os.path.join(self.folder, "timeline.json"),
                       RUEDA_SECRET_FILE=self.write_secret(secret)).start(0)
        found = wait_until(lambda: sockets.listening(job.ranks[0].pid), "rank 0")
        stranger = peer.connect("127.0.0.1:%d" % found[0][1])  # so that there is something to log
        stranger.sendall(peer.hello(peer.Scope(b"x" * 32, job.name + "/"), 2, 0, bytes(32)) + bytes(32))
        job.start(1, 2)
        pids = [rank.pid for rank in job.ranks.values()]
        wait_until(lambda: not sockets.listening(pids[0]), "the start")
        stranger.close()
        time.sleep(0.3)
        self.expect_nowhere(secret, self.of_processes(self.all_pids(), "cmdline"))
        self.expect_nowhere(secret, self.of_processes(pids, "environ", "comm"))
        wait_until(lambda: all(support.has_thread(pid, "rueda-engine") for pid in pids), "the ranks to have read it")
        for pid in pids:
            self.assertTrue(in_memory(pid, [secret], dumped=False), "this would not find it anywhere")
            self.assertFalse(in_memory(pid, forms(secret), dumped=True))
        for pid in pids:
            os.kill(pid, signal.SIGUSR2)
        wait_until(lambda: sum(name.startswith("rueda-recorder.") for name in os.listdir(self.folder)) == 3, "dumps")
        os.kill(pids[1], signal.SIGKILL)  # the others have something to say, and dump again
        for rank in job.ranks:
            self.assertNotEqual(job.status(rank), 0)
        self.assertIn("was lost", job.out(0))
        self.expect_nowhere(secret, self.of_files())

    def test_of_ruedarun(self):
        output = os.path.join(self.folder, "output")
        launcher = subprocess.Popen(
            [RUEDARUN, "-np", "2", "--verbose", "--output-dir", output, BENCH, "--bytes", "4K", "--iterations",
             "1000000"], stdin=subprocess.DEVNULL, stdout=open(os.path.join(self.folder, "launcher"), "wb"),
            stderr=subprocess.STDOUT, env={**os.environ, "RUEDA_LOG_LEVEL": "debug"})
        self.addCleanup(launcher.kill)
        secrets = wait_until(lambda: secrets_of(descendants(launcher.pid)), "the ranks")
        self.assertEqual(len(set(secrets.values())), 1)
        secret = next(iter(secrets.values()))
        self.assertEqual(len(secret), 32)
        ranks = list(secrets)
        self.expect_nowhere(secret, self.of_processes(self.all_pids(), "cmdline"))
        self.expect_nowhere(secret, self.of_processes([*ranks, launcher.pid], "environ"))
        wait_until(lambda: all(support.has_thread(pid, "rueda-engine") for pid in ranks), "the ranks to have read it")
        for pid in [*ranks, *descendants(launcher.pid), launcher.pid]:
            self.assertFalse(in_memory(pid, forms(secret), dumped=True), pid)
        time.sleep(0.3)
        os.kill(ranks[0], signal.SIGKILL)
        self.assertNotEqual(launcher.wait(timeout=HANG), 0)
        self.expect_nowhere(secret, self.of_files())


@needs_root
class AnotherUser(SecurityTest):
    """Takes the name by which the ranks of a host would meet."""

    def squat(self, job, listens):
        name = "rueda-" + peer.mac_of(b"rueda meeting", f"{os.geteuid()}/{job.name}//1/0".encode()).hex()[:32]
        there, tell = os.pipe()
        squatter = os.fork()
        if squatter == 0:
            os.setgroups([])
            os.setuid(NOBODY)
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(b"\0" + name.encode())
            if listens:
                sock.listen()
            os.write(tell, b"!")
            signal.pause()
        self.addCleanup(lambda: (os.kill(squatter, signal.SIGKILL), os.waitpid(squatter, 0), os.close(there),
                                 os.close(tell)))
        self.assertEqual(os.read(there, 1), b"!")
        return name

    def test_who_listens_there_is_named(self):
        job = self.job(2, LOCAL_WORLD_SIZE="2")
        name = self.squat(job, listens=True)
        job.start(0, 1)
        for rank in range(2):
            self.assertNotEqual(job.status(rank), 0)
            self.assertIn(f"unix socket @{name}", job.out(rank))
            self.assertIn(f"belongs to user {NOBODY}", job.out(rank))

    def test_that_the_name_is_taken_is_said(self):
        job = self.job(2, LOCAL_WORLD_SIZE="2")
        name = self.squat(job, listens=False)
        job.start(0)
        self.assertNotEqual(job.status(0), 0)
        self.assertIn(f"unix socket @{name}, and does not answer", job.out(0))
        self.assertIn("RUEDA_JOB_ID", job.out(0))


class OnHosts(SecurityTest):
    @classmethod
    def setUpClass(cls):
        support.skip(hosts.why_not())
        cls.cluster = hosts.Hosts(2)
        cls.addClassCleanup(cls.cluster.remove)

    def on_hosts(self, size, program, **variables):
        job = self.job(size, program, RUEDA_SHARED_DIR=self.shared, LOCAL_WORLD_SIZE=str(size // 2), **variables)
        job.command = lambda rank, words: self.cluster.command(rank // (size // 2), *words)
        return job

    def run_for_long(self, size=4, program=(BENCH, "--bytes", "4K", "--iterations", "1000000"), **variables):
        job = self.on_hosts(size, program, **variables)
        job.start(*range(size), command=job.command)
        wait_until(lambda: all(support.reduces(rank.pid) for rank in job.ranks.values()), "the ranks")
        return job

    def test_what_listens(self):
        """Only on the interface that was chosen: while the job starts, and while Gloo connects."""
        job = self.on_hosts(4, (BENCH, "--bytes", "4K", "--iterations", "1000"))
        seen = set()
        job.start(0, command=job.command)
        for rank in (None, 1, 2, 3):
            if rank is not None:
                job.start(rank, command=job.command)
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                self.look(job, seen)
        while any(rank.poll() is None for rank in job.ranks.values()):
            self.look(job, seen)
        for rank in job.ranks:
            self.assertEqual(job.status(rank), 0, job.out(rank))
        self.assertIn((0, "10.77.0.1"), seen)
        for rank, address in seen:
            self.assertEqual(address, "10.77.0.1" if rank < 2 else "10.77.0.2", seen)

    @staticmethod
    def look(job, seen):
        for rank, process in job.ranks.items():
            seen.update((rank, address) for address, _ in sockets.listening(process.pid))

    def test_nothing_once_it_runs(self):
        job = self.run_for_long()
        wait_until(lambda: not any(sockets.listening(rank.pid) for rank in job.ranks.values()), "Gloo to have connected")
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            for rank in job.ranks.values():
                self.assertIsNone(rank.poll())
                self.assertEqual(sockets.listening(rank.pid), [])

    def test_the_secret_is_not_on_the_wire(self):
        for secret in (b"CANARY-on-the-wire-2Zf8Lw5nD1pC", None):
            variables = {"RUEDA_SECRET_FILE": self.write_secret(secret)} if secret else {}
            with Capture(self.cluster.names[0]) as captured:
                job = self.on_hosts(4, (HELLO,), RUEDA_BUS="tcp", **variables)
                job.start(0, command=job.command)
                hidden = secret or self.door(job)[1].secret
                job.start(1, 2, 3, command=job.command)
                self.expect_result(job)
            self.assertIn(peer.MAGIC, captured.bytes)  # it has seen the handshakes
            for form in forms(hidden):
                self.assertNotIn(form, captured.bytes)

    def test_nor_is_that_of_ruedarun(self):
        with Capture(self.cluster.names[0]) as captured:
            launcher = subprocess.Popen(
                self.cluster.command(0, RUEDARUN, "-np", "2", BENCH, "--bytes", "4K", "--iterations", "1000000"),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={**os.environ, "RUEDA_BUS": "tcp"})
            self.addCleanup(launcher.wait)
            self.addCleanup(launcher.terminate)
            secrets = wait_until(lambda: secrets_of(descendants(launcher.pid)), "the ranks")
            wait_until(lambda: all(support.has_engine(pid) for pid in secrets), "the start")
            time.sleep(0.3)
        self.assertIn(peer.MAGIC, captured.bytes)
        for form in forms(next(iter(secrets.values()))):
            self.assertNotIn(form, captured.bytes)

    # Until the kernel takes no more.
    KNOCKS = ("import socket, sys\nopen_, refused = [], 0\n"
              "while refused < 10:\n"
              "    sock = socket.socket()\n"
              "    sock.settimeout(0.1)\n"
              "    try:\n"
              "        sock.connect((sys.argv[1], int(sys.argv[2])))\n"
              "        sock.sendall(b'x' * 56)\n"
              "    except OSError:\n"
              "        refused += 1\n"
              "    open_.append(sock)\n"
              "    del open_[:-900]\n"
              "print(len(open_))\n")

    def test_the_door_that_ruedarun_keeps_for_a_later_init(self):
        """Nobody answers there while the job runs, and who knocks costs it nothing."""
        shell = os.path.join(self.folder, "shell")
        with open(shell, "w", encoding="ascii") as script:
            script.write('#!/bin/sh\nhost=$1\nshift\nexec ip netns exec "$host" sh -c "$*"\n')
        os.chmod(shell, 0o755)
        first, second = self.cluster.names
        launcher = subprocess.Popen(self.cluster.command(
            0, RUEDARUN, "--remote-shell", shell, "--network-interface", "eth0", "-H", f"{first}:2,{second}:2",
            BENCH, "--bytes", "16K", "--iterations", "1000000"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)  # 16 KiB: smaller data passes through the log, which comes into memory by and by
        self.addCleanup(launcher.wait)
        self.addCleanup(launcher.terminate)

        def ranks():
            return [pid for pid in descendants(launcher.pid) if support.has_engine(pid)]

        wait_until(lambda: len(ranks()) == 4, "the ranks")
        wait_until(lambda: all(support.reduces(pid) for pid in ranks()), "the ranks to be at work")
        rank_0, door = next((pid, listens[0]) for pid in ranks() for listens in [sockets.listening(pid)] if listens)
        self.assertEqual(door[0], "10.77.0.1")
        looks = [0]

        def is_settled():
            time.sleep(0.3)
            looks.append(sockets.rss_kib(rank_0))
            return looks[-1] - looks[-2] < 64

        wait_until(is_settled, "its memory to have been used once")
        rss, fds = looks[-1], sockets.count_fds(rank_0)
        subprocess.run(self.cluster.command(1, sys.executable, "-c", self.KNOCKS, door[0], str(door[1])), check=True,
                       stdout=subprocess.DEVNULL)
        if not SANITIZED:
            self.assertLess(sockets.rss_kib(rank_0) - rss, 1024)
        self.assertLessEqual(sockets.count_fds(rank_0), fds + 8)  # Gloo may still connect
        time.sleep(0.5)
        self.assertEqual(len(ranks()), 4)

    def test_a_link_that_is_cut_is_noticed_when_nothing_happens(self):
        """Rank 0 comes late to a barrier; the other waits for it and has nothing to say."""
        job = self.run_for_long(2, (BENCH, "--late", "60"))
        time.sleep(1)
        cut = time.monotonic()
        self.cluster.cut(1)
        try:
            self.assertNotEqual(job.status(1), 0, job.out(1))
        finally:
            self.cluster.join(1)
        print(f"known {time.monotonic() - cut:.1f} s after the cut")
        self.assertLess(time.monotonic() - cut, 8)
        self.assertIn("was lost", job.out(1))


class Capture:
    """All that passes the interfaces of a host, as bytes."""

    SCRIPT = ("import socket, sys\n"
              "everything = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))\n"
              "everything.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)\n"
              "print('there', file=sys.stderr, flush=True)\n"
              "while True:\n"
              "    sys.stdout.buffer.write(everything.recv(70_000))\n"
              "    sys.stdout.buffer.flush()\n")

    def __init__(self, name):
        self.name, self.bytes = name, b""

    def __enter__(self):
        self.out = tempfile.TemporaryFile()
        self.process = subprocess.Popen(["ip", "netns", "exec", self.name, sys.executable, "-c", self.SCRIPT],
                                        stdin=subprocess.PIPE, stdout=self.out, stderr=subprocess.PIPE)
        assert self.process.stderr.readline() == b"there\n"
        return self

    def __exit__(self, *_):
        time.sleep(0.1)
        self.process.terminate()
        self.process.wait()
        self.process.stdin.close()
        self.process.stderr.close()
        self.out.seek(0)
        self.bytes = self.out.read()
        self.out.close()


if __name__ == "__main__":
    support.main(warnings="ignore")  # of sockets that end with their test
