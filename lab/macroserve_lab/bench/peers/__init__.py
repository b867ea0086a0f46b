"""``macroserve bench peers``: deployments of other projects and of Macroserve, interleaved.

Every deployment has the same engines, model and requests. A point is one load at one rate against
one deployment in one round; points are saved at once (``journal``), and figures are computed from
them (``figures``).
"""
