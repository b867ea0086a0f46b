"""Policy on pod templates: a pure decision table over the rendered pod.

The rules are those of Kubernetes' Pod Security Standard "restricted", and others that it leaves
out: service accounts, Secrets, the node, system priorities. Unlisted fields are refused, so a new
field of Kubernetes opens nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from macroserve.api.model_cache import ModelCache
from macroserve.api.validation_errors import shown
from macroserve.operator.admission import pod_standard as standard
from macroserve.operator.k8s import names
from macroserve.operator.render.confinement import CONTAINER_SECURITY, POD_SECURITY
from macroserve.operator.render.template import merged

_NO_TOKEN = {"automountServiceAccountToken": False}


class Allowance(StrEnum):
    """A feature of pods that the policy may list in ``allow``."""

    PRIVILEGED = "privileged"
    PRIVILEGE_ESCALATION = "privilegeEscalation"
    ROOT = "root"
    HOST_NETWORK = "hostNetwork"
    HOST_PID = "hostPID"
    HOST_IPC = "hostIPC"
    HOST_PATH = "hostPath"
    HOST_PORT = "hostPort"
    HOST_PROBES = "hostProbes"
    OTHER_VOLUMES = "otherVolumes"
    UNCONFINED = "unconfined"
    SYSCTLS = "sysctls"
    NODE_NAME = "nodeName"
    SYSTEM_PRIORITY = "systemPriority"


class PodPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Permissions of templates beyond the restricted standard (``podPolicy`` of the chart)."""

    allow: frozenset[Allowance] = frozenset()
    service_accounts: tuple[str, ...] = ()
    """Names whose identity and token a pod may have."""
    secrets: tuple[str, ...] = ("hf*", "huggingface*", "hugging-face*")
    """Patterns (``*``) of names that a template may read."""
    capabilities: tuple[str, ...] = ()
    """Those that a container may add."""

    @staticmethod
    def from_json(text: str) -> "PodPolicy":
        """Parse the policy. Raise ValueError if the text is not one."""
        return msgspec.json.decode(text, type=PodPolicy)


RESTRICTED = PodPolicy()


def violations(template: Mapping[str, Any], policy: PodPolicy, path: str) -> tuple[str, ...]:
    """Return one sentence per reason to refuse pods of a template, which stands at a path."""
    confined = {
        "spec": {
            **_NO_TOKEN,
            "securityContext": POD_SECURITY,
            "containers": [{"name": names.CONTAINER, "securityContext": CONTAINER_SECURITY}],
        }
    }
    return tuple(_Review(policy, path).pod(merged(confined, template)))


def cache_violations(cache: ModelCache | None, policy: PodPolicy) -> tuple[str, ...]:
    """Return why the cache's volume is refused, in the form of ``violations``."""
    if cache is None or cache.host_path is None:
        return ()
    path = "spec.model.cache.hostPath"
    review = _Review(policy, path)
    return tuple(review.refuse(path, cache.host_path, "left out", Allowance.HOST_PATH))


