"""Elastic jobs: a job that loses ranks, or gets others, and goes on.

    import numpy as np
    import rueda

    rueda.init()
    state = rueda.elastic.ObjectState(weights=np.zeros(10), step=0)

    @rueda.elastic.run
    def train(state):
        while state.step < 1000:
            gradient = rueda.allreduce(gradient_of(state.weights), name="gradient")
            state.weights -= 0.1 * gradient
            state.step += 1
            state.commit()

    train(state)

started as ``ruedarun -np 4 --min-np 2 python train.py``. For models of PyTorch, TensorFlow and
Keras use `rueda.torch.elastic`, `rueda.tensorflow.elastic` and `rueda.keras.elastic`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from rueda import errors
from rueda.core import _collectives, _context, _objects
from rueda.core import _library as c
from rueda.core._horovod import HorovodInternalError
from rueda.core._own_state import Own, OwnState, PartMissingError, Sharded
from rueda.core._sums import sums_of

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "Own",
    "Sharded",
    "State",
    "run",
    "source",
]


class HostsUpdatedInterrupt(RuntimeError):
    """The job's ranks are about to change. Raised on all ranks alike, by `State.commit` and
    `State.check_host_updates`, for `run` to catch.

    Args:
        skip_sync: whether ranks only leave, so that all that remain have the same state.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the job's ranks are about to change")
        self.skip_sync = skip_sync


def source() -> int:
    """The rank that has the newest state: whose values a sync gives to all."""
    return _context.membership_info().source


def broadcast_object(obj: Any, name: str | None = None) -> Any:
    """The object of the rank that has the newest state."""
    return _objects.broadcast_object(obj, source(), name)


# ---- state ----


class State:
    """What all ranks shall have alike, and go back to after a loss. Derive from it, and give it
    `save`, `restore` and `sync`; or use one of the ready ones, such as `ObjectState`.

    Args:
        bcast_object: a function that gives all ranks one rank's object. None: that of the rank
            with the newest state, which `rueda.elastic.source()` tells.
        get_rank: not looked at.
    """

    # How often it was committed; after a sync as often as the source's.
    _commits = 0

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] | None = None,
        get_rank: Callable[[], int] | None = None,
    ) -> None:
        is_own = bcast_object in (None, _objects.broadcast_object)
        self._bcast_object: Callable[[Any], Any] = (
            broadcast_object if is_own or bcast_object is None else bcast_object
        )
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Functions that are called, in this order, when the job's ranks have changed, before the
        state is synced: to scale the learning rate by the new `size()`, to make process sets."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """`run` calls it when the job's ranks have changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """Whatever depends on rank() and size() is made anew. Called ahead of the callbacks."""

    def on_hosts_updated(self, timestamp: float, update_res: int = 0) -> None:
        """For programs that call it. Nothing needs to: ranks agree about changes by themselves."""

    def commit(self) -> None:
        """Keeps a copy of the state, to which all ranks go back after a loss; then looks for
        changes, as `check_host_updates` does. Collective: all ranks commit equally often.

        Raises:
            HostsUpdatedInterrupt: the job's ranks are about to change.
        """
        self.save()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Looks whether the job's ranks are about to change. All ranks call it at the same place,
        where they have waited for the same operations; it sends nothing. Nothing is lost: `run`
        goes on from the state as it is.

        Raises:
            HostsUpdatedInterrupt: they are; on all ranks alike.
        """
        change = _context.check_membership() if _context.is_elastic() else 0
        if change != 0:
            self.before_change()
            raise HostsUpdatedInterrupt(skip_sync=change == c.RANKS_REMOVED)

    def _has_own(self) -> bool:
        """Whether it has something that only one rank has: then it is synced whenever the job's
        ranks have changed."""
        return False

    def _go_back(self) -> bool:
        """Goes back to the commit before the last, which is the last one then. False: it is not
        kept any more."""
        return False

    def before_change(self) -> None:
        """Collective: the last that ranks do together of which some are about to leave."""

    def save(self) -> None:
        """Keeps a copy of the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the copy of the last save(), or else to the values at construction."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the values of the one that has the newest state. Collective."""
        raise NotImplementedError


