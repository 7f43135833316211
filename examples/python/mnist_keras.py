"""Trains a classifier of handwritten digits with Keras on TensorFlow, on all ranks together.

    ruedarun -np 2 python examples/python/mnist_keras.py
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import digits
import keras
import numpy as np
import tensorflow as tf

import rueda.tensorflow.keras as hvd
from rueda.tensorflow import allgather_object


def make_model() -> keras.Model:
    """Two convolutions and two dense layers."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--lr", type=float, default=0.001, help="for one rank")
    arguments = parser.parse_args()

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    images, labels, test_images, test_labels = digits.load()
    images, test_images = images.transpose(0, 2, 3, 1), test_images.transpose(0, 2, 3, 1)
    # Every rank has a part, and all parts have as many batches.
    train = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=1)
    train = train.shard(size, rank).batch(arguments.batch_size, drop_remainder=True)
    train = train.take(len(images) // size // arguments.batch_size)

    model = make_model()
    lr = arguments.lr * size
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(lr))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(lr, warmup_epochs=2),
    ]
    history = model.fit(train, epochs=arguments.epochs, callbacks=callbacks, verbose=0).history
    if rank == 0:
        for epoch, mean_loss in enumerate(history["loss"], 1):
            print(f"epoch={epoch} loss={mean_loss:.4f}")

    part = slice(rank, None, size)  # each rank tests its own part
    right = np.sum(model(test_images[part]).numpy().argmax(1) == test_labels[part])
    right = hvd.allreduce(right, op=hvd.Sum)
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    equal = len(set(allgather_object(weights.tobytes()))) == 1
    if rank == 0:
        print(f"test_accuracy={right / len(test_labels):.4f} replicas_equal={str(equal).lower()}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
