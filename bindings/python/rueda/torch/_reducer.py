"""The reduction of gradients while the backward pass goes on.

Every parameter has a *slot*. Small gradients share a *bucket*: one tensor of up to 4 MiB, of which
each has a part, and which is reduced as one operation when the last of them is there. Larger ones
have a bucket of their own. On the CPU buckets lie in memory that the ranks of the host share, so
that each byte is read and written once.

What a backward pass has left in `p.grad` is copied into the bucket, and stays the user's until
`synchronize`, which lets `p.grad` be the bucket's part. So nobody can write to what is under way,
whose result would then differ by rank. A bucket that the user still has tensors of is not written
to either: it gets other memory.

A forked child, such as a data loader's worker, inherits neither the buckets' memory nor a part in
the reduction. Its backward passes leave gradients alone, and what it finds in `p.grad` says why it
can't be used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.utils.checkpoint import CheckpointFunction

from rueda import core, errors
from rueda.core import _context
from rueda.core import _library as c
from rueda.core._memory import Arena, is_inherited
from rueda.core._operations import Handle, Operation, Output, ReduceOp, reduction
from rueda.core._process_sets import ProcessSet
from rueda.torch import _compression
from rueda.torch._operations import SparseHandle, in_place, sparse_allreduce_async, submit_in_place

# As the C++ adapter has them (bindings/torch/distributed_optimizer.cc).
_SHARED_BYTES = 128 << 10  # gradients up to so many share a bucket
_BUCKET_BYTES = 4 << 20
_BUCKET_SLOTS = 256
_ARENA_BYTES = 32 << 10  # less is copied in one go, wherever it lies
_ALIGNMENT = 64

# These keep what they know of a tensor by its shape: each gradient goes by itself.
_BY_SHAPE = ("powersgd", "topk", "1bit", "auto")


# What a rank has of a gradient.
_NONE, _DENSE, _SPARSE = range(3)


class _InheritedGradient(torch.Tensor):
    """A gradient of the process that this one was forked from. It has no memory here: every use of
    it raises a RuntimeError."""

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        """Raises."""
        raise RuntimeError(
            "this gradient lies in memory that ranks share, which a forked process does not "
            "inherit: clone it before the fork, or use it in the parent. After p.grad = None this "
            "process can compute its own"
        )

    __torch_dispatch__ = __torch_function__  # type: ignore[assignment]  # for C++, too


# Hooks keep them, as long as their parameters live. (Parameters that have weak references can't be
# swapped, as torch does when it converts some models.)
_reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child. Copies nothing."""
    for p in [slot.parameter for reducer in _reducers for slot in reducer._slots]:
        grad = p.grad
        if type(grad) is not torch.Tensor or grad.layout is not torch.strided:
            continue
        if is_inherited(grad.data_ptr()):
            p.grad = torch.Tensor._make_wrapper_subclass(
                _InheritedGradient,
                grad.shape,
                strides=grad.stride(),
                dtype=grad.dtype,
                device=grad.device,
            )
            grad.__class__ = _InheritedGradient  # for whoever holds it


os.register_at_fork(after_in_child=_after_fork)


def _after_regroup(context: int) -> None:
    for reducer in list(_reducers):
        if reducer.context == context:
            reducer.begin_anew()


_context.after_regroup.append(_after_regroup)


class _Slot:
    """A parameter."""

    def __init__(self, name: str, parameter: torch.nn.Parameter) -> None:
        self.name = name
        self.parameter = parameter
        self.bucket: _Bucket = None  # type: ignore[assignment]
        self.view: torch.Tensor = None  # type: ignore[assignment]  # of the bucket's memory
        self.passes = 0  # since the last synchronize
        self.taken = False  # into the bucket
        self.kind = _NONE
        self.gradient: torch.Tensor | None = None  # that was taken
        self.version: int | None = None  # of that; None: it says nothing
        self.sparse_dim = 1  # of a sparse gradient: rows
        self.sparse: SparseHandle | None = None

    def fits(self) -> bool:
        """Whether the parameter is still of the type and shape, and where, its view is made for."""
        p, view = self.parameter, self.view
        return p.dtype is view.dtype and p.shape == view.shape and p.device == view.device


