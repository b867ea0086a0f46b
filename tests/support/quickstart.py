"""README's quickstart on Kubernetes."""

COMMANDS = (
    "apply -f manifests/emulated.yaml",
    "get macroinstances --watch",
    "scale macroinstance emulated --replicas=7",
    "describe macroinstance emulated",
)
"""Arguments of its kubectl commands; `make test` compares them with README.md."""
