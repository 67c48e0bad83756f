"""check_events.py RUN: TensorBoard's own reader shows of the run's event files what metrics.jsonl says, each step once."""
import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = sys.argv[1]
events = EventAccumulator(f"{run}/tensorboard", size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
tags = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr", "speed/tokens_per_second": "tokens_per_second",
        "speed/mfu": "mfu"}
lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
steps = [line for line in lines if "event" not in line]
validation = [line for line in lines if line.get("event") == "validation"]


def check(tag, expected):
    shown = [(event.step, event.value) for event in (events.Scalars(tag) if expected else [])]
    assert [step for step, _ in shown] == [step for step, _ in expected], f"{tag}: {shown} instead of {expected}"
    for (step, value), (_, wanted) in zip(shown, expected):
        assert abs(value - wanted) <= 1e-6 * abs(wanted), f"{tag} of step {step}: {value} instead of {wanted}"


for tag, key in tags.items():
    check(tag, [(line["step"], line[key]) for line in steps if key in line])  # no mfu while the GEMM peak is unsure
check("memory/peak", [(line["step"], line["memory"]["peak"]) for line in steps])
check("validation/loss", [(line["step"], line["loss"]) for line in validation])
for axis in steps[0]["traffic"]:
    check(f"traffic/{axis}", [(line["step"], line["traffic"][axis]) for line in steps])
    check(f"exposed/{axis}", [(line["step"], line["exposed"][axis]) for line in steps])
print(f"{len(steps)} steps of {len(events.Tags()['scalars'])} tags")
