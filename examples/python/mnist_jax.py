"""Trains a classifier of handwritten digits with plain JAX: one compiled step, whose gradients are averaged over the
ranks within it.

    ruedarun -np 2 python examples/python/mnist_jax.py
"""

from __future__ import annotations

import argparse
import functools

import digits
import jax
import jax.numpy as jnp
import numpy as np

import rueda.jax as rx


def init_params(key: jax.Array) -> dict[str, jax.Array]:
    """Two convolutions and two dense layers."""
    shapes = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "dense1": (32 * 4 * 4, 64), "dense2": (64, 10)}
    params = {}
    for name, part in zip(shapes, jax.random.split(key, len(shapes))):
        shape = shapes[name]
        inputs = np.prod(shape[1:]) if name.startswith("conv") else shape[0]
        params[name] = jax.random.normal(part, shape) * np.sqrt(2 / inputs)
        params[name + "_bias"] = jnp.zeros(shape[0] if name.startswith("conv") else shape[1])
    return params


def forward(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    """Scores of the ten digits."""
    x = images
    for name in ("conv1", "conv2"):
        x = jax.lax.conv(x, params[name], (1, 1), "SAME") + params[name + "_bias"][:, None, None]
        x = jax.nn.relu(x)
    x = x.reshape(*x.shape[:2], 4, 2, 4, 2).max((3, 5))  # of 2 by 2 pixels
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ params["dense1"] + params["dense1_bias"])
    return x @ params["dense2"] + params["dense2_bias"]


def loss_of(params: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(forward(params, images))
    return -jnp.take_along_axis(scores, labels[:, None], 1).mean()


@functools.partial(jax.jit, static_argnames=("lr", "compression"))
def train_step(params, moments, step, images, labels, lr, compression):
    """One step of Adam."""
    loss, gradients = rx.value_and_grad(loss_of, compression=compression)(params, images, labels)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradients)
    rate = lr * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return params, (first, second), loss


@jax.jit
def count_right(params, images, labels):
    """Of all ranks' parts."""
    return rx.allreduce((forward(params, images).argmax(1) == labels).sum(), "right", rx.Sum)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--compression", default="none", help="fp16, bf16, int8, ...")
    arguments = parser.parse_args()

    rx.init()
    rank, size = rx.rank(), rx.size()
    images, labels, test_images, test_labels = digits.load()
    labels, test_labels = labels.astype(np.int32), test_labels.astype(np.int32)

    # Each rank makes its own parameters; the first one's are taken.
    params = rx.broadcast_parameters(init_params(jax.random.key(rank)), root_rank=0)
    moments = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))
    batch, step = arguments.batch_size, 0
    for epoch in range(arguments.epochs):
        order = np.random.RandomState(epoch).permutation(len(images))  # the same on all ranks
        part = order[rank : len(order) // size * size : size]
        for begin in range(0, len(part) - batch + 1, batch):
            chosen, step = part[begin : begin + batch], step + 1
            params, moments, loss = train_step(
                params, moments, step, images[chosen], labels[chosen], arguments.lr, arguments.compression
            )
        mean_loss = rx.allreduce(loss, name="loss")
        if rank == 0:
            print(f"epoch={epoch + 1} loss={mean_loss:.4f}", flush=True)

    part = slice(rank, None, size)  # each rank tests its own part
    right = count_right(params, test_images[part], test_labels[part])
    weights = np.concatenate([np.ravel(p) for p in jax.tree.leaves(params)])
    equal = len(set(rx.allgather_object(weights.tobytes()))) == 1
    if rank == 0:
        print(f"test_accuracy={right / len(test_labels):.4f} replicas_equal={str(equal).lower()}")
    rx.shutdown()


if __name__ == "__main__":
    main()