class Kind:
    """How values of some type are kept. Its functions get the value."""

    #: Whether it must be synced when ranks only left.
    is_own = False

    def gather(self, value: Any, name: str, *, in_background: bool = False) -> None:
        """Collective: what only this rank knows of it, others do then. `in_background`: another
        host may come to know it later."""

    def is_on_its_way(self, value: Any) -> bool:
        """Whether another host has still to come to know it."""
        return False

    def keep(self, value: Any) -> Any:
        """A copy, not collective, that later changes of the value don't change."""
        raise NotImplementedError

    def load(self, value: Any, kept: Any) -> None:
        """Lets it be as it was. The copy may be needed again."""
        raise NotImplementedError

    def go_back(self, value: Any, kept: Any) -> None:
        """This earlier copy is what was kept last; load follows."""

    def sync(self, value: Any, root: int, name: str) -> None:
        """Collective: lets it be as the root's."""
        raise NotImplementedError

    def reset(self, value: Any) -> None:
        """The job's ranks have changed."""

    def replicated(self, value: Any, kept: Any) -> Any:
        """What of the copy is the same on all ranks after a sync."""
        return kept


class _Own(Kind):
    is_own = True

    def gather(self, value: Any, name: str, *, in_background: bool = False) -> None:
        value.exchange(name, in_background=in_background)

    def is_on_its_way(self, value: Any) -> bool:
        return bool(value.is_on_its_way)

    def keep(self, value: Any) -> Any:
        return value.keep()

    def load(self, value: Any, kept: Any) -> None:
        value.load(kept)

    def go_back(self, value: Any, kept: Any) -> None:
        value.go_back(kept)

    def sync(self, value: Any, root: int, name: str) -> None:
        value.sync(root, name)


_OWN = _Own()


class _Kept(NamedTuple):
    value: Any  # None: what is kept is an object
    kind: Kind | None
    copy: Any
    sums: list[int]  # of the copy

    def replicated_sums(self) -> list[int]:
        """Of what is the same on all ranks after a sync."""
        alike = self.copy if self.kind is None else self.kind.replicated(self.value, self.copy)
        return self.sums if alike is self.copy else sums_of(alike)

    def check(self, name: str) -> None:
        """Raises a LostStateError if it is not as it was kept."""
        if sums_of(self.copy) != self.sums:
            raise errors.LostStateError(
                f"elastic state: this rank's copy of {name!r} is damaged: its memory has been "
                "written to since the commit. It ends, and others go on from theirs",
                errors.Status.DATA_LOSS,
            )


def copied(name: str, value: Any) -> Any:
    """A deep copy of the attribute's value."""
    try:
        return copy.deepcopy(value)
    except Exception as error:  # objects may raise whatever they like
        raise TypeError(
            f"elastic state: the attribute {name!r}, a {type(value).__name__}, can't be copied: "
            f"{type(error).__name__}: {error}; leave it out of the state, and make it anew in a "
            "reset callback"
        ) from error


