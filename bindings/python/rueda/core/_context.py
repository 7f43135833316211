"""The job that this process is a rank of."""

from __future__ import annotations

import atexit
import ctypes
import inspect
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from rueda import errors
from rueda.core import _library as c

lib = c.lib

# Held while a context comes or goes.
_lock = threading.Lock()


def last_error() -> str:
    """What was wrong with the latest call of this thread."""
    return errors.text(lib.rueda_last_error())


def encoded(text: str, what: str) -> bytes:
    """For the C API, whose strings end with a NUL byte."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    if "\0" in text:
        raise ValueError(f"a {what} with a NUL character in it: {text!r}")
    return text.encode()


def current() -> int:
    """The current context. Raises NotInitializedError when there is none."""
    context = lib.rueda_current_context()
    if context is None:
        raise errors.NotInitializedError(
            "Rueda is not initialized: call init() first", errors.Status.FAILED_PRECONDITION
        )
    return context  # type: ignore[no-any-return]


def aborted(error: c.Error, message: str) -> errors.AbortedError:
    """From what the C API knows about it."""
    kind = errors.LostRankError if error.pid != 0 else errors.AbortedError
    return kind(
        message,
        recoverable=bool(error.recoverable),
        rank=error.rank if error.rank >= 0 else None,
        host=errors.text(error.host),
        pid=error.pid,
        cause=errors.text(error.cause),
        operation=errors.text(error.operation),
        tensor=errors.text(error.tensor),
        membership=error.membership,
    )


def first_cause(context: int | None) -> c.Error:
    """How the membership has failed."""
    error = c.Error(size=ctypes.sizeof(c.Error))
    if context is not None:
        lib.rueda_context_error(context, ctypes.byref(error))
    return error


def fail(status: int, context: int | None, message: str | None = None) -> NoReturn:
    """Raises what the latest call of this thread, which returned at once, said; or `message`."""
    if message is None:
        message = last_error()
    if status == errors.Status.INVALID_ARGUMENT:
        raise ValueError(message)
    if status == errors.Status.ABORTED:
        raise aborted(first_cause(context), message)
    raise errors.from_status(status, message)


def check(status: int, context: int | None = None) -> None:
    """Raises unless it is OK."""
    if status != 0:
        fail(status, context)


def failure(status: int, message: str, details: c.Error) -> errors.RuedaError:
    """How an operation ended; a mistake may be the other ranks'. `details`: of its end."""
    if status == errors.Status.ABORTED:
        return aborted(details, message)
    error = errors.from_status(status, message)
    if isinstance(error, (errors.MismatchError, errors.StalledError)):
        error.operation = errors.text(details.operation)
        error.tensor = errors.text(details.tensor)
    return error


def check_operation(ended: tuple[int, str], context: int) -> None:
    """Raises unless an operation has ended well: its status, and the text of that."""
    status, message = ended
    if status != 0:
        raise failure(status, message, first_cause(context))


def _number(value: int) -> int:
    if value < 0:
        raise errors.NotInitializedError(last_error(), errors.Status.FAILED_PRECONDITION)
    return value


# ---- names that all ranks give alike ----
#
# In an elastic job a newcomer gives the names that a survivor gave long ago. So:
#
# * Names don't depend on a membership's number, but on how often this process has begun a context
#   (`generation`): once, in survivors and newcomers, however many memberships there were.
# * What is made ahead of `elastic.run` keeps the number that it got. All ranks make the same things
#   there, in the same order.
# * What the function of `elastic.run` makes is made again after a regroup. Its numbers begin where
#   they stood when `run` was entered (`remember_numbers`), as they do in a newcomer.
# * What is named by its first use is named anew in each membership (`regroups`).
# * Operations without a name are counted in C, from 0 on in each membership.

# How many things of a kind a context has had.
_numbers: dict[int, dict[str, int]] = {}
_remembered: dict[int, dict[str, int]] = {}
_regroups: dict[int, int] = {}
_begun = 0  # contexts of this process that are none of a group's


