"""read_with_h5py.py LLAMESH: h5py reads what llamesh saved, with the very lines of docs/checkpoint-format.md.

Runs in the folder that has inputs/. Exits with 77 (skipped) where h5py is missing.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy
except ImportError:
    print("SKIPPED: python3 has no h5py")
    sys.exit(77)

sources = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
path_of_docs = "runs/demo/checkpoints/step_00000450/state.h5"


def lines_of_docs():
    """The indented lines after "Reading it with h5py:"."""
    with open(os.path.join(sources, "docs", "checkpoint-format.md")) as f:
        text = f.read().split("Reading it with h5py:\n\n")[1].split("\n\n")[0]
    lines = [line[4:] for line in text.splitlines()]
    assert len(lines) <= 10 and path_of_docs in text, lines
    return "\n".join(lines)


def run_lines(path):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(lines_of_docs().replace(path_of_docs, path), {})
    return printed.getvalue().splitlines()


def check(checkpoint):
    path = os.path.join(checkpoint, "state.h5")
    with open(os.path.join(checkpoint, "manifest.json")) as f:
        manifest = json.load(f)
    printed = run_lines(path)
    with h5py.File(path) as f:
        assert f.attrs["format_version"] == 1 and f.attrs["step"] == 2
        assert f.attrs["tokens"] == 2 * 12 * 64, f.attrs["tokens"]
        assert "micro_batch: 1" in f.attrs["config"].decode()
        assert json.loads(f.attrs["model_config"])["model_type"] == "llama"
        assert printed[0].startswith("2 "), printed[0]
        for name, tensor in f["model"].items():
            line = " ".join(map(str, (name, tensor.shape, tensor[...].mean())))
            assert line in printed, line
        names = [f"/{group}/{name}" for group in ("model", "optimizer/exp_avg", "optimizer/exp_avg_sq") for name in f[group]]
        assert sorted(names) == sorted(d["path"] for d in manifest["datasets"])
        for d in manifest["datasets"]:  # compare with the plain bytes at the manifest's offset
            tensor = f[d["path"]]
            values = numpy.fromfile(path, "<f4", int(numpy.prod(d["shape"])), offset=d["offset"]).reshape(d["shape"])
            assert tensor.dtype == "<f4" and numpy.array_equal(tensor[...], values), d["path"]
            assert numpy.any(values != 0) and numpy.all(numpy.isfinite(values)), d["path"]
    return len(manifest["datasets"])


def main(llamesh):
    with tempfile.TemporaryDirectory() as folder:
        run = [os.path.join(sources, "tests", "mpirun.sh"), "2", llamesh, "train", "inputs/tiny.yaml"]
        subprocess.run(run + ["train.steps=2", f"run.folder={folder}/run"], check=True, stdout=subprocess.DEVNULL)
        read = check(f"{folder}/run/checkpoints/step_00000002")
    print(f"h5py {h5py.__version__} reads all {read} datasets")


main(sys.argv[1])
