"""rueda.run: functions on several ranks, by the real ruedarun.

Functions that tests define within themselves are pickled by value, as those of a program are.
"""

import contextlib
import io
import json
import os
import pathlib
import pickle
import queue
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid

import pytest

import rueda
from rueda import _hosts, _worker
from rueda._channel import Channel

RUN = sys.modules["rueda.run"]  # the module; its name in the package is the function's
HANG = 120  # seconds

sys.path.append(str(pathlib.Path(__file__).parent.parent / "clusters"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """For temporary files, of which none may be left."""
    recorder, temporary = tmp_path / "recorder", tmp_path / "temporary"
    recorder.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("RUEDA_RECORDER_DIR", str(recorder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    yield temporary
    assert list(temporary.iterdir()) == []


def failure_of(fn, **options):
    with pytest.raises(rueda.RemoteError) as caught:
        rueda.run(fn, **{"np": 2, **options})
    return caught.value


def rank():
    return int(os.environ["RANK"])


# ---- results ----


def test_results_come_by_rank():
    def fn(scale, offset=0):
        rueda.init()
        total = bytearray([rueda.rank() * scale])
        rueda.allreduce_(total, op=rueda.Sum)
        return rueda.rank(), rueda.size(), total[0] + offset

    assert rueda.run(fn, (5,), {"offset": 100}, np=3) == [(r, 3, 115) for r in range(3)]


def test_a_rank_is_not_initialized_for_the_function():
    assert rueda.run(rueda.is_initialized, np=2) == [False, False]


def test_a_rank_may_leave_the_job_itself():
    def fn():
        rueda.init()
        rueda.shutdown()
        return 1

    assert rueda.run(fn, np=2) == [1, 1]


def test_num_proc_is_another_name_of_np():
    assert rueda.run(rank, num_proc=2) == [0, 1]


def test_hosts_say_how_many_ranks():
    assert rueda.run(rank, hosts="localhost:1,127.0.0.1:2") == [0, 1, 2]


def test_a_hostfile_says_how_many_ranks(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# here\nlocalhost slots=2\n")
    assert rueda.run(rank, hostfile=path) == [0, 1]


def test_lambdas_and_closures_are_called():
    word = ["of the closure"]
    assert rueda.run(lambda: word[0] + os.environ["RANK"], np=2) == [
        "of the closure0",
        "of the closure1",
    ]


def test_the_functions_of_a_module_that_only_this_process_finds_are_called(tmp_path, monkeypatch):
    (tmp_path / "of_a_folder.py").write_text("def fn():\n    return __name__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("of_a_folder")
    assert rueda.run(module.fn, np=2) == ["of_a_folder", "of_a_folder"]


def test_functions_and_classes_of_main_are_called():
    program = """
        import rueda

        class Point:
            def __init__(self, x):
                self.x = x

        class Mistake(Exception):
            pass

        def helper(point):
            return Point(point.x + 1)

        def fn(point):
            return helper(point)

        def fail():
            raise Mistake("of main")

        if __name__ == "__main__":
            points = rueda.run(fn, (Point(1),), np=2)
            print([type(p) is Point and p.x for p in points])
            try:
                rueda.run(fail, np=2)
            except rueda.RemoteError as error:
                print(type(error.__cause__) is Mistake)
    """
    done = run_program(program)
    assert done.stdout == "[2, 2]\nTrue\n", done.stderr


def test_large_arguments_and_results_pass():
    data = bytes(range(256)) * (64 << 12)  # 64 MiB
    assert rueda.run(lambda data: data[::-1], (data,), np=2) == [data[::-1]] * 2


def test_two_calls_at_once_do_not_disturb_each_other():
    results = {}

    def call(number):
        results[number] = rueda.run(lambda: number * 10 + int(os.environ["RANK"]), np=2)

    threads = [threading.Thread(target=call, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1: [10, 11], 2: [20, 21]}


def test_a_world_of_one_may_call_it():
    rueda.init()
    try:
        assert rueda.run(rank, np=2) == [0, 1]
    finally:
        rueda.shutdown()


# ---- what ranks find, and what they print ----


def test_variables_and_knobs_are_for_the_ranks():
    names = ("OWN", "RUEDA_STALL_WARN_S", "RUEDA_DETERMINISTIC")
    found = rueda.run(
        lambda: [os.environ[name] for name in names],
        np=1,
        env={"OWN": "a=b c"},
        knobs={"stall_warn_s": 7, "deterministic": True},
    )
    assert found == [["a=b c", "7", "1"]]
    assert "OWN" not in os.environ


def test_no_secret_is_in_a_command_line_or_left_in_the_environment():
    def fn():
        lines, pid = "", os.getpid()
        while pid > 1:
            lines += pathlib.Path(f"/proc/{pid}/cmdline").read_text()
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
            pid = int(stat.rpartition(")")[2].split()[1])
        key = pathlib.Path("/proc/self/environ").read_text().partition("_RUEDA_CALL=")[2]
        assert key  # as it was at the start
        key = key.partition('"key": "')[2][:64]
        return lines, [key, *(name for name in os.environ if name == "_RUEDA_CALL")]

    ((lines, (key, *left)),) = rueda.run(fn, np=1, env={"PASSWORD": "swordfish"})
    assert len(bytes.fromhex(key)) == 32
    assert key not in lines
    assert "ruedarun" in lines
    assert "swordfish" not in lines
    assert left == []


def test_what_ranks_print_comes_out_of_a_stream_that_is_no_descriptor():
    def fn():
        print("to output", os.environ["RANK"])
        print("to errors", os.environ["RANK"], file=sys.stderr)

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        rueda.run(fn, np=2)
    assert sorted(out.getvalue().splitlines()) == ["[0] to output 0", "[1] to output 1"]
    assert sorted(err.getvalue().splitlines()) == ["[0] to errors 0", "[1] to errors 1"]


def test_lines_come_while_the_function_runs(tmp_path):
    """Rank 0 returns when somebody has seen what it has printed."""
    seen = tmp_path / "seen"

    class Stream(io.StringIO):
        def write(self, text):
            seen.touch()
            return len(text)

    def fn(path):
        print("here")
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return path.exists()

    with contextlib.redirect_stdout(Stream()):
        assert rueda.run(fn, (seen,), np=1) == [True]


def test_what_ranks_print_comes_out_of_the_process():
    done = run_program(
        """
        import rueda
        print("before")
        rueda.run(lambda: print("within"), np=1)
        print("after")
        """
    )
    assert done.stdout == "before\n[0] within\nafter\n", done.stderr


def test_options_go_to_ruedarun():
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        found = rueda.run(
            lambda: os.environ["RUEDA_START_TIMEOUT_S"], np=1, start_timeout=7, verbose=True
        )
    assert found == ["7"]
    assert err.getvalue().startswith("ruedarun: job ")


def test_outputs_go_to_a_folder(tmp_path):
    rueda.run(lambda: print("kept"), np=2, output_dir=tmp_path / "out")
    assert (tmp_path / "out" / "rank.1.out").read_text() == "kept\n"


# ---- failures ----


def test_an_exception_names_its_rank_and_brings_its_traceback():
    def inner():
        raise KeyError("boom")

    def fn():
        rueda.init()
        if rueda.rank() == 1:
            inner()
        rueda.allreduce(bytes(4), name="a")

    error = failure_of(fn, np=3)
    assert str(error) == "run: rank 1: KeyError: 'boom'"
    assert error.rank == 1
    assert ", in inner\n" in error.traceback and error.traceback.endswith("KeyError: 'boom'\n")
    assert "_worker.py" not in error.traceback
    assert isinstance(error.__cause__, KeyError) and error.__cause__.args == ("boom",)


def test_the_other_ranks_learn_why():
    def fn():
        rueda.init()
        if rueda.rank() == 1:
            raise ValueError("the reason")
        rueda.allreduce(bytes(4), name="a")

    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        failure_of(fn)
    told = [line for line in err.getvalue().splitlines() if "AbortedError: " in line]
    assert [line for line in told if line.startswith("[0] ") and "the reason" in line], told


@pytest.mark.parametrize("others", ["let it pass", "raise another for it", "say nothing of it"])
def test_the_first_cause_is_named_and_not_what_follows(others):
    def fn():
        rueda.init()
        if rueda.rank() == 2:
            raise ValueError("the cause")
        try:
            rueda.allreduce(bytes(4), name="a")
        except rueda.AbortedError as error:
            if others == "let it pass":
                raise
            if others == "raise another for it":
                raise RuntimeError("a consequence") from error
            raise RuntimeError("a consequence") from None

    error = failure_of(fn, np=3)
    assert (error.rank, str(error)) == (2, "run: rank 2: ValueError: the cause")


def test_a_rank_that_fails_before_it_joins_is_named():
    def fn():
        if os.environ["RANK"] == "1":
            raise ValueError("too early")
        rueda.init()

    assert str(failure_of(fn)) == "run: rank 1: ValueError: too early"


def test_an_abort_of_the_functions_own_is_told():
    def fn():
        rueda.init()
        if rueda.rank() == 1:
            rueda.abort("no use to go on")
        rueda.allreduce(bytes(4), name="a")

    error = failure_of(fn)
    assert "no use to go on" in str(error)
    assert isinstance(error.__cause__, rueda.AbortedError)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_notes_are_not_what_an_exception_says():
    error = ValueError("what is wrong")
    error.__notes__ = ["advice\nof two lines", 3]
    assert _worker.error_text(error) == "ValueError: what is wrong"


def test_what_is_raised_after_an_abort_of_its_own_is_the_cause(tmp_path):
    """The other rank has failed, and its process ended, before this one raises."""

    def fn(path):
        rueda.init()
        if rueda.rank() == 0:
            path.write_text(str(os.getpid()))
        rueda.barrier()
        if rueda.rank() == 1:
            rueda.abort("no use to go on")
            while pathlib.Path("/proc", path.read_text(), "cmdline").read_text():  # no zombie's
                time.sleep(0.01)
            raise ValueError("the cause")
        rueda.allreduce(bytes(4), name="a")

    assert str(failure_of(fn, args=(tmp_path / "pid",))) == "run: rank 1: ValueError: the cause"


ENDS = {
    "os.kill(os.getpid(), signal.SIGKILL)": "killed by signal 9 (SIGKILL)",
    "os._exit(3)": "exited with status 3",
    "os._exit(0)": "exited with status 0",
    "signal.raise_signal(signal.SIGSEGV)": "killed by signal 11 (SIGSEGV)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_lost_rank_is_named_with_how_it_ended(end):
    def fn():
        rueda.init()
        if rueda.rank() == 1:
            exec(end, {"os": os, "signal": signal})
        rueda.allreduce(bytes(4), name="a")

    error = failure_of(fn, np=3)
    assert str(error).startswith(f"run: rank 1 was lost: {ENDS[end]}"), error
    assert (error.rank, error.__cause__) == (1, None)


@pytest.mark.parametrize("end", ENDS)
def test_a_rank_that_is_lost_before_it_joins_is_named_with_how_it_ended(end):
    def fn():
        if os.environ["RANK"] == "1":
            exec(end, {"os": os, "signal": signal})
        rueda.init()

    error = failure_of(fn, np=3)
    assert str(error).startswith("run: rank 1 (pid "), error
    assert f") {ENDS[end]} before the start of the job" in str(error)
    assert error.rank == 1


def test_a_lost_rank_is_named_when_nobody_uses_rueda():
    def fn():
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

    error = failure_of(fn, np=3)
    assert error.rank == 1
    assert str(error) == (
        "run: rank 1 was lost: it was killed by signal 9 (SIGKILL) before the function had returned"
    )


@pytest.mark.parametrize(("code", "said"), [(3, "3"), (0, "0"), (None, ""), ("why", "'why'")])
def test_a_rank_that_calls_exit_is_named(code, said):
    def fn():
        rueda.init()
        if rueda.rank() == 1:
            sys.exit(code)
        rueda.allreduce(bytes(4), name="a")

    error = failure_of(fn)
    assert str(error) == f"run: rank 1: SystemExit: the function called sys.exit({said})"
    assert isinstance(error.__cause__, SystemExit)


def test_a_result_that_cant_be_pickled_is_named():
    error = failure_of(lambda: threading.Lock() if os.environ["RANK"] == "1" else None)
    assert error.rank == 1
    assert str(error).startswith("run: rank 1: its result, a lock, can't be pickled: TypeError: ")


def test_an_exception_that_cant_be_pickled_is_told_in_words():
    class Stubborn(Exception):
        def __reduce__(self):
            raise ValueError("no")

    def fn():
        raise Stubborn("all the same")

    error = failure_of(fn, np=1)
    assert "Stubborn: all the same" in str(error)
    assert error.__cause__ is None


def test_a_rank_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(RUN, "_PATIENCE_S", 0.1)

    def fn():
        threading.Thread(target=threading.Event().wait).start()
        raise ValueError("first")

    assert str(failure_of(fn, np=1)) == "run: rank 0: ValueError: first"


def test_ranks_that_nothing_tells_of_the_failure_are_ended():
    def fn():
        if os.environ["RANK"] == "0":
            raise ValueError("first")
        threading.Event().wait()

    assert str(failure_of(fn)) == "run: rank 0: ValueError: first"


def test_an_end_of_ruedarun_before_the_ranks_is_told():
    def end_text(**options):
        error = failure_of(rank, **options)
        assert error.rank is None
        return str(error)

    begin = "run: no rank has called the function: ruedarun "
    assert end_text(hosts="localhost:1").startswith(begin + "exited with status 2")
    assert end_text(executable="/no/such/python").startswith(begin + "exited with status 127")
    assert end_text(executable="/bin/false").startswith(begin + "exited with status 1")
    assert end_text(executable="/bin/true").startswith(begin + "exited with status 0")


@pytest.mark.parametrize("status", [0, 5])
@pytest.mark.parametrize("joins", [False, True])
def test_a_rank_that_never_calls_the_function_is_named(joins, status, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ $RANK != 1 ] || exit {status}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    def fn():
        if joins:
            rueda.init()
        if status:
            threading.Event().wait()

    error = failure_of(fn, executable=str(python), np=3)
    assert error.rank == 1
    assert str(error).startswith("run: rank 1 ") and f" exited with status {status} " in str(error)


def test_a_failure_counts_for_more_than_a_rank_that_is_late(tmp_path):
    """Rank 1 comes to its function only when rank 0 has failed and all are to end."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ $RANK != 1 ] || exec sleep 60\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    def fn():
        raise ValueError("first")

    assert str(failure_of(fn, executable=str(python))) == "run: rank 0: ValueError: first"


def test_a_rank_that_ends_badly_after_the_function_is_told():
    def fn():
        import atexit

        atexit.register(os._exit, 4)

    error = failure_of(fn)
    assert "the function was called to its end" in str(error)
    assert "ruedarun exited with status 4" in str(error)


# ---- mistakes of the caller's ----


def test_what_cant_be_pickled_is_refused_at_once():
    lock = threading.Lock()

    def fn():
        with lock:
            pass

    with pytest.raises(TypeError, match=r"run: .*fn, what it refers to, .* can't be pickled: "):
        rueda.run(fn, np=2)
    with pytest.raises(TypeError, match="can't be pickled"):
        rueda.run(rank, (lock,), np=2)


@pytest.mark.parametrize(
    ("kind", "text", "options"),
    [
        (TypeError, "can't be called", {"fn": 3}),
        (TypeError, "args is 3: a tuple", {"args": 3}),
        (TypeError, "args is 'ab'", {"args": "ab"}),
        (TypeError, "kwargs is 5: a dict", {"kwargs": 5}),
        (TypeError, "hosts is ", {"hosts": ["localhost:2"]}),
        (ValueError, "np=0; at least one rank", {"np": 0}),
        (ValueError, "np=-1", {"np": -1}),
        (TypeError, "float", {"np": 1.5}),
        (ValueError, "give one of them", {"np": 2, "num_proc": 2}),
        (TypeError, "names and values are strings", {"env": {"A": 1}}),
        (ValueError, "can't be a variable", {"env": {"A=B": "1"}}),
        (ValueError, "no network interface nowhere0", {"network_interface": "nowhere0"}),
    ],
)
def test_arguments_that_make_no_sense_are_refused(kind, text, options):
    with pytest.raises(kind, match=text):
        rueda.run(**{"fn": rank, "np": 2, "hosts": "198.51.100.1:2", **options})


def test_ranks_may_not_call_it():
    error = failure_of(lambda: rueda.run(int, np=2), np=2)
    assert isinstance(error.__cause__, ValueError)
    assert "run: this process is a rank itself, one of 2 (as RUEDA_SIZE says)" in str(error)


def test_the_only_rank_of_a_job_may_call_it():
    def fn():
        return rueda.run(lambda: int(os.environ["RANK"]), np=2)

    assert rueda.run(fn, np=1) == [[0, 1]]


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_SIZE": "2"},
        {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"},
    ],
)
def test_ranks_of_other_launchers_may_not_call_it(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="one of 2"):
        rueda.run(rank, np=2)


# ---- the end of the process that calls it ----


def run_program(text):
    """A program of its own."""
    return subprocess.run(
        [sys.executable, "-"],
        input=textwrap.dedent(text),
        capture_output=True,
        text=True,
        timeout=HANG,
    )


WAITS = """
    import os, sys, threading
    import rueda

    def wait_in_function():
        rueda.init()
        print("up")
        threading.Event().wait()

    def wait_behind_it():
        def wait():
            threading.main_thread().join()
            print("up")
            threading.Event().wait()

        threading.Thread(target=wait).start()

    try:
        rueda.run({}, np=2)
    except KeyboardInterrupt:
        sys.exit("interrupted")
"""


def marked(mark):
    """The processes that have it in their environment."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def driver(request, folder):
    """A process that waits in run, with both ranks in a function of WAITS, and what marks them
    all."""
    function = getattr(request, "param", "wait_in_function")
    mark = f"RUN_TEST_MARK={uuid.uuid4()}"
    name, value = mark.split("=")
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WAITS).format(function)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, name: value, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    with program:
        try:
            lines = sorted(program.stdout.readline() for _ in range(2))
            assert lines == ["[0] up\n", "[1] up\n"], program.stderr.read()
            assert len(marked(mark)) >= 4  # the ranks, ruedarun and the process itself
            yield program, mark
        finally:
            program.kill()


def await_none_of(mark):
    deadline = time.monotonic() + HANG
    while left := marked(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "terminal"])
def test_an_interrupt_ends_the_ranks_first(driver, send):
    """And is none for the ranks, which would all complain."""
    program, mark = driver
    send(program.pid, signal.SIGINT)
    _, err = program.communicate(timeout=HANG)
    assert marked(mark) == []
    assert (program.returncode, err.splitlines()[-1]) == (1, "interrupted")
    assert "ruedarun: the job ended after SIGTERM;" in err
    assert "[0] " not in err


@pytest.mark.parametrize("driver", ["wait_in_function", "wait_behind_it"], indirect=True)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_ranks_do_not_outlive_the_process(driver, how):
    program, mark = driver
    program.send_signal(how)
    program.wait(HANG)
    await_none_of(mark)


def test_nothing_to_be_found_is_there_while_ranks_run(folder):
    found = rueda.run(os.listdir, (folder,), np=1)
    assert found == [[]]


# ---- who knocks ----


def channels_of(key_of_run, key_of_rank):
    """Two that have met, and what their messages pass through."""
    (a, from_a), (b, from_b) = socket.socketpair(), socket.socketpair()
    made = {}
    threads = [
        threading.Thread(target=lambda s=s, k=k, r=r: made.update({r: Channel(s, k, is_rank=r)}))
        for s, k, r in ((a, key_of_run, False), (b, key_of_rank, True))
    ]
    for thread in threads:
        thread.start()
    from_b.sendall(from_a.recv(32, socket.MSG_WAITALL))
    from_a.sendall(from_b.recv(32, socket.MSG_WAITALL))
    for thread in threads:
        thread.join()
    return made[False], from_a, made[True], from_b


def test_messages_pass_both_ways():
    run, from_run, rank, from_rank = channels_of(b"key", b"key")
    for sender, out, back, receiver in (
        (run, from_run, from_rank, rank),
        (rank, from_rank, from_run, run),
    ):
        for message in (b"first", b"", b"third"):
            sender.send(message)
            back.sendall(out.recv(1000))
            assert receiver.receive() == message


def test_no_memory_is_taken_for_a_length_that_nobody_has_proved():
    run, from_run, rank, from_rank = channels_of(b"key", b"key")
    run.send(b"message")
    message = bytearray(from_run.recv(1000))
    message[:8] = struct.pack("<Q", 1 << 62)
    from_rank.sendall(message)
    with pytest.raises(OSError, match="does not prove"):
        rank.receive()


@pytest.mark.parametrize("place", [0, 8, 40, -1])  # in the length, the MACs, the message
def test_a_message_that_was_changed_is_refused(place):
    run, from_run, rank, from_rank = channels_of(b"key", b"key")
    run.send(b"message")
    message = bytearray(from_run.recv(1000))
    message[place] ^= 1
    from_rank.sendall(message)
    from_rank.close()
    with pytest.raises(OSError):
        rank.receive()


def test_a_message_that_comes_again_or_back_is_refused():
    run, from_run, rank, from_rank = channels_of(b"key", b"key")
    run.send(b"message")
    message = from_run.recv(1000)
    from_rank.sendall(message * 2)
    assert rank.receive() == b"message"
    with pytest.raises(OSError, match="does not prove"):
        rank.receive()
    from_run.sendall(message)
    with pytest.raises(OSError, match="does not prove"):
        run.receive()


def test_a_message_of_who_does_not_know_the_key_is_refused():
    run, from_run, rank, from_rank = channels_of(b"key", b"another")
    rank.send(b"message")
    from_run.sendall(from_rank.recv(1000))
    with pytest.raises(OSError, match="does not prove"):
        run.receive()


def test_nothing_large_is_read_of_who_has_not_proved_himself():
    run, from_run, rank, from_rank = channels_of(b"key", b"key")
    rank.send(bytes(100))
    from_run.sendall(from_rank.recv(1000))
    with pytest.raises(OSError, match="100 bytes; at most 99"):
        run.receive(99)


def desk_at(address):
    """Where ranks come for b"call", and what happens there."""
    events = queue.SimpleQueue()
    return RUN._Desk(address, [b"call"], events), events


def be_a_rank(stream, key, rank, ranks):
    channel = Channel(stream, bytes.fromhex(key), is_rank=True)
    channel.send(pickle.dumps((rank, ranks)))
    assert channel.receive() == b"call"
    channel.send(pickle.dumps(None))
    channel.send(b"result")
    assert channel.receive() == b""


@pytest.mark.parametrize("address", [None, "127.0.0.1", "::1"])
def test_a_rank_gets_past_a_crowd(address):
    try:
        desk, events = desk_at(address)
    except OSError as error:
        pytest.skip(f"{address}: {error}")
    place = json.loads(desk.variable)
    with desk, contextlib.ExitStack() as crowd:
        for _ in range(2 * RUN._STRANGERS_MAX):
            crowd.enter_context(_worker._connect(place["address"]))  # says nothing
        with _worker._connect(place["address"]) as stream:
            be_a_rank(stream, place["key"], 0, 1)
        assert events.get() == (0, b"result")


@pytest.mark.parametrize("address", [None, "127.0.0.1", "::1"])
def test_a_rank_gets_its_call_and_leaves_its_result(address):
    try:
        desk, events = desk_at(address)
    except OSError as error:
        pytest.skip(f"{address}: {error}")
    place = json.loads(desk.variable)
    with desk, _worker._connect(place["address"]) as stream:
        be_a_rank(stream, place["key"], 3, 8)
        stream.close()  # as at the rank's end
        assert events.get() == (3, b"result")


STRANGERS = {
    "says nothing": b"",
    "knows what to do but not the key": bytes(32) + struct.pack("<Q", 5) + bytes(37),
    "sends much": bytes(32) + b"\xff" * 4096,
    "is a browser": b"GET / HTTP/1.0\r\n\r\n",
}


@pytest.mark.parametrize("what", STRANGERS)
def test_a_stranger_gets_nothing(what):
    desk, events = desk_at("127.0.0.1")
    address = json.loads(desk.variable)["address"]
    got = b""
    # What he sends is not read, and he is cut off.
    with desk, _worker._connect(address) as stranger, contextlib.suppress(OSError):
        stranger.sendall(STRANGERS[what])
        stranger.shutdown(socket.SHUT_WR)
        while more := stranger.recv(1000):
            got += more
    assert got[32:] == b""  # after a nonce
    assert events.empty()


def test_a_desk_that_can_receive_nobody_says_so():
    desk, events = desk_at("127.0.0.1")
    with desk:
        desk._socket.shutdown(socket.SHUT_RDWR)  # for any error of accept
        assert isinstance(events.get(timeout=HANG), OSError)


def test_a_stranger_who_says_nothing_is_sent_away(monkeypatch):
    monkeypatch.setattr(RUN, "_HELLO_S", 0.1)
    desk, events = desk_at("127.0.0.1")
    with desk, _worker._connect(json.loads(desk.variable)["address"]) as stranger:
        assert len(stranger.recv(1000)) == 32
        assert stranger.recv(1) == b""
    assert events.empty()


def test_a_stranger_who_waits_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(RUN, "_LAST_WORDS_S", 0.1)
    monkeypatch.setattr(RUN, "_HELLO_S", 10.0 * HANG)
    desk, events = desk_at("127.0.0.1")
    with _worker._connect(json.loads(desk.variable)["address"]) as stranger:
        with desk:
            assert len(stranger.recv(1000)) == 32
        assert stranger.recv(1) == b""
    assert events.empty()


# ---- on several hosts ----


def test_the_names_of_this_host_are_no_others():
    names = f"localhost:2,127.0.0.1,127.0.1.1:4,{socket.gethostname()}"
    assert _hosts.others(names, None) == []
    assert _hosts.others(f"{names},198.51.100.1:4,[2001:db8::1]:2,198.51.100.1", None) == [
        "198.51.100.1",
        "2001:db8::1",
    ]


def test_hosts_stand_in_a_file(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# all\nlocalhost slots=2\n\n198.51.100.1 slots = 4 # far\n198.51.100.2:3\n")
    assert _hosts.others(None, str(path)) == ["198.51.100.1", "198.51.100.2"]


@pytest.mark.parametrize(
    "variables",
    [
        {"PBS_NODEFILE": "198.51.100.1\n198.51.100.1\nlocalhost\n198.51.100.2\n"},
        {"LSB_DJOB_HOSTFILE": "localhost\n198.51.100.1\n198.51.100.2\n"},
        {"LSB_MCPU_HOSTS": "localhost 2 198.51.100.1 16 198.51.100.2 4"},
        {"LSB_HOSTS": "198.51.100.1 198.51.100.1 localhost 198.51.100.2"},
        {"SLURM_JOB_NODELIST": "198.51.100.[1-2]"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_a_batch_system_names_the_hosts(variables, tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    asked = '[ "$*" = "show hostnames 198.51.100.[1-2]" ]'
    scontrol.write_text(f"#!/bin/sh\n{asked} && printf '198.51.100.1\\n198.51.100.2\\n'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, value in variables.items():
        if name.endswith("FILE"):
            (tmp_path / "nodes").write_text(value)
            value = str(tmp_path / "nodes")
        monkeypatch.setenv(name, value)
    assert _hosts.others(None, None) == ["198.51.100.1", "198.51.100.2"]


@pytest.fixture(scope="module")
def cluster():
    import hosts
    import sshd

    if why_not := sshd.why_not():
        pytest.skip(why_not)
    made = hosts.Hosts(2)
    keys = tempfile.mkdtemp(prefix="rueda-sshd-")
    try:
        daemons = sshd.Sshd(made, keys)
        yield daemons
        daemons.stop()
    finally:
        made.remove()
        shutil.rmtree(keys)


def run_on_first(cluster, program):
    """A program on the first of two hosts; `names` are theirs."""
    text = f"names = {cluster.names}\n" + textwrap.dedent(program)
    command = cluster.command(0, sys.executable, "-c", text)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG
    )
    deadline = time.monotonic() + HANG  # agents end a moment after ruedarun
    while left := cluster.processes():
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    return done


@pytest.mark.parametrize("hosts", ["{0}:1,{1}:2", "{1}:3", "10.77.0.2:1,10.77.0.1:2"])
def test_results_come_from_other_hosts(cluster, hosts):
    done = run_on_first(
        cluster,
        f"""
        import socket
        import rueda

        def fn(data):
            rueda.init()
            total = bytearray([rueda.rank()])
            rueda.allreduce_(total, op=rueda.Sum)
            with open("/proc/self/environ") as file:
                by_tcp = '"address": ["10.77.0.1", ' in file.read()
            return rueda.rank(), total[0], len(data), by_tcp, socket.gethostname()

        for result in rueda.run(fn, (bytes(1 << 20),), hosts="{hosts}".format(*names)):
            print(*result)
        """,
    )
    assert done.returncode == 0, done.stderr
    slots = hosts.format(*cluster.names).replace("10.77.0.1", cluster.names[0])
    slots = slots.replace("10.77.0.2", cluster.names[1])
    where = [name for each in slots.split(",") for name in [each[:-2]] * int(each[-1])]
    assert done.stdout.splitlines() == [f"{r} 3 1048576 True {where[r]}" for r in range(3)]


def test_a_rank_that_is_lost_on_another_host_is_named(cluster):
    done = run_on_first(
        cluster,
        """
        import os, signal
        import rueda

        def fn():
            rueda.init()
            if rueda.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            rueda.allreduce(bytes(4), name="a")

        try:
            rueda.run(fn, hosts=",".join(names))
        except rueda.RemoteError as error:
            print(error.rank, error)
        """,
    )
    said = "1 run: rank 1 was lost: killed by signal 9 (SIGKILL)\n"
    assert done.stdout == said, done.stderr


def test_the_interface_is_chosen_by_name(cluster):
    done = run_on_first(
        cluster,
        """
        import rueda

        print(rueda.run(int, hosts=",".join(names), network_interface="nowhere,eth0"))
        try:
            rueda.run(int, hosts=",".join(names), network_interface="lo")
        except rueda.RemoteError as error:
            print(error.rank)
        """,
    )
    assert done.stdout == "[0, 0]\nNone\n", done.stderr


def test_the_port_of_ssh_is_chosen(cluster):
    done = run_on_first(
        cluster,
        """
        import rueda

        print(rueda.run(int, hosts=names[1], ssh_port=22))
        try:
            rueda.run(int, hosts=names[1], ssh_port=1)
        except rueda.RemoteError as error:
            print(error)
        """,
    )
    assert done.stdout.startswith("[0]\nrun: no rank has called the function"), done.stderr
    assert "port 1: Connection refused" in done.stderr


def test_in_a_batch_job_the_hosts_are_known(cluster, tmp_path):
    import slurm

    for program in slurm.PROGRAMS:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    system = slurm.Cluster(str(tmp_path), nodes=2, cpus=4, hosts=cluster.cluster)
    program = """if True:
        import rueda, socket
        print(*rueda.run(socket.gethostname))
    """
    words = ["-Q", "-N", "2", "--ntasks-per-node", "2", sys.executable, "-c", program]
    try:
        done = subprocess.run(
            system.command("salloc", *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG,
            env={**os.environ, "SLURM_CONF": system.conf},
        )
    finally:
        system.stop()
    assert done.stdout == "node1 node1 node2 node2\n", done.stderr


# ---- in a notebook ----


def run_cells(*sources):
    """What a notebook's cells have printed."""
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(textwrap.dedent(source)) for source in sources]
    )
    nbclient.NotebookClient(notebook, timeout=HANG, kernel_name="python3").execute()
    return [
        "".join(each["text"] for each in cell.outputs if each.get("name") == "stdout")
        for cell in notebook.cells
    ]


def test_functions_of_a_notebook_are_called(tmp_path, monkeypatch):
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):  # else in the user's home
        monkeypatch.setenv(name, str(tmp_path / name))
    printed = run_cells(
        """
        import rueda

        factor = 10

        def fn(offset):
            rueda.init()
            print("rank", rueda.rank())
            return rueda.rank() * factor + offset
        """,
        "results = rueda.run(fn, (5,), np=2)",
        "print(results)",
    )
    assert sorted(printed[1].splitlines()) == ["[0] rank 0", "[1] rank 1"]
    assert printed[2] == "[5, 15]\n"
