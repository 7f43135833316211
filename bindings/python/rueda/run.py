"""run(): a function on several ranks, from a program or a notebook that is none of them.

The ranks are new Python processes, which ruedarun starts and ends; _worker.py is what they run.
They come for the function to a socket of this process, and leave there what it returned or raised.
On this host that is a unix socket in a directory of its own, else a TCP port of the one address by
which this host reaches the others. Who comes has to know a key of this call, which the ranks find
in their environment.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import pickle
import queue
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, SupportsIndex, TextIO, TypeVar

from rueda import _hosts, errors, launcher
from rueda._channel import VARIABLE, Channel, Failure
from rueda.core import _context, _library

T = TypeVar("T")

# How long the others may go on when one rank has failed and does not end. (When it ends, ruedarun
# ends them.) As in rueda/run.hpp.
_PATIENCE_S = 10.0
# How long ruedarun may take to end; it kills what does not end within its grace of 5 s.
_END_S = 30.0
# What somebody who comes may take to say who he is.
_HELLO_S = 10.0
_HELLO_BYTES_MAX = 1024
# How many may be about to prove themselves, and how long each gets at least until another takes its
# place.
_STRANGERS_MAX = 256
_FAIR_CHANCE_S = 0.1
# How long what ranks have said may still be on its way when ruedarun has ended.
_LAST_WORDS_S = 2.0


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: SupportsIndex | None = None,
    num_proc: SupportsIndex | None = None,
    hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    knobs: Mapping[str, object] | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | os.PathLike[str] | None = None,
    network_interface: str | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    executable: str | None = None,
) -> list[T]:
    """Calls ``fn(*args, **kwargs)`` on several ranks, each a new Python process, and returns what
    each has returned, by rank.

        def train(rate):
            rueda.init()
            ...
            return loss

        losses = rueda.run(train, args=(0.1,), np=4)

    The function and its arguments are pickled by cloudpickle, so it may be of a notebook, a lambda
    or a closure; what it refers to is copied. In a rank Rueda is not initialized before the
    function does it, and left when the process ends. What ranks print comes out of this process.

    When a rank raises or is lost, all are ended, after 10 s at the latest. No process is left when
    this returns or raises, also for Ctrl-C; the ranks end too when this process is killed.

    Args:
        fn: what to call.
        args: its arguments.
        kwargs: those by name.
        np: how many ranks. None: as many as the hosts, or those that a batch system has given to
            this job, have slots.
        num_proc: the same, as Horovod calls it.
        hosts: where: ``"a:4,b:4"``. None: on this host, or where the batch system says.
        hostfile: the same in a file. All of these are ruedarun's options (docs/guides/launcher.md).
        env: variables for the ranks, beside those of this process; ruedarun gets them too.
        knobs: settings by their names in docs/reference/knobs.md; they win over the environment.
        start_timeout: how many seconds hosts, and then init, may take; default 60.
        ssh_port: for ssh; else your own configuration counts, here and in the next one.
        ssh_identity_file: the key to log in with.
        network_interface: where the hosts reach one another: ``"eth0"`` or ``"ib0,eth0"``.
        output_dir: a directory, for what ranks print: rank.R.out and rank.R.err.
        verbose: whether ruedarun says what it starts.
        executable: the Python to use; default: this one. It needs Rueda's and cloudpickle's
            versions.

    Returns:
        The results, by rank.

    Raises:
        RemoteError: a rank raised, was lost, or returned what can't be pickled, or ruedarun could
            not start them. It tells which rank was the first, and how; its ``__cause__`` is what
            was raised there, if that could be pickled.
        TypeError: `fn` can't be called, or pickled with its arguments.
        ValueError: numbers or names that make no sense, or this process is a rank itself.
    """
    if not callable(fn):
        raise TypeError(f"run: {fn!r} can't be called; give the function, not what it returns")
    if not isinstance(args, (list, tuple)):
        raise TypeError(f"run: args is {args!r}: a tuple or a list, such as (x,), is wanted")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"run: kwargs is {kwargs!r}: a dict is wanted")
    if hosts is not None and not isinstance(hosts, str):
        raise TypeError(f'run: hosts is {hosts!r}: a text such as "a:4,b:4" is wanted')
    _refuse_in_a_rank()
    ranks = _number_of_ranks(np, num_proc)
    variables = _variables(env, knobs)
    call = _pickled(fn, args, kwargs)
    interfaces = network_interface or {**os.environ, **variables}.get("RUEDA_NETWORK_INTERFACE", "")
    others = _hosts.others(hosts, None if hostfile is None else os.fspath(hostfile))
    options: dict[str, object] = {
        "-np": ranks,
        "--hosts": hosts,
        "--hostfile": hostfile,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--network-interface": network_interface,
        "--output-dir": output_dir,
    }
    words: list[object] = [launcher.program()]
    words += [
        word for name, value in options.items() if value is not None for word in (name, value)
    ]
    words += ["--verbose"] if verbose else []
    # Not their values: everybody can read command lines.
    words += [word for name in (*variables, VARIABLE) for word in ("-x", name)]
    words += ["--", executable or sys.executable, "-c", _program()]

    path = [os.path.abspath(folder) for folder in sys.path]
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    address = _hosts.own_address(others, interfaces) if others else None
    with (
        _Desk(address, [pickle.dumps((path, executable is None)), call], events) as desk,
        _Ruedarun(words, {**variables, VARIABLE: desk.variable}, events) as ruedarun,
    ):
        outcomes = _await(ruedarun, events)
    while not events.empty():
        _record(events.get(), outcomes)
    return _results(outcomes, desk.ranks, ruedarun.status)


# ---- arguments ----


def _refuse_in_a_rank() -> None:
    """Each rank would start a job of its own, which is hardly meant."""
    sizes = {"the job": str(_context.size())} if _context.is_initialized() else {}
    names = ["RUEDA_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
    names += ["WORLD_SIZE"] if "TORCHELASTIC_RUN_ID" in os.environ else []
    sizes |= {name: os.environ[name] for name in names if name in os.environ}
    for name, size in sizes.items():
        if size != "1":
            raise ValueError(
                f"run: this process is a rank itself, one of {size} (as {name} says), and each "
                "would start further ones: call the function, or start the program without a "
                "launcher"
            )


def _number_of_ranks(np: SupportsIndex | None, num_proc: SupportsIndex | None) -> int | None:
    if np is not None and num_proc is not None:
        raise ValueError(f"run: np={np} and num_proc={num_proc} mean the same; give one of them")
    given = num_proc if np is None else np
    if given is None:
        return None
    ranks = operator.index(given)
    if ranks < 1:
        raise ValueError(f"run: np={ranks}; at least one rank")
    return ranks


def _variables(env: Mapping[str, str] | None, knobs: Mapping[str, object] | None) -> dict[str, str]:
    variables = dict(env or {})
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"run: env[{name!r}] = {value!r}; names and values are strings")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"run: env[{name!r}] = {value!r} can't be a variable")
    for name, knob in (knobs or {}).items():
        variables[f"RUEDA_{name.upper()}"] = _context._knob_value(knob)
    return variables


def _pickled(fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]  # here, for what of Rueda does without it

    try:
        return bytes(cloudpickle.dumps((fn, tuple(args), dict(kwargs or {}))))
    except Exception as error:
        name = getattr(fn, "__qualname__", repr(fn))
        raise TypeError(
            f"run: {name}, what it refers to, or an argument can't be pickled: {error}. Files and "
            "locks can be opened and made in the function instead"
        ) from error


def _program() -> str:
    """What a rank's Python runs. The package lies where no other module is taken from by it."""
    folder = str(_library.folder().parent)
    return f"import sys; sys.path.append({folder!r}); import rueda._worker as w; w.main()"


