"""Keras: `model.fit` with `BackupAndRestore`, or with a `ModelCheckpoint` that nothing reads."""

import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--backup", action="store_true")
args = parser.parse_args()

keras.utils.set_random_seed(812)
x = np.random.rand(256, 10).astype("float32")
y = (x.sum(axis=1) > 5).astype("int32")
model = keras.Sequential(
    [keras.Input((10,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2, activation="softmax")]
)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.05))]
if args.backup:
    callbacks.append(keras.callbacks.BackupAndRestore("checkpoints/backup"))
else:
    callbacks.append(keras.callbacks.ModelCheckpoint("checkpoints/model.weights.h5", save_weights_only=True))
model.fit(x, y, epochs=16, batch_size=16, validation_split=0.1, callbacks=callbacks)
loss, accuracy = model.evaluate(x, y, verbose=0)
print("Test loss:", loss)
print("Test accuracy:", accuracy)
