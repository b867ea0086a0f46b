"""Capabilities that only some clusters have."""

from enum import StrEnum


class Capability(StrEnum):
    """A capability; its value completes "this cluster cannot ..."."""

    AUDIT_LOG = "show its audit log"
    FAKE_GPUS = "offer GPUs that it does not have"
    IMPORT_IMAGES = "take images from this machine"
    KILL_PODS = "kill the processes of a pod"
    POD_NETWORK = "be reached at the addresses of its pods and Services"
    RUN_PODS = "run pods"
    STOP_API_SERVER = "stop its API server"
    STOP_KUBELETS = "stop the kubelet of a node"