# ---- what happens ----

# A bytearray: what a rank's function has returned. None: the rank is gone.
_Outcome = bytearray | Failure | None


class _Ended:
    """ruedarun has."""


# Of ranks, by number; _Ended; or why no more ranks can come.
_Event = tuple[int, _Outcome] | _Ended | OSError


class _Desk:
    """Where the ranks come. A thread receives them, and each has one that gives it its work and
    waits for its outcome; they end when this is closed, as does all that could be seen of it."""

    def __init__(
        self, address: str | None, call: Sequence[bytes], events: queue.SimpleQueue[_Event]
    ) -> None:
        """`address`: of this host, for others; None: there are none. `call`: the messages that make
        a rank do its work."""
        self._call = call
        self._events = events
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._is_full = False
        self._come: set[int] = set()  # ranks
        #: How many there are to be, when one has come.
        self.ranks = 0
        self._streams: dict[threading.Thread, socket.socket] = {}
        self._strangers: dict[socket.socket, float] = {}  # since when, the oldest first
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if address is None:
            self._folder = tempfile.TemporaryDirectory(prefix="rueda-run-", dir=_short_folder())
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(os.path.join(self._folder.name, "socket"))
            self._socket.listen(socket.SOMAXCONN)
        else:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._socket = socket.create_server(
                (address, 0), family=family, backlog=socket.SOMAXCONN
            )
        name = self._socket.getsockname()
        self.variable = json.dumps(
            {"address": name if address is None else name[:2], "key": self._key.hex()}
        )
        self._receiver = threading.Thread(target=self._receive_all, daemon=True)
        self._receiver.start()

    def __enter__(self) -> _Desk:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """When ruedarun has ended, and so the ranks have."""
        self._receive_no_more()
        self._receiver.join()
        deadline = time.monotonic() + _LAST_WORDS_S
        for thread in list(self._streams):
            thread.join(max(0.0, deadline - time.monotonic()))
        for thread, stream in list(self._streams.items()):
            with contextlib.suppress(OSError):  # it has ended
                stream.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _receive_no_more(self) -> None:
        self._is_full = True
        with contextlib.suppress(OSError):  # that is so already
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive_all(self) -> None:
        try:
            while True:
                stream, _ = self._socket.accept()
                self._make_room()
                self._strangers[stream] = time.monotonic()
                thread = threading.Thread(target=self._serve, args=(stream,), daemon=True)
                self._streams[thread] = stream
                try:
                    thread.start()
                except RuntimeError as error:  # the system has no thread left
                    del self._streams[thread]
                    stream.close()
                    raise OSError(str(error)) from error
        except OSError as error:
            if not self._is_full:
                self._events.put(error)
        finally:
            self._socket.close()
            if self._folder is not None:
                self._folder.cleanup()

    def _make_room(self) -> None:
        """A crowd keeps no rank from coming."""
        while len(self._strangers) >= _STRANGERS_MAX:
            with contextlib.suppress(StopIteration, RuntimeError):  # it is no stranger any more
                stream, since = next(iter(self._strangers.items()))
                time.sleep(max(0.0, since + _FAIR_CHANCE_S - time.monotonic()))
                if self._strangers.pop(stream, None) is not None:
                    with contextlib.suppress(OSError):  # it has gone
                        stream.shutdown(socket.SHUT_RDWR)

    def _serve(self, stream: socket.socket) -> None:
        try:
            self._serve_rank(stream)
        finally:
            self._strangers.pop(stream, None)
            del self._streams[threading.current_thread()]

    def _serve_rank(self, stream: socket.socket) -> None:
        with stream:
            try:
                stream.settimeout(_HELLO_S)
                channel = Channel(stream, self._key, is_rank=False)
                rank, ranks = pickle.loads(channel.receive(_HELLO_BYTES_MAX))
                stream.settimeout(None)
            except OSError:  # somebody who does not know the key, or a rank that is gone again
                return
            self._strangers.pop(stream, None)
            with self._lock:
                self.ranks = ranks
                self._come.add(rank)
                is_last = len(self._come) == ranks
            if is_last:  # before it begins, nothing is left that could outlive this process
                self._receive_no_more()
                self._receiver.join()
            outcome: _Outcome = None
            try:
                for message in self._call:
                    channel.send(message)
                outcome = pickle.loads(channel.receive()) or channel.receive()
            except OSError:  # it is gone
                pass
            finally:
                self._events.put((rank, outcome))  # before any rank learns of it
            with contextlib.suppress(OSError):  # the rank's end
                channel.send(b"")  # the receipt
                channel.receive()


