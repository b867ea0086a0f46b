"""The API package holds all that crosses the edge of a process or comes from a user.

It has the manifest, limits on requests, messages between the components, signed handles, keys and
tokens. Its types build on the plain ones of ``core``. The package makes no decisions, and unpickles
nothing.
"""
