"""Operations on tensors of any framework: how they are submitted, and their handles."""

from __future__ import annotations

import ctypes
import enum
import operator
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from rueda import errors
from rueda.core import _context, _tensors
from rueda.core import _library as c
from rueda.core._process_sets import ProcessSet, global_process_set

lib = c.lib

T = TypeVar("T")

# Python looks for signals between two calls: how long it waits in one.
_SLICE_NS = 200_000_000


class ReduceOp(enum.IntEnum):
    """How elements are combined (rueda_reduce_op)."""

    SUM = 0
    AVERAGE = 1  # of integers: the sum (exact up to 32 bits), divided and truncated toward zero
    MIN = 2
    MAX = 3
    PRODUCT = 4
    BAND = 5  # bitwise, as the next two: of integers and bool
    BOR = 6
    BXOR = 7
    ADASUM = 8  # arXiv 2006.02924
    AVERAGE_LIVE = 9  # the average over the ranks that have not joined


_REDUCE_OPS = frozenset(ReduceOp)


class Output(enum.IntEnum):
    """Where the result of an operation goes."""

    NEW = 0  # a new tensor of the input's shape
    SAME = 1  # the input's memory
    TAKEN = 2  # memory of the library's, as the size is not known
    NONE = 3
    GIVEN = 4  # there is no input, but an output