def _short_folder() -> str | None:
    """Where a socket's path is not too long for one, which has 107 bytes. None: as always."""
    return None if len(os.fsencode(tempfile.gettempdir())) < 80 else "/tmp"


class _Ruedarun:
    """The process that starts and ends the ranks. It and they have ended when this has."""

    def __init__(
        self,
        words: Sequence[object],
        variables: Mapping[str, str],
        events: queue.SimpleQueue[_Event],
    ) -> None:
        self._words = [os.fspath(w) if isinstance(w, os.PathLike) else str(w) for w in words]
        self._variables = variables
        self._events = events
        self._threads: list[threading.Thread] = []
        #: As subprocess has it.
        self.status = 0

    def __enter__(self) -> _Ruedarun:
        outputs = [(sys.stdout, 1), (sys.stderr, 2)]
        # In a session of its own, so that Ctrl-C comes to it only from here.
        self._process = subprocess.Popen(
            self._words,
            stdin=subprocess.DEVNULL,
            stdout=None if _is_descriptor(*outputs[0]) else subprocess.PIPE,
            stderr=None if _is_descriptor(*outputs[1]) else subprocess.PIPE,
            env={**os.environ, **self._variables},
            start_new_session=True,
        )
        try:
            self._start(self._watch)
            for pipe, (stream, _) in zip(self._pipes(), outputs, strict=True):
                if pipe is not None:
                    self._start(_copy, pipe, stream)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _pipes(self) -> tuple[IO[bytes] | None, IO[bytes] | None]:
        return self._process.stdout, self._process.stderr

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        with contextlib.suppress(ChildProcessError):  # _stop was faster
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._events.put(_Ended())

    def end(self) -> None:
        """Asks it to end the ranks; a second time, to kill them."""
        self._process.terminate()

    def _stop(self) -> None:
        while self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            except KeyboardInterrupt:  # a second one: no patience
                continue
        for thread in self._threads:
            thread.join()
        for pipe in self._pipes():
            if pipe is not None:
                pipe.close()
        self.status = self._process.returncode


