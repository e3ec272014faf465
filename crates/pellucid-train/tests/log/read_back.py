"""Reads a run of `TensorBoard` (crates/pellucid-train/src/log/tensorboard/) with the package tensorboard.

Needs tensorboard (run with 2.21): python read_back.py. It runs the ignored test that writes the run.
"""

import os
import pathlib
import subprocess
import tempfile

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

folder = pathlib.Path(__file__).parent
with tempfile.TemporaryDirectory() as run:
    command = ["cargo", "test", "-p", "pellucid-train", "--features", "tensorboard", "--test", "log"]
    command += ["--", "--ignored", "a_run_for_read_back"]
    subprocess.run(command, cwd=folder, env={**os.environ, "PELLUCID_RUN": run}, check=True)
    events = EventAccumulator(run, size_guidance={"images": 0, "histograms": 0, "scalars": 0, "tensors": 0})
    events.Reload()

tags = events.Tags()
assert tags["scalars"] == ["loss", "train/accuracy", "final/accuracy"], tags
loss = [(event.step, event.value) for event in events.Scalars("loss")]
expected = [(step, 1 / (step + 1)) for step in range(5)] + [(step, -1.0) for step in range(5, 8)]
assert np.allclose(loss, expected, atol=1e-7), loss
assert [event.step for event in events.Scalars("train/accuracy")] == [0, 1, 2, 3, 4], "later steps are hidden"
assert np.allclose([event.value for event in events.Scalars("final/accuracy")], 0.75)

values = np.sin(np.arange(1000, dtype=np.float32) / np.float32(100))
(event,) = events.Histograms("weight")
histogram = event.histogram_value
assert (event.step, histogram.num) == (7, 1000)
assert np.isclose(histogram.sum, values.sum(dtype=np.float64)) and np.isclose(histogram.min, values.min())
edges = np.r_[histogram.min, histogram.bucket_limit]
assert len(histogram.bucket) == 64 and sum(histogram.bucket) == 1000
# Elements at an edge of two buckets may be counted in either.
assert np.abs(np.histogram(values, bins=edges)[0] - histogram.bucket).sum() <= 4

(event,) = events.Images("image")
assert (event.step, event.height, event.width) == (7, 4, 5)
assert event.encoded_image_string.startswith(b"\x89PNG")

(event,) = events.Tensors("note")
assert event.tensor_proto.string_val[0].decode() == "The **first** run."
assert "note" in events.PluginTagToContent("text")

content = events.PluginTagToContent("hparams")
data = {tag: plugin_data_pb2.HParamsPluginData.FromString(bytes) for tag, bytes in content.items()}
start = data["_hparams_/session_start_info"].session_start_info
found = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
assert found == {"lr": 0.1, "optimizer": "adam", "nesterov": True}, found
experiment = data["_hparams_/experiment"].experiment
assert [(info.name, info.type) for info in experiment.hparam_infos] == [("lr", 3), ("optimizer", 1), ("nesterov", 2)]
assert [info.name.tag for info in experiment.metric_infos] == ["final/accuracy"]
assert data["_hparams_/session_end_info"].session_end_info.status == 1
print("the run is read back")
