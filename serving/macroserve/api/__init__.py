"""Everything that crosses the edge of a process or comes from a person: the manifest, requests'
limits, messages between the parts, signed handles, keys and tokens.

The types build on ``core``'s plain ones. Nothing here decides; nothing read is unpickled.
"""
