"""Data that crosses a process boundary or comes from a user.

The manifest, request limits, messages between components, signed handles, keys and tokens. The
package makes no decisions and unpickles nothing.
"""