def number(what: str) -> int:
    """0, 1, ... in this context: the same on all ranks that ask in one order."""
    with _lock:
        numbers = _numbers.setdefault(current(), {})
        numbers[what] = numbers.get(what, -1) + 1
        return numbers[what]


def remember_numbers() -> None:
    """After a regroup, counting goes on from here."""
    with _lock:
        context = current()
        _remembered[context] = dict(_numbers.get(context, {}))


def regroups() -> int:
    """How often the current context has been in another membership of an elastic job."""
    return _regroups.get(current(), 0)


def generation() -> int:
    """Which of this process's contexts this is, the same on all ranks: with a count of the resets
    in it, or in an elastic job without one of the regroups."""
    return _begun if is_elastic() else membership()


# ---- the job ----


def _knob_value(value: object) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


_given: dict[str, object] = {}  # knobs, to the latest init


def knob(name: str) -> str | None:
    """A setting that this package reads itself, if init or the environment has it."""
    if name in _given:
        return _knob_value(_given[name])
    return os.environ.get(f"RUEDA_{name.upper()}")


def start(
    knobs: Mapping[str, object],
    *,
    name: str = "",
    group: int | None = None,
    group_rank: int = -1,
    reads_environment: bool = True,
) -> int:
    """A new context. `group`: a rueda_group, whose ranks are threads."""
    if inspect.isbuiltin(sys.exit):  # nobody else's
        sys.exit = _exit
    words: list[bytes] = []
    for key, value in knobs.items():
        words += [encoded(key, "knob"), encoded(_knob_value(value), "knob's value")]
    options = c.InitOptions(
        size=ctypes.sizeof(c.InitOptions),
        name=encoded(name, "name"),
        flags=c.READ_ENVIRONMENT if reads_environment else 0,
        group=group,
        group_rank=group_rank,
        knobs=(ctypes.c_char_p * len(words))(*words),
        knob_count=len(knobs),
    )
    context = ctypes.c_void_p()
    status = lib.rueda_init(c.HEADER_VERSION, ctypes.byref(options), ctypes.byref(context))
    check_wanted(status, last_error() if status != 0 else "")
    check(status)
    assert context.value is not None
    _numbers.pop(context.value, None)
    _remembered.pop(context.value, None)
    _regroups.pop(context.value, None)
    return context.value


def init(
    knobs: Mapping[str, object] | None = None,
    process_sets: Iterable[Sequence[int]] | None = None,
) -> None:
    """Joins the job that the environment describes, as a launcher sets it; without one it is a
    world of one rank. Collective: waits for the other ranks, at most for the knob
    ``start_timeout_s``.

    Does nothing when that is done already, but for knobs and process sets, which come too late
    then.

    Args:
        knobs: settings by their names in docs/reference/knobs.md, such as
            ``{"fusion_threshold": 1 << 20}``;
            they win over the environment.
        process_sets: lists of ranks, ascending, the same on all ranks; the first one gets the
            number 1.

    Raises:
        ValueError: a knob that does not exist, or has no such value.
        RuedaError: the ranks' settings or versions differ, or some did not come; they are named.
        SystemExit: status 0; an elastic job that has ended meanwhile, or does not want this rank.
    """
    global _begun
    settings: dict[str, object] = dict(knobs or {})
    lists = [list(ranks) for ranks in process_sets or ()]
    if lists:
        settings["process_sets"] = ";".join(",".join(map(str, ranks)) for ranks in lists)
    with _lock:
        context = lib.rueda_current_context()
        if context is not None and lib.rueda_is_initialized(context):
            if settings:
                raise errors.RuedaError(
                    f"init: {next(iter(settings))} comes too late, this is initialized",
                    errors.Status.FAILED_PRECONDITION,
                )
            return
        destroy(context)
        try:
            lib.rueda_set_default_context(start(settings))
        except errors.DismissedError as error:
            end_of(error)
        _begun += 1
        _given.clear()
        _given.update(settings)


def adopt(context: int) -> None:
    """Makes it the process's, as init does; shutdown leaves it."""
    with _lock:
        lib.rueda_set_default_context(context)