class ObjectState(State):
    """State made of Python objects, of NumPy's or JAX's arrays: each keyword becomes an attribute.

        state = rueda.elastic.ObjectState(weights=weights, epoch=0)
        state.epoch += 1

    Args:
        bcast_object: see `State`; it may be left out.
        get_rank: not looked at.
        kwargs: the attributes. They can be copied (copy.deepcopy) and pickled.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        for name in kwargs:
            if callable(getattr(type(self), name, None)):
                raise ValueError(
                    f"elastic state: an attribute can't have the name {name!r}, which "
                    f"{type(self).__name__} itself has"
                )
        self._names = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        # Newcomers come here while others are far ahead: nothing collective.
        self._kept = self._copies()
        # The one before, while a lost host may take the last one with it.
        self._earlier: dict[str, _Kept] | None = None
        self._is_whole = True  # nothing of the last one failed: partners have it all, or will

    def _kind_of(self, value: Any) -> Kind | None:
        """None: it is an object, which is copied and pickled."""
        return _OWN if isinstance(value, OwnState) else None

    def _of_kinds(self) -> Iterator[tuple[str, Any, Kind]]:
        for name in self._names:
            value = getattr(self, name)
            kind = self._kind_of(value)
            if kind is not None:
                yield name, value, kind

    def _copies(self) -> dict[str, _Kept]:
        kept = {}
        values = [(name, getattr(self, name)) for name in self._names]
        # What is its own drops what it has kept before: it is the last, behind what may fail.
        for name, value in sorted(values, key=lambda each: isinstance(each[1], OwnState)):
            kind = self._kind_of(value)
            copy = copied(name, value) if kind is None else kind.keep(value)
            kept[name] = _Kept(None if kind is None else value, kind, copy, sums_of(copy))
        return kept

    def before_change(self) -> None:
        """What only this rank knows, others do then."""
        self._gather(in_background=False)

    def _gather(self, in_background: bool) -> None:
        # All could go back no further than to what some partner has not got.
        in_background, self._is_whole = in_background and self._is_whole, False
        for name, value, kind in self._of_kinds():
            kind.gather(value, f"rueda.elastic.{name}", in_background=in_background)

    def _has_own(self) -> bool:
        return any(kind.is_own for _, _, kind in self._of_kinds())

    def save(self) -> None:
        """Keeps a copy of all attributes. Collective. If it fails, the copy before remains."""
        self._gather(in_background=True)
        self._earlier = None
        kept = self._copies()
        if any(kind.is_on_its_way(value) for _, value, kind in self._of_kinds()):
            self._earlier = self._kept
        self._kept, self._is_whole = kept, True

    def _go_back(self) -> bool:
        if self._earlier is None:
            return False
        self._kept, self._earlier = self._earlier, None
        for kept in self._kept.values():
            if kept.kind is not None:
                kept.kind.go_back(kept.value, kept.copy)
        self.restore()
        self._commits -= 1
        return True

    def restore(self) -> None:
        """Goes back to the copy of the last save(), or else to the values at construction.

        Raises:
            LostStateError: an array of the copy is not as it was kept. Nothing has changed.
        """
        for name, kept in self._kept.items():
            kept.check(name)
        for name, kept in self._kept.items():
            if kept.kind is None:
                setattr(self, name, copied(name, kept.copy))
            else:
                setattr(self, name, kept.value)
                kept.kind.load(kept.value, kept.copy)

    def sync(self) -> None:
        """Gives all ranks the attributes of the one that has the newest state. Collective. They
        are what restore() goes back to then.

        Raises:
            MismatchError: arrays differ on two ranks all the same; on all ranks.
        """
        self._is_whole = False
        for name, value, kind in self._of_kinds():
            kind.sync(value, source(), f"rueda.elastic.{name}")
        plain = {
            name: getattr(self, name)
            for name in self._names
            if self._kind_of(getattr(self, name)) is None
        }
        if plain:
            for name, value in self._bcast_object(plain).items():
                setattr(self, name, value)
        self._kept, self._earlier, self._is_whole = self._copies(), None, True
        self._check_replicas()

    def _check_replicas(self) -> None:
        mine = {name: kept.replicated_sums() for name, kept in self._kept.items()}
        everyones = _objects.allgather_object(mine, "rueda.elastic.check")
        root = source()
        for rank, theirs in enumerate(everyones):
            for name, sums in everyones[root].items():
                if theirs.get(name) != sums:
                    raise errors.MismatchError(
                        f"elastic state: {name!r} of rank {rank} is not as that of rank {root}, "
                        "though they have been synced: let all ranks make their state alike",
                        errors.Status.INVALID_ARGUMENT,
                    )

    def reset(self) -> None:
        """Whatever depends on rank() and size() is made anew."""
        for _, value, kind in self._of_kinds():
            kind.reset(value)


# ---- run ----

_LOOK_SECONDS = 0.02  # between looks for others
_NONE_CAME = (
    "A host that has lost all its ranks may have kept it, and they were waited for, but no rank "
    "came there in time (ruedarun --elastic-timeout), or the host was lost"
)

#: What is put around the function: turns errors of other kinds into the library's.
Around = Callable[[], contextlib.AbstractContextManager[Any]]

# Another membership would have them again.
_PERMANENT = (
    errors.LostStateError,
    errors.MismatchError,
    errors.NotInitializedError,
    errors.RemoteError,
    errors.UnsupportedError,
)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for the function that trains. Its first argument is the state.

    Called, it gives all ranks the same state and calls the function. When ranks are lost, or come
    and go, it begins the next membership, and calls the function again with the same state:

    * after a loss (`HorovodInternalError`): from the last commit, or else from the values at
      construction;
    * when ranks are about to change (`HostsUpdatedInterrupt`): from the state as it is. If ranks
      only left, it is not synced.

    Before that it calls the state's reset callbacks. Any other exception ends this rank. So do
    errors that another membership would have again, such as a MismatchError, and an error of the
    library's own other than a loss that comes a second time without a commit between; also if a
    program waits again and again for an operation that an earlier membership has taken with it. A
    rank whose host is taken away ends with status 0 (SystemExit).

    A process that comes later runs the program from its beginning, and comes in here: until then
    its operations are as in a world of one, and `rank()` and `size()` say what they will be, if
    nothing changes meanwhile.

    In a job without `ruedarun --min-np` it syncs the state, calls the function once, and lets
    errors pass.
    """
    return run_with(func, _around_jax)


def _around_jax() -> contextlib.AbstractContextManager[Any]:
    errors_of_jax = sys.modules.get("rueda.jax._errors")
    return contextlib.nullcontext() if errors_of_jax is None else errors_of_jax.synchronized()


