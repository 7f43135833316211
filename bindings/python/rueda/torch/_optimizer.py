"""DistributedOptimizer: an optimizer that steps when all ranks' gradients have been combined."""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch._compile import _disable_dynamo

from rueda.core import _compression, _context
from rueda.core._operations import ReduceOp, check_op
from rueda.core._process_sets import ProcessSet, global_process_set
from rueda.torch import _grad_scaler, _operations
from rueda.torch._compression import Compression
from rueda.torch._reducer import Reducer


class _Distributed:
    """What is added to the optimizer's own class."""

    _parameter_names: dict[torch.nn.Parameter, str]
    _process_set: ProcessSet
    _is_shared: bool  # by several ranks, of which this is one
    _options: dict[str, Any]  # of the reducer
    _what: str  # its copies are, for prefix_of
    _prefix: str | None  # None: of a copy that has not been used yet
    _reducer: Reducer | None  # None, too, if it is not shared
    _should_synchronize: bool
    _synchronized: bool

    def _start(self) -> None:
        """Takes part in combining gradients from now on. Copies do so when they are first used, as
        all ranks use one, while any rank may make one."""
        if self._prefix is not None:
            return
        self._prefix = prefix_of(self._what)
        if self._is_shared:
            self._reduce(self._prefix)

    def _reduce(self, prefix: str) -> None:
        named = [(name, p) for p, name in self._parameter_names.items()]
        self._reducer = Reducer(
            named, prefix=prefix, process_set=self._process_set, **self._options
        )

    # What a GradScaler finds in combined gradients is the same on all ranks.
    _agree: Callable[[_grad_scaler.Found], None] | None = None

    def _follow_scaler(self) -> None:
        if self._is_shared:
            _grad_scaler.follow(self, self._catch_up, self._agree)

    # ---- copies ----

    def _plain(self) -> torch.optim.Optimizer:
        """One of the wrapped class, with the same state and parameter groups."""
        wrapped = type(self).__bases__[1]
        plain: torch.optim.Optimizer = object.__new__(wrapped)
        plain.__dict__.update({k: v for k, v in vars(self).items() if k not in _OWN})
        return plain

    def __copy__(self) -> Any:
        """Not here, as two optimizers would combine the gradients of the same parameters:
        TypeError."""
        raise TypeError(
            "copy.copy(optimizer): the copy of a DistributedOptimizer would have the same "
            "parameters, and only one can combine their gradients. Use copy.deepcopy, together "
            "with the model: copy.deepcopy((model, optimizer))"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A DistributedOptimizer of copied parameters. To step with it, all ranks make one."""
        copied = copy.deepcopy(self._plain(), memo)
        copy_of = dict(zip(_parameters(self), _parameters(copied), strict=True))
        groups = [[copy_of[p] for p in group] for group in self._options["groups"]]
        other: Any = _wrapped(copied, type(self))
        other._parameter_names = {copy_of[p]: name for p, name in self._parameter_names.items()}
        other._process_set = self._process_set
        other._is_shared = self._is_shared
        other._options = self._options | {"groups": groups}
        other._what = self._what
        other._follow_scaler()
        return other

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled, it is an optimizer of the wrapped class, which any process can load."""
        return self._plain().__reduce_ex__(0)  # from 2 on it has to be of its own class

    # ---- in the manner of Horovod ----

    def synchronize(self) -> None:
        """Waits until all gradients have been combined; from then on they are in `p.grad`. step()
        does so by itself. Call this, on all ranks, before you clip gradients or look at them: until
        then `p.grad` is this rank's own, and what is written to it is lost."""
        self._start()
        if self._reducer is not None:
            self._reducer.synchronize()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which step() does not wait for gradients, as synchronize() did."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add their gradients up before they are combined."""
        _check_passes(passes)
        self._options["passes"] = passes
        if self._reducer is not None:
            self._reducer.passes = passes

    @_disable_dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the gradients and lets the optimizer step. With a closure, gradients are waited
        for whenever it has been called."""
        step = cast(Any, super()).step
        if closure is not None:
            return step(self._synchronizing(closure))
        self._before_step()
        return step()

    def _catch_up(self) -> None:
        """Waits for what came since synchronize() was called."""
        self._start()
        if self._reducer is not None:
            self._reducer.check_process()
        if self._should_synchronize and not (
            self._synchronized and (self._reducer is None or not self._reducer.fresh)
        ):
            self.synchronize()

    def _before_step(self) -> None:
        self._catch_up()
        self._synchronized = False

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def synchronized() -> Any:
            loss = closure()
            self._before_step()
            # What decides how an optimizer goes on has to be the same on all ranks.
            if self._reducer is not None and isinstance(self, torch.optim.LBFGS):
                loss = _operations.allreduce(
                    torch.as_tensor(loss).detach(),
                    name=f"{self._prefix}loss",
                    process_set=self._process_set,
                )
            return loss

        return synchronized

    def remove_hooks(self) -> None:
        """Gradients are left alone from now on: this is a plain optimizer then."""
        if self._reducer is not None:
            self._reducer.remove_hooks()
        self._reducer = None
        self._is_shared = False
        _grad_scaler.leave(self)

    @_disable_dynamo
    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. Between the first backward() of a step and step() or synchronize() gradients
        are on their way, or wait for those of the next pass: AssertionError."""
        self._start()
        if self._reducer is not None and self._reducer.fresh:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(): gradients are being reduced, or wait "
                "for the next of backward_passes_per_step"
            )
        cast(Any, super()).zero_grad(set_to_none=set_to_none)
        self._synchronized = False
        if self._reducer is not None:
            self._reducer.thaw()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As torch's. Gradients of an unfinished step are not waited for any more."""
        if self._reducer is not None:
            self._reducer.discard()
        self._synchronized = False
        cast(Any, super()).load_state_dict(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's: all ranks add the same one. Its gradients are combined, too."""
        cast(Any, super()).add_param_group(param_group)
        groups: list[dict[str, Any]] = self.param_groups  # type: ignore[attr-defined]
        added = {p: f"group{len(groups) - 1}.{i}" for i, p in enumerate(groups[-1]["params"])}
        self._parameter_names.update(added)
        if self._reducer is not None:
            self._reducer.add((name, p) for p, name in added.items())


class _DistributedDeltas(_Distributed):
    """With op=Adasum: every rank steps by its own gradients, and the steps are combined."""

    def _reduce(self, prefix: str) -> None:
        """There is no reducer: step() combines."""

    def synchronize(self) -> None:
        """Does nothing: what is combined is there after step() only."""

    def skip_synchronize(self) -> Any:
        """Not here, as step() combines steps: AssertionError."""
        raise AssertionError("skip_synchronize: with op=Adasum it is in step() that ranks combine")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's."""
        super(_Distributed, self).zero_grad(set_to_none=set_to_none)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients add up until step(), in as many passes as there are."""
        _check_passes(passes)

    @_disable_dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps, and combines what all ranks have changed."""
        self._start()
        names = self._parameter_names
        with torch.no_grad():
            before = {p: p.detach().clone() for p in names if p.requires_grad}
        loss = super(_Distributed, self).step(closure)  # type: ignore[misc]
        if not self._is_shared:
            return loss
        with torch.no_grad():
            handles = []
            for p, start in before.items():
                handles.append(
                    _operations.allreduce_async_(
                        p.detach() - start,
                        name=f"{self._prefix}step {names[p]}",
                        op=ReduceOp.ADASUM,
                        process_set=self._process_set,
                    )
                )
            for (p, start), handle in zip(before.items(), handles, strict=True):
                p.copy_(start + handle.wait())
        return loss

    def _agree(self, found: _grad_scaler.Found) -> None:
        """What a GradScaler has found in this rank's gradients counts on all ranks."""
        _grad_scaler.agree(found, f"{self._prefix}found inf", self._process_set)


_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()


def _after_regroup(_: int) -> None:
    """The next step() waits for gradients. (The reducers drop those of an unfinished one.)"""
    for optimizer in list(_optimizers):
        optimizer._synchronized = False


_context.after_regroup.append(_after_regroup)


# What an optimizer of the wrapped class does not have: ours, and the step that a scheduler has put
# in place of the class's.
_OWN = frozenset(_Distributed.__annotations__) | {"_rueda_unscale", "step"}


def _wrapped(optimizer: torch.optim.Optimizer, cls: type) -> Any:
    """One of `cls` with the same state and parameter groups, which schedulers may have, too."""
    wrapped: Any = object.__new__(cls)
    wrapped.__dict__.update({k: v for k, v in vars(optimizer).items() if k not in _OWN})
    wrapped._prefix = None
    wrapped._reducer = None
    wrapped._should_synchronize = True
    wrapped._synchronized = False
    _optimizers.add(wrapped)
    return wrapped


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _check_passes(passes: int) -> None:
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes!r}, and must be at least 1")


