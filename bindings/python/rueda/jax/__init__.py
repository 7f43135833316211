"""Rueda for JAX: collectives in functions that jax.jit compiles for the CPU, and outside of them.

    import rueda.jax as rx

    rx.init()
    params = rx.broadcast_parameters(params)

    @jax.jit
    def step(params, batch):
        loss, gradients = rx.value_and_grad(loss_of)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), rx.allreduce(loss)

Ranks are processes with one CPU device each.
"""

from rueda.core import (
    Adasum,
    Average,
    AverageLive,
    Band,
    Bor,
    Bxor,
    Max,
    Min,
    ProcessSet,
    Product,
    ReduceOp,
    Sum,
    _context,
    add_process_set,
    allgather_object,
    broadcast_object,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
)
from rueda.jax._errors import forget as _forget
from rueda.jax._errors import synchronized
from rueda.jax._gradients import (
    DistributedGradients,
    GradientTransformation,
    allreduce_gradients,
    broadcast_parameters,
    grad,
    value_and_grad,
)
from rueda.jax._operations import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allreduce,
    recv,
    reducescatter,
    send,
)

# No job is left while a compiled function is at it.
_context.before_shutdown.append(_forget)

__all__ = [
    "Adasum",
    "Average",
    "AverageLive",
    "Band",
    "Bor",
    "Bxor",
    "DistributedGradients",
    "GradientTransformation",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_gradients",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grad",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "recv",
    "reducescatter",
    "remove_process_set",
    "send",
    "shutdown",
    "size",
    "synchronized",
    "value_and_grad",
]