#: Called with a context that has been left, ahead of its end.
before_destroy: list[Callable[[int], None]] = []


# Calls that Ctrl-C has left alone.
_left_alone: list[threading.Thread] = []
_PATIENCE_S = 10.0


def interruptible(call: Callable[[], int]) -> tuple[int, str]:
    """What a call to C that may wait for other ranks returns, and its error's text. Python hears
    Ctrl-C between calls only: on the main thread it is made on another one, which goes on; where
    none can be started, Ctrl-C waits for the call's end."""
    if threading.current_thread() is not threading.main_thread():
        status = call()
        return status, last_error() if status != 0 else ""
    results: list[tuple[int, str]] = []

    def body() -> None:
        status = call()
        results.append((status, last_error() if status != 0 else ""))

    thread = threading.Thread(target=body, daemon=True)
    context = lib.rueda_current_context()
    try:
        lib.rueda_thread_waits(context, 1)  # else this would seem to be at work
        thread.start()
        thread.join()
    except BaseException as error:
        if isinstance(error, RuntimeError) and "new thread" in str(error):
            body()  # none can be started: since Python 3.12 so it is in exit handlers
        else:  # a signal's handler has raised it
            if thread.ident is not None:  # it has begun
                _left_alone.append(thread)
            raise
    finally:
        lib.rueda_thread_waits(context, 0)
    return results[0]


def destroy(context: int | None) -> None:
    """No other call with it is under way, or comes."""
    if context is not None:
        for thread in _left_alone:
            thread.join(_PATIENCE_S)
            if thread.is_alive():  # the memory is lost, and nothing else
                return
        _left_alone.clear()
        for forget in before_destroy:
            forget(context)
        lib.rueda_context_destroy(context)


#: Called ahead of a shutdown: they wait for what was begun elsewhere with the current context.
before_shutdown: list[Callable[[], None]] = []


def shutdown() -> None:
    """Leaves the job. Collective: waits until all ranks have called it; operations in flight end
    first. Does nothing when there is none.

    Raises:
        AbortedError: the job had failed. It is left all the same.
    """
    for wait in before_shutdown:
        wait()
    with _lock:
        context = lib.rueda_current_context()
        if context is None:
            return
        status = lib.rueda_shutdown(context)
        if status == 0:
            destroy(context)
            return
        try:
            fail(status, context)
        finally:
            if status != errors.Status.FAILED_PRECONDITION:  # that is a callback's
                destroy(context)


def is_initialized() -> bool:
    """Whether there is a job that works: false before init, after shutdown, and in a forked child.

    A job that has failed is none.
    """
    context = lib.rueda_current_context()
    return context is not None and lib.rueda_is_initialized(context) == 1


def rank() -> int:
    """This rank, from 0 on."""
    return _number(lib.rueda_rank(current()))


def size() -> int:
    """How many ranks there are."""
    return _number(lib.rueda_size(current()))


def local_rank() -> int:
    """This rank among those of this host."""
    return _number(lib.rueda_local_rank(current()))


def local_size() -> int:
    """How many ranks this host has."""
    return _number(lib.rueda_local_size(current()))


def cross_rank() -> int:
    """This rank among those with its local rank, one a host."""
    return _number(lib.rueda_cross_rank(current()))


def cross_size() -> int:
    """How many ranks have this local rank."""
    return _number(lib.rueda_cross_size(current()))


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of ranks."""
    return _number(lib.rueda_is_homogeneous(current())) == 1


def membership() -> int:
    """The number of this rank's membership in the job: each init and reset begins the next."""
    context = current()
    number = ctypes.c_uint64()
    check(lib.rueda_context_membership(context, ctypes.byref(number)), context)
    return number.value


def epoch() -> int:
    """Deprecated: the old name of membership(). It goes with 0.3."""
    warnings.warn("epoch() is deprecated: use membership()", DeprecationWarning, stacklevel=2)
    return membership()


def reset() -> None:
    """After an AbortedError: meets the same ranks again, in a new membership. Collective."""
    context = current()
    check(lib.rueda_context_reset(context), context)


