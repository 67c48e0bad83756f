"""Writes numpy_*.npy beside this file with numpy.save.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install numpy
    /tmp/golden/bin/python tests/data/golden/make_numpy_golden.py
"""

import pathlib

import numpy

here = pathlib.Path(__file__).parent
ids = [3, 1, 65535, 7, 0]
numpy.save(here / "numpy_uint16.npy", numpy.array(ids, numpy.uint16))
numpy.save(here / "numpy_int32.npy", numpy.array(ids, numpy.int32))
numpy.save(here / "numpy_int64.npy", numpy.array(ids))
numpy.save(here / "numpy_2d.npy", numpy.array([ids, ids], numpy.uint16))
numpy.save(here / "numpy_bool.npy", numpy.array([i % 2 == 1 for i in ids]))
numpy.save(here / "numpy_uint8.npy", numpy.array([i % 2 for i in ids], numpy.uint8))