def _is_descriptor(stream: TextIO | None, number: int) -> bool:
    """Whether what ruedarun inherits is what Python code of this process writes to; in a notebook,
    or a test that looks at what is printed, it is not."""
    try:
        assert stream is not None
        stream.flush()  # for the order of what is printed
        return stream.fileno() == number
    except (AssertionError, AttributeError, OSError, ValueError):
        return False


def _copy(pipe: IO[bytes], stream: TextIO | None) -> None:
    for line in pipe:
        if stream is not None:
            with contextlib.suppress(Exception):  # ruedarun must not wait because of it
                stream.write(line.decode(errors="replace"))
                stream.flush()


def _await(ruedarun: _Ruedarun, events: queue.SimpleQueue[_Event]) -> dict[int, _Outcome]:
    """Until ruedarun has ended. The outcomes, in the order in which they came."""
    outcomes: dict[int, _Outcome] = {}
    patience: float | None = None
    while True:
        try:
            event = events.get(
                timeout=None if patience is None else max(0.0, patience - time.monotonic())
            )
        except queue.Empty:
            ruedarun.end()
            patience = time.monotonic() + _PATIENCE_S
            continue
        if isinstance(event, _Ended):
            return outcomes
        _record(event, outcomes)
        if patience is None and _failures(outcomes):
            patience = time.monotonic() + _PATIENCE_S