# ---- elastic jobs ----


class Membership(NamedTuple):
    """What this rank's membership in the job is."""

    #: As `membership()`.
    number: int
    #: This rank.
    rank: int
    #: How many there are.
    ranks: int
    #: So many of them, the lowest, were in the membership before; 0 in the first.
    survivors: int
    #: The rank whose state is the newest: a survivor; in the first membership rank 0.
    source: int
    #: Hosts that have none of these ranks, but get new ones, with what lost ranks kept there.
    keeping: int = 0


def is_elastic() -> bool:
    """Whether `ruedarun --min-np` has started this job, so that it can go on with other ranks."""
    return int(knob("elastic_fd") or -1) >= 0


def membership_info() -> Membership:
    """What this rank's membership is."""
    context = current()
    info = c.Membership(size=ctypes.sizeof(c.Membership))
    check(lib.rueda_membership_info(context, ctypes.byref(info)), context)
    return Membership(info.number, info.rank, info.ranks, info.survivors, info.source, info.keeping)


def membership_due() -> int:
    """What this process knows of the next membership: RANKS_ADDED, RANKS_REMOVED (rueda.core.
    _library), both or 0. Other ranks may not know yet."""
    return int(lib.rueda_membership_due(current()))


def check_membership() -> int:
    """The same, as all ranks know it together: those that call it at the same place of the program,
    where they have waited for the same operations of the world, get the same answer. If it is not
    0, let all ranks call regroup() there. Sends nothing."""
    context = current()
    change = ctypes.c_int32()
    check(lib.rueda_check_membership(context, ctypes.byref(change)), context)
    return change.value


def leaving_ranks() -> list[int]:
    """The ranks that leave with the next membership, as far as this process knows. Once
    check_membership() says so, some rank knows them all."""
    return _ranks_of(lib.rueda_leaving_ranks)


def neighbor_ranks() -> list[int]:
    """The ranks whose memory this rank can open: the others of its host."""
    return _ranks_of(lib.rueda_neighbor_ranks)


def _ranks_of(function: Callable[..., int]) -> list[int]:
    context, count = current(), ctypes.c_size_t()
    ranks = (ctypes.c_int32 * size())()
    check(function(context, ranks, len(ranks), ctypes.byref(count)), context)
    return list(ranks)[: count.value]


def should_stop() -> bool:
    """Whether the job is to stop, as a warning has come to any of its ranks: SIGTERM, SIGUSR1, or
    the file of the knob ``stop_file``. All ranks that call it at the same place of the program,
    where they have waited for the same operations, get the same answer, so all save the same step:

        for step in range(first, steps):
            train_step()
            if rueda.should_stop():
                save(step)
                rueda.shutdown()  # waits until all ranks have saved
                sys.exit(75)

    From the first call on, the two signals do not end this process. Handlers that it had are called
    as well; install your own before. Sends nothing.
    """
    return _number(lib.rueda_should_stop(current())) == 1


#: Called with a context that has begun another membership of an elastic job: they drop what an
#: unfinished step has left. All that was in flight has ended.
after_regroup: list[Callable[[int], None]] = []


def regroup(commits: int = 0) -> None:
    """Begins the next membership of an elastic job: after an AbortedError, or when
    check_membership() has told all ranks to. Collective over the ranks that live. This rank's
    number and the number of ranks may change. Process sets are gone; operations in flight are over.

    Args:
        commits: how often the program has kept its state. Who has kept it most often is
            `membership_info().source`.

    Raises:
        DismissedError: the launcher does not want this process any more.
        RuedaError: the job is not elastic, or the launcher is lost.
    """
    context = current()
    status, message = interruptible(lambda: lib.rueda_regroup(context, commits))
    check_wanted(status, message)
    if status != 0:
        fail(status, context, message)
    with _lock:
        if context in _remembered:
            _numbers[context] = dict(_remembered[context])
        _regroups[context] = _regroups.get(context, 0) + 1
    for forget in after_regroup:
        forget(context)