def prefix_of(what: str) -> str:
    """Of names, for the next thing of this kind: the same on all ranks, and not that of one which
    is left from before another init()."""
    generation = _context.generation()
    later = f" of membership {generation}" if generation > 1 else ""
    return f"{what} {_context.number(what)}{later}: "


def names_of(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Any]] | None
) -> list[tuple[str, Any]]:
    """Every parameter of the optimizer with its name, once. Raises a ValueError for names that
    don't fit."""
    parameters: dict[torch.Tensor, None] = {}
    for group in optimizer.param_groups:
        parameters.update(dict.fromkeys(group["params"]))
    if named_parameters is None:
        return [
            (f"group{g}.{i}", p)
            for g, group in enumerate(optimizer.param_groups)
            for i, p in enumerate(group["params"])
        ]
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError(
            "named_parameters should be pairs of names and parameters, as "
            "model.named_parameters() gives them"
        )
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"named_parameters has two parameters of one name: {', '.join(twice)}")
    by_parameter = {p: name for name, p in reversed(pairs)}
    missing = sum(p not in by_parameter for p in parameters)
    if missing > 0:
        raise ValueError(
            f"named_parameters was given, but {missing} of the optimizer's {len(parameters)} "
            "parameters are not among them: give model.named_parameters() of the whole model, or "
            "leave named_parameters out"
        )
    return [(by_parameter[p], p) for p in parameters]