def run_with(func: Callable[..., Any], around: Around) -> Callable[..., Any]:
    """As `run`."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(state, State):
            raise TypeError(
                f"elastic.run: the first argument of {getattr(func, '__name__', 'the function')} "
                f"must be a state (elastic.State), not a {type(state).__name__}"
            )
        if c.lib.rueda_current_context() is None:
            _context.init()
        _context.remember_numbers()
        if _context.membership_info().number == 0:  # a newcomer, which has built everything by now
            _regroup(state)
        is_first, wants_sync = True, True
        patience = _Patience()
        while True:
            if not is_first:
                _regroup(state)
            try:
                with around():
                    if not is_first:
                        state.on_reset()
                    if is_first or _sync_is_wanted(wants_sync or state._has_own()):
                        _sync(state)
                    return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt as change:
                if not _context.is_elastic():
                    raise
                wants_sync = not change.skip_sync
            except errors.RuedaError as error:
                if patience.is_over(error, state._commits):
                    raise
                _check_goes_on(error)
                state.restore()
                wants_sync = True
            is_first = False

    return wrapper


class _Patience:
    """How often another membership is tried, without a commit between."""

    # A program may have begun some operations in a membership that it waits for in the next ones.
    _OLD_ERRORS = 10

    def __init__(self) -> None:
        self._commits = -1
        self._tried = [0, 0]

    def is_over(self, error: errors.RuedaError, commits: int) -> bool:
        if commits != self._commits:
            self._commits, self._tried = commits, [0, 0]
        is_old = _is_old(error)
        if isinstance(error, errors.AbortedError) and not is_old:
            return False
        self._tried[is_old] += 1
        return self._tried[is_old] > (self._OLD_ERRORS if is_old else 1)


def _is_old(error: errors.RuedaError) -> bool:
    """Whether it is an earlier membership's."""
    return isinstance(error, errors.AbortedError) and error.membership not in (
        0,
        _context.membership(),
    )


def _check_goes_on(error: errors.RuedaError) -> None:
    """Raises it if there is no other membership, or if that would have it, too."""
    is_lost = isinstance(error, errors.AbortedError)
    if isinstance(error, _PERMANENT) or (is_lost and not error.recoverable):
        raise error
    if not _context.is_elastic():
        if is_lost:
            error.args = (
                f"{error} This job can't go on without it: only an elastic job does, which "
                "`ruedarun --min-np N` starts.",
            )
        raise error
    if not is_lost or _is_old(error):  # so that the others don't wait for this rank
        with contextlib.suppress(errors.RuedaError):
            _context.abort(_context.reason_of(error))


def _regroup(state: State) -> None:
    try:
        _context.regroup(state._commits)
    except errors.DismissedError as error:
        _context.end_of(error)


def _sync_is_wanted(by_this: bool) -> bool:
    """Whether any rank wants it: of ranks that saw the same change, one may have heard of a loss
    first. Newcomers always want it."""
    membership = _context.membership_info()
    if membership.survivors < membership.ranks:
        return True
    wanted = _collectives.allreduce(int(by_this), "rueda.elastic.sync", op=_collectives.Max)
    return bool(wanted)


def _sync(state: State) -> None:
    went_back = False
    while True:
        try:
            state.sync()
            break
        except PartMissingError as error:
            went_back = _all_go_back(state, error)
            if not went_back:
                text = f"{error}. {_NONE_CAME}" if _await_others(state) else str(error)
                raise errors.LostStateError(text, error.status) from None
    # No fewer than the launcher has heard of: else it would take newcomers for such without it.
    state._commits = broadcast_object(state._commits + went_back, "rueda.elastic.commits")


def _all_go_back(state: State, error: PartMissingError) -> bool:
    """Whether the source still had the commit before its last, which others may have. All that had
    its last one have gone back, too."""
    is_source = _context.rank() == source()
    goes_back = is_source and error.was_on_its_way and state._go_back()
    goes_back, commits = broadcast_object((goes_back, state._commits), "rueda.elastic.goes_back")
    if goes_back and state._commits > commits:
        state._go_back()
    return bool(goes_back)


def _await_others(state: State) -> bool:
    """Until ranks come that may have what nobody has here, or none is to be waited for any more.
    Whether any was.

    Raises:
        HostsUpdatedInterrupt: they are there.
    """
    name, waited = "rueda.elastic.awaited", False
    while _collectives.allreduce(_context.membership_info().keeping, name, op=_collectives.Max):
        waited = True
        if _context.check_membership() != 0:
            state.restore()  # some of it is the source's by now
            raise HostsUpdatedInterrupt()
        time.sleep(_LOOK_SECONDS)
    return waited