def _record(event: _Event, outcomes: dict[int, _Outcome]) -> None:
    if isinstance(event, OSError):
        raise errors.RuedaError(f"run: no rank can be received any more: {event}") from event
    if isinstance(event, tuple):
        outcomes[event[0]] = event[1]


# ---- what came of it ----


def _failures(outcomes: Mapping[int, _Outcome]) -> dict[int, Failure | None]:
    return {rank: each for rank, each in outcomes.items() if not isinstance(each, bytearray)}


def _results(outcomes: Mapping[int, _Outcome], ranks: int, status: int) -> list[Any]:
    if not outcomes:
        raise errors.RemoteError(
            f"run: no rank has called the function: ruedarun {_end_text(status)}, and has said why "
            "on standard error"
        )
    missing = [rank for rank in range(ranks) if rank not in outcomes]
    failures = _failures(outcomes)
    if failures or missing:
        rank = _first(failures, missing)
        failure = failures.get(rank)
        if failure is None:
            raise errors.RemoteError(f"run: {_loss(rank, failures, status)}", rank)
        raise errors.RemoteError(
            f"run: rank {rank}: {failure.text}", rank, failure.traceback
        ) from _exception(failure)
    if status != 0:
        raise errors.RemoteError(
            f"run: the function was called to its end, but not all ranks ended well: ruedarun "
            f"{_end_text(status)}, and has said why on standard error"
        )
    return [_result(rank, outcomes[rank]) for rank in sorted(outcomes)]


def _first(failures: Mapping[int, Failure | None], missing: Sequence[int]) -> int:
    """The rank that failed first, by the order in which we heard of it. One that only says that
    another one is lost is not meant, unless all do. `missing`: those that have not even come for
    the function, as they would have done while the others were allowed to end by themselves."""
    causes = [rank for rank, each in failures.items() if each is None or not each.is_consequence]
    if causes and failures[causes[0]] is not None:
        return causes[0]
    lost = [*missing, *(rank for rank, each in failures.items() if each is None)]
    blamed = [rank for each in failures.values() for rank in lost if _blames(each, rank)]
    return [*blamed, *lost, *failures][0]


def _blames(failure: Failure | None, rank: int) -> bool:
    return failure is not None and (
        failure.lost_rank == rank or failure.cause.startswith(f"rank {rank} ")
    )


def _loss(rank: int, failures: Mapping[int, Failure | None], status: int) -> str:
    """How a rank was lost, as the others say, or else by how ruedarun ended: as the first one."""
    said = [each for each in failures.values() if each is not None]
    for each in said:
        if _blames(each, rank):
            return f"rank {rank} was lost: {each.cause}" if each.lost_rank == rank else each.cause
    if status == 1 and said:  # that may be theirs
        return f"rank {rank} was lost: it ended before the function had returned"
    return f"rank {rank} was lost: it {_end_text(status)} before the function had returned"


def _end_text(status: int) -> str:
    """What a subprocess did, or a rank by ruedarun's status: "exited with status 3"."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exited with status {status}"
    return f"was killed by signal {number} ({name})"


def _exception(failure: Failure) -> BaseException | None:
    if failure.exception is None:
        return None
    try:
        error = pickle.loads(failure.exception)
    except Exception:  # its class is not here, or wants other arguments
        return None
    return error if isinstance(error, BaseException) else None


def _result(rank: int, outcome: _Outcome) -> Any:
    assert isinstance(outcome, bytearray)
    try:
        return pickle.loads(outcome)
    except Exception as error:
        raise errors.RemoteError(
            f"run: rank {rank}: its result can't be unpickled here: {error}", rank
        ) from error