class _Memory:
    """Where the gradients of a bucket are reduced."""

    def __init__(self) -> None:
        self.flats: list[torch.Tensor] = []  # one a device and type
        self.views: dict[_Slot, torch.Tensor] = {}  # parts of them
        self._storages: list[torch.UntypedStorage] = []

    def add(self, flat: torch.Tensor, slots: Sequence[_Slot]) -> None:
        """`flat` is for the gradients of these."""
        begin = 0
        for slot in slots:
            p = slot.parameter
            part = flat[begin : begin + p.numel()]
            is_dense = _is_dense(p)
            self.views[slot] = (
                part.as_strided(p.shape, p.stride()) if is_dense else part.view(p.shape)
            )
            begin += p.numel()
        self.flats.append(flat)
        self._storages.append(flat.untyped_storage())

    def is_free(self) -> bool:
        """Whether nobody else has a tensor in it, be it a `p.grad` or a view of one."""
        count = torch._C._storage_Use_Count
        used = sum(count(storage._cdata) for storage in self._storages)
        return used == len(self.views) + 2 * len(self.flats)


class _Bucket:
    """Gradients that are reduced as one."""

    def __init__(self, name: str, slots: list[_Slot]) -> None:
        self.name = name
        self.slots = slots
        self.memories: list[_Memory] = []  # the last one is in use
        self.ready = 0
        self.handles: list[Handle[Any]] = []
        self.sent: list[tuple[torch.Tensor, Any]] = []  # what the user's own compression has made


