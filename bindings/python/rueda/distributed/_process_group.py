"""torch.distributed's ProcessGroup over a context."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rueda import errors
from rueda.core import _context
from rueda.core import _library as c
from rueda.core._operations import Handle, Operation, Output, ReduceOp, received_splits
from rueda.distributed import _meeting
from rueda.distributed._any_source import AnySourceWork, Sent, Wanted, left_key
from rueda.distributed._work import Calls, RuedaWork, RuedaWorks

lib = c.lib
Tensor = torch.Tensor

_OPS = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.AVERAGE,
    dist.ReduceOp.PRODUCT: ReduceOp.PRODUCT,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
    dist.ReduceOp.BAND: ReduceOp.BAND,
    dist.ReduceOp.BOR: ReduceOp.BOR,
    dist.ReduceOp.BXOR: ReduceOp.BXOR,
}
_groups: weakref.WeakSet[RuedaProcessGroup] = weakref.WeakSet()


def _reduce_op(given: Any) -> ReduceOp:
    for theirs, ours in _OPS.items():
        if given == theirs:
            return ours
    raise errors.UnsupportedError(
        f"the reduce operation {given} is not there: sums, averages, products, minima, maxima and "
        "bitwise operations are",
        errors.Status.UNIMPLEMENTED,
    )


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return _flat(tensors[0]) if len(tensors) == 1 else torch.cat([_flat(t) for t in tensors])


def _sizes(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def _expect(what: str, *expected: list[int]) -> Callable[[Handle[Any]], None]:
    """Looks how many elements each rank has sent, of each tensor of a group."""

    def look(ended: Handle[Any]) -> None:
        for index, sizes in enumerate(expected):
            received = received_splits(ended, index)
            if received != sizes:
                raise ValueError(
                    f"{what}: {received} elements have come from the ranks, and {sizes} were "
                    "expected"
                )

    return look


def _deal_out(whole: Tensor, outputs: Sequence[Tensor]) -> None:
    """The numbers of `whole`, one tensor after another."""
    sizes = _sizes(outputs)
    if sum(sizes) != whole.numel():
        raise ValueError(
            f"the outputs have {sum(sizes)} elements, and {whole.numel()} have arrived"
        )
    with torch.no_grad():
        for part, output in zip(torch.split(whole, sizes), outputs, strict=True):
            output.copy_(part.view(output.shape))


def _check_tag(tag: int) -> None:
    if not isinstance(tag, int):
        raise TypeError(f"tag is {tag!r}: a whole number is wanted")
    if tag < 0:
        raise ValueError(f"tag is {tag}: it must not be negative")


def _put_back(written: list[Tensor], outputs: list[Tensor]) -> Callable[[Any], None] | None:
    """What was written instead of outputs that are not contiguous; None: nothing was."""
    copies = [(c, o) for c, o in zip(written, outputs, strict=True) if c is not o]
    if not copies:
        return None

    def put_back(_: Any) -> None:
        with torch.no_grad():
            for copy, output in copies:
                output.copy_(copy)

    return put_back


# Its signatures in torch are overloaded, and change from version to version.
_Base: Any = dist.ProcessGroup


class RuedaProcessGroup(_Base):  # type: ignore[misc]
    """The ranks of a process group of torch.distributed."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        group_name: str,
        global_ranks: list[int],
    ) -> None:
        super().__init__(rank, size)
        self._rank_, self._size_ = rank, size
        self._limit = timeout
        self._name_ = group_name
        self._global_ranks = global_ranks or list(range(size))
        met = _meeting.meet(store, rank, size, group_name)
        self._context: int | None = met.context
        self._store = met.store
        self._coalescing: list[RuedaWork] | None = None
        self._coalescing_thread = 0
        self._calls = Calls()
        # What is told of messages has a connection of its own: a thread that waits for a key holds
        # up all others with the same.
        self._own_store = functools.cache(getattr(met.store, "clone", lambda: met.store))
        self._sent = Sent(self._own_store, rank, self._calls)
        self._wanted: Wanted | None = None
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._letters: dict[tuple[int, int, int], int] = {}  # sent or received, by peer and tag
        self._monitored_barriers = 0
        _groups.add(self)

    # ---- what it is ----

    def getBackendName(self) -> str:
        """What `get_backend` says."""
        return "rueda"

    def name(self) -> str:
        """The same."""
        return "rueda"

    def getRank(self) -> int:
        """This rank in the group."""
        return self._rank_

    def getSize(self) -> int:
        """How many ranks it has."""
        return self._size_

    def rank(self) -> int:
        """This rank in the group."""
        return self._rank_

    def size(self) -> int:
        """How many ranks it has."""
        return self._size_

    @property
    def group_name(self) -> str:
        """By which torch finds it."""
        return self._name_

    @property
    def supports_splitting(self) -> bool:
        """Groups are made through the store instead."""
        return False

    # ---- the end ----

    def shutdown(self) -> None:
        """Leaves: waits for the others."""
        context = self._take_context()
        if context is not None:
            self._tell_that_it_leaves()
            lib.rueda_shutdown(context)
            self._destroy(context)

    def abort(self) -> None:
        """Ends everything that is under way, on all ranks."""
        self._abort(f"rank {self._rank_} aborted its process group")

    def _abort(self, reason: str) -> None:
        context = self._take_context()
        if context is not None:
            lib.rueda_abort(context, reason.encode(errors="replace"))
            self._destroy(context)

    def _begin_to_leave(self) -> Callable[[], None]:
        """As shutdown; what is returned waits for the others."""
        context = self._take_context()
        if context is None:
            return lambda: None
        self._tell_that_it_leaves()
        wait = _context.begin_shutdown(context)

        def end() -> None:
            wait()
            self._destroy(context)

        return end

    def _tell_that_it_leaves(self) -> None:
        with contextlib.suppress(Exception):  # the store may have gone before
            self._store.set(left_key(self._rank_), "")

    def _take_context(self) -> int | None:
        if os.getpid() != self._pid:  # a forked child has no part in it
            return None
        with self._lock:
            context, self._context = self._context, None
            self._wanted = None  # which holds the group, and so its store
        self._calls.close()
        return context

    def _destroy(self, context: int) -> None:
        if self._calls.settle():
            _context.destroy(context)

    # ---- how operations run ----

    def _destroyed(self) -> errors.NotInitializedError:
        return errors.NotInitializedError(
            f"the process group {self._name_} has been destroyed",
            errors.Status.FAILED_PRECONDITION,
        )

    def _request(
        self,
        kind: int,
        output: Output,
        *,
        op: int = c.NO_REDUCE_OP,
        root: int = -1,
        name: str | None = None,
        splits: Sequence[int] | None = None,
    ) -> Operation:
        if self._context is None:
            raise self._destroyed()
        return Operation(kind, output, name, op=op, root=root, splits=splits, context=self._context)

    def _run(
        self,
        request: Operation,
        tensors: Any,
        outputs: list[Tensor],
        options: Any = None,
        *,
        group: bool = False,
        before: Callable[[Handle[Any]], object] | None = None,
        finish: Callable[[Any], Any] | None = None,
    ) -> RuedaWork:
        """`outputs`: what the work's result is. `before`: looks at the handle when the operation
        has ended; then `finish` takes the library's result, also of a work that nobody waits
        for."""
        limit = getattr(options, "timeout", None)
        if limit is None or limit <= timedelta(0):
            limit = self._limit
        work = RuedaWork(outputs, min(limit, self._limit), self._calls)

        def submit(completion: c.Completion | None) -> Handle[Any]:
            handle: Handle[Any] = (
                request.submit_group(tensors, completion)
                if group
                else request.submit(tensors, completion)
            )
            if before is not None:
                handle.before(before)
            if finish is not None:
                handle.then(finish)
            return handle

        coalescing = self._coalescing if threading.get_ident() == self._coalescing_thread else None
        is_async = getattr(options, "asyncOp", True) or coalescing is not None
        work.start(submit, is_async and not (before is None and finish is None))
        if coalescing is not None:
            coalescing.append(work)
        return work

    def _in_place(
        self, request: Operation, tensors: list[Tensor], options: Any, group: bool
    ) -> RuedaWork:
        written = [t if t.is_contiguous() else t.detach().contiguous() for t in tensors]
        what: Any = written if group else written[0]
        finish = _put_back(written, tensors)
        return self._run(request, what, tensors, options, group=group, finish=finish)

    def _into(
        self,
        request: Operation,
        pairs: list[tuple[Tensor, Tensor]],
        options: Any,
        group: bool = False,
        in_place: bool = False,
    ) -> RuedaWork:
        """From inputs to outputs, of which those that are not contiguous get a copy. `in_place`:
        an input may be this rank's part of the output."""
        outputs = [output for _, output in pairs]
        written = [o if o.is_contiguous() else torch.empty_like(o).contiguous() for o in outputs]
        flat = [
            (self._apart(_flat(pair[0]).contiguous(), w, in_place), w.view(-1))
            for pair, w in zip(pairs, written, strict=True)
        ]
        what: Any = flat if group else flat[0]
        finish = _put_back(written, outputs)
        return self._run(request, what, outputs, options, group=group, finish=finish)

    def _apart(self, input: Tensor, output: Tensor, in_place: bool) -> Tensor:
        """The input, or a copy if it lies in the output, but for an allgather's own part."""
        begin, end = output.data_ptr(), output.data_ptr() + output.nbytes
        at = input.data_ptr()
        if at >= end or at + input.nbytes <= begin:
            return input
        return input if in_place and at == begin + self._rank_ * input.nbytes else input.clone()

    # ---- reductions ----

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> RuedaWork:
        """In place. Sparse COO tensors are added up, too."""
        op = _reduce_op(getattr(opts, "reduceOp", dist.ReduceOp.SUM))
        if tensors[0].layout is torch.sparse_coo:
            return self._sparse_allreduce(tensors[0], op, opts)
        request = self._request(c.ALLREDUCE, Output.SAME, op=op)
        return self._in_place(request, tensors, opts, group=len(tensors) > 1)

    def _sparse_allreduce(self, tensor: Tensor, op: ReduceOp, options: Any) -> RuedaWork:
        if op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
            raise errors.UnsupportedError(
                "sparse tensors are added up or averaged", errors.Status.UNIMPLEMENTED
            )
        whole = tensor.coalesce()
        request = self._request(c.ALLGATHER, Output.TAKEN)
        parts = [whole.indices().t().contiguous(), whole.values()]

        def put_in(gathered: list[Tensor]) -> None:
            values = gathered[1] / self._size_ if op == ReduceOp.AVERAGE else gathered[1]
            total = torch.sparse_coo_tensor(gathered[0].t(), values, tensor.shape)
            with torch.no_grad():
                tensor.copy_(total.coalesce())

        return self._run(request, parts, [tensor], options, group=True, finish=put_in)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> RuedaWork:
        """Several in place, together."""
        op = _reduce_op(getattr(opts, "reduceOp", dist.ReduceOp.SUM))
        request = self._request(c.ALLREDUCE, Output.SAME, op=op)
        return self._in_place(request, tensors, opts, group=True)

    def reduce(self, tensors: list[Tensor], opts: Any) -> RuedaWork:
        """In place at the root; the others' tensors stay as they are."""
        request = self._request(
            c.REDUCE, Output.SAME, op=_reduce_op(opts.reduceOp), root=opts.rootRank
        )
        return self._in_place(request, tensors, opts, group=False)

    def reduce_scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any = None
    ) -> RuedaWork:
        """Each rank's share of a list, a tensor for each."""
        output, inputs = output_tensors[0], input_tensors[0]
        op = _reduce_op(getattr(opts, "reduceOp", dist.ReduceOp.SUM))
        sizes = _sizes(inputs)
        if len(inputs) != self._size_:
            raise ValueError(f"reduce_scatter: {len(inputs)} tensors for {self._size_} ranks")
        if sizes[self._rank_] != output.numel():
            raise ValueError(
                f"reduce_scatter: the output has {output.numel()} elements, and this rank's share "
                f"{sizes[self._rank_]}"
            )
        if len(set(sizes)) == 1:
            request = self._request(c.REDUCESCATTER, Output.INTO, op=op)
            return self._into(request, [(_joined(inputs), output)], opts)
        # Shares of different sizes: what the others get is left.
        begin = sum(sizes[: self._rank_])
        request = self._request(c.ALLREDUCE, Output.NEW, op=op)
        return self._run(
            request,
            _joined(inputs),
            [output],
            opts,
            finish=lambda whole: _deal_out(whole[begin : begin + output.numel()], [output]),
        )

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> RuedaWork:
        """Each rank's share of one tensor: equal parts."""
        op = _reduce_op(getattr(opts, "reduceOp", dist.ReduceOp.SUM))
        if input.numel() != output.numel() * self._size_:
            raise ValueError(
                f"reduce_scatter: an input of {input.numel()} elements for {self._size_} outputs "
                f"of {output.numel()}"
            )
        request = self._request(c.REDUCESCATTER, Output.INTO, op=op)
        return self._into(request, [(input, output)], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> RuedaWork:
        """The same of several, together."""
        op = _reduce_op(getattr(opts, "reduceOp", dist.ReduceOp.SUM))
        request = self._request(c.REDUCESCATTER, Output.INTO, op=op)
        return self._into(request, list(zip(inputs, outputs, strict=True)), opts, group=True)

    # ---- moving ----

    def broadcast(self, tensors: list[Tensor], opts: Any) -> RuedaWork:
        """In place, from the root."""
        request = self._request(c.BROADCAST, Output.SAME, root=opts.rootRank)
        return self._in_place(request, tensors[:1], opts, group=False)

    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any = None
    ) -> RuedaWork:
        """A tensor from each rank, which may differ in shape."""
        outputs = output_tensors[0]
        request = self._request(c.ALLGATHER, Output.TAKEN)
        flat = _flat(input_tensors[0])
        return self._exchange(request, flat, _sizes(outputs), outputs, opts, "all_gather")

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> RuedaWork:
        """All ranks' tensors in one, in rank order."""
        request = self._request(c.ALLGATHER, Output.INTO)
        return self._into(request, [(input, output)], opts, in_place=True)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> RuedaWork:
        """The same of several, together."""
        request = self._request(c.ALLGATHER, Output.INTO)
        pairs = list(zip(inputs, outputs, strict=True))
        return self._into(request, pairs, opts, group=True, in_place=True)

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> RuedaWork:
        """A list of tensors from each rank."""
        request = self._request(c.ALLGATHER, Output.TAKEN)
        of_inputs = list(zip(*output_lists, strict=True))

        def deal_out(wholes: list[Tensor]) -> None:
            for whole, parts in zip(wholes, of_inputs, strict=True):
                _deal_out(whole, parts)

        outputs = [tensor for of_rank in output_lists for tensor in of_rank]
        flat = [_flat(tensor) for tensor in inputs]
        return self._run(
            request,
            flat,
            outputs,
            opts,
            group=True,
            before=_expect("all_gather", *map(_sizes, of_inputs)),
            finish=deal_out,
        )

    def gather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any
    ) -> RuedaWork:
        """A tensor from each rank, at the root."""
        flat = _flat(input_tensors[0])
        if opts.rootRank != self._rank_:
            request = self._request(c.GATHER, Output.NONE, root=opts.rootRank)
            return self._run(request, flat, [], opts)
        outputs = output_tensors[0]
        request = self._request(c.GATHER, Output.TAKEN, root=opts.rootRank)
        return self._exchange(request, flat, _sizes(outputs), outputs, opts, "gather")

    def scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> RuedaWork:
        """A tensor for each rank, from the root."""
        output = output_tensors[0]
        if opts.rootRank != self._rank_:
            request = self._request(c.SCATTER, Output.GIVEN, root=opts.rootRank)
            flat = torch.empty(output.numel(), dtype=output.dtype, device=output.device)
            return self._run(
                request, flat, [output], opts, finish=lambda whole: _deal_out(whole, [output])
            )
        inputs = input_tensors[0]
        splits = _sizes(inputs)
        request = self._request(c.SCATTER, Output.INTO, root=opts.rootRank, splits=splits)
        return self._into(request, [(_joined(inputs), output)], opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> RuedaWork:
        """Rows for each rank, and from each rank."""
        splits = self._splits(input, input_split_sizes)
        request = self._request(c.ALLTOALL, Output.TAKEN, splits=splits)
        expected = self._splits(output, output_split_sizes)
        return self._exchange(request, _flat(input), expected, [output], opts)

    def _splits(self, tensor: Tensor, rows: list[int]) -> list[int]:
        """In elements."""
        if not rows:
            if tensor.numel() % self._size_ != 0:
                raise ValueError(
                    f"all_to_all: a tensor of shape {tuple(tensor.shape)} has no equal parts for "
                    f"{self._size_} ranks"
                )
            return [tensor.numel() // self._size_] * self._size_
        if len(rows) != self._size_ or sum(rows) != tensor.shape[0]:
            raise ValueError(
                f"all_to_all: the splits {list(rows)} are not those of {tensor.shape[0]} rows for "
                f"{self._size_} ranks"
            )
        each = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0
        return [count * each for count in rows]

    def _exchange(
        self,
        request: Operation,
        flat: Tensor,
        expected: list[int],
        outputs: list[Tensor],
        options: Any,
        what: str = "all_to_all",
    ) -> RuedaWork:
        """`expected`: how many elements from each rank."""
        return self._run(
            request,
            flat,
            outputs,
            options,
            before=_expect(what, expected),
            finish=lambda whole: _deal_out(whole, outputs),
        )

    def alltoall(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any = None
    ) -> RuedaWork:
        """A tensor for each rank, and one from each."""
        splits = _sizes(input_tensors)
        request = self._request(c.ALLTOALL, Output.TAKEN, splits=splits)
        flat = _joined(input_tensors)
        return self._exchange(request, flat, _sizes(output_tensors), output_tensors, opts)

    # ---- point to point ----

    def _letter(
        self, peer: int, tag: int, direction: int, submit: Callable[[str | None], RuedaWork]
    ) -> RuedaWork:
        """Messages with one tag come in order; those with different tags don't wait for each
        other. One that is refused takes no place in the order. Those with tag 0 have no names: the
        library has an order for these, which is quicker than names that come once."""
        _check_tag(tag)
        key = (peer, tag, direction)
        with self._lock:
            number = self._letters.get(key, 0)
            work = submit(f"tag {tag} message {number}" if tag != 0 else None)
            self._letters[key] = number + 1
        if direction == 0:
            self._sent.add(work.operation(), peer, tag, number)
        return work

    def send(self, tensors: list[Tensor], dst_rank: int, tag: int = 0) -> RuedaWork:
        """One tensor."""
        return self._letter(dst_rank, tag, 0, lambda name: self._send(tensors, dst_rank, name))

    def recv(self, tensors: list[Tensor], src_rank: int, tag: int = 0) -> RuedaWork:
        """One tensor, of the size that was sent."""
        return self._letter(src_rank, tag, 1, lambda name: self._receive(tensors, src_rank, name))

    def _send(self, tensors: list[Tensor], rank: int, name: str | None) -> RuedaWork:
        request = self._request(c.SEND, Output.NONE, root=rank, name=name)
        return self._run(request, _flat(tensors[0]), tensors)

    def _receive(self, tensors: list[Tensor], rank: int, name: str | None) -> RuedaWork:
        tensor = tensors[0]
        request = self._request(c.RECV, Output.GIVEN, root=rank, name=name)
        if tensor.is_contiguous():
            return self._run(request, tensor.detach().view(-1), tensors)
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        return self._run(request, flat, tensors, finish=lambda whole: _deal_out(whole, [tensor]))

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> RuedaWork:
        """One tensor, from whoever sends one with the tag; the work knows who."""
        _check_tag(tag)
        work = AnySourceWork(tensors, self._limit, self._calls)
        with self._lock:
            if self._context is None:
                raise self._destroyed()
            if self._wanted is None:
                self._wanted = Wanted(
                    self._own_store,
                    self._rank_,
                    self._size_,
                    self.recv,
                    lambda source, tag: self._letters.get((source, tag, 1), 0),
                    self._check_alive,
                )
            self._wanted.add(work, tag)
        return work

    def _check_alive(self) -> None:
        with self._calls:
            if self._context is None:
                raise self._destroyed()
            cause = _context.first_cause(self._context)
            if cause.code != 0:
                raise _context.aborted(cause, errors.text(cause.message))

    # ---- barriers ----

    def barrier(self, opts: Any = None) -> RuedaWork:
        """Waits for all ranks."""
        return self._run(self._request(c.BARRIER, Output.NONE), None, [], opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier that, after `timeout`, names the ranks that did not come (all of them). It has
        then failed for those that come later, too; the next one is for all ranks again.

        Raises:
            RuntimeError: at rank 0, with these ranks; elsewhere that it has failed.
        """
        limit = timeout or self._limit
        # Messages of each call have names of their own, and rank 0 answers those that are late,
        # too: after one that has failed the next is as good as any.
        with self._lock:
            number = self._monitored_barriers
            self._monitored_barriers += 1
        arrival, verdict = (f"monitored barrier {number} {what}" for what in ("here", "verdict"))
        if self._rank_ != 0:
            self._send([torch.zeros(1, dtype=torch.uint8)], 0, arrival)
            # Rank 0 answers when all have come, or when its time is up.
            answer = torch.zeros(1, dtype=torch.uint8)
            self._receive([answer], 0, verdict).wait(limit + timedelta(seconds=30))
            if answer.item() != 1:
                raise RuntimeError("monitored_barrier: some ranks did not come; rank 0 names them")
            return
        peers = range(1, self._size_)
        arrivals = [
            self._receive([torch.zeros(1, dtype=torch.uint8)], rank, arrival) for rank in peers
        ]
        missing = []
        deadline = _Deadline(limit)
        for rank, work in zip(peers, arrivals, strict=True):
            try:
                work.wait(deadline.left())
            except (errors.TimeIsUpError, errors.StalledError):
                missing.append(self._global_ranks[rank])
        word = torch.tensor([0 if missing else 1], dtype=torch.uint8)
        for rank in peers:
            self._send([word], rank, verdict)
        if missing:
            raise RuntimeError(
                f"monitored_barrier: ranks {', '.join(map(str, missing))} did not come within "
                f"{limit.total_seconds():g} s"
            )

    # ---- several at once ----

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []
        self._coalescing_thread = threading.get_ident()

    def _end_coalescing(self, device: torch.device) -> RuedaWork:
        works, self._coalescing = self._coalescing or [], None
        return RuedaWorks(works, self._limit, self._calls)

    # Names of earlier versions of torch.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


class _Deadline:
    def __init__(self, limit: timedelta) -> None:
        self._end = time.monotonic() + limit.total_seconds()

    def left(self) -> timedelta:
        return timedelta(seconds=max(self._end - time.monotonic(), 0.001))


def _leave(error: BaseException | None) -> Callable[[], None]:
    """A program that does not destroy its process groups leaves them; one that ends for an
    exception ends them for the others, too."""
    if error is None:
        ends = [group._begin_to_leave() for group in list(_groups)]
    else:
        ends = []
        for group in list(_groups):
            group._abort(_context.reason_of(error))

    def wait() -> None:
        for end in ends:
            end()

    return wait


_context.at_exit.append(_leave)