class Handle(Generic[T]):
    """An operation under way. Letting go of it is fine: the operation goes on, and what it needs is
    kept until it has ended."""

    __slots__ = ("_context", "_error", "_finish", "_id", "_keep", "_result", "_stream", "_taking")

    def __init__(
        self,
        context: int,
        handle: int,
        keep: object,
        finish: Callable[[Handle[T]], T],
        stream: Callable[[], int | None] | None,
    ) -> None:
        self._context = context
        self._id = handle
        self._keep = keep
        self._finish = finish
        self._stream = stream  # of CUDA: the one that comes behind the operation
        self._error: BaseException | None = None
        self._taking = threading.RLock()  # held while the result is taken

    def before(self, look: Callable[[Handle[T]], object]) -> None:
        """Calls look(handle) when the operation has ended well, before its result is taken."""
        finish = self._finish

        def looked(ended: Handle[T]) -> T:
            look(ended)
            return finish(ended)

        self._finish = looked

    def then(self, change: Callable[[Any], Any]) -> None:
        """The result is what `change` makes of it, once."""
        finish = self._finish
        self._finish = lambda ended: change(finish(ended))

    def poll(self) -> bool:
        """Whether the operation has ended. May be false right after it was submitted."""
        if self._id == 0:
            return True
        done = ctypes.c_int32()
        status = lib.rueda_poll(self._context, self._id, ctypes.byref(done))
        if self._id == 0:  # another thread has waited for it meanwhile
            return True
        _context.check(status, self._context)
        return done.value == 1

    def operation(self) -> tuple[int, int]:
        """For `is_under_way`, which keeps nothing."""
        return self._context, self._id

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the operation and returns its result, the same one every time. On CUDA it waits
        until the work is enqueued; what the current stream is given from then on finds the result.

        Args:
            timeout: in seconds; None: no limit.

        Raises:
            TimeIsUpError: the time is over; the operation goes on. Names the ranks that have not
                submitted it, for which it asks for up to a second more.
            StalledError: some ranks did not submit it in time; it has ended.
            MismatchError: the ranks disagree about it.
            AbortedError: a rank was lost.
        """
        if self._id != 0:
            self._wait(c.FOREVER if timeout is None else int(timeout * 1e9))
        if self._error is not None:
            raise self._error
        return self._result

    def _wait(self, timeout_ns: int) -> None:
        if self._stream is not None:
            status = lib.rueda_wait_on_stream(self._context, self._id, self._stream())
        else:
            while True:
                slice_ns = min(timeout_ns, _SLICE_NS)
                status = lib.rueda_wait(self._context, self._id, slice_ns)
                timeout_ns -= slice_ns
                if status != errors.Status.DEADLINE_EXCEEDED:
                    break
                if timeout_ns <= 0:
                    if slice_ns > 0:  # no mere look whether it has ended
                        status = lib.rueda_explain(self._context, self._id)
                    break
        self._end(status)

    def _end(self, status: int) -> None:
        message = _context.last_error() if status != 0 else ""
        if status == errors.Status.DEADLINE_EXCEEDED:
            raise errors.TimeIsUpError(message, errors.Status.DEADLINE_EXCEEDED)
        with self._taking:
            if self._id == 0:  # another thread was first
                return
            if status != 0:
                self._error = self._failure(status, message)
            else:
                try:
                    self._result = self._finish(self)
                except BaseException as error:  # of what was to be done with the result, or Ctrl-C
                    self._error = error
            del self._finish
            if self._stream is not None and not self.poll():
                # The device is still at it: a stream is behind it, but not the host.
                _left_behind.append((self._context, self._id, self._keep))
            else:
                lib.rueda_release(self._context, self._id)
            self._id = 0
            self._keep = None

    def _failure(self, status: int, message: str) -> errors.RuedaError:
        details = c.Error(size=ctypes.sizeof(c.Error))
        lib.rueda_handle_error(self._context, self._id, ctypes.byref(details))
        return _context.failure(status, message, details)

    def __del__(self) -> None:
        if getattr(self, "_id", 0) != 0:
            _left_behind.append((self._context, self._id, self._keep))


def is_under_way(context: int, handle: int) -> bool:
    """Not of what has ended, nor of what somebody has waited for."""
    done = ctypes.c_int32()
    status = lib.rueda_poll(context, handle, ctypes.byref(done))
    return bool(status == 0 and done.value == 0)


# What nobody waits for, with the memory that it needs. Lists append and pop as one step.
_left_behind: list[tuple[int, int, object]] = []
_sweeping = threading.Lock()


def _leave(context: int, handle: ctypes.c_uint64, keep: object) -> None:
    """After an exception between a submit and what comes of it: Ctrl-C comes there, too."""
    if handle.value != 0:
        _left_behind.append((context, handle.value, keep))


def _sweep() -> None:
    """Lets go of what has ended since: of two at a time, more than a submit can add."""
    if not _sweeping.acquire(blocking=False):
        return
    try:
        for _ in range(min(len(_left_behind), 2)):
            context, handle, keep = _left_behind.pop(0)
            if is_under_way(context, handle):
                _left_behind.append((context, handle, keep))
            else:
                lib.rueda_release(context, handle)
    finally:
        _sweeping.release()


def _forget(context: int) -> None:
    """Ahead of its end: nothing is under way in it any more."""
    with _sweeping:
        _left_behind[:] = [each for each in _left_behind if each[0] != context]


_context.before_destroy.append(_forget)

_JOIN_ROWS = (c.ALLGATHER, c.GATHER)
_OPERATION_SIZE = ctypes.sizeof(c.Operation)
_copy = c.Operation.from_buffer_copy
_SAME, _NEW = Output.SAME, Output.NEW  # attributes of an enum take their time


def set_id(process_set: ProcessSet | int) -> int:
    """Raises TypeError if it is not a process set."""
    if isinstance(process_set, int):
        return process_set
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {process_set!r}: a ProcessSet is wanted")
    return process_set.id


def _rows(split: Any) -> int:
    """Raises ValueError if it is not a number of rows."""
    try:
        number = int(split)
        is_whole = bool(number == split)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        is_whole = False
    if not is_whole or not 0 <= number < 2**63:
        raise ValueError(
            f"splits has {split}: numbers of rows are wanted, one for each rank of the process set"
        )
    return number


def _whole(value: Any, what: str) -> int:
    """Raises TypeError or ValueError if it is not an int32."""
    try:
        # torch.compile knows int() of an enumerator, and not operator.index().
        number = int(value) if isinstance(value, int) else operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}: a whole number is wanted") from None
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{what} is {number}: there are none so large")
    return number


def _factor(value: Any, what: str) -> float:
    """Raises TypeError or ValueError if it is not a number."""
    try:
        return ctypes.c_double(value).value
    except OverflowError:
        raise ValueError(f"{what} is {value!r}: it is too large for a float") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what} is {value!r}: a number is wanted") from error


def check_op(op: object) -> None:
    """Raises TypeError if it is not a ReduceOp (a name is not), ValueError if it is the number of
    none."""
    wanted = f"op is {op!r}: a ReduceOp is wanted, such as rueda.Sum or hvd.Average"
    if not isinstance(op, int):
        raise TypeError(wanted)
    if op not in _REDUCE_OPS:
        raise ValueError(wanted)


def compressor_of(compression: Any) -> bytes | None:
    """Of a name such as "int8" or "topk:0.01", a member of Compression, or None."""
    if compression is None:
        return None
    return _context.encoded(getattr(compression, "compressor", compression), "compression") or None


# Of a tensor: its kind, what has its memory, where its operation runs, and its result.
_Parts = tuple[_tensors.Kind, object, "c.Exec | None", Callable[[], Any]]


class Operation:
    """What is asked for, of one tensor or of a group. It does not change. Arguments are fields of
    rueda_operation. `context`: where; None: in the current one."""

    __slots__ = ("_c", "_context", "_keep", "_name", "_output")

    def __init__(
        self,
        kind: int,
        output: Output,
        name: str | None = None,
        process_set: ProcessSet | int = global_process_set,
        op: int = c.NO_REDUCE_OP,
        root: int = -1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        compressor: bytes | None = None,
        splits: Sequence[Any] | None = None,
        priority: int = 0,
        context: int | None = None,
    ) -> None:
        self._context = context
        # The fields that all tensors of a group share, as the C API has them, and the name.
        self._c = fields = c.Operation(
            _OPERATION_SIZE,
            kind,
            _whole(set_id(process_set), "process_set"),
            None,
            None,
            None,
            _whole(op, "op"),
            _whole(root, "the rank"),
            _factor(prescale, "prescale_factor"),
            _factor(postscale, "postscale_factor"),
        )
        self._output = output
        self._name = name
        if name is not None:
            fields.name = _context.encoded(name, "name")
        if compressor is not None:
            fields.compressor = compressor
        if splits is not None:
            self._set_splits(splits)
        if priority != 0:
            fields.priority = _whole(priority, "priority")

    def _set_splits(self, splits: Sequence[Any]) -> None:
        """Of a list, an array or a tensor. As they may differ by rank, a mistake is told to all."""
        try:
            rows = [_rows(split) for split in splits]
            if not rows:
                raise ValueError("splits is empty: None means equal parts")
        except (TypeError, ValueError) as error:
            self._c.fault = str(error)[:200].encode(errors="replace")
            return
        self._keep = numbers = (ctypes.c_int64 * len(rows))(*rows)
        self._c.splits = ctypes.addressof(numbers)
        self._c.split_count = len(rows)

    def execute(self, tensor: T) -> T:
        """One tensor (None: of a barrier), and waits; the quickest way. The result, if there is
        one, is a tensor of the same framework."""
        output = self._output
        if output is not _SAME and output is not _NEW:
            only: T = self._one(tensor).execute(_only)
            return only
        if _left_behind:
            _sweep()
        fields = _copy(self._c)
        fields.flags = c.RELEASE
        borrowed = self._borrow(tensor, fields)
        kind, keep, exec_, result = borrowed
        if exec_ is not None:
            return self._send(tensor, fields, borrowed, None).wait()
        context = self._context or lib.rueda_current_context() or _context.current()
        handle = ctypes.c_uint64()
        refused = False
        try:
            status = lib.rueda_execute(
                context, ctypes.addressof(fields), 1, _SLICE_NS, ctypes.byref(handle)
            )
            if status != 0:
                if handle.value == 0:
                    refused = True
                    _context.fail(status, context)
                flight: Handle[None] = Handle(context, handle.value, keep, _nothing, None)
                handle.value = 0
                if status != errors.Status.DEADLINE_EXCEEDED:
                    flight._end(status)
                flight.wait()
        except BaseException:
            _leave(context, handle, keep)
            raise
        finally:
            if output is _SAME and not refused:  # after Ctrl-C, too
                kind.count_write(tensor)
        made: T = tensor if output is _SAME else result()
        return made

    def submit(self, tensor: Any, completion: c.Completion | None = None) -> Handle[Any]:
        """One tensor, in the background. `completion`: what is called at its end."""
        output = self._output
        if output is not _SAME and output is not _NEW:
            return self._one(tensor).submit(_only, completion)
        if _left_behind:
            _sweep()
        fields = _copy(self._c)
        return self._send(tensor, fields, self._borrow(tensor, fields), completion)

    def _send(
        self, tensor: T, fields: c.Operation, borrowed: _Parts, completion: c.Completion | None
    ) -> Handle[T]:
        kind, keep, exec_, result = borrowed
        context = self._context or lib.rueda_current_context() or _context.current()
        stream = None
        if exec_ is not None:
            fields.exec = ctypes.addressof(exec_)
            stream = partial(kind.stream, tensor)
        finish = (lambda _: tensor) if self._output is _SAME else (lambda _: result())
        handle = ctypes.c_uint64()
        try:
            _submit(context, fields, 1, completion, handle)
            return Handle(context, handle.value, keep, finish, stream)
        except BaseException:
            _leave(context, handle, keep)
            raise
        finally:
            if self._output is _SAME and handle.value != 0:  # 0: refused
                kind.count_write(tensor)

    def _borrow(self, tensor: Any, fields: c.Operation) -> _Parts:
        """Fills in what a tensor in place, or with a new one for the result, has of its own."""
        kind = _tensors.kind_of(tensor)
        if self._output is _SAME:
            fields.input, keep, exec_ = kind.borrow(tensor, True)
            return kind, (tensor, keep), exec_, _nothing
        borrowed = kind.borrow(tensor, False)
        fields.input, keep, exec_ = borrowed
        (fields.output, keep_output, _), result = kind.make_like(tensor, borrowed)
        return kind, (tensor, keep, keep_output), exec_, result

    def execute_group(self, tensors: Sequence[T]) -> list[T]:
        """Tensors that are done together or not at all: "name.0", "name.1", ..."""
        return self._group(tensors).execute(_all)

    def submit_group(
        self, tensors: Sequence[T], completion: c.Completion | None = None
    ) -> Handle[list[T]]:
        """The same in the background."""
        return self._group(tensors).submit(_all, completion)

    def _one(self, tensor: Any) -> _Flight:
        if tensor is None and self._output is not Output.NONE:
            raise TypeError("expected a tensor, got None")
        return _Flight(self, () if tensor is None else (tensor,), (None,))

    def _group(self, tensors: Sequence[Any]) -> _Flight:
        name, count = self._name, len(tensors)
        if count == 0:
            raise ValueError("a group of no tensors")
        return _Flight(
            self, tensors, [None if name is None else f"{name}.{i}" for i in range(count)]
        )


# What was asked for before. Programs ask for the same again, and a look is quicker.
_known: dict[tuple[Any, ...], Operation] = {}
_KNOWN_MAX = 4096


def operation(
    kind: int,
    output: Output,
    name: str | None,
    process_set: ProcessSet | int,
    op: int = c.NO_REDUCE_OP,
    root: int = -1,
    scale: tuple[float, float] = (1.0, 1.0),
    compressor: bytes | None = None,
    priority: int = 0,
) -> Operation:
    """An Operation for calls that come often. `scale`: before and after."""
    number = c.WORLD if process_set is global_process_set else set_id(process_set)
    key = (kind, output, name, number, op, root, scale, compressor, priority)
    try:
        known = _known.get(key)
    except TypeError:  # what is no number or name: Operation says so
        known = None
    if known is not None:
        return known
    made = Operation(kind, output, name, number, op, root, *scale, compressor, priority=priority)
    if all(type(factor) in (float, int) for factor in scale):  # others may change
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        _known[key] = made
    return made


def reduction(
    kind: int,
    output: Output,
    name: str | None,
    op: int,
    scale: tuple[float, float],
    process_set: ProcessSet | int,
    compression: Any = None,
    priority: int = 0,
    root: int = -1,
) -> Operation:
    """What allreduces and their like have in common."""
    compressor = None if compression is None else compressor_of(compression)
    if type(op) is not ReduceOp:
        check_op(op)
    return operation(kind, output, name, process_set, op, root, scale, compressor, priority)


def _submit(
    context: int,
    operations: Any,
    count: int,
    completion: c.Completion | None,
    handle: ctypes.c_uint64,
) -> None:
    """Fills in the handle."""
    status = lib.rueda_submit(
        context,
        ctypes.addressof(operations),
        count,
        None if completion is None else ctypes.addressof(completion),
        ctypes.byref(handle),
    )
    if status != 0:
        _context.fail(status, context)


def _only(results: list[Any]) -> Any:
    return results[0] if results else None


def _all(results: list[Any]) -> list[Any]:
    return results


def _nothing(_: object = None) -> None:
    pass


class _Flight:
    """From the request to the handle, and what is needed until its end."""

    __slots__ = (
        "_context",
        "_count",
        "_keep",
        "_makes",
        "_on_cuda",
        "_operations",
        "_takes",
        "_writes",
    )

    def __init__(
        self, request: Operation, tensors: Sequence[Any], names: Sequence[str | None]
    ) -> None:
        if _left_behind:
            _sweep()
        self._context = request._context or _context.current()
        self._count = max(len(tensors), 1)
        self._operations = (c.Operation * self._count)()
        self._keep: list[object] = [request]
        self._makes: list[Callable[[], Any]] = []  # the results
        self._takes: list[tuple[_tensors.Kind, Any]] = []  # those of unknown size: like what
        self._writes: list[tuple[_tensors.Kind, Any]] = []  # the program's own tensors
        self._on_cuda: tuple[_tensors.Kind, Any] | None = None
        for i, operation in enumerate(self._operations):
            ctypes.pointer(operation)[0] = request._c
            name = names[i]
            if name is not None:
                operation.name = _context.encoded(name, "name")
            if tensors:
                self._add(request._output, operation, tensors[i])

    def _add(self, output: Output, operation: c.Operation, tensor: Any) -> None:
        kind = _tensors.kind_of(tensor)
        writes = output is Output.SAME or output is Output.GIVEN
        if operation.kind in _JOIN_ROWS:
            borrowed = kind.borrow_rows(tensor)
        else:
            borrowed = kind.borrow(tensor, writes)
        address, _, exec_ = borrowed
        self._keep.append(borrowed)
        if output is Output.GIVEN:
            operation.output = address
        else:
            operation.input = address
        if exec_ is not None:
            operation.exec = ctypes.addressof(exec_)
            self._on_cuda = (kind, tensor)
        if output is Output.NEW:
            made, get = kind.make_like(tensor, borrowed)
            operation.output = made[0]
            self._keep.append(made)
            self._makes.append(get)
        elif output is Output.TAKEN:
            self._takes.append((kind, tensor))
        elif writes:
            self._writes.append((kind, tensor))
            self._makes.append(lambda: tensor)

    def submit(
        self, results: Callable[[list[Any]], T], completion: c.Completion | None = None
    ) -> Handle[T]:
        handle = ctypes.c_uint64()
        try:
            _submit(self._context, self._operations, self._count, completion, handle)
            return self._handle(handle.value, results)
        except BaseException:
            _leave(self._context, handle, self)
            raise
        finally:
            self._count_writes(handle)

    def execute(self, results: Callable[[list[Any]], T]) -> T:
        if self._on_cuda is not None:
            return self.submit(results).wait()
        handle = ctypes.c_uint64()
        try:
            status = lib.rueda_execute(
                self._context,
                ctypes.addressof(self._operations),
                self._count,
                _SLICE_NS,
                ctypes.byref(handle),
            )
            if status != 0 and handle.value == 0:
                _context.fail(status, self._context)
            flight = self._handle(handle.value, results)
        except BaseException:
            _leave(self._context, handle, self)
            raise
        finally:
            self._count_writes(handle)
        if status != errors.Status.DEADLINE_EXCEEDED:
            flight._end(status)
        return flight.wait()

    def _count_writes(self, handle: ctypes.c_uint64) -> None:
        if handle.value != 0:  # 0: refused
            for kind, tensor in self._writes:
                kind.count_write(tensor)

    def _handle(self, handle: int, results: Callable[[list[Any]], T]) -> Handle[T]:
        def finish(ended: Handle[T]) -> T:
            made = [get() for get in self._makes]
            for index, (kind, like) in enumerate(self._takes):
                made.append(kind.own(_take(ended._context, ended._id, index), like))
            return results(made)

        stream = None
        if self._on_cuda is not None:
            kind, first = self._on_cuda
            stream = partial(kind.stream, first)
        return Handle(self._context, handle, self, finish, stream)


def _take(context: int, handle: int, index: int) -> _tensors.Owned:
    result = c.Result(size=ctypes.sizeof(c.Result))
    _context.check(lib.rueda_result_take(context, handle, index, ctypes.byref(result)), context)
    return _tensors.Owned(result)


def received_splits(handle: Handle[Any], tensors: int = 1) -> list[list[int]]:
    """How many rows of the result came from each rank of the process set, for each of the tensors.
    Filled in when the operation has ended well."""
    received: list[list[int]] = []
    handle.before(lambda ended: received.extend(_splits(ended, i) for i in range(tensors)))
    return received


def _splits(handle: Handle[Any], index: int) -> list[int]:
    count = ctypes.c_size_t()
    context, number = handle._context, handle._id
    _context.check(
        lib.rueda_result_splits(context, number, index, None, 0, ctypes.byref(count)), context
    )
    splits = (ctypes.c_int64 * max(count.value, 1))()
    _context.check(
        lib.rueda_result_splits(context, number, index, splits, count.value, ctypes.byref(count)),
        context,
    )
    return list(splits)[: count.value]