@dataclass(frozen=True, slots=True)
class _Review:
    policy: PodPolicy
    path: str

    def pod(self, pod: Mapping[str, Any]) -> Iterator[str]:
        spec, path = _map(pod.get("spec")), f"{self.path}.spec"
        yield from self._annotations(_map(_map(pod.get("metadata")).get("annotations")))
        yield from _unknown(spec, standard.POD_FIELDS, path)
        for field, allowance in (
            ("hostNetwork", Allowance.HOST_NETWORK),
            ("hostPID", Allowance.HOST_PID),
            ("hostIPC", Allowance.HOST_IPC),
            ("nodeName", Allowance.NODE_NAME),
        ):
            if spec.get(field):
                yield from self.refuse(f"{path}.{field}", spec[field], "left out", allowance)
        priority = spec.get("priorityClassName")
        if str(priority).startswith("system-"):
            yield from self.refuse(
                f"{path}.priorityClassName",
                priority,
                "not a system priority class",
                Allowance.SYSTEM_PRIORITY,
            )
        yield from self._account(spec, path)
        yield from self._pod_security(_map(spec.get("securityContext")), f"{path}.securityContext")
        for field in ("initContainers", "containers"):
            for container in _maps(spec.get(field)):
                where = f"{path}.{field}[{container.get('name')}]"
                yield from self._container(container, spec, where)
        for volume in _maps(spec.get("volumes")):
            yield from self._volume(volume, spec, f"{path}.volumes[{volume.get('name')}]")

    def refuse(self, path: str, value: object, wanted: str, allowance: Allowance) -> Iterator[str]:
        if allowance not in self.policy.allow:
            yield (
                f"{path} is {shown(value)}, must be {wanted}: the operator's podPolicy.allow does "
                f"not list {allowance}."
            )

    def _annotations(self, annotations: Mapping[str, Any]) -> Iterator[str]:
        for name, value in annotations.items():
            is_confining = str(name).startswith(standard.CONFINING_ANNOTATIONS)
            if is_confining and not str(value).startswith(("runtime/", "localhost/")):
                path = f"{self.path}.metadata.annotations[{name}]"
                wanted = "runtime/default or localhost/..."
                yield from self.refuse(path, value, wanted, Allowance.UNCONFINED)

    def _account(self, spec: Mapping[str, Any], path: str) -> Iterator[str]:
        for field in ("serviceAccountName", "serviceAccount"):
            account = spec.get(field)
            if account not in (None, "", "default", *self.policy.service_accounts):
                yield (
                    f"{path}.{field} is {shown(account)}, must be left out: the operator's "
                    "podPolicy.serviceAccounts does not list it."
                )
        automount = spec.get("automountServiceAccountToken")
        if automount is not False and not self._may_have_token(spec):
            yield _token(
                f"{path}.automountServiceAccountToken is {shown(automount)}, must be false"
            )

    def _may_have_token(self, spec: Mapping[str, Any]) -> bool:
        account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        return account in self.policy.service_accounts

    def _pod_security(self, context: Mapping[str, Any], path: str) -> Iterator[str]:
        yield from _unknown(context, standard.POD_SECURITY_FIELDS, path)
        yield from self._profiles(context, path, is_needed=True)
        if context.get("runAsUser") == 0:
            yield from self.refuse(f"{path}.runAsUser", 0, "a user other than root", Allowance.ROOT)
        for sysctl in _maps(context.get("sysctls")):
            if (name := sysctl.get("name")) not in standard.SAFE_SYSCTLS:
                wanted = "one that Kubernetes considers safe"
                yield from self.refuse(f"{path}.sysctls", name, wanted, Allowance.SYSCTLS)

    def _profiles(
        self, context: Mapping[str, Any], path: str, is_needed: bool = False
    ) -> Iterator[str]:
        """Check the security profiles of a pod or container.

        is_needed: whether a seccomp profile is required, because the default is Unconfined.
        """
        for field in ("seccompProfile", "appArmorProfile"):
            kind = _map(context.get(field)).get("type")
            may_lack = kind is None and not (is_needed and field == "seccompProfile")
            if kind not in standard.PROFILES and not may_lack:
                wanted = " or ".join(standard.PROFILES)
                yield from self.refuse(f"{path}.{field}.type", kind, wanted, Allowance.UNCONFINED)
        linux = _map(context.get("seLinuxOptions"))
        kind = linux.get("type") or None
        if kind not in (None, *standard.SELINUX_TYPES) or linux.get("user") or linux.get("role"):
            where = f"{path}.seLinuxOptions"
            wanted = "left out except level and a container's type"
            yield from self.refuse(where, dict(linux), wanted, Allowance.UNCONFINED)

    def _container(
        self, container: Mapping[str, Any], spec: Mapping[str, Any], path: str
    ) -> Iterator[str]:
        yield from _unknown(container, standard.CONTAINER_FIELDS, path)
        context = _map(container.get("securityContext"))
        yield from self._container_security(context, spec, f"{path}.securityContext")
        for port in _maps(container.get("ports")):
            if port.get("hostPort"):
                where = f"{path}.ports[{port.get('containerPort')}].hostPort"
                yield from self.refuse(where, port["hostPort"], "left out", Allowance.HOST_PORT)
        handlers = {probe: _map(container.get(probe)) for probe in standard.PROBES}
        lifecycle = _map(container.get("lifecycle"))
        handlers |= {f"lifecycle.{hook}": _map(lifecycle.get(hook)) for hook in standard.HOOKS}
        for handler, how in handlers.items():
            for kind in ("httpGet", "tcpSocket"):
                if host := _map(how.get(kind)).get("host"):
                    where = f"{path}.{handler}.{kind}.host"
                    yield from self.refuse(where, host, "left out", Allowance.HOST_PROBES)
        for entry in _maps(container.get("env")):
            source = _map(entry.get("valueFrom")).get("secretKeyRef")
            where = f"{path}.env[{entry.get('name')}].valueFrom.secretKeyRef.name"
            yield from self._secret(source, "name", where)
        for entry in _maps(container.get("envFrom")):
            yield from self._secret(
                entry.get("secretRef"), "name", f"{path}.envFrom.secretRef.name"
            )

    def _container_security(
        self, context: Mapping[str, Any], spec: Mapping[str, Any], path: str
    ) -> Iterator[str]:
        yield from _unknown(context, standard.CONTAINER_SECURITY_FIELDS, path)
        yield from self._profiles(context, path)
        privileged = context.get("privileged")
        if privileged:
            yield from self.refuse(f"{path}.privileged", privileged, "false", Allowance.PRIVILEGED)
        escalation = context.get("allowPrivilegeEscalation")
        if escalation is not False:
            where, allowance = f"{path}.allowPrivilegeEscalation", Allowance.PRIVILEGE_ESCALATION
            yield from self.refuse(where, escalation, "false", allowance)
        if context.get("procMount") not in (None, "Default"):
            where = f"{path}.procMount"
            yield from self.refuse(where, context["procMount"], "Default", Allowance.UNCONFINED)
        if context.get("runAsUser") == 0:
            yield from self.refuse(f"{path}.runAsUser", 0, "a user other than root", Allowance.ROOT)
        of_pod = _map(spec.get("securityContext")).get("runAsNonRoot")
        non_root = context.get("runAsNonRoot")
        if (of_pod if non_root is None else non_root) is not True:
            yield from self.refuse(f"{path}.runAsNonRoot", non_root, "true", Allowance.ROOT)
        capabilities = _map(context.get("capabilities"))
        if "ALL" not in _list(capabilities.get("drop")):
            yield f"{path}.capabilities.drop must list ALL."
        for name in _list(capabilities.get("add")):
            if name not in (standard.FREE_CAPABILITY, *self.policy.capabilities):
                yield (
                    f"{path}.capabilities.add lists {shown(name)}, which the operator's "
                    "podPolicy.capabilities does not."
                )

    def _volume(
        self, volume: Mapping[str, Any], spec: Mapping[str, Any], path: str
    ) -> Iterator[str]:
        for kind, source in volume.items():
            if kind == "name" or source is None:
                continue
            if kind == "secret":
                yield from self._secret(source, "secretName", f"{path}.secret.secretName")
            elif kind == "projected":
                for part in _maps(_map(source).get("sources")):
                    yield from self._projected(part, spec, f"{path}.projected.sources")
            elif kind == "hostPath":
                where = f"{path}.hostPath"
                yield from self.refuse(where, source, "left out", Allowance.HOST_PATH)
            elif kind not in standard.VOLUMES:
                where = f"{path}.{kind}"
                wanted = "a volume of another kind, such as a persistentVolumeClaim"
                yield from self.refuse(where, source, wanted, Allowance.OTHER_VOLUMES)

    def _projected(
        self, part: Mapping[str, Any], spec: Mapping[str, Any], path: str
    ) -> Iterator[str]:
        for kind, source in part.items():
            if source is None or kind in standard.PROJECTED:
                continue
            if kind == "secret":
                yield from self._secret(source, "name", f"{path}.secret.name")
            elif kind == "serviceAccountToken":
                if not self._may_have_token(spec):
                    yield _token(f"{path}.{kind} must be left out")
            else:
                wanted = "of another kind"
                yield from self.refuse(f"{path}.{kind}", source, wanted, Allowance.OTHER_VOLUMES)

    def _secret(self, source: object, field: str, path: str) -> Iterator[str]:
        """Refuse Secrets that are not listed, and always the operator's own Secrets."""
        if source is None:
            return
        name = str(_map(source).get(field) or "")
        is_listed = any(fnmatchcase(name, pattern) for pattern in self.policy.secrets)
        own = [end for end in (names.secret(""), names.tls_secret("")) if name.endswith(end)]
        if own:
            yield (
                f"{path} is {shown(name)}, must not end with {own[0]}, the suffix of Secrets with "
                "the operator's tokens and keys."
            )
        elif not is_listed:
            yield (
                f"{path} is {shown(name)}, must match a pattern of the operator's "
                f"podPolicy.secrets ({', '.join(self.policy.secrets) or 'none'})."
            )


def _token(what: str) -> str:
    return f"{what}: the operator's podPolicy.serviceAccounts does not list the pod's account."


def _unknown(mapping: Mapping[str, Any], known: frozenset[str], path: str) -> Iterator[str]:
    for field, value in mapping.items():
        if field not in known and value is not None:
            yield f"{path}.{field} must be left out: a pod template may not set this field."


def _map(value: object) -> Mapping[str, Any]:
    """Return the mapping, or an empty one for a shape that the API server refuses."""
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _maps(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in _list(value) if isinstance(item, Mapping))
