"""Hardware models that determine true step times: devices, kernels, links, models.

Schedulers do not see them. They predict with Ascendra's regression (``core.latency``), which learns
from steps, so that predictions err in a simulation as they do in reality.
"""