def _in_arena(sizes: Sequence[int]) -> list[Any] | None:
    """Shared memory for that many bytes each; None: there is none."""
    try:
        memory = Arena(sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)).memory()
    except errors.RuedaError:
        return None
    view = memoryview(memory).cast("B")
    parts, begin = [], 0
    for size in sizes:
        parts.append(view[begin : begin + size])
        begin += -(-size // _ALIGNMENT) * _ALIGNMENT
    return parts


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie without gaps, in whatever order."""
    pairs = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1)
    expected = 1
    for stride, n in pairs:
        if stride != expected:
            return False
        expected *= n
    return True


def _version(gradient: torch.Tensor, slot: _Slot) -> int | None:
    """How often it was written to. None if tensors beside it may count with it, as those do that
    a backward pass has cut out of a larger one."""
    if gradient.untyped_storage().nbytes() == gradient.nbytes or _is_in_bucket(gradient, slot):
        return gradient._version
    return None


def _is_in_bucket(gradient: torch.Tensor, slot: _Slot) -> bool:
    """Of a dense one: whether its memory is the bucket's."""
    ours = (memory.views[slot].data_ptr() for memory in slot.bucket.memories)
    return gradient.data_ptr() in ours


def _stack_level() -> int:
    """For a warning by the caller: of the program's own code."""
    level, frame = 1, inspect.currentframe().f_back  # type: ignore[union-attr]
    while frame is not None and frame.f_globals["__name__"].split(".")[0] in ("rueda", "torch"):
        level, frame = level + 1, frame.f_back
    return level


def _in_checkpoint() -> bool:
    """Whether this thread computes gradients of a reentrant checkpoint's segment."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not CheckpointFunction.backward.__code__:
        frame = frame.f_back
    return frame is not None


class Reducer:
    """Hooks on parameters, and what they submit. Hooks may run on several threads at once, as
    autograd has one a device; all else is called by one thread."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        prefix: str,
        op: int,
        prescale: float,
        postscale: float,
        compression: Any,
        passes: int,
        groups: Sequence[Sequence[torch.nn.Parameter]],
        sparse_as_dense: bool,
        in_arena: bool,
        process_set: ProcessSet,
    ) -> None:
        self._prefix = prefix
        self._op = op
        self._scale = (prescale, postscale)
        self._compression = compression
        self._is_own = _compression.is_own(compression)
        self._sparse_as_dense = sparse_as_dense
        self._in_arena = in_arena
        self._process_set = process_set
        self.passes = passes
        self.context = _context.current()
        self._pid = os.getpid()
        self._slots: list[_Slot] = []
        _reducers.add(self)
        self._lock = threading.RLock()
        self._buckets: list[_Bucket] = []
        self._hooks: list[Any] = []
        self._digest = b""  # of the parameters, and its complement
        self._note = bytearray()  # the digest, and which gradients some rank has
        self._noted: Handle[torch.Tensor] | None = None
        self._ready = 0  # gradients, since the last synchronize
        self._fresh = False  # something came since then
        self._unfinished = False  # some `p.grad` may be of a step that has failed
        self._warned = False
        self._frozen: list[tuple[str, torch.nn.Parameter]] = []
        self.add(parameters, groups)

    @property
    def is_inherited(self) -> bool:
        """Whether it is the reducer of the process that this one was forked from."""
        return self._pid != os.getpid()

    def check_process(self) -> None:
        """Raises in a forked child."""
        if self.is_inherited:
            raise errors.RuedaError(
                "DistributedOptimizer: this process was forked from a rank, and its gradients are "
                "not combined with the other ranks'. Step in the parent, or use an optimizer of "
                "torch.optim here",
                errors.Status.FAILED_PRECONDITION,
            )

    def thaw(self) -> None:
        """Adds what has been unfrozen since. Between two steps, on all ranks."""
        if self.is_inherited:
            return
        thawed = [(name, p) for name, p in self._frozen if p.requires_grad]
        if thawed:
            self._frozen = [(name, p) for name, p in self._frozen if not p.requires_grad]
            self.add(thawed)

    def _check_frozen(self) -> None:
        for name, p in self._frozen:
            if p.requires_grad and p.grad is not None:
                raise ValueError(
                    f"the parameter {name!r} has been unfrozen, and its gradient is this rank's "
                    "own: call optimizer.zero_grad() after requires_grad_(True), on all ranks, and "
                    "gradients are combined from the next backward() on"
                )

    def add(
        self,
        parameters: Iterable[tuple[str, torch.nn.Parameter]],
        groups: Sequence[Sequence[torch.nn.Parameter]] = (),
    ) -> None:
        """More parameters, the same on all ranks. Of those that are frozen there are no
        gradients, until `thaw` finds that this has changed."""
        parameters = list(parameters)
        self._frozen += [(name, p) for name, p in parameters if not p.requires_grad]
        slots = [_Slot(name, p) for name, p in parameters if p.requires_grad]
        group_of = {id(p): i for i, group in enumerate(groups) for p in group}
        grouped: list[list[_Slot]] = [[] for _ in groups]
        # Backward passes come by the last parameters first, mostly.
        open_: dict[tuple[torch.dtype, torch.device], tuple[list[_Slot], int]] = {}
        plans: list[list[_Slot]] = []
        for slot in reversed(slots):
            p = slot.parameter
            if id(p) in group_of:
                grouped[group_of[id(p)]].append(slot)
                continue
            nbytes = p.numel() * p.element_size()
            if nbytes > _SHARED_BYTES or self._goes_alone():
                plans.append([slot])
                continue
            plan, size = open_.get((p.dtype, p.device), ([], 0))
            if not plan or size + nbytes > _BUCKET_BYTES or len(plan) == _BUCKET_SLOTS:
                plan, size = [], 0
                plans.append(plan)
            plan.append(slot)
            open_[(p.dtype, p.device)] = (plan, size + nbytes)
        first = len(self._buckets)
        for number, plan in enumerate([*plans, *filter(None, grouped)], first):
            name = f"gradient {plan[0].name}" if len(plan) == 1 else f"gradients {number}"
            self._buckets.append(_Bucket(f"{self._prefix}{name}", plan))
        self._allocate(self._buckets[first:])
        self._slots += slots
        for slot in slots:
            parameter: Any = slot.parameter
            hook = parameter.register_post_accumulate_grad_hook(
                functools.partial(self._on_gradient, slot)
            )
            self._hooks.append(hook)
        self._describe()

    def _describe(self) -> None:
        digest = hashlib.sha256(repr(self._description()).encode()).digest()
        self._digest = digest + bytes(255 - byte for byte in digest)

    def _goes_alone(self) -> bool:
        if self._is_own:
            return True
        name = getattr(self._compression, "compressor", self._compression)
        return isinstance(name, str) and re.split("[:,]", name)[0] in _BY_SHAPE

    @torch.no_grad()
    def _allocate(self, buckets: Sequence[_Bucket]) -> None:
        """Gives them other memory. What they had before last is given up."""
        plans: list[tuple[_Bucket, list[_Slot], int]] = []
        for bucket in buckets:
            bucket.memories = [*bucket.memories[-1:], _Memory()]
            kinds: dict[tuple[torch.device, torch.dtype], list[_Slot]] = {}
            for slot in bucket.slots:
                kinds.setdefault((slot.parameter.device, slot.parameter.dtype), []).append(slot)
            for slots in kinds.values():
                size = sum(s.parameter.numel() * s.parameter.element_size() for s in slots)
                plans.append((bucket, slots, size))
        shared = [
            i
            for i, (_, slots, size) in enumerate(plans)
            if self._in_arena and slots[0].parameter.is_cpu and size >= _ARENA_BYTES
        ]
        arena = _in_arena([plans[i][2] for i in shared]) if shared else None
        memory = dict(zip(shared, arena, strict=True)) if arena is not None else {}
        for i, (bucket, slots, size) in enumerate(plans):
            like = slots[0].parameter
            if i in memory:
                flat = torch.frombuffer(memory[i], dtype=torch.uint8).view(like.dtype)
            else:
                count = size // like.element_size()
                flat = torch.zeros(count, dtype=like.dtype, device=like.device)
            bucket.memories[-1].add(flat, slots)
        for bucket in buckets:
            self._use_last(bucket)

    def _begin(self, bucket: _Bucket) -> None:
        """A step's first gradient comes: the user may still have the last one's."""
        if bucket.memories[-1].is_free():
            return
        bucket.memories.reverse()
        if bucket.memories[-1].is_free():
            self._use_last(bucket)
        else:
            bucket.memories.reverse()
            self._allocate([bucket])

    @torch.no_grad()
    def _convert(self, bucket: _Bucket) -> None:
        """The program has converted the model since: on all ranks, which the digest will tell."""
        taken = [(slot, slot.view) for slot in bucket.slots if slot.taken and slot.fits()]
        bucket.memories.clear()
        self._allocate([bucket])
        for slot, view in taken:
            slot.view.copy_(view)
        self._describe()

    def _use_last(self, bucket: _Bucket) -> None:
        for slot, view in bucket.memories[-1].views.items():
            slot.bucket, slot.view = bucket, view

    # ---- as gradients come ----

    @_disable_dynamo
    def _on_gradient(self, slot: _Slot, _: torch.Tensor) -> None:
        if self.is_inherited:  # the lock, too, in whatever state
            return
        with self._lock:
            self._arrive(slot)

    def _arrive(self, slot: _Slot) -> None:
        self._fresh = True
        slot.passes += 1
        if slot.taken:
            raise self._too_often(slot)
        if slot.passes >= self.passes:
            self._take(slot)

    def _too_often(self, slot: _Slot) -> AssertionError:
        text = (
            f"DistributedOptimizer: the gradient of {slot.name!r} was computed more than "
            f"backward_passes_per_step ({self.passes}) times before step() or synchronize(). To "
            "add gradients up over several passes increase backward_passes_per_step."
        )
        if _in_checkpoint():
            text += (
                " A weight that several reentrant checkpoints use has a gradient from each of "
                "them: use checkpoint(..., use_reentrant=False), or multiply "
                "backward_passes_per_step by the number of checkpoints that use it."
            )
        return AssertionError(text)

    def _take(self, slot: _Slot) -> None:
        """Its gradient goes into the bucket, which goes on its way when it is complete."""
        slot.taken = True
        bucket = slot.bucket
        if bucket.ready == 0:
            self._begin(bucket)
        if not slot.fits():
            self._convert(bucket)
        bucket.ready += 1
        self._ready += 1
        gradient = slot.gradient = slot.parameter.grad
        with torch.no_grad():
            if gradient is None:
                slot.kind = _NONE
                slot.view.zero_()
            elif not gradient.is_sparse:
                slot.kind = _DENSE
                slot.version = _version(gradient, slot)
                slot.view.copy_(gradient)
            else:
                slot.kind = _SPARSE
                slot.version = gradient._version
                slot.sparse_dim = gradient.sparse_dim()
                if self._sparse_as_dense:
                    slot.view.copy_(gradient.to_dense())
                else:
                    slot.view.zero_()
                    self._submit_sparse(slot, gradient.clone())
        if bucket.ready == len(bucket.slots):
            self._submit(bucket)
        if self._ready == len(self._slots):  # now, so that ranks may step in whatever order
            self._submit_note()

    def _no_rows(self, slot: _Slot) -> torch.Tensor:
        p = slot.parameter
        return torch.sparse_coo_tensor(
            torch.empty((1, 0), dtype=torch.int64, device=p.device),
            torch.empty((0, *p.shape[1:]), dtype=p.dtype, device=p.device),
            p.shape,
            is_coalesced=True,
        )

    def _submit_sparse(self, slot: _Slot, gradient: torch.Tensor) -> None:
        if self._op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            raise errors.UnsupportedError(
                f"{slot.name} has a sparse gradient: op=Average or op=Sum, or sparse_as_dense=True",
                errors.Status.UNIMPLEMENTED,
            )
        name = f"{self._prefix}sparse gradient {slot.name}"
        slot.sparse = sparse_allreduce_async(gradient, name, self._op, self._process_set)

    def _submit(self, bucket: _Bucket) -> None:
        if self._is_own:
            bucket.sent = [self._compression.compress(slot.view) for slot in bucket.slots]
            self._send(bucket, bucket.name, [sent for sent, _ in bucket.sent], None)
            return
        flats = bucket.memories[-1].flats
        if len(bucket.slots) == 1:  # with its shape, which errors name and PowerSGD needs
            flats = [flats[0].view(bucket.slots[0].parameter.shape)]
        kinds: dict[str | None, list[torch.Tensor]] = {}  # not every compressor takes every type
        for flat in flats:
            kinds.setdefault(self._compressor(flat.dtype), []).append(flat)
        for number, (compressor, own) in enumerate(kinds.items()):
            name = bucket.name if number == 0 else f"{bucket.name} {number}"
            self._send(bucket, name, own, compressor)

    def _compressor(self, dtype: torch.dtype) -> str | None:
        if self._op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            return None
        return _compression.library_compressor(self._compression, dtype)

    def _send(
        self, bucket: _Bucket, name: str, tensors: list[torch.Tensor], compressor: str | None
    ) -> None:
        operation = reduction(
            c.ALLREDUCE, Output.SAME, name, self._op, self._scale, self._process_set, compressor
        )
        bucket.handles.append(
            submit_in_place(operation, tensors[0])
            if len(tensors) == 1
            else in_place(operation, tensors, True)
        )

    # ---- the end of a step ----

    @property
    def fresh(self) -> bool:
        """Whether gradients came since the last synchronize."""
        return self._fresh and not self.is_inherited

    @_disable_dynamo
    def synchronize(self) -> None:
        """Submits what has not come by itself (missing gradients count as zeros), and waits for
        everything. A gradient that no rank has is None again. Raises the first error when all has
        ended."""
        self.check_process()
        failed: list[Exception] = []

        def attempt(function: Callable[..., object], *arguments: Any) -> None:
            try:
                function(*arguments)
            except Exception as error:  # compressions of the user's own raise what they like
                failed.append(error)

        attempt(self._check_frozen)
        try:
            with self._lock:
                self._warn_of_lost_writes()
                for slot in self._slots:
                    # What has come, but in fewer passes than expected, counts as it is.
                    if not slot.taken:
                        attempt(self._take, slot)
                for bucket in self._buckets:
                    if not bucket.handles:  # that failed
                        attempt(self._submit, bucket)
                if self._noted is None and self._slots:
                    attempt(self._submit_note)
            is_known = self._noted is not None
            try:
                self._wait_for_note()
            except errors.MismatchError:
                raise  # not all may have what is under way here
            except errors.RuedaError as error:
                failed.append(error)
                is_known = False
            dense, sparse = self._dense_and_sparse()
            if is_known and any(sparse) and not self._sparse_as_dense:
                for slot, is_sparse in zip(self._slots, sparse, strict=True):
                    if is_sparse and slot.sparse is None:
                        attempt(self._submit_sparse, slot, self._no_rows(slot))
            for bucket in self._buckets:
                attempt(self._wait_bucket, bucket)
            if is_known:
                for slot, is_dense, is_sparse in zip(self._slots, dense, sparse, strict=True):
                    attempt(self._settle, slot, is_dense, is_sparse)
            self._unfinished = bool(failed)
        except BaseException:
            self._unfinished = True
            raise
        finally:
            self._forget()
        if failed:
            raise failed[0]

    def begin_anew(self) -> None:
        """In another membership, where nothing is under way: drops an unfinished step, whose
        gradients the next backward pass would add to."""
        if self.is_inherited:
            return
        if self._fresh or self._unfinished:
            for slot in self._slots:
                slot.parameter.grad = None
        self._unfinished = False
        self._forget()

    def discard(self) -> None:
        """As if no gradients had come since the last synchronize; what is under way ends first."""
        if self.is_inherited:
            return
        self._unfinished |= self._fresh
        if any(bucket.handles for bucket in self._buckets) or any(s.sparse for s in self._slots):
            with contextlib.suppress(Exception):  # which is nothing to those who begin anew
                self.synchronize()
        self._forget()

    def _forget(self) -> None:
        for bucket in self._buckets:
            bucket.ready, bucket.handles, bucket.sent = 0, [], []
        for slot in self._slots:
            slot.passes, slot.taken, slot.sparse, slot.gradient = 0, False, None, None
        self._noted = None
        self._ready = 0
        self._fresh = False

    def _submit_note(self) -> None:
        """Which gradients this rank has, and of what kind: one that nobody has is none, as in one
        process. And what parameters; with every step, as this may be the first of another rank."""
        dense = bytes(slot.kind == _DENSE for slot in self._slots)
        sparse = bytes(slot.kind == _SPARSE for slot in self._slots)
        self._note = bytearray(self._digest + dense + sparse)
        operation = Operation(
            c.ALLREDUCE, Output.SAME, f"{self._prefix}parameters", self._process_set, ReduceOp.MAX
        )
        self._noted = operation.submit(torch.frombuffer(self._note, dtype=torch.uint8))

    def _wait_for_note(self) -> None:
        """And checks that all ranks have the same parameters, in the same order."""
        if self._noted is None:
            return
        try:
            self._noted.wait()
        except errors.MismatchError as error:  # not as many
            raise self._different() from error
        # Both the largest bytes and the complements of the smallest are this rank's.
        if self._note[: len(self._digest)] != self._digest:
            raise self._different()

    def _dense_and_sparse(self) -> tuple[bytearray, bytearray]:
        """By slot: whether some rank has a dense gradient, and whether a sparse one."""
        begin = len(self._digest)
        middle = begin + len(self._slots)
        return self._note[begin:middle], self._note[middle:]

    def _different(self) -> Exception:
        name = f"{self._prefix}parameters by name"
        own = core.rank(), self._description()
        first, *others = core.allgather_object(own, name, self._process_set)
        other = next(each for each in others if each[1] != first[1])
        text = _difference(*first, *other)
        return errors.MismatchError(
            f"DistributedOptimizer: the ranks have different parameters: {text}",
            errors.Status.INVALID_ARGUMENT,
        )

    def _description(self) -> list[tuple[str, str, tuple[int, ...], tuple[int, ...]]]:
        return [
            (slot.name, str(slot.parameter.dtype), tuple(slot.parameter.shape), slot.view.stride())
            for slot in self._slots
        ]

    def _wait_bucket(self, bucket: _Bucket) -> None:
        first: Exception | None = None
        for handle in bucket.handles:
            try:
                handle.wait()
            except Exception as error:
                first = first or error
        if first is not None:
            raise first
        with torch.no_grad():
            for slot, (result, context) in zip(bucket.slots, bucket.sent, strict=False):
                slot.view.copy_(self._compression.decompress(result, context))

    @torch.no_grad()
    def _settle(self, slot: _Slot, is_dense: int, is_sparse: int) -> None:
        """The gradient is what all ranks have together: the sum if some have sparse ones, and
        others dense ones."""
        p = slot.parameter
        if is_sparse and not self._sparse_as_dense:
            if slot.sparse is None:
                return
            total = slot.sparse.wait()
            if is_dense:
                slot.view.add_(total)
            else:
                p.grad = total
                return
        if is_dense:
            p.grad = slot.view.data  # with a version count of its own
        else:
            p.grad = slot.view.to_sparse(slot.sparse_dim) if is_sparse else None

    def _warn_of_lost_writes(self) -> None:
        """Once, if it is certain that a gradient has been changed which was on its way already."""
        if self._warned:
            return
        for slot in self._slots:
            if not slot.taken or slot.gradient is None:
                continue
            now = slot.parameter.grad
            if now is slot.gradient and slot.version in (None, now._version):
                continue
            self._warned = True
            warnings.warn(
                f"the gradient of {slot.name!r} was changed between backward() and step(), and "
                "this change is lost: gradients are on their way to the other ranks by then. To "
                "clip or change them, call optimizer.synchronize() first, on all ranks",
                stacklevel=_stack_level(),
            )
            return

    def remove_hooks(self) -> None:
        """Gradients are left alone from now on, and get memory of their own."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self.is_inherited:
            return
        for slot in self._slots:
            grad = slot.parameter.grad
            if grad is None or grad.layout is not torch.strided:
                continue
            if _is_in_bucket(grad, slot):
                slot.parameter.grad = grad.clone()


def _difference(rank: int, ours: list[Any], other_rank: int, others: list[Any]) -> str:
    for mine, other in zip(ours, others, strict=False):
        if mine != other:
            return f"rank {rank} has {mine} where rank {other_rank} has {other}"
    return f"rank {rank} has {len(ours)} and rank {other_rank} {len(others)}"
