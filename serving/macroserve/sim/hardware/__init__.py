"""Hardware that the simulator takes for the truth of step times: devices, kernels, links, models.

The schedulers do not see the hardware. They predict with Ascendra's regression (``core.latency``),
which learns from the steps that were served, so that predictions err in a simulation as they do in
reality.
"""
