"""``macroserve bench peers``: whole deployments of others and of Macroserve, measured in turns.

Every deployment has the same engines, model and requests. A point is one load at one rate against
one deployment in one round; points are kept as they are measured (``journal``), and figures are
computed from them (``figures``).
"""