def _groups_of(groups: Any, num_groups: int, named: Sequence[tuple[str, Any]]) -> list[list[Any]]:
    """Gradients that are combined together or not at all."""
    if groups is None and num_groups:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=4)
        groups = num_groups
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups == 0):
        return []
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 0:
            raise ValueError(f"groups is {groups}, and must be at least 0")
        parameters = [p for _, p in named if p.requires_grad]
        count = max(min(groups, len(parameters)), 1)
        share, more = divmod(len(parameters), count)
        ends = list(itertools.accumulate(share + (i < more) for i in range(count)))
        return [parameters[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    if not isinstance(groups, list) or any(not isinstance(group, list) for group in groups):
        raise ValueError("groups should be a number or a list of lists of parameters")
    known = {p for _, p in named}
    seen: set[Any] = set()
    for group in groups:
        for p in group:
            if not isinstance(p, torch.Tensor) or p not in known:
                raise ValueError("groups has a tensor that is not a parameter of the optimizer")
            if p in seen:
                raise ValueError("groups has a parameter twice")
            seen.add(p)
    return groups


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Any]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    gradients_in_arena: bool = True,
) -> Any:
    """An optimizer of the same class, and with the same state, whose step() waits until the
    gradients of all ranks have been combined. They are on their way while the backward pass goes
    on.

    All ranks make it alike, over the same parameters, and step equally often. A parameter that a
    rank did not use counts as zeros there; one that no rank used has no gradient, as in one
    process.

    A deep copy, of the model too, is a DistributedOptimizer as well; what is pickled is an
    optimizer of the wrapped class. copy.copy raises a TypeError.

    Args:
        optimizer: any of torch's, or of a class derived from it. It is not to be used any more.
        named_parameters: `model.named_parameters()`. Names match gradients across the ranks, and
            are what errors and the timeline say.
        compression: one of `Compression`, the name of one of the library's ("int8", "topk:0.01",
            ...), or a `Compressor` of your own.
        backward_passes_per_step: gradients of so many backward passes are added up before they are
            combined.
        op: `Average`, `Sum`, `Min`, `Max`, `Product`; with `Adasum` the steps are combined that
            each rank makes by its own gradients.
        gradient_predivide_factor: with op=Average, gradients are divided by this before they are
            added up, and by the number of ranks over this afterwards.
        num_groups: deprecated; use `groups`.
        groups: a number, or lists of parameters: the gradients of a group are combined together.
        sparse_as_dense: sparse gradients are dense on their way, and sparse again for the step;
            else they are gathered.
        process_set: the ranks that take part. On others it is the optimizer as it was.
        gradients_in_arena: on the CPU, gradients lie in memory that the ranks of the host share.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"a torch optimizer is wanted, not a {type(optimizer).__name__}")
    if isinstance(optimizer, _Distributed):
        raise ValueError("this is a DistributedOptimizer already")
    _check_passes(backward_passes_per_step)
    check_op(op)
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {process_set!r}: a ProcessSet is wanted")
    _compression.check(compression)
    if gradient_predivide_factor <= 0:
        raise ValueError("gradient_predivide_factor must be above 0")
    if gradient_predivide_factor != 1.0 and op != ReduceOp.AVERAGE:
        raise ValueError("gradient_predivide_factor goes with op=Average only")
    if compression not in (None, Compression.none) and op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise ValueError("compression goes with op=Average and op=Sum only")
    named = names_of(optimizer, named_parameters)
    together = _groups_of(groups, num_groups, named)
    # Elastic, one rank may get company.
    is_shared = process_set.included() and (process_set.size() > 1 or _context.is_elastic())
    base = _DistributedDeltas if op == ReduceOp.ADASUM else _Distributed
    own = type(optimizer)
    cls = type(own.__name__, (base, own), {"__module__": own.__module__})
    wrapped: Any = _wrapped(optimizer, cls)
    factor = gradient_predivide_factor if op == ReduceOp.AVERAGE else 1.0
    wrapped._parameter_names = {p: name for name, p in named}
    wrapped._process_set = process_set
    wrapped._is_shared = is_shared
    wrapped._options = {
        "op": op,
        "prescale": 1.0 / factor,
        "postscale": factor,
        "compression": None if compression is Compression.none else compression,
        "passes": backward_passes_per_step,
        "groups": together,
        "sparse_as_dense": sparse_as_dense,
        "in_arena": gradients_in_arena,
    }
    wrapped._what = "optimizer"
    wrapped._start()
    wrapped._what = f"{wrapped._prefix.rstrip(': ')} copy"
    wrapped._follow_scaler()
    optimizer._opt_called = True  # type: ignore[attr-defined]  # or a scheduler of it warns
    return wrapped
