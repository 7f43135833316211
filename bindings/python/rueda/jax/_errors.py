"""Errors of collectives in compiled functions. JAX raises one class for all that XLA says."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax

from rueda import errors
from rueda.core import _context
from rueda.core import _library as c
from rueda.jax import _effects

# "ABORTED: Rueda: rank 1 was lost". The mark is that of native/rueda_xla.cc.
_PATTERN = re.compile(r"\b([A-Z_]+): Rueda: (.*)", re.DOTALL)


def translated(error: BaseException) -> errors.RuedaError | None:
    """What the library has said, as its own exception; None: it has not said this."""
    found = _PATTERN.search(str(error))
    if found is None or found[1] not in errors.Status.__members__:
        return None
    status, message = errors.Status[found[1]], found[2]
    context = c.lib.rueda_current_context()
    if status == errors.Status.FAILED_PRECONDITION and context is None:
        return errors.NotInitializedError(message, status)
    return _context.failure(status, message, _context.first_cause(context))


@contextlib.contextmanager
def synchronized() -> Iterator[None]:
    """At its end all collectives of compiled functions that were called within have ended, and if
    one has failed its own exception is raised: AbortedError, MismatchError or another RuedaError.
    Without it JAX raises a JaxRuntimeError with the same text, where a result is waited for, and
    again from whatever collective comes next.

        with rx.synchronized():
            params, loss = step(params, batch)

    It is a decorator, too.
    """
    try:
        yield
        _effects.wait()
    except jax.errors.JaxRuntimeError as error:
        forget()
        own = translated(error)
        if own is None:
            raise
        raise own from error


def forget() -> None:
    """Waits, and does not look at how it ended."""
    with contextlib.suppress(Exception):
        _effects.wait()


# What a lost rank has left would fail whatever comes next.
_context.after_regroup.append(lambda _: forget())
