"""Import before numpy: one thread adds up in one order, so that a fit gives the same bytes on any number of cores."""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
