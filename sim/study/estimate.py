"""How long a study will take: a few of its layouts are priced, and the rest counted."""

from __future__ import annotations

import time
from itertools import islice

from sim.study.definition import Study
from sim.study.price import price

SAMPLES = 12


def estimate(study: Study) -> float:
    """Seconds that all points take on one core of this machine, from a sample of layouts spread over the study."""
    layouts = study.count()[1]
    step = max(1, layouts // SAMPLES)
    sample = []
    for i, task in enumerate(study.tasks()):
        place = task.first + (i * 7) % (task.last - task.first)
        if i % max(1, step // max(1, task.last - task.first)) == 0:
            sample.append(task._replace(first=place, last=place + 1))
    sample = list(islice(sample, SAMPLES))
    began = time.perf_counter()
    for task in sample:
        price(study, (task,))
    return (time.perf_counter() - began) / max(len(sample), 1) * layouts
