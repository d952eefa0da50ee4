"""Types of numpy columns that have a row, or an entry, for each instance."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
"""Indexes into columns."""