def check_wanted(status: int, message: str) -> None:
    """Raises a DismissedError if that is what init or a regroup has returned."""
    if status == errors.Status.CANCELLED:
        raise errors.DismissedError(message, errors.Status.CANCELLED)


def end_of(error: errors.DismissedError) -> NoReturn:
    """Ends the process in order: it is dismissed."""
    logging.getLogger("rueda").info("this process leaves the job: %s", error)
    destroy(lib.rueda_current_context())
    raise SystemExit(0) from None


def abort(reason: str) -> None:
    """Ends the membership on all ranks: everything in flight fails with an AbortedError and this
    reason."""
    context = current()
    check(lib.rueda_abort(context, encoded(reason, "reason")), context)


def local_device(kind: str = "cuda") -> int:
    """The number of the CUDA device that operations of this rank use, or, before the first one,
    should use: the local rank, counted round the devices that this process sees.

    Raises:
        RuedaError: there are none, or they can't be used; the text says why.
    """
    if kind != "cuda":
        raise ValueError(f"local_device: there is 'cuda', and no {kind!r}")
    context = current()
    device = c.Device()
    check(lib.rueda_local_device(context, c.CUDA, ctypes.byref(device)), context)
    return int(device.id)


def start_timeline(path: str | os.PathLike[str]) -> None:
    """Records what this rank's operations go through, from now on, in a file for chrome://tracing
    and Perfetto: rank 0 in `path` itself, rank 3 in "t.3.json" for "t.json"."""
    context = current()
    check(lib.rueda_timeline_start(context, encoded(os.fspath(path), "path")), context)


def stop_timeline() -> None:
    """Ends the file. shutdown() does so too."""
    context = current()
    check(lib.rueda_timeline_stop(context), context)


# ---- the end of the process ----


class _OfExit:
    """What sys.exit's exception has with it once there is a context. At exit Python does not tell
    with which status it ends; but when nobody has caught the exception, this dies after the last
    function has."""

    def __init__(self, status: object) -> None:
        self._status = status

    def __del__(self) -> None:
        if sys._getframe().f_back is None and self._status is not None and self._status != 0:
            _exits.append(self._status)


_exits: list[object] = []  # statuses, or texts


def _exit(status: object = None, /) -> NoReturn:
    """Exits Python by raising SystemExit(status)."""
    error = SystemExit(*status) if isinstance(status, tuple) else SystemExit(status)
    if threading.current_thread() is threading.main_thread():
        error._rueda = _OfExit(error.code)  # type: ignore[attr-defined]
    try:
        raise error
    finally:
        del error  # its traceback has this frame: it would live as long as itself


def uncaught() -> BaseException | None:
    """At exit: the exception that nobody caught, for which the process ends; also that of sys.exit,
    with a status other than 0."""
    if hasattr(sys, "ps1"):
        return None
    error = getattr(sys, "last_value", None)
    return SystemExit(_exits[0]) if error is None and _exits else error


def reason_of(error: BaseException) -> str:
    """What the others are told of it."""
    text = f"{type(error).__name__}: {error}"[:1000].replace("\0", "")
    return text.encode(errors="replace").decode()  # surrogates can't be sent


#: Of contexts beside the current one. Called at exit with the exception that nobody caught: they
#: begin to leave, and return what waits for the end of that.
at_exit: list[Callable[[BaseException | None], Callable[[], None]]] = []


def _leave_job(error: BaseException | None) -> None:
    if not is_initialized():
        return
    try:
        if error is not None:
            context = current()
            abort(reason_of(error))
            destroy(context)
        else:
            shutdown()
    except Exception as failure:  # nobody is left to hear it
        print(f"rueda: at exit: {failure}", file=sys.stderr)


# A process that ends for an exception that nobody caught tells the others which; any other leaves
# the job as shutdown() does, so that nobody takes it for lost. It leaves all contexts at once:
# another rank may be waiting in any of them, and each is left when all ranks leave it.
@atexit.register
def _leave() -> None:
    error = uncaught()
    ends = [begin(error) for begin in at_exit]
    _leave_job(error)
    for end in ends:
        end()
