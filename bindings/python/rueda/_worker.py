"""A rank of ``rueda.run``: gets the function from the process that called run, calls it, and sends
what came of it. ruedarun starts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import NoReturn

import cloudpickle  # type: ignore[import-untyped]

from rueda import errors
from rueda._channel import VARIABLE, Channel, Failure
from rueda.core import _context


def main() -> None:
    """Is a rank, from the start of the process to its end."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    call = json.loads(os.environ.pop(VARIABLE))  # not for processes that this one starts
    number, address = os.environ["RUEDA_RANK"], call["address"]
    try:
        connection = _connect(address)
        os.register_at_fork(after_in_child=connection.close)  # it is open as long as this one lives
        rank = _Rank(Channel(connection, bytes.fromhex(call["key"]), is_rank=True))
        rank.enter(int(number), int(os.environ["RUEDA_SIZE"]))
    except OSError as error:
        sys.exit(
            f"rueda.run: rank {number} can't reach the process that called it, at {address}: "
            f"{error}; if that is the wrong network, choose with network_interface="
        )
    rank.leave(rank.call())


def _connect(address: str | list[str | int]) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection((str(address[0]), int(address[1])))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return connection


class _Rank:
    """This process, as far as run() knows it. The main thread calls and sends, another listens."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._call = bytearray()
        self._receipt = threading.Event()

    def enter(self, rank: int, size: int) -> None:
        """Says who this is and gets the call, and what modules are found by. Raises OSError."""
        self._channel.send(pickle.dumps((rank, size)))
        path, is_same_python = pickle.loads(self._channel.receive())
        if is_same_python:
            sys.path[:] = path
        else:  # one that has a library of its own, which must precede the other's
            sys.path += [folder for folder in path if folder not in sys.path]
        self._call = self._channel.receive()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            self._channel.receive()
            self._receipt.set()
            self._channel.receive()  # nothing more, until this process has ended
        except OSError:  # nobody is there to care for what is done here
            print("rueda.run: the process that called it is gone", file=sys.stderr)
            os._exit(1)

    def call(self) -> bytes:
        """What the function returned, pickled. If there is no such thing, it ends the process."""
        try:
            fn, args, kwargs = cloudpickle.loads(self._call)
            self._call.clear()
            result = fn(*args, **kwargs)
        except SystemExit as error:
            code = "" if error.code is None else repr(error.code)
            status = error.code & 0xFF if isinstance(error.code, int) else 1
            self._fail(error, f"SystemExit: the function called sys.exit({code})", status or 1)
        except BaseException as error:
            self._fail(error, error_text(error))
        try:
            return bytes(cloudpickle.dumps(result))
        except Exception as error:
            kind = type(result).__name__
            self._fail(error, f"its result, a {kind}, can't be pickled: {error_text(error)}")

    def leave(self, result: bytes) -> None:
        """Returns when the result has come to run(). If it can't, the process ends."""
        self._send(pickle.dumps(None), result)

    def _fail(self, error: BaseException, text: str, status: int = 1) -> NoReturn:
        """Ends the process, and the job for the other ranks. run() hears of it before they do."""
        failure = _failure(error, text)
        self._send(pickle.dumps(failure))
        print(failure.traceback, end="", file=sys.stderr)
        with contextlib.suppress(errors.RuedaError):
            if _context.is_initialized():
                _context.abort(text[:1000].replace("\0", ""))
            _context.shutdown()
        sys.exit(status)

    def _send(self, *messages: bytes) -> None:
        with contextlib.suppress(OSError):  # of which _listen makes an end
            for message in messages:
                self._channel.send(message)
        self._receipt.wait()


def error_text(error: BaseException) -> str:
    """Its type and what it says, as a traceback has it, without places before it (a SyntaxError
    has some) and notes behind."""
    lines = traceback.format_exception_only(type(error), error)
    return next(line for line in lines if not line.startswith(" ")).strip()


def _failure(error: BaseException, text: str) -> Failure:
    own = error.__traceback__.tb_next if error.__traceback__ is not None else None  # not this file
    try:
        exception = cloudpickle.dumps(error)
    except Exception:  # whatever its class does
        exception = None
    lost = next(filter(_is_of_another_rank, _with_causes(error)), None)
    return Failure(
        text=text,
        traceback="".join(traceback.format_exception(type(error), error, own)),
        exception=exception,
        is_consequence=lost is not None,
        lost_rank=getattr(lost, "rank", None),
        cause=getattr(lost, "cause", "") or str(lost or ""),
    )


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()  # for they may go round
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _is_of_another_rank(error: BaseException) -> bool:
    """ABORTED, or what init says of a rank that did not come: UNAVAILABLE."""
    return isinstance(error, errors.RuedaError) and error.status in (
        errors.Status.ABORTED,
        errors.Status.UNAVAILABLE,
    )
