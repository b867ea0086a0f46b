"""When requests arrive: a renewal process with gamma-distributed gaps."""

from collections.abc import Iterator

import numpy as np


def arrival_times(rate: float, cv: float, rng: np.random.Generator) -> Iterator[float]:
    """Arrival times in seconds from the start, without end, at ``rate`` requests per second.

    cv: coefficient of variation (standard deviation over mean) of the gaps. 1 is a Poisson
        process, more is burstier (Apt-Serve, section 6: gamma arrivals with CV 1, 5, 10), and 0
        is a metronome.
    """
    now_s = 0.0
    while True:
        # A gamma variable of shape k has mean k * scale and CV 1 / sqrt(k).
        now_s += rng.gamma(cv**-2, cv**2 / rate) if cv > 0 else 1 / rate
        yield now_s
